"""The engine with an encoder a human can compute: exact hits, filters, commits, bad input."""

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import Hit, SearchEngine
from searchengine.backends.folder.store import Changes, Store
from searchengine.encoders.loading import QuestionEncoder
from searchengine.errors import (
    CollectionError,
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    EncoderMissing,
    FilterError,
    QueryError,
)
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.segment import SegmentConfig

DOCUMENTS: list[dict[str, Any]] = [
    {"_id": "threes", "text": "the cat sat", "year": 2016, "lang": "en"},
    {"_id": "mixed", "text": "the cat slept", "year": 2014, "lang": "en"},
    {"_id": "fives", "title": "whale", "text": "sleep", "year": 2020, "lang": "ko"},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "words.index"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add(DOCUMENTS)
        yield engine


def keys(hits: list[Hit]) -> list[str]:
    return [hit.key for hit in hits]


def test_hits_are_exact_and_ordered(engine: SearchEngine) -> None:
    hits = engine.search("one dog", k=3, mode="vector")
    assert keys(hits) == ["threes", "mixed", "fives"]
    # (3,) against (3, 3, 5): 2 / √5
    assert [hit.score for hit in hits] == pytest.approx([1, 2 / 5**0.5, 0], abs=1e-3)
    metadata = {"year": 2020, "lang": "ko"}
    score = hits[2].score
    expected = ("fives", "whale", "sleep", metadata, 0, 5, "one dog", {"vector": score})
    assert hits[2] == Hit(score, *expected)
    assert str(hits[0]) == "1.000  threes\n       the cat sat"


def test_k_larger_than_the_collection_gives_what_there_is(engine: SearchEngine) -> None:
    assert len(engine.search("dog", k=50)) == 3
    assert len(engine.search("dog", k=2**62, shortlist=2**62)) == 3
    assert len(engine.search("dog", k=50, where="year > 2015")) == 2


def test_documents_without_text_are_skipped_and_named(engine: SearchEngine) -> None:
    summary = engine.add(
        [
            {"_id": "blank", "text": " \n"},
            {"_id": "none", "text": None},
            {"_id": "ok", "title": "a"},
        ]
    )
    assert (summary.added, summary.without_text.first) == (1, ["blank", "none"])
    assert keys(engine.search("a", k=1)) == ["ok"]


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        (
            [{"_id": "n", "text": "x"}, {"_id": "n", "text": "y"}],
            DuplicateKey,
            "'n' occurs twice",
        ),
        ([{"_id": "n", "text": "x"}, {"text": "y"}], CorpusError, "document 2: no _id"),
        ([{"_id": "n", "text": "x"}, {"_id": "m", "text": 3}], CorpusError, "text must be text"),
        ([], EmptyCorpus, "no document to index"),
        ([{"_id": "n", "text": ""}], EmptyCorpus, r"\(1 without text\)"),
    ],
)
def test_bad_documents_change_nothing(
    engine: SearchEngine, documents: Any, error: type[Exception], message: str
) -> None:
    before = engine.search("one dog")
    with pytest.raises(error, match=message):
        engine.add(documents)
    assert engine.search("one dog") == before
    assert [f.name for f in (engine.collection.path / "segments").iterdir()] == ["000001"]
    engine.add([{"_id": "n", "text": "now it works"}])


@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_unusable_vectors_are_refused_by_document(engine: SearchEngine, value: float) -> None:
    class Broken(WordLengths):
        def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> Any:
            vectors = super().encode(texts, role=role)
            vectors[-1] = value
            return vectors

    engine.encoder._present = QuestionEncoder(Broken())
    with pytest.raises(
        CollectionError, match="NaN, infinity or zero for the text 'y'; leave it out"
    ):
        engine.add([{"_id": "good", "text": "x"}, {"_id": "bad", "text": "y"}])
    assert engine.stats().documents == 3


