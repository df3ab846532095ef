"""A bench as a sentence, a table, and one self-contained HTML page without scripts."""

import re
import shlex
from collections.abc import Iterable, Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path

from searchengine.measure.formatting import plain, short
from searchengine.measure.plots import plots
from searchengine.measure.results import RECOMMENDED, RESULTS, Results

PAGE = "report.html"


def sentence(results: Results) -> str:
    """What to use and what it gives, or why nothing is recommended."""
    row, now = results.named(results.recommended), results.named(results.now)
    if row is None:
        return f"No point is recommended: {results.why}"
    time = f"a search takes {short(row.ms)} ms"
    if now is not None and now is not row:
        time += f" ({'now' if results.subject['path'] else 'by default'} {short(now.ms)})"
    if results.encoding_ms is not None:
        time += f", encoding a question {short(results.encoding_ms)} ms"
    begin = "Leave it as it is" if row is now else f"Use {row.name}"
    return f"{begin}: {time}. {results.why}"


def command(results: Results, folder: Path | None) -> str:
    """The command that applies the recommendation; "" if there is nothing to do.

    `folder`: where results.json is; None: it was not written.
    """
    if folder is None or results.recommended in (None, results.now):
        return ""
    point = shlex.quote(f"{folder / RESULTS}#{RECOMMENDED}")
    collection = results.subject["path"]
    if collection is None:
        return f"searchengine tune COLLECTION --apply {point}  # COLLECTION: one of these vectors"
    return f"searchengine tune {shlex.quote(collection)} --apply {point}"


METHOD = {
    "point": "structure, code and prefix → shortlist: the prefix chooses a shortlist, which is "
    "reranked at full width; ef or lists: the effort of the search",
    "recommended": "the cheapest point that held-out queries show to exceed the target, as tune "
    "finds it; of those within 5 % of its time, encoding included, the one that finds most",
    "recall": "share of the nearest rows of exact search that a point finds, mean over the "
    "queries; the 95 % interval is a bootstrap over the queries",
    "search": "one query at a time, from its vector to row numbers, warm; median (quartiles) of "
    "rounds in which all points take turns",
    "nDCG": "quality by judgements, in the default mode unless that is text",
    "memory, disk": "what every search may read, and the rows at full width",
}


def facts(results: Results) -> dict[str, dict[str, str]]:
    """Headings, each with terms and descriptions."""
    memory = f"{results.machine['memory'] / 2**30:.3g} GiB"
    values = {"measured": results.measured_at, **results.subject, **results.settings}
    values.update(results.machine, memory=memory)
    conditions = {name: plain(value) for name, value in values.items() if value is not None}
    return {"What the columns mean": METHOD, "How it was measured": conditions}


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.json, report.html and its plots; return their paths in this order.

    The numbers are written first, so that a later failure does not lose them.
    """
    written = [results.write(folder)]
    drawn = plots(results) if results.rows and find_spec("matplotlib") is not None else {}
    files = {PAGE: page(results, folder, drawn)}
    files |= {f"{name}.svg": svg for name, (svg, _) in drawn.items()}
    for name, text in files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def page(results: Results, folder: Path, drawn: Mapping[str, tuple[str, str]]) -> str:
    """The page. drawn: name of a plot → its SVG and caption."""
    title = escape(f"Bench of {results.subject['name']}")
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
        f"<h1>{title}</h1>",
    ]
    if not results.complete:
        parts.append('<p class="warning">The bench was interrupted: rows may be missing.</p>')
    parts.append(f'<p class="answer">{escape(sentence(results))}</p>')
    if apply := command(results, folder):
        parts.append(f"<pre><code>{escape(apply)}</code></pre>")
        after = f"With another name after <code>{RESULTS}#</code> it applies that point."
        parts.append(f'<p class="caption">{after}</p>')
    parts += _table(results.table(whole=True))
    for name, (svg, caption) in drawn.items():
        about = f"<figcaption>{escape(caption)}</figcaption>"
        card = '<div class="card" tabindex="0" role="group" aria-label="plot">'
        parts.append(
            f"<figure>\n{card}\n{_inlined(name, svg, caption)}\n</div>\n{about}\n</figure>"
        )
    for heading, terms in facts(results).items():
        inside = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in terms.items())
        summary = f"<summary><h2>{escape(heading)}</h2></summary>"
        parts.append(f"<details>\n{summary}\n<dl>{inside}</dl>\n</details>")
    return "\n".join([*parts, "</main>\n</body>\n</html>\n"])


def _table(lines: list[dict[str, str]]) -> Iterable[str]:
    """The table; the name and the mark of a point stay in view where it is scrolled."""
    if not lines:
        return
    _, point, *others = lines[0]
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in (point, *others))
    yield '<div class="scroll" tabindex="0" role="group" aria-label="points"><table>'
    yield f"<thead><tr>{heads}</tr></thead>\n<tbody>"
    for line in lines:
        mark, name, *cells = map(escape, line.values())
        state = ' class="chosen"' if RECOMMENDED in mark else ""
        note = f'<span class="mark">{mark}</span>' if mark else ""
        values = "".join(f"<td>{cell}</td>" for cell in cells)
        yield f'<tr{state}><th scope="row">{name}{note}</th>{values}</tr>'
    yield "</tbody></table></div>"


def _inlined(name: str, svg: str, alt: str) -> str:
    """The SVG of a plot for a page: it scales to the available width, and its ids are unique."""
    text = svg[svg.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\1{name}-", text)
    text = text.replace('<style type="text/css">*', f"<style>#{name} *")
    start = re.search(r'viewBox="([^"]*)"', text)
    assert start is not None
    head = (
        f'<svg id="{name}" role="img" aria-label="{escape(alt)}" viewBox="{start[1]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return head + text[text.index(">") + 1 :]
