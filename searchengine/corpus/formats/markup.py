"""HTML, books in EPUB, Markdown and notebooks → text.

HTML: blank lines separate paragraphs, headings and tables; line breaks separate lines and rows.
Scripts, styles and other content that is not shown are left out. libxml2 reads tags as browsers do.
EPUB is a zip archive of XHTML with a list of its chapters. The other texts stay as they are
written; front matter is metadata.
"""

import posixpath
import re
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from lxml import etree

from searchengine.corpus.contents import Parts, Text, attempt, bad, decode, parse_json, read_bytes
from searchengine.corpus.documents import plain_fields

_LEFT_OUT = set(
    "script style template noscript iframe object audio video canvas noframes datalist rt rp title "
    "text desc foreignobject annotation annotation-xml".split()  # some of pictures and formulas
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
_TITLES = "//title[not(ancestor::svg)]"
_DECLARED = re.compile(rb"""<meta[^>]{1,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_XML = re.compile(rb"""\s*<\?xml[^>]{1,200}?encoding\s*=\s*["']([\w.:-]+)""")
_DECLARATION = 1024  # bytes in which HTML declares its encoding

_TEXTS = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


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
    yield replace(page, metadata=encoding)
    yield from lost


def parse(text: str) -> Text:
    """The text of HTML, with its title."""
    parser = etree.HTMLParser(
        encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True
    )
    written = _EMPTY.sub(r"<\1></\2>", text).encode()
    if not text.strip() or (root := etree.fromstring(written, parser)) is None:
        return Text("")
    titles = (" ".join("".join(title.itertext()).split()) for title in root.xpath(_TITLES))
    return Text("".join(_shown(root)), next(filter(None, titles), ""))


def _shown(root: Any) -> Iterator[str]:
    """The texts of HTML that a browser shows, each after the gap before it."""
    gap, begins, preformatted = 0, True, None  # the open <pre>
    walk = etree.iterwalk(root, ("start", "end"))
    for event, element in walk:
        gap = max(gap, _AROUND.get(element.tag, 0))
        if event == "start" and _is_hidden(element):
            walk.skip_subtree()
            continue
        if element.tag == "pre" and preformatted in (None, element):
            preformatted = element if event == "start" else None
        text = (element.text if event == "start" else element.tail) or ""
        flows = preformatted is None
        gap = max(gap, _CELL if flows and text[:1].isspace() else 0)
        if words := " ".join(text.split()) if flows else text:
            yield from ("" if begins else _GAPS[gap], words)
            gap, begins = _CELL if flows and text[-1].isspace() else 0, False


def _is_hidden(element: Any) -> bool:
    """Whether a browser does not show an element."""
    if element.tag == "svg":  # one that was not closed has the rest of the page
        return all(inner.tag not in _AROUND for inner in element.iter())
    styled = "hidden" in element.attrib or _HIDDEN.search(element.get("style", ""))
    closed = element.tag == "dialog" and "open" not in element.attrib
    return element.tag in _LEFT_OUT or bool(styled) or closed


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
    title = (package.findtext(".//{http://purl.org/dc/elements/1.1/}title") or "").strip()
    number = 0

    def chapter(name: str) -> Parts:
        for part in parse_bytes(archive.read(name), path):
            if isinstance(part, Text):
                place = {"chapter": number + 1}
                part = replace(part, title=title or part.title, metadata=place, fragment=name)
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


# --------------------------------------------------------------------------- Markdown and notebooks

_FRONT = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?:(.*?)\n)??(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_FIELD = re.compile(r"^(\w[^:=\n]*?) *[:=][ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_YEAR, _ORDINAL = re.compile(r"\b\d{4}\b"), re.compile(r"(?<=\d)(st|nd|rd|th)\b")
_LONGEST_DATE = 40  # characters
_DAYS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y"),
    *("%a %d %b %Y", "%A %d %B %Y", "%A %B %d %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M %z", " %H:%M:%S %z", " %I:%M %p")
_DATES = ["", *(f"{day}{time}" for day in _DAYS for time in _TIMES)]
# A heading of the first level that begins a text.
_TITLE = re.compile(
    r"(?m)(?:[ \t]*\r?\n)* {0,3}(?:#[ \t]+(\S.{0,199}?)(?:[ \t]+#+)?|(\S.{0,199})\n=+)[ \t]*\r?$"
)


def read_markdown(path: Path) -> Parts:
    """The text of a Markdown file, and a sentence if its front matter is broken.

    The title is that of the front matter, or else a heading of the first level that begins the
    text. Raises CorpusError.
    """
    text, encoding, lost = decode(read_bytes(path), path)
    metadata, text, broken = _front_matter(text)
    title = metadata.pop("title", None)
    yield Text(text, _title(text) if title is None else str(title), metadata | encoding)
    yield from filter(None, [*lost, broken])


def read_ipynb(path: Path) -> Parts:
    """The text of a notebook; its title is a heading of Markdown that begins it."""
    written, _, lost = decode(read_bytes(path), path)
    content = parse_json(written, str(path))
    try:  # a source is a text, or a list of its lines
        cells = ["".join(cell.get("source") or "").strip() for cell in content["cells"]]
        kinds = [cell.get("cell_type") for cell in content["cells"] if cell.get("source")]
    except (AttributeError, KeyError, TypeError) as error:
        what = "not a notebook of format 4 (no cells with a source)"
        raise bad(path, f"{what}; open and save it in Jupyter") from error
    text = "\n\n".join(filter(None, cells))
    yield Text(text, _title(text) if kinds[:1] == ["markdown"] else "")
    yield from lost


def _title(text: str) -> str:
    """The heading of the first level that begins a text, but for comments; or ""."""
    match = _TITLE.match(_COMMENT.sub("", text))
    return " ".join((match[1] or match[2]).split()) if match else ""


def _front_matter(text: str) -> tuple[dict[str, Any], str, str]:
    """The fields between --- (YAML) or +++ (TOML) at the beginning, the text after them, and what
    is wrong with them, or "". Of broken ones, those on a line each are taken.
    """
    match = _FRONT.match(text)
    if match is None:
        return {}, text, ""
    written, kind, lost = match[2] or "", "YAML" if match[1] == "---" else "TOML", ""
    try:
        fields = yaml.safe_load(written) if kind == "YAML" else tomllib.loads(written)
        fields = _dated(fields) if isinstance(fields, dict) else fields
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            what = f"{error.problem}, line {error.problem_mark.line + 2}"  # the first one is ---
        lost, fields = f"the front matter is not {kind} ({what})", {}
        for line in _FIELD.finditer(written):
            with suppress(ValueError):
                fields |= _dated({line[1]: _value(line[2])})
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
        value = yaml.safe_load(written)
        return written if isinstance(value, dict) else value
    return written


def _dated(fields: dict[Any, Any]) -> dict[str, Any]:
    """Fields as JSON holds them, with dates as people write them. Raises ValueError."""
    for name, value in fields.items():
        if isinstance(value, str) and _YEAR.search(value) and len(value) < _LONGEST_DATE:
            text = " ".join(_ORDINAL.sub("", value).replace(",", " ").split())
            for form in _DATES:
                with suppress(ValueError):
                    moment = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
                    fields[name] = moment if ":" in text else moment.date()
                    break
    return plain_fields(fields)
