"""Every format that is read: one small file of each, its stored text and a word that finds it."""

import json
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path

import docx
import openpyxl
import pptx
import pyarrow.parquet
import pytest
from document_files import write_epub
from reportlab.pdfgen.canvas import Canvas

from public.conftest import command
from searchengine import Encoder, SearchEngine

RECORDS = [
    {"id": "r1", "title": "Kelp", "text": "Kelp grows like {}.", "depth": 12},
    {"id": "r2", "title": "Sand", "text": "Sand moves in the current.", "depth": 3},
]


def pdf(path: Path, word: str) -> None:
    canvas = Canvas(str(path))
    for page in ("A page before.", f"The harbour master keeps a {word}."):
        canvas.drawString(72, 720, page)
        canvas.showPage()
    canvas.save()


def word_document(path: Path, word: str) -> None:
    document = docx.Document()
    document.add_heading("Harbour", 1)
    document.add_paragraph(f"The report praises the {word}.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Length", "twelve metres"
    document.save(str(path))


def slides(path: Path, word: str) -> None:
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "Plans"
    slide.placeholders[1].text = f"We will buy a {word}"
    presentation.save(str(path))


def workbook(path: Path, word: str) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Stock"
    sheet.append(["item", "count"])
    sheet.append([word, 7])
    book.save(path)


def book(path: Path, word: str) -> None:
    write_epub(path, "Tides", [f"<h1>Ebb</h1><p>At ebb we saw a {word}.</p>"])


def mail(path: Path, word: str) -> None:
    message = EmailMessage()
    message["From"], message["To"] = "ann@example.org", "bob@example.org"
    message["Subject"], message["Date"] = "Boats", "Mon, 02 Mar 2020 10:00:00 +0000"
    message.set_content(f"Please bring the {word}.\n")
    path.write_bytes(message.as_bytes())


def notebook(path: Path, word: str) -> None:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# Waves\n", f"About the {word}."]},
        {"cell_type": "code", "metadata": {}, "source": ["height = 2\n"], "outputs": []},
    ]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))


def text(content: str, encoding: str = "utf-8") -> Callable[[Path, str], object]:
    """Writes the content with the word in it."""
    return lambda path, word: (
        path.write_bytes(content.replace("{}", word).encode(encoding)) and None
    )


