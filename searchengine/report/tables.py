"""The tables of a bench: for a report, and a few rows for the terminal."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from searchengine.bench.formatting import NOTHING, fraction, recall_of, short, spread_of
from searchengine.bench.recommend import Recommendation
from searchengine.bench.results import CONFIGURED, Kind, Results, Row, Spread

KINDS = {
    Kind.EXACT: "Exact search",
    Kind.CASCADE: "Cascades: a shortlist by the prefix, scored at full width",
    Kind.FUNNEL: "Funnels: cascades with stages between",
    Kind.FULL: "Full width: an approximate structure over all numbers",
    Kind.TRUNCATED: "Prefixes cut off without a rotation",
    Kind.PEER: "Other engines",
}
RECOMMENDED, TIED = "★ recommended", "≈ as fast"
MIB, KIB = 2**20, 2**10
ALWAYS = ("", "p50 ms", "× measured")  # and recall, whose name tells k
ROOM_FOR = ("× theory", "MiB", "p99 ms", "ndcg@10", "queries/s", "cold ms")  # the first ones first
BESIDE = 3  # characters that a column takes besides its text
SHORTEST = 12  # characters that are left of a name, however narrow the terminal is


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table. mark: a word on it, or nothing; cells: (text, is it the column's best)."""

    name: str
    mark: str
    cells: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """heads: of the name and of every cell; groups: a heading (may be empty) and its lines."""

    caption: str
    heads: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Line, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """text: of a cell; value: what the best is chosen by, the most of it or, as a rule, the least.

    None has no best.
    """

    head: str
    text: Callable[[Row], str]
    value: Callable[[Row], float | None] | None = None
    most: bool = False


def report_tables(results: Results, advice: Recommendation) -> Iterable[Table]:
    if not results.rows:
        return
    k = results.subject.get("k")
    yield _table(
        "What each point finds, and how fast. Of what was measured several times: the median "
        "(quartiles). Bold is the best of this engine, exact search apart.",
        (
            _Column(f"recall@{k} (95 % interval)", recall_of, lambda row: row.recall, most=True),
            _Column("nDCG@10", lambda row: fraction(row.ndcg), lambda row: row.ndcg, most=True),
            _Column("p50, ms", lambda row: spread_of(row.p50_ms), lambda row: row.p50_ms.median),
            _Column(
                "times as fast as exact",
                lambda row: spread_of(row.measured),
                lambda row: row.measured.median,
                most=True,
            ),
            _Column("p95, ms", lambda row: spread_of(row.p95_ms), lambda row: row.p95_ms.median),
            _Column("p99, ms", lambda row: spread_of(row.p99_ms), lambda row: row.p99_ms.median),
            _Column(
                "in a batch, queries/s",
                lambda row: spread_of(row.batch_qps),
                lambda row: _median(row.batch_qps),
                most=True,
            ),
            _Column(
                "cold, ms",
                lambda row: spread_of(row.cold_ms),
                lambda row: _median(row.cold_ms),
            ),
        ),
        results,
        advice,
    )
    yield _table(
        "What each point is, and what it costs: counted for one query, and in memory. Bold "
        "as above.",
        (
            _Column("structure and code", lambda row: f"{row.structure} {row.code}"),
            _Column("prefix", lambda row: _count(row.prefix)),
            _Column("shortlist", lambda row: _count(row.shortlist)),
            _Column("effort", lambda row: _count(row.effort)),
            _Column(
                "multiply-adds, million",
                lambda row: short(_part(row.multiply_adds, 1e6)),
                lambda row: row.multiply_adds,
            ),
            _Column(
                "times fewer than exact",
                lambda row: short(row.theoretical),
                lambda row: row.theoretical,
                most=True,
            ),
            _Column(
                "read, KiB",
                lambda row: short(_part(row.bytes_read, KIB)),
                lambda row: row.bytes_read,
            ),
            _Column("read cold, pages", lambda row: short(row.cold_reads)),
            _Column(
                "in memory, MiB",
                lambda row: short(_part(row.hot_bytes, MIB)),
                lambda row: row.hot_bytes,
            ),
            _Column("on disk, MiB", lambda row: short(_part(row.cold_bytes, MIB))),
            _Column("build, s", lambda row: short(row.build_s), lambda row: row.build_s),
        ),
        results,
        advice,
    )
    if results.growth:
        yield _growth_table(results)


def _median(value: Spread | None) -> float | None:
    return None if value is None else value.median


def _count(value: int) -> str:
    return f"{value:,}" if value else NOTHING


