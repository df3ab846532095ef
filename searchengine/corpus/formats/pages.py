"""HTML → text with headings; and books in EPUB, a zip archive of XHTML with a list of its chapters.

Blank lines separate paragraphs, headings and tables; line breaks separate lines and rows. Scripts,
styles and other content that is not shown are left out. libxml2 reads tags as browsers do.
"""

import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lxml import etree

from searchengine.corpus.formats.kinds import LONGEST_HEADING, read_parts
from searchengine.corpus.text_files import Heading, Text, bad, decode, read_bytes
from searchengine.errors import CorpusError

_LEFT_OUT = set(
    "script style template noscript svg iframe object audio video canvas noframes datalist rt rp "
    "annotation annotation-xml".split()
)
_HIDDEN = re.compile(r"(^|;)\s*(display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
# Elements in which a browser reads no tags: XHTML may have them without content.
_EMPTY = re.compile(r"<((script|style|title|iframe|textarea)\b[^>]*)/>", re.IGNORECASE)
_GAPS = ("", " ", "\n", "\n\n")
_CELL, _LINE, _BLOCK = 1, 2, 3  # gaps
_AROUND = {
    **dict.fromkeys(
        "address article aside blockquote body details dialog dl div fieldset figure footer form "
        "h1 h2 h3 h4 h5 h6 header hr main nav ol p pre section summary table ul".split(),
        _BLOCK,
    ),
    **dict.fromkeys("br dd dt figcaption legend li option tr".split(), _LINE),
    **dict.fromkeys(("td", "th"), _CELL),
}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_NAMES = {"author", "description", "keywords"}  # of <meta> that become metadata
_DECLARED = re.compile(rb"""<meta[^>]{1,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_XML = re.compile(rb"""\s*<\?xml[^>]{1,200}?encoding\s*=\s*["']([\w.:-]+)""")
_DECLARATION = 1024  # bytes in which HTML declares its encoding

_DC = "{http://purl.org/dc/elements/1.1/}"
_TEXTS = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
_FIELDS = {"author": "creator", "lang": "language", "date": "date"}
_ENCRYPTION = "META-INF/encryption.xml"


def read_html(path: Path) -> Iterator[Text]:
    """The text of an HTML file. Raises CorpusError."""
    yield parse_bytes(read_bytes(path), path)


def parse_bytes(data: bytes, path: Path) -> Text:
    """As `parse`, of HTML or XHTML that may name its encoding. Raises CorpusError."""
    head = data[:_DECLARATION]
    match = _XML.match(head) or _DECLARED.search(head)
    decoded = decode(data, path, match.group(1).decode("ascii", "replace") if match else "")
    page = parse(decoded.text)
    return replace(page, metadata={**page.metadata, **decoded.metadata}, lost=decoded.lost)


def parse(text: str) -> Text:
    """The text of HTML, with title, headings and metadata."""
    page = _Page()
    if text.strip():
        parser = etree.HTMLParser(target=page, encoding="utf-8", huge_tree=True)
        etree.fromstring(_EMPTY.sub(r"<\1></\2>", text).encode(), parser)
    return Text("".join(page.pieces), page.title, page.metadata, tuple(page.headings()))


class _Page:
    """The text of HTML while it is read. The parser closes each element that it has opened."""

    def __init__(self) -> None:
        self.title = ""
        self.metadata: dict[str, Any] = {}  # author, description, keywords and language
        self.pieces: list[str] = []  # a gap and a text in turns
        self._gap = 0  # before the next text, an index of _GAPS
        self._preformatted = 0  # elements that are open
        self._hidden: list[str] = []  # elements that are open, from one on that is not shown
        self._title: list[str] | None = None  # None outside of <title>
        self._heading: tuple[int, int] | None = None  # level, and the pieces before
        self._headings: list[tuple[int, int, int]] = []  # level, and the pieces before and with it

    def headings(self) -> Iterator[Heading]:
        """The headings, in order."""
        lengths = [0, *accumulate(map(len, self.pieces))]
        for level, before, end in self._headings:
            title = " ".join("".join(self.pieces[before:end]).split())
            yield Heading(lengths[before + 1], level, title[:LONGEST_HEADING])

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element opens."""
        if self._hidden[:1] == ["svg"] and tag in _AROUND and "foreignobject" not in self._hidden:
            self._hidden.clear()  # a picture that was not closed
        language = attributes.get("lang") or attributes.get("xml:lang")
        name = attributes.get("name", "").lower()
        if tag == "html" and language:
            self.metadata["lang"] = language
        elif tag == "meta" and name in _NAMES and attributes.get("content"):
            self.metadata[name] = attributes["content"]
        styled = "hidden" in attributes or _HIDDEN.search(attributes.get("style", ""))
        closed = tag == "dialog" and "open" not in attributes
        if not self._hidden:
            self._separate(tag)
        if self._hidden or tag in _LEFT_OUT or styled or closed:
            self._hidden.append(tag)
        elif tag == "title" and not self.title:
            self._title = []
        else:
            self._preformatted += tag == "pre"
            if tag in _HEADINGS:
                self._end_heading()
                self._heading = _HEADINGS[tag], len(self.pieces)

    def end(self, tag: str) -> None:
        """An element closes."""
        if self._hidden:
            self._hidden.pop()
        elif tag == "title" and self._title is not None:
            self.title, self._title = " ".join("".join(self._title).split()), None
        else:
            self._separate(tag)
            self._preformatted -= tag == "pre"
            if tag in _HEADINGS:
                self._end_heading()

    def data(self, text: str) -> None:
        """Text between two tags, or a part of it."""
        if self._title is not None:
            self._title.append(text)
        elif not self._hidden:
            words = text if self._preformatted else " ".join(text.split())
            if text[0].isspace() and not self._preformatted:
                self._gap = max(self._gap, _CELL)
            if words:
                self.pieces += [_GAPS[self._gap] if self.pieces else "", words]
                self._gap = _CELL if text[-1].isspace() and not self._preformatted else 0

    def close(self) -> None:
        """The text ends."""
        self._end_heading()

    def _separate(self, tag: str) -> None:
        self._gap = max(self._gap, _AROUND.get(tag, 0))

    def _end_heading(self) -> None:
        if self._heading is not None and self._heading[1] < len(self.pieces):
            self._headings.append((*self._heading, len(self.pieces)))
        self._heading = None


def read_epub(path: Path) -> Iterator[Text]:
    """The chapters of a book, in reading order; the table of contents is left out.

    Raises CorpusError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = etree.fromstring(archive.read("META-INF/container.xml"))
            name = next((file.get("full-path", "") for file in root.iterfind(".//{*}rootfile")), "")
            package = etree.fromstring(archive.read(name))
            encrypted = set()  # fonts often are, texts only under protection
            if _ENCRYPTION in archive.namelist():
                references = etree.fromstring(archive.read(_ENCRYPTION)).iterfind(
                    ".//{*}CipherReference"
                )
                encrypted = {unquote(reference.get("URI", "")) for reference in references}
            yield from _chapters(path, archive, package, posixpath.dirname(name), encrypted)
    except (KeyError, etree.XMLSyntaxError, zipfile.BadZipFile) as error:
        raise bad(path, f"not an EPUB file, or damaged ({error})") from error


def _chapters(
    path: Path, archive: zipfile.ZipFile, package: Any, folder: str, encrypted: set[str]
) -> Iterator[Text]:
    """`package`: the file that lists all others, from its folder."""
    fields = {n: (package.findtext(f".//{_DC}{tag}") or "").strip() for n, tag in _FIELDS.items()}
    metadata = {name: value for name, value in fields.items() if value}
    title = (package.findtext(f".//{_DC}title") or "").strip()
    numbers = count(1)

    def chapter(name: str) -> Text:
        if name in encrypted:
            raise CorpusError("encrypted; remove the protection first")
        page = parse_bytes(archive.read(name), path)
        fields = metadata | ({"chapter": next(numbers)} if page.text else {})
        return replace(page, title=title or page.title, metadata=fields, fragment=name)

    items = {item.get("id"): item for item in package.iterfind(".//{*}item")}
    spine = (items.get(reference.get("idref")) for reference in package.iterfind(".//{*}itemref"))
    names = dict.fromkeys(
        posixpath.normpath(posixpath.join(folder, unquote(item.get("href", "").partition("#")[0])))
        for item in spine
        if item is not None
        and item.get("media-type") in _TEXTS
        and "nav" not in item.get("properties", "").split()
    )
    yield from read_parts(path, ((n, partial(chapter, n)) for n in names), "holds no text")
