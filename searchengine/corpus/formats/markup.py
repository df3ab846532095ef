"""HTML → text with headings; the chapters of EPUB books are XHTML.

Blank lines separate paragraphs, headings and tables; line breaks separate lines and rows. Scripts,
styles and other content that is not shown are left out.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from searchengine.corpus.formats.kinds import LONGEST_HEADING, Heading, Text
from searchengine.corpus.text_files import decode, read_bytes

_LEFT_OUT = set(
    "script style template noscript svg iframe object audio video canvas noframes datalist rt rp "
    "annotation annotation-xml".split()
)
_VOID = set("area base br col embed hr img input link meta source track wbr".split())
_BLOCKS = set(
    "address article aside blockquote body details dialog dl div fieldset figure footer form "
    "h1 h2 h3 h4 h5 h6 header hr main nav ol p pre section summary table ul".split()
)
_LINES = {"br", "dd", "dt", "figcaption", "legend", "li", "option", "tr"}
_CELLS = {"td", "th"}
# Elements that a tag ends, whose own ends are often not written.
_ENDED = {
    **{tag: {"p"} for tag in _BLOCKS},
    **{tag: {"td", "th", "p"} for tag in _CELLS},
    **{tag: {"dd", "dt", "p"} for tag in ("dd", "dt")},
    **{"li": {"li", "p"}, "tr": {"td", "th", "tr", "p"}, "rt": {"rt", "rp"}, "rp": {"rt", "rp"}},
    "option": {"option"},
}
_HIDDEN = re.compile(r"(^|;)\s*(display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
# What browsers read otherwise than Python's parser.
_MENDED = (
    (re.compile(r"</(script|style)[\s/][^<>]*>", re.IGNORECASE), r"</\1>"),
    (re.compile(r"<!---?>|<!\[(?!CDATA\[)[^<>]*>"), ""),
    (re.compile("--!>"), "-->"),
)
_TAG = re.compile("<[a-zA-Z/!?]")
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
    noted = {"encoding": encoding} if encoding else {}
    yield replace(page, metadata={**page.metadata, **noted})


def decode_html(data: bytes, path: Path) -> tuple[str, str]:
    """The text of HTML or XHTML, and the encoding if it is not UTF-8. Raises CorpusError."""
    head = data[:_DECLARATION]
    match = _XML.match(head) or _DECLARED.search(head)
    return decode(data, path, match.group(1).decode("ascii", "replace") if match else "")


def parse(text: str) -> Text:
    """The text of HTML, with title, headings and metadata."""
    for broken, mended in _MENDED:
        text = broken.sub(mended, text)
    unfinished = _TAG.search(text, text.rfind(">") + 1)  # a tag in which the text ends
    text = text[: unfinished.start()] if unfinished else text
    page = _Page()
    page.feed(text)
    page.close()
    return Text("".join(page.pieces), page.title, page.metadata, tuple(page.headings))


def _is_hidden(tag: str, attributes: dict[str, str | None]) -> bool:
    """Whether an element is not shown."""
    styled = _HIDDEN.search(attributes.get("style") or "") is not None
    closed = tag == "dialog" and "open" not in attributes
    return tag in _LEFT_OUT or "hidden" in attributes or styled or closed


class _Page(HTMLParser):
    """The text of HTML while it is read."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.headings: list[Heading] = []
        self.metadata: dict[str, Any] = {}  # author, description, keywords and language
        self.pieces: list[str] = []
        self._length = 0
        self._gap = 0  # before the next piece, an index of _GAPS
        self._open: list[str] = []
        self._count: Counter[str] = Counter()  # of those
        self._hidden: int | None = None  # how many are open around one that is not shown
        self._title: list[str] | None = None  # None outside of <title>
        self._heading: tuple[int, int] | None = None  # level, and the pieces before
        self._start = 0  # of the heading
        self.title = ""

    def close(self) -> None:
        """Read the rest, and close the elements that are still open."""
        super().close()
        self._end_heading()
        self._end_title()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag opens an element."""
        values = dict(attrs)
        if tag in ("html", "meta"):
            self._describe(values)
        elif tag == "title" and not self.title and not self._count["svg"]:
            self._title = []
        else:
            ended = _ENDED.get(tag, ())
            if self._count["svg"] and ended and not self._count["foreignobject"]:
                self._close("svg")
            while self._open and self._open[-1] in ended:
                self._close(self._open[-1])
            if self._hidden is None:
                self._show(tag)
            if tag not in _VOID:
                if self._hidden is None and _is_hidden(tag, values):
                    self._hidden = len(self._open)
                self._open.append(tag)
                self._count[tag] += 1

    def _describe(self, values: dict[str, str | None]) -> None:
        """Metadata of <html> or <meta>."""
        name, content = (values.get("name") or "").lower(), values.get("content")
        if language := values.get("lang") or values.get("xml:lang"):
            self.metadata["lang"] = language
        elif name in _NAMES and content:
            self.metadata[name] = content

    def _show(self, tag: str) -> None:
        """A tag that is shown opens an element."""
        self._separate(tag)
        if tag in _HEADINGS:
            self._end_heading()
            self._heading, self._start = (_HEADINGS[tag], len(self.pieces)), -1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content, as XHTML writes it."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """A tag closes an element."""
        if tag == "title":
            self._end_title()
            return
        if self._count[tag]:
            self._close(tag)
        if self._hidden is None:
            if tag in _HEADINGS:
                self._end_heading()
            self._separate(tag)

    def _close(self, tag: str) -> None:
        """Close an element, and those that are open within it."""
        last = ""
        while last != tag:
            last = self._open.pop()
            self._count[last] -= 1
        if self._hidden is not None and len(self._open) <= self._hidden:
            self._hidden = None

    def handle_data(self, data: str) -> None:
        """Text between two tags."""
        if self._title is not None:
            self._title.append(data)
        elif self._hidden is not None:
            return
        elif self._count["pre"]:
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
        gap = _GAPS[self._gap] if self.pieces else ""
        self._gap = 0
        if self._heading is not None and self._start < 0:
            self._start = self._length + len(gap)
        self.pieces.append(gap + text)
        self._length += len(gap) + len(text)

    def _separate(self, tag: str) -> None:
        gap = _BLOCK * (tag in _BLOCKS) or _LINE * (tag in _LINES) or _CELL * (tag in _CELLS)
        self._gap = max(self._gap, gap)

    def _end_heading(self) -> None:
        if self._heading is not None and self._start >= 0:
            level, before = self._heading
            title = " ".join("".join(self.pieces[before:]).split())
            self.headings.append(Heading(self._start, level, title[:LONGEST_HEADING]))
        self._heading = None

    def _end_title(self) -> None:
        if self._title is not None:
            self.title = " ".join("".join(self._title).split())
        self._title = None
