"""Files that break parsers, or take all memory or time: named with the reason; the rest is read."""

import io
import os
import re
import zipfile
from pathlib import Path

import openpyxl
import pptx
import pytest
from document_files import write_epub
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen.canvas import Canvas

from searchengine.corpus.files import Unread, read_corpus
from searchengine.corpus.formats import KINDS, Kind, Parser
from searchengine.errors import UnreadableFile

GOOD = "<h1>Good</h1><p>still read</p>"
BOMB = 65 << 20  # bytes of spaces, which a zip archive packs into 80 kB


def zipped(members: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return written.getvalue()


def pdf(path: Path, pages: int, **options: object) -> None:
    canvas = Canvas(str(path), **options)
    for i in range(pages):
        canvas.drawString(72, 700, f"page {i + 1}")
        canvas.showPage()
    if not pages:
        canvas.showPage()  # nothing on it
    canvas.save()


def outcome(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The keys that were read, and file → reason of those that were not."""
    unread = Unread()
    keys = [document.key for document in read_corpus(folder, unread=unread)]
    reasons = {}
    for message in unread.failed.first:
        file, _, reason = message.removeprefix(f"{folder}/").partition(": ")
        reasons[file] = reason
    return keys, reasons


def bad_files() -> dict[str, tuple[bytes, str]]:
    """Name of a file → its content, and a pattern of the reason for which it is refused."""
    no_office = r"not a file of the format \.{0}, or damaged"
    ole, spaces = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600), b" " * BOMB
    main = {"docx": "word/document.xml", "pptx": "ppt/slides/slide1.xml", "xlsx": "xl/sheet1.xml"}
    files = {
        "deep.json": (b"[" * 200_000, "not JSON"),
        "empty.epub": (b"", "not an EPUB file"),
        "image.txt": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not UTF-8|not a text"),
        "page.pdf": (GOOD.encode(), "not a PDF file, or damaged"),
        "table.parquet": (b"PAR1" + bytes(40) + b"PAR1", "not a Parquet file, or damaged"),
        "empty.eml": (b"", "not an email: it has neither From, To, Subject"),
        "text.eml": (b"a note without a header", "not an email"),
        "huge.eml": (b"Subject: x\n\n" + spaces, "a text must be at most 64 MiB long"),
        "locked.eml": (
            b"Subject: x\nContent-Type: application/pkcs7-mime; smime-type=enveloped-data\n\nMI",
            "encrypted; save the email as it was decrypted",
        ),
        "empty.ipynb": (b"", "not JSON"),
        "three.ipynb": (b'{"nbformat": 3, "worksheets": []}', "not a notebook of format 4"),
        "cells.ipynb": (b'{"cells": [{"source": 1}, "x"]}', "not a notebook of format 4"),
    }
    for kind, name in main.items():
        files[f"bomb.{kind}"] = zipped({name: spaces * 4}), no_office.format(kind)
        files[f"other.{kind}"] = zipped({"a.xml": b"<a/>"}), no_office.format(kind)
        files[f"empty.{kind}"] = b"", no_office.format(kind)
        files[f"locked.{kind}"] = ole, f"encrypted, or a .{kind[:-1]} file; .* save it as .{kind}"
    return files


def test_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "z.html").write_text(GOOD)
    (tmp_path / "deep.html").write_text("<div>" * 200_000 + "deep but flat")
    write_epub(tmp_path / "bomb.epub", "Bomb", [" " * BOMB])
    pdf(tmp_path / "locked.pdf", 1, encrypt=StandardEncryption("secret"))
    pdf(tmp_path / "scan.pdf", 0)
    pptx.Presentation().save(str(tmp_path / "blank.pptx"))
    openpyxl.Workbook().save(tmp_path / "blank.xlsx")
    patterns = {
        "bomb.epub": "has no text",
        "locked.pdf": "encrypted; remove the password first",
        "scan.pdf": "has no text; if it shows pictures, run OCR first",
        "blank.pptx": "has no text; if it shows pictures",
        "blank.xlsx": "has no text",
    }
    for name, (content, pattern) in bad_files().items():
        (tmp_path / name).write_bytes(content)
        patterns[name] = pattern
    keys, reasons = outcome(tmp_path)
    assert keys == ["deep.html", "z.html"]
    assert reasons.keys() == patterns.keys()
    for name, pattern in patterns.items():
        assert re.search(pattern, reasons[name]), (name, reasons[name])


@pytest.mark.parametrize("pages", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_pages(tmp_path: Path, pages: int) -> None:
    pdf(tmp_path / "long.pdf", pages)
    texts = [(d.key, d.text, d.metadata["page"]) for d in read_corpus(tmp_path)]
    assert texts == [(f"long.pdf#page={i}", f"page {i}", i) for i in range(1, pages + 1)]


def test_links_devices_and_collections_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.html").write_text(GOOD)
    (folder / "deep" / "up").symlink_to(folder)
    (folder / "gone.md").symlink_to(tmp_path / "nowhere.md")
    (folder / "linked.md").symlink_to(folder / "b.txt")
    (folder / "b.txt").write_text("b")
    os.mkfifo(folder / "pipe.txt")
    (folder / "c.index").mkdir()
    (folder / "c.index" / "documents.db").write_bytes(b"")
    (folder / "c.index" / "manifest.json").write_text('{"text": "no document"}')
    (folder / "data" / "documents.db").mkdir(parents=True)  # a folder of that name is read
    (folder / "data" / "documents.db" / "d.txt").write_text("d")
    unread = Unread()
    keys = [document.key for document in read_corpus(folder, unread=unread)]
    assert keys == ["b.txt", "data/documents.db/d.txt", "deep/a.html", "linked.md"]
    assert unread.kinds == {"broken link or device": 2, "linked folder": 1}
    assert unread.failed.count == 0


# ------------------------------------------------------------------------------------------- limits

READERS = """
import os, signal
from searchengine.corpus.contents import Text

def good(path):
    yield Text("good")

def pid(path):
    yield Text(str(os.getpid()))

def greedy(path):
    yield Text("first")
    held = [bytearray(1 << 20) for _ in range(4096)]

def endless(path):
    yield Text("first")
    while True:
        pass

def stuck(path):
    while True:
        pass
    yield

def crashing(path):
    yield Text("first")
    os.kill(os.getpid(), signal.SIGSEGV)

def loud(path):
    print("noise")
    raise ValueError("a library\\nfailed")
"""


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Kind]:
    (tmp_path / "hostile_readers.py").write_text(READERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = re.findall(r"def (\w+)", READERS)
    return {name: Kind(name, f"hostile_readers:{name}") for name in names}


@pytest.mark.parametrize(
    ("name", "read", "reason"),
    [
        ("greedy", 1, "needs too much memory to be read"),
        ("stuck", 0, r"its reader ended \(SIGPROF\)"),
        ("endless", 1, r"its reader ended \(SIGPROF\): .* MiB of memory or 1 s of processor time"),
        ("crashing", 1, r"its reader ended \(SIGSEGV\): the file is damaged, or needs more than"),
        ("loud", 0, r"cannot be read; is it damaged\? \(ValueError: a library failed\)"),
    ],
)
def test_a_reader_that_fails(
    kinds: dict[str, Kind],
    tmp_path: Path,
    name: str,
    read: int,
    reason: str,
) -> None:
    path = tmp_path / "a.pdf"
    limits = {"seconds": 1} if name in ("stuck", "endless") else {"memory": 300 << 20}
    with Parser(**limits) as parser:
        texts = []
        with pytest.raises(UnreadableFile, match=f"^{path}: {reason}"):
            for part in parser.read(path, kinds[name]):
                texts.append(part.text)
        assert texts == ["first"] * read
        assert [part.text for part in parser.read(path, kinds["good"])] == ["good"]


def test_what_follows_a_crash_is_named(
    kinds: dict[str, Kind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, ".pdf", kinds["crashing"])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.pdf").write_text("")
    unread = Unread()
    (document,) = read_corpus(tmp_path / "notes", unread=unread)
    (lost,) = document.metadata["unreadable"]
    assert document.text == "first" and "its reader ended (SIGSEGV)" in lost
    assert unread.failed.first == [f"{tmp_path}/notes/a.pdf: {lost}"]


def test_a_malformed_record_leaves_nothing_for_the_next_file(tmp_path: Path) -> None:
    """What the process still answers about a file must not be taken for the next one."""
    (tmp_path / "a.json").write_text('[{"_id": 1, "text": 5}, {"_id": 2, "text": "lost"}]')
    (tmp_path / "b.json").write_text('[{"_id": 3, "text": "third"}]')
    (tmp_path / "c.html").write_text(GOOD)
    keys, reasons = outcome(tmp_path)
    assert keys == ["b.json#3", "c.html"]
    assert reasons == {
        "a.json:1": "text must be text, got int; the rest of the file was left out, --skip-bad "
        "leaves out such records only"
    }
