"""What a report of a bench says, whatever it is written in: the answer, pictures, tables, facts."""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from searchengine.bench.formatting import plain, size, spread_of
from searchengine.bench.recommend import FEW_MARGIN, MARGIN, Recommendation, recommend
from searchengine.bench.results import CONFIGURED, Kind, Results
from searchengine.report.plots.bench import (
    growth,
    latency,
    pareto,
    recall_by_shortlist,
    speedups,
)
from searchengine.report.plots.style import style
from searchengine.report.tables import Table, report_tables, telling_peers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fact = tuple[str, str]  # a term, and what is said of it
LANES = 7  # rows in the picture of latencies


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure. name: of its file, without suffix; says: what it shows, for who cannot see it;
    caption: what to see in it; svg: the file's text."""

    name: str
    says: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that is said. facts: headings, each with terms and what is said of them."""

    title: str
    warning: str
    answer: tuple[str, ...]
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    facts: tuple[tuple[str, tuple[Fact, ...]], ...]


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
        tuple(report_tables(results, advice)),
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


def facts(results: Results) -> tuple[tuple[str, tuple[Fact, ...]], ...]:
    """Headings, each with its facts; those without any are left out."""
    said = (
        ("What was searched", _subject(results)),
        ("How it was measured", _method(results)),
        ("What was asked for", _settings(results)),
        ("The machine", _machine(results)),
        ("Other engines, as they were set", _peers(results)),
        ("What was left out, and why", [(name, why) for name, why in results.missing.items()]),
    )
    return tuple((heading, tuple(facts)) for heading, facts in said if facts)


def _subject(results: Results) -> list[Fact]:
    told = dict(results.subject)
    if not told.get("encoder"):
        told["encoder"] = "none: bare vectors"
    if not told.get("judged"):
        told["judged"] = "none, so that there is no nDCG"
    named = {
        "dim": "numbers a row",
        "k": "nearest sought (k)",
        "judged": "queries with judgements",
    }
    facts = [(named.get(name, name), plain(value)) for name, value in told.items()]
    if not results.subject.get("encoder") and _configured(results):
        facts.append(
            (
                CONFIGURED,
                "the default recipe of a new collection, for bare vectors have no other",
            )
        )
    return [*facts, ("measured", f"{results.made}{'' if results.complete else ', interrupted'}")]


def _configured(results: Results) -> bool:
    return any(row.name.startswith(CONFIGURED) for row in results.rows)


def _method(results: Results) -> list[Fact]:
    counts = {len(row.rounds_ms) for row in results.rows}
    rounds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts, default=0))
    k, queries = results.subject.get("k"), plain(results.subject.get("queries"))
    facts = [
        (
            "latency",
            "one query at a time, from its vector to the numbers of the rows found, its rotation "
            "included and its encoding left out; warm, that is with the files in memory",
        ),
        (
            "rounds",
            f"{rounds}. The operating points take turns, round after round, so that whatever else "
            "the machine did fell on all of them. Of a round, the percentile over its queries is "
            "kept; shown is the median of the rounds (with their quartiles)",
        ),
        (
            "recall",
            f"the share of the {k} rows found by exact search that a point found too, mean over "
            f"{queries} queries; its 95 % interval is a bootstrap over the queries",
        ),
        (
            "as fast",
            "two points tie unless the median ratio of their rounds lies beyond "
            f"{MARGIN:g} and in all rounds the same one is faster, but for one in five (of many "
            "rounds, as many as the sign test allows); of fewer than three rounds, each lies "
            f"beyond {FEW_MARGIN:g}",
        ),
        (
            "times as fast as exact",
            "the median, over the rounds, of the latency of exact search in a round over the "
            "point's own in the same round",
        ),
        (
            "times fewer than exact",
            "multiply-adds, counted and not timed: rows × numbers of exact search over what a "
            "query computes, the rotation included",
        ),
        ("in a batch", "many queries in one call, which may use several threads"),
        (
            "in memory, on disk",
            "what every search may touch and should stay in memory (codes, links, rotation), and "
            "the rows at full width, of which a search reads the shortlist's alone; of other "
            "engines the memory that their process took to build, and their files",
        ),
    ]
    if any(row.cold_ms is not None for row in results.rows):
        facts.append(
            (
                "cold",
                "the first query on a fresh map of the rows, their pages dropped from the page "
                "cache, codes and links in memory; pages are those that it read from the disk",
            )
        )
    return facts


def _settings(results: Results) -> list[Fact]:
    told = dict(results.settings)
    funnels = told.get("funnels")
    if funnels:
        told["funnels"] = [", ".join(f"{w}:{n}" for w, n in stages) for stages in funnels]
    return [(name, plain(value)) for name, value in told.items()]


def _machine(results: Results) -> list[Fact]:
    facts: list[Fact] = []
    for name, value in results.machine.items():
        if isinstance(value, Mapping):
            facts.append((name, ", ".join(f"{part} {each}" for part, each in value.items())))
        else:
            facts.append((name, size(value) if name == "memory" else _as_is(value)))
    return facts


def _as_is(value: Any) -> str:
    """3.11 is a version of Python, not a number to round."""
    return value if isinstance(value, str) else plain(value)


def _peers(results: Results) -> list[Fact]:
    """What all points of an engine have in common; the rest is in their names."""
    common: dict[str, dict[str, Any]] = {}
    for row in results.rows:
        if row.kind is Kind.PEER:
            told = common.setdefault(row.name.partition(":")[0], dict(row.settings))
            for name in [name for name in told if row.settings.get(name) != told[name]]:
                del told[name]
    return [(engine, plain(told)) for engine, told in common.items() if told]
