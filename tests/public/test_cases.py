"""Small inputs that once failed silently, each with relatives of its kind."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pyarrow.parquet
import pytest
from document_files import write_epub
from docx.oxml import parse_xml
from reportlab.pdfgen.canvas import Canvas

from public.conftest import command
from public.judged_sets import REPOSITORY
from searchengine import Encoder, SearchEngine
from searchengine.trainer.errors import ModelError

CASES = REPOSITORY.parent / "shared" / "cases"


def case(name: str) -> Path:
    """The folder of a case; the test is skipped without it."""
    if not (CASES / name).is_dir():
        pytest.skip(f"no case at {CASES / name}")
    return CASES / name


Index = Callable[[Path], SearchEngine]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, starter: Encoder) -> Any:
    """Indexes a file or folder by the command line, once; the collection stays open."""
    opened: dict[Path, SearchEngine] = {}

    def indexed(source: Path) -> SearchEngine:
        if source not in opened:
            path = tmp_path_factory.mktemp("case") / "x.index"
            command("index", source, path, "--encoder", "starter")
            opened[source] = SearchEngine.open(path, starter)
        return opened[source]

    yield indexed
    for engine in opened.values():
        engine.close()


def written(tmp_path: Path, documents: Sequence[dict[str, Any]], starter: Encoder) -> SearchEngine:
    engine = SearchEngine.create(tmp_path / "x.index", starter)
    engine.add(documents)
    return engine


# Documents of one shape → a question for number n.
ALIKE = {
    "Fatal: connection to host db-{n} failed with code 0x{n:04X} at boot": "0x{n:04X}",
    "Espresso machine, model KX-{n}, 15 bar, black, with milk frother": "model KX-{n}",
    "Minutes of the works council, {n} March, room 12, all present": "minutes of {n} March",
    "Contract of lease, version {n}, between the landlord and the tenant": "lease version {n}",
    "ERROR worker {n} stopped: out of memory while sorting the batch": "worker {n}",
}


def test_an_exact_number_comes_first_in_the_default_mode(index: Index) -> None:
    engine = index(case("01-hybrid-part-numbers") / "parts.jsonl")
    first = [engine.search(f"bolt AB-{n}", 1)[0].key for n in range(1005, 1400, 9)]
    assert first == [f"{n}" for n in range(1005, 1400, 9)]


@pytest.mark.parametrize("shape", ALIKE)
def test_documents_that_are_alike_are_told_apart(
    shape: str, tmp_path: Path, starter: Encoder
) -> None:
    documents = [{"_id": f"{n}", "text": shape.format(n=n)} for n in range(100, 220)]
    with written(tmp_path, documents, starter) as engine:
        first = [engine.search(ALIKE[shape].format(n=n), 1)[0].key for n in range(100, 220, 5)]
    assert first == [f"{n}" for n in range(100, 220, 5)]


def test_scores_of_the_default_mode_are_between_0_and_1(index: Index) -> None:
    engine = index(case("01-hybrid-part-numbers") / "parts.jsonl")
    for question in ("hex bolt stainless", "bolt AB-1005", "how do whales sleep"):
        scores = [hit.score for hit in engine.search(question, 400)]
        assert scores == sorted(scores, reverse=True)
        assert 0 <= scores[-1] <= scores[0] <= 1
        least = scores[20]
        cut = engine.search(question, 400, min_score=least)
        assert [hit.score for hit in cut] == [score for score in scores if score >= least]


def test_the_passage_shown_has_the_code_asked_for(index: Index) -> None:
    engine = index(case("02-hybrid-wrong-passage") / "docs")
    for code in (f"E{n}" for n in range(100, 180, 3)):
        hit = engine.search(f"what does error {code} mean", 1)[0]
        assert code in hit.passage and code in hit.snippet, code


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
@pytest.mark.parametrize("question", ["efficiency", "fibrin", "the effect of fibrin"])
def test_ligatures_are_letters(index: Index, question: str, mode: str) -> None:
    engine = index(case("05-ligatures") / "lig.jsonl")
    assert engine.search(question, 3, mode=mode)[0].key == "t"
    assert "eﬃciency" in engine["t"].text  # stored as it was


# Case → key of a document → a pattern of its stored text; "" of one that is not there.
STORED = {
    "07-portuguese-windows-1252": {"carta.txt": "amanhã será às três horas"},
    "09-mail-list-footer": {"mail.eml": "boathouse in Lugano"},
    "10-mail-text-picture-text": {
        "mail.eml": "first picture of the roof.*marmalade cat in the flue"
    },
    "12-mail-odd": {"bom.eml": "otter", "boundary.eml": "clover field", "eightbit.eml": "Köln"},
    "15-pdf-one-damaged-page": {
        f"page3_broken.pdf#page={n}": f"{n * 11}$" for n in (1, 2, 4, 5, 6)
    },
    "17-pptx-shape-without-geometry": {f"shape.pptx#slide={n}": "The" for n in (1, 2, 3, 4)},
    "18-strict-xlsx": {"strict.xlsx#sheet=Sheet": "walrus\tice"},
    "20-pdf-table-cells-glued": {"table.pdf#page=1": r"Nut\s7 0\.20"},
    "21-pdf-form-and-notes": {"form.pdf#page=1": "Marguerite Oyelaran.*harbour master.*tonnage"},
    "25-html-parser": {f"{n}.html": "The walrus sings" for n in ("comment", "endtag", "svg")},
    "26-html-not-shown": {"a.html": r"\AVisible otter\.\s+東京へ行く\s+Area x\+2\Z"},
    "29-front-matter-with-colon": {"a.md": r"\AStorks nest"},
    "38-docx-formulas-comments": {"math_comment.docx": r"A = πr²(?!.*hidden).*demurrage clause"},
}


@pytest.mark.parametrize("name", STORED)
def test_all_that_a_reader_sees_is_read(index: Index, name: str) -> None:
    engine = index(case(name))
    for key, pattern in STORED[name].items():
        assert re.search(pattern, engine[key].text, re.DOTALL), engine[key].text


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("13-null-text-in-first-row/first_null.parquet", ["b", "c"]),
        ("13-null-text-in-first-row/first_null.db", ["2", "3"]),
        ("31-csv-oddities/excel.csv", ["1"]),
    ],
)
def test_records_of_odd_tables(source: str, keys: list[str], tmp_path: Path) -> None:
    path = case(source.partition("/")[0]) / source.partition("/")[2]
    if path.suffix == ".db":  # by the recipe of docs/indexing.md
        words = [sys.executable, "-m", "sqlite_utils", "rows", str(path), "posts", "--nl"]
        rows, path = subprocess.run(words, capture_output=True, check=True), tmp_path / "rows.jsonl"
        path.write_bytes(rows.stdout)
    command("index", path, tmp_path / "x.index", "--encoder", "starter")
    assert [each["_id"] for each in command("list", tmp_path / "x.index")] == keys


def rewrite(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Change the members of an archive; an empty one goes."""
    with zipfile.ZipFile(path) as archive:
        members = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name in filter(members.__getitem__, members):
            archive.writestr(name, members[name])


