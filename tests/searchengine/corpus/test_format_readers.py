"""What each reader makes of a file: text, title, metadata, keys."""

import decimal
import gzip
import json
import os
import re
import sys
from datetime import date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pyarrow
import pyarrow.parquet
import pytest
from document_files import write_epub
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part as PackagePart
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from reportlab.pdfgen.canvas import Canvas

from searchengine.corpus.contents import Columns, Text, read_text
from searchengine.corpus.documents import Document
from searchengine.corpus.files import Unread, read_corpus
from searchengine.corpus.formats import KINDS
from searchengine.errors import CorpusError
from searchengine.trainer.errors import install_line

MARKUP = "http://schemas.openxmlformats.org/markup-compatibility/2006"
KOREAN = "고래는 뇌의 절반씩 번갈아 가며 잠을 잔다."


def read(path: Path, content: str | bytes) -> Document:
    """The single document of a file with this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    (document,) = read_corpus(path)
    return document


def part(path: Path, content: str | bytes) -> tuple[Text, list[str]]:
    """What the reader makes of a file with this content, without a process of its own."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    module, _, function = KINDS[path.suffix].reader.partition(":")
    result, *lost = getattr(import_module(module), function)(path) if module else read_text(path)
    return result, lost


def own(document: Document) -> dict[str, Any]:
    """The metadata without those of every file."""
    metadata = dict(document.metadata)
    for name in ("path", "modified", "size"):
        metadata.pop(name)
    return metadata


# ----------------------------------------------------------------------------------- files of texts


def test_a_file_is_described_by_its_path_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "a_b.txt"
    file.write_text("whales")
    os.utime(file, (0, 1_600_000_000))
    (document,) = read_corpus(tmp_path, key_prefix="x/")
    assert (document.key, document.title, document.file) == (
        "x/deep/a_b.txt",
        "a b",
        "deep/a_b.txt",
    )
    assert document.metadata == {
        "path": "deep/a_b.txt",
        "modified": "2020-09-13T12:26:40+00:00",
        "size": 6,
    }


def test_html(tmp_path: Path) -> None:
    page = (
        "<!doctype html><html lang=en><head><title>Of\n whales &amp; owls</title>"
        "<style>p{}</style></head><body>"
        "<h1>Wh<b>ales</b></h1><p>They sl<i>ee</i>p.<p>Half\n a  brain.<br>Yes"
        "<script>if (a < b) document.write('<p>no</p>')</script><svg><title>no</title></svg>"
        "<ul><li>one<li>two</ul><h3></h3><h2>Owls</h2><pre>a\n  b</pre>"
        "<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>End"
    )
    document = read(tmp_path / "a.html", page)
    assert document.text == (
        "Whales\n\nThey sleep.\n\nHalf a brain.\nYes\n\none\ntwo\n\nOwls\n\na\n  b\n\n1 2\n3\n\nEnd"
    )
    assert document.title == "Of whales & owls"
    assert own(document) == {}


def test_markdown(tmp_path: Path) -> None:
    text = (
        "# Whales\n\nText\n\nOwls\n====\n\n```\n# code\n```\n\n"
        "> ## Quoted\n\n    # code\n### *Deep* one #\n"
    )
    document = read(tmp_path / "my-notes.md", text)
    assert (document.text, document.title) == (text, "Whales")
    for text, title in (
        ("text\n# Later", ""),
        ("\n \n  # A  `C` # #\n", "A `C` #"),
        ("    # code", ""),
        ("```\n# code\n```", ""),
        ("Owls\r\n====\r\nhunt", "Owls"),
        ("## Later\n# Late", ""),
        ("#\n# Late", ""),
        ("#tag", ""),
    ):
        assert part(tmp_path / "my-notes.md", text)[0].title == title


