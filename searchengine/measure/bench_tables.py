"""The tables of a bench, all of one list of columns: of the answer, of a page, of a terminal."""

import shutil
import sys
from collections.abc import Sequence
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
    size,
    spread_of,
    widths,
)
from searchengine.measure.recommend import Recommendation, milliseconds
from searchengine.measure.results import EXACT, Kind, Results, Row, Spread

KINDS = {
    Kind.EXACT: "Exact search",
    Kind.CASCADE: "Cascades: a shortlist by the prefix, reranked at full width",
    Kind.FUNNEL: "Funnels: cascades with more reranking stages",
    Kind.FULL: "Full width: an approximate structure over all dimensions",
    Kind.TRUNCATED: "Prefixes without rotation",
}
NOW, BEST, TIED = "now", "★ recommended", "≈ as fast"
MIB = 2**20
MIN_NAME = 12  # characters of a name in the narrowest terminal


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        head: its head; {k} and {mode} are those of the results.
        field: the field of Row, perhaps of its config.
        unit: what a number is divided by.
        table: the table of the page that has it: 1 (recall and speed) or 2 (config and cost).
        best: which value is the best one: "low", "high", or "" for none.
        brief: its head in a terminal; "" if it is not shown there.
        optional: from this rank on it is left out of a terminal that has no room; 0: never.
    """

    head: str
    field: str
    unit: float = 1
    table: int = 2
    best: str = ""
    brief: str = ""
    optional: int = 0

    def value(self, row: Row) -> Any:
        """The value behind a cell; the median of a Spread."""
        value = attrgetter(self.field)(row)
        if isinstance(value, Spread):
            return value.median
        return value / self.unit if isinstance(value, int | float) else value

    def text(self, row: Row, *, whole: bool = True) -> str:
        """A cell; `whole`: with the interval or the quartiles."""
        value = attrgetter(self.field)(row)
        if self.field in ("recall", "ndcg"):
            return recall_of(row) if whole and self.field == "recall" else fraction(value)
        if isinstance(value, Spread):
            return spread_of(value) if whole else short(value.median)
        if isinstance(value, float):
            return short(value / self.unit)
        if isinstance(value, int) and self.unit == 1:
            of_scan = row.kind is Kind.EXACT and self.field.startswith("config.")
            return f"{value:,}" if value and not of_scan else NOTHING
        return short(self.value(row)) if isinstance(value, int) else str(value or NOTHING)


COLUMNS = (
    Column("recall@{k} (95 % interval)", "recall", 1, 1, "high", "recall@{k}"),
    Column("nDCG@10{mode}", "ndcg", 1, 1, "high", "nDCG@10{mode}"),
    Column("p50, ms", "p50_ms", 1, 1, "low", "p50 ms"),
    Column("times as fast as exact", "measured", 1, 1, "high", "× measured"),
    Column("p95, ms", "p95_ms", 1, 1, "low"),
    Column("p99, ms", "p99_ms", 1, 1, "low", "p99 ms", 2),
    Column("in a batch, queries/s", "batch_qps", 1, 1, "high", "queries/s", 3),
    Column("structure", "config.structure"),
    Column("code", "config.code"),
    Column("prefix", "config.prefix"),
    Column("shortlist", "config.shortlist"),
    Column("effort", "config.effort"),
    Column("in memory, MiB", "hot_bytes", MIB, 2, "low", "MiB", 1),
    Column("on disk, MiB", "cold_bytes", MIB),
    Column("build, s", "build_s", 1, 2, "low"),
)


def head(text: str, results: Results) -> str:
    """The head of a column, with k, and the mode of nDCG unless it is vector."""
    mode = results.subject.get("mode")
    return text.format(
        k=results.subject.get("k"), mode="" if mode in (None, "vector") else f", {mode}"
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table. mark: labels or ""; cells: (text, True for the best of its column)."""

    name: str
    mark: str
    cells: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. heads: column heads, the name first; groups: a heading and its lines."""

    caption: str
    heads: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Line, ...]], ...]


def report_tables(results: Results, advice: Recommendation) -> tuple[Table, ...]:
    """The tables of all rows, by kind, without empty columns."""
    if not results.rows:
        return ()
    captions = (
        "Recall and speed of every point; those off the frontier of recall and time come last. "
        "Repeated measurements: median (quartiles). Bold: the best value of the points that meet "
        "the target, exact search excepted.",
        "Configuration and memory of every point. Bold as above.",
    )
    return tuple(
        _table(caption, [column for column in COLUMNS if column.table == number], results, advice)
        for number, caption in enumerate(captions, start=1)
    )


def _table(
    caption: str, columns: Sequence[Column], results: Results, advice: Recommendation
) -> Table:
    shown = [c for c in columns if any(c.text(row) != NOTHING for row in results.rows)]
    meet = [
        row
        for row in results.rows
        if row.kind is not Kind.EXACT and row.recall_low >= advice.target
    ]
    best = [_best(column, meet) for column in shown]
    groups = []
    for kind, heading in KINDS.items():
        lines = tuple(
            Line(
                row.name,
                marks(row, results, advice),
                tuple(
                    (c.text(row), row in meet and value is not None and c.value(row) == value)
                    for c, value in zip(shown, best, strict=True)
                ),
            )
            for row in _frontier_first([row for row in results.rows if row.kind is kind])
        )
        if lines:
            groups.append((heading, lines))
    heads = ("operating point", *(head(column.head, results) for column in shown))
    return Table(caption, heads, tuple(groups))


def marks(row: Row, results: Results, advice: Recommendation) -> str:
    """What a row is: recommended, as fast, and whether the collection searches so now."""
    name = BEST if row.name == advice.name else TIED if row.name in advice.tied else ""
    now = NOW if row.name == results.now else ""
    return " · ".join(filter(None, (name, now)))


def _best(column: Column, meet: Sequence[Row]) -> Any:
    """The best value of the rows, if two or more have one."""
    values = [value for row in meet if (value := column.value(row)) is not None]
    if not column.best or len(values) < 2:
        return None
    return max(values) if column.best == "high" else min(values)


def answer_rows(results: Results, advice: Recommendation) -> list[dict[str, str]]:
    """The collection as it is now, the recommended row and exact search: at most three lines.

    The first column says which it is, the second has its name.
    """
    labels: dict[str, list[str]] = {}
    now = "now" if results.subject["path"] else "default"
    names = {now: results.now, "recommended": advice.name, "exact": EXACT}
    for label, name in names.items():
        if results.named(name) is not None:
            labels.setdefault(str(name), []).append(label)
    rows = [row for name in labels if (row := results.named(name)) is not None]
    columns = [column for column in COLUMNS if column.field in ("recall", "ndcg")]
    shown = [c for c in columns if any(c.text(row) != NOTHING for row in rows)]
    time = "search, ms" if results.overhead_ms is None else "question, ms"
    return [
        {
            "": " = ".join(labels[row.name]),
            "operating point": row.name,
            time: short(milliseconds(row, results)),
            **{head(c.brief, results): c.text(row, whole=False) for c in shown},
            "in memory": size(row.hot_bytes),
        }
        for row in rows
    ]


def _frontier_first(rows: Sequence[Row]) -> list[Row]:
    """The Pareto frontier by recall, then the others, in their order."""
    best = sorted(frontier(rows), key=lambda row: row.recall)
    return [*best, *(row for row in rows if row not in best)]


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
    """Exact search, the present and the recommended point, then the frontier of every kind.

    width: characters per line that the columns should fit; by default the terminal's width, and no
    limit in a pipe.
    """
    names = (row.name for row in results.rows if row.kind is Kind.EXACT)
    chosen = [
        row
        for name in dict.fromkeys((*names, results.now, recommended))
        if (row := results.named(name)) is not None
    ]
    for kind in KINDS:
        others = [row for row in results.rows if row.kind is kind and row not in chosen]
        chosen += sorted(frontier(others), key=lambda row: row.recall)
    columns = [column for column in COLUMNS if column.brief]
    lines = [
        {"": row.name} | {head(c.brief, results): c.value(row) for c in columns} for row in chosen
    ]
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    if not lines:
        return []
    by_rank = sorted((c for c in columns if c.optional), key=lambda c: c.optional)
    lines = fitted(lines, width, [head(column.brief, results) for column in by_rank])
    if width is None:
        return lines
    needed = widths(lines)
    excess = max(0, sum(needed.values()) - (width - 1))
    longest = max(MIN_NAME, needed[""] - PADDING - excess)
    return [line | {"": _shortened(line[""], longest)} for line in lines]


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
