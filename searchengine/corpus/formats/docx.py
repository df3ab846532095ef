"""Word files (.docx): python-docx opens them, and the text is taken from their XML.

python-docx reads paragraphs without inserted text, content controls, text boxes and notes, which
are read here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docx
from docx.oxml.ns import nsmap, qn
from docx.oxml.parser import parse_xml

from searchengine.corpus.formats.archives import check_size, opened, refuse_encrypted
from searchengine.corpus.formats.kinds import LONGEST_HEADING, Heading, Text

_MARKUP = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
# Deleted text, the reading of a character, and the copy of a text box for old versions.
_LEFT_OUT = {qn("w:del"), qn("w:moveFrom"), qn("w:rt"), f"{_MARKUP}Fallback"}
_SIGNS = {
    qn("w:tab"): "\t",
    qn("w:ptab"): "\t",
    qn("w:br"): "\n",
    qn("w:cr"): "\n",
    qn("w:noBreakHyphen"): "-",
}
_NAME = re.compile(r"heading (\d)|(title)", re.IGNORECASE)
_NOTES = ("/footnotes", "/endnotes")  # ends of types of parts


def read_docx(path: Path) -> Iterator[Text]:
    """The text of a Word file, notes at the end.

    Headings are paragraphs of the styles Title and Heading 1 to 9, and of styles made from them or
    with an outline level. Raises CorpusError.
    """
    refuse_encrypted(path, ".doc", ".docx")
    with opened(path, "a .docx file") as archive:
        check_size(archive, path, (".xml", ".rels"))
    document = docx.Document(str(path))
    levels = _levels(document.styles.element)
    pieces: list[str] = []
    headings: list[Heading] = []
    length = 0
    for paragraph, text in _texts(document):
        if not text:
            continue
        start = length + (2 if pieces else 0)
        if (level := _level(paragraph, levels)) is not None:
            headings.append(Heading(start, level, " ".join(text.split())[:LONGEST_HEADING]))
        pieces.append(text)
        length = start + len(text)
    properties = document.core_properties
    metadata = {"author": properties.author} if properties.author else {}
    yield Text("\n\n".join(pieces), properties.title or "", metadata, tuple(headings))


def _texts(document: Any) -> Iterator[tuple[Any, str]]:
    """The paragraphs of the body and the notes, each with its text."""
    yield from _paragraphs(document.element.body)
    for relation in document.part.rels.values():
        if relation.reltype.endswith(_NOTES) and not relation.is_external:
            yield from _paragraphs(parse_xml(relation.target_part.blob))


def _paragraphs(element: Any) -> Iterator[tuple[Any, str]]:
    """The paragraphs in an element in order; those of a text box after the one that holds it."""
    for child in element:
        if child.tag == qn("w:p"):
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
        if child.tag == qn("w:t"):
            pieces.append(child.text or "")
        elif child.tag in _SIGNS and element.tag == qn("w:r"):  # a tab stop is no tab
            pieces.append(_SIGNS[child.tag])
        elif child.tag == qn("w:txbxContent"):
            boxes.append(child)
        elif child.tag not in _LEFT_OUT:
            _collect(child, pieces, boxes)


def _level(paragraph: Any, levels: dict[str, int]) -> int | None:
    """The level of a heading; None for other paragraphs."""
    own = paragraph.find(f"w:pPr/{_OUTLINE}", nsmap)
    if own is not None:
        return _outline_level(own)
    style = paragraph.find("w:pPr/w:pStyle", nsmap)
    return None if style is None else levels.get(style.get(qn("w:val")))


_OUTLINE = "w:outlineLvl"


def _outline_level(element: Any) -> int | None:
    value = int(element.get(qn("w:val")))
    return value + 1 if value < 9 else None  # 9 is text


def _levels(styles: Any) -> dict[str, int]:
    """The level of each style of headings, by its id."""
    levels: dict[str, int] = {}
    bases: dict[str, str] = {}
    for style in styles.findall("w:style", nsmap):
        key = style.get(qn("w:styleId"))
        name = style.find("w:name", nsmap)
        match = None if name is None else _NAME.fullmatch(name.get(qn("w:val")))
        outline = style.find(f"w:pPr/{_OUTLINE}", nsmap)
        level = None if outline is None else _outline_level(outline)
        if match:
            level = int(match[1] or 1)
        if level is not None:
            levels[key] = level
        base = style.find("w:basedOn", nsmap)
        if base is not None:
            bases[key] = base.get(qn("w:val"))
    for key in bases:
        seen = [key]
        while seen[-1] not in levels and seen[-1] in bases and bases[seen[-1]] not in seen:
            seen.append(bases[seen[-1]])
        if seen[-1] in levels:
            levels[key] = levels[seen[-1]]
    return levels
