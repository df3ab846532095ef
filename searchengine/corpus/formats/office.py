"""Files of Word (python-docx), PowerPoint by slides (python-pptx) and Excel by sheets (openpyxl).

python-docx reads paragraphs without inserted text, content controls, text boxes, formulas and
notes, which are read here.
"""

import posixpath
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.parsers.expat import ExpatError, ParserCreate

from searchengine.corpus.formats.kinds import LONGEST_HEADING, joined, read_parts
from searchengine.corpus.text_files import LONGEST, Heading, Text, bad, too_long

_OLE = bytes.fromhex("d0cf11e0")  # begins old files of Office and encrypted new ones
_STRICT = b"http://purl.oclc.org/ooxml/"
_ROOT = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(<([\w:]+)[^>]*[^>/]>)")
_RELATION = re.compile(rb"""<Relationship\b[^>]*?\bTarget=["']([^"']*)[^>]*>""")
_STRICT_NAME = re.compile(re.escape(_STRICT) + rb"(\w+)/")
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MARKUP = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
# Deleted text, the reading of a character, and the copy of a text box for old versions.
_LEFT_OUT = {f"{_W}del", f"{_W}moveFrom", f"{_W}rt", f"{_MARKUP}Fallback"}
_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NAME = re.compile(r"heading (\d)|(title)", re.IGNORECASE)
_NOTES = ("/footnotes", "/endnotes", "/comments")  # ends of types of parts
_DEFAULTS = ("Word Document", "PowerPoint Presentation", "python-docx", "python-pptx", "openpyxl")
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_SMALL = {
    "sup": str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"),
    "sub": str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"),
}
_FORMULA = {"sup": "^{1}", "sub": "_{1}", "num": "{1}", "den": "/{1}", "rad": "√{1}", "d": "({0})"}


def office_file(path: Path, old: str, lost: list[str]) -> BytesIO:
    """A file of Office with the names that libraries know in place of those of Strict Open XML.
    Damaged parts are empty in it, and Word files do not refer to missing ones; `lost` names them.

    Raises CorpusError if it is encrypted, or of the format with the suffix `old`.
    """
    content, result = path.read_bytes(), BytesIO()
    if content.startswith(_OLE):
        what = f"encrypted, or a {old} file; remove the password, or save it as {old}x"
        raise bad(path, what)
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive, zipfile.ZipFile(result, "w") as written:
            names = archive.namelist()
            is_strict = _STRICT in archive.read("_rels/.rels")
            read = [
                n for n in names if n.endswith(".xml") and (is_strict or "/worksheets/" not in n)
            ]
            parts = {n: archive.read(n) for n in names if n in read or n.endswith(".rels")}
            mended = {name: _mended(name, data, lost) for name, data in parts.items()}
            for name in (name for name in mended if name.endswith(".rels")):
                whole = _relations(name, mended[name], names, lost)
                mended[name] = whole if old == ".doc" else mended[name]
            if mended == parts:
                return BytesIO(content)
            for name in names:
                written.writestr(name, mended.get(name) or archive.read(name))
    except (zipfile.BadZipFile, KeyError) as error:
        raise bad(path, f"not a file of the format {old}x, or damaged ({error})") from error
    return result


def _mended(name: str, data: bytes, lost: list[str]) -> bytes:
    """A part in XML; of a damaged one its first element, empty."""
    try:
        ParserCreate().Parse(data, True)
    except ExpatError as error:
        lost.append(f"{name} cannot be read ({error})")
        data = b"%b</%b>" % root.groups() if (root := _ROOT.match(data)) else b""
    return _STRICT_NAME.sub(rb"http://schemas.openxmlformats.org/\1/2006/", data)


def _relations(name: str, data: bytes, names: list[str], lost: list[str]) -> bytes:
    """The relations of a part, without those to parts that are not in the file."""
    folder = posixpath.dirname(posixpath.dirname(name))

    def there(match: re.Match[bytes]) -> bytes:
        target = posixpath.join("/", folder, unquote(match[1].decode("utf-8", "replace")))
        target = posixpath.normpath(target)[1:]
        if target in names or b"External" in match[0] or "#" in target:
            return match[0]
        if target.endswith(".xml") and (what := f"{target} is missing") not in lost:
            lost.append(what)
        return b""

    return _RELATION.sub(there, data)


def read_docx(path: Path) -> Iterator[Text]:
    """The text of a Word file, notes and comments at the end.

    Headings are paragraphs of the styles Title and Heading 1 to 9, and of styles made from them or
    with an outline level. Raises CorpusError.
    """
    import docx
    from docx.oxml.parser import parse_xml

    lost: list[str] = []
    document = docx.Document(office_file(path, ".doc", lost))
    levels = {style.style_id: _style_level(style) for style in document.styles}
    bodies = [document.element.body]
    for relation in document.part.rels.values():
        if relation.reltype.endswith(_NOTES) and not relation.is_external:
            bodies.append(parse_xml(relation.target_part.blob))

    def heading(paragraph: Any, text: str) -> Iterator[Heading]:
        style = paragraph.find(f"{_W}pPr/{_W}pStyle")
        by_style = None if style is None else levels.get(style.get(f"{_W}val"))
        if level := _outline_level(paragraph, by_style):
            yield Heading(0, level, " ".join(text.split())[:LONGEST_HEADING])

    paragraphs = (each for body in bodies for each in _paragraphs(body))
    text, headings = joined((text, heading(paragraph, text)) for paragraph, text in paragraphs)
    title, metadata = _properties(document.core_properties, document.core_properties.author)
    yield Text(text, title, metadata, headings, lost=tuple(lost))


