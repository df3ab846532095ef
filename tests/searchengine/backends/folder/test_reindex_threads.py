"""A reindex beside other threads of the same engine: vectors and encoder never differ."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from conftest import Remainders, WordLengths, commits_of, during
from cut_documents import Words
from scenarios import document

from searchengine import Document, SearchEngine
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import Scratch
from searchengine.encoders.loading import CollectionEncoder
from searchengine.errors import CollectionError, EncoderMismatch
from searchengine.ingest.ingestion import Ingestion
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.pipeline import Pipeline

CUTTING = Words(8, "cutting", strict=False)
Act = Callable[[SearchEngine], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([document(i) for i in range(5)])
        yield engine


def holds(engine: SearchEngine, numbers: set[int], encoder: WordLengths) -> None:
    """These documents, each with its vector of this encoder; also in a new engine."""
    with SearchEngine.open(engine.collection.path, encoder) as fresh:
        for each in (engine, fresh):
            each.verify()
            documents = list(each.documents())
            assert {document.key for document in documents} == {f"d{n}" for n in numbers}
            for document_ in documents:
                (stored,) = each.vectors([document_.key])[0]
                (expected,) = encoder.encode([document_.text])
                assert stored @ expected == pytest.approx(1, abs=1e-3), document_.key
            hits = each.search(documents[0].text, len(documents), mode="vector")
            assert len(hits) == len(documents) and hits[0].score == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("owner, step, when", [
    (Ingestion, "_read", 1),
    (Ingestion, "_read", 2),
    (Pipeline, "start", 1),
    (Ingestion, "_commit", 1),
    (Ingestion, "_commit", 2),
    (Collection, "open_store", 2),
    (PassageReader, "cut", 1),
])  # fmt: skip
@pytest.mark.parametrize("every", [20_000, 5])
def test_documents_encoded_before_a_reindex_are_encoded_again(
    engine: SearchEngine,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    step: str,
    when: int,
    every: int,
) -> None:
    called: list[object] = []

    def reindex() -> None:
        called.append(1)
        engine.reindex(Remainders())

    with monkeypatch.context() as patch, commits_of(every, ahead=2):
        during(patch, owner, step, reindex, when)
        added = engine.add([document(i, version=int(i == 4)) for i in range(20)])
    expected = (15, 1, 0, 4)
    assert (added.added, added.changed, added.metadata_updated, added.unchanged) == expected
    if not called:  # a single commit
        assert when == 2
        engine.reindex(Remainders())
    holds(engine, set(range(20)), Remainders())


@pytest.mark.parametrize("owner, step", [
    (Collection, "_fold_log"),  # the swap is committed and shown
    (Scratch, "clear"),
    (CollectionEncoder, "settle"),
])  # fmt: skip
@pytest.mark.parametrize("act", [
    lambda engine: engine.add([document(7)]),
    lambda engine: engine.delete(["d4"]),
    lambda engine: engine.update({"d4": {"seen": True}}),
    lambda engine: engine.refresh(),
    lambda engine: engine.optimize(),
    lambda engine: engine.search("x"),
    lambda engine: engine.index_fields("n"),
])  # fmt: skip
def test_between_the_swap_and_its_end_everything_goes_on(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, act: Act
) -> None:
    with monkeypatch.context() as patch:
        during(patch, owner, step, lambda: act(engine), 1 + (owner is Scratch))
        engine.reindex(Remainders())
    numbers = {document.key for document in engine.documents()}
    holds(engine, {int(key[1:]) for key in numbers}, Remainders())


def test_vectors_that_came_with_documents_are_not_stored_beside_those_of_another_encoder(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        during(patch, Ingestion, "_commit", lambda: engine.reindex(Remainders()))
        with pytest.raises(EncoderMismatch, match="reindexed by the encoder remainders after"):
            engine.add([document(7)], np.eye(1, 16))
    holds(engine, set(range(5)), Remainders())


def test_another_engine_loses_its_add_and_stores_nothing(
    engine: SearchEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SearchEngine.open(path, WordLengths()) as other:
        with monkeypatch.context() as patch:
            during(patch, Ingestion, "_commit", lambda: other.reindex(Remainders()))
            with pytest.raises(EncoderMismatch, match=r"remainders|in memory"):
                engine.add([document(7)])
        holds(other, set(range(5)), Remainders())


def test_a_reindex_by_the_same_encoder_with_other_passages_counts_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SearchEngine.create(path, CUTTING, passages=True) as engine:
        engine.add([document(1)])
        with monkeypatch.context() as patch:
            during(patch, Ingestion, "_commit", lambda: engine.reindex(CUTTING, passages=False))
            engine.add([Document("d9", " ".join(["x"] * 30))])
        assert engine.stats().passages == 2
        holds(engine, {1, 9}, CUTTING)


def alter(path: Path, text: str = "x xxxx") -> None:
    with closing(sqlite3.connect(path / "documents.db")) as connection, connection:
        connection.execute("UPDATE documents SET text = ? WHERE key = 'd3'", [text])


def test_an_altered_text_is_named_and_not_left_without_a_vector(
    engine: SearchEngine, path: Path
) -> None:
    alter(path)
    with pytest.raises(CollectionError, match="the text of 'd3' differs from what was stored"):
        engine.reindex(Remainders())
    assert SearchEngine.repair(path, WordLengths()).whole
    engine.reindex(Remainders())
    holds(engine, set(range(5)), Remainders())


@pytest.mark.parametrize("act, method", [
    (lambda engine: engine.search_batch(["x"]), "encode"),
    (lambda engine: engine.add([document(7)]), "load"),
])  # fmt: skip
def test_the_encoder_is_asked_for_again_if_a_reindex_has_ended_meanwhile(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, act: Act, method: str
) -> None:
    with monkeypatch.context() as patch:
        during(patch, CollectionEncoder, method, lambda: engine.reindex(Remainders()))
        act(engine)
    numbers = {int(key[1:]) for key in engine.keys()}
    assert numbers >= set(range(5))
    holds(engine, numbers, Remainders())
