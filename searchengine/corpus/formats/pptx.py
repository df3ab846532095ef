"""PowerPoint files (.pptx), a slide at a time; python-pptx reads them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pptx
from pptx.enum.shapes import MSO_SHAPE_TYPE

from searchengine.corpus.formats.archives import check_size, opened, refuse_encrypted
from searchengine.corpus.formats.kinds import LONGEST_HEADING, Heading, Text
from searchengine.corpus.text_files import bad


def read_pptx(path: Path) -> Iterator[Text]:
    """The slides that have text, each with its number; its title is a heading, notes come last.

    Raises CorpusError, also if no slide has text.
    """
    refuse_encrypted(path, ".ppt", ".pptx")
    with opened(path, "a .pptx file") as archive:
        check_size(archive, path, (".xml", ".rels"))
    presentation = pptx.Presentation(str(path))
    properties = presentation.core_properties
    fields = {"author": properties.author} if properties.author else {}
    empty = True
    for number, slide in enumerate(presentation.slides, start=1):
        title = slide.shapes.title
        head = "" if title is None else _plain(title.text_frame.text)
        others = (shape for shape in slide.shapes if title is None or shape != title)
        pieces = [head, *_texts(others)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            pieces.append(_plain(notes.text))
        text = "\n\n".join(filter(None, pieces))
        if text:
            empty = False
            name = " ".join(head.split())[:LONGEST_HEADING]
            headings = (Heading(0, 1, name),) if name else ()
            metadata = fields | {"slide": number}
            yield Text(text, properties.title or "", metadata, headings, f"slide={number}")
    if empty:
        raise bad(path, "has no text; if its slides are pictures, run OCR first")


def _texts(shapes: Iterable[Any]) -> Iterator[str]:
    """The texts of shapes, in their order: text boxes, tables (a line for each row) and groups."""
    for shape in shapes:
        if shape.shape_type == MSO_SHAPE_TYPE.GROUP:
            yield from _texts(shape.shapes)
        elif shape.has_text_frame:
            yield _plain(shape.text_frame.text)
        elif getattr(shape, "has_table", False):
            rows = ([_plain(cell.text) for cell in row.cells] for row in shape.table.rows)
            yield "\n".join("\t".join(cells) for cells in rows if any(cells))


def _plain(text: str) -> str:
    return text.replace("\v", "\n").strip()  # \v: a line break within a paragraph
