"""Results of a bench, written to and read from `results.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.corpus.notebook import table
from searchengine.errors import QueryError
from searchengine.indexer.config import SegmentConfig
from searchengine.trainer.files import write_json

FORMAT = 4
RESULTS = "results.json"
EXACT = "exact"
"""Name of the row of exact search."""


class Kind(StrEnum):
    """The kind of search of a row."""

    EXACT = "exact"  # every row at full width: the reference
    CASCADE = "cascade"  # a shortlist by the prefix, reranked at full width
    FUNNEL = "funnel"  # the same, with stages between
    FULL = "full"  # an approximate structure over the full width
    TRUNCATED = "truncated"  # a cascade over a prefix without rotation


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
        kind: kind of search.
        config: the index config and operating point, as `searchengine tune --apply` stores it.
        recall: mean share of the exact k nearest that were found.
        recall_low, recall_high: its 95 % interval (bootstrap over queries).
        ndcg: nDCG@10, by documents, in the mode of `Results.subject`; None without judgements.
        ndcg_loss: 95 % interval of the nDCG@10 that exact search has more, over the same questions
            (bootstrap); None without judgements.
        p50_ms, p95_ms, p99_ms: latency of one query at a time, warm; spread over the rounds that
            all rows share.
        rounds_ms: median latency of every round; first the shared ones, then those of the finals.
            Rows were measured in turns within a round, so that the machine's load cancels out in
            ratios by round.
        batch_qps: queries per second, all in one call.
        measured: latency of exact search divided by that of this row, by round.
        hot_bytes: bytes that should stay in memory.
        cold_bytes: bytes that may stay on disk.
        build_s: seconds to build the coarse stage; None for exact search.
    """

    name: str
    kind: Kind
    config: SegmentConfig
    recall: float
    recall_low: float
    recall_high: float
    ndcg: float | None
    ndcg_loss: tuple[float, float] | None
    p50_ms: Spread
    p95_ms: Spread
    p99_ms: Spread
    rounds_ms: tuple[float, ...]
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
        settings: repeats, prefixes, shortlists, structures, codes, target and the like.
        overhead_ms: milliseconds of a question besides the search by vectors: encoding, reading the
            documents, and in mode hybrid the words; None for bare vectors.
        now: the name of the row that searches as the collection does, or for bare vectors as a new
            collection would; None before it was measured.
        rows: the operating points, exact search first.
        missing: names that were left out, and why.
    """

    measured_at: str
    complete: bool
    subject: Mapping[str, Any]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    overhead_ms: Spread | None
    now: str | None
    rows: tuple[Row, ...]
    missing: Mapping[str, str]

    @property
    def exact(self) -> Row | None:
        """The row of exact search; None if nothing was measured."""
        return next((row for row in self.rows if row.kind is Kind.EXACT), None)

    @property
    def target(self) -> float:
        """The recall that a recommended row must have, 0–1."""
        return float(self.settings["target"])

    @property
    def overhead(self) -> float:
        """Median of overhead_ms; 0 for bare vectors."""
        return 0.0 if self.overhead_ms is None else self.overhead_ms.median

    def named(self, name: str | None) -> Row | None:
        """The row with a name, in which -> may stand for →; None if there is none."""
        arrowed = None if name is None else name.replace("->", "→")
        return next((row for row in self.rows if row.name == arrowed), None)

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
            return cls(**{**fields, "rows": tuple(map(_row, value["rows"]))})
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(f"{path} is damaged: {error!r}; measure again") from error


def _spread(value: Mapping[str, float] | None) -> Spread | None:
    return None if value is None else Spread(**value)


def _row(fields: Mapping[str, Any]) -> Row:
    config = SegmentConfig.from_dict(fields["config"])
    values = {**fields, "kind": Kind(fields["kind"]), "config": config}
    for name in ("p50_ms", "p95_ms", "p99_ms", "batch_qps", "measured"):
        values[name] = _spread(values[name])
    for name in ("ndcg_loss", "rounds_ms"):
        if values[name] is not None:
            values[name] = tuple(map(float, values[name]))
    return Row(**values)
