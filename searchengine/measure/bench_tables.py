"""The tables of a bench: all rows for a report, a selection for the terminal."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from searchengine.measure.formatting import (
    NOTHING,
    PADDING,
    fitted,
    fraction,
    recall_of,
    short,
    spread_of,
    widths,
)
from searchengine.measure.recommend import Recommendation
from searchengine.measure.results import CONFIGURED, Kind, Results, Row, Spread

KINDS = {
    Kind.EXACT: "Exact search",
    Kind.CASCADE: "Cascades: a shortlist by the prefix, reranked at full width",
    Kind.FUNNEL: "Funnels: cascades with more reranking stages",
    Kind.FULL: "Full width: an approximate structure over all dimensions",
    Kind.TRUNCATED: "Prefixes without rotation",
}
RECOMMENDED, TIED = "★ recommended", "≈ as fast"
MIB, KIB = 2**20, 2**10
OPTIONAL = ("× theory", "MiB", "p99 ms", "ndcg@10", "queries/s", "cold ms")  # by priority
MIN_NAME = 12  # characters of a name in the narrowest terminal


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table. mark: a label or ""; cells: (text, True for the best of its column)."""

    name: str
    mark: str
    cells: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. heads: column heads, the name first; groups: a heading and its lines."""

    caption: str
    heads: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Line, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column. text: text of a cell; value: number that decides the best, by default the lowest.

    Without `value` no cell is the best.
    """

    head: str
    text: Callable[[Row], str]
    value: Callable[[Row], float | None] | None = None
    highest: bool = False


def report_tables(results: Results, advice: Recommendation) -> Iterable[Table]:
    if not results.rows:
        return
    k = results.subject.get("k")
    yield _table(
        "Recall and speed of every point; those off the frontier of recall and time come last. "
        "Repeated measurements: median (quartiles). Bold: the best value of the points that meet "
        "the target, exact search excepted.",
        (
            _Column(f"recall@{k} (95 % interval)", recall_of, lambda row: row.recall, highest=True),
            _Column("nDCG@10", lambda row: fraction(row.ndcg), lambda row: row.ndcg, highest=True),
            _spread("p50, ms", "p50_ms"),
            _spread("times as fast as exact", "measured", highest=True),
            _spread("p95, ms", "p95_ms"),
            _spread("p99, ms", "p99_ms"),
            _spread("in a batch, queries/s", "batch_qps", highest=True),
            _spread("cold, ms", "cold_ms"),
        ),
        results,
        advice,
    )
    yield _table(
        "Configuration and cost of every point: work per query, and memory. Bold as above.",
        (
            _Column("structure and code", lambda row: f"{row.structure} {row.code}"),
            _Column("prefix", lambda row: _count(row.prefix)),
            _Column("shortlist", lambda row: _count(row.shortlist)),
            _Column("effort", lambda row: _count(row.effort)),
            _amount("multiply-adds, million", "multiply_adds", 1e6),
            _amount("exact search ÷ this row", "theoretical", highest=True),
            _amount("read, KiB", "bytes_read", KIB),
            _Column("read cold, pages", lambda row: short(row.cold_reads)),
            _amount("in memory, MiB", "hot_bytes", MIB),
            _Column("on disk, MiB", lambda row: short(_part(row.cold_bytes, MIB))),
            _amount("build, s", "build_s"),
        ),
        results,
        advice,
    )


def _spread(head: str, field: str, *, highest: bool = False) -> _Column:
    """A column of a Spread field of Row: median (quartiles)."""
    values = attrgetter(field)
    return _Column(
        head, lambda row: spread_of(values(row)), lambda row: _median(values(row)), highest
    )


def _amount(head: str, field: str, unit: float = 1, *, highest: bool = False) -> _Column:
    """A column of a number field of Row, in this unit."""
    value = attrgetter(field)
    return _Column(head, lambda row: short(_part(value(row), unit)), value, highest)


def _median(value: Spread | None) -> float | None:
    return None if value is None else value.median


