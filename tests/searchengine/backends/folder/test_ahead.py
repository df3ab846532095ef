"""Segments built before the write lock is taken: equal to those built under it, and never wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.backends.folder import collection as ahead
from searchengine.backends.folder.writer import Writer

DIM = 8
DOCUMENTS = [{"_id": f"d{i}", "title": f"Title {i}", "text": f"word{i} sea"} for i in range(300)]
VECTORS = np.random.default_rng(0).standard_normal((300, DIM)).astype(np.float32)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MIN_ROWS", 1)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each segment that was added: was it built before the lock was taken?"""
    found: list[bool] = []
    adopting: list[bool] = []
    adopt, add = Writer.adopt, Writer._add

    def adopted(self: Writer, *args: object) -> None:
        adopting.append(True)
        adopt(self, *args)  # type: ignore[arg-type]

    def added(self: Writer, *args: object) -> None:
        found.append(bool(adopting))
        adopting.clear()
        add(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "adopt", adopted)
    monkeypatch.setattr(Writer, "_add", added)
    yield found


def begun(path: Path, structure: str = "flat") -> SearchEngine:
    """A collection with the first hundred documents."""
    engine = SearchEngine.create(path, None, {"structure": structure, "prefix": DIM}, dim=DIM)
    engine.add(DOCUMENTS[:100], VECTORS[:100])
    return engine


def once(action: Callable[[], object]) -> Callable[[str, int, int], None]:
    """A progress callback that does something at its first call."""
    left = [action]

    def progress(_step: str, _done: int, _total: int) -> None:
        if left:
            left.pop()()

    return progress


def test_equal_to_one_built_under_the_lock(
    tmp_path: Path, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors, index and words, byte for byte; a document without vector and one that is known."""
    vectors = [None if i == 150 else VECTORS[i] for i in range(300)]
    files = []
    for name, limit in (("ahead", 1), ("under", 1 << 40)):
        monkeypatch.setattr(ahead, "MIN_ROWS", limit)
        with begun(tmp_path / name, "hnsw") as engine:
            engine.add(DOCUMENTS[99:], vectors[99:])
            segment = list(engine.collection.segments.values())[1]
            assert segment.rows == 199
            files.append({each.name: each.read_bytes() for each in segment.path.iterdir()})
            assert not list((tmp_path / name / "pending").glob("*"))
            engine.verify()
            assert engine.search("word170", mode="text")[0].key == "d170"
            assert engine.search(VECTORS[171], k=1)[0].key == "d171"
    assert taken == [False, True, False, False]
    assert {"vectors.bin", "coarse.faiss", "words.bin"} & set(files[0]) and files[0] == files[1]


@pytest.mark.parametrize("change", ["add", "delete", "unchanged"])
def test_built_again_if_others_wrote_the_same_documents(
    tmp_path: Path, taken: list[bool], change: str
) -> None:
    """Of two that add one key, the last to commit is stored, or knows that it is the same."""
    with begun(tmp_path / "c") as engine, SearchEngine.open(tmp_path / "c") as other:
        document, vector = DOCUMENTS[200], VECTORS[200:201]
        actions = {
            "add": lambda: other.add([document | {"text": "other text"}], VECTORS[:1]),
            "delete": lambda: other.delete(["d50"]),
            "unchanged": lambda: other.add([document], vector),
        }
        taken.clear()
        engine.add(DOCUMENTS[50:], VECTORS[50:], building=once(actions[change]))
        assert taken[-1]
        assert sorted(engine.keys()) == sorted(each["_id"] for each in DOCUMENTS)
        assert [engine[f"d{i}"].text for i in (50, 200)] == ["word50 sea", "word200 sea"]
        for i in (50, 199, 200, 201, 299):
            assert engine.search(VECTORS[i], k=1)[0].key == f"d{i}"
            assert engine.search(f"word{i}", mode="text")[0].key == f"d{i}"
        engine.verify()
