"""HTML → text with headings; and books in EPUB, a zip archive of XHTML with a list of its chapters.

Blank lines separate paragraphs, headings and tables; line breaks separate lines and rows. Scripts,
styles and other content that is not shown are left out. libxml2 reads tags as browsers do.
"""

import posixpath
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lxml import etree

from searchengine.corpus.formats.kinds import LONGEST_HEADING, attempt
from searchengine.corpus.text_files import Heading, Parts, Text, bad, decode, read_bytes

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
_FIELDS = {"title": "title", "author": "creator", "lang": "language", "date": "date"}


def read_html(path: Path) -> Parts:
    """The text of an HTML file. Raises CorpusError."""
    yield from parse_bytes(read_bytes(path), path)


def parse_bytes(data: bytes, path: Path) -> Parts:
    """As `parse`, of HTML or XHTML that may name its encoding. Raises CorpusError."""
    head = data[:_DECLARATION]
    match = _XML.match(head) or _DECLARED.search(head)
    declared = match.group(1).decode("ascii", "replace") if match else ""
    text, encoding, lost = decode(data, path, declared)
    page = parse(text)
    yield replace(page, metadata={**page.metadata, **encoding})
    yield from lost


def parse(text: str) -> Text:
    """The text of HTML, with title, headings and metadata."""
    page = _Page()
    if text.strip():
        parser = etree.HTMLParser(
            encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True
        )
        root = etree.fromstring(_EMPTY.sub(r"<\1></\2>", text).encode(), parser)
        for event, element in () if root is None else etree.iterwalk(root, ("start", "end")):
            page.enter(element) if event == "start" else page.leave(element)
    return Text("".join(page.pieces), page.title, page.metadata, tuple(page.headings))


class _Page:
    """The text of HTML, gathered element by element."""

    def __init__(self) -> None:
        self.title = ""
        self.metadata: dict[str, Any] = {}  # author, description, keywords and language
        self.pieces: list[str] = []  # a gap and a text in turns
        self.headings: list[Heading] = []
        self._length = 0  # of the pieces
        self._gap = 0  # before the next text, an index of _GAPS
        self._preformatted = 0  # elements that are open
        self._hidden: Any = None  # the outermost open element that is not shown
        self._heading: tuple[int, int] | None = None  # number of pieces before, and their length

    def enter(self, element: Any) -> None:
        """An element opens."""
        tag = element.tag
        if self._hidden is not None and self._hidden.tag == "svg" and tag in _AROUND:
            if all(above.tag != "foreignobject" for above in element.iterancestors()):
                self._hidden = None  # a picture that was not closed
        if tag == "html" and (language := element.get("lang") or element.get("xml:lang")):
            self.metadata["lang"] = language
        elif tag == "meta" and (name := element.get("name", "").lower()) in _NAMES:
            if content := element.get("content"):
                self.metadata[name] = content
        if self._hidden is not None:
            return
        self._gap = max(self._gap, _AROUND.get(tag, 0))
        styled = "hidden" in element.attrib or _HIDDEN.search(element.get("style", ""))
        closed = tag == "dialog" and "open" not in element.attrib
        if tag in _LEFT_OUT or styled or closed:
            self._hidden = element
        elif tag == "title" and not self.title:
            self.title, self._hidden = " ".join("".join(element.itertext()).split()), element
        else:
            self._preformatted += tag == "pre"
            self._heading = (len(self.pieces), self._length) if tag in _HEADINGS else self._heading
            self._add(element.text)

    def leave(self, element: Any) -> None:
        """An element closes, and the text behind it follows."""
        if self._hidden is element:
            self._hidden = None
        elif self._hidden is None:
            self._gap = max(self._gap, _AROUND.get(element.tag, 0))
            self._preformatted -= element.tag == "pre"
            if element.tag in _HEADINGS and self._heading is not None:
                before, length = self._heading
                if title := " ".join("".join(self.pieces[before:]).split()):
                    start = length + len(self.pieces[before])  # behind the gap
                    heading = Heading(start, _HEADINGS[element.tag], title[:LONGEST_HEADING])
                    self.headings.append(heading)
                self._heading = None
        if self._hidden is None:
            self._add(element.tail)

    def _add(self, text: str | None) -> None:
        """Text between two tags."""
        if not text:
            return
        words = text if self._preformatted else " ".join(text.split())
        if text[0].isspace() and not self._preformatted:
            self._gap = max(self._gap, _CELL)
        if words:
            pieces = [_GAPS[self._gap] if self.pieces else "", words]
            self.pieces += pieces
            self._length += sum(map(len, pieces))
            self._gap = _CELL if text[-1].isspace() and not self._preformatted else 0


def read_epub(path: Path) -> Parts:
    """The chapters of a book, in reading order; the table of contents is left out.

    Raises CorpusError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield from _chapters(path, archive)
    except (KeyError, etree.XMLSyntaxError, zipfile.BadZipFile) as error:
        raise bad(path, f"not an EPUB file, or damaged ({error})") from error


def _chapters(path: Path, archive: zipfile.ZipFile) -> Parts:
    container = etree.fromstring(archive.read("META-INF/container.xml"))
    file = next((file.get("full-path", "") for file in container.iterfind(".//{*}rootfile")), "")
    package, folder = etree.fromstring(archive.read(file)), posixpath.dirname(file)
    fields = {n: (package.findtext(f".//{_DC}{tag}") or "").strip() for n, tag in _FIELDS.items()}
    title, number = fields.pop("title"), 0

    def chapter(name: str) -> Parts:
        for part in parse_bytes(archive.read(name), path):
            if isinstance(part, Text):
                metadata = {n: value for n, value in fields.items() if value}
                metadata |= {"chapter": number + 1}
                part = replace(part, title=title or part.title, metadata=metadata, fragment=name)
            yield part

    items = {item.get("id"): item for item in package.iterfind(".//{*}item")}
    spine = (items.get(reference.get("idref")) for reference in package.iterfind(".//{*}itemref"))
    names = [
        unquote(item.get("href", "").partition("#")[0])
        for item in spine
        if item is not None
        and item.get("media-type") in _TEXTS
        and "nav" not in item.get("properties", "").split()
    ]
    for name in dict.fromkeys(posixpath.normpath(posixpath.join(folder, name)) for name in names):
        for part in attempt(name, chapter(name)):
            number += isinstance(part, Text) and bool(part.text)
            yield part