def test_front_matter(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    yaml = "---\ntitle: 2016\ntags: [a, b]\ndate: 2020-01-02\nid: 7\n1: x\n---\n\n# H\n"
    document = read(file, yaml)
    assert (document.title, document.text) == ("2016", "# H\n")
    assert own(document) == {"tags": ["a", "b"], "date": "2020-01-02", "id": 7, "1": "x"}
    found, _ = part(file, '+++\ntitle = "T"\nyear = 2016\n+++\ntext')
    assert (found.title, found.text, found.metadata) == ("T", "text", {"year": 2016})
    assert part(file, "---\n---\ntext") == (Text("text"), [])
    assert read(file, "---\nmodified: 2001-01-01\n---\nx").metadata["modified"] == "2001-01-01"
    for text in ("---\nonly a text\n---\nmore", "---\nno end", "text\n---\na: 1\n---\n"):
        assert part(file, text)[0].text == text
    for text, title, lost in (
        (
            "---\ntitle: b: c\n---\nx",
            "b: c",
            "the front matter is not YAML (mapping values are not allowed here, line 2)",
        ),
        ("---\ntitle: &a *a\n---\nx", "&a *a", "the front matter is not YAML ("),
        ("+++\na\n+++\nx", "", "the front matter is not TOML ("),
        ("---\ntext: a\n---\nx", "", "the front matter names 'text', a field of the document"),
    ):
        found, (sentence,) = part(file, text)
        assert (found.text, found.title) == ("x", title)
        assert sentence.startswith(lost)


def test_what_word_files_hold_besides_paragraphs(tmp_path: Path) -> None:
    """Changes, content controls, fields, links, text boxes with a copy, notes."""
    document = docx.Document()
    document.core_properties.title = "Of whales"
    body = document.element.body

    def add(xml: str) -> None:
        names = nsdecls("w", "wp", "a") + f' xmlns:mc="{MARKUP}" xmlns:wps="urn:wps"'
        body.insert(len(body) - 1, parse_xml(xml.replace(">", f" {names}>", 1)))

    run = "<w:r><w:t>{}</w:t></w:r>".format
    document.add_paragraph("By style", style="Heading 2")
    deleted = "<w:del><w:r><w:delText>no</w:delText></w:r></w:del>"
    moved = f"<w:moveFrom>{run('no')}</w:moveFrom>"
    add(f"<w:p>{run('one')}{deleted}{moved}<w:ins>{run('two')}</w:ins></w:p>")
    add(f"<w:sdt><w:sdtContent><w:p>{run('control')}</w:p></w:sdtContent></w:sdt>")
    field = "<w:r><w:instrText>PAGE</w:instrText></w:r>"
    add(
        f"<w:p>{field}<w:hyperlink>{run('link')}</w:hyperlink><w:r><w:tab/><w:br/></w:r>{run('e')}</w:p>"
    )
    box = f"<w:txbxContent><w:p>{run('box')}</w:p></w:txbxContent>"
    choice = f"<mc:Choice Requires='wps'><w:drawing>{box}</w:drawing></mc:Choice>"
    copy = f"<mc:Fallback><w:pict>{box}</w:pict></mc:Fallback>"
    alternatives = f"<mc:AlternateContent>{choice}{copy}</mc:AlternateContent>"
    add(f"<w:p>{run('around')}<w:r>{alternatives}</w:r></w:p>")
    note = f"<w:footnote><w:p>{run('note')}</w:p></w:footnote>"
    notes = f"<w:footnotes {nsdecls('w')}>{note}</w:footnotes>"
    name = PackURI("/word/footnotes.xml")
    stored = PackagePart(name, "text/xml", notes.encode(), document.part.package)
    document.part.relate_to(stored, RELATIONSHIP_TYPE.FOOTNOTES)
    document.save(str(tmp_path / "a.docx"))
    (found,) = read_corpus(tmp_path / "a.docx")
    texts = [
        "By style",
        "onetwo",
        "control",
        "link\t\ne",
        "around",
        "box",
        "note",
    ]
    assert found.text.split("\n\n") == texts
    assert found.title == "Of whales"


def test_chapters_of_a_book(tmp_path: Path) -> None:
    chapters = ["<body><h1>One</h1>a", "<body> </body>", "<body><h2>Two</h2>b"]
    write_epub(tmp_path / "a.epub", "A book", chapters)
    first, second = read_corpus(tmp_path / "a.epub", key_prefix="x:")
    assert [first.key, second.key] == ["x:a.epub#text/c0.xhtml", "x:a.epub#text/c2.xhtml"]
    assert (first.title, first.text, second.text) == ("A book", "One\n\na", "Two\n\nb")
    assert (own(first), own(second)) == ({"chapter": 1}, {"chapter": 2})


def test_pages(tmp_path: Path) -> None:
    canvas = Canvas(str(tmp_path / "a_b.pdf"))
    for lines in (["Intro", "an ani-", "mal"], [], ["so on", "Later", "end"]):
        text = canvas.beginText(72, 700)
        for line in lines:
            text.textLine(line)
        canvas.drawText(text)
        canvas.showPage()
    canvas.save()
    first, third = read_corpus(tmp_path)
    assert (first.key, first.text, first.title) == ("a_b.pdf#page=1", "Intro\nan animal", "a b")
    assert own(first) == {"page": 1}
    assert (third.key, third.text) == ("a_b.pdf#page=3", "so on\nLater\nend")
    assert own(third) == {"page": 3}


# ---------------------------------------------------------------------------------------- encodings


def test_content_without_an_encoding_of_text(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"a.txt: not a text \(it holds a zero byte\)"):
        read(tmp_path / "a.txt", bytes(range(256)))
    with pytest.raises(CorpusError, match=r"a.csv:1: not UTF-8 .* probably utf-16; .* -f utf-16"):
        read(tmp_path / "a.csv", "id,text\n1,one\n".encode("utf-16"))
    with pytest.raises(CorpusError, match=r"a.csv:2: not UTF-8 .byte 0xb0. but probably cp949; "):
        read(tmp_path / "a.csv", f"text\n{KOREAN}\n".encode("cp949"))


def test_broken_bytes_of_utf8_are_named(tmp_path: Path) -> None:
    whole = f"{KOREAN} Straße\n".encode()
    declared = b"<meta charset=euc-kr>"
    for name, before in (("a.txt", b""), ("a.md", b"\xef\xbb\xbf"), ("a.html", declared)):
        found, (lost,) = part(tmp_path / name, before + whole + b"\xff." + whole[:-3])
        assert found.text.startswith(f"{KOREAN} Straße") and "\ufffd." in found.text
        assert re.fullmatch(r"bytes that are not UTF-8 .from byte \d+ on, 2 in all.", lost)
    with pytest.raises(CorpusError, match=r"a.txt: not UTF-8 .byte 0xfa.; .* -f ENCODING -t"):
        read(tmp_path / "a.txt", bytes(range(250, 1, -1)))


# ------------------------------------------------------------------------------------------ records


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    content = b'[{"_id": "1", "text": "a", "x": {"y": 1}}, {"_id": 2}, 7, {"_id": 3, "title": NaN}]'
    path.write_bytes(gzip.compress(content))
    unread = Unread(skip_bad=True)
    documents = [Document("1", "a", "", {"x": {"y": 1}}), Document("3", "")]
    assert list(read_corpus(path, unread)) == documents
    assert unread.bad.first[0] == f"{path}:2: no field 'text' or 'title' (fields: '_id')"
    assert unread.bad.count == 2
    assert read(tmp_path / "b.json", '{"id": "1", "Body": "a"}'.replace("Body", "Text")).text == "a"
    for content, message in (
        ("7", "1: expected a JSON object, got int"),
        ('[{"text": "a"}, 7]', "2: expected a JSON object, got int"),
        (
            '[{"text": "a"}, {"text": "a", "x": 1e999}]',
            "2: metadata 'x' cannot be stored: it holds",
        ),
        ("[", " not JSON"),
    ):
        with pytest.raises(CorpusError, match=f"b.json:{message}"):
            read(tmp_path / "b.json", content)


COLUMNS = {
    "id": [7, 8],
    "text": ["a", "b"],
    "year": [2016, None],
    "price": [decimal.Decimal("1.50"), decimal.Decimal("2")],
    "day": [date(2020, 1, 2), None],
    "tags": [["x", "y"], []],
    "image": [{"bytes": b"\x00", "path": "p"}, None],
    "raw": [b"\xff", b""],
}
ROWS = [
    Document("7", "a", "", {"year": 2016, "price": 1.5, "day": "2020-01-02", "tags": ["x", "y"]}),
    Document("8", "b", "", {"price": 2, "tags": []}),
]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(COLUMNS), path, row_group_size=1)
    assert list(read_corpus(path)) == ROWS
    assert [d.origin for d in read_corpus(path)] == [f"{path}:1", f"{path}:2"]


