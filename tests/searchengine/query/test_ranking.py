"""Documents cut into passages, ranked by vectors, words and both, against brute force."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut_documents import DOCUMENTS, EXACT, NEAR, Words, brute_force, check, collection, keys
from hypothesis import given
from hypothesis import strategies as st
from word_oracle import bm25

from searchengine import SearchEngine
from searchengine.corpus.analyzer import Analyzer
from searchengine.errors import CollectionError, FilterError, QueryError
from searchengine.query.ranking import MEAN, WINDOW, Fusion, fusion_of
from searchengine.query.request import Query

# ----------------------------------------------------------------------------------------- passages


def test_a_document_comes_once_by_its_best_passage(engine: SearchEngine) -> None:
    hits = engine.search("bb", k=4, mode="vector")
    assert keys(hits) == ["long", "near", "half", "other"]
    cosines = [1, 3 / 10**0.5, 1 / 2**0.5, 1 / 5**0.5]
    assert [hit.score for hit in hits] == pytest.approx(cosines, abs=NEAR)
    assert [(hit.start, hit.end) for hit in hits] == [(8, 19), (0, 12), (0, 6), (0, 14)]
    assert hits[0].passage == hits[0].snippet == "bb bb bb bb"
    assert engine.search("ccc", k=1, mode="vector")[0].passage == "ccc ccc ccc ccc"
    stats = engine.stats()
    assert (stats.documents, stats.passages, stats.cut) == (5, 7, {"tokens": 0})


def test_the_passage_is_the_one_that_the_fused_score_chooses(tmp_path: Path) -> None:
    """All words have three letters, and so all passages one vector; or the last is far from it."""
    texts = {
        "equal": "cat dog sun sky the the the the fan box pen elk",
        "far": "cat dog sun sky fan pen box cup yak fourteen eleven twelve",
        "other": "red ink ape owl",
        "more": "yak",
    }
    documents = [{"_id": key, "text": text} for key, text in texts.items()]

    def shown(question: str, key: str, mode: str) -> str:
        hits = engine.search(question, k=4, mode=mode)
        return next(hit.passage for hit in hits if hit.key == key)

    with collection(tmp_path, documents) as engine:
        for mode, passage in (
            ("vector", "cat dog sun sky"),
            ("text", "fan box pen elk"),
            ("hybrid", "fan box pen elk"),
        ):
            assert shown("the elk", "equal", mode) == passage, mode
        # Its cosine is ½ lower, which counts more than a word that several documents have.
        assert shown("cat yak", "far", "vector") == "cat dog sun sky"
        assert shown("cat yak", "far", "hybrid") == "cat dog sun sky"


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"where": "n < 60"}, {"shortlist": 1}])
def test_one_document_does_not_crowd_out_others(tmp_path: Path, options: dict[str, Any]) -> None:
    documents = [
        {"_id": "owner", "text": "bb " * 4 * 300, "n": 0},
        *({"_id": str(n), "text": "bb " + "ccc " * (n % 3 + 1), "n": n} for n in range(1, 91)),
    ]
    with collection(tmp_path, documents) as engine:
        allowed = documents[:60] if "where" in options else documents
        for k in (2, 10, 100):
            found = engine.search_batch(["bb", "ccc bb"], k, mode="vector", **options)
            for hits, question in zip(found, ("bb", "ccc bb"), strict=True):
                check(hits, brute_force(allowed, Words().encode([question], role="query")[0]), k)
            assert found[0].exact or not options.get("exact")


lines = st.lists(st.integers(1, 6).map(lambda n: "a" * n), min_size=1, max_size=120)
corpora = st.lists(st.tuples(st.sampled_from(["", "bb"]), lines), min_size=1, max_size=8)


@given(
    corpus=corpora,
    questions=st.lists(lines.map(lambda line: " ".join(line[:5])), min_size=1, max_size=3),
    cut=st.integers(1, 7),
    gone=st.sets(st.integers(0, 7), max_size=4),
    k=st.integers(1, 9),
    below=st.integers(0, 9),
)
def test_passages_equal_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    corpus: list[tuple[str, list[str]]],
    questions: list[str],
    cut: int,
    gone: set[int],
    k: int,
    below: int,
) -> None:
    """Documents of 1 to 30 passages or more, in two segments, some of them deleted."""
    documents: list[dict[str, Any]] = [
        {"_id": str(n), "title": title, "text": " ".join(line), "n": n}
        for n, (title, line) in enumerate(corpus)
    ]
    with collection(tmp_path_factory.mktemp("brute"), documents[:cut]) as engine:
        if documents[cut:]:
            engine.add(documents[cut:])
        engine.delete([str(n) for n in gone])
        there = [each for each in documents if each["n"] not in gone and each["n"] < below]
        where = f"n < {below}"
        wide = engine.search_batch(questions, k, shortlist=10_000, where=where, mode="vector")
        exact = engine.search_batch(questions, k, exact=True, where=where)
        vectors = Words().encode(questions, role="query")
        by_vector = engine.search_batch(vectors, k, exact=True, where=where)
        for question, vector, *found in zip(
            questions, vectors, wide, exact, by_vector, strict=True
        ):
            alone = engine.search(question, k, exact=True, where=where)
            for hits in (*found, alone):
                check(hits, brute_force(there, vector), k)
        assert all(hits.exact for hits in exact)


# -------------------------------------------------------------------------------------------- words


def by_words(engine: SearchEngine, question: str, k: int, where: str | None = None) -> list[Any]:
    """(key, BM25) written out."""
    documents = list(engine.documents(where))
    everything = {d.key: (d.title, d.text) for d in engine.documents()}
    scores = bm25(everything, Analyzer.parse(engine.stats().tokenizer), question)
    ranked = sorted((-scores[d.key], i, d.key) for i, d in enumerate(documents) if d.key in scores)
    return [(key, -score) for score, _, key in ranked[:k]]


@pytest.mark.parametrize("source", [None, "/no/such/model"])
def test_by_words_without_an_encoder(tmp_path: Path, source: str | None) -> None:
    encoder = Words()
    encoder.source = source  # type: ignore[attr-defined]
    with SearchEngine.create(tmp_path / "c", encoder, EXACT) as engine:
        engine.add(DOCUMENTS)
    with SearchEngine.open(tmp_path / "c") as engine:
        assert keys(engine.search("eeeee", mode="text")) == ["other"]
        assert keys(engine.search("eeeee", mode="text", group_by="n")) == ["other"]
        assert len(engine.search(np.ones(16))) == len(engine.similar("near")) + 1 == 5
        for mode in ("vector", "hybrid"):
            with pytest.raises(CollectionError, match="was built by"):
                engine.search("eeeee", mode=mode)


# --------------------------------------------------------------------------------------------- both


def mixed_cosines(engine: SearchEngine, question: str) -> dict[str, float]:
    """Key → cosine of the nearest passage, mixed with the mean of all of the document."""
    (vector,) = engine.encoder.load().encode([question])
    with engine.collection.reading() as snapshot:
        ids = snapshot.ids_after(-1, None, 1 << 20).tolist()
        passages = snapshot.passages(of=ids)
        cosines = snapshot.vectors(passages.ids) @ vector / np.linalg.norm(vector)
        own = [cosines[passages.documents == i] for i in ids]
        keys = [document.key for document in snapshot.documents(ids, texts=False)]
    mixed = [c.max() + MEAN * max(0, 1 - 2 / c.size) * (c.mean() - c.max()) for c in own]
    return dict(zip(keys, mixed, strict=True))


def fusing(engine: SearchEngine, question: str) -> Fusion:
    """The constants of a question, without a filter."""
    with engine.collection.reading() as snapshot:
        found = snapshot.by_words(question, WINDOW)
        assert found.scale >= found.scored[0][1]
        vector = engine.encoder.load().encode([question])[0]
        return fusion_of(snapshot, vector, found)


def test_both_show_what_only_words_find_by_its_nearest_passage(tmp_path: Path) -> None:
    """As many documents as are fused are nearer than the only one that has the word."""
    documents = [{"_id": str(n), "text": "xx xx" if n else "xx xx yyyy"} for n in range(WINDOW)]
    documents.append({"_id": "worded", "text": "a a a a word word bb word ccc ccc ccc ccc"})
    with collection(tmp_path, documents) as engine:
        question = "word bb bb bb"
        with engine.collection.writing() as writer:
            writer.changes.set("weight", 0.01)  # else equal documents would be nearer by far
        assert len(engine.search(question, WINDOW + 5, mode="hybrid")) == WINDOW + 1
        hits = engine.search(question, 3, mode="hybrid")
        assert keys(hits)[0] == "worded"
        assert hits[0].passage == "word word bb word"
        assert hits[0].scores.keys() == {"vector", "text"}
        scoring, cosines = fusing(engine, question), mixed_cosines(engine, question)
        for hit in hits:
            parts = cosines[hit.key], hit.scores.get("text", 0.0)
            assert hit.score == pytest.approx(scoring.score(*parts), abs=NEAR)


def test_both_equal_the_fusion_of_all_documents(tmp_path: Path) -> None:
    """Only promising documents of those found by words get a cosine: the result is the same."""
    rng = np.random.default_rng(3)
    words = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]
    texts = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(300)]
    documents = [{"_id": f"{i:03}", "text": text} for i, text in enumerate(texts)]
    with collection(tmp_path, documents[:280]) as engine:
        engine.add(documents[280:])  # a second segment has few of the documents, or none
        for question in ("eeeee bb", "ggggggg", "a a ffffff dddd", "ccc"):
            cosines = mixed_cosines(engine, question)
            bm25 = dict(by_words(engine, question, WINDOW, None))
            scoring = fusing(engine, question)
            scores = [scoring.score(each, bm25.get(key, 0.0)) for key, each in cosines.items()]
            for k in (1, 3, 10, 50):
                hits = engine.search(question, k, mode="hybrid")
                expected = sorted(scores, reverse=True)[:k]
                assert [hit.score for hit in hits] == pytest.approx(expected, abs=5 * NEAR)
                for hit in hits:
                    parts = cosines[hit.key], hit.scores.get("text", 0.0)
                    assert hit.score == pytest.approx(scoring.score(*parts), abs=5 * NEAR)


def test_values_of_different_types_are_different_groups(tmp_path: Path) -> None:
    values = [1, True, "1", "true", [1], "[1]", {"a": 1}, '{"a":1}', None, "null", 1.0, [1], None]
    documents = [{"_id": f"{i:02}", "text": "bb", "v": value} for i, value in enumerate(values)]
    with collection(tmp_path, [*documents, {"_id": "a", "text": "bb"}]) as engine:
        hits = engine.search("bb", 20, group_by="v")
        assert keys(hits) == [
            *(f"{i:02}" for i in range(10)),
            "a",
        ]  # null is a value, a missing field is not


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_groups_behind_a_large_one_are_found(tmp_path: Path, mode: str) -> None:
    many = [{"_id": f"m{i}", "text": "bb bb", "g": "many"} for i in range(3 * WINDOW)]
    few = [{"_id": f"f{i}", "text": "bb ccc ccc", "g": i % 4} for i in range(8)]
    with collection(tmp_path, many + few) as engine:
        for k in (1, 3, 5, 30):
            hits = engine.search("bb", k, group_by="g", mode=mode)
            assert keys(hits) == ["m0", "f0", "f1", "f2", "f3"][:k]


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
@pytest.mark.parametrize("name", ["", "n = 1", "a b", "not n", "\ud800"])
def test_what_is_no_field_makes_no_groups(engine: SearchEngine, mode: str, name: str) -> None:
    with pytest.raises(FilterError):
        engine.search("bb", mode=mode, group_by=name)


def test_unknown_options_are_refused(engine: SearchEngine) -> None:
    with pytest.raises(QueryError, match="no option 'depth'; its options are k, shortlist, where"):
        engine.search_batch(["bb"], depth=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        engine.search("bb", depth=3)  # type: ignore[call-arg]


def test_every_search_takes_the_options_of_a_query() -> None:
    names = [field.name for field in fields(Query)]
    assert sorted(inspect.signature(SearchEngine.search).parameters) == sorted(
        ["self", "query", *names]
    )
    defaults = inspect.signature(SearchEngine.search).parameters
    assert all(defaults[field.name].default == field.default for field in fields(Query))