def strict(name: str, data: bytes) -> bytes:
    names = rb"http://schemas.openxmlformats.org/(?!package)(\w+)/2006/"
    return re.sub(names, rb"http://purl.oclc.org/ooxml/\1/", data)


FRACTION = (
    "<m:oMath><m:r><m:t>x=</m:t></m:r><m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den><m:r>"
    "<m:t>2</m:t></m:r></m:den></m:f><m:sSub><m:e><m:r><m:t>y</m:t></m:r></m:e><m:sub><m:r><m:t>1"
    "</m:t></m:r></m:sub></m:sSub><m:rad><m:deg/><m:e><m:r><m:t>z</m:t></m:r></m:e></m:rad></m:oMath>"
)


def write_odd_files(folder: Path) -> None:
    """Binary relatives of the cases; those of ODD are written beside them."""
    for name in ("formula", "strict"):
        document = docx.Document()
        paragraph = document.add_paragraph("The harbour" if name == "strict" else "So ")
        if name == "formula":
            names = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
            paragraph._p.append(parse_xml(FRACTION.replace("<m:oMath>", f"<m:oMath {names}>")))
            hidden = document.add_paragraph("shown").add_run("hidden")
            hidden.font.hidden = True
        document.save(str(folder / f"{name}.docx"))
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[6])
    slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "A strict slide"
    slides.save(str(folder / "strict.pptx"))
    slides.slides.add_slide(slides.slide_layouts[6])
    slides.save(str(folder / "cut.pptx"))
    shutil.copy(folder / "cut.pptx", folder / "gone.pptx")
    slide.notes_slide.notes_text_frame.text = "said"
    for name, end in (("notes", 200), ("root", 100)):  # within the root, and its first tag
        slides.save(str(folder / f"{name}.pptx"))
        cut = {"ppt/notesSlides/notesSlide1.xml": end}
        rewrite(folder / f"{name}.pptx", lambda part, data, cut=cut: data[: cut.get(part)])
    document.add_comment(document.paragraphs[0].runs, text="remark", author="x", initials="x")
    document.save(str(folder / "cut.docx"))
    parts = ("/slide2.xml", "/comments.xml")
    for name in ("cut.pptx", "cut.docx"):
        rewrite(folder / name, lambda name, data: data[: -50 if name.endswith(parts) else None])
    for name in ("strict.docx", "strict.pptx"):
        rewrite(folder / name, strict)
    book = openpyxl.Workbook()
    for title in ("first", "kept", "lost", "last"):
        book.create_sheet(title).append([title])
    book.remove(book.worksheets[0])
    book.save(folder / "cut.xlsx")
    book.save(folder / "whole.xlsx")
    rewrite(folder / "cut.xlsx", lambda name, data: data[: 300 if "sheet3" in name else None])
    book.worksheets[0].append([99999999, timedelta(hours=30)])
    book.worksheets[0]["A2"].number_format = "yyyy-mm-dd"
    book.save(folder / "times.xlsx")
    write_epub(folder / "cut.epub", "Book", ["<p>One", "<p>Two", "<p>Three"])
    write_missing_parts(folder)
    write_pages(folder)
    times = pyarrow.array([2**40, 0], "timestamp[s]")
    table = pyarrow.table(
        {"text": [None, "seen"], "at": times, "took": pyarrow.array([5, 7], "duration[ms]")}
        | {"seen": [[None], [{"at": times[0], "n": 1}]]}
    )
    pyarrow.parquet.write_table(table.append_column("_id", [["a", "b"]]), folder / "times.parquet")


