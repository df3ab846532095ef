"""Reading corpora: what is taken, and one sentence for what is not."""

import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest

from searchengine.corpus.contents import Columns
from searchengine.corpus.documents import Document
from searchengine.corpus.files import Unread, count_records, read_corpus
from searchengine.errors import CorpusError

TWO = [Document("1", "whales sleep", "Whales", {"year": 2016}), Document("2", "bread rises")]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


JSONL = (
    '{"_id": "1", "title": "Whales", "text": "whales sleep", "year": 2016}\n'
    '\n{"_id": "2", "text": "bread rises"}\n'
)
CSV = '\ufeff_id,title,text,year\n1,Whales,whales sleep,2016\n\n2,,"bread rises",\n'
TSV = "_id\ttitle\ttext\tyear\n1\tWhales\twhales sleep\t2016\n2\t\tbread rises\t\n"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "content"),
    [("c.jsonl", JSONL), ("c.ndjson", JSONL), ("c.csv", CSV), ("c.tsv", TSV), ("c.CSV", CSV)],
)
def test_formats_give_equal_documents(tmp_path: Path, name: str, content: str, suffix: str) -> None:
    path = write(tmp_path / (name + suffix), content)
    assert list(read_corpus(path)) == TWO
    assert count_records(path) in ((None,) if suffix else (3, 4))  # as do headers, blank lines


def test_origin_is_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", JSONL)
    assert [d.origin for d in read_corpus(path)] == [f"{path}:1", f"{path}:3"]
    path = write(tmp_path / "c.csv", '_id,text\n1,"two\nlines"\n2,x\n')
    assert [d.origin for d in read_corpus(path)] == [f"{path}:2", f"{path}:4"]


def test_table_cells_become_what_they_read_like(tmp_path: Path) -> None:
    row = "7,12,2016,12.50,-3,01,1e3,nan,1_0,true,false,12345678901234567890"
    path = write(tmp_path / "c.csv", f"_id,text,a,b,c,d,e,f,g,h,i,j\n{row}\n")
    (document,) = read_corpus(path)
    assert (document.key, document.text) == ("7", "12")
    numbers = {"a": 2016, "b": 12.5, "c": -3, "h": True, "i": False}
    texts = {"d": "01", "e": "1e3", "f": "nan", "g": "1_0", "j": "12345678901234567890"}
    assert document.metadata == numbers | texts


def test_a_stray_quote_costs_the_lines_to_the_next_one(tmp_path: Path) -> None:
    lines = ["_id,text", "1,a", '2,"stray', "3,lost", '"4",b', "5,good", '6,"not closed', "7,lost"]
    path = write(tmp_path / "c.csv", "\n".join(lines) + "\n")
    unread = Unread(skip_bad=True)
    assert [d.key for d in read_corpus(path, unread)] == ["1", "5"]
    rule = "are one row, check for a quote that is not closed)"
    assert unread.bad.first == [
        f"{path}:3: not CSV (',' expected after '\"'; lines 3–5 {rule}",
        f"{path}:7: not CSV (unexpected end of data; lines 7–8 {rule}",
    ]


def test_a_broken_header_is_never_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", b"_id,caf\xe9\n1,a\n2,b\n")
    with pytest.raises(CorpusError, match=":1: not UTF-8"):
        list(read_corpus(path, Unread(skip_bad=True)))


def test_tsv_keeps_quotes_and_csv_reads_them(tmp_path: Path) -> None:
    tsv = write(tmp_path / "c.tsv", '_id\ttext\n1\t"half\n')
    assert next(read_corpus(tsv)).text == '"half'
    csv = write(tmp_path / "c.csv", '_id,text\n1,"say ""a, b"""\n')
    assert next(read_corpus(csv)).text == 'say "a, b"'


