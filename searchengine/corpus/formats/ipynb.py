"""Jupyter notebooks (.ipynb): the sources of the cells, without their results."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from searchengine.corpus.formats.kinds import Heading, Text
from searchengine.corpus.formats.markdown import headings_in
from searchengine.corpus.text_files import bad, decode, json_object, read_bytes


def read_ipynb(path: Path) -> Iterator[Text]:
    """The text of a notebook, a blank line between its cells; headings are those in Markdown.

    The title is a heading of the first level that begins the text. Raises CorpusError.
    """
    text, _ = decode(read_bytes(path), path)
    cells = json_object(text, str(path)).get("cells")
    if not isinstance(cells, list):
        raise bad(path, "not a notebook of format 4 (no list 'cells'); open and save it in Jupyter")
    pieces: list[str] = []
    headings: list[Heading] = []
    length = 0
    for cell in cells:
        source = cell.get("source", "") if isinstance(cell, dict) else None
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise bad(path, "not a notebook of format 4 (a cell without a source)")
        piece = source.strip()
        if not piece:
            continue
        start = length + (2 if pieces else 0)
        if cell.get("cell_type") == "markdown":
            headings += [replace(h, start=h.start + start) for h in headings_in(piece)]
        pieces.append(piece)
        length = start + len(piece)
    begins = bool(headings) and (headings[0].start, headings[0].level) == (0, 1)
    yield Text("\n\n".join(pieces), headings[0].title if begins else "", {}, tuple(headings))
