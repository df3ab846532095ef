"""The settings of a segment: a small frozen value, checked when made, JSON both ways."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Self

from indexer.errors import SegmentConfigError, shown


class Structure(StrEnum):
    """How the coarse stage finds its shortlist."""

    FLAT = "flat"  # every prefix is scored
    IVF = "ivf"  # the lists of the nearest k-means centroids are scored (Jégou et al. 2011)
    HNSW = "hnsw"  # a navigable small-world graph (Malkov and Yashunin 2016)
    NSG = "nsg"  # a navigating spreading-out graph (Fu et al. 2017); of old segments alone


BUILDABLE = (Structure.FLAT, Structure.IVF, Structure.HNSW)
"""The structures of new segments. NSG took five times as long to build as HNSW and was no faster
(200k real sentences); segments that have it still open and search."""


class Code(StrEnum):
    """How the coarse stage stores a prefix."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"  # 8 bits a number, over the range that each number has in a sample
    INT6 = "int6"
    INT4 = "int4"
    PQ = "pq"  # 8 bits for every 4 numbers: product quantization (Jégou et al. 2011)
    FASTSCAN = "fastscan"  # 4 bits for every 2 numbers, scanned in registers (André et al. 2015)
    RABITQ = "rabitq"  # 1 bit a number (Gao and Long 2024)
    EDEN = "eden"  # 4 bits a number (Vargaftik et al. 2022)


class RotationKind(StrEnum):
    """Which orthogonal turn is applied before rows are stored."""

    PCA = "pca"  # the most energy first
    BLOCKS = "blocks"  # the same within blocks of numbers, so a trained prefix keeps its span
    ITQ = "itq"  # pca, then the prefix turned for 1-bit codes (Gong and Lazebnik 2011)
    IDENTITY = "identity"


class Storage(StrEnum):
    """How the full-width rows are stored."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Device(StrEnum):
    """Where an open segment scans. It is no part of a recipe: results agree to rounding."""

    CPU = "cpu"
    GPU = "gpu"


CODES: dict[Structure, dict[Code, str]] = {
    Structure.FLAT: {
        Code.FP32: "Flat",
        Code.FP16: "SQfp16",
        Code.INT8: "SQ8",
        Code.INT6: "SQ6",
        Code.INT4: "SQ4",
        Code.PQ: "PQ{quarter}np",
        Code.FASTSCAN: "PQ{half}x4fs",
        Code.RABITQ: "RaBitQ",
        Code.EDEN: "EDEN4",
    },
    Structure.IVF: {
        Code.FP32: "IVF{lists},Flat",
        Code.FP16: "IVF{lists},SQfp16",
        Code.INT8: "IVF{lists},SQ8",
        Code.INT6: "IVF{lists},SQ6",
        Code.INT4: "IVF{lists},SQ4",
        Code.PQ: "IVF{lists},PQ{quarter}np",
        Code.FASTSCAN: "IVF{lists},PQ{half}x4fs",
        Code.RABITQ: "IVF{lists},RaBitQ",
        Code.EDEN: "IVF{lists},EDEN4",
    },
    Structure.HNSW: {
        Code.FP32: "HNSW{m},Flat",
        Code.FP16: "HNSW{m},SQfp16",
        Code.INT8: "HNSW{m},SQ8",
        Code.INT6: "HNSW{m},SQ6",
        Code.INT4: "HNSW{m},SQ4",
    },
    Structure.NSG: {
        Code.FP32: "NSG{m},Flat",
        Code.FP16: "NSG{m},SQfp16",
        Code.INT8: "NSG{m},SQ8",
    },
}
"""What a structure can hold, as faiss's index factory spells it. A new kind is a line here.

