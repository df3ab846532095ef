"""Encoding beside reading and building: what overlaps, what is thrown where, and that it ends."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from conftest import WordLengths, commits_of
from cut_documents import EXACT, Words
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.backends.folder.collection import Collection
from searchengine.ingest import ingestion, pipeline

EVERY = 600  # documents to a commit
LONG = "a" * (1 << 19)  # a document that is read and encoded alone
SOON = 20  # seconds after which a test that waits for another thread has failed


def document(i: int) -> dict[str, Any]:
    return {"_id": f"k{i}", "text": "a" * (i % 16 + 1) + " bb" * (i % 3)}


def stored(path: Path) -> int:
    """What a reader finds who opens the collection now."""
    with SearchEngine.open(path, WordLengths()) as engine:
        return engine.stats().documents


def encoding_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("encoding")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.index"


class Hooked(WordLengths):
    """Calls `before` with the number of each call, from 1, in the thread that encodes."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()
        self.before = before
        self.encoded = 0

    def encode(self, texts: Sequence[str], *, role: Any = None, **_: Any) -> Any:
        self.before(len(self.calls) + 1)
        vectors = super().encode(texts, role=role)
        self.encoded += len(texts)
        return vectors


def test_what_comes_next_is_read_while_the_encoder_is_busy(path: Path) -> None:
    second_block = threading.Event()

    def wait(call: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if call == 1:
            assert second_block.wait(SOON), "nothing was read meanwhile"

    def stream() -> Iterator[dict[str, Any]]:
        for i in range(2):
            assert threading.current_thread() is threading.main_thread()
            if i == 1:
                second_block.set()
            yield {"_id": f"k{i}", "text": LONG}

    def progress(documents: int, tokens: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        reported.append(documents)
        assert sum(reported) <= encoder.encoded  # not what was merely read

    reported: list[int] = []
    encoder = Hooked(wait)
    with SearchEngine.create(path, encoder, {"prefix": 4}) as engine:
        engine.add(stream(), progress=progress)
    assert reported == [1, 1]
    assert not encoding_threads()


@pytest.mark.parametrize(("call", "kept"), [(1, 0), (2, EVERY), (3, 2 * EVERY)], ids=str)
def test_a_failing_encoder_undoes_the_commit_that_it_failed(
    path: Path, call: int, kept: int
) -> None:
    error = OSError(5, "the encoder's own")

    def fail(number: int) -> None:
        if number == call:
            raise error

    with SearchEngine.create(path, Hooked(fail), {"prefix": 4}) as engine:
        with pytest.raises(OSError) as raised:
            with commits_of(EVERY):
                engine.add(map(document, range(3 * EVERY)))
        assert raised.value is error
        assert not encoding_threads()
        assert engine.stats().documents == stored(path) == kept
        engine.verify()
        assert len(list((path / "segments").iterdir())) == engine.stats().segments


def test_an_interrupted_add_stops_the_encoder_between_two_batches(path: Path) -> None:
    encoding = threading.Event()

    class Slow(WordLengths):
        def encode(self, texts: Any, *, role: Any = None, on_batch: Any = None) -> Any:
            encoding.set()
            until = time.monotonic() + SOON
            while time.monotonic() < until:
                time.sleep(0.001)
                on_batch(1)
            return super().encode(texts, role=role)

    def stream() -> Iterator[dict[str, Any]]:
        yield {"_id": "k", "text": LONG}
        assert encoding.wait(SOON)
        raise KeyboardInterrupt

    encoder = Slow()
    with SearchEngine.create(path, encoder, {"prefix": 4}) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.add(stream())
        assert encoder.calls == []  # neither the call that was under way nor another
        assert not encoding_threads()
        assert stored(path) == 0


@pytest.mark.parametrize("same", [True, False])
def test_what_was_read_ahead_is_compared_again(path: Path, same: bool) -> None:
    """Another writes what this one has read already, and not committed."""
    theirs = [document(EVERY + 3), {"_id": "theirs", "text": "ccc"}]
    if not same:
        theirs[0] = {**theirs[0], "text": "ddd ddd"}

    def other_writes(call: int) -> None:
        if call == 2:  # of the second commit, whose documents were compared before
            with SearchEngine.open(path, WordLengths()) as other:
                other.add(theirs)

    with SearchEngine.create(path, Hooked(other_writes), {"prefix": 4}) as engine:
        with commits_of(EVERY):
            summary = engine.add(map(document, range(EVERY + 20)))
        changes = (summary.added, summary.changed, summary.unchanged)
        assert changes == (EVERY + 19, int(not same), int(same))
        engine.verify()
        texts = {each.key: each.text for each in engine.documents() if each.key != "theirs"}
        assert texts == {each["_id"]: each["text"] for each in map(document, range(EVERY + 20))}
        assert len(engine) == EVERY + 21


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    before=st.sets(st.integers(0, 59), max_size=20),
    every=st.none() | st.integers(1, 12),
    first=st.tuples(st.integers(1, 4), st.integers(1, 60)),
    largest=st.tuples(st.integers(4, 16), st.integers(60, 300)),
    at_once=st.integers(1, 8),
)
def test_however_it_is_divided_each_passage_has_its_vector(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    before: set[int],
    every: int | None,
    first: tuple[int, int],
    largest: tuple[int, int],
    at_once: int,
) -> None:
    documents = [
        {"_id": f"k{i}", "text": " ".join("a" * ((i + 7 * word) % 16 + 1) for word in range(count))}
        for i, count in enumerate(lengths)
    ]
    old = [each for i, each in enumerate(documents) if i in before]
    path = tmp_path_factory.mktemp("divided") / "c"
    encoder = Words(4)
    reported: list[int] = []
    with (
        patch.object(pipeline, "FIRST_BLOCK", first),
        patch.object(pipeline, "LARGEST_BLOCK", largest),
        patch.object(pipeline, "BATCH", at_once),
        patch.object(ingestion, "MOST", (every or 1 << 20, 1 << 26)),
        SearchEngine.create(path, encoder, EXACT) as engine,
    ):
        if old:
            engine.add(old)
        summary = engine.add(iter(documents), progress=lambda n, _: reported.append(n))
        assert (summary.added, summary.unchanged) == (len(documents) - len(old), len(old))
        assert sum(reported) == len(documents)
        assert sum(map(len, encoder.calls)) == engine.stats().passages
        assert max(map(len, encoder.calls)) <= at_once
        with engine.collection.reading() as snapshot:
            texts = {i: each.text for i, each in _by_id(snapshot.store).items()}
            passages = snapshot.store.passages_of(texts)
            found = snapshot.vectors(passages.ids)
            rows = zip(*passages[1:], strict=True)
            expected = Words(4).encode([texts[of][start:end] for of, start, end in rows])
            np.testing.assert_allclose(found, expected, atol=1e-5)


def _by_id(store: Any) -> dict[int, Any]:
    every = store.documents(store.ids_after(-1, None, 1 << 40))
    states = store.known([each.key for each in every])
    return {states[each.key].id: each for each in every}


@pytest.mark.parametrize("change", [
    lambda engine: engine.add([{"_id": "k0", "text": "bb"}, {"_id": "k1", "text": "ccc"}]),
    lambda engine: engine.update({"k0": {"n": 1}}),
    lambda engine: engine.delete(["k0"]),
])  # fmt: skip
def test_after_ctrl_c_between_a_commit_and_its_end_the_engine_shows_the_commit(
    tmp_path: Path, change: Callable[[SearchEngine], object]
) -> None:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        engine.add([{"_id": "k0", "text": "a"}])
        before = list(engine.documents())
        with patch.object(Collection, "_show_newest", side_effect=KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                change(engine)
        with SearchEngine.open(tmp_path / "x", WordLengths()) as other:
            assert list(engine.documents()) == list(other.documents()) != before


def test_an_add_of_several_commits_ends_in_one_segment(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        with commits_of(1):
            engine.add([{"_id": f"k{i}", "text": "a"} for i in range(3)])
        assert (engine.stats().documents, engine.stats().segments) == (3, 1)
        for i in range(2):  # a segment of another call waits for its tier
            engine.add([{"_id": f"more{i}", "text": "a"}])
        assert engine.stats().segments == 3


@pytest.mark.parametrize(("dim", "prefix"), [(768, 128), (128, 128), (100, 96), (50, 48), (7, 7)])
def test_the_default_prefix_is_a_multiple_of_8(tmp_path: Path, dim: int, prefix: int) -> None:
    with SearchEngine.create(tmp_path / "c", encoder=None, dim=dim) as engine:
        assert engine.stats().index_config["prefix"] == prefix
