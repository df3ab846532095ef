"""Results of a bench, written to and read from `results.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.corpus.notebook import table
from searchengine.errors import QueryError
from searchengine.indexer.config import SegmentConfig
from searchengine.trainer.files import write_json

FORMAT = 5
RESULTS = "results.json"
EXACT = "exact"
"""Name of the row of exact search."""
RECOMMENDED = "recommended"
"""Name, after a path and #, of the row that is recommended."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of a repeated measurement."""

    median: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Spread":
        """The spread of values, at least one."""
        low, median, high = np.percentile(values, (25, 50, 75)).tolist()
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Row:
    """One operating point.

    Attributes:
        name: unique name of the row.
        config: the index config and operating point, as `searchengine tune --apply` stores it.
        recall: mean share of the exact k nearest that were found.
        recall_low, recall_high: its 95 % interval (bootstrap over queries).
        ndcg: nDCG@10, by documents, in the mode of `Results.subject`; None without judgements.
        p50_ms, p95_ms, p99_ms: latency of one query at a time, warm; spread over the rounds.
        batch_qps: queries per second, all in one call.
        measured: latency of exact search divided by that of this row, by round: rows are
            measured in turns, so that the load of the machine cancels out.
        hot_bytes: bytes that should stay in memory.
        cold_bytes: bytes that may stay on disk.
        build_s: seconds to build the coarse stage; None for exact search.
    """

    name: str
    config: SegmentConfig
    recall: float
    recall_low: float
    recall_high: float
    ndcg: float | None
    p50_ms: Spread
    p95_ms: Spread
    p99_ms: Spread
    batch_qps: Spread | None
    measured: Spread
    hot_bytes: int
    cold_bytes: int
    build_s: float | None


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a bench.

    Attributes:
        measured_at: start of the measurement, ISO 8601 in UTC.
        complete: False if the bench was interrupted.
        subject: the data set: name, path (of the collection; None for bare vectors), rows, dim,
            queries, k, segments, storage, encoder (None for bare vectors), judged (number of
            queries with judgements), default_mode (of a search of the collection that names none;
            None for bare vectors), mode (that of nDCG and overhead: the default mode, but vector
            where that is text).
        machine: processor, cores, threads, memory (bytes), system, python, versions.
        settings: repeats, and the goal: recall, confidence, k, objective.
        overhead_ms: milliseconds of a question besides the search by vectors: encoding, reading the
            documents, and in mode hybrid the words; None for bare vectors.
        now: the name of the row that searches as the collection does, or for bare vectors as a new
            collection would; None before it was measured.
        recommended: the name of the row that a tuning chose; None if none holds the goal.
        why: what held-out queries say of it, or why there is none.
        rows: the operating points, exact search first.
        curve: all points of the tuning, as it measured them: prefix, structure, code, shortlist,
            effort, recall, ms.
    """

    measured_at: str
    complete: bool
    subject: Mapping[str, Any]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    overhead_ms: Spread | None
    now: str | None
    recommended: str | None
    why: str
    rows: tuple[Row, ...]
    curve: tuple[Mapping[str, Any], ...]

    @property
    def exact(self) -> Row | None:
        """The row of exact search; None if nothing was measured."""
        return self.named(EXACT)

    def milliseconds(self, row: Row) -> float:
        """The median time of a whole question; for bare vectors that of a search."""
        return row.p50_ms.median + (0.0 if self.overhead_ms is None else self.overhead_ms.median)

    def named(self, name: str | None) -> Row | None:
        """The row with a name, in which -> may stand for →; None if there is none."""
        arrowed = None if name is None else name.replace("->", "→")
        return next((row for row in self.rows if row.name == arrowed), None)

    def point(self, name: str) -> Row:
        """The row with a name, or the one that is RECOMMENDED. Raises QueryError."""
        row = self.named(self.recommended if name == RECOMMENDED else name)
        if row is None and name == RECOMMENDED:
            raise QueryError(f"the bench recommends nothing: {self.why}")
        if row is None:
            names = ", ".join([RECOMMENDED, *(row.name for row in self.rows)])
            raise QueryError(f"the bench has no point {name!r}; its points are {names}")
        return row

    def _repr_html_(self) -> str:
        """Shown by notebooks: a row for each operating point."""
        rows = [
            (row.name, row.recall, f"{row.recall_low:.3f}–{row.recall_high:.3f}", row.ndcg,
             f"{row.p50_ms.median:.3g}", f"{row.p99_ms.median:.3g}")
            for row in self.rows
        ]  # fmt: skip
        heads = ("", f"recall@{self.subject['k']}", "95 % interval", "nDCG@10", "p50 ms", "p99 ms")
        name = f"Bench of {self.subject['name']}, {self.subject['rows']:,} rows"
        return table(heads, rows, name if self.complete else f"{name}: interrupted")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, folder: Path) -> Path:
        """Write `results.json` to a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / RESULTS
        partial = path.with_name(f".{RESULTS}.partial")
        write_json(partial, self.as_dict())
        partial.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read results from the file or its folder. Raises QueryError."""
        path = path / RESULTS if path.is_dir() else path
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise QueryError(
                f"{path}: no such file; searchengine bench --out DIR writes one"
            ) from None
        except (OSError, ValueError) as error:
            raise QueryError(f"{path} cannot be read as JSON ({error})") from error
        number = value.get("format") if isinstance(value, dict) else None
        if number != FORMAT:
            raise QueryError(
                f"{path} must contain bench results in format {FORMAT}, got format {number!r}; "
                "measure again: searchengine bench --out DIR"
            )
        try:
            fields = {**value, "overhead_ms": _spread(value["overhead_ms"])}
            del fields["format"]
            rows, curve = tuple(map(_row, value["rows"])), tuple(value["curve"])
            return cls(**{**fields, "rows": rows, "curve": curve})
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(f"{path} is damaged: {error!r}; measure again") from error


def point_at(address: str) -> tuple[Row, Mapping[str, Any]]:
    """The row of FILE#NAME, and `Results.subject`: what it was measured on.

    FILE is a results.json or its folder, NAME as in `Results.point`. Raises QueryError.
    """
    path, _, name = address.partition("#")
    results = Results.read(Path(path))
    return results.point(name or RECOMMENDED), results.subject


def _spread(value: Mapping[str, float] | None) -> Spread | None:
    return None if value is None else Spread(**value)


def _row(fields: Mapping[str, Any]) -> Row:
    values = {**fields, "config": SegmentConfig.from_dict(fields["config"])}
    for name in ("p50_ms", "p95_ms", "p99_ms", "batch_qps", "measured"):
        values[name] = _spread(values[name])
    return Row(**values)
