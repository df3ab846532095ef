"""More like this, and search by vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut_documents import (
    DOCUMENTS,
    EXACT,
    NEAR,
    Words,
    brute_force,
    check,
    collection,
    keys,
    reader,
)
from hypothesis import given
from hypothesis import strategies as st

from searchengine import Document, SearchEngine
from searchengine.errors import QueryError


def mean_of(document: dict[str, Any]) -> Any:
    """The mean of a document's passages, (D,)."""
    encoder, parsed = Words(), Document.from_mapping(document, origin="")
    (spans,), _ = reader(encoder).cut([parsed])
    texts = reader(encoder).texts([(parsed, span) for span in spans])
    return encoder.encode(texts, role="document").mean(axis=0)


# ------------------------------------------------------------------------------------------ similar


def test_similar_to_the_only_one_or_to_none(tmp_path: Path) -> None:
    with collection(tmp_path, DOCUMENTS[:1]) as engine:
        assert engine.similar("long") == []
        with pytest.raises(QueryError, match="has no document 'short'"):
            engine.similar("short")
        engine.add([{"_id": "short", "text": "a"}])
        assert keys(engine.similar("short")) == ["long"]
        engine.delete(["short"])
        with pytest.raises(QueryError, match="has no document 'short'"):
            engine.similar("short")


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        (["none"], {}, "has no document 'none'"),
        ([], {}, "similar takes the key of a document, or several keys, got none"),
        ([1.5], {}, "1.5"),
    ],
)
def test_what_similar_refuses(
    engine: SearchEngine, asked: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        engine.similar(asked, **options)


# ------------------------------------------------------------------------------------------ vectors


def one(*numbers: float) -> Any:
    return np.array([*numbers, *[0] * (16 - len(numbers))])


def test_a_vector_finds_what_its_question_finds(engine: SearchEngine) -> None:
    expected = engine.search("bb bb ccc", mode="vector")
    for vector in (
        one(0, 2, 1).tolist(),
        tuple(one(0, 2, 1)),
        one(0, 2, 1).astype(int),
        one(0, 2, 1).astype(np.float16),
        one(0, 2, 1).astype(np.float64) * 1e30,
        one(0, 2, 1) / 1e30,
    ):
        hits = engine.search(vector)
        assert keys(hits) == keys(expected)
        scores = [hit.score for hit in expected]
        assert [hit.score for hit in hits] == pytest.approx(scores, abs=NEAR)
        assert hits[0].question == "" and hits[0].passage == expected[0].passage
    assert keys(engine.search(one(0, 2, 1), 2, where="n > 0", exact=True)) == ["near", "half"]


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.ones(15), "must have 16 numbers, got 15"),
        ([], r"got \[\]"),
        (np.ones((2, 16)), "use search_batch"),
        (np.ones(16, bool), "a vector of numbers, got array"),
        (one(0), "must be finite and not all zeros in float32; vector 1 is not"),
        (one(np.nan), "must be finite"),
        (one(1, 1e300), "must be finite"),
        (one(1e-300), "not all zeros in float32"),
    ],
)
def test_invalid_vectors_are_refused(engine: SearchEngine, vector: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        engine.search(vector)


lengths = st.lists(st.integers(1, 16), min_size=1, max_size=60)


@given(corpus=st.lists(lengths, min_size=2, max_size=7), k=st.integers(1, 8), data=st.data())
def test_similar_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[list[int]], k: int, data: st.DataObject
) -> None:
    documents = [
        {"_id": str(i), "text": " ".join("a" * n for n in line)} for i, line in enumerate(corpus)
    ]
    own = data.draw(st.integers(0, len(corpus) - 1))
    others = documents[:own] + documents[own + 1 :]
    with SearchEngine.create(tmp_path_factory.mktemp("like") / "c", Words(), EXACT) as engine:
        engine.add(documents)
        for options in ({"exact": True}, {"shortlist": 10_000}):
            hits = engine.similar(str(own), k, **options)
            check(hits, brute_force(others, mean_of(documents[own])), k)