def test_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.db").write_text("any")
    with pytest.raises(CorpusError, match=r"app.db: expected a .*: sqlite-utils rows FILE TABLE "):
        read_corpus(tmp_path / "app.db")


@pytest.mark.long  # some 10 s
def test_a_row_of_many_short_cells_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('_id,text\n1,a\n2,"\n' + '","\n' * (1 << 24) + "3,c\n")
    unread = Unread(skip_bad=True)
    documents = read_corpus(path, unread)
    assert [each.key for each in documents] == ["1", "3"]
    assert "a row must be at most 64 MiB long; split it; lines 3–" in unread.bad.first[0]


# ------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "ID;Title;TEXT;year\n1;A;a, b;2016\n"),
        ("a.csv", "ID\tTitle\tTEXT\tyear\n1\tA\ta, b\t2016\n"),
        ("a.csv", "ID|Title|TEXT|year\n1|A|a, b|2016\n"),
        ("a.csv", "ID;Title;TEXT;year;tags, if any\n1;A;a, b;2016;\n"),
        ("a.csv", '"";ID;Title;TEXT;year;"1, 2, 3, 4, 5, 6"\n7;1;A;a, b;2016;\n'),
        ("a.csv", 'ID,Title,TEXT,year,tags;if;any\n1,A,"a, b",2016,\n'),
        ("a.csv", ',ID,Title,TEXT,year,, \n0,1,A,"a, b",2016,x,y\n'),
        ("a.tsv", "\tID\tTitle\tTEXT\tyear\t\n0\t1\tA\ta, b\t2016\tz\n"),
        ("a.jsonl", '{"Id": "1", "Title": "A", "TEXT": "a, b", "year": 2016}\n'),
    ],
)
def test_headers_as_people_write_them(tmp_path: Path, name: str, content: str) -> None:
    assert read(tmp_path / name, content) == Document("1", "a, b", "A", {"year": 2016})


