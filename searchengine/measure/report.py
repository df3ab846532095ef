"""A bench report, written as one self-contained HTML page.

It has the answer, the reasons, plots, tables, and facts about data, method and machine.
"""

import io
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from searchengine.measure.bench_plots import pareto, recall_by_shortlist
from searchengine.measure.bench_tables import Table, answer_rows, report_tables
from searchengine.measure.formatting import plain, size, spread_of
from searchengine.measure.plotting import style
from searchengine.measure.recommend import (
    FEW_MARGIN,
    MARGIN,
    Recommendation,
    command,
    recommend,
    sentence,
)
from searchengine.measure.results import RESULTS, Kind, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fact = tuple[str, str]  # a term and its description
PAGE = "report.html"


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

    Attributes:
        answer: what to use, and what it gives.
        rows: a table of the present point, the recommended one and exact search.
        chosen: the position of the recommended one; None if nothing is recommended.
        reading: how to read the name of a cascade, and apply another point.
        command: to copy; "" if nothing is to be done.
        reasons: sentences behind the answer.
        facts: headings, each with terms and descriptions.
    """

    title: str
    warning: str
    answer: str
    rows: tuple[dict[str, str], ...]
    chosen: int | None
    reading: str
    command: str
    reasons: tuple[str, ...]
    pictures: tuple[Picture, ...]
    tables: tuple[Table, ...]
    facts: tuple[tuple[str, tuple[Fact, ...]], ...]


def report(results: Results, folder: Path | None = None) -> Report:
    """The report of results; `folder`: where results.json is, for the command."""
    advice = recommend(results)
    warning = ""
    if not results.complete:
        warning = (
            "The bench was interrupted. The report has the results so far: rows may be missing."
        )
    rows = answer_rows(results, advice)
    names = [row["operating point"] for row in rows]
    return Report(
        f"Bench of {results.subject.get('name')}",
        warning,
        sentence(results, advice),
        tuple(rows),
        names.index(advice.name) if advice.name in names else None,
        reading(results, names),
        command(results, advice, folder),
        (*advice.why, *_overhead(results)),
        tuple(_pictures(results, advice)),
        report_tables(results, advice),
        facts(results),
    )


def reading(results: Results, names: Iterable[str]) -> str:
    """How the name of a cascade is read; "" if none of these rows is one."""
    rows = filter(None, map(results.named, names))
    cascade = next((row for row in rows if row.kind is Kind.CASCADE), None)
    if cascade is None:
        return ""
    prefix, shortlist = cascade.config.prefix, cascade.config.shortlist
    return (
        f"{prefix} → {shortlist}: a prefix of {prefix} dimensions chooses a shortlist of "
        f"{shortlist}, which is reranked at full width."
    )


def _overhead(results: Results) -> Iterator[str]:
    if results.overhead_ms is not None:
        words = ", words and fusion" if results.subject["mode"] == "hybrid" else ""
        yield (
            f"The rest of a question (encoding{words}, reading the documents) takes "
            f"{spread_of(results.overhead_ms)} ms, at every operating point."
        )


def _pictures(results: Results, advice: Recommendation) -> Iterable[Picture]:
    if not results.rows or find_spec("matplotlib") is None:
        return
    k = results.subject.get("k")
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


def svg(figure: "Figure") -> str:
    """The figure as SVG; equal figures give equal text."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def facts(results: Results) -> tuple[tuple[str, tuple[Fact, ...]], ...]:
    """Headings, each with its facts; headings without facts are left out."""
    sections = (
        ("Data", _subject(results)),
        ("How it was measured", _method(results)),
        ("Settings of the bench", _settings(results)),
        ("Machine", _machine(results)),
        ("Left out, and why", [(name, why) for name, why in results.missing.items()]),
    )
    return tuple((heading, tuple(facts)) for heading, facts in sections if facts)


def _subject(results: Results) -> list[Fact]:
    values = dict(results.subject)
    if not values["path"]:
        values["encoder"] = "none: bare vectors"
        del values["default_mode"], values["mode"]
    del values["path"]
    if not values["judged"]:
        values["judged"] = "none, hence no nDCG"
    labels = {
        "dim": "dimensions",
        "k": "nearest neighbours (k)",
        "judged": "queries with judgements",
        "default_mode": "default mode of the collection",
        "mode": "mode of a whole question",
    }
    facts = [(labels.get(name, name), plain(value)) for name, value in values.items()]
    name = "now" if results.subject["path"] else "default of a new collection"
    facts.append((name, results.now or "not measured"))
    return [
        *facts,
        ("measured", f"{results.measured_at}{'' if results.complete else ', interrupted'}"),
    ]


