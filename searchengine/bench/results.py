"""What a bench measured, and `results.json` both ways."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.errors import QueryError
from trainer.model.durable import write_json

FORMAT = 1
RESULTS = "results.json"
SECTION = "bench "
"""How the sections of a commit's figures begin that hold the results of a bench."""


CONFIGURED = "as configured"
"""How the name of the row begins that is the collection as it is searched."""


class Kind(StrEnum):
    """What sort of search a row is."""

    EXACT = "exact"  # every row at full width: what the others are measured against
    CASCADE = "cascade"  # a shortlist by the prefix, scored at full width
    FUNNEL = "funnel"  # the same, with stages between
    FULL = "full"  # an approximate structure over the full width
    TRUNCATED = "truncated"  # a cascade whose prefix is cut off as it is, without a rotation
    PEER = "peer"  # another engine


@dataclass(frozen=True, slots=True)
class Spread:
    """Of something measured several times: the median and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of some values, at least one."""
        low, median, high = np.percentile(values, (25, 50, 75)).tolist()
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Row:
    """One operating point.

    Attributes:
        name: what it is called, unlike all others.
        kind: what sort of search.
        structure, code: of the coarse stage; of exact search "exact" and the stored format; of
            another engine what it calls its index, and its number format.
        prefix, shortlist: numbers the coarse stage sees, and rows that are scored at full width;
            all of them for exact search, 0 where another engine has no such thing.
        effort: efSearch or lists probed; 0 where it follows the shortlist.
        stages: (width, keep) of a funnel.
        settings: whatever else was set, of another engine.
        recall: share of the exact k nearest found, mean over the queries.
        recall_low, recall_high: its 95 % interval (bootstrap over queries).
        ndcg: nDCG@10 where there are judgements.
        p50_ms, p95_ms, p99_ms: latency of one query at a time, warm; spread over the rounds.
        rounds_ms: the median latency of each round. The same round of two rows was measured within
            moments, so that ratios by round are free of what else the machine did.
        percentiles_ms: 101 percentiles (0 to 100) of all latencies together.
        cold_ms: latency of the first query on a fresh map, the rows' pages dropped from the page
            cache; None where that was not measured.
        cold_reads: pages that such a query read from the disk, in the mean.
        batch_qps: queries a second when all come in one call.
        multiply_adds: of one query, counted, not timed.
        bytes_read: of codes, links and rows that one query touches.
        theoretical: times fewer multiply-adds than exact search.
        measured: times faster than exact search, by round.
        hot_bytes: what should stay in memory; cold_bytes: what may stay on the disk.
        build_s: seconds to build the coarse stage; None for exact search.
    """

    name: str
    kind: Kind
    structure: str
    code: str
    prefix: int
    shortlist: int
    effort: int
    stages: tuple[tuple[int, int], ...]
    settings: Mapping[str, Any]
    recall: float
    recall_low: float
    recall_high: float
    ndcg: float | None
    p50_ms: Spread
    p95_ms: Spread
    p99_ms: Spread
    rounds_ms: tuple[float, ...]
    percentiles_ms: tuple[float, ...]
    cold_ms: Spread | None
    cold_reads: float | None
    batch_qps: Spread | None
    multiply_adds: float | None
    bytes_read: float | None
    theoretical: float | None
    measured: Spread
    hot_bytes: int | None
    cold_bytes: int | None
    build_s: float | None

    @property
    def candidate(self) -> bool:
        """Whether it is of this engine, and no exact search."""
        return self.kind not in (Kind.EXACT, Kind.PEER)


@dataclass(frozen=True, slots=True)
class Growth:
    """One operating point on a part of the rows."""

    name: str
    rows: int
    recall: float
    p50_ms: Spread
    build_s: float | None


@dataclass(frozen=True, slots=True)
class Results:
    """All that a bench found.

    Attributes:
        made: when, ISO 8601 in UTC.
        complete: False if it was interrupted.
        subject: what was searched: name, rows, dim, queries, k, segments, storage, encoder (None
            for bare vectors), judged (how many queries have judgements).
        machine: processor, cores, threads, memory (bytes), system, python, versions.
        settings: what was asked for: repeats, prefixes, shortlists, structures, codes, target.
        encode_ms: of one question, by the encoder; None for bare vectors.
        rows: exact search first.
        growth: by name and rows.
        missing: what was left out, and why.
    """

    made: str
    complete: bool
    subject: Mapping[str, Any]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    encode_ms: Spread | None
    rows: tuple[Row, ...]
    growth: tuple[Growth, ...]
    missing: Mapping[str, str]

    @property
    def exact(self) -> Row | None:
        """The row of exact search; None where nothing was measured."""
        return next((row for row in self.rows if row.kind is Kind.EXACT), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, folder: Path) -> Path:
        """Write `results.json` into a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / RESULTS
        partial = path.with_name(f".{RESULTS}.partial")
        write_json(partial, self.as_dict())
        partial.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Results from the file, or from the folder that holds it. Raises QueryError."""
        path = path / RESULTS if path.is_dir() else path
        return cls._of(_loaded(path), path)

    @classmethod
    def read_all(cls, path: Path) -> dict[str, "Results"]:
        """Those of `read`, under "", or of each bench among a commit's figures, by its name.

        The figures are what benchmarks/ writes: one file a commit, one section a benchmark. Raises
        QueryError.
        """
        path = path / RESULTS if path.is_dir() else path
        told = _loaded(path)
        sections = (
            {name: told[name] for name in told if name.startswith(SECTION)}
            if isinstance(told, dict)
            else {}
        )
        if not sections:
            return {"": cls._of(told, path)}
        return {name.removeprefix(SECTION): cls._of(sections[name], path) for name in sections}

    @classmethod
    def _of(cls, told: Any, path: Path) -> "Results":
        """Results from what their file holds."""
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            found = told.get("format") if isinstance(told, dict) else None
            raise QueryError(
                f"{path} holds no results of a bench in format {FORMAT} (found {found!r}); "
                "measure again: searchengine bench --out DIR"
            )
        try:
            return cls(
                **{name: told[name] for name in ("made", "complete", "subject", "machine")},
                settings=told["settings"],
                encode_ms=_spread(told["encode_ms"]),
                rows=tuple(_row(row) for row in told["rows"]),
                growth=tuple(
                    Growth(**{**one, "p50_ms": Spread(**one["p50_ms"])}) for one in told["growth"]
                ),
                missing=told["missing"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(f"{path} is damaged: {error!r}; measure again") from error


def _loaded(path: Path) -> Any:
    """What a file of JSON holds. Raises QueryError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise QueryError(f"there is no {path}; searchengine bench --out DIR writes one") from None
    except (OSError, ValueError) as error:
        raise QueryError(f"{path} cannot be read as JSON ({error})") from error


def _spread(told: Mapping[str, float] | None) -> Spread | None:
    return None if told is None else Spread(**told)


def _row(told: Mapping[str, Any]) -> Row:
    values = dict(told)
    for name in ("p50_ms", "p95_ms", "p99_ms", "cold_ms", "batch_qps", "measured"):
        values[name] = _spread(values[name])
    values["kind"] = Kind(values["kind"])
    values["stages"] = tuple((width, keep) for width, keep in values["stages"])
    for name in ("rounds_ms", "percentiles_ms"):
        values[name] = tuple(float(value) for value in values[name])
    return Row(**values)
