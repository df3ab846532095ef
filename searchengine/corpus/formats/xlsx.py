"""Excel files (.xlsx), a sheet at a time; openpyxl reads them."""

import warnings
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import openpyxl

from searchengine.corpus.formats.archives import check_size, opened, refuse_encrypted
from searchengine.corpus.formats.kinds import Text
from searchengine.corpus.text_files import LONGEST, bad, too_long


def read_xlsx(path: Path) -> Iterator[Text]:
    """The sheets that have cells: a line for each row, tabs between its cells.

    Of a formula it is the value that Excel has stored. Raises CorpusError, also if all sheets are
    empty.
    """
    refuse_encrypted(path, ".xls", ".xlsx")
    with opened(path, "an .xlsx file") as archive:
        check_size(archive, path, (".xml", ".rels"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and extensions
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    properties = book.properties
    fields = {"author": properties.creator} if properties.creator != "openpyxl" else {}
    empty = True
    for sheet in book.worksheets:
        if text := _text(sheet, path):
            empty = False
            metadata = {name: value for name, value in fields.items() if value}
            metadata["sheet"] = sheet.title
            yield Text(text, properties.title or "", metadata, (), f"sheet={sheet.title}")
    if empty:
        raise bad(path, "all its sheets are empty")


def _text(sheet: Any, path: Path) -> str:
    sheet.reset_dimensions()  # a file may declare more rows and columns than it has
    lines: list[str] = []
    length = 0
    for row in sheet.iter_rows(values_only=True):
        cells = [_shown(value) for value in row]
        if any(cells):
            lines.append("\t".join(cells).rstrip("\t"))
            length += len(lines[-1]) + 1
            if length > LONGEST:
                raise bad(path, too_long("text"))
    return "\n".join(lines)


def _shown(value: Any) -> str:
    """A cell on one line."""
    if value is None:
        return ""
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        value = value.date()
    return value.isoformat() if isinstance(value, date) else " ".join(str(value).split())