@pytest.mark.parametrize(
    ("question", "options", "message"),
    [
        (5, {}, "a vector of numbers, got 5"),
        ("dog", {"k": 0}, "k must be a whole number of at least 1, got 0"),
        ("dog", {"k": "5"}, "k must be a whole number of at least 1, got '5'"),
        ("dog", {"k": True}, "k must be a whole number of at least 1, got True"),
        ("dog", {"shortlist": 0}, "shortlist must be a whole number of at least 1, got 0"),
        ("dog", {"shortlist": np.float64(3)}, "shortlist must be a whole number .* got .*3.0"),
        ("dog", {"mode": "x"}, "one of auto, vector, text, hybrid, got 'x'"),
        ("dog", {"exact": True, "mode": "text"}, "exact search needs the mode vector"),
        ("dog", {"phrases": "all"}, "phrases must be one of scored, required, got 'all'"),
        ("dog", {"where": 5}, "where must be a text or None; .*, got 5"),
        ("dog", {"where": "year >"}, "expected a value"),
        ("dog", {"where": "a = 'x\0y'"}, r"U\+0000, which no metadata contains"),
        ("dog", {"group_by": ["n"]}, r"group_by must be a text or None, got \['n'\]"),
        ("dog", {"offset": -1}, "offset must be a whole number of at least 0, got -1"),
        ("dog", {"min_score": 1e308}, r"be a number below 1e300, or None, got 1e\+308"),
        ("dog", {"facets": "year"}, "facets must be a list of field names, got 'year'"),
    ],
)
def test_what_a_search_refuses(
    engine: SearchEngine, question: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((QueryError, FilterError), match=message):
        engine.search(question, **options)


@pytest.mark.parametrize(
    ("patches", "error", "message"),
    [
        ({"threes": {"n": float("nan")}}, CorpusError, "it holds a missing value, such as NaN"),
        ({"threes": {"n": object()}}, CorpusError, "update of 'threes': metadata 'n'"),
        ({"threes": 5}, QueryError, "update of 'threes' must be a mapping of metadata, got int"),
        ({"threes": {"n": "a\0b"}}, CorpusError, r"update of 'threes': metadata 'n' .* U\+0000"),
        ({"threes": {"n": 1}, "gone": {}}, QueryError, "no document 'gone'; nothing was changed"),
    ],
)
def test_bad_updates_change_nothing(
    engine: SearchEngine, patches: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.update(patches)
    assert engine.search("dog", 1)[0].metadata == {"year": 2016, "lang": "en"}
    engine.update({"threes": {"n": 1}})
    engine.update({})


def test_bad_deletions(engine: SearchEngine) -> None:
    with pytest.raises(QueryError, match="either keys or a filter"):
        engine.delete()
    with pytest.raises(FilterError):
        engine.delete(where="year >")
    assert engine.delete(["nobody"]) == 0
    assert engine.stats().documents == 3


def test_create_refuses_a_folder_in_use_and_a_wide_prefix(engine: SearchEngine, path: Path) -> None:
    with pytest.raises(CollectionError, match="exists already"):
        SearchEngine.create(path, WordLengths())
    with pytest.raises(SegmentConfigError, match=r"wider than the vectors \(16\)"):
        SearchEngine.create(path.with_name("other"), WordLengths(), SegmentConfig())
    assert not path.with_name("other").exists()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_path_of_a_moved_encoder_is_requested(engine: SearchEngine, path: Path) -> None:
    with Store(path / "documents.db") as store, store.transaction():
        gone = {"source": str(path / "gone"), "fingerprint": "word-lengths", "dim": 16}
        Changes(store).set("encoder", gone)
    with (
        SearchEngine.open(path) as moved,
        pytest.raises(EncoderMissing, match=r"gone, which cannot be loaded .*--encoder PATH"),
    ):
        moved.search("dog")
    with SearchEngine.open(path, WordLengths()) as found:
        assert keys(found.search("one dog", k=1)) == ["threes"]


def test_a_segment_of_another_commit_is_refused(engine: SearchEngine, path: Path) -> None:
    engine.add([{"_id": str(i), "text": "x" * (i + 1)} for i in range(3)])
    engine.close()
    shutil.rmtree(path / "segments" / "000001")
    shutil.copytree(path / "segments" / "000002", path / "segments" / "000001")
    with pytest.raises(CollectionError, match=r"manifest.json is not the committed one"):
        SearchEngine.open(path, WordLengths())


def test_the_callers_own_errors_pass_as_they_are(engine: SearchEngine) -> None:
    def missing() -> Iterator[dict[str, str]]:
        yield {"_id": "x", "text": "x"}
        raise FileNotFoundError(errno.ENOENT, "No such file", "/my/source.csv")

    with pytest.raises(FileNotFoundError, match=r"/my/source\.csv"):
        engine.add(missing())

    def query() -> Iterator[dict[str, str]]:
        sqlite3.connect(":memory:").execute("SELECT * FROM nope")
        yield {}

    with pytest.raises(sqlite3.OperationalError, match="no such table: nope"):
        engine.add(query())
    assert engine.stats().documents == 3
    assert engine.add([{"_id": "x", "text": "x"}]).added == 1


def test_a_closed_engine_says_so_and_writes_nothing(engine: SearchEngine, path: Path) -> None:
    engine.close()
    engine.close()
    for use in (
        lambda: engine.search("dog"),
        lambda: engine.add([{"_id": "x", "text": "x"}]),
        engine.stats,
        engine.refresh,
        engine.verify,
    ):
        with pytest.raises(CollectionError, match="is closed; open it again"):
            use()
    with SearchEngine.open(path, WordLengths()) as again:
        assert again.stats().documents == 3
