"""The goal of a tuning, and its result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from searchengine.indexer.arrays import at_least_one
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import TuneError, VectorError

_MARGIN = 1e-9
"""Minimum distance of a share from 0 and 1: nearer to them, the bounds are lost in rounding."""


class Objective(StrEnum):
    """The cost that a tuning minimises."""

    LATENCY = "latency"  # median time of one query alone
    THROUGHPUT = "throughput"  # time of a query in a batch


@dataclass(frozen=True, slots=True)
class Goal:
    """A recall target and what to minimise.

    Attributes:
        recall: mean recall@k to exceed, from 1e-9 to 1 - 1e-9.
        confidence: confidence that the target is met, from 1e-9 to 1 - 1e-9.
        k: neighbours per query.
        objective: the time to minimise.
        max_ram: maximum bytes of rotation and coarse stage of all segments; None: no limit.
    """

    recall: float = 0.95
    confidence: float = 0.95
    k: int = 10
    objective: Objective = Objective.LATENCY
    max_ram: int | None = None

    def __post_init__(self) -> None:
        if self.objective not in (choices := [*map(str, Objective)]):
            raise TuneError(
                f"objective must be one of {', '.join(choices)}, got {self.objective!r}"
            )
        object.__setattr__(self, "objective", Objective(self.objective))
        try:
            for name in ("k",) if self.max_ram is None else ("k", "max_ram"):
                object.__setattr__(self, name, at_least_one(name, getattr(self, name)))
        except VectorError as error:
            raise TuneError(str(error)) from None
        for name in ("recall", "confidence"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not _MARGIN <= value <= 1 - _MARGIN:
                raise TuneError(
                    f"{name} must lie between 0 and 1, at least {_MARGIN:g} from both, "
                    f"got {value!r}; 0.95 is 95 %"
                )


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point, measured on the queries that were not held out.

    Attributes:
        config: index config and operating point.
        recall: mean recall@k.
        lowest: the same, or under the filter that costs most of it; infinite for a full scan.
        ms: milliseconds per query: the median alone, or the mean in a batch, by the objective.
        hot_row: bytes per row that should stay in memory.
    """

    config: SegmentConfig
    recall: float
    lowest: float
    ms: float
    hot_row: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values; of the config, the fields that vary."""
        names = ("prefix", "structure", "code", "shortlist", "effort")
        measured = {name: round(getattr(self, name), 4) for name in ("recall", "ms", "hot_row")}
        return {name: self.config.as_dict()[name] for name in names} | measured


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a tuning, and how it was measured.

    Attributes:
        config: the index config and operating point.
        goal: the goal; `goal.recall` is exceeded with `goal.confidence`.
        recall: mean recall@k on the held-out queries.
        filtered: the same under filters, by the share of the rows that they let through; empty if
            the structure is not walked.
        ms: as in Point.
        rows, queries, held_out: numbers of rows searched, of all queries, of held-out queries.
        source: where the queries came from: "given" or "documents".
        question_ms: milliseconds per query besides the search, as the tuning took them.
        curve: all operating points that were measured.
    """

    config: SegmentConfig
    goal: Goal
    recall: float
    filtered: Mapping[str, float]
    ms: float
    rows: int
    queries: int
    held_out: int
    source: str
    question_ms: float
    curve: tuple[Point, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["config"]
        return values | {
            "bound": "betting (Waudby-Smith and Ramdas 2023), fixed-sequence testing",
            "goal": asdict(self.goal),
            "tried": len(self.curve),
            "curve": [point.as_dict() for point in self.curve],
        }
