"""SegmentConfig: how a segment is built and searched, checked at construction, JSON both ways."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from searchengine.indexer.arrays import integer
from searchengine.indexer.errors import SegmentConfigError, shown


class Structure(StrEnum):
    """How the coarse stage finds its shortlist."""

    FLAT = "flat"  # every prefix is scored
    IVF = "ivf"  # the lists of the nearest k-means centroids are scored (Jégou et al. 2011)
    HNSW = "hnsw"  # a navigable small-world graph (Malkov and Yashunin 2016)


class Code(StrEnum):
    """How the coarse stage stores a prefix."""

    FP16 = "fp16"
    INT8 = "int8"  # 8 bits per dimension, over the range of that dimension in a sample


class RotationKind(StrEnum):
    """Which rotation makes the prefix of a vector. Its full width is stored as it is."""

    PCA = "pca"  # the most energy first
    IDENTITY = "identity"


class Storage(StrEnum):
    """How the full-width rows are stored."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Device(StrEnum):
    """Where an open segment scans. Not part of SegmentConfig: results agree up to rounding."""

    CPU = "cpu"
    GPU = "gpu"


LINKS = 16
"""HNSW links per row and level; level 0 has twice as many."""

CANDIDATES = 64
"""Rows that the HNSW links of a row are chosen from (faiss: efConstruction)."""

_STRUCTURES = {Structure.FLAT: "", Structure.IVF: "IVF{lists},", Structure.HNSW: "HNSW{m},"}
_CODES = {Code.FP16: "SQfp16", Code.INT8: "SQ8"}
"""Both in the language of faiss's index factory."""

MAX_SETTING = 2**31 - 1
"""Largest value of any field: faiss takes them as a C int."""

ALL_ROWS = MAX_SETTING
"""A shortlist of all rows, however many there are: every search is exact."""

FLAT_BELOW = 1000
"""A segment of fewer rows is flat, whatever its config says."""