def _method(results: Results) -> list[Fact]:
    counts = {len(row.rounds_ms) for row in results.rows}
    rounds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts, default=0))
    k, queries = results.subject.get("k"), plain(results.subject.get("queries"))
    return [
        (
            "mode",
            "recall and latency are those of searches by vectors, which mode hybrid makes too; "
            "nDCG@10 and the time of a whole question are those of the mode above",
        ),
        (
            "latency",
            "one query at a time, from its vector to row numbers, with its rotation, without its "
            "encoding; warm, with the files in memory. A whole question takes the median time of "
            "the rest of a search in addition",
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
        ("in a batch", "many queries in one call, which may use several threads"),
        (
            "in memory, on disk",
            "data that every search reads, which should stay in memory (codes, links, rotation); "
            "and the rows at full width: a search reads only its shortlist",
        ),
    ]


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
            text = ", ".join(f"{package} {number}" for package, number in value.items())
        elif name == "memory":
            text = size(value)
        else:  # a text stays as it is: Python 3.11 is a version, not a number to round
            text = value if isinstance(value, str) else plain(value)
        facts.append((name, text))
    return facts


HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
"""


def write(results: Results, folder: Path, target: float | None = None) -> list[Path]:
    """Write results.json, report.html and its plots; return their paths in this order.

    `target`: another target recall than the bench had. The numbers are written first, so that a
    later failure does not lose them.
    """
    if target is not None:
        results = replace(results, settings={**results.settings, "target": target})
    written = [results.write(folder)]
    content = report(results, folder)
    files = {PAGE: in_html(content)}
    files |= {f"{picture.name}.svg": picture.svg for picture in content.pictures}
    for name, text in files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def in_html(content: Report) -> str:
    """A report as an HTML page."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    title = escape(content.title)
    parts = [HEAD.format(title=title, style=style), f"<h1>{title}</h1>"]
    if content.warning:
        parts.append(f'<p class="warning"><strong>{escape(content.warning)}</strong></p>')
    parts += _answer(content)
    reasons = " ".join(map(escape, content.reasons))
    parts.append(_folded("Why", [f"<p>{reasons}</p>"]))
    if content.pictures:
        figures = map(_figure, content.pictures)
        parts.append(_folded("Plots", ['<div class="pictures">', *figures, "</div>"], open=True))
    tables = chain.from_iterable(
        _table(table, f"table-{number}") for number, table in enumerate(content.tables, start=1)
    )
    if content.tables:
        parts.append(_folded("All figures", tables))
    for heading, facts in content.facts:
        terms = (f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in facts)
        parts.append(_folded(heading, ["<dl>", *terms, "</dl>"]))
    parts.append("</main>\n</body>\n</html>\n")
    return "\n".join(parts)


def _answer(content: Report) -> Iterator[str]:
    """Sentence, table and command."""
    yield f'<p class="answer"><strong>{escape(content.answer)}</strong></p>'
    if content.rows:
        _, point, *others = content.rows[0]
        # A telephone has room for all columns where recall@10 may be on two lines.
        names = (escape(head).replace("@", "@<wbr>") for head in (point, *others))
        heads = "".join(f'<th scope="col">{name}</th>' for name in names)
        yield f'<div class="scroll"><table class="short">\n<thead><tr>{heads}</tr></thead>\n<tbody>'
        for number, row in enumerate(content.rows):
            label, name, *cells = row.values()
            chosen = ' class="chosen"' if number == content.chosen else ""
            values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            point = "" if name == label else f'<span class="point">{escape(name)}</span>'
            head = f"{escape(label)}{point}"
            yield f'<tr{chosen}><th scope="row">{head}</th>{values}</tr>'
        yield "</tbody>\n</table></div>"
    if content.reading:
        yield f'<p class="caption">{escape(content.reading)}</p>'
    if content.command:
        # No line ends within a word, such as after its hyphens.
        words = (
            f"<span>{escape(shlex.quote(word))}</span>" for word in shlex.split(content.command)
        )
        yield f"<pre><code>{' '.join(words)}</code></pre>"
        yield (
            '<p class="caption">This applies the recommended point to the collection. With the '
            f"name of another point of this page after <code>{RESULTS}#</code> it applies that "
            "one.</p>"
        )


def _folded(heading: str, parts: Iterable[str], *, open: bool = False) -> str:
    state = " open" if open else ""
    inside = "\n".join(parts)
    return f"<details{state}>\n<summary><h2>{escape(heading)}</h2></summary>\n{inside}\n</details>"


def _figure(picture: Picture) -> str:
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
    card = '<div class="card" tabindex="0" role="group" aria-label="plot">'
    return f"<figure>\n{card}\n{inlined(picture)}\n</div>\n{caption}\n</figure>"


def inlined(picture: Picture) -> str:
    """The SVG of a plot for a page: it scales to the available width, and its ids are unique.

    matplotlib gives every file the same ids and one style rule for all elements. Several files in
    one page need ids and rules with the plot's name.
    """
    name = picture.name
    text = picture.svg[picture.svg.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sid=")', rf"\1{name}-", text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = text.replace('<style type="text/css">*', f"<style>#{name} *")
    start = re.search(r'viewBox="([^"]*)"', text)
    assert start is not None
    alt = escape(picture.alt)
    head = (
        f'<svg id="{name}" role="img" aria-label="{alt}" viewBox="{start[1]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return head + text[text.index(">") + 1 :]


def _table(table: Table, name: str) -> Iterator[str]:
    # Not a <caption>: as wide as the table, it would leave the screen.
    yield f'<p class="caption" id="{name}">{escape(table.caption)}</p>'
    yield f'<div class="scroll" tabindex="0" role="group" aria-labelledby="{name}">'
    yield f'<table aria-labelledby="{name}">'
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
    yield f"<thead><tr>{heads}</tr></thead>"
    for heading, lines in table.groups:
        wide = f'<th scope="rowgroup" colspan="{len(table.heads)}">{escape(heading)}</th>'
        yield f"<tbody>\n<tr>{wide}</tr>"
        for line in lines:
            mark = f'<span class="mark">{escape(line.mark)}</span>' if line.mark else ""
            cells = (_cell(text, best) for text, best in line.cells)
            chosen = ' class="chosen"' if line.mark else ""
            name = f'<th scope="row">{escape(line.name)}{mark}</th>'
            yield f"<tr{chosen}>{name}{''.join(cells)}</tr>"
        yield "</tbody>"
    yield "</table>\n</div>"


def _cell(text: str, best: bool) -> str:
    value, separator, bracket = escape(text).partition(" (")
    shown = f'{value} <span class="range">({bracket}</span>' if separator else value
    return f"<td><strong>{shown}</strong></td>" if best else f"<td>{shown}</td>"
