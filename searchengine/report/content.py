"""What a report of a bench says, whatever it is written in: the answer, pictures, tables, facts."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from searchengine.bench.amounts import (
    NOTHING,
    fraction,
    plain,
    recall_of,
    short,
    spread_of,
)
from searchengine.bench.recommend import Recommendation, recommend
from searchengine.bench.results import Kind, Results, Row, Spread
from searchengine.report.facts import Fact, facts
from searchengine.report.plots.bench import (
    growth,
    latency,
    pareto,
    recall_by_shortlist,
    speedups,
)
from searchengine.report.plots.style import style
from searchengine.report.table import telling_peers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    Kind.EXACT: "Exact search",
    Kind.CASCADE: "Cascades: a shortlist by the prefix, scored at full width",
    Kind.FUNNEL: "Funnels: cascades with stages between",
    Kind.FULL: "Full width: an approximate structure over all numbers",
    Kind.TRUNCATED: "Prefixes cut off without a rotation",
    Kind.PEER: "Other engines",
}
RECOMMENDED, TIED = "★ recommended", "≈ as fast"
LANES = 7  # rows in the picture of latencies
MIB, KIB = 2**20, 2**10


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure. name: of its file, without suffix; says: what it shows, for who cannot see it;
    caption: what to see in it; svg: the file's text."""

    name: str
    says: str
    caption: str
    svg: str


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
class Report:
    """All that is said. facts: headings, each with terms and what is said of them."""

    title: str
    warning: str
    answer: tuple[str, ...]
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    facts: tuple[tuple[str, tuple[Fact, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """text: of a cell; value: what the best is chosen by, the most of it or, as a rule, the least.

    None has no best.
    """

    head: str
    text: Callable[[Row], str]
    value: Callable[[Row], float | None] | None = None
    most: bool = False


def report(results: Results, target: float = 0.95) -> Report:
    """What is to be said of some results. Raises ConfigError without matplotlib (extra `plots`)."""
    advice = recommend(results, target)
    warning = ""
    if not results.complete:
        warning = (
            "The bench was interrupted. What follows is what it had measured: rows may be missing."
        )
    answer = list(advice.why)
    if results.encode_ms is not None:
        answer.append(
            f"Encoding a question takes {spread_of(results.encode_ms)} ms more, however the "
            "vectors are searched."
        )
    return Report(
        f"Bench of {results.subject.get('name')}",
        warning,
        tuple(answer),
        tuple(_pictures(results, advice)),
        tuple(_tables(results, advice)),
        facts(results),
    )


def _pictures(results: Results, advice: Recommendation) -> Iterable[Picture]:
    if not results.rows:
        return
    k, rows = results.subject.get("k"), results.subject.get("rows")
    yield Picture(
        "recall-latency",
        f"Recall@{k} against the median latency of every operating point. {advice.why[0]}",
        f"Every point is a way to search; lower and further right is better. The ring is what is "
        f"recommended, the dashed line the target of {advice.target:g}. Bars show 95 % intervals "
        "of recall and quartiles of latency over the rounds. The scale of recall is logarithmic "
        "in what is missed.",
        svg(pareto(results, advice, advice.target)),
    )
    lines = recall_by_shortlist(results)
    if lines is not None:
        yield Picture(
            "recall-shortlist",
            f"Recall@{k} by length of the shortlist, a line for every prefix length.",
            "What a longer shortlist and a wider prefix gain. A dash-dotted line has an effort of "
            "its own, where that of the others follows the shortlist. A dashed line is a prefix "
            "that was cut off as it is; the gap to the full line of the same colour is what the "
            "rotation gains.",
            svg(lines),
        )
    names = _telling(results, advice)
    yield Picture(
        "latency",
        f"Histograms of the latency of single queries for {', '.join(names)}.",
        "How the latencies of single queries are spread, on a logarithmic scale. What is slow for "
        "one query in a hundred is seen at the right ends.",
        svg(latency(results, names)),
    )
    counted = speedups(results)
    if counted is not None:
        yield Picture(
            "speedups",
            "Times fewer multiply-adds than exact search against times as fast, measured.",
            "What was counted, and what the clock says of it. On the dashed line both are equal; a "
            "point below it spends its time on what is not counted, such as waiting for memory, "
            "and a point above it profits from what is not counted either, such as smaller "
            "numbers.",
            svg(counted),
        )
    grown = growth(results)
    if grown is not None:
        yield Picture(
            "growth",
            f"Recall@{k} and median latency by number of rows, up to {plain(rows)}.",
            "The same operating points on parts of the rows: how recall falls and latency rises as "
            "a collection grows and nobody tunes it again.",
            svg(grown),
        )


def svg(figure: "Figure") -> str:
    """The figure as SVG; the same figure gives the same text."""
    written = io.StringIO()
    with style():
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def _telling(results: Results, advice: Recommendation) -> list[str]:
    """A handful of rows: exact search, the recommended, a structure over the full width, others."""
    full = [row for row in results.rows if row.kind is Kind.FULL]
    holding = [row for row in full if row.recall_low >= advice.target]
    most = max(full, key=lambda row: row.recall, default=None)
    best = min(holding, key=lambda row: row.p50_ms.median, default=most)
    names = [row.name for row in results.rows if row.kind is Kind.EXACT]
    names += [row.name for row in results.rows if row.name == advice.name]
    names += [best.name] if best else []
    names += [row.name for row in telling_peers(results, advice.target)]
    return list(dict.fromkeys(names))[:LANES] or [results.rows[0].name]


def _tables(results: Results, advice: Recommendation) -> Iterable[Table]:
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
