"""A bench report written as one self-contained HTML page and as Markdown."""

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import chain
from pathlib import Path

from searchengine.measure.answer import Answer
from searchengine.measure.content import Picture, Report, report
from searchengine.measure.results import Results
from searchengine.measure.tables import Table

PAGE, TEXT = "report.html", "report.md"
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")

STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--faint:#59636e;--paper:#fff;--line:#d5dbe1;
--band:#f2f5f8;--chosen:#e3f0fa;--warn:#fff3cd}
@media (prefers-color-scheme:dark){:root{--ink:#e7ebef;--faint:#a7b1bb;--paper:#14181c;
--line:#3a434c;--band:#1f262d;--chosen:#173a55;--warn:#4a3c10}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:80rem;color:var(--ink);
background:var(--paper);font:1rem/1.55 system-ui,sans-serif;overflow-wrap:break-word}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));
gap:2rem 1.5rem;margin:2rem 0}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0 1rem}
h2{font-size:1.2rem;margin:0;display:inline}
summary{cursor:pointer;margin:1.4rem 0 .6rem}
pre{background:var(--band);padding:.7rem 1rem;border-radius:.4rem;overflow-x:auto;
max-width:52rem;font-size:.95rem}
table.short{font-size:1rem}
table.short th:first-child{min-width:8rem}
table.short thead th{min-width:3.5rem}
.point{display:block;color:var(--faint);font-weight:400;font-size:.9em}
p{max-width:46rem}
.answer{font-size:1.08rem;border-left:.25rem solid #0072b2;padding-left:1rem}
.warning{background:var(--warn);padding:.6rem 1rem;border-radius:.4rem}
figure{margin:0;max-width:46rem;min-width:0}
.card{background:#fff;border:1px solid var(--line);border-radius:.5rem;padding:.7rem}
.card svg{display:block;width:100%;max-width:100%;height:auto}
figcaption,.caption{color:var(--faint);font-size:.92rem}
figcaption{margin-top:.5rem}
.caption{margin:1.6rem 0 .4rem;max-width:none}
.scroll{overflow-x:auto;margin:0 0 1.2rem}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:.32rem .6rem;border-bottom:1px solid var(--line);text-align:right;
white-space:nowrap}
thead th{vertical-align:bottom;white-space:normal;min-width:4.6rem}
th:first-child{position:sticky;left:0;background:var(--paper);text-align:left;
white-space:normal;min-width:11.5rem;max-width:17rem}
th[scope=row]{font-weight:500}
tbody th[scope=rowgroup]{background:var(--band);font-weight:600;max-width:none;position:static}
tr.chosen>*,tr.chosen th:first-child{background:var(--chosen)}
.range{white-space:nowrap}
.mark{display:block;font-size:.92em;font-weight:600}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.3rem 1.2rem;
max-width:52rem}
dt{font-weight:600;max-width:16rem}
dd{margin:0;min-width:0;overflow-wrap:anywhere}
@media (max-width:34rem){dl{display:block}dd{margin:0 0 .5rem}
th:first-child{min-width:8.5rem}pre{white-space:pre-wrap}
table.short{font-size:.78rem}table.short th,table.short td{padding:.32rem .2rem}
table.short th:first-child{min-width:5.2rem}table.short thead th{min-width:2.3rem}}
@media print{:root{--ink:#000;--faint:#333;--paper:#fff;--line:#999;--band:#eee;--chosen:#e8e8e8}
body{max-width:none;padding:0;font-size:10pt}.scroll{overflow:visible}pre{white-space:pre-wrap}
.pictures{display:block}figure{margin:0 0 1.5rem}
.card{border:0;padding:0}table{font-size:6.6pt;width:100%}table.short{font-size:10pt}
th,td{padding:.15rem .25rem;white-space:normal}
thead th,th:first-child{min-width:0;position:static}figure,tr{break-inside:avoid}
h2{break-after:avoid}details::details-content{content-visibility:visible;display:block}
thead{display:table-header-group}}
""".strip()

HEAD = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{title}}</title>
<style>
{STYLE.replace("{", "{{").replace("}", "}}")}
</style>
</head>
<body>
<main>
"""


def write(results: Results, folder: Path, target: float = 0.95) -> list[Path]:
    """Write results.json, report.html, report.md and its plots; return their paths in this order.

    The numbers are written first, so that a later failure does not lose them. Raises ConfigError
    without matplotlib.
    """
    written = [results.write(folder)]
    content = report(results, target)
    files = {PAGE: in_html(content), TEXT: in_markdown(content)}
    files |= {f"{picture.name}.svg": picture.svg for picture in content.pictures}
    for name, text in files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def in_html(content: Report) -> str:
    """A report as an HTML page."""
    parts = [HEAD.format(title=escape(content.title)), f"<h1>{escape(content.title)}</h1>"]
    if content.warning:
        parts.append(f'<p class="warning"><strong>{escape(content.warning)}</strong></p>')
    parts += _answer(content.answer)
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


def _answer(content: Answer) -> Iterator[str]:
    """Sentence, table and command."""
    yield f'<p class="answer"><strong>{escape(content.sentence)}</strong></p>'
    if content.rows:
        _, point, *others = content.heads
        # A telephone has room for all columns where recall@10 may be on two lines.
        names = (escape(head).replace("@", "@<wbr>") for head in (point, *others))
        heads = "".join(f'<th scope="col">{name}</th>' for name in names)
        yield f'<div class="scroll"><table class="short">\n<thead><tr>{heads}</tr></thead>\n<tbody>'
        for number, (label, name, *cells) in enumerate(content.rows):
            chosen = ' class="chosen"' if number == content.chosen else ""
            values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            point = "" if name == label else f'<span class="point">{escape(name)}</span>'
            head = f"{escape(label)}{point}"
            yield f'<tr{chosen}><th scope="row">{head}</th>{values}</tr>'
        yield "</tbody>\n</table></div>"
    if content.reading:
        yield f'<p class="caption">{escape(content.reading)}</p>'
    if content.command:
        yield f"<pre><code>{escape(content.command)}</code></pre>"


def _folded(heading: str, parts: Iterable[str], *, open: bool = False) -> str:
    state = " open" if open else ""
    inside = "\n".join(parts)
    return f"<details{state}>\n<summary><h2>{escape(heading)}</h2></summary>\n{inside}\n</details>"


def _figure(picture: Picture) -> str:
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
    card = f'<div class="card">\n{inlined(picture)}\n</div>'
    return f"<figure>\n{card}\n{caption}\n</figure>"


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


def in_markdown(content: Report) -> str:
    """A report as Markdown."""
    parts = [f"# {escaped(content.title)}"]
    if content.warning:
        parts.append(f"> **{escaped(content.warning)}**")
    short = content.answer
    parts.append(f"**{escaped(short.sentence)}**")
    if short.rows:
        rule = ["---", "---", *["---:"] * (len(short.heads) - 2)]
        rows = (_line(map(escaped, row)) for row in short.rows)
        parts.append("\n".join([_line(map(escaped, short.heads)), _line(rule), *rows]))
    parts += [escaped(short.reading)] * bool(short.reading)
    parts += [f"    {short.command}"] * bool(short.command)
    parts += ["## Why", " ".join(map(escaped, content.reasons))]
    if content.pictures:
        parts.append("## Plots")
    for picture in content.pictures:
        parts.append(f"![{escaped(picture.alt)}]({picture.name}.svg)")
        parts.append(f"*{escaped(picture.caption)}*")
    if content.tables:
        parts.append("## All figures")
    parts += ["\n".join(_markdown_table(table)) for table in content.tables]
    for heading, facts in content.facts:
        parts.append(f"## {escaped(heading)}")
        parts.append("\n".join(f"* **{escaped(term)}**: {escaped(text)}" for term, text in facts))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> Iterator[str]:
    """Heads, then the groups, each after a line with its heading."""
    yield f"{escaped(table.caption)}\n"
    yield _line(map(escaped, table.heads))
    yield _line(["---", *["---:"] * (len(table.heads) - 1)])
    for heading, lines in table.groups:
        yield _line([f"**{escaped(heading)}**", *[""] * (len(table.heads) - 1)])
        for line in lines:
            name = f"{escaped(line.name)} {line.mark}".strip()
            cells = (f"**{escaped(text)}**" if best else escaped(text) for text, best in line.cells)
            yield _line([name, *cells])


def _line(cells: Iterator[str] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Escape text for Markdown: names come from users."""
    return SPECIAL.sub(r"\\\1", " ".join(text.replace("&", "&amp;").split()))