def _properties(properties: Any, author: str | None) -> tuple[str, dict[str, Any]]:
    """The title of a file, and metadata of its author; not what programs write of themselves."""
    values = [value or "" for value in (properties.title, author)]
    title, author = ("" if value in _DEFAULTS else value for value in values)
    return title, {"author": author} if author else {}


def _outline_level(element: Any, otherwise: int | None = None) -> int | None:
    """The level that a paragraph or style names; `otherwise` where it names none."""
    if (outline := element.find(f"{_W}pPr/{_W}outlineLvl")) is None:
        return otherwise
    value = int(outline.get(f"{_W}val"))
    return value + 1 if value < 9 else None  # 9 is text


def _style_level(style: Any, bases: int = 20) -> int | None:
    """The level of a style of headings, by name or outline, or that of the style it is made from.

    `bases`: maximum number of styles to follow.
    """
    if style is None or not bases:
        return None
    if match := _NAME.fullmatch(style.name or ""):
        return int(match[1] or 1)
    base = _style_level(getattr(style, "base_style", None), bases - 1)
    return _outline_level(style.element, base)


def _paragraphs(element: Any) -> Iterator[tuple[Any, str]]:
    """The paragraphs in an element in order; those of a text box after the one that holds it."""
    for child in element:
        if child.tag == f"{_W}p":
            pieces: list[str] = []
            boxes: list[Any] = []
            _collect(child, pieces, boxes)
            yield child, "".join(pieces).strip()
            for box in boxes:
                yield from _paragraphs(box)
        elif child.tag not in _LEFT_OUT:
            yield from _paragraphs(child)


def _collect(element: Any, pieces: list[str], boxes: list[Any]) -> None:
    """Add the pieces of text in an element, and the text boxes."""
    for child in element:
        if child.tag == f"{_W}t":
            pieces.append(child.text or "")
        elif element.tag == f"{_W}r" and (sign := _SIGNS.get(child.tag.removeprefix(_W))):
            pieces.append(sign)  # a tab stop, which is in no run, is no tab
        elif child.tag == f"{_W}txbxContent":
            boxes.append(child)
        elif child.tag == f"{_MATH}oMath":
            pieces.append(_formula(child))
        elif child.tag not in _LEFT_OUT and not _is_hidden(child):
            _collect(child, pieces, boxes)


def _is_hidden(element: Any) -> bool:
    """Whether it is a run that is formatted as hidden."""
    vanish = element.find(f"{_W}rPr/{_W}vanish") if element.tag == f"{_W}r" else None
    return vanish is not None and vanish.get(f"{_W}val") not in ("0", "false", "off")


def _formula(element: Any) -> str:
    """A formula on one line, such as A = πr² or x = (a+b)/2."""
    if (kind := element.tag.removeprefix(_MATH)) == "t":
        return element.text or ""
    inner = "".join(map(_formula, element))
    if kind in _SMALL and inner.isdecimal():
        return inner.translate(_SMALL[kind])
    grouped = inner if len(inner) < 2 or inner.isalnum() else f"({inner})"
    return _FORMULA.get(kind, "{0}").format(inner, grouped)


def read_pptx(path: Path) -> Iterator[Text]:
    """The slides that have text, each with its number; its title is a heading, notes come last.

    Raises CorpusError, also if no slide has text.
    """
    import pptx

    lost: list[str] = []
    presentation = pptx.Presentation(office_file(path, ".ppt", lost))
    deck, fields = _properties(presentation.core_properties, presentation.core_properties.author)

    def read(number: int) -> Text:
        slide = presentation.slides[number - 1]
        title = slide.shapes.title
        head = "" if title is None else _lines(title.text_frame.text)
        pieces = [head, *_shapes(s for s in slide.shapes if title is None or s != title)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            pieces.append(_lines(notes.text))
        name = " ".join(head.split())[:LONGEST_HEADING]
        headings = (Heading(0, 1, name),) if name else ()
        metadata, text = fields | {"slide": number}, "\n\n".join(filter(None, pieces))
        return Text(text, deck, metadata, headings, f"slide={number}")

    numbers = range(1, len(presentation.slides) + 1)
    parts = ((f"slide {number}", partial(read, number)) for number in numbers)
    lost = [part for part in lost if not part.startswith("ppt/slides/")]  # read in vain below
    empty = "has no text; if its slides are pictures, run OCR first"
    yield from read_parts(path, parts, empty, lost)


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


def read_xlsx(path: Path) -> Iterator[Text]:
    """The sheets that have cells: a line for each row, tabs between its cells.

    Of a formula it is the value that Excel has stored. Raises CorpusError, also if all sheets are
    empty.
    """
    import openpyxl

    lost: list[str] = []
    with warnings.catch_warnings(action="ignore"):  # about styles and extensions
        file = office_file(path, ".xls", lost)
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    title, fields = _properties(book.properties, book.properties.creator)

    def read(sheet: Any) -> Text:
        sheet.reset_dimensions()  # a file may declare more rows and columns than it has
        lines: list[str] = []
        length = 0
        for row in sheet.iter_rows(values_only=True):
            if line := "\t".join(map(_cell, row)).rstrip("\t"):
                lines.append(line)
                length += len(line) + 1
                if length > LONGEST:
                    raise bad(path, too_long("text"))
        metadata = fields | {"sheet": sheet.title}
        return Text("\n".join(lines), title, metadata, (), f"sheet={sheet.title}")

    sheets = ((f"sheet {sheet.title!r}", partial(read, sheet)) for sheet in book.worksheets)
    yield from read_parts(path, sheets, "all its sheets are empty", lost)


def _cell(value: Any) -> str:
    """A cell on one line."""
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        value = value.date()
    if isinstance(value, date):
        return value.isoformat()
    return "" if value is None else " ".join(str(value).split())