def test_exact_names_come_first(tmp_path: Path) -> None:
    document = read(tmp_path / "a.csv", "_id,ID,id,Text,text\n1,2,3,b,a\n")
    assert document == Document("1", "a", "", {"ID": 2, "id": "3", "Text": "b"})


# ------------------------------------------------------------------------------------------ folders


def test_records_in_a_folder_have_its_files_in_their_keys(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.csv").write_text("id,text\n1,one\n")
    (tmp_path / "b.csv").write_text("id,body\n1,two\n")
    (tmp_path / "c.jsonl").write_text('{"text": "three"}\n')
    (tmp_path / "d.md").write_text("four")
    unread = Unread()
    documents = list(read_corpus(tmp_path, unread=unread, key_prefix="x/"))
    (hashed,) = read_corpus(tmp_path / "c.jsonl")
    keys = [f"x/c.jsonl#{hashed.key}", "x/d.md", "x/deep/a.csv#1"]
    assert [d.key for d in documents] == keys
    assert {d.root for d in documents} == {str(tmp_path)}
    assert [d.file for d in documents] == ["c.jsonl", "d.md", "deep/a.csv"]
    assert [d.metadata["path"] for d in documents] == ["c.jsonl", "d.md", "deep/a.csv"]
    assert unread.failed.count == 1 and "b.csv:1: no field 'text'" in unread.failed.first[0]
    with pytest.raises(CorpusError, match=r"b\.csv:1: no field 'text'"):
        list(read_corpus(tmp_path))
    named = read_corpus(tmp_path / "b.csv", columns=Columns(text="body"))
    assert [(d.key, d.metadata) for d in named] == [("1", {})], "no folder, so no path"


def test_the_path_of_a_record_is_its_own_if_it_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"_id": 1, "text": "x", "path": "/usr", "year": 1}\n')
    (document,) = read_corpus(tmp_path)
    assert document.metadata == {"path": "/usr", "year": 1}