def _part(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _table(
    caption: str, columns: Sequence[_Column], results: Results, advice: Recommendation
) -> Table:
    """Rows grouped by kind; columns that nobody has a value in are left out."""
    shown = [
        column for column in columns if any(column.text(row) != NOTHING for row in results.rows)
    ]
    best = [_best(column, results) for column in shown]
    groups = []
    for kind, heading in KINDS.items():
        lines = tuple(
            Line(
                row.name,
                RECOMMENDED if row.name == advice.name else TIED if row.name in advice.tied else "",
                tuple(
                    (column.text(row), _is_best(column, row, value))
                    for column, value in zip(shown, best, strict=True)
                ),
            )
            for row in results.rows
            if row.kind is kind
        )
        if lines:
            groups.append((heading, lines))
    return Table(caption, ("operating point", *(column.head for column in shown)), tuple(groups))


def _best(column: _Column, results: Results) -> float | None:
    """The best value of this engine, where two rows of it or more have one."""
    if column.value is None:
        return None
    own = [row for row in results.rows if row.candidate]
    values = [value for row in own if (value := column.value(row)) is not None]
    if len(values) < 2:
        return None
    return max(values) if column.most else min(values)


def _is_best(column: _Column, row: Row, best: float | None) -> bool:
    return (
        row.candidate
        and best is not None
        and column.value is not None
        and column.value(row) == best
    )


def _growth_table(results: Results) -> Table:
    names = dict.fromkeys(one.name for one in results.growth)
    groups = []
    for name in names:
        lines = tuple(
            Line(
                f"{one.rows:,}",
                "",
                (
                    (fraction(one.recall), False),
                    (spread_of(one.p50_ms), False),
                    (short(one.build_s), False),
                ),
            )
            for one in results.growth
            if one.name == name
        )
        groups.append((name, lines))
    heads = ("rows", f"recall@{results.subject.get('k')}", "p50, ms", "build, s")
    return Table("The same on parts of the rows.", heads, tuple(groups))


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The rows than which none is both faster and finds as much, fastest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.p50_ms.median, -row.recall)):
        if not best or row.recall > best[-1].recall:
            best.append(row)
    return best


def peer_of(row: Row) -> str:
    """Which engine a row of another engine is of: its name up to the point, as in "usearch: …"."""
    return row.name.partition(":")[0]


def telling_peers(results: Results, target: float) -> list[Row]:
    """One row of every other engine: its fastest that holds the target, or that finds most."""
    rows: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.kind is Kind.PEER:
            rows.setdefault(peer_of(row), []).append(row)
    return [min(each, key=lambda row: _telling(row, target)) for each in rows.values()]


def _telling(row: Row, target: float) -> tuple[bool, float]:
    holds = row.recall_low >= target
    return not holds, row.p50_ms.median if holds else -row.recall


def table(results: Results, width: int | None = None) -> list[dict[str, Any]]:
    """Exact search and what was configured, then of every kind what is on its frontier.

    Of every other engine there is its telling row. width: characters to a line, into which the
    columns should fit; by default those of the terminal, and in a pipe as many as it takes.
    """
    rows = list(results.rows)
    listed = [row for row in rows if row.kind is Kind.EXACT or row.name.startswith(CONFIGURED)]
    for kind in (Kind.CASCADE, Kind.FUNNEL, Kind.TRUNCATED, Kind.FULL):
        some = [row for row in rows if row.kind is kind and row not in listed]
        listed += sorted(frontier(some), key=lambda row: row.recall)
    peers = telling_peers(results, results.settings.get("target", 0.95))
    listed += sorted(peers, key=lambda row: row.recall)
    shown = [_shown(row, f"recall@{results.subject['k']}") for row in listed]
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    return _fitting(shown, width) if shown else []


def _shown(row: Row, recall: str) -> dict[str, Any]:
    return {
        "": row.name,
        recall: row.recall,
        "ndcg@10": row.ndcg,
        "p50 ms": row.p50_ms.median,
        "p99 ms": row.p99_ms.median,
        "cold ms": None if row.cold_ms is None else row.cold_ms.median,
        "queries/s": None if row.batch_qps is None else row.batch_qps.median,
        "× theory": row.theoretical,
        "× measured": row.measured.median,
        "MiB": None if row.hot_bytes is None else row.hot_bytes / 2**20,
    }


def _fitting(shown: list[dict[str, Any]], width: int | None) -> list[dict[str, Any]]:
    """The columns that fit and that somebody has a value in, in their order."""
    columns = [name for name in shown[0] if any(row[name] is not None for row in shown)]
    if width is not None:
        needed = {name: BESIDE + max(map(len, (name, *_texts(shown, name)))) for name in columns}
        kept = [name for name in columns if name in ALWAYS or name.startswith("recall@")]
        room = width - 1 - sum(needed[name] for name in kept)
        for name in ROOM_FOR:
            if needed.get(name, width) <= room:
                kept.append(name)
                room -= needed[name]
        columns = [name for name in columns if name in kept]
        longest = max(SHORTEST, needed[""] - BESIDE + min(0, room))
        shown = [row | {"": _shortened(row[""], longest)} for row in shown]
    return [{name: row[name] for name in columns} for row in shown]


def _texts(shown: Sequence[dict[str, Any]], column: str) -> list[str]:
    """As they are printed (`searchengine.cli.console.show_rows`)."""
    values = [row[column] for row in shown]
    return [f"{each:.4g}" if isinstance(each, float) else str(each or "–") for each in values]


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
