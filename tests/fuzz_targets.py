"""What is fuzzed: readers, parsers and openers, each given bytes that somebody else chose.

A target passes when it reads them or refuses them by an error of this project, in one short
printable message. test_fuzz.py tries them.
"""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from searchengine.backends.filters.parser import moment, parse
from searchengine.backends.filters.sqlite import compile_sql
from searchengine.corpus.files import Unread, count_records, read_corpus
from searchengine.errors import CorpusError, SearchEngineError
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import IndexerError
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.files import FileEntry, Manifest, _checksum
from searchengine.measure.judgements import read_qrels, read_queries

Run = Callable[[bytes, Path], None]
LONGEST_MESSAGE = 1000
_ROWS, _DIM = 64, 8


@dataclass(frozen=True, slots=True)
class Target:
    """A function of bytes and an empty folder of its own; seeds are inputs that are read.

    `native` ones reach C++ that trusts its input: they may take the process with them.
    """

    run: Run
    seeds: Callable[[], list[bytes]]
    native: bool = False


@contextmanager
def refused_well() -> Iterator[None]:
    """Errors of this project pass if their message does; all others are findings."""
    try:
        yield
    except (SearchEngineError, IndexerError) as error:
        message = str(error)
        assert message.strip(), "an empty message"
        assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters"
        printable = message.replace("\n", "").isprintable()  # a filter's caret is a line below it
        assert printable, f"an unprintable message: {message!a}"


# --- files of documents, questions and judgements -------------------------------------------------

JSONL = (
    b'{"_id": "1", "title": "Whales", "text": "whales sleep", "year": 2016, "tags": ["a", null]}\n'
    b'\n{"id": 2, "text": "bread \\u00e9 rises", "x": {"y": [1.5e3, true]}}\n'
)
CSV = b'\xef\xbb\xbf_id,title,text,year\r\n1,Whales,"whales ""sleep""\nlong",2016\r\n2,,x,-1.5\r\n'
QRELS = b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t-2\n"
TREC = b"q1 0 d1 1\nq2 Q0 d2 0\n"
JSON_TOKENS = (b'"_id":', b'"text":', b'"title":', b"null", b"1e999", b"NaN", b"\\ud800", b"9" * 99)
CSV_TOKENS = (b'"', b'""', b'",', b',"', b"\r", b"\r\n", b"\x00", b'q","\n')


def _corpus(name: str) -> Run:
    def run(data: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(data)
        count_records(path)
        with refused_well():
            for document in read_corpus(path):
                json.dumps(dict(document.metadata), allow_nan=False).encode()
                assert document.key.strip() and document.full_text.encode() is not None
        unread = Unread(skip_bad=True)
        with refused_well():
            read, skipped = sum(1 for _ in read_corpus(path, unread)), unread.bad.count
            lines = data.count(b"\n") + 1
            assert name.endswith(".gz") or read + skipped <= 2 * lines, (read, skipped, lines)
        for message in unread.bad.first:
            with refused_well():
                raise CorpusError(message)

    return run


def _reader(name: str, read: Callable[[Path], Any]) -> Run:
    def run(data: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(data)
        with refused_well():
            json.dumps(read(path), ensure_ascii=False).encode()

    return run


# --- filters ------------------------------------------------------------------------------------

FILTERS = [
    b"year >= 2015 and lang in ('en', 'ko') and not draft",
    b"a.b.`c d` != -1.5e3 or (x = null and y <> true) or not (z not in (1, 'a''b', false))",
]


@cache
def _metadata() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.create_function("moment", 1, moment)
    db.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, metadata TEXT NOT NULL)")
    values = [{}, {"year": 2016, "lang": "en", "draft": False, "a": {"b": {"c d": 1}}}, {"x": None}]
    db.executemany(
        "INSERT INTO documents (metadata) VALUES (?)", [(json.dumps(v),) for v in values]
    )
    return db


def _filter(data: bytes, _: Path) -> None:
    source = data.decode("utf-8", "surrogateescape")
    with refused_well():
        condition, parameters = compile_sql(parse(source))
        rows = _metadata().execute(f"SELECT {condition} FROM documents", parameters).fetchall()
        assert len(rows) == 3 and all(value in (None, 0, 1) for (value,) in rows), rows


# --- segments -----------------------------------------------------------------------------------

VECTORS = np.random.default_rng(7).standard_normal((_ROWS, _DIM)).astype(np.float32)


@cache
def segment() -> dict[str, bytes]:
    """The files of a small valid segment, by name."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "segment"
        Segment.build(path, VECTORS, SegmentConfig(prefix=4, shortlist=10)).close()
        return {file.name: file.read_bytes() for file in path.iterdir()}


def signed(values: Any) -> bytes:
    """A manifest's values as JSON, with the checksum that they have."""
    with suppress(ValueError, TypeError, AttributeError):
        values = {name: value for name, value in values.items() if name != "sha256"}
        values["sha256"] = _checksum(values)
    return json.dumps(values).encode()


def _manifest(data: bytes, _: Path) -> None:
    """Values as somebody chose them, with a right checksum: there is no secret in it."""
    with refused_well():
        Manifest.from_json(data)
    with suppress(ValueError, RecursionError):
        data = signed(json.loads(data))
    with refused_well():
        manifest = Manifest.from_json(data)
        assert manifest.rows >= 1 and manifest.dim >= 1
        for name in manifest.files:
            assert Path(name).name == name != "..", f"leaves the folder: {name!a}"


def _signed_manifest(data: bytes, folder: Path) -> None:
    """The same, opened beside the files that it should speak of."""
    with suppress(ValueError, RecursionError):
        data = signed(json.loads(data))
    _open({"manifest.json": data}, folder)


def _open(changed: dict[str, bytes], folder: Path) -> None:
    path = folder / "segment"
    path.mkdir()
    for name, contents in (segment() | changed).items():
        (path / name).write_bytes(contents)
    with refused_well(), Segment.open(path) as opened:
        found = opened.search(VECTORS[:3], 5)
        assert ((found.rows >= -1) & (found.rows < _ROWS)).all(), "a row that is not there"
        opened.search(VECTORS[:2], 5, allowed=np.arange(0, _ROWS, 2))
        list(opened.verified())


def _part(name: str) -> Run:
    """One file of the segment, the manifest signed again so that the change gets past it."""

    def run(data: bytes, folder: Path) -> None:
        manifest = Manifest.from_json(segment()["manifest.json"])
        entry = FileEntry(len(data), hashlib.sha256(data).hexdigest())
        again = replace(manifest, files={**manifest.files, name: entry})
        _open({name: data, "manifest.json": again.to_json().encode()}, folder)

    return run


def _from(*seeds: bytes) -> Callable[[], list[bytes]]:
    return lambda: list(seeds)


TARGETS: dict[str, Target] = {
    "jsonl": Target(_corpus("c.jsonl"), _from(JSONL)),
    "csv": Target(_corpus("c.csv"), _from(CSV)),
    "queries": Target(_reader("q.jsonl", read_queries), _from(JSONL)),
    "qrels": Target(_reader("q.tsv", read_qrels), _from(QRELS, TREC)),
    "filter": Target(_filter, _from(*FILTERS)),
    "manifest": Target(_manifest, lambda: [segment()["manifest.json"]]),
    "rotation": Target(_part("rotation.npy"), lambda: [segment()["rotation.npy"]]),
    "vectors": Target(_part("vectors.faiss"), lambda: [segment()["vectors.faiss"]], native=True),
    "opening": Target(_signed_manifest, lambda: [segment()["manifest.json"]], native=True),
}


def emptied(folder: Path) -> Path:
    """The folder, made again."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
