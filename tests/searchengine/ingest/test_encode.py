"""searchengine.ingest.bulk: a corpus encoded into a folder, and indexed from it."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import run, run_json
from conftest import WordLengths, disk_full_at
from cut_documents import EXACT, Words
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import write_sentence_transformer

from searchengine import SearchEngine
from searchengine.corpus import parts
from searchengine.corpus.documents import Document
from searchengine.corpus.files import Unread, read_corpus
from searchengine.corpus.parts import parts_of
from searchengine.corpus.tabular import Columns
from searchengine.errors import (
    CollectionBusy,
    CollectionError,
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    EncoderMismatch,
    QueryError,
    ServerError,
)
from searchengine.ingest import pipeline
from searchengine.ingest.bulk import (
    EncodeOptions,
    EncodeSummary,
    Work,
    check_reachable,
    encode_corpus,
    encode_part,
)
from searchengine.ingest.encoded_folder import (
    Block,
    EncodedFolder,
    EncodedReader,
    Entry,
    locked,
    write_part,
)

WORDS = ("a", "bb", "ccc", "dddd", "eeeee")


def text(number: int) -> str:
    """A text of its own for each number, of three to eleven words."""
    return " ".join(WORDS[(number // 5**i) % 5] for i in range(3 + number % 9))


def write(path: Path, numbers: Sequence[int], **fields: Any) -> None:
    lines = [json.dumps({"_id": f"k{i}", "text": text(i), "n": i} | fields) for i in numbers]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """90 documents: three files that are parts of their own, one of them in slices, and texts."""
    monkeypatch.setattr(parts, "SLICE", 2000)
    monkeypatch.setattr(parts, "_SMALL", 400)
    folder = tmp_path / "corpus"
    (folder / "notes").mkdir(parents=True)
    write(folder / "a.jsonl", range(20))
    write(folder / "b.jsonl", range(20, 70))
    write(folder / "c.jsonl", range(70, 88))
    for name in ("eels", "owls"):
        (folder / "notes" / f"{name}.txt").write_text(f"{name} bb ccc dddd a a a")
    return folder


def encode(corpus: Path, out: Path, encoder: Any = None, **options: Any) -> EncodeSummary:
    return encode_corpus(corpus, out, encoder or Words(), EncodeOptions(**options))


def texts_of(encoder: WordLengths) -> list[str]:
    return [each for call in encoder.calls for each in call]


def export(path: Path, documents: Path, vectors: Path | None) -> tuple[bytes, bytes, bytes]:
    """What a new collection of a corpus holds."""
    encoder = Words()
    with SearchEngine.create(path, encoder, EXACT) as engine:
        engine.add(read_corpus(documents), vectors)
        assert bool(encoder.calls) == (vectors is None)
        assert engine.add(read_corpus(documents)).unchanged == 90
        engine.export(target := path.with_suffix(".export"))
    return tuple(  # type: ignore[return-value]
        (target / name).read_bytes()
        for name in ("documents.jsonl", "passages.jsonl", "vectors.npy")
    )


def test_indexing_from_the_folder_equals_indexing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "BATCH", 4)  # a batch ends in the middle of a document
    encoder = Words()
    summary = encode(corpus, tmp_path / "out", encoder)
    assert (summary.documents, summary.encoded) == (90, summary.parts)
    assert summary.passages == len(texts_of(encoder)) > 150
    sliced = [part for part in parts_of(corpus, Unread()) if part.span is not None]
    assert len(sliced) > 1 and summary.parts == len(sliced) + 3
    without = export(tmp_path / "a", corpus, None)
    assert export(tmp_path / "b", corpus, tmp_path / "out") == without


def test_the_second_run_encodes_nothing(corpus: Path, tmp_path: Path) -> None:
    first = encode(corpus, tmp_path / "out")
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*.npz")}
    encoder, counts = Words(), []
    second = encode(corpus, tmp_path / "out", encoder, progress=counts.append)
    assert (second.encoded, second.documents, sum(counts)) == (0, 90, 90) and not encoder.calls
    assert second.passages == first.passages and second.others == 0
    assert files == {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*.npz")}
    corpus.rename(tmp_path / "moved")
    assert encode(tmp_path / "moved", tmp_path / "out").encoded == 0


class Failing(Words):
    """Raises when its n-th call begins."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().encode(texts, role=role)


