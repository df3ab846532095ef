"""A mirrored folder: whatever happens to its files, the collection equals a new one of it."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import commits_of
from cut_documents import EXACT, Words
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.corpus.documents import Document
from searchengine.corpus.files import Unread, read_corpus
from searchengine.errors import CorpusError, EmptyCorpus
from searchengine.ingest.folder_sync import FolderSync, MirrorOptions


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c.index", Words(), EXACT) as engine:
        yield engine


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files: path below the folder → text."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(engine: SearchEngine, path: Path) -> dict[str, tuple[Any, ...]]:
    """Key → document, passages and vectors, as an export has them."""
    engine.verify()
    shutil.rmtree(path, ignore_errors=True)
    engine.export(path)
    vectors = np.load(path / "vectors.npy").round(4).tolist() if len(engine) else []
    passages: dict[str, list[Any]] = {}
    with open(path / "passages.jsonl") as lines:
        for line, vector in zip(lines, vectors, strict=True):
            passage = json.loads(line)
            passages.setdefault(passage["key"], []).append((passage["start"], vector))
    with open(path / "documents.jsonl") as lines:
        documents = {each["_id"]: each for each in map(json.loads, lines)}
    return {key: (each, passages.pop(key)) for key, each in documents.items()} | passages


def fresh(folder: Path, path: Path, prefix: str = "") -> dict[str, tuple[Any, ...]]:
    """What a new collection of the folder has."""
    shutil.rmtree(path, ignore_errors=True)
    with SearchEngine.create(path, Words(), EXACT) as engine:
        try:
            engine.add(read_corpus(folder, key_prefix=prefix, unread=Unread()), skip_bad=True)
        except CorpusError:
            return {}
        return contents(engine, path.with_suffix(".export"))


def check(engine: SearchEngine, folder: Path, prefix: str = "") -> None:
    """The collection equals a new one of the folder."""
    beside = engine.collection.path.parent
    assert contents(engine, beside / "mirrored.export") == fresh(folder, beside / "f", prefix)


def encoded(engine: SearchEngine) -> list[str]:
    """The texts that were encoded since the last time."""
    calls: list[list[str]] = engine.encoder.load().calls  # type: ignore[attr-defined]
    texts = [text for call in calls for text in call]
    calls.clear()
    return texts


def done(summary: Any) -> tuple[int, int, int, int]:
    """Added, changed, unchanged, removed."""
    names = ("added", "changed", "unchanged", "removed")
    return tuple(getattr(summary, name) for name in names)  # type: ignore[return-value]


# ----------------------------------------------------------------------------------------- changes


def test_documents_of_deleted_files_are_removed(engine: SearchEngine, notes: Path) -> None:
    write(notes, {"a.txt": "a", "one/b.txt": "bb a", "one/c.txt": "ccc"})
    assert done(engine.mirror(notes)) == (3, 0, 0, 0)
    engine.update({"one/b.txt": {"seen": True}})
    write(notes, {"a.txt": "a bb"})
    shutil.rmtree(notes / "one")
    assert done(engine.mirror(notes)) == (0, 1, 0, 2)
    check(engine, notes)
    assert done(engine.mirror(notes)) == (0, 0, 1, 0)
    (notes / "a.txt").rename(notes / "b.txt")
    assert done(engine.mirror(notes)) == (1, 0, 0, 1)
    check(engine, notes)


def test_files_that_cannot_be_read_any_more_are_removed(engine: SearchEngine, notes: Path) -> None:
    write(notes, {"a.txt": "a", "b.txt": "bb", "c.txt": "ccc"})
    engine.mirror(notes)
    (notes / "a.txt").write_bytes(bytes(range(256)))
    (notes / "b.txt").write_text("")
    unread = Unread()
    summary = engine.mirror(notes, unread=unread)
    assert done(summary) == (0, 0, 1, 2)
    assert summary.without_text.first == ["b.txt"]
    assert [line.partition(":")[0] for line in unread.failed.first] == [str(notes / "a.txt")]
    check(engine, notes)


# ----------------------------------------------------------------------------- what is not touched


def test_documents_whose_reader_is_not_installed_stay(
    engine: SearchEngine, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(notes, {"a.txt": "a", "b.docx": ""})
    engine.add([Document("b.docx", "bb", root=str(notes), file="b.docx")])
    monkeypatch.setitem(sys.modules, "docx", None)
    for _ in ("beside another file", "alone"):
        engine.mirror(notes, unread=(unread := Unread()))
        assert "b.docx" in engine and "to read Word files, install" in unread.failed.first[0]
        (notes / "a.txt").unlink(missing_ok=True)
    assert [*engine.keys()] == ["b.docx"]


def test_documents_from_elsewhere_stay(engine: SearchEngine, notes: Path, tmp_path: Path) -> None:
    write(tmp_path / "more", {"a.txt": "a", "z.txt": "dddd"})
    write(notes, {"a.txt": "bb", "b.txt": "ccc"})
    engine.add([{"_id": "b", "text": "a record"}])
    engine.mirror(tmp_path / "more", MirrorOptions(key_prefix="more/"))
    engine.mirror(notes)
    (notes / "b.txt").unlink()
    (tmp_path / "more" / "z.txt").unlink()
    assert done(engine.mirror(notes)) == (0, 0, 1, 1)
    assert sorted(engine.keys()) == ["a.txt", "b", "more/a.txt", "more/z.txt"]
    more = engine.mirror(tmp_path / "more", MirrorOptions(key_prefix="more/"))
    assert done(more) == (0, 0, 1, 1)
    assert sorted(engine.keys()) == ["a.txt", "b", "more/a.txt"]
    engine.mirror(tmp_path / "more", MirrorOptions(key_prefix="copy/"))
    (tmp_path / "more" / "a.txt").unlink()
    write(tmp_path / "more", {"y.txt": "dddd"})
    engine.mirror(tmp_path / "more", MirrorOptions(key_prefix="copy/"))
    assert sorted(engine.keys()) == ["a.txt", "b", "copy/y.txt", "more/a.txt"]


def test_files_that_gitignore_names_are_mirrored_if_asked(
    engine: SearchEngine, notes: Path
) -> None:
    write(notes, {"a.txt": "a", "b.txt": "bb", ".gitignore": "b.txt"})
    for gitignore, expected in ((True, (1, 0, 0, 0)), (False, (1, 0, 1, 0)), (True, (0, 0, 1, 1))):
        assert done(engine.mirror(notes, MirrorOptions(gitignore=gitignore))) == expected


@pytest.mark.parametrize("was_there", [False, True])
def test_a_file_that_another_process_has_added_meanwhile_stays(
    engine: SearchEngine, notes: Path, was_there: bool
) -> None:
    write(notes, {"a.txt": "a"} | ({"b.txt": "bb"} if was_there else {}))
    engine.mirror(notes)
    (notes / "b.txt").unlink(missing_ok=True)
    sync = FolderSync(engine.collection, engine._reader, notes, MirrorOptions())
    sync.look(Unread())
    write(notes, {"b.txt": "bb a"})
    with SearchEngine.open(engine.collection.path, Words()) as other:
        other.mirror(notes)
    assert sync.run(Unread()).removed == 0
    check(engine, notes)


def test_an_empty_folder_does_not_empty_the_collection(engine: SearchEngine, notes: Path) -> None:
    write(notes, {"a.txt": "a", "b.txt": "bb"})
    engine.mirror(notes)
    (notes / "b.txt").unlink()
    (notes / "a.txt").write_text(" ")
    for emptied in (lambda: None, (notes / "a.txt").unlink, notes.rmdir):
        emptied()
        missing = not notes.exists()
        expected = "no such file or folder" if missing else r"remove all 2: .* delete .* a\.txt …$"
        with pytest.raises(CorpusError, match=expected):
            engine.mirror(notes)
        assert len(engine) == 2
    notes.mkdir()
    engine.delete(["a.txt", "b.txt"])  # the way out that the error names
    with pytest.raises(EmptyCorpus, match="no document to index"):
        engine.mirror(notes)  # nothing there, and nothing here


def test_only_folders_are_mirrored(engine: SearchEngine, notes: Path) -> None:
    write(notes, {"a.txt": "a"})
    with pytest.raises(CorpusError, match="is not a folder"):
        engine.mirror(notes / "a.txt")
    (notes / "loop").symlink_to("loop")
    for folder in (notes / "loop", notes / "a\0"):
        with pytest.raises(CorpusError, match="cannot be watched"):
            next(engine.watch(folder))
    write(notes, {"corpus.jsonl": '{"text": "a"}'})
    with pytest.raises(CorpusError, match=r"has the records of corpus\.jsonl"):
        engine.mirror(notes)


# ---------------------------------------------------------------------- what a look compares


def state_of(engine: SearchEngine, notes: Path) -> FolderSync:
    return FolderSync(engine.collection, engine._reader, notes, MirrorOptions())


def test_a_file_with_another_content_of_the_same_size_and_time(
    engine: SearchEngine, notes: Path
) -> None:
    write(notes, {"a.txt": "a"})
    state = state_of(engine, notes)
    state.look(Unread())
    state.unsettled.clear()
    assert state.settle()
    before = (notes / "a.txt").stat()
    (notes / "a.txt").write_text("b")
    os.utime(notes / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert state.look(Unread())
    assert state.changed == {"a.txt"}


def test_what_a_file_loses_while_it_is_written_stays_until_it_is_settled(
    engine: SearchEngine, notes: Path
) -> None:
    write(notes, {"a.txt": "a", "b.txt": "bb"})
    engine.mirror(notes)
    (notes / "a.txt").write_text("")  # an editor has emptied it, and is about to write
    state = state_of(engine, notes)
    state.look(Unread())
    assert state.run(Unread()).removed == 0
    assert "a.txt" in engine
    assert not state.settle()
    assert state.look(Unread()) and state.changed >= {"a.txt"}
    state.unsettled.clear()
    assert state.run(Unread()).removed == 1 and state.settle()


# ------------------------------------------------------------------------------- any order of them

NAMES = st.sampled_from(
    ["a.txt", "b.txt", "one/a.txt", "one/two/a.txt", "one", "b/b.txt", "a.txt/c.txt"]
)
TEXTS = st.sampled_from(["a", "bb a", "a a a a bb bb bb", "", "ccc dddd ccc a bb"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, TEXTS),
    st.tuples(st.just("remove"), NAMES, st.none()),
    st.tuples(st.just("move"), NAMES, NAMES),
    st.tuples(st.just("mirror"), st.none(), st.none()),
    st.tuples(st.just("kill"), st.integers(1, 3), st.none()),
)


def apply(folder: Path, step: tuple[Any, ...]) -> None:
    """Write, remove or move, where that is possible."""
    kind, name, other = step
    path = folder / name
    try:
        if kind == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(other.encode(errors="surrogateescape"))
        elif kind == "remove":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            (folder / other).parent.mkdir(parents=True, exist_ok=True)
            path.rename(folder / other)
    except OSError:
        return


@given(st.lists(STEPS, max_size=20), st.sampled_from(["", "p/"]))
def test_any_changes(tmp_path_factory: pytest.TempPathFactory, steps: Any, prefix: str) -> None:
    tmp_path = tmp_path_factory.mktemp("mirror")
    folder = tmp_path / "notes"
    folder.mkdir()
    write(tmp_path / "other", {"a.txt": "other"})
    with SearchEngine.create(tmp_path / "c.index", Words(), EXACT) as engine:
        engine.mirror(tmp_path / "other", MirrorOptions(key_prefix="other/"))
        for step in [*steps, ("mirror", None, None)]:
            if step[0] == "mirror":
                mirror(engine, folder, prefix)
            elif step[0] == "kill":  # ends in the middle: between two commits
                with pytest.raises(Ended):
                    mirror(engine, folder, prefix, Ended(step[1]))
            else:
                apply(folder, step)
        assert engine.get("other/a.txt") is not None
        engine.delete(["other/a.txt"])
        check(engine, folder, prefix)


class Ended(Exception):
    """Raised by a progress callback after some calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, *_: object) -> None:
        self.calls -= 1
        if not self.calls:
            raise self


def mirror(engine: SearchEngine, folder: Path, prefix: str, progress: Any = None) -> None:
    try:
        options = MirrorOptions(skip_bad=True, progress=progress, key_prefix=prefix)
        with commits_of(2):
            engine.mirror(folder, options)
    except EmptyCorpus as error:
        assert not fresh(folder, engine.collection.path.parent / "f", prefix)
        if "nothing was removed" in str(error):
            engine.delete(where=f"_id like '{prefix}%' and not _id like 'other/%'")
    if progress is not None:
        raise Ended(0)
