"""What a tuning is asked for, and what it found."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from indexer.arrays import at_least_one
from indexer.config import SegmentConfig
from indexer.errors import TuneError, VectorError


class Objective(StrEnum):
    """What "cheapest" means."""

    LATENCY = "latency"  # median time of one query alone
    THROUGHPUT = "throughput"  # time of a query in a batch


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked for.

    Attributes:
        recall: the mean recall@k to exceed, in (0, 1).
        confidence: with what confidence, in (0, 1).
        k: neighbours sought.
        objective: what to make cheap.
        max_ram: bytes that rotation and coarse stage of all segments may take; None for any.
    """

    recall: float = 0.95
    confidence: float = 0.95
    k: int = 10
    objective: Objective = Objective.LATENCY
    max_ram: int | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "objective", Objective(self.objective))
        except ValueError:
            raise TuneError(
                f"objective must be one of {', '.join(Objective)}, got {self.objective!r}"
            ) from None
        try:
            object.__setattr__(self, "k", at_least_one("k", self.k))
            if self.max_ram is not None:
                object.__setattr__(self, "max_ram", at_least_one("max_ram", self.max_ram))
        except VectorError as error:
            raise TuneError(str(error)) from None
        for name in ("recall", "confidence"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < 1:
                raise TuneError(f"{name} must lie between 0 and 1, got {value!r}; 0.95 is 95 %")


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point, measured on the queries that were searched over.

    Attributes:
        config: recipe and operating point.
        recall: mean recall@k.
        ms: milliseconds a query: the median alone, or the mean in a batch, by the objective.
        hot_row: bytes a row that should stay in memory.
    """

    config: SegmentConfig
    recall: float
    ms: float
    hot_row: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values; of the recipe, what varies."""
        names = ("prefix", "structure", "code", "shortlist", "effort")
        return {name: self.config.as_dict()[name] for name in names} | {
            "recall": round(self.recall, 4),
            "ms": round(self.ms, 4),
            "hot_row": round(self.hot_row, 1),
        }


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found, and what it is founded on.

    Attributes:
        config: the recipe and its operating point.
        goal: what was asked for; `goal.recall` is exceeded with `goal.confidence`.
        recall: mean recall@k on the held-out queries.
        ms: as in Point.
        rows, queries, held_out: rows searched; queries given; those that decided.
        source: where the queries came from: "given" or "documents".
        tried: operating points measured.
        curve: all of them.
    """

    config: SegmentConfig
    goal: Goal
    recall: float
    ms: float
    rows: int
    queries: int
    held_out: int
    source: str
    tried: int
    curve: tuple[Point, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """What the manifest keeps: plain values, ready for JSON."""
        kept = {
            name: getattr(self, name)
            for name in ("recall", "ms", "rows", "queries", "held_out", "source", "tried")
        }
        goal = asdict(self.goal) | {"objective": str(self.goal.objective)}
        return {
            "bound": "betting (Waudby-Smith and Ramdas 2023), fixed-sequence testing",
            "goal": goal,
            **kept,
            "curve": [point.as_dict() for point in self.curve],
        }
