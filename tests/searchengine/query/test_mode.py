"""The mode of a search that names none."""

from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.mode import WEIGHT, Mode
from searchengine.errors import QueryError
from searchengine.measure.judgements import default_mode

DOCUMENTS = [{"_id": str(i), "text": "a" * (i % 5 + 1) + " bb" * (i % 3)} for i in range(30)]


def collection(path: Path, **options: object) -> SearchEngine:
    engine = SearchEngine.create(path, WordLengths(), {"prefix": 4}, **options)  # type: ignore[arg-type]
    engine.add(DOCUMENTS)
    return engine


def test_new_collections_rank_by_both(tmp_path: Path) -> None:
    with collection(tmp_path / "c") as engine:
        assert engine.stats().mode == "hybrid"
        hits = engine.search("aa bb")
        assert hits == engine.search("aa bb", mode="hybrid") == engine.search("aa bb", mode="auto")
        assert hits != engine.search("aa bb", mode="vector")
        assert hits[0].scores.keys() == {"vector", "text"}
        assert engine.search_batch(["aa bb", "a"])[0] == hits


def test_by_vectors_where_words_cannot_help(tmp_path: Path) -> None:
    with collection(tmp_path / "c") as engine:
        vector = np.asarray(engine.encode(["aa bb"])[0])
        by_vector = engine.search("aa bb", mode="vector")
        assert [hit.key for hit in engine.search(vector)] == [hit.key for hit in by_vector]
        exact = engine.search("aa bb", exact=True)
        assert exact.exact and exact[0].scores.keys() == {"vector"}
        assert engine.similar("3", 2)[0].scores.keys() == {"vector"}
        for mode in ("text", "hybrid"):
            with pytest.raises(QueryError, match="needs questions as texts, got vectors"):
                engine.search(vector, mode=mode)
            with pytest.raises(QueryError, match=f"the mode {mode} needs questions"):
                engine.similar("3", mode=mode)


def test_without_an_index_of_words(tmp_path: Path) -> None:
    with collection(tmp_path / "c", tokenizer="none") as engine:
        assert engine.stats().mode == "vector"
        assert engine.search("aa bb")[0].scores.keys() == {"vector"}


def test_vectors_without_an_encoder(tmp_path: Path) -> None:
    path = tmp_path / "c"
    vectors = WordLengths().encode([each["text"] for each in DOCUMENTS])
    with SearchEngine.create(path, None, dim=vectors.shape[1]) as engine:
        engine.add(DOCUMENTS, vectors)
        assert engine.search("bb")[0].scores.keys() == {"text"}  # questions cannot be encoded
    with SearchEngine.open(path, WordLengths()) as engine:
        assert engine.search("bb")[0].scores.keys() == {"vector", "text"}


def test_a_default_that_a_user_sets(tmp_path: Path) -> None:
    with collection(tmp_path / "c") as engine, SearchEngine.open(engine.collection.path) as other:
        before, commit = engine.search("aa bb"), engine.stats().commit
        engine.set_default(weight=0.1)
        assert (engine.stats().mode, engine.stats().weight) == ("hybrid", 0.1)
        assert engine.stats().commit == commit + 1
        hits = engine.search("aa bb")
        assert [hit.score for hit in hits] != [hit.score for hit in before]
        engine.set_default("text")
        assert engine.search("aa bb")[0].scores.keys() == {"text"}
        assert other.stats().mode == "hybrid"
        other.refresh()
        assert (other.stats().mode, other.stats().weight) == ("text", 0.1)
        engine.set_default(Mode.VECTOR, 1)
        assert default_mode(engine) is Mode.VECTOR
        engine.reindex(WordLengths(8, "another"))  # which no longer suits the weight
        assert (engine.stats().mode, engine.stats().weight) == ("vector", WEIGHT)


@pytest.mark.parametrize(
    ("mode", "weight", "message"),
    [
        ("auto", None, "default mode must be one of vector, text, hybrid, got 'auto'"),
        ("fuzzy", None, "got 'fuzzy'"),
        (None, -0.1, "weight must be a number from 0 to 1, got -0.1"),
        (None, 1.5, "got 1.5"),
        (None, float("nan"), "got nan"),
        (None, "0.5", "got '0.5'"),
        (None, True, "got True"),
        (None, None, "a mode, a weight or both, got neither"),
    ],
)
def test_a_default_that_makes_no_sense(
    tmp_path: Path, mode: str | None, weight: float | None, message: str
) -> None:
    with collection(tmp_path / "c") as engine, pytest.raises(QueryError, match=message):
        engine.set_default(mode, weight)


def test_a_default_that_needs_words(tmp_path: Path) -> None:
    with collection(tmp_path / "c", tokenizer="none") as engine:
        engine.set_default("vector")
        for options in ({"mode": "text"}, {"mode": "hybrid"}, {"weight": 0.5}):
            with pytest.raises(QueryError, match="has no index of words, which the"):
                engine.set_default(**options)  # type: ignore[arg-type]
        assert engine.stats().mode == "vector"
