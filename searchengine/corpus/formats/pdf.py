"""PDF files, a page at a time; PDFium reads them."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pypdfium2

from searchengine.corpus.formats.kinds import LONGEST_HEADING, Heading, Text, enclosing
from searchengine.corpus.text_files import bad

_HYPHENS = ("\x02", "\ufffe")  # PDFium's mark of a word that a line break divides
_NO_TITLES = ("untitled", "microsoft word - ", "(anonymous)", "(unspecified)")


def read_pdf(path: Path) -> Iterator[Text]:
    """The pages that have text, each with its number and the headings of the outline.

    Words divided at the end of a line are joined. Raises CorpusError, also if no page has text.
    """
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise bad(path, "encrypted; remove the password first") from error
        raise bad(path, f"not a PDF file, or damaged ({error})") from error
    with document:
        title = _title(document)
        outline = _Outline(document)
        empty = True
        for number in range(1, len(document) + 1):
            text = _text(document, number - 1, path)
            headings = outline.of_page(number - 1, text)
            if text:
                empty = False
                yield Text(text, title, {"page": number}, headings, f"page={number}")
        if empty:
            raise bad(path, "has no text; if it is a scan, run OCR first, for example ocrmypdf")


def _text(document: pypdfium2.PdfDocument, index: int, path: Path) -> str:
    try:
        page = document[index]
        text = page.get_textpage()
        result = str(text.get_text_bounded())
        text.close()
        page.close()
    except pypdfium2.PdfiumError as error:
        raise bad(path, f"page {index + 1} is damaged ({error})") from error
    for mark in _HYPHENS:
        result = result.replace(f"{mark}\r\n", "").replace(mark, "")
    return result.replace("\r\n", "\n").replace("\0", "").strip()


def _title(document: pypdfium2.PdfDocument) -> str:
    """The title that the file names, if it is one."""
    title = " ".join(document.get_metadata_value("Title").split())
    return "" if title.lower().startswith(_NO_TITLES) else title


class _Outline:
    """The outline of a file, read page by page."""

    def __init__(self, document: pypdfium2.PdfDocument) -> None:
        entries: list[tuple[int, int, str]] = []  # page, level, title
        for bookmark in document.get_toc():
            place = bookmark.get_dest()
            page = None if place is None else place.get_index()
            title = " ".join(bookmark.get_title().split())[:LONGEST_HEADING]
            if page is not None and title:
                entries.append((page, bookmark.level + 1, title))
        self._entries = deque(sorted(entries, key=lambda entry: entry[0]))
        self._open: list[Heading] = []  # the headings that the page before ends under

    def of_page(self, page: int, text: str) -> tuple[Heading, ...]:
        """The headings of a page, those first that it begins under. Pages come in order."""
        headings = [Heading(0, heading.level, heading.title) for heading in self._open]
        after = 0
        while self._entries and self._entries[0][0] <= page:
            _, level, title = self._entries.popleft()
            after = max(after, text.find(title, after))
            headings.append(Heading(after, level, title))
        self._open = enclosing(headings)
        return tuple(headings)
