"""The operating points that a bench measures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from searchengine.errors import QueryError
from searchengine.indexer.config import FLAT_BELOW, Code, RotationKind, SegmentConfig, Structure
from searchengine.indexer.errors import SegmentConfigError
from searchengine.measure.results import Kind

PREFIXES = (64, 128, 256)
SHORTLISTS = (2, 5, 10, 20, 50)
"""Multiples of k."""
STRUCTURES = (Structure.FLAT, Structure.HNSW, Structure.IVF)
CODES = (Code.INT8,)
FULL_EFFORTS = {Structure.HNSW: (32, 64, 128, 256), Structure.IVF: (4, 16, 64)}
"""ef_search and nprobe of the structures over the full width."""

Stages = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """An operating point to build: its index config, shortlist, effort and stages."""

    name: str
    kind: Kind
    config: SegmentConfig


@dataclass(frozen=True, slots=True)
class Grid:
    """The combinations of prefix, shortlist, structure and code to measure, and baselines.

    Attributes:
        k: number of nearest neighbours.
        prefixes, shortlists, structures, codes: every combination is measured.
        efforts: ef_search of graphs, nprobe of IVF, each combined with all of those; 0 sets
            ef_search by the shortlist, and nprobe to a sixteenth of the lists. None: 0, and for IVF
            a quarter of the lists as well.
        funnels: reranking stages between prefix and full width, each with every structure.
        baselines: measure structures over the full width, and prefixes without rotation, as well.
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
        """A grid that fits the number of rows; defaults replace what is empty, as far as they fit.

        k is limited to the number of rows. Raises QueryError if a prefix is wider than the vectors,
        or a shortlist is below k or above the number of rows.
        """
        k = min(k, rows)
        widths = tuple(prefixes) or tuple(p for p in PREFIXES if p < dim) or (dim,)
        sizes = tuple(shortlists) or tuple(k * times for times in SHORTLISTS if k * times <= rows)
        sizes = sizes or (rows,)
        for name, values, low, high in (
            ("k", [k], 1, rows),
            ("a prefix", widths, 1, dim),
            ("a shortlist", sizes, k, rows),
        ):
            for value in values:
                if not low <= value <= high:
                    raise QueryError(f"{name} must be between {low} and {high} here, got {value}")
        if rows < FLAT_BELOW:  # so few rows are searched exactly
            structures, codes, baselines = (Structure.FLAT,), (Code.FP16,), False
        for width, _ in (stage for stages in funnels or () for stage in stages):
            if not 1 <= width <= dim:
                raise QueryError(f"a funnel's width must be between 1 and {dim} here, got {width}")
        if funnels is None:
            funnels = _default_funnel(widths, sizes, dim, k)
        return cls(
            k,
            widths,
            sizes,
            tuple(structures) or STRUCTURES,
            tuple(codes) or CODES,
            tuple(efforts) or None,
            tuple(funnels),
            baselines,
        )

    def cascades(self, base: SegmentConfig, rows: int) -> Iterator[PlannedPoint | tuple[str, str]]:
        """Plan operating points over the prefix; of an impossible one, yield its name and why."""
        plain = replace(base, stages=(), effort=0, bounds=0, shortlist=max(self.shortlists))
        for stages in self.funnels:
            if all(stages[0][0] <= prefix for prefix in self.prefixes):
                text = ", ".join(f"{width}:{keep}" for width, keep in stages)
                yield f"funnel {text}", "its first stage is no wider than any prefix"
        for structure, code, prefix in product(self.structures, self.codes, self.prefixes):
            shapes = [*product(self.shortlists, [()]), *self._funnels(prefix)]
            for (size, stages), effort in product(shapes, self._efforts(structure, rows)):
                name = _point_name(structure, code, prefix, size, stages) + _effort_name(
                    structure, effort
                )
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
                yield PlannedPoint(name, kind_of(config), config)

    def truncated(self, base: SegmentConfig, rows: int) -> Iterator[PlannedPoint]:
        """Plan the cascades of one structure without rotation; of HNSW if it is in the grid."""
        structure = Structure.HNSW if Structure.HNSW in self.structures else self.structures[0]
        bare = replace(base, rotation=RotationKind.IDENTITY, blocks=())
        only = replace(self, structures=(structure,), codes=self.codes[:1], funnels=())
        for planned in only.cascades(bare, rows):
            if isinstance(planned, PlannedPoint):
                yield replace(planned, name=f"{planned.name}, not rotated")

    def full(self, base: SegmentConfig, dim: int) -> Iterator[PlannedPoint]:
        """Plan HNSW and IVF over the full width in float32, with several efforts."""
        for structure, efforts in FULL_EFFORTS.items():
            for effort in efforts:
                config = replace(
                    base,
                    structure=structure,
                    code=Code.FP32,
                    prefix=dim,
                    shortlist=self.k,
                    effort=effort,
                    stages=(),
                    bounds=0,
                )
                name = f"{structure} fp32 {dim}{_effort_name(structure, effort)}"
                yield PlannedPoint(name, Kind.FULL, config)

    def _efforts(self, structure: Structure, rows: int) -> tuple[int, ...]:
        """The efforts to measure with a structure; only 0 for one without effort."""
        if structure not in FULL_EFFORTS:
            return (0,)
        if self.efforts is not None:
            return self.efforts
        return (0, round(rows**0.5)) if structure is Structure.IVF else (0,)

    def _funnels(self, prefix: int) -> Iterator[tuple[int, Stages]]:
        """The funnels wider than this prefix, with the longest shortlist."""
        return ((max(self.shortlists), f) for f in self.funnels if f and f[0][0] > prefix)


def kind_of(config: SegmentConfig) -> Kind:
    """The kind of search over a prefix."""
    if config.stages:
        return Kind.FUNNEL
    return Kind.TRUNCATED if config.rotation is RotationKind.IDENTITY else Kind.CASCADE


def _default_funnel(
    prefixes: Sequence[int], sizes: Sequence[int], dim: int, k: int
) -> list[Stages]:
    """One stage of four times the shortest prefix that keeps a fifth of the longest shortlist."""
    width, keep = 4 * min(prefixes), max(sizes) // 5
    return [((width, keep),)] if width < dim and k <= keep < max(sizes) else []


def _effort_name(structure: Structure, effort: int) -> str:
    """The part of a name that an effort adds."""
    if not effort:
        return ""
    return f", ef {effort}" if structure is Structure.HNSW else f", lists {effort}"


def _point_name(structure: Structure, code: Code, prefix: int, size: int, stages: Stages) -> str:
    between = "".join(f" → {width}: {keep}" for width, keep in stages)
    return f"{structure} {code} {prefix} → {size}{between}"
