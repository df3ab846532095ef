"""A bench as a sentence, a table, and one self-contained HTML page without scripts."""

import shlex
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path

from searchengine.measure.plots import plots
from searchengine.measure.results import RECOMMENDED, RESULTS, Results, short

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


METHOD = (
    "A point: structure, code and prefix → shortlist, which is reranked at full width; ef or lists "
    "is the effort of the search. Recall: the share of the nearest rows of exact search that it "
    "finds, and its 95 % interval. Search: one query at a time, from its vector to row numbers, "
    "warm; the median of rounds in which all points take turns. Memory: what every search may read."
)


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.json, report.html and its plots; return their paths in this order.

    The numbers are written first, so that a later failure does not lose them.
    """
    written = results.write(folder)
    drawn = plots(results) if find_spec("matplotlib") is not None else {}
    files = {PAGE: page(results, folder, drawn)}
    files |= {f"{name}.svg": svg for name, (svg, _) in drawn.items()}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [written, *(folder / name for name in files)]


def page(results: Results, folder: Path, drawn: Mapping[str, tuple[str, str]]) -> str:
    """The page. drawn: name of a plot → its SVG and caption."""
    about, machine = results.subject, results.machine
    title = escape(f"Bench of {about['name']}")
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
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
    parts += _table(results.table())
    for svg, caption in drawn.values():
        source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
        image = f'<img alt="{escape(caption)}" src="{source}">'
        card = f'<div class="card" tabindex="0" role="group" aria-label="plot">{image}</div>'
        parts.append(f"<figure>\n{card}\n<figcaption>{escape(caption)}</figcaption>\n</figure>")
    conditions = (
        f"Measured {results.measured_at}: {about['rows']:,} rows × {about['dim']} dimensions, "
        f"{about['queries']:,} queries; {machine['processor']}, {machine['cores']} cores."
    )
    parts += [f'<p class="caption">{escape(text)}</p>' for text in (METHOD, conditions)]
    return "\n".join([*parts, "</main>\n</body>\n</html>\n"])


def _table(lines: list[dict[str, str]]) -> Iterable[str]:
    """The table; the name and the mark of a point stay in view where it is scrolled."""
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
