"""Which operating points a bench measures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from indexer.config import FLAT_BELOW, Code, RotationKind, SegmentConfig, Structure
from indexer.errors import SegmentConfigError
from searchengine.bench.results import Kind
from searchengine.errors import QueryError

PREFIXES = (64, 128, 256)
SHORTLISTS = (2, 5, 10, 20, 50)
"""Times k."""
STRUCTURES = (Structure.FLAT, Structure.HNSW, Structure.IVF)
CODES = (Code.INT8,)
FULL_EFFORTS = {Structure.HNSW: (32, 64, 128, 256), Structure.IVF: (4, 16, 64)}
"""efSearch and lists probed of the structures over the full width."""

Stages = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """An operating point to be built: its coarse stage, shortlist, effort and stages."""

    name: str
    kind: Kind
    config: SegmentConfig


@dataclass(frozen=True, slots=True)
class Grid:
    """Every prefix with every shortlist, structure and code, for the top k; and what to compare.

    Attributes:
        k: neighbours sought.
        prefixes, shortlists, structures, codes: what is combined.
        efforts: efSearch of graphs, lists probed of IVFs, each tried with all of those; 0 lets the
            effort follow the shortlist, or be a sixteenth of the lists. None: that, and of IVFs a
            quarter of the lists as well.
        funnels: stages between the prefix and the full width, each tried with every structure.
        baselines: whether to measure structures over the full width, and prefixes cut off without
            a rotation, as well.
    """

    k: int
    prefixes: tuple[int, ...]
    shortlists: tuple[int, ...]
    structures: tuple[Structure, ...]
    codes: tuple[Code, ...]
    efforts: tuple[int, ...] | None = None
    funnels: tuple[Stages, ...] = ()
    baselines: bool = True

    @classmethod
    def fitting(
        cls,
        rows: int,
        dim: int,
        k: int = 10,
        *,
        prefixes: Sequence[int] = (),
        shortlists: Sequence[int] = (),
        structures: Sequence[Structure] = (),
        codes: Sequence[Code] = (),
        efforts: Sequence[int] = (),
        funnels: Sequence[Stages] | None = None,
        baselines: bool = True,
    ) -> "Grid":
        """A grid that fits so many rows; what is not named is the usual, as far as it fits.

        k is cut to the number of rows. Raises QueryError where a prefix is wider than the vectors,
        or a shortlist is below k or above the number of rows.
        """
        k = min(k, rows)
        given = tuple(prefixes) or tuple(p for p in PREFIXES if p < dim) or (dim,)
        sizes = tuple(shortlists) or tuple(k * times for times in SHORTLISTS if k * times <= rows)
        sizes = sizes or (rows,)
        for name, values, low, high in (
            ("k", [k], 1, rows),
            ("a prefix", given, 1, dim),
            ("a shortlist", sizes, k, rows),
        ):
            for value in values:
                if not low <= value <= high:
                    raise QueryError(f"{name} must be between {low} and {high} here, got {value}")
        if rows < FLAT_BELOW:  # graphs and lists save nothing here
            structures, codes, baselines = (Structure.FLAT,), (Code.FP16,), False
        for width, _ in (stage for stages in funnels or () for stage in stages):
            if not 1 <= width <= dim:
                raise QueryError(f"a funnel's width must be between 1 and {dim} here, got {width}")
        if funnels is None:
            funnels = _usual_funnel(given, sizes, dim, k)
        return cls(
            k,
            given,
            sizes,
            tuple(structures) or STRUCTURES,
            tuple(codes) or CODES,
            tuple(efforts) or None,
            tuple(funnels),
            baselines,
        )

    def cascades(self, own: SegmentConfig, rows: int) -> Iterator[Recipe | tuple[str, str]]:
        """Operating points over the prefix; or a name, and why there is no such point."""
        plain = replace(own, stages=(), effort=0, bounds=0, shortlist=max(self.shortlists))
        for stages in self.funnels:
            if all(stages[0][0] <= prefix for prefix in self.prefixes):
                listed = ", ".join(f"{width}:{keep}" for width, keep in stages)
                yield f"funnel {listed}", "it is no wider than any prefix"
        for structure, code, prefix in product(self.structures, self.codes, self.prefixes):
            shapes = [*product(self.shortlists, [()]), *self._funnels(prefix)]
            for (size, stages), effort in product(shapes, self._efforts(structure, rows)):
                name = _named(structure, code, prefix, size, stages) + _tried(structure, effort)
                try:
                    config = replace(
                        plain,
                        structure=structure,
                        code=code,
                        prefix=prefix,
                        shortlist=size,
                        stages=stages,
                        effort=effort,
                    )
                except SegmentConfigError as error:
                    yield name, str(error)
                    continue
                yield Recipe(name, kind_of(config), config)

    def truncated(self, own: SegmentConfig, rows: int) -> Iterator[Recipe]:
        """The cascades of one structure, a graph if there is one, without a rotation."""
        graph = Structure.HNSW if Structure.HNSW in self.structures else self.structures[0]
        bare = replace(own, rotation=RotationKind.IDENTITY, blocks=())
        only = replace(self, structures=(graph,), codes=self.codes[:1], funnels=())
        for recipe in only.cascades(bare, rows):
            if isinstance(recipe, Recipe):
                yield replace(recipe, name=f"{recipe.name}, not rotated")

    def full(self, own: SegmentConfig, dim: int) -> Iterator[Recipe]:
        """Graphs and lists over the full width in float32, with several efforts."""
        for structure, efforts in FULL_EFFORTS.items():
            for effort in efforts:
                config = replace(
                    own,
                    structure=structure,
                    code=Code.FP32,
                    prefix=dim,
                    shortlist=self.k,
                    effort=effort,
                    stages=(),
                    bounds=0,
                )
                name = f"{structure} fp32 {dim}{_tried(structure, effort)}"
                yield Recipe(name, Kind.FULL, config)

    def _efforts(self, structure: Structure, rows: int) -> tuple[int, ...]:
        """What is tried of a structure; 0 alone of one that takes none."""
        if structure not in FULL_EFFORTS:
            return (0,)
        if self.efforts is not None:
            return self.efforts
        return (0, round(rows**0.5)) if structure is Structure.IVF else (0,)

    def _funnels(self, prefix: int) -> Iterator[tuple[int, Stages]]:
        """Funnels that widen from this prefix, with the longest shortlist."""
        return ((max(self.shortlists), f) for f in self.funnels if f and f[0][0] > prefix)


def kind_of(config: SegmentConfig) -> Kind:
    """What sort of search over a prefix a recipe is."""
    if config.stages:
        return Kind.FUNNEL
    return Kind.TRUNCATED if config.rotation is RotationKind.IDENTITY else Kind.CASCADE


def _usual_funnel(prefixes: Sequence[int], sizes: Sequence[int], dim: int, k: int) -> list[Stages]:
    """One stage of four times the shortest prefix, which keeps a fifth of the longest shortlist."""
    width, keep = 4 * min(prefixes), max(sizes) // 5
    return [((width, keep),)] if width < dim and k <= keep < max(sizes) else []


def _tried(structure: Structure, effort: int) -> str:
    """How an effort is named."""
    if not effort:
        return ""
    return f", ef {effort}" if structure is Structure.HNSW else f", lists {effort}"


def _named(structure: Structure, code: Code, prefix: int, size: int, stages: Stages) -> str:
    between = "".join(f" → {width}: {keep}" for width, keep in stages)
    return f"{structure} {code} {prefix} → {size}{between}"