"np" leaves out polysemous training, which only renumbers the centroids and took 24 of 25 s.
"""

_DIVISOR = {Code.PQ: 4, Code.FASTSCAN: 2}  # a prefix is cut into groups of this many numbers


_UNTRAINED = (Code.FP32, Code.FP16)

MOST = 2**31 - 1
"""The largest number that any setting may be: what faiss takes as an int."""

SMALL = 1000
"""A segment of fewer rows is flat, whatever its recipe says."""


BOUNDS_DIMS = 1000
"""Most dimensions that bounds keep: a sum of that many products of bytes is exact in float32."""


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """The recipe of a segment: how it is built and searched, whole.

    Attributes:
        prefix: numbers of every (rotated) vector that the coarse stage sees.
        structure, code: the coarse stage's structure and number format.
        rotation: the turn applied before anything is stored.
        blocks: for the rotation "blocks": where each block of numbers ends, rising; what is left
            up to the full width is one block more.
        storage: number format of the full-width rows.
        shortlist: rows handed from the coarse stage to the exact scores when a search names none.
        effort: how widely the coarse stage looks: efSearch of HNSW, lists of an IVF; 0 follows the
            shortlist; a flat one looks at everything.
        stages: (width, keep) pairs between the prefix and the full width, both towards the end of
            a funnel: widths rise, numbers kept fall (Kusupati et al. 2022, section 4.3.1).
        hnsw_m: links per row and level of a graph (level 0 of HNSW has twice as many).
        ef_construction: size of the candidate list while an HNSW graph is built.
        lists: k-means lists of an IVF; 0 takes 4 √rows.
        bounds: numbers of every vector whose 8-bit codes are kept for the certified exact search;
            0 keeps none, and exact search scans the full width.

    Raises:
        SegmentConfigError: on any value outside its set or range, or that do not go together.
    """

    prefix: int = 64
    structure: Structure = Structure.FLAT
    code: Code = Code.FP16
    rotation: RotationKind = RotationKind.PCA
    blocks: tuple[int, ...] = ()
    storage: Storage = Storage.FLOAT16
    shortlist: int = 100
    effort: int = 0
    stages: tuple[tuple[int, int], ...] = ()
    hnsw_m: int = 32
    ef_construction: int = 100
    lists: int = 0
    bounds: int = 0

    def __post_init__(self) -> None:
        for name, members in _CLOSED.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, members(value))
            except ValueError:
                choices = ", ".join(members)
                raise SegmentConfigError(
                    f"{name} must be one of {choices}, got {shown(value)}"
                ) from None
        for name, least in _LOWEST.items():
            whole(name, getattr(self, name), least)
        object.__setattr__(self, "blocks", _rising("blocks", self.blocks))
        self._check_stages()
        self._check_code()
        if (self.rotation is RotationKind.BLOCKS) != bool(self.blocks):
            raise SegmentConfigError(
                "blocks must say where the blocks of the rotation 'blocks' end, and only of it; "
                f"got rotation {str(self.rotation)!r} and blocks {shown(list(self.blocks))}"
            )

    def _check_stages(self) -> None:
        try:
            stages = tuple((width, keep) for width, keep in self.stages)
        except (TypeError, ValueError):
            raise SegmentConfigError(
                f"stages must be pairs of a width and how many to keep, got {shown(self.stages)}"
            ) from None
        object.__setattr__(self, "stages", stages)
        width, keep = self.prefix, self.shortlist
        for stage in stages:
            for value in stage:
                whole("stages", value, 1)
            if stage[0] <= width or stage[1] >= keep:
                raise SegmentConfigError(
                    f"stages must widen from prefix {self.prefix} and keep fewer than the shortlist"
                    f" of {self.shortlist}, each more than the one before; got "
                    f"{shown(list(stages))}"
                )
            width, keep = stage

    def _check_code(self) -> None:
        held = CODES[self.structure]
        if self.code not in held:
            raise SegmentConfigError(
                f"the structure {self.structure} holds the codes {', '.join(held)}, "
                f"got {str(self.code)!r}"
            )
        if self.effort and self.structure not in (Structure.HNSW, Structure.IVF):
            raise SegmentConfigError(
                f"effort is for hnsw and ivf; the structure {self.structure} takes none, "
                f"got {self.effort}"
            )
        divisor = _DIVISOR.get(self.code, 1)
        if self.prefix % divisor:
            raise SegmentConfigError(
                f"the code {self.code} needs a prefix that {divisor} divides, got {self.prefix}"
            )

    def factory(self, rows: int) -> str:
        """The coarse stage of `rows` rows, as faiss's index factory spells it."""
        return CODES[self.structure][self.code].format(
            m=self.hnsw_m,
            lists=self.lists or max(1, min(rows // 40, round(4 * rows**0.5))),
            half=self.prefix // 2,
            quarter=self.prefix // 4,
        )

    def coarse_stage(self) -> tuple[Any, ...]:
        """All that coarse.faiss depends on, for a given rotation: equal for equal files."""
        return (
            self.prefix,
            self.structure,
            self.code,
            self.hnsw_m,
            self.ef_construction,
            self.lists,
        )

    def fitting(self, rows: int, dim: int) -> "SegmentConfig":
        """What a segment of so many rows is really built as: a small one is scanned.

        Below SMALL rows graphs, lists and codebooks cannot be trained, and save nothing; nor do
        bounds.

        Raises:
            SegmentConfigError: as `check_width`.
        """
        self.check_width(dim)
        if rows >= SMALL:
            return self
        if self.structure is Structure.FLAT and self.code in _UNTRAINED:
            return replace(self, bounds=0) if self.bounds else self
        return replace(self, structure=Structure.FLAT, code=Code.FP16, effort=0, bounds=0)

    def check_width(self, dim: int) -> None:
        """Raise SegmentConfigError if the prefix, a stage or a block is wider than the vectors."""
        widths = (("prefix", self.prefix), *(("stages", width) for width, _ in self.stages))
        for name, width in (*widths, *(("blocks", end) for end in self.blocks)):
            if width > dim:
                raise SegmentConfigError(
                    f"{name} {width} is wider than the vectors ({dim}); set it to {dim} or less"
                )

    def check_structure(self) -> None:
        """Raise SegmentConfigError for a structure that old segments have and new ones cannot."""
        if self.structure not in BUILDABLE:
            raise SegmentConfigError(
                f"structure must be one of {', '.join(BUILDABLE)} in a new segment, got "
                f"{self.structure}, which is still searched but no longer built; choose another, "
                "or tune the collection"
            )

    def check_buildable(self, dim: int) -> None:
        """Raise SegmentConfigError for what no segment of such vectors can be built by.

        As `check_width`, and the structure must be one of BUILDABLE, and bounds: wider than the
        vectors, they are cut to them; wider than BOUNDS_DIMS, they are refused, also where a
        segment is too small to have any yet.
        """
        self.check_width(dim)
        self.check_structure()
        if min(self.bounds, dim) > BOUNDS_DIMS:
            raise SegmentConfigError(
                f"bounds keep at most {BOUNDS_DIMS} dimensions, got {self.bounds} for vectors of "
                f"{dim}; set it to {BOUNDS_DIMS} or less"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`; an unknown name is an error, a missing one is the default."""
        if not isinstance(values, Mapping):
            raise SegmentConfigError(f"the settings of a segment go by name, got {shown(values)}")
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise SegmentConfigError(f"unknown segment setting {shown(unknown[0])}")
        return cls(**values)


_CLOSED: dict[str, type[StrEnum]] = {
    "structure": Structure,
    "code": Code,
    "rotation": RotationKind,
    "storage": Storage,
}
_LOWEST = {
    "prefix": 1,
    "shortlist": 1,
    "effort": 0,
    "hnsw_m": 2,
    "ef_construction": 1,
    "lists": 0,
    "bounds": 0,
}


def whole(name: str, value: Any, least: int, most: int = MOST) -> int:
    """Return `value` if it is a whole number in its range; SegmentConfigError names it if not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SegmentConfigError(
            f"{name} must be a whole number of at least {least}, got {shown(value)}"
        )
    if value > most:
        raise SegmentConfigError(
            f"{name} must be a whole number of at most {most}, got {shown(value)}"
        )
    return value


def _rising(name: str, values: Any) -> tuple[int, ...]:
    try:
        numbers = tuple(values)
    except TypeError:
        raise SegmentConfigError(
            f"{name} must be a list of whole numbers, got {shown(values)}"
        ) from None
    for value in numbers:
        whole(name, value, 1)
    if any(left >= right for left, right in pairwise(numbers)):
        raise SegmentConfigError(f"{name} must rise, got {shown(list(numbers))}")
    return numbers


def _plain(value: Any) -> Any:
    """JSON's own types: tuples as lists, enumerations as their values."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, StrEnum) else value
