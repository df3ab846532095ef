"""Plain text and Markdown. Front matter becomes metadata, the rest stays as it is written."""

import re
import tomllib
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

from searchengine.corpus.documents import plain_record
from searchengine.corpus.formats.kinds import LONGEST_HEADING, Heading, Text
from searchengine.corpus.text_files import bad, decode, read_bytes

_FRONT = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?:(.*?)\n)??(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
# The rules that tell a heading from a line of code. Inline markup is not parsed.
_BLOCKS = MarkdownIt("zero").enable(
    ["blockquote", "code", "fence", "heading", "html_block", "lheading", "list"]
)


def read_text(path: Path) -> Iterator[Text]:
    """The text of a file. Raises CorpusError."""
    text, encoding = decode(read_bytes(path), path)
    yield Text(text, metadata={"encoding": encoding} if encoding else {})


def read_markdown(path: Path) -> Iterator[Text]:
    """The text of a Markdown file. Raises CorpusError, also for broken front matter.

    The title is that of the front matter, or else a heading of the first level that begins the
    text.
    """
    text, encoding = decode(read_bytes(path), path)
    metadata, text = _front_matter(text, path)
    headings = tuple(headings_in(text))
    title = metadata.pop("title", None)
    if title is None and headings and headings[0].level == 1 and headings[0].start == 0:
        title = headings[0].title
    if encoding:
        metadata["encoding"] = encoding
    yield Text(text, "" if title is None else str(title), metadata, headings)


def _front_matter(text: str, path: Path) -> tuple[dict[str, Any], str]:
    """The fields between --- (YAML) or +++ (TOML) at the beginning, and the text after them."""
    match = _FRONT.match(text)
    if match is None:
        return {}, text
    written = match[2] or ""
    try:
        fields = (
            yaml.safe_load(written) if match[1] == "---" else tomllib.loads(written)
        )  # RecursionError: nested too deeply
    except (yaml.YAMLError, tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        kind = "YAML" if match[1] == "---" else "TOML"
        what = str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            what = f"{error.problem}, line {error.problem_mark.line + 2}"  # the first one is ---
        raise bad(path, f"the front matter is not {kind} ({' '.join(what.split())})") from error
    if fields is None:
        fields = {}
    if not isinstance(fields, dict):
        return {}, text  # two rules with a text between them
    fields = plain_record({str(name): value for name, value in fields.items()}, f"{path}:1")
    for name in ("_id", "text"):
        if name in fields:
            what = f"{name!r} in the front matter is a field of the document; give it another name"
            raise bad(f"{path}:1", what)
    return fields, text[match.end() :].lstrip("\r\n")


def headings_in(text: str) -> Iterator[Heading]:
    """The headings of a text in Markdown, in order."""
    starts = [0, *accumulate(len(line) for line in lines_of(text))]
    tokens = _BLOCKS.parse(text)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open" and opening.map and inline.content.strip():
            title = " ".join(inline.content.split())[:LONGEST_HEADING]
            yield Heading(starts[opening.map[0]], int(opening.tag[1:]), title)


def lines_of(text: str) -> list[str]:
    """The lines of a text, as Markdown and Python count them."""
    return re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+\Z", text)
