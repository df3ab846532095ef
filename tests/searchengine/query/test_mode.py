"""The mode of a search that names none."""

from pathlib import Path

import numpy as np
import pytest
from command_line import run_json
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import QueryError
from searchengine.storage.documents.store import Store
from searchengine.storage.mode import Mode

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
        vector = np.asarray(engine.encode_questions(["aa bb"])[0])
        by_vector = engine.search("aa bb", mode="vector")
        assert [hit.key for hit in engine.search(vector)] == [hit.key for hit in by_vector]
        exact = engine.search("aa bb", exact=True)
        assert exact.exact and exact[0].scores.keys() == {"vector"}
        assert engine.similar("3", 2)[0].scores.keys() == {"vector"}
        for options in ({"mode": "text"}, {"mode": "hybrid"}):
            with pytest.raises(QueryError, match="needs questions as texts, got vectors"):
                engine.search(vector, **options)  # type: ignore[arg-type]
            with pytest.raises(QueryError, match="similar needs the mode vector"):
                engine.similar("3", **options)  # type: ignore[arg-type]


def test_without_an_index_of_words(tmp_path: Path) -> None:
    with collection(tmp_path / "c", tokenizer="none") as engine:
        assert engine.stats().mode == "vector"
        assert engine.search("aa bb")[0].scores.keys() == {"vector"}


def test_a_collection_of_an_older_version_stays_by_vectors(tmp_path: Path) -> None:
    collection(tmp_path / "c").close()
    with Store(tmp_path / "c" / "documents.db") as store, store.transaction():
        store.execute("DELETE FROM settings WHERE name = 'mode'")
    with SearchEngine.open(tmp_path / "c", WordLengths()) as engine:
        assert engine.stats().mode == "vector"
        assert engine.search("aa bb") == engine.search("aa bb", mode="vector")
        engine.add([{"_id": "new", "text": "bb"}])
        engine.optimize()
        engine.reindex(WordLengths(8, "another"))
        assert engine.stats().mode == "vector"


def test_vectors_without_an_encoder(tmp_path: Path) -> None:
    path = tmp_path / "c"
    vectors = WordLengths().encode([each["text"] for each in DOCUMENTS])
    with SearchEngine.create(path, None, dim=vectors.shape[1]) as engine:
        engine.add(DOCUMENTS, vectors)
        assert engine.search("bb")[0].scores.keys() == {"text"}  # questions cannot be encoded
    with SearchEngine.open(path, WordLengths()) as engine:
        assert engine.search("bb")[0].scores.keys() == {"vector", "text"}


def test_a_reindex_by_an_encoder_that_reads_the_texts_ranks_by_both(tmp_path: Path) -> None:
    collection(tmp_path / "c").close()
    with Store(tmp_path / "c" / "documents.db") as store, store.transaction():
        store.execute("UPDATE settings SET value = '\"text\"' WHERE name = 'mode'")
    with SearchEngine.open(tmp_path / "c", WordLengths()) as engine:
        assert engine.search("aa bb")[0].scores.keys() == {"text"}
        assert engine.stats().mode == Mode.TEXT
        engine.reindex(WordLengths(8, "another"))
        assert engine.stats().mode == Mode.HYBRID


def test_shown_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"_id": "1", "text": "Whales sleep with half a brain."}\n')
    run_json("index", tmp_path / "c.jsonl", tmp_path / "c", "--encoder", "starter")
    assert run_json("info", tmp_path / "c")["mode"] == "hybrid"
    (hit,) = run_json("search", tmp_path / "c", "half a brain")
    assert hit["scores"].keys() == {"vector", "text"}
    # One document has all words of the question, though not often enough for the most they give.
    assert 0.65 * hit["scores"]["vector"] < hit["score"] < 0.65 * hit["scores"]["vector"] + 0.35
