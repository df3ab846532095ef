"""Files of Word (python-docx), PowerPoint by slides (python-pptx) and Excel by sheets (openpyxl).

python-docx reads paragraphs without inserted text, content controls, text boxes, formulas and
notes, which are read here.
"""

import posixpath
import re
import warnings
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.parsers.expat import ExpatError, ParserCreate

from lxml import etree

from searchengine.corpus.contents import Parts, Text, attempt, bad

_OLE = bytes.fromhex("d0cf11e0")  # begins old files of Office and encrypted new ones
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
_RELATION = re.compile(rb"""<Relationship\b[^>]*?\bTarget=["']([^"']*)[^>]*>""")
_MAIN = {"word/document.xml", "ppt/presentation.xml", "xl/workbook.xml"}
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MARKUP = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
# Deleted text, the reading of a character, and the copy of a text box for old versions.
_LEFT_OUT = {f"{_W}del", f"{_W}moveFrom", f"{_W}rt", f"{_MARKUP}Fallback"}
_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NOTES = ("/footnotes", "/endnotes", "/comments")  # ends of types of parts
_DEFAULTS = ("Word Document", "PowerPoint Presentation")
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_SMALL = {
    "sup": str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"),
    "sub": str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"),
}


def _office_file(path: Path, old: str, lost: dict[str, str]) -> BytesIO:
    """A file of Office with the names that libraries know in place of those of Strict Open XML.

    Damaged parts are left out, and nothing but Excel refers to them and to missing ones; `lost`
    takes a sentence for each. Pictures are empty. Raises CorpusError if it is
    encrypted, of the format with the suffix `old`, or without its main part.
    """
    content, result = path.read_bytes(), BytesIO()
    if content.startswith(_OLE):
        what = f"encrypted, or a {old} file; remove the password, or save it as {old}x"
        raise bad(path, what)
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            archive.getinfo("_rels/.rels")
            parts = {name: _part(archive, name, lost) for name in archive.namelist()}
    except (zipfile.BadZipFile, KeyError) as error:
        raise bad(path, f"not a file of the format {old}x, or damaged ({error})") from error
    parts = {name: data for name, data in parts.items() if data}
    with zipfile.ZipFile(result, "w") as written:
        for name, data in parts.items():
            if name.endswith(".rels"):
                whole = _relations(name, data, parts, lost)
                data = data if old == ".xls" else whole
            written.writestr(name, data)
    for name in lost.keys() & _MAIN - parts.keys():
        raise bad(path, f"damaged: {lost[name]}")
    return result


def _part(archive: zipfile.ZipFile, name: str, lost: dict[str, str]) -> bytes:
    """A part in XML, nothing of a damaged one; a space for another part."""
    if not name.endswith((".xml", ".rels")):
        return b" "
    try:
        data = archive.read(name)
        ParserCreate().Parse(data, True)
    except (zipfile.BadZipFile, zlib.error, EOFError, ExpatError) as error:
        lost[name] = f"{name} cannot be read ({error})"
        return b""
    return _STRICT.sub(rb"http://schemas.openxmlformats.org/\1/2006/", data)


def _relations(name: str, data: bytes, parts: Container[str], lost: dict[str, str]) -> bytes:
    """The relations of a part, without those to parts that are not in the file."""
    folder = posixpath.dirname(posixpath.dirname(name))

    def there(match: re.Match[bytes]) -> bytes:
        target = posixpath.join("/", folder, unquote(match[1].decode("utf-8", "replace")))
        target = posixpath.normpath(target)[1:]
        if target in parts or b"External" in match[0] or "#" in target:
            return match[0]
        if target.endswith(".xml"):
            lost.setdefault(target, f"{target} is missing")
        return b""

    return _RELATION.sub(there, data)


def read_docx(path: Path) -> Parts:
    """The text of a Word file, notes and comments at the end. Raises CorpusError."""
    import docx

    lost: dict[str, str] = {}
    document = docx.Document(_office_file(path, ".doc", lost))
    bodies = [document.element.body]
    for relation in document.part.rels.values():
        if relation.reltype.endswith(_NOTES) and not relation.is_external:
            bodies.append(etree.fromstring(relation.target_part.blob))

    text = "\n\n".join(text for body in bodies for text in _paragraphs(body) if text)
    yield Text(text, _title(document.core_properties))
    yield from lost.values()


def _title(properties: Any) -> str:
    """The title that a file names; "" for one that programs write by themselves."""
    return "" if properties.title in _DEFAULTS else properties.title or ""