def test_a_record_without_id_is_named_by_its_content(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", '{"year": 2016, "text": "é", "b": {"d": 1, "c": null}}\n')
    written = '{"b":{"c":null,"d":1},"text":"é","title":"","year":2016}'
    (document,) = read_corpus(path)
    assert document.key == hashlib.sha256(written.encode()).hexdigest()[:32]
    assert (document.derived, document.root) == (True, "")


def test_a_prefix_is_for_keys_that_are_not_given(tmp_path: Path) -> None:
    content = write(tmp_path / "c.jsonl", '{"text": "a"}\n')
    (plain,) = read_corpus(content)
    assert [d.key for d in read_corpus(content, key_prefix="c:")] == [f"c:{plain.key}"]
    explicit = write(tmp_path / "d.jsonl", '{"id": 7, "text": "a"}\n')
    assert [d.key for d in read_corpus(explicit, key_prefix="d:")] == ["7"]
    file = write(tmp_path / "a.md", "a")
    assert [d.key for d in read_corpus(file, key_prefix="notes/")] == ["notes/a.md"]


def test_the_root_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    file = write(tmp_path / "notes" / "deep" / "a.txt", "a")
    (tmp_path / "link").symlink_to(tmp_path / "notes")
    root = str((tmp_path / "notes").resolve())
    monkeypatch.chdir(tmp_path)
    for path in ("notes", "link", tmp_path / "notes"):
        assert [(d.key, d.root, d.derived) for d in read_corpus(path)] == [
            ("deep/a.txt", root, False)
        ]
    assert [d.root for d in read_corpus(file)] == [str(file.parent.resolve())]
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    odd.mkdir()
    write(odd / "a.txt", "a")
    with pytest.raises(CorpusError, match="its path is not UTF-8; rename the file or its folder"):
        next(read_corpus(odd))


NO_TEXT = [
    ("c.csv", "title,body\na,b\n", r"c.csv:1: no field 'text' \(fields: 'title', 'body'\); name"),
    (
        "c.csv",
        "id;body;title\n1;a;b\n",
        r"c.csv:1: no field 'text' \(fields: 'id', 'body', 'title'\)",
    ),
    ("c.csv", "_id,title,year\n1,a,2016\n", "no field 'text'"),
    ("c.jsonl", '{"_id": "1", "title": "a", "abstract": "b"}\n', r"c.jsonl:1: no field 'text'"),
    ("c.jsonl", '{"_id": "1"}\n{"_id": "2", "text": "b"}\n', "example: --text-field body"),
]


@pytest.mark.parametrize(("name", "content", "message"), NO_TEXT)
def test_a_file_whose_text_has_no_name_is_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = write(tmp_path / name, content)
    for unread in (None, Unread(skip_bad=True)):
        with pytest.raises(CorpusError, match=message):
            list(read_corpus(path, unread))


def test_ids_and_titles_alone_are_documents(tmp_path: Path) -> None:
    table = write(tmp_path / "c.csv", "id,title\n1,Whales\n")
    assert [(d.key, d.full_text) for d in read_corpus(table)] == [("1", "Whales")]
    lines = '{"_id": "1", "text": "a"}\n{"_id": "2", "title": "b", "body": "c"}\n'
    documents = list(read_corpus(write(tmp_path / "c.jsonl", lines)))
    assert [d.full_text for d in documents] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.csv", "DOI,Heading,Body,year\n007,Whales,12,2016\n"),
        ("c.tsv", "Heading\tBody\tDOI\tyear\nWhales\t12\t007\t2016\n"),
        ("c.jsonl", '{"DOI": "007", "Heading": "Whales", "Body": "12", "year": 2016}\n'),
    ],
)
def test_fields_of_other_names(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    columns = Columns(text="body", title="Heading", id="doi")
    assert list(read_corpus(path, columns=columns)) == [
        Document("007", "12", "Whales", {"year": 2016})
    ]


def test_titles_can_be_named_as_the_text(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "id,title,TEXT\n1,Whales,2016\n")
    documents = list(read_corpus(path, columns=Columns(text="title")))
    assert documents == [Document("1", "Whales", "", {"TEXT": 2016})]


@pytest.mark.parametrize(
    ("columns", "header", "message"),
    [
        ({"text": "body"}, "_id,text", "no field 'body' for --text-field .fields: '_id', 'text'"),
        ({"text": "body"}, "body,text", "a field 'text' besides --text-field body; rename"),
        ({"id": "doi"}, "_id,doi,text", "a field '_id' besides --id-field doi; rename"),
        ({"text": "a", "title": "a"}, "a,b", "no field 'text'"),
    ],
)
def test_fields_that_cannot_be_chosen(
    tmp_path: Path, columns: dict[str, str], header: str, message: str
) -> None:
    names = header.split(",")
    table = write(tmp_path / "c.csv", header + "\n" + ",".join("x" for _ in names) + "\n")
    lines = write(tmp_path / "c.jsonl", json.dumps(dict.fromkeys(names, "x")))
    for path in (table, lines):
        with pytest.raises(CorpusError, match=f"{path.name}:1: .*{message}"):
            list(read_corpus(path, Unread(skip_bad=True), columns=Columns(**columns)))


def test_text_files_have_no_fields(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(CorpusError, match="text files have no fields; leave --id-field out"):
            read_corpus(path, columns=Columns(id="doi"))


def test_folder_of_texts(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "a_note.txt", "first\nsecond\n")
    write(tmp_path / "deep" / "b.md", "# b\n")
    write(tmp_path / "deep" / "c.txt.gz", "packed")
    write(tmp_path / "ignored.xls", b"PK")
    (tmp_path / ".trash").mkdir()
    write(tmp_path / ".trash" / "old.md", "thrown away")
    write(tmp_path / ".hidden.txt", "hidden")
    documents = list(read_corpus(tmp_path))
    assert [(d.key, d.title, d.text) for d in documents] == [
        ("a_note.txt", "a note", "first\nsecond\n"),
        ("deep/b.md", "b", "# b\n"),
        ("deep/c.txt.gz", "c", "packed"),
    ]
    assert count_records(tmp_path) == 3
    assert count_records(tmp_path / "deep" / "c.txt.gz") == 1
    assert count_records(tmp_path / "a.pdf") is None
    assert [d.key for d in read_corpus(tmp_path / "deep" / "b.md")] == ["b.md"]


def test_beir_folder(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl.gz", JSONL)
    write(tmp_path / "readme.txt", "not a document")
    assert list(read_corpus(tmp_path)) == TWO


BAD_LINES: list[tuple[str, str | bytes, str]] = [
    ("c.jsonl", '{"_id": "1", "text": "a"}\n{"_id": "2", "text": \n', r"c\.jsonl:2: not JSON"),
    ("c.jsonl", '{"_id": "1", "text": "a"}\n{"text": "b"}\n', r":2: no _id"),
    ("c.jsonl", '{"_id": "1", "text": "a"}\n{"_id": "2", "body": "b"}\n', r":2: no field 'text'"),
    ("c.jsonl", '{"_id": "1", "text": "a"}\n{"_id": "2", "text": 5}\n', r":2: text must be text"),
    ("c.jsonl", '{"_id": "1", "text": "a"}\n{"_id": true, "text": ""}\n', r":2: key must be text"),
    ("c.jsonl", '{"_id": "1", "text": "a"}\n{"_id": " ", "text": ""}\n', r":2: the key is empty"),
    (
        "c.jsonl",
        '{"_id": "1", "text": "a"}\n{"_id": "2", "text": "\\ud800"}\n',
        r":2: text must be valid UTF-8",
    ),
    ("c.jsonl", '{"_id": "1", "text": "a"}\n' + "[" * 100_000 + "\n", r":2: not JSON"),
    (
        "c.jsonl",
        '{"_id": "1", "text": "a"}\n{"_id": "2", "text": "", "x": ' + "[" * 985 + "]" * 985 + "}\n",
        r":2: (not JSON|metadata cannot|metadata is nested)",
    ),
    ("c.jsonl", b'{"_id": "1", "text": "a"}\n{"_id": "2", "text": "caf\xe9"}\n', r":2: not UTF-8"),
    ("c.csv", "_id,text\n1,a\n2,b,c\n", r"c\.csv:3: expected 2 fields, as in the header, got 3"),
    ("c.tsv", "_id\ttext\n1\ta\n2\n", r"c\.tsv:3: expected 2 fields, as in the header, got 1"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_LINES)
def test_bad_line_is_named_or_skipped(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(CorpusError, match=message):
        list(read_corpus(path))
    unread = Unread(skip_bad=True)
    assert [d.key for d in read_corpus(path, unread)] == ["1"]
    assert unread.bad.count == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.jsonl", None, "no such file or folder"),
        ("gone.pdf", None, "no such file or folder"),
        ("c.xls", b"PK", "expected a .jsonl, .json, .csv, .tsv, .parquet, .txt, .md"),
        ("c.pdf.gz", b"%PDF", "expected a .jsonl, .json, .csv"),
        ("v.npy", b"", "such files; vectors come with documents: --vectors FILE.npy"),
        ("c.csv", "_id,text,text\n1,a,b\n", "a column name occurs twice"),
        ("dir", "folder", "no files to read in this folder; expected a .jsonl"),
    ],
)
def test_unreadable_file(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content is not None:
        write(path, content)
    with pytest.raises(CorpusError, match=message):
        list(read_corpus(path, Unread(skip_bad=True)))


@pytest.mark.parametrize("cut", [5, -4])
def test_broken_gzip(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(JSONL.encode())[:cut])
    with pytest.raises(CorpusError, match="broken gzip file"):
        list(read_corpus(path))
    path.write_bytes(b"not gzip at all")
    with pytest.raises(CorpusError, match="broken gzip file"):
        list(read_corpus(path))