PAGE = (
    "<!doctype html><meta charset=%s><title>Quay</title><style>p { color: red }</style>"
    "<body><h1>Quay</h1><p>Über dem Kai hängt ein {}.</p><script>hidden()</script>"
)
CODE = 'def load():\n    """Read the {}."""\n    return open("log")\n'
KOREAN = "어부가 {} 잡는다. 배는 저녁에 항구로 돌아온다.\n"
JAPANESE = "港の{}は静かに光る。船は朝に戻ってくる。\n"
# Key of the document → how its file is written, a word of it, the stored title and text.
FILES: dict[str, tuple[Callable[[Path, str], object], str, str, str]] = {
    "a.txt": (
        text("The lighthouse keeper owns a {}.\n"),
        "gramophone",
        "a",
        "The lighthouse keeper owns a {}.\n",
    ),
    "a.md": (
        text("---\ntitle: Ropes\nyear: 2019\n---\n# Knots\n\nA {} holds.\n"),
        "bowline",
        "Ropes",
        "# Knots\n\nA {} holds.\n",
    ),
    "a.rst": (
        text("Anchors\n=======\n\nThe {} drags.\n"),
        "grapnel",
        "a",
        "Anchors\n=======\n\nThe {} drags.\n",
    ),
    "a.html": (text(PAGE % "utf-8"), "Fender", "Quay", "Quay\n\nÜber dem Kai hängt ein {}."),
    "latin.html": (
        text(PAGE % "iso-8859-1", "latin-1"),
        "Poller",
        "Quay",
        "Quay\n\nÜber dem Kai hängt ein {}.",
    ),
    "a.pdf#page=2": (pdf, "sextant", "a", "The harbour master keeps a {}."),
    "a.docx": (
        word_document,
        "capstan",
        "a",
        "Harbour\n\nThe report praises the {}.\n\nLength\n\ntwelve metres",
    ),
    "a.pptx#slide=1": (slides, "trawler", "a", "Plans\n\nWe will buy a {}"),
    "a.xlsx#sheet=Stock": (workbook, "windlass", "a", "item\tcount\n{}\t7"),
    "a.epub#text/c0.xhtml": (book, "narwhal", "Tides", "Ebb\n\nAt ebb we saw a {}."),
    "a.eml": (mail, "oars", "Boats", "Please bring the {}."),
    "a.ipynb": (notebook, "tsunami", "Waves", "# Waves\nAbout the {}.\n\nheight = 2"),
    "a.py": (text(CODE), "logbook", "a", CODE),
    "utf16.txt": (
        text("Die Mannschaft trinkt {}.\n", "utf-16"),
        "Grünkohlsaft",
        "utf16",
        "Die Mannschaft trinkt {}.\n",
    ),
    "korean.txt": (text(KOREAN, "cp949"), "고등어를", "korean", KOREAN),
    "japanese.txt": (text(JAPANESE, "cp932"), "灯台", "japanese", JAPANESE),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, starter: Encoder) -> Iterator[SearchEngine]:
    path = tmp_path_factory.mktemp("formats")
    (path / "files").mkdir()
    for key, (write, word, *_) in FILES.items():
        write(path / "files" / key.partition("#")[0], word)
    report = command("index", path / "files", path / "x.index", "--encoder", "starter")
    assert not report["unreadable"]["count"] and not report["skipped"]
    with SearchEngine.open(path / "x.index", starter) as engine:
        yield engine


@pytest.mark.parametrize("key", FILES)
def test_a_file_is_read_and_found(folder: SearchEngine, key: str) -> None:
    _, word, title, stored = FILES[key]
    assert folder[key].title == title
    assert folder[key].text == stored.replace("{}", word)
    assert [hit.key for hit in folder.search(word, mode="text", typo_tolerance=False)] == [key]
    assert folder.search(word, 1)[0].key == key


def test_what_stands_beside_a_text_is_metadata(folder: SearchEngine) -> None:
    assert folder["a.md"].metadata["year"] == 2019
    assert folder["a.eml"].metadata["author"] == "ann@example.org"
    assert folder["korean.txt"].metadata["encoding"] == "cp949"
    assert sorted(folder.keys("path = 'a.pdf' and page >= 2")) == ["a.pdf#page=2"]


def csv_table(path: Path) -> None:
    rows = [
        "id,title,text,depth",
        *(f"{r['id']},{r['title']},{r['text']},{r['depth']}" for r in RECORDS),
    ]
    path.write_text("\n".join(rows))


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.jsonl": lambda path: path.write_text("\n".join(map(json.dumps, RECORDS))),
    "a.json": lambda path: path.write_text(json.dumps(RECORDS)),
    "a.csv": csv_table,
    "a.tsv": lambda path: path.write_text(
        "\n".join("\t".join(map(str, row)) for row in [RECORDS[0], *(r.values() for r in RECORDS)])
    ),
    "a.parquet": lambda path: pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_records_of_a_file_are_documents(tmp_path: Path, starter: Encoder, name: str) -> None:
    WRITERS[name](tmp_path / name)
    command("index", tmp_path / name, tmp_path / "x.index", "--encoder", "starter")
    with SearchEngine.open(tmp_path / "x.index", starter) as engine:
        assert [(d.key, d.title, d.text, dict(d.metadata)) for d in engine.documents()] == [
            (r["id"], r["title"], r["text"], {"depth": r["depth"]}) for r in RECORDS
        ]
        assert engine.search("what moves", 1, where="depth < 5")[0].key == "r2"
