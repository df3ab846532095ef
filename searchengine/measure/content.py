"""The content of a bench report, in any format: answer, reasons, plots, tables, facts."""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from searchengine.measure.answer import Answer, answer
from searchengine.measure.formatting import plain, size, spread_of
from searchengine.measure.plots.bench import (
    growth,
    latency,
    pareto,
    recall_by_shortlist,
    speedups,
)
from searchengine.measure.plots.style import style
from searchengine.measure.recommend import FEW_MARGIN, MARGIN, Recommendation, recommend
from searchengine.measure.results import CONFIGURED, Kind, Results
from searchengine.measure.tables import Table, best_peer_rows, peer_of, report_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fact = tuple[str, str]  # a term and its description
LANES = 7  # rows in the plot of latencies


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot.

    Attributes:
        name: name of its file, without suffix.
        alt: description for readers who cannot see it.
        caption: explanation below it.
        svg: text of the SVG file.
    """

    name: str
    alt: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report.

    `reasons`: sentences behind the answer. `facts`: headings, each with terms and descriptions.
    """

    title: str
    warning: str
    answer: Answer
    reasons: tuple[str, ...]
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    facts: tuple[tuple[str, tuple[Fact, ...]], ...]


def report(results: Results, target: float = 0.95) -> Report:
    """The report of results."""
    advice = recommend(results, target)
    warning = ""
    if not results.complete:
        warning = (
            "The bench was interrupted. The report has the results so far: rows may be missing."
        )
    sentences = list(advice.why)
    if results.encode_ms is not None:
        sentences.append(
            f"Encoding a question takes {spread_of(results.encode_ms)} ms in addition, at every "
            "operating point."
        )
    return Report(
        f"Bench of {results.subject.get('name')}",
        warning,
        answer(results, advice),
        tuple(sentences),
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
        f"Every mark is an operating point; lower and further right is better. The ring marks the "
        f"recommendation, the dashed line the target of {advice.target:g}. Bars show 95 % "
        "intervals of recall and quartiles of latency over the rounds. The scale of recall is "
        "logarithmic in 1 − recall.",
        svg(pareto(results, advice, advice.target)),
    )
    lines = recall_by_shortlist(results)
    if lines is not None:
        yield Picture(
            "recall-shortlist",
            f"Recall@{k} by length of the shortlist, a line for every prefix length.",
            "Recall grows with the shortlist and the prefix. A dash-dotted line has a fixed search "
            "effort; on other lines the shortlist sets it. A dashed line is a prefix without "
            "rotation; the gap to the solid line of the same colour is the gain of the rotation.",
            svg(lines),
        )
    names = _latency_rows(results, advice)
    yield Picture(
        "latency",
        f"Histograms of the latency of single queries for {', '.join(names)}.",
        "The distribution of single-query latencies, on a logarithmic scale. The right ends show "
        "the slowest queries.",
        svg(latency(results, names)),
    )
    speedup_plot = speedups(results)
    if speedup_plot is not None:
        yield Picture(
            "speedups",
            "Speed-up over exact search: by counted multiply-adds, and measured.",
            "Counted and measured speed-up. On the dashed line they are equal. A point below "
            "it spends time on work that is not counted, such as waiting for memory; a point above "
            "it gains from effects that are not counted, such as smaller number formats.",
            svg(speedup_plot),
        )
    growth_plot = growth(results)
    if growth_plot is not None:
        yield Picture(
            "growth",
            f"Recall@{k} and median latency by number of rows, up to {plain(rows)}.",
            "The same operating points on samples of the rows: recall falls and latency rises as a "
            "collection grows without being tuned again.",
            svg(growth_plot),
        )


