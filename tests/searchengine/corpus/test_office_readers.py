"""Slides, sheets and notebooks; plain text under any suffix."""

import json
import re
import zipfile
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import openpyxl
import pptx
import pytest

from searchengine.corpus.documents import Document
from searchengine.corpus.files import Unread, read_corpus
from searchengine.corpus.formats.kinds import FileChoice
from searchengine.errors import CorpusError

BOMB = 65 << 20  # bytes of spaces, which a zip archive packs into 80 kB
OLE = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600)


def own(document: Document) -> dict[str, Any]:
    """The metadata without those of every file, headings as a list of tuples."""
    metadata = {n: v for n, v in document.metadata.items() if n not in ("path", "modified", "size")}
    if "headings" in metadata:
        metadata["headings"] = [tuple(each.values()) for each in metadata["headings"]]
    return metadata


def write_pptx(path: Path, change: Callable[[Any], None]) -> None:
    presentation = pptx.Presentation()
    change(presentation)
    presentation.save(str(path))


def write_xlsx(path: Path, sheets: dict[str, list[list[Any]]]) -> None:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)


# ------------------------------------------------------------------------------- slides and sheets


def test_slides(tmp_path: Path) -> None:
    def fill(presentation: Any) -> None:
        presentation.core_properties.title = "Deck"
        presentation.core_properties.author = "Ann"
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = "Whales"
        slide.placeholders[1].text = "They sleep\vby halves"
        group = slide.shapes.add_group_shape()
        group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "in a group"
        table = slide.shapes.add_table(1, 2, 0, 0, 9, 9).table
        table.cell(0, 0).text, table.cell(0, 1).text = "depth", "300 m"
        slide.notes_slide.notes_text_frame.text = "say it slowly"
        presentation.slides.add_slide(presentation.slide_layouts[6])  # nothing on it
        last = presentation.slides.add_slide(presentation.slide_layouts[6])
        last.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "Owls"

    write_pptx(tmp_path / "a.pptx", fill)
    first, last = read_corpus(tmp_path)
    assert (first.key, first.title) == ("a.pptx#slide=1", "Deck")
    assert first.text == (
        "Whales\n\nThey sleep\nby halves\n\nin a group\n\ndepth\t300 m\n\nsay it slowly"
    )
    assert own(first) == {"author": "Ann", "slide": 1, "headings": [(0, 1, "Whales")]}
    assert (last.key, last.text, own(last)["slide"]) == ("a.pptx#slide=3", "Owls", 3)


def test_sheets(tmp_path: Path) -> None:
    rows = [["animal", "seen", "at"], ["whale\nblue", 2, datetime(2024, 3, 1)], [], [None, 0.5]]
    write_xlsx(
        tmp_path / "a.xlsx", {"Log 1": rows, "empty": [], "다음": [[date(2024, 3, 2), True]]}
    )
    first, last = read_corpus(tmp_path)
    assert (first.key, first.title) == ("a.xlsx#sheet=Log 1", "a")
    assert first.text == "animal\tseen\tat\nwhale blue\t2\t2024-03-01\n\t0.5"
    assert own(first) == {"sheet": "Log 1"}
    assert (last.key, last.text) == ("a.xlsx#sheet=다음", "2024-03-02\tTrue")


def test_a_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Whales\n", "\n", "They sleep."]},
        {"cell_type": "code", "source": "# no heading\nx = 1", "outputs": [{"text": "no"}]},
        {"cell_type": "raw", "source": []},
        {"cell_type": "markdown", "source": "## How"},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    (document,) = read_corpus(tmp_path)
    assert document.title == "Whales"
    assert document.text == "# Whales\n\nThey sleep.\n\n# no heading\nx = 1\n\n## How"
    assert own(document)["headings"] == [(0, 1, "Whales"), (43, 2, "How")]
    assert document.text[43:] == "## How"


# -------------------------------------------------------------------------------------- bad files


