"""PDF files, a page at a time; PDFium reads them."""

import re
from collections.abc import Iterator
from contextlib import closing
from ctypes import c_ushort
from functools import partial
from io import BytesIO
from pathlib import Path

import pypdfium2
import pypdfium2.raw as raw

from searchengine.corpus.contents import Parts, Text, attempt, bad
from searchengine.errors import CorpusError

_BLANK = 80  # bytes of a page's content that shows nothing; of "page 1" it has 97
_SILENT = (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP)
_SOFT = "\xad"  # a hyphen like others, once it is printed
# A word that a line break divides, and other marks of that by PDFium.
_DIVIDED = re.compile("[\x02\ufffe\xad]\r\n|[\x02\ufffe]")
_FILLED = (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
_NO_TITLES = ("untitled", "microsoft word - ", "(anonymous)", "(unspecified)")
_CONTENTS = re.compile(rb"/Contents[\s\[]*((?:\d+ 0 R\s*)+)")
_STREAM = rb"\n%b 0 obj\b.*?>>\s*stream\r?\n(.*?)\r?\nendstream"


def read_pdf(path: Path) -> Parts:
    """The pages, each with its number.

    Words divided at the end of a line are joined. Raises CorpusError.
    """
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise bad(path, "encrypted; remove the password first") from error
        raise bad(path, f"not a PDF file, or damaged ({error})") from error
    with document:
        document.init_forms()
        title = " ".join(document.get_metadata_value("Title").split())
        title = "" if title.lower().startswith(_NO_TITLES) else title

        def page(number: int) -> Parts:
            text = _text(document, number - 1)
            yield Text(text, title, {"page": number}, fragment=f"page={number}")

        for number in range(1, len(document) + 1):
            yield from attempt(f"page {number}", page(number))


def _text(document: pypdfium2.PdfDocument, index: int) -> str:
    """The text of a page, then the values of its forms and its notes."""
    with closing(document[index]) as page, closing(page.get_textpage()) as content:
        if not raw.FPDFPage_CountObjects(page) and _is_damaged(document, index):
            raise CorpusError("nothing of its content; is it damaged?")
        text, apart = content.get_text_bounded(), content.get_text_range()
        # The first joins cells of tables; the second has text beside the page, but no letter beyond
        # U+FFFF.
        if "".join(text.split()) == "".join(apart.split()):
            text = apart
        text = _DIVIDED.sub("", text).replace(_SOFT, "-").replace("\r\n", "\n").replace("\0", "")
        pieces = [text.strip(), *_notes(document, page)]
        return "\n".join(filter(None, dict.fromkeys(pieces)))


def _is_damaged(document: pypdfium2.PdfDocument, index: int) -> bool:
    """Whether a page of which PDFium reads nothing is not blank."""
    written = BytesIO()
    with closing(pypdfium2.PdfDocument.new()) as copy:
        copy.import_pages(document, [index])
        copy.save(written)
    data = written.getvalue()
    if (listed := _CONTENTS.search(data)) is None:  # it is blank, or refers to what is not there
        return b"/Font" in data or b"/XObject" in data
    numbers = re.findall(rb"(\d+) 0 R", listed[1])
    streams = [re.search(_STREAM % number, data, re.DOTALL) for number in numbers]
    return any(stream is None or len(stream[1]) > _BLANK for stream in streams)


def _notes(document: pypdfium2.PdfDocument, page: pypdfium2.PdfPage) -> Iterator[str]:
    """What was filled into the forms of a page and written on it."""
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        if note := raw.FPDFPage_GetAnnot(page, index):
            hidden = raw.FPDFAnnot_GetFlags(note) & raw.FPDF_ANNOT_FLAG_HIDDEN
            subtype = raw.FPDFAnnot_GetSubtype(note)
            if subtype == raw.FPDF_ANNOT_WIDGET and document.formenv:
                read = partial(raw.FPDFAnnot_GetFormFieldValue, document.formenv, note)
                hidden |= raw.FPDFAnnot_GetFormFieldType(document.formenv, note) not in _FILLED
            else:
                read = partial(raw.FPDFAnnot_GetStringValue, note, b"Contents")
                hidden |= subtype in _SILENT
            if not hidden:
                buffer = (c_ushort * (read(None, 0) // 2))()
                read(buffer, 2 * len(buffer))
                yield "\n".join(bytes(buffer).decode("utf-16-le", "ignore").strip("\0").split("\r"))
            raw.FPDFPage_CloseAnnot(note)
