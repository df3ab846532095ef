"""The settings of a segment: a small frozen value, checked when made, JSON both ways."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from indexer.errors import SegmentConfigError


class Structure(StrEnum):
    """How the coarse stage finds its shortlist."""

    FLAT = "flat"  # every prefix is scored
    HNSW = "hnsw"  # a navigable small-world graph (Malkov and Yashunin 2016)


class Code(StrEnum):
    """How the coarse stage stores a number of a prefix: 4, 2 or 1 bytes."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


class RotationKind(StrEnum):
    """Which orthogonal turn is applied before rows are stored."""

    PCA = "pca"
    IDENTITY = "identity"


class Storage(StrEnum):
    """How the full-width rows are stored."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """How a segment is built and searched.

    Attributes:
        prefix: numbers of every (rotated) vector that the coarse stage sees.
        structure, code: the coarse stage's structure and number format.
        rotation: the turn applied before anything is stored.
        storage: number format of the full-width rows.
        shortlist: rows handed from the coarse stage to the exact scores when a search names none.
        hnsw_m: links per row and level of the graph (level 0 has twice as many).
        ef_construction: size of the candidate list while the graph is built.

    Raises:
        SegmentConfigError: on any value outside its set or range.
    """

    prefix: int = 64
    structure: Structure = Structure.FLAT
    code: Code = Code.FP16
    rotation: RotationKind = RotationKind.PCA
    storage: Storage = Storage.FLOAT16
    shortlist: int = 100
    hnsw_m: int = 32
    ef_construction: int = 100

    def __post_init__(self) -> None:
        closed = {
            "structure": Structure,
            "code": Code,
            "rotation": RotationKind,
            "storage": Storage,
        }
        for name, members in closed.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, members(value))
            except ValueError:
                choices = ", ".join(members)
                raise SegmentConfigError(
                    f"{name} must be one of {choices}, got {value!r}"
                ) from None
        lowest = {"prefix": 1, "shortlist": 1, "hnsw_m": 2, "ef_construction": 1}
        for name, least in lowest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SegmentConfigError(
                    f"{name} must be a whole number of at least {least}, got {value!r}"
                )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            name: str(value) if isinstance(value, StrEnum) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`; an unknown name is an error, a missing one is the default."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise SegmentConfigError(f"unknown segment setting {unknown[0]!r}")
        return cls(**values)