def test_bad_files_are_named_and_the_others_read(tmp_path: Path) -> None:
    spaces = b" " * BOMB * 4

    def zipped(name: str, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for member, content in members.items():
                file.writestr(member, content)

    zipped("bomb.pptx", {"ppt/slides/slide1.xml": spaces})
    zipped("bomb.xlsx", {"xl/worksheets/sheet1.xml": spaces})
    zipped("other.pptx", {"a.xml": b"<a/>"})
    zipped("other.xlsx", {"a.xml": b"<a/>"})
    for name in ("locked.pptx", "locked.xlsx"):
        (tmp_path / name).write_bytes(OLE)
    for name in ("empty.pptx", "empty.xlsx", "empty.eml", "empty.ipynb"):
        (tmp_path / name).write_bytes(b"")
    write_pptx(tmp_path / "blank.pptx", lambda presentation: None)
    write_xlsx(tmp_path / "blank.xlsx", {"a": []})
    write_xlsx(tmp_path / "cut.xlsx", {"a": [[1]]})
    whole = (tmp_path / "cut.xlsx").read_bytes()
    (tmp_path / "cut.xlsx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.eml").write_text("a note without a header")
    (tmp_path / "huge.eml").write_bytes(b"Subject: x\n\n" + spaces[:BOMB])
    (tmp_path / "locked.eml").write_bytes(
        b"Subject: x\nContent-Type: application/pkcs7-mime; smime-type=enveloped-data\n\nMIAG"
    )
    (tmp_path / "three.ipynb").write_text('{"nbformat": 3, "worksheets": []}')
    (tmp_path / "cells.ipynb").write_text('{"cells": [{"source": 1}, "x"]}')
    (tmp_path / "z.txt").write_text("still read")
    unread = Unread()
    assert [d.key for d in read_corpus(tmp_path, unread=unread)] == ["z.txt"]
    reasons = dict(
        message.removeprefix(f"{tmp_path}/").split(": ", 1) for message in unread.failed.first
    )
    patterns = {
        "blank.pptx": "has no text; if its slides are pictures, run OCR first",
        "blank.xlsx": "all its sheets are empty",
        "bomb.pptx": r"not a file of the format \.pptx",
        "bomb.xlsx": r"not a file of the format \.xlsx",
        "cells.ipynb": "not a notebook of format 4",
        "cut.xlsx": r"not a file of the format \.xlsx",
        "empty.eml": "not an email: it has neither From, To, Subject",
        "empty.ipynb": "not JSON",
        "empty.pptx": r"not a file of the format \.pptx",
        "empty.xlsx": r"not a file of the format \.xlsx",
        "huge.eml": "a text must be at most 64 MiB long",
        "locked.eml": "encrypted; save the email as it was decrypted",
        "locked.pptx": r"encrypted, or a \.ppt file; remove the password, or save it as \.pptx",
        "locked.xlsx": r"encrypted, or a \.xls file; remove the password, or save it as \.xlsx",
        "other.pptx": "damaged",
        "other.xlsx": "damaged",
        "text.eml": "not an email",
        "three.ipynb": "not a notebook of format 4",
    }
    assert reasons.keys() == patterns.keys()
    for name, pattern in patterns.items():
        assert re.search(pattern, reasons[name]), (name, reasons[name])


# ------------------------------------------------------------------------ suffixes without a reader


def test_a_choice_of_files(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    for name in ("a.foo", "b.FOO", "Makefile", "built/c.txt", "d.csv", "e.log", "f.bar"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "g.foo").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    choice = FileChoice(frozenset({".foo", "Makefile", "csv"}), frozenset({"built", ".log"}))
    unread = Unread()
    documents = read_corpus(tmp_path, unread=unread, choice=choice)
    assert [(d.key, d.text) for d in documents] == [
        ("Makefile", "x\n"), ("a.foo", "x\n"), ("b.FOO", "x\n"), ("d.csv", "x\n"),
    ]  # fmt: skip
    assert unread.kinds == {".bar": 1}
    assert unread.failed.count == 1 and "not a text" in unread.failed.first[0]
    assert [d.key for d in read_corpus(tmp_path / "a.foo", choice=choice)] == ["a.foo"]
    with pytest.raises(CorpusError, match="--as-text reads others as text"):
        read_corpus(tmp_path / "f.bar", choice=choice)
