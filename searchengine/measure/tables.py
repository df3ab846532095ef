"""The tables of a bench: all rows for a report, a selection for the terminal."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from searchengine.measure.formatting import NOTHING, fraction, recall_of, short, spread_of
from searchengine.measure.recommend import Recommendation
from searchengine.measure.results import CONFIGURED, Kind, Results, Row, Spread

KINDS = {
    Kind.EXACT: "Exact search",
    Kind.CASCADE: "Cascades: a shortlist by the prefix, reranked at full width",
    Kind.FUNNEL: "Funnels: cascades with more reranking stages",
    Kind.FULL: "Full width: an approximate structure over all dimensions",
    Kind.TRUNCATED: "Prefixes without rotation",
    Kind.PEER: "Peers",
}
RECOMMENDED, TIED = "★ recommended", "≈ as fast"
MIB, KIB = 2**20, 2**10
ALWAYS = ("", "p50 ms", "× measured")  # columns of every width; and recall@k
OPTIONAL = ("× theory", "MiB", "p99 ms", "ndcg@10", "queries/s", "cold ms")  # by priority
PADDING = 3  # characters of a column besides its text
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
        "the target, exact search and peers excepted.",
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
            _amount("those of exact search ÷ these", "theoretical", highest=True),
            _amount("read, KiB", "bytes_read", KIB),
            _Column("read cold, pages", lambda row: short(row.cold_reads)),
            _amount("in memory, MiB", "hot_bytes", MIB),
            _Column("on disk, MiB", lambda row: short(_part(row.cold_bytes, MIB))),
            _amount("build, s", "build_s"),
        ),
        results,
        advice,
    )
    if results.growth:
        yield _growth_table(results)


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


def _growth_table(results: Results) -> Table:
    names = dict.fromkeys(point.name for point in results.growth)
    groups = []
    for name in names:
        lines = tuple(
            Line(
                f"{point.rows:,}",
                "",
                (
                    (fraction(point.recall), False),
                    (spread_of(point.p50_ms), False),
                    (short(point.build_s), False),
                ),
            )
            for point in results.growth
            if point.name == name
        )
        groups.append((name, lines))
    heads = ("rows", f"recall@{results.subject.get('k')}", "p50, ms", "build, s")
    return Table("Operating points on samples of the rows.", heads, tuple(groups))


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The Pareto frontier: rows that no faster row matches in recall, fastest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.p50_ms.median, -row.recall)):
        if not best or row.recall > best[-1].recall:
            best.append(row)
    return best


def peer_of(row: Row) -> str:
    """The peer of a row: the name up to the colon, as in "usearch: …"."""
    return row.name.partition(":")[0]


def best_peer_rows(results: Results, target: float) -> list[Row]:
    """One row per peer: its fastest that holds the target, else its highest recall."""
    by_peer: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.kind is Kind.PEER:
            by_peer.setdefault(peer_of(row), []).append(row)
    return [min(rows, key=lambda row: _peer_order(row, target)) for rows in by_peer.values()]


def _peer_order(row: Row, target: float) -> tuple[bool, float]:
    holds = row.recall_low >= target
    return not holds, row.p50_ms.median if holds else -row.recall


def table(
    results: Results, width: int | None = None, recommended: str | None = None
) -> list[dict[str, Any]]:
    """Exact search, the configured and the recommended point, then the frontier of every kind, and
    one row per peer.

    width: characters per line that the columns should fit; by default the terminal's width, and no
    limit in a pipe.
    """
    rows = list(results.rows)
    chosen = [row for row in rows if row.kind is Kind.EXACT or row.name.startswith(CONFIGURED)]
    chosen += [row for row in rows if row.name == recommended and row not in chosen]
    for kind in (Kind.CASCADE, Kind.FUNNEL, Kind.TRUNCATED, Kind.FULL):
        candidates = [row for row in rows if row.kind is kind and row not in chosen]
        chosen += sorted(frontier(candidates), key=lambda row: row.recall)
    peers = best_peer_rows(results, results.settings.get("target", 0.95))
    chosen += sorted(peers, key=lambda row: row.recall)
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
    """Leave out empty columns, and those that do not fit."""
    columns = [name for name in lines[0] if any(line[name] is not None for line in lines)]
    if width is not None:
        needed = {name: PADDING + max(map(len, (name, *_texts(lines, name)))) for name in columns}
        kept = [name for name in columns if name in ALWAYS or name.startswith("recall@")]
        room = width - 1 - sum(needed[name] for name in kept)
        for name in OPTIONAL:
            if needed.get(name, width) <= room:
                kept.append(name)
                room -= needed[name]
        columns = [name for name in columns if name in kept]
        longest = max(MIN_NAME, needed[""] - PADDING + min(0, room))
        lines = [line | {"": _shortened(line[""], longest)} for line in lines]
    return [{name: line[name] for name in columns} for line in lines]


def _texts(lines: Sequence[dict[str, Any]], column: str) -> list[str]:
    """The cells as searchengine.cli.console.show_rows prints them."""
    values = [line[column] for line in lines]
    return [f"{value:.4g}" if isinstance(value, float) else str(value or "–") for value in values]


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
