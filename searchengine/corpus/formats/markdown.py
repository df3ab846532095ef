"""Plain text, Markdown and Jupyter notebooks, as they are written; front matter is metadata."""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from searchengine.corpus.documents import plain_record
from searchengine.corpus.formats.kinds import LONGEST_HEADING, joined
from searchengine.corpus.text_files import (
    Heading,
    Parts,
    Text,
    bad,
    decode,
    json_object,
    read_bytes,
)

_FRONT = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?:(.*?)\n)??(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_LINE = re.compile(r"^(\w[^:=\n]*?) *[:=][ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_YEAR, _ORDINAL = re.compile(r"\b\d{4}\b"), re.compile(r"(?<=\d)(st|nd|rd|th)\b")
_LONGEST_DATE = 40  # characters
_DAYS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y"),
    *("%a %d %b %Y", "%A %d %B %Y", "%A %B %d %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M %z", " %H:%M:%S %z", " %I:%M %p")
_DATES = ["", *(f"{day}{time}" for day in _DAYS for time in _TIMES)]
# The rules that tell a heading from a line of code. Inline markup is not parsed.
_BLOCKS = MarkdownIt("zero", {"html": True}).enable(
    ["blockquote", "code", "fence", "heading", "html_block", "lheading", "list"]
)


def read_text(path: Path) -> Parts:
    """The text of a file. Raises CorpusError."""
    text, encoding, lost = decode(read_bytes(path), path)
    yield Text(text, metadata=encoding)
    yield from lost


def read_markdown(path: Path) -> Parts:
    """The text of a Markdown file, and a sentence if its front matter is broken.

    The title is that of the front matter, or else a heading of the first level that begins the
    text. Raises CorpusError.
    """
    text, encoding, lost = decode(read_bytes(path), path)
    metadata, text, broken = _front_matter(text)
    headings = tuple(headings_in(text))
    title = metadata.pop("title", None)
    title = _first(text, headings) if title is None else str(title)
    yield Text(text, title, metadata | encoding, headings)
    yield from filter(None, [*lost, broken])


def read_ipynb(path: Path) -> Parts:
    """The text of a notebook, a blank line between its cells; headings are those in Markdown.

    The title is a heading of the first level that begins the text. Raises CorpusError.
    """
    written, _, lost = decode(read_bytes(path), path)
    content = json_object(written, str(path))
    pieces = []
    try:
        for cell in content["cells"]:
            source = "".join(cell.get("source") or "").strip()  # a text, or a list of its lines
            is_markdown = cell.get("cell_type") == "markdown"
            pieces.append((source, headings_in(source) if is_markdown else ()))
    except (AttributeError, KeyError, TypeError) as error:
        what = "not a notebook of format 4 (no cells with a source)"
        raise bad(path, f"{what}; open and save it in Jupyter") from error
    text, headings = joined(pieces)
    yield Text(text, _first(text, headings), {}, headings)
    yield from lost


def _first(text: str, headings: Sequence[Heading]) -> str:
    """The heading of the first level that begins a text, but for comments; or ""."""
    if headings and headings[0].level == 1:
        return headings[0].title * (not _COMMENT.sub("", text[: headings[0].start]).strip())
    return ""


def _front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """The fields between --- (YAML) or +++ (TOML) at the beginning, the text after them, and what
    is wrong with them, or "". Of broken ones, those on a line each are taken.
    """
    match = _FRONT.match(text)
    if match is None:
        return {}, text, ""
    written, kind, lost = match[2] or "", "YAML" if match[1] == "---" else "TOML", ""
    try:
        fields = _plain(yaml.safe_load(written) if kind == "YAML" else tomllib.loads(written))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            what = f"{error.problem}, line {error.problem_mark.line + 2}"  # the first one is ---
        lost = f"the front matter is not {kind} ({what})"
        fields = {line[1]: _value(line[2]) for line in _LINE.finditer(written)}
    if fields is not None and not isinstance(fields, dict):
        return {}, text, ""  # two rules with a text between them
    fields = {str(name): value for name, value in (fields or {}).items()}
    for name in {"_id", "text"} & fields.keys():
        del fields[name]
        lost = lost or f"the front matter names {name!r}, a field of the document; rename it"
    return fields, text[match.end() :].lstrip("\r\n"), lost


def _value(written: str) -> Any:
    """The value on a line of broken front matter: what YAML reads, or else the text."""
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        value = _plain(yaml.safe_load(written))
        if isinstance(value, str | int | float | list):
            return value
    return _dated(written.strip())


def _plain(value: Any) -> Any:
    """What front matter holds, as JSON holds it. Raises ValueError."""
    fields = value if isinstance(value, dict) else {"": value}
    plain = plain_record({name: _dated(each) for name, each in fields.items()}, "a value")
    json.dumps(plain, allow_nan=False)
    return plain if isinstance(value, dict) else plain.get("")


def _dated(value: Any) -> Any:
    """A date as people write it: March 5, 2024; 2024-03-05 10:00 +0900. Or the value as it is."""
    if isinstance(value, str) and _YEAR.search(value) and len(value) < _LONGEST_DATE:
        text = " ".join(_ORDINAL.sub("", value).replace(",", " ").split())
        for form in _DATES:
            with suppress(ValueError):
                moment = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
                return moment if ":" in text else moment.date()
    return value


def headings_in(text: str) -> Iterator[Heading]:
    """The headings of a text in Markdown, in order."""
    starts = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", text))]
    for opening, inline in pairwise(_BLOCKS.parse(text)):
        if opening.type == "heading_open" and opening.map and inline.content.strip():
            title = " ".join(_COMMENT.sub("", inline.content).split())[:LONGEST_HEADING]
            yield Heading(starts[opening.map[0]], int(opening.tag[1:]), title)
