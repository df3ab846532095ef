"""A report of a bench as Markdown, its pictures beside it."""

import re
from collections.abc import Iterator

from searchengine.bench.results import Results
from searchengine.report.content import Report, Table, report

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def markdown(results: Results, target: float = 0.95) -> str:
    """The report as GitHub shows it; pictures are links to NAME.svg (`page.write` writes them).

    Raises ConfigError without matplotlib.
    """
    return in_markdown(report(results, target))


def in_markdown(told: Report) -> str:
    """What is told, as Markdown."""
    parts = [f"# {escaped(told.title)}"]
    if told.warning:
        parts.append(f"> **{escaped(told.warning)}**")
    first, *others = map(escaped, told.answer)
    parts.append(" ".join([f"**{first}**", *others]))
    for picture in told.pictures:
        parts.append(f"![{escaped(picture.says)}]({picture.name}.svg)")
        parts.append(f"*{escaped(picture.caption)}*")
    if told.tables:
        parts.append("## All figures")
    parts += ["\n".join(_table(table)) for table in told.tables]
    for heading, facts in told.facts:
        parts.append(f"## {escaped(heading)}")
        parts.append("\n".join(f"* **{escaped(term)}**: {escaped(said)}" for term, said in facts))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> Iterator[str]:
    """Heads, then a line for every heading of a group, which has no cells."""
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
    """Text that Markdown shows as it is: names come from users."""
    return SPECIAL.sub(r"\\\1", " ".join(text.replace("&", "&amp;").split()))