def _count(value: int) -> str:
    return f"{value:,}" if value else NOTHING


def _part(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _table(
    caption: str, columns: Sequence[_Column], results: Results, advice: Recommendation
) -> Table:
    """Rows grouped by kind, without columns that are empty."""
    shown = [
        column for column in columns if any(column.text(row) != NOTHING for row in results.rows)
    ]
    target = advice.target
    best = [_best(column, results, target) for column in shown]
    groups = []
    for kind, heading in KINDS.items():
        lines = tuple(
            Line(
                row.name,
                RECOMMENDED if row.name == advice.name else TIED if row.name in advice.tied else "",
                tuple(
                    (column.text(row), _is_best(column, row, value, target))
                    for column, value in zip(shown, best, strict=True)
                ),
            )
            for row in _frontier_first([row for row in results.rows if row.kind is kind])
        )
        if lines:
            groups.append((heading, lines))
    return Table(caption, ("operating point", *(column.head for column in shown)), tuple(groups))


def _frontier_first(rows: Sequence[Row]) -> list[Row]:
    """The Pareto frontier by recall, then the others, in their order."""
    best = sorted(frontier(rows), key=lambda row: row.recall)
    return [*best, *(row for row in rows if row not in best)]


def _best(column: _Column, results: Results, target: float) -> float | None:
    """The best value of the candidates that meet the target, if two or more have a value."""
    if column.value is None:
        return None
    candidates = [row for row in results.rows if row.candidate and row.recall_low >= target]
    values = [value for row in candidates if (value := column.value(row)) is not None]
    if len(values) < 2:
        return None
    return max(values) if column.highest else min(values)


def _is_best(column: _Column, row: Row, best: float | None, target: float) -> bool:
    return (
        row.candidate
        and row.recall_low >= target
        and best is not None
        and column.value is not None
        and column.value(row) == best
    )


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The Pareto frontier: rows that no faster row matches in recall, fastest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.p50_ms.median, -row.recall)):
        if not best or row.recall > best[-1].recall:
            best.append(row)
    return best


def table(
    results: Results, width: int | None = None, recommended: str | None = None
) -> list[dict[str, Any]]:
    """Exact search, the configured and the recommended point, then the frontier of every kind.

    width: characters per line that the columns should fit; by default the terminal's width, and no
    limit in a pipe.
    """
    rows = list(results.rows)
    chosen = [row for row in rows if row.kind is Kind.EXACT or row.name.startswith(CONFIGURED)]
    chosen += [row for row in rows if row.name == recommended and row not in chosen]
    for kind in (Kind.CASCADE, Kind.FUNNEL, Kind.TRUNCATED, Kind.FULL):
        candidates = [row for row in rows if row.kind is kind and row not in chosen]
        chosen += sorted(frontier(candidates), key=lambda row: row.recall)
    lines = [_line(row, f"recall@{results.subject['k']}") for row in chosen]
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    return _fit(lines, width) if lines else []


def _line(row: Row, recall: str) -> dict[str, Any]:
    return {
        "": row.name,
        recall: row.recall,
        "ndcg@10": row.ndcg,
        "p50 ms": row.p50_ms.median,
        "p99 ms": row.p99_ms.median,
        "cold ms": _median(row.cold_ms),
        "queries/s": _median(row.batch_qps),
        "× theory": row.theoretical,
        "× measured": row.measured.median,
        "MiB": _part(row.hot_bytes, MIB),
    }


def _fit(lines: list[dict[str, Any]], width: int | None) -> list[dict[str, Any]]:
    """Leave out empty columns, and those that do not fit; shorten names if that is not enough."""
    lines = fitted(lines, width, OPTIONAL)
    if width is None:
        return lines
    needed = widths(lines)
    excess = max(0, sum(needed.values()) - (width - 1))
    longest = max(MIN_NAME, needed[""] - PADDING - excess)
    return [line | {"": _shortened(line[""], longest)} for line in lines]


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
