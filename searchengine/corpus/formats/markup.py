"""HTML → text with headings; the chapters of EPUB books are XHTML.

Blank lines separate paragraphs, headings and tables; line breaks separate lines and rows. Scripts,
styles and other content that is not shown are left out.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate
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
# Scripts, comments and conditions of old browsers, whose ends Python's parser reads otherwise.
_NOT_SHOWN = re.compile(
    r"<(script|style)\b[^>]*(?<!/)>.*?(?:</\1(?:[\s/][^>]*)?>|\Z)"
    r"|<!--(?:-?>|.*?(?:--!?>|\Z))|<!\[(?!CDATA\[)[^<>]*>",
    re.IGNORECASE | re.DOTALL,
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
    text = _NOT_SHOWN.sub("", text)
    unfinished = _TAG.search(text, text.rfind(">") + 1)  # a tag in which the text ends
    text = text[: unfinished.start()] if unfinished else text
    page = _Page()
    page.feed(text)
    page.close()
    return Text("".join(page.pieces), page.title, page.metadata, tuple(page.headings()))


class _Page(HTMLParser):
    """The text of HTML while it is read."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.metadata: dict[str, Any] = {}  # author, description, keywords and language
        self.pieces: list[str] = []  # a gap and a text in turns
        self._gap = 0  # before the next text, an index of _GAPS
        self._open: list[str] = []
        self._count: Counter[str] = Counter()  # of those
        self._hidden: int | None = None  # how many are open around one that is not shown
        self._title: list[str] | None = None  # None outside of <title>
        self._heading: tuple[int, int] | None = None  # level, and the pieces before
        self._headings: list[tuple[int, int, int]] = []  # level, and the pieces before and with it

    def headings(self) -> Iterator[Heading]:
        """The headings, in order."""
        lengths = [0, *accumulate(map(len, self.pieces))]
        for level, before, end in self._headings:
            title = " ".join("".join(self.pieces[before:end]).split())
            yield Heading(lengths[before + 1], level, title[:LONGEST_HEADING])

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
            self._open_element(tag, values)

    def _describe(self, values: dict[str, str | None]) -> None:
        """Metadata of <html> or <meta>."""
        name, content = (values.get("name") or "").lower(), values.get("content")
        if language := values.get("lang") or values.get("xml:lang"):
            self.metadata["lang"] = language
        elif name in _NAMES and content:
            self.metadata[name] = content

    def _open_element(self, tag: str, values: dict[str, str | None]) -> None:
        ended = _ENDED.get(tag, ())
        if ended and self._count["svg"] and not self._count["foreignobject"]:
            self._close("svg")
        while self._open and self._open[-1] in ended:
            self._close(self._open[-1])
        if self._hidden is None:
            self._separate(tag)
            if tag in _HEADINGS:
                self._end_heading()
                self._heading = _HEADINGS[tag], len(self.pieces)
        if tag not in _VOID:
            styled = _HIDDEN.search(values.get("style") or "") or "hidden" in values
            if tag in _LEFT_OUT or styled or (tag == "dialog" and "open" not in values):
                self._hidden = len(self._open) if self._hidden is None else self._hidden
            self._open.append(tag)
            self._count[tag] += 1

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

    def handle_data(self, data: str) -> None:
        """Text between two tags."""
        if self._title is not None:
            self._title.append(data)
        elif self._hidden is None:
            words = data if self._count["pre"] else " ".join(data.split())
            if data[0].isspace() and not self._count["pre"]:
                self._gap = max(self._gap, _CELL)
            if words:
                self.pieces += [_GAPS[self._gap] if self.pieces else "", words]
                self._gap = _CELL if data[-1].isspace() and not self._count["pre"] else 0

    def _close(self, tag: str) -> None:
        """Close an element, and those that are open within it."""
        last = ""
        while last != tag:
            last = self._open.pop()
            self._count[last] -= 1
        if self._hidden is not None and len(self._open) <= self._hidden:
            self._hidden = None

    def _separate(self, tag: str) -> None:
        gap = _BLOCK * (tag in _BLOCKS) or _LINE * (tag in _LINES) or _CELL * (tag in _CELLS)
        self._gap = max(self._gap, gap)

    def _end_heading(self) -> None:
        if self._heading is not None and self._heading[1] < len(self.pieces):
            self._headings.append((*self._heading, len(self.pieces)))
        self._heading = None

    def _end_title(self) -> None:
        if self._title is not None:
            self.title = " ".join("".join(self._title).split())
        self._title = None