def test_a_malformed_record_ends_the_reading_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,one\n2\n3,three\n")
    (tmp_path / "b.csv").write_text("id,text\n4,four\n")
    unread = Unread()
    assert [d.key for d in read_corpus(tmp_path, unread=unread)] == ["a.csv#1", "b.csv#4"]
    assert unread.failed.first == [
        f"{tmp_path}/a.csv:3: expected 2 fields, as in the header, got 1; the rest of the file was "
        "left out, --skip-bad leaves out such records only"
    ]
    unread = Unread(skip_bad=True)
    documents = read_corpus(tmp_path, unread)
    assert [d.key for d in documents] == ["a.csv#1", "a.csv#3", "b.csv#4"]
    refused = f"{tmp_path}/a.csv:3: expected 2 fields, as in the header, got 1"
    assert (unread.bad.first, unread.failed.count) == ([refused], 0)


def test_what_is_skipped_is_counted_by_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.md", "b.PNG", "c.png", "d.xls", "Makefile", "e.pdf", "f.docx", ".hidden.png"):
        (tmp_path / name).write_text("x")
    for package in ("pypdfium2", "docx"):
        monkeypatch.setitem(sys.modules, package, None)
    unread = Unread()
    assert [d.key for d in read_corpus(tmp_path, unread=unread)] == ["a.md"]
    assert unread.kinds == {".png": 2, ".xls": 1, "without a suffix": 1}
    for message, name in zip(unread.failed.first, ("PDF", "Word"), strict=True):
        assert (
            f"to read {name} files, install the extra formats: {install_line('formats')}" in message
        )
    with pytest.raises(CorpusError, match=r"to read PDF files, install the extra formats: .*pip"):
        list(read_corpus(tmp_path / "e.pdf"))
    assert Unread().sentence() == ""


# ----------------------------------------------------------------------------- slides and sheets


def test_slides(tmp_path: Path) -> None:
    presentation = pptx.Presentation()
    presentation.core_properties.title = "Deck"
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
    presentation.save(str(tmp_path / "a.pptx"))
    first, last = read_corpus(tmp_path)
    assert (first.key, first.title) == ("a.pptx#slide=1", "Deck")
    assert first.text == (
        "Whales\n\nThey sleep\nby halves\n\nin a group\n\ndepth\t300 m\n\nsay it slowly"
    )
    assert own(first) == {"slide": 1}
    assert (last.key, last.text, own(last)["slide"]) == ("a.pptx#slide=3", "Owls", 3)


def test_sheets(tmp_path: Path) -> None:
    rows = [["animal", "seen", "at"], ["whale\nblue", 2, datetime(2024, 3, 1)], [], [None, 0.5]]
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, table in {"Log 1": rows, "empty": [], "다음": [[date(2024, 3, 2), True]]}.items():
        sheet = book.create_sheet(name)
        for row in table:
            sheet.append(row)
    book.save(tmp_path / "a.xlsx")
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
    (tmp_path / "a.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells[1:]}))
    assert [document.title for document in read_corpus(tmp_path)] == ["a"]