MAX_DIM = 1 << 16
"""Maximum width of vectors: sums of 8-bit products of as many dimensions fit 32 bits."""


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """How a segment is built (index config) and searched (operating point).

    Attributes:
        prefix: dimensions of the prefix that the coarse stage stores of every vector.
        structure, code: the coarse stage's structure and number format.
        rotation: what makes the prefix: a rotation, or the vector's own first dimensions.
        storage: number format of the full-width rows.
        shortlist: rows that the coarse stage passes on to be scored at full width, by default; 0
            measures the number when a segment is built (searchengine.indexer.building);
            ALL_ROWS searches exactly.
        effort: ef_search of HNSW, nprobe of an IVF; 0 follows the shortlist. A flat structure
            scores every row.
        stages: (width, keep) pairs between the prefix and the full width, by the vector's own
            first dimensions: widths rise, rows kept fall (funnel search, Kusupati et al. 2022,
            section 4.3.1).

    Raises:
        SegmentConfigError: a value outside its set or range, or values that exclude each other.
    """

    prefix: int = 64
    structure: Structure = Structure.FLAT
    code: Code = Code.FP16
    rotation: RotationKind = RotationKind.PCA
    storage: Storage = Storage.FLOAT16
    shortlist: int = 100
    effort: int = 0
    stages: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name, members in _ENUMS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, members(value))
            except ValueError:
                choices = ", ".join(members)
                raise SegmentConfigError(
                    f"{name} must be one of {choices}, got {shown(value)}"
                ) from None
        for name, limits in _LIMITS.items():
            object.__setattr__(self, name, whole_number(name, getattr(self, name), *limits))
        self._check_stages()
        if self.effort and self.structure is Structure.FLAT:
            raise SegmentConfigError(
                f"effort must be 0 for the structure {self.structure}, got {self.effort}; "
                "only hnsw and ivf take one"
            )

    def _check_stages(self) -> None:
        try:
            stages = tuple((width, keep) for width, keep in self.stages)
        except (TypeError, ValueError):
            raise SegmentConfigError(
                f"stages must be (width, rows to keep) pairs, got {shown(self.stages)}"
            ) from None
        stages = tuple(
            (whole_number("stages", w, 1), whole_number("stages", n, 1)) for w, n in stages
        )
        object.__setattr__(self, "stages", stages)
        if stages and not self.shortlist:
            raise SegmentConfigError("stages need a shortlist, got 0; say how many rows it has")
        width, keep = self.prefix, self.shortlist
        for stage in stages:
            if stage[0] <= width or stage[1] >= keep:
                raise SegmentConfigError(
                    f"stages must be wider than the prefix of {self.prefix} and keep fewer rows "
                    f"than the shortlist of {self.shortlist}, each wider and with fewer rows than "
                    f"the stage before it; got {shown(list(stages))}"
                )
            width, keep = stage

    def factory(self, rows: int) -> str:
        """The string of faiss's index factory for the coarse stage of `rows` rows."""
        return (_STRUCTURES[self.structure] + _CODES[self.code]).format(
            m=LINKS, lists=max(1, min(rows // 40, round(4 * rows**0.5)))
        )

    def coarse_stage(self) -> "SegmentConfig":
        """This config with defaults for what coarse.faiss does not show: equal for equal files."""
        return replace(self, storage=Storage.FLOAT16, shortlist=ALL_ROWS, effort=0, stages=())

    def fitting(self, rows: int, dim: int) -> "SegmentConfig":
        """The config that a segment of `rows` rows is built with: a small one is flat.

        Below FLAT_BELOW rows, graphs and lists save nothing.

        Raises:
            SegmentConfigError: as `check_width`.
        """
        self.check_width(dim)
        return self if rows >= FLAT_BELOW else self.scanned()

    def exact_from(self, rows: int) -> "SegmentConfig":
        """This config; with a shortlist of at least `rows`, one of all, however many will come."""
        return replace(self, shortlist=ALL_ROWS, stages=()) if self.shortlist >= rows else self

    def scanned(self) -> "SegmentConfig":
        """The config of a flat structure that needs no training, over the same prefix."""
        if self.structure is Structure.FLAT and self.code is Code.FP16:
            return self
        return replace(self, structure=Structure.FLAT, code=Code.FP16, effort=0)

    def check_width(self, dim: int) -> None:
        """Raise SegmentConfigError if the prefix or a stage is wider than the vectors, or they are.

        MAX_DIM is the most that they may be.
        """
        if dim > MAX_DIM:
            raise SegmentConfigError(f"vectors must have at most {MAX_DIM} dimensions, got {dim}")
        widths = (("prefix", self.prefix), *(("stages", width) for width, _ in self.stages))
        for name, width in widths:
            if width > dim:
                raise SegmentConfigError(
                    f"{name} {width} is wider than the vectors ({dim}); set it to {dim} or less"
                )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        stages = [list(stage) for stage in self.stages]
        kinds = {name: str(getattr(self, name)) for name in _ENUMS}
        return asdict(self) | kinds | {"stages": stages}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`; an unknown name is an error, a missing one is the default."""
        cls.check_names(values)
        return cls(**values)

    @classmethod
    def check_names(cls, values: Mapping[str, Any]) -> None:
        """Raise SegmentConfigError unless these are fields of an index config."""
        if not isinstance(values, Mapping):
            raise SegmentConfigError(
                f"an index config is a mapping of its fields, got {shown(values)}"
            )
        known = [field.name for field in fields(cls)]
        if unknown := sorted(values.keys() - set(known)):
            raise SegmentConfigError(
                f"{shown(unknown[0])} is no field of an index config; they are {', '.join(known)}"
            )


_ENUMS: dict[str, type[StrEnum]] = {
    "structure": Structure,
    "code": Code,
    "rotation": RotationKind,
    "storage": Storage,
}
_LIMITS = {
    "prefix": (1, MAX_SETTING),
    "shortlist": (0, MAX_SETTING),
    "effort": (0, MAX_SETTING),
}


def whole_number(name: str, value: Any, minimum: int, maximum: int = MAX_SETTING) -> int:
    """Return `value` as an int. Raise SegmentConfigError unless it is a whole number in range."""
    number = integer(value)
    if number is None or not minimum <= number <= maximum:
        large = number is not None and number > maximum
        limit = f"at most {maximum}" if large else f"at least {minimum}"
        raise SegmentConfigError(f"{name} must be a whole number of {limit}, got {shown(value)}")
    return number
