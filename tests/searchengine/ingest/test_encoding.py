"""What is encoded and when: passages that fit, updates, encoders that lack something; and what is
measured of a collection with passages and deleted rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from cut_documents import (
    DOCUMENTS,
    EXACT,
    Words,
    brute_force,
    check,
    keys,
)

from searchengine import SearchEngine
from searchengine.encoders.loading import load_built_by
from searchengine.encoders.protocol import WrappedEncoder
from searchengine.errors import CollectionError, QueryError, SearchEngineError
from searchengine.indexer.errors import VectorError
from searchengine.ingest.passages import BATCH, PassageConfig, PassageReader
from searchengine.measure.retrieval import measure, task


def new_calls(engine: SearchEngine) -> list[list[str]]:
    """The calls of the encoder since the last time."""
    calls: list[list[str]] = engine.encoder.wrapped.calls  # type: ignore[attr-defined]
    found = list(calls)
    calls.clear()
    return found


# ---------------------------------------------------------------------------------- what is encoded


def test_an_update_replaces_all_passages(engine: SearchEngine) -> None:
    new_calls(engine)
    summary = engine.add([{**DOCUMENTS[0], "text": "sixsix sixsix a sixsix sixsix"}])
    assert (summary.added, summary.changed) == (0, 1)
    assert new_calls(engine) == [["sixsix sixsix a sixsix", "sixsix"]]
    assert (engine.stats().passages, engine.stats().tombstones) == (6, 3)
    assert (keys(engine.search("sixsix", 1)), keys(engine.search("bb", 1))) == (["long"], ["near"])
    assert "long" not in keys(engine.search("bb ccc", mode="text"))
    engine.optimize()
    assert (engine.stats().passages, engine.stats().tombstones) == (6, 0)
    assert engine.search("sixsix", 1)[0].passage in ("sixsix", "sixsix sixsix a sixsix")
    engine.verify()


def test_unchanged_documents_are_not_encoded(engine: SearchEngine) -> None:
    new_calls(engine)
    updated = {**DOCUMENTS[0], "n": 99}
    summary = engine.add([updated, *DOCUMENTS[1:], {"_id": "new", "text": "a"}])
    assert (summary.added, summary.metadata_updated, summary.unchanged) == (1, 1, 4)
    assert new_calls(engine) == [["a"]]
    assert [hit.passage for hit in engine.search("ccc", 1, where="n = 99")] == ["ccc ccc ccc ccc"]


def test_a_huge_document_is_encoded_in_blocks_that_fit(tmp_path: Path) -> None:
    words = ["a" * (n % 16 + 1) for n in range(120_000)]
    text = " ".join(words)
    assert len(text) > 1_000_000
    encoder = Words(32)
    with SearchEngine.create(tmp_path / "c", encoder, EXACT) as engine:
        engine.add([{"_id": "small", "text": "bb"}, {"_id": "huge", "text": text}])
        sizes = [len(texts) for texts in encoder.calls]
        assert max(sizes) == BATCH < sum(sizes) == engine.stats().passages
        assert len(sizes) == -(-sum(sizes) // BATCH)
        assert keys(engine.search("bb")) == ["small", "huge"]
        assert keys(engine.search("bb", mode="hybrid")) == ["small", "huge"]
        (hit,) = engine.similar("small")
        assert len(hit.passage.split()) <= 32 and hit.text[hit.start : hit.end] == hit.passage


def test_whole_documents_where_that_is_wished(tmp_path: Path) -> None:
    class Long(Words):
        """Truncates, as encoders do."""

        def encode(self, texts: Any, *, role: str | None = None) -> Any:
            return super().encode([" ".join(text.split()[:4]) for text in texts], role=role)

    with SearchEngine.create(tmp_path / "c", Long(), EXACT, passages=False) as engine:
        engine.add(DOCUMENTS)
        assert (engine.stats().cut, engine.stats().passages) == (None, 5)
        (hit,) = engine.search("a", 1)
        assert (hit.key, hit.passage) == ("long", hit.text)


def test_own_size_of_passages(tmp_path: Path) -> None:
    cut = PassageConfig(2)
    with SearchEngine.create(tmp_path / "c", Words(), EXACT, passages=cut) as engine:
        engine.add(DOCUMENTS[:1])
        assert engine.stats().cut == {"tokens": 2}
        assert new_calls(engine) == [["a a", "a a", "bb bb", "bb bb", "ccc ccc", "ccc ccc"]]
    with SearchEngine.open(tmp_path / "c", Words()) as engine:  # goes on as it was made
        engine.add([{"_id": "x", "text": "dddd dddd dddd dddd"}])
        assert new_calls(engine) == [["dddd dddd", "dddd dddd"]]


# --------------------------------------------------------------------- encoders without a tokenizer


def test_without_a_tokenizer_documents_are_whole_unless_cuts_are_asked_for(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths(), EXACT) as engine:
        engine.add(DOCUMENTS)
        assert (engine.stats().cut, engine.stats().passages) == (None, 5)
    with pytest.raises(CollectionError, match="needs token_spans and room"):
        SearchEngine.create(tmp_path / "d", WordLengths(), EXACT, passages=PassageConfig(8))
    assert not (tmp_path / "d").exists()
    with pytest.raises(CollectionError, match="needs token_spans and room"):
        PassageReader(WrappedEncoder(WordLengths()), {"passages": {"tokens": 8}})


@pytest.mark.parametrize("passages", [None, 1, 0, "yes", {"tokens": 3}])
def test_passages_are_yes_no_or_a_size(tmp_path: Path, passages: Any) -> None:
    with pytest.raises(CollectionError, match="passages must be True, False or a PassageConfig"):
        SearchEngine.create(tmp_path / "c", Words(), EXACT, passages=passages)


def test_opened_without_a_tokenizer_it_is_searched_and_not_added_to(
    engine: SearchEngine, tmp_path: Path
) -> None:
    with SearchEngine.open(tmp_path / "c", WordLengths()) as other:
        assert other.search("bb") == engine.search("bb")
        assert other.search("bb", mode="hybrid") == engine.search("bb", mode="hybrid")
        assert len(other.similar("long")) == 4
        with pytest.raises(CollectionError, match="needs token_spans and room"):
            other.add([{"_id": "x", "text": "x"}])
        assert other.delete(["far"]) == 1
    assert engine.add([{"_id": "x", "text": "x"}]).added == 1


def test_an_encoder_that_is_gone_is_named(tmp_path: Path) -> None:
    identity = {"source": "/no/such/model", "dim": 16, "fingerprint": "x"}
    with pytest.raises(CollectionError, match=r"/no/such/model, which cannot be loaded"):
        load_built_by(identity, tmp_path)
    with pytest.raises(CollectionError, match="pass it again"):
        load_built_by({**identity, "source": None}, tmp_path)


# ------------------------------------------------------------------------------------- measurements


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SearchEngine, list[Any]]]:
    """600 documents of about 3 passages in two segments, every third one deleted since."""
    rng = np.random.default_rng(0)
    documents = [
        {"_id": str(i), "text": " ".join("a" * n for n in rng.integers(1, 17, rng.integers(1, 20)))}
        for i in range(600)
    ]
    config = {"prefix": 16, "storage": "float32"}
    with SearchEngine.create(tmp_path_factory.mktemp("worn") / "c", Words(), config) as engine:
        engine.add(documents[:500])
        engine.add(documents[500:])
        engine.delete([str(i) for i in range(0, 600, 3)])
        yield engine, [each for i, each in enumerate(documents) if i % 3]


def test_retrieval_is_measured_over_what_is_there(worn: tuple[SearchEngine, list[Any]]) -> None:
    engine, live = worn
    assert engine.stats().tombstones > 100
    best, gone = engine.search("aaa aa", 1)[0].key, "0"
    for judged, expected in ((best, 1.0), (gone, 0.0)):
        judged_task = task(engine, {"q": "aaa aa"}, {"q": {judged: 1}})
        for row in measure(engine, judged_task, [16, 8]):
            assert row.ndcg_10 == row.scores["recall@100"].mean() == expected
    check(
        engine.search("aaa aa", 400, exact=True),
        brute_force(live, Words().encode(["aaa aa"], role="query")[0]),
        400,
    )


# -------------------------------------------------------------------------------- broken questions


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_an_encoder_that_fails_on_a_question(engine: SearchEngine, mode: str, value: float) -> None:
    class Broken(Words):
        def encode(self, texts: Any, *, role: str | None = None) -> Any:
            return np.full((len(texts), 16), value, np.float32)

    with SearchEngine.open(engine.collection.path, Broken()) as broken:
        with pytest.raises((VectorError, SearchEngineError)):
            broken.search("bb", mode=mode)


@pytest.mark.parametrize("questions", [[" "], ["a", ""], ["a", 5], [None]])
@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_blank_questions_are_refused(engine: SearchEngine, questions: Any, mode: str) -> None:
    with pytest.raises(QueryError, match=r"query.* (is empty|must be text)"):
        engine.search_batch(questions, mode=mode)