def write_pages(folder: Path) -> None:
    """PDFs whose first page refers to nothing, or has a few damaged bytes."""
    canvas = Canvas(str(folder / "short.pdf"), pageCompression=1)
    for number in (1, 2):
        canvas.drawString(72, 700, f"page {number}")
        canvas.showPage()
    canvas.save()
    data = (folder / "short.pdf").read_bytes()
    dangling = re.sub(rb"/Contents \d 0", b"/Contents 99 0", data, count=1)
    (folder / "dangling.pdf").write_bytes(dangling)
    at = data.index(b"stream\n") + 9
    (folder / "short.pdf").write_bytes(data[:at] + bytes(20) + data[at + 20 :])


def without(part: str) -> Callable[[str, bytes], bytes]:
    """Empties a member of an archive."""
    return lambda name, data: b"" if part in name else data


def write_missing_parts(folder: Path) -> None:
    """Files of parts, of which one is empty or not there."""
    parts = {
        "cut.epub": "c1.xhtml",
        "gone.epub": "c1.xhtml",
        "gone.xlsx": "sheet3",
        "main.docx": "document.xml",
        "main.xlsx": "xl/workbook.xml",
        "gone.pptx": "slides/slide2",
    }
    write_epub(folder / "gone.epub", "Book", ["<p>One", "<p>Two", "<p>Three"])
    for name in ("gone", "main"):
        shutil.copy(folder / "whole.xlsx", folder / f"{name}.xlsx")
    shutil.copy(folder / "strict.docx", folder / "main.docx")
    for file, part in parts.items():
        rewrite(folder / file, without(part))
    href = b'.xhtml" media'
    rewrite(folder / "gone.epub", lambda _, data: data.replace(href, b'.xhtml#top" media'))
    document = docx.Document()
    for number in range(1000):
        document.add_paragraph(f"Paragraph {number * number}.")
    document.save(str(folder / "torn.docx"))
    with zipfile.ZipFile(folder / "torn.docx") as archive:
        member = archive.getinfo("word/document.xml")
    torn = bytearray((folder / "torn.docx").read_bytes())
    torn[member.header_offset + member.compress_size * 2 // 3] ^= 0xFF
    (folder / "torn.docx").write_bytes(torn)
    document = docx.Document()
    document.add_paragraph("A picture is missing")
    document.save(str(folder / "gone.docx"))
    picture = b'<Relationship Id="rId99" Type="image" Target="NULL"/></Relationships>'
    rewrite(
        folder / "gone.docx",
        lambda name, data: data.replace(b"</Relationships>", picture) if "word/" in name else data,
    )
    (folder / "whole.xlsx").unlink()
    (folder / "utf16.txt").write_bytes("Käse, Brot\r\n".encode("utf-16-le"))


# Name of a file → its content, and the text that is stored; in Markdown also its title.
ODD = {
    "hidden.html": ("a<p hidden>b<p>c", "a\n\nc"),
    "item.html": ("<ul><li style='display:none'>a<li>b</ul><div hidden><p>c</div>d", "b\n\nd"),
    "void.html": ("a<br hidden>b<input hidden>c", "a\nbc"),
    "comment.html": ("a<!-- b --!> c<!--> d<![if x]> e", "a c d e"),
    "unended.html": ("a<p>b<p class='x", "a\n\nb"),
    "script.html": ("a<script>b</script\tx='y'>c<style>d</style >e", "ace"),
    "picture.html": ("a<svg><g><path d=''><text>b</text><table><tr><td>c</table>", "a\n\nc"),
    "ruby.html": ("<ruby>東<rt>とう</ruby>へ<dialog>b</dialog>", "東へ"),
    "comment.md": ("<!--\n# Not\n-->\n\n# Owls\n\nhunt", "<!--\n# Not\n-->\n\n# Owls\n\nhunt"),
    "colon.md": ("---\ntitle: Kiwi: a bird\nyear 5\n---\nIt runs.", "It runs."),
    "sep.csv": ("sep=|\nid|text\n1|bars, commas\n", "bars, commas"),
    "commas.csv": ("id,text\n1,more commas,,\n", "more commas"),
    "spaces.csv": ('id, text\n1, "a comma, in quotes"\n', "a comma, in quotes"),
    "mac.csv": ("id,text\r1,a Mac\r2,of old\r", "a Mac"),
    "blank.csv": ("\n\nid;text\n1;blank, then semicolons\n", "blank, then semicolons"),
    "old.html": ("a<!--[if !IE]><!--> b <!--<![endif]--><!--[if IE]> c <![endif]-->d", "a b d"),
    "open.html": ("a<script>if (b</script c>d<!-- e", "ad"),
    "endless.html": ("a<style>p{}</style><script>b</scr<p>c", "a"),
    "quotes.md": ("---\ntitle: 'Owls'\ntags: [a, b]\nx: y: z\nn: 7\r\n---\nhoot", "hoot"),
    "odd.md": (
        "---\nday: 2024-02-30\nn: .inf\n---\n# Owls <!-- ? -->",
        "# Owls <!-- ? -->",
    ),
    "blank.eml": (
        "Subject: s\nContent-Type: multipart/alternative; boundary=b\n\n--b\nContent-Type: "
        "text/plain; charset=utf-8\n\n\u200b\xa0\n--b\nContent-Type: text/html\n\n<p>HTML\n--b--\n",
        "HTML",
    ),
    "formula.docx": (None, "So x=a+b2y₁z\n\nshown"),
    "strict.docx": (None, "The harbour"),
    "strict.pptx#slide=1": (None, "A strict slide"),
    "cut.pptx#slide=1": (None, "A strict slide"),
    "gone.pptx#slide=1": (None, "A strict slide"),
    "cut.docx": (None, "The harbour"),
    "cut.xlsx#sheet=last": (None, "last"),
    "cut.epub#text/c2.xhtml": (None, "Three"),
    "gone.epub#text/c2.xhtml": (None, "Three"),
    "gone.docx": (None, "A picture is missing"),
    "gone.xlsx#sheet=last": (None, "last"),
    "times.parquet#b": (None, "seen"),
    "utf16.txt": (None, "Käse, Brot\r\n"),
    "cut.txt": ("Größe, Maß".encode()[:-1], "Größe, Ma\ufffd"),
    "notes.pptx#slide=1": (None, "A strict slide"),
    "root.pptx#slide=1": (None, "A strict slide"),
    "times.xlsx#sheet=first": (None, "first\n#VALUE!\t30:00:00"),
    "dangling.pdf#page=2": (None, "page 2"),
    "short.pdf#page=2": (None, "page 2"),
    "null.ipynb": ('{"cells": [{"source": null}, {"source": "kept"}]}', "kept"),
    "cut.eml": (
        "Subject: s\nContent-Transfer-Encoding: base64\n\nVGhlIG90dGVyIHNsZWVwc",
        "The otter sleep",
    ),
    "odd.eml": ("Subject: s\nContent-Transfer-Encoding: base64\n\nVGhl\0IG90dGVy", "The otter"),
    "parts.eml": ("Subject: s\nContent-Type: multipart/mixed; boundary=b\n\n--c\n\nsea", ""),
    # Read in another encoding than UTF-8, of which a byte is broken:
    "cp932.txt": ("①㈱山田の会社".encode("cp932"), "①㈱山田の会社"),
    "mac.txt": ("Été à la plage, où".encode("mac-roman"), "Été à la plage, où"),
    "broken.txt": (
        "Größe, schöne Straße, Übermut".encode() + b"\xff.",
        "Größe, schöne Straße, Übermut\ufffd.",
    ),
    "korean.html": ("<meta charset=euc-kr><p>뷁 고래".encode("cp949"), "뷁 고래"),
    # As browsers read it:
    "empty.html": ("<html><head><title/><script src='x'/></head><p>shown", "shown"),
    "letters.html": ("Fish &amp chips &euro;5&nbsp;a &unknown;", "Fish & chips €5 a &unknown;"),
    "cells.html": ("<table><tr><th>a<th>b<tr><td>1<td>2</table>c", "a b\n1 2\n\nc"),
    "raw.html": ("<textarea>a<b>c</textarea><style>p{content:'</p>'}</style>d", "a<b>cd"),
    "styles.html": ("<p style='display:nonee'>a<p style='DISPLAY : none'>b", "a"),
    "choice.html": ("<details><summary>a</summary>b</details><select><option>c", "a\n\nb\n\nc"),
    "inside.html": ("<p>a<div>b</div></p><h1>c <h2>d", "a\n\nb\n\nc\n\nd"),
    "template.html": ("a<template><p>b<template>c</template>d</template>e<title>t", "ae"),
    "crlf.md": ("---\r\ntitle: Owls\r\n---\r\n# x\r\n\r\ny", "# x\r\n\r\ny"),
    "blanks.csv": ("\ufeffid;text\n1;ends with blanks; \n", "ends with blanks"),
}
LOST = (
    *("sheet3.xml cannot", "sheet3.xml is missing", "cut.epub: text/c1", "gone.epub: text/c1"),
    *("cut.pptx: slide 2 is", "gone.pptx: slide 2 is", "comments.xml", "quotes.md: the front"),
    *(
        "notes.pptx: ppt/notesSlides/notesSlide1.xml cannot",
        "root.pptx: ppt/notes",
        "dangling.pdf: page 1",
        "short.pdf: page 1",
        "cut.txt: bytes that",
    ),
    *("cut.eml: a text in base64 is cut", "odd.eml: a text has", "parts.eml: the boundary between"),
    *("main.docx: damaged: word/document.xml is missing", "torn.docx: damaged: word/document.xml"),
    "main.xlsx: damaged: xl/workbook.xml",
)
DATES = {
    "2024-03-05 10:00:00 +0900": "2024-03-05T10:00:00+09:00",
    "2024/3/5": "2024-03-05",
    "05.03.2024": "2024-03-05",
    "March 5th, 2024": "2024-03-05",
    "Mar 5 2024": "2024-03-05",
    "2024-03-05T10:00Z": "2024-03-05T10:00:00+00:00",
    "Tue, 5 Mar 2024 10:00 +0000": "2024-03-05T10:00:00+00:00",
    "5 March 2024 or so": "5 March 2024 or so",
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `index` says of the files of ODD and DATES, and the collection."""
    folder = tmp_path_factory.mktemp("odd") / "files"
    folder.mkdir()
    write_odd_files(folder)
    for name, (content, _) in ODD.items():
        if content is not None:
            data = content if isinstance(content, bytes) else content.encode()
            (folder / name).write_bytes(data)
    for number, date in enumerate(DATES):
        (folder / f"{number}.md").write_text(f"---\ndate: {date}\n---\nx")
    os.utime(folder / "ruby.html", (2**40, 2**40))
    (folder / "ignored").mkdir()
    for name, content in {
        ".gitignore": "*.tmp.md\n/ignored/",
        "a.tmp.md": "x",
        "ignored/b.md": "x",
    }.items():
        (folder / name).write_text(content)
    said = command("index", folder, folder.parent / "x.index", "--encoder", "starter")
    with SearchEngine.open(folder.parent / "x.index") as engine:
        yield said, engine


@pytest.mark.parametrize("name", ODD)
def test_relatives_of_the_cases_are_read(odd: Any, name: str) -> None:
    key = f"{name}#1" if name.endswith(".csv") else name
    assert odd[1][key].text == ODD[name][1]


def test_what_is_read_beside_the_texts(odd: Any) -> None:
    said, engine = odd
    assert [engine[f"{n}.md"].metadata["date"] for n in range(len(DATES))] == [*DATES.values()]
    assert (engine["comment.md"].title, engine["colon.md"].title) == ("Owls", "Kiwi: a bird")
    times = engine["times.parquet#b"].metadata
    assert (times["took"], times["seen"][0]["n"]) == (0.007, 1)
    assert (engine["quotes.md"].title, engine["gone.docx"].title) == ("Owls", "gone")
    metadata = engine["quotes.md"].metadata | engine["odd.md"].metadata
    assert [metadata[name] for name in ("tags", "x", "day")] == [["a", "b"], "y: z", "2024-02-30"]
    assert (engine["quotes.md"].metadata["n"], engine["odd.md"].title) == (7, "Owls")
    assert engine["ruby.html"].metadata.get("modified", "2024") < "9999"
    assert "tmp.md" not in str(engine.keys()) and "ignored/b.md" not in engine
    assert "torn.docx" not in engine
    lost = " ".join(said["unreadable"]["first"])
    assert said["unreadable"]["count"] == 22
    assert [part for part in LOST if lost.count(part) != 1] == []
    for name in ("cut", "gone"):
        assert "sheet3" in engine[f"{name}.xlsx#sheet=kept"].metadata["unreadable"][0]
    assert engine.count("exists(unreadable)") == 19
    assert "19 documents" in command("info", engine.stats().path)["unreadable"]


def test_files_that_gitignore_names_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    rules = {"a/.gitignore": "*.md\n!b/keep.md", "a/b/.gitignore": "[\n*.txt\n!y.md"}
    files = ("a/x.md", "a/b/keep.md", "a/b/x.txt", "a/b/y.md", "a/x.txt")
    for name, content in {**rules, **dict.fromkeys(files, "x")}.items():
        (tmp_path / name).write_text(content)
    for option, keys in ((), [*files[1:5:2], files[4]]), (("--no-gitignore",), sorted(files)):
        command("index", tmp_path / "a", tmp_path / "x", "--encoder", "starter", "--prune", *option)
        found = [f"a/{each['_id']}" for each in command("list", tmp_path / "x")]
        assert sorted(found) == keys


def test_a_closed_standard_input_is_named(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "searchengine", "index", "-", str(tmp_path / "x")]
    closed = shlex.join(words) + " <&-"
    said = subprocess.run(closed, shell=True, capture_output=True, text=True, cwd=REPOSITORY)
    assert said.returncode and "standard input is closed" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    model = case("24-model-without-tokenizer") / "model"
    with pytest.raises(ModelError, match=r"has no tokenizer .*: the model folder is incomplete"):
        SearchEngine.create(tmp_path / "x.index", model)
    assert not (tmp_path / "x.index").exists()