def svg(figure: "Figure") -> str:
    """The figure as SVG; equal figures give equal text."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _latency_rows(results: Results, advice: Recommendation) -> list[str]:
    """Rows for the plot of latencies: exact search, the recommended, one at full width, peers."""
    full = [row for row in results.rows if row.kind is Kind.FULL]
    holding = [row for row in full if row.recall_low >= advice.target]
    highest = max(full, key=lambda row: row.recall, default=None)
    best = min(holding, key=lambda row: row.p50_ms.median, default=highest)
    names = [row.name for row in results.rows if row.kind is Kind.EXACT]
    names += [row.name for row in results.rows if row.name == advice.name]
    names += [best.name] if best else []
    names += [row.name for row in best_peer_rows(results, advice.target)]
    return list(dict.fromkeys(names))[:LANES] or [results.rows[0].name]


def facts(results: Results) -> tuple[tuple[str, tuple[Fact, ...]], ...]:
    """Headings, each with its facts; headings without facts are left out."""
    sections = (
        ("Data", _subject(results)),
        ("How it was measured", _method(results)),
        ("Settings of the bench", _settings(results)),
        ("Machine", _machine(results)),
        ("Settings of the peers", _peers(results)),
        ("Left out, and why", [(name, why) for name, why in results.missing.items()]),
    )
    return tuple((heading, tuple(facts)) for heading, facts in sections if facts)


def _subject(results: Results) -> list[Fact]:
    values = dict(results.subject)
    if values.get("default_mode") is None:  # bare vectors, and results of older versions
        values.pop("default_mode", None)
    if not values.get("encoder"):
        values["encoder"] = "none: bare vectors"
    if not values.get("judged"):
        values["judged"] = "none, hence no nDCG"
    labels = {
        "dim": "dimensions",
        "k": "nearest neighbours (k)",
        "judged": "queries with judgements",
        "default_mode": "default mode of the collection",
    }
    facts = [(labels.get(name, name), plain(value)) for name, value in values.items()]
    if not results.subject.get("encoder") and _configured(results):
        facts.append(
            (
                CONFIGURED,
                "the default index config of a new collection, because bare vectors have none",
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
        ("mode", "vector: all figures are those of searches by vectors"),
        (
            "latency",
            "one query at a time, from its vector to row numbers, with its rotation, without its "
            "encoding; warm, with the files in memory",
        ),
        (
            "rounds",
            f"{rounds}. Every round measures all operating points in turns, so that other load on "
            "the machine affects all of them. The tables show the median (quartiles) over the "
            "rounds of each round's percentile",
        ),
        (
            "recall",
            f"share of the {k} rows of exact search that a point found, mean over {queries} "
            "queries; the 95 % interval is a bootstrap over the queries",
        ),
        (
            "as fast",
            f"two points tie unless the median ratio of their rounds exceeds {MARGIN:g} and "
            "the same one is faster in all rounds but one in five (with many rounds, as many as "
            "the sign test allows); with fewer than three rounds, every ratio must exceed "
            f"{FEW_MARGIN:g}",
        ),
        (
            "times as fast as exact",
            "latency of exact search divided by the point's in the same round; the median over the "
            "rounds",
        ),
        (
            "times fewer than exact",
            "counted multiply-adds: rows × dimensions of exact search divided by those of the "
            "point, its rotation included",
        ),
        ("in a batch", "many queries in one call, which may use several threads"),
        (
            "in memory, on disk",
            "data that every search reads, which should stay in memory (codes, links, rotation); "
            "and the rows at full width, of which a search reads only the shortlist's. Of peers: "
            "memory that their process took to build, and their files",
        ),
    ]
    if any(row.cold_ms is not None for row in results.rows):
        facts.append(
            (
                "cold",
                "the first query on a new memory map of the rows, their pages dropped from the "
                "page cache, codes and links in memory; and the pages that it read from disk",
            )
        )
    return facts


def _settings(results: Results) -> list[Fact]:
    settings = dict(results.settings)
    funnels = settings.get("funnels")
    if funnels:
        settings["funnels"] = [", ".join(f"{w}:{n}" for w, n in stages) for stages in funnels]
    return [(name, plain(value)) for name, value in settings.items()]


def _machine(results: Results) -> list[Fact]:
    facts: list[Fact] = []
    for name, value in results.machine.items():
        if isinstance(value, Mapping):
            facts.append(
                (name, ", ".join(f"{package} {number}" for package, number in value.items()))
            )
        else:
            facts.append((name, size(value) if name == "memory" else _as_is(value)))
    return facts


def _as_is(value: Any) -> str:
    """A text stays as it is: Python 3.11 is a version, not a number to round."""
    return value if isinstance(value, str) else plain(value)


def _peers(results: Results) -> list[Fact]:
    """The settings that all points of a peer share; the names have the others."""
    common: dict[str, dict[str, Any]] = {}
    for row in results.rows:
        if row.kind is Kind.PEER:
            settings = common.setdefault(peer_of(row), dict(row.settings))
            for name in [name for name in settings if row.settings.get(name) != settings[name]]:
                del settings[name]
    return [(peer, plain(settings)) for peer, settings in common.items() if settings]