def test_an_interrupted_run_continues(corpus: Path, tmp_path: Path) -> None:
    whole = encode(corpus, tmp_path / "whole")
    first, rest = Failing(3), Words()
    with pytest.raises(KeyboardInterrupt):
        encode(corpus, tmp_path / "out", first)
    assert len(EncodedFolder(tmp_path / "out").entries) == 3
    assert not list((tmp_path / "out" / "parts").glob("*.new"))
    summary = encode(corpus, tmp_path / "out", rest)
    assert summary.encoded == summary.parts - 3
    assert len(texts_of(first)) + len(texts_of(rest)) == whole.passages == summary.passages


def test_what_a_killed_process_has_left(corpus: Path, tmp_path: Path) -> None:
    encode(corpus, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.jsonl"
    whole = manifest.read_bytes()
    *_, last = whole.splitlines(keepends=True)
    torn = json.loads(last)["file"]
    manifest.write_bytes(whole[: -len(last) // 2])  # the last line was being written
    (tmp_path / "out" / "parts" / "half.new").write_bytes(b"PK")
    assert len(EncodedFolder(tmp_path / "out").entries) == len(whole.splitlines()) - 2
    summary = encode(corpus, tmp_path / "out")
    assert summary.encoded == 1 and summary.documents == 90
    files = {each.name for each in (tmp_path / "out" / "parts").iterdir()}
    assert torn not in files and "half.new" not in files and len(files) == summary.parts
    assert {each.file for each in EncodedFolder(tmp_path / "out").entries.values()} == files


def test_a_full_disk(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in range(1, 9):
        with monkeypatch.context() as patch:
            disk_full_at(patch, call)
            with pytest.raises(CollectionError, match="No space left"):
                encode(corpus, tmp_path / "out")
        if (tmp_path / "out" / "manifest.jsonl").exists():
            for entry in EncodedFolder(tmp_path / "out").entries.values():
                EncodedFolder(tmp_path / "out").check(entry)
    assert encode(corpus, tmp_path / "out").documents == 90
    assert export(tmp_path / "b", corpus, tmp_path / "out")


def test_only_what_has_changed_is_encoded(corpus: Path, tmp_path: Path) -> None:
    encode(corpus, tmp_path / "out")
    write(corpus / "a.jsonl", [*range(19), 100])
    with (corpus / "b.jsonl").open("a") as file:  # only its last slice changes
        file.write(json.dumps({"_id": "k101", "text": text(101)}) + "\n")
    encoder = Words()
    summary = encode(corpus, tmp_path / "out", encoder)
    assert (summary.encoded, summary.documents, summary.others) == (2, 91, 2)
    assert len(texts_of(encoder)) < 80
    with SearchEngine.create(tmp_path / "c", Words(), EXACT) as engine:
        assert engine.add(read_corpus(corpus), tmp_path / "out").added == 91
    (corpus / "c.jsonl").unlink()
    pruned = encode(corpus, tmp_path / "out", prune=True)
    assert (pruned.encoded, pruned.removed, pruned.others, pruned.documents) == (0, 3, 0, 73)
    assert len(list((tmp_path / "out" / "parts").iterdir())) == pruned.parts


def test_a_new_small_file_moves_no_others(tmp_path: Path) -> None:
    for i in range(300):
        (tmp_path / f"{i}.txt").write_text(text(i))
    before = parts_of(tmp_path, Unread())
    assert 2 < len(before) < 20
    assert sorted(name for part in before for name in part.files) == sorted(os.listdir(tmp_path))
    (tmp_path / "1000.txt").write_text("a")
    after = parts_of(tmp_path, Unread())
    assert len(set(before) & set(after)) >= len(before) - 1
    assert sum(len(part.files) for part in after) == 301


def test_damage_is_found_and_mended(corpus: Path, tmp_path: Path) -> None:
    encode(corpus, tmp_path / "out")
    entry = next(iter(EncodedFolder(tmp_path / "out").entries.values()))
    file = tmp_path / "out" / "parts" / entry.file
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"vectors_0", b"vectors_1"), None):
        file.unlink(missing_ok=True)
        if damaged is not None:
            file.write_bytes(damaged)
        with SearchEngine.create(
            tmp_path / f"c{damaged is None}{len(damaged or b'')}", Words()
        ) as e:
            with pytest.raises(CorpusError, match=r"run searchengine encode again") as raised:
                e.add(read_corpus(corpus), tmp_path / "out")
            assert str(file) in str(raised.value) and len(e) == 0
        summary = encode(corpus, tmp_path / "out")
        assert summary.encoded == 1 and summary.documents == 90
        file = tmp_path / "out" / "parts" / EncodedFolder(tmp_path / "out").entries[entry.part].file
        assert file.read_bytes() == whole
    # One number of one vector: the checksum alone notices.
    changed = bytearray(whole)
    at = whole.index(
        np.float32(
            EncodedFolder(tmp_path / "out").block(entry_of(file, tmp_path), 0).vectors.max()
        ).tobytes()
    )
    changed[at] ^= 1
    file.write_bytes(changed)
    with (
        SearchEngine.create(tmp_path / "c", Words()) as engine,
        pytest.raises(CorpusError, match="does not match its checksum"),
    ):
        engine.add(read_corpus(corpus), tmp_path / "out")


def entry_of(file: Path, folder: Path) -> Entry:
    entries = EncodedFolder(folder / "out").entries.values()
    return next(entry for entry in entries if entry.file == file.name)


@pytest.mark.parametrize(
    ("line", "content", "message"),
    [
        (0, b"{", "manifest.jsonl:1: the line is damaged; encode the corpus into a new folder"),
        (0, b'{"format": 9}', "has the format 9, and this version reads 1; encode the corpus into"),
        (1, b"[]", "manifest.jsonl:2: the line is damaged; remove the line and run"),
        (2, b'{"part": "x"}', "manifest.jsonl:3: the line is damaged"),
    ],
)
def test_a_damaged_manifest(
    corpus: Path, tmp_path: Path, line: int, content: bytes, message: str
) -> None:
    encode(corpus, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines()
    lines[line] = content
    manifest.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(CorpusError, match=message):
        encode(corpus, tmp_path / "out")


def test_another_encoder_is_refused(corpus: Path, tmp_path: Path) -> None:
    encode(corpus, tmp_path / "out")
    other = Words()
    other.fingerprint = "another"
    with pytest.raises(EncoderMismatch, match="fingerprint another; encode with that encoder, or"):
        encode(corpus, tmp_path / "out", other)
    with (
        SearchEngine.create(tmp_path / "c", other) as engine,
        pytest.raises(EncoderMismatch, match="encode the corpus by the encoder of the collection"),
    ):
        engine.add(read_corpus(corpus), tmp_path / "out")
    with pytest.raises(CollectionError, match=r"has passages {.*}, got none; leave them out"):
        encode(corpus, tmp_path / "out", passages=False)
    with (
        SearchEngine.create(tmp_path / "d", Words(), passages=False) as engine,
        pytest.raises(CollectionError, match=r"has passages {.*}, and the collection none"),
    ):
        engine.add(read_corpus(corpus), tmp_path / "out")


def test_a_machine_with_another_version_of_the_encoder(corpus: Path, tmp_path: Path) -> None:
    encode(corpus, tmp_path / "out")
    write(corpus / "new.jsonl", [7])
    other = Words()
    other.fingerprint = "another"
    work = Work(EncodedFolder(tmp_path / "out"), other, None, None, Columns(), False)
    new = [part for part in parts_of(corpus, Unread()) if "new.jsonl" in part.files]
    with pytest.raises(
        EncoderMismatch, match="got one of 16 with fingerprint another; encode with"
    ):
        encode_part(work, new[0])
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    with pytest.raises(CorpusError, match=r"is not there on .*; all machines need the same"):
        encode_part(work, new[0])


def test_documents_kept_whole(corpus: Path, tmp_path: Path) -> None:
    summary = encode(corpus, tmp_path / "out", WordLengths())
    assert summary.passages == summary.documents == 90
    with SearchEngine.create(tmp_path / "c", encoder := WordLengths()) as engine:
        assert engine.add(read_corpus(corpus), tmp_path / "out").added == 90
        assert not encoder.calls
        assert engine.search(text(7), 1, mode="vector")[0].score == pytest.approx(1, abs=1e-3)


def test_documents_that_the_folder_lacks(corpus: Path, tmp_path: Path) -> None:
    encode(corpus, tmp_path / "out")
    with SearchEngine.create(tmp_path / "c", Words(), EXACT) as engine:
        message = r"has no vectors of the document 'new', which is new or has changed; run search"
        with pytest.raises(CorpusError, match=message):
            engine.add([{"_id": "new", "text": "zz"}], tmp_path / "out")
        # The key and the metadata do not matter, nor does what is stored already.
        assert engine.add([{"_id": "x", "text": text(3)}], str(tmp_path / "out")).added == 1
        assert engine.add(
            [{"_id": "x", "text": text(3), "n": 1}], tmp_path / "out"
        ).metadata_updated
        engine.add([{"_id": "new", "text": "zz"}])
        assert engine.add([{"_id": "new", "text": "zz"}], tmp_path / "out").unchanged == 1
        for documents, passages in ((None, None), ([], [])):
            with pytest.raises(QueryError):
                engine.add(documents, tmp_path / "out", passages=passages)
        with pytest.raises(CorpusError, match=r"is not a folder; name a folder that searchengine"):
            engine.add([{"_id": "x", "text": "a"}], tmp_path / "nothing")
        with pytest.raises(CorpusError, match=r"has no manifest.jsonl; name a folder"):
            engine.add([{"_id": "x", "text": "a"}], tmp_path)


def test_equal_texts_and_equal_keys(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus" / "a.jsonl", [1, 2, 3])
    write(tmp_path / "corpus" / "b.jsonl", [3, 4, 5])
    encode(tmp_path / "corpus", tmp_path / "out")
    with SearchEngine.create(tmp_path / "c", Words(), EXACT) as engine:
        engine.add(read_corpus(tmp_path / "corpus"), tmp_path / "out")
        assert sorted(engine.keys()) == [
            "a.jsonl#k1", "a.jsonl#k2", "a.jsonl#k3", "b.jsonl#k3", "b.jsonl#k4", "b.jsonl#k5"
        ]  # fmt: skip
    write(tmp_path / "twice.jsonl", [1, 1])
    assert encode(tmp_path / "twice.jsonl", tmp_path / "out").documents == 2
    with SearchEngine.create(tmp_path / "d", Words(), EXACT) as engine:
        with pytest.raises(DuplicateKey):
            engine.add(read_corpus(tmp_path / "twice.jsonl"), tmp_path / "out")
        summary = engine.add(read_corpus(tmp_path / "twice.jsonl"), tmp_path / "out", skip_bad=True)
        assert (summary.added, summary.bad.count) == (1, 1)


def test_empty_files_and_documents(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_text("")
    (tmp_path / "corpus" / "b.txt").write_text("")
    with pytest.raises(EmptyCorpus, match="no document to encode"):
        encode(tmp_path / "corpus", tmp_path / "out")
    write(tmp_path / "corpus" / "c.jsonl", range(3))
    with (tmp_path / "corpus" / "c.jsonl").open("a") as file:
        file.write('{"_id": "e", "text": ""}\n')
    assert encode(tmp_path / "corpus", tmp_path / "out").documents == 3
    with SearchEngine.create(tmp_path / "c", Words()) as engine:
        summary = engine.add(read_corpus(tmp_path / "corpus"), tmp_path / "out")
        assert (summary.added, summary.without_text.count) == (3, 2)


def test_malformed_records(corpus: Path, tmp_path: Path) -> None:
    with (corpus / "c.jsonl").open("a") as file:
        file.write("nonsense\n" + json.dumps({"_id": "after", "text": "zz"}) + "\n")
    summary = encode(corpus, tmp_path / "out")
    assert summary.unread.failed.count == 1 and summary.documents == 90
    assert "the rest of the file was left out" in summary.unread.failed.first[0]
    assert encode(corpus, tmp_path / "out").encoded == 1  # each time, for it may be readable now
    again = encode(corpus, tmp_path / "out", skip_bad=True)
    assert (again.documents, again.bad.count, again.unread.failed.count) == (91, 1, 0)
    assert encode(corpus, tmp_path / "out").encoded == 0
    with pytest.raises(CorpusError, match=r"c.jsonl:19: not JSON"):
        encode(corpus / "c.jsonl", tmp_path / "other")
    with (corpus / "b.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(CorpusError, match=r"b.jsonl from byte \d000:\d+: not JSON"):
        encode(corpus / "b.jsonl", tmp_path / "other")


def test_an_encoder_that_returns_nan(tmp_path: Path) -> None:
    def nan(texts: list[str]) -> npt.NDArray[np.float32]:
        return np.array([[1, np.nan if text == "bad" else 1] for text in texts], np.float32)

    (tmp_path / "c.jsonl").write_text('{"_id": "k", "text": "bad"}\n')
    with pytest.raises(CollectionError, match=r"c.jsonl:1: the encoder returned NaN"):
        encode(tmp_path / "c.jsonl", tmp_path / "out", nan)
    assert not list((tmp_path / "out" / "parts").iterdir())


def test_a_file_that_changes_meanwhile(corpus: Path, tmp_path: Path) -> None:
    class Slow(Words):
        def encode(self, texts: Sequence[str], *, role: str | None = None) -> Any:
            if len(self.calls) == 1:
                write(corpus / "a.jsonl", range(21))
            return super().encode(texts, role=role)

    (corpus / "a.jsonl").rename(corpus / "aa.jsonl")
    write(corpus / "a.jsonl", range(20))
    encoder = Slow()
    encoder.calls.append([])
    with pytest.raises(CorpusError, match=r"a.jsonl was changed while it was read; run the same"):
        encode(corpus, tmp_path / "out", encoder)
    assert not list((tmp_path / "out" / "parts").iterdir())


def test_documents_that_cannot_be_encoded(corpus: Path, tmp_path: Path) -> None:
    for source, message in (
        ("-", "is read once, by one process"),
        ("sqlite:///x.db?table=t", "no such file"),
        (tmp_path / "nothing", "no such file or folder"),
    ):
        with pytest.raises(CorpusError, match=message):
            encode_corpus(source, tmp_path / "out", Words())
    with pytest.raises(CorpusError, match=r"is inside the corpus"):
        encode(corpus, corpus / "out")
    for name in ("file", "parts/0.npz"):
        (tmp_path / "full" / "parts").mkdir(parents=True, exist_ok=True)
        (tmp_path / "full" / name).touch()
        with pytest.raises(CorpusError, match=r"exists already and holds other files; choose"):
            encode(corpus, tmp_path / "full")
        (tmp_path / "full" / name).unlink()
    with locked(tmp_path / "out"), pytest.raises(CollectionBusy, match="another process writes to"):
        encode(corpus, tmp_path / "out")


def test_ray_is_an_extra(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"needs ray: .*pip install 'searchengine\[ray\]'"):
        encode(corpus, tmp_path / "out", on="ray")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_is_not_there(address: str) -> None:
    with pytest.raises(ServerError, match=r"Ray cannot be reached \(.*127.0.0.1.*correct RAY_ADDR"):
        check_reachable(address)
    for name in ("", "auto", "local"):
        check_reachable(name)


def test_digests_that_begin_alike(tmp_path: Path) -> None:
    """Two documents whose digests share their first 8 bytes are told apart by the others."""
    documents = [Document("a", "one"), Document("b", "three")]
    digests = [document.digest for document in documents]
    folder = EncodedFolder.create(
        tmp_path / "out", {"source": None, "dim": 16, "fingerprint": "word-lengths"}, None
    )
    twin = digests[0][:8] + bytes(24)
    stored = np.frombuffer(twin + digests[0] + digests[1], np.uint8).reshape(-1, 32)
    spans = np.array([(0, 0, 1), (1, 0, 3), (2, 0, 5)])
    vectors = np.eye(3, 16, dtype=np.float32)
    written = write_part(folder.parts, [Block(stored, spans, vectors)])
    folder.add(Entry("part", source="x", **written._asdict()))
    reader = EncodedReader(EncodedFolder(tmp_path / "out"), WordLengths(), None)
    cut, _ = reader.cut(documents)
    assert cut == [[(0, 3)], [(0, 5)]]
    rows = reader.encode([(documents[1], (0, 5)), (documents[0], (0, 3))], [], lambda _: None)
    assert np.array_equal(rows, vectors[[2, 1]])
    with pytest.raises(CorpusError, match="has no vectors of the document 'c'"):
        reader.cut([Document("c", "x")])


@given(
    lines=st.lists(st.text("a \u00e9", max_size=9), max_size=20),
    size=st.integers(1, 50),
    ends=st.booleans(),
)
def test_slices_hold_every_record_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int, ends: bool
) -> None:
    records = [
        json.dumps({"_id": str(i), "text": each}, ensure_ascii=False)
        for i, each in enumerate(lines)
    ]
    file = tmp_path_factory.mktemp("s") / "records.jsonl"
    file.write_text("\n".join(records) + ("\n" if ends else ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "SLICE", size)
        found = parts_of(file, Unread())
    assert len(found) == max(1, -(-file.stat().st_size // size))
    read = [d.key for part in found for d in part.documents(Columns(), None, Unread())]
    assert read == [str(i) for i in range(len(lines))]
    names = {part.fingerprint(Columns()) for part in found}
    assert len(names) == len(found)


def test_the_byte_before_a_slice_belongs_to_it(tmp_path: Path) -> None:
    """It says whether a line begins there."""
    part = parts.Part(tmp_path, ("r.jsonl",), (8, 16))
    found = []
    for data in (b'{"a":1}\n{"b":2}\n', b'{"a":1} {"b":2}\n'):
        (tmp_path / "r.jsonl").write_bytes(data)
        found.append(part.fingerprint(Columns()))
    assert found[0] != found[1]


def test_the_fields_of_a_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first record of a file must name its text; other fields have other vectors."""
    monkeypatch.setattr(parts, "SLICE", 20)
    lines = [
        {"_id": "1", "body": "a bb"},
        {"_id": "2", "title": "ccc", "n": 1},
        {"_id": "3", "body": "bb"},
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    encoder = Words()
    assert (
        encode(
            tmp_path / "r.jsonl", tmp_path / "out", encoder, columns=Columns(text="body")
        ).documents
        == 3
    )
    assert sorted(texts_of(encoder)) == ["a bb", "bb", "ccc"]
    summary = encode(tmp_path / "r.jsonl", tmp_path / "out", columns=Columns(text="body", id="_id"))
    assert summary.encoded == summary.parts == summary.others


def test_the_commands(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    for i in range(5):
        (notes / f"{i}.txt").write_text(f"the dog sleeps near the house {i} " * (4 * i + 1))
    model = write_sentence_transformer(tmp_path / "model")
    encoding = ("encode", notes, tmp_path / "out", "--encoder", model)
    done = run_json(*encoding, "--passage-tokens", "12")
    assert (done["documents"], done["parts"], done["encoded"]) == (5, 1, 1)
    assert done["passages"] > 20 and done["unreadable"]["count"] == 0
    again = run(*encoding)
    assert "5 documents in" in again.stderr and "; 0 of 1 part now" in again.stderr
    options = ("--vectors", tmp_path / "out")
    assert run_json("index", notes, tmp_path / "c", *options)["added"] == 5
    assert run_json("info", tmp_path / "c")["passages"] == done["passages"]
    assert run_json("index", notes, tmp_path / "c")["unchanged"] == 5
    (notes / "5.txt").write_text("another")
    (notes / "6.xyz").touch()
    refused = run("index", notes, tmp_path / "c", *options)
    assert refused.returncode == 2 and "has no vectors of the document '5.txt'" in refused.stderr
    changed = run(*encoding)
    assert "1 part of files that have changed, are gone, or are of another" in changed.stderr
    assert "1 entry of other kinds skipped" in changed.stderr
    other = run("index", notes, tmp_path / "d", *options, "--passage-tokens", "60")
    assert other.returncode == 2 and "and the collection" in other.stderr
    assert not (tmp_path / "d").exists()
    for arguments, message in (
        ((notes, *options, "--watch"), "--watch needs a folder of files"),
        ((notes, *options, "--passages-from", "x"), "--vectors FILE.npy"),
        ((notes, "--vectors", notes), "has no manifest.jsonl"),
    ):
        refused = run("index", arguments[0], tmp_path / "d", *arguments[1:])
        assert refused.returncode == 2 and message in refused.stderr