def _paragraphs(body: Any) -> list[str]:
    """The paragraphs of a text in order; those of a text box after the one that holds it."""
    paragraphs: list[list[str]] = []
    around: list[list[str]] = []  # the pieces of the paragraphs that are open
    walk = etree.iterwalk(body, events=("start", "end"))
    for event, element in walk:
        tag = element.tag.removeprefix(_W)
        if event == "end":
            del around[len(around) - (tag == "p") :]
        elif tag == "p":
            around.append([])
            paragraphs.append(around[-1])
        elif element.tag in _LEFT_OUT or _is_hidden(element):
            walk.skip_subtree()
        elif around and tag == f"{_MATH}t":
            place = element.getparent().getparent().tag.removeprefix(_MATH)
            around[-1].append((element.text or "").translate(_SMALL.get(place, {})))
        elif around and tag == "t":
            around[-1].append(element.text or "")
        elif around and tag in _SIGNS and element.getparent().tag == f"{_W}r":
            around[-1].append(_SIGNS[tag])  # a tab stop, which is in no run, is no tab
    return ["".join(pieces).strip() for pieces in paragraphs]


def _is_hidden(element: Any) -> bool:
    """Whether it is a run that is formatted as hidden."""
    vanish = element.find(f"{_W}rPr/{_W}vanish") if element.tag == f"{_W}r" else None
    return vanish is not None and vanish.get(f"{_W}val") not in ("0", "false", "off")


def read_pptx(path: Path) -> Parts:
    """The slides, each with its number; notes come last. Raises CorpusError."""
    import pptx

    lost: dict[str, str] = {}
    presentation = pptx.Presentation(_office_file(path, ".ppt", lost))
    deck = _title(presentation.core_properties)

    def read(slide: Any, number: int) -> Parts:
        title = slide.shapes.title
        head = "" if title is None else _lines(title.text_frame.text)
        pieces = [head, *_shapes(s for s in slide.shapes if title is None or s != title)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            pieces.append(_lines(notes.text))
        text = "\n\n".join(filter(None, pieces))
        yield Text(text, deck, {"slide": number}, f"slide={number}")

    # Not presentation.slides, which needs all of them.
    listed = presentation.element.xpath("./p:sldIdLst/p:sldId/@r:id")
    for number, name in enumerate(listed, start=1):
        if name in presentation.part.rels:
            slide = presentation.part.related_part(name).slide
            yield from attempt(f"slide {number}", read(slide, number))
        else:
            yield f"slide {number} is missing or damaged"
    yield from (what for part, what in lost.items() if not part.startswith("ppt/slides/"))


def _shapes(shapes: Iterable[Any]) -> Iterator[str]:
    """The texts of shapes, in their order: text boxes, tables (a line for each row) and groups."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        elif shape.has_text_frame:
            yield _lines(shape.text_frame.text)
        elif getattr(shape, "has_table", False):
            rows = ([_lines(cell.text) for cell in row.cells] for row in shape.table.rows)
            yield "\n".join("\t".join(cells) for cells in rows if any(cells))


def _lines(text: str) -> str:
    return text.replace("\v", "\n").strip()  # \v: a line break within a paragraph


def read_xlsx(path: Path) -> Parts:
    """The sheets: a line for each row, tabs between its cells.

    Of a formula it is the value that Excel has stored. Raises CorpusError.
    """
    from openpyxl.reader.excel import ExcelReader

    lost: dict[str, str] = {}
    with warnings.catch_warnings(action="ignore"):  # about styles and extensions
        reader = ExcelReader(_office_file(path, ".xls", lost), read_only=True, data_only=True)
        reader.read()
    title = _title(reader.wb.properties)

    def read(sheet: Any) -> Parts:
        sheet.reset_dimensions()  # a file may declare more rows and columns than it has
        rows = sheet.iter_rows(values_only=True)
        lines = ("\t".join(map(_cell, row)).rstrip("\t") for row in rows)
        name = sheet.title
        yield Text("\n".join(filter(None, lines)), title, {"sheet": name}, f"sheet={name}")

    sheets = {sheet.title: sheet for sheet in reader.wb.worksheets}
    for named, relation in reader.parser.find_sheets():
        if named.name in sheets:
            yield from attempt(f"sheet {named.name!r}", read(sheets[named.name]))
        elif relation.target in lost:
            yield lost.pop(relation.target)
    yield from lost.values()


def _cell(value: Any) -> str:
    """A cell on one line."""
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        value = value.date()
    return "" if value is None else " ".join(str(value).split())
