"""HTML → text with headings; the chapters of EPUB books are XHTML.

Blank lines separate paragraphs, headings and tables; line breaks separate lines and rows. Scripts,
styles and other content that is not shown are left out.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from searchengine.corpus.formats.kinds import LONGEST_HEADING, Heading, Text
from searchengine.corpus.text_files import decode, read_bytes

_LEFT_OUT = {"script", "style", "template", "noscript", "svg", "iframe", "object"}
_BLOCKS = set(
    "address article aside blockquote body details dialog dl div fieldset figure footer form "
    "h1 h2 h3 h4 h5 h6 header hr main nav ol p pre section summary table ul".split()
)
_LINES = {"br", "dd", "dt", "figcaption", "legend", "li", "option", "tr"}
_CELLS = {"td", "th"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_NAMES = {"author", "description", "keywords"}  # of <meta> that become metadata
_GAPS = ("", " ", "\n", "\n\n")
_CELL, _LINE, _BLOCK = 1, 2, 3  # gaps
_DECLARED = re.compile(rb"""<meta[^>]{1,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_XML = re.compile(rb"""\s*<\?xml[^>]{1,200}?encoding\s*=\s*["']([\w.:-]+)""")
_DECLARATION = 1024  # bytes in which HTML declares its encoding


def read_html(path: Path) -> Iterator[Text]:
    """The text of an HTML file. Raises CorpusError."""
    text, encoding = decode_html(read_bytes(path), path)
    page = parse(text)
    metadata = page.metadata | ({"encoding": encoding} if encoding else {})
    yield Text(page.text, page.title, metadata, tuple(page.headings))


def decode_html(data: bytes, path: Path) -> tuple[str, str]:
    """The text of HTML or XHTML, and the encoding if it is not UTF-8. Raises CorpusError."""
    head = data[:_DECLARATION]
    match = _XML.match(head) or _DECLARED.search(head)
    return decode(data, path, match.group(1).decode("ascii", "replace") if match else "")


def parse(text: str) -> "Page":
    """The text of HTML, with title, headings and metadata."""
    page = Page()
    page.feed(text)
    page.close()
    page.finish()
    return page


class Page(HTMLParser):
    """The text of HTML while it is read.

    Attributes:
        headings: those found so far.
        metadata: author, description, keywords and language, as far as they are named.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.headings: list[Heading] = []
        self.metadata: dict[str, Any] = {}
        self._pieces: list[str] = []
        self._length = 0
        self._gap = 0  # before the next piece, an index of _GAPS
        self._left_out = ""  # the element whose content is being left out
        self._depth = 0  # of elements of this name
        self._preformatted = 0
        self._title: list[str] | None = None  # None outside of <title>
        self._heading: tuple[int, int] | None = None  # level, and the pieces before
        self._start = 0  # of the heading
        self.title = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def finish(self) -> None:
        """End what was not closed."""
        self._end_heading()
        self._end_title()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag opens an element."""
        if tag == "meta":
            self._meta(dict(attrs))
        elif tag == "title" and not self.title and self._left_out != "svg":
            self._title = []
        elif self._left_out:
            self._depth += tag == self._left_out
        elif tag in _LEFT_OUT:
            self._left_out, self._depth = tag, 1
        elif tag == "html":
            language = dict(attrs).get("lang") or dict(attrs).get("xml:lang")
            if language:
                self.metadata["lang"] = language
        else:
            self._separate(tag)
            self._preformatted += tag == "pre"
            if tag in _HEADINGS:
                self._end_heading()
                self._heading, self._start = (_HEADINGS[tag], len(self._pieces)), -1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content, as XHTML writes it."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """A tag closes an element."""
        if tag == "title":
            self._end_title()
        elif self._left_out:
            self._depth -= tag == self._left_out
            if not self._depth:
                self._left_out = ""
        else:
            if tag in _HEADINGS:
                self._end_heading()
            self._preformatted -= tag == "pre" and self._preformatted > 0
            self._separate(tag)

    def handle_data(self, data: str) -> None:
        """Text between two tags."""
        if self._title is not None:
            self._title.append(data)
        elif self._left_out:
            return
        elif self._preformatted:
            self._add(data)
        else:
            words = " ".join(data.split())
            if not words or data[0].isspace():
                self._gap = max(self._gap, _CELL)
            if words:
                self._add(words)
                self._gap = _CELL if data[-1].isspace() else 0

    def _add(self, text: str) -> None:
        """Add a piece, and the gap before it."""
        gap = _GAPS[self._gap] if self._pieces else ""
        self._gap = 0
        if self._heading is not None and self._start < 0:
            self._start = self._length + len(gap)
        self._pieces.append(gap + text)
        self._length += len(gap) + len(text)

    def _separate(self, tag: str) -> None:
        gap = _BLOCK * (tag in _BLOCKS) or _LINE * (tag in _LINES) or _CELL * (tag in _CELLS)
        self._gap = max(self._gap, gap)

    def _end_heading(self) -> None:
        if self._heading is not None and self._start >= 0:
            level, before = self._heading
            title = " ".join("".join(self._pieces[before:]).split())
            self.headings.append(Heading(self._start, level, title[:LONGEST_HEADING]))
        self._heading = None

    def _end_title(self) -> None:
        if self._title is not None:
            self.title = " ".join("".join(self._title).split())
        self._title = None

    def _meta(self, values: dict[str, str | None]) -> None:
        name, content = (values.get("name") or "").lower(), values.get("content")
        if name in _NAMES and content:
            self.metadata[name] = content
