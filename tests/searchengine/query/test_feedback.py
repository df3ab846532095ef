"""Documents named as examples: they move the vector of a question, and are not found."""

from typing import Any

import numpy as np
import pytest
from cut_documents import DOCUMENTS, NEAR, Words, brute_force, check, keys
from test_similar import mean_of

from searchengine import SearchEngine
from searchengine.errors import QueryError
from searchengine.query.feedback import LIKED, UNLIKED

BY_KEY = {each["_id"]: each for each in DOCUMENTS}
QUESTION = "bb a"


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def expected_vector(question: Any, like: list[str], unlike: list[str]) -> Any:
    """As the documentation states it."""
    vector = np.zeros(16) if question is None else unit(question)
    for named, weight in ((like, LIKED), (unlike, -UNLIKED)):
        if named:
            means = [unit(mean_of(BY_KEY[key])) for key in named]
            vector = vector + weight * np.mean(means, axis=0)
    return vector


EXAMPLES = [
    (["near"], []),
    (["long", "far"], []),
    (["near"], ["other", "far"]),
    ([], ["half"]),
    (["near", "near"], []),
]


@pytest.mark.parametrize(("like", "unlike"), EXAMPLES)
def test_the_vector_moves(engine: SearchEngine, like: list[str], unlike: list[str]) -> None:
    vector = Words().encode([QUESTION])[0]
    others = [each for each in DOCUMENTS if each["_id"] not in (*like, *unlike)]
    wanted = brute_force(others, expected_vector(vector, [*dict.fromkeys(like)], unlike))
    for question in (QUESTION, vector, 3 * vector):
        hits = engine.search(question, mode="vector", like=like, unlike=unlike)
        check(hits, wanted, 10)
    for hits in engine.search_batch([QUESTION] * 2, mode="vector", like=like, unlike=unlike):
        check(hits, wanted, 10)
    for k in (1, 2):
        page = engine.search(QUESTION, k, mode="vector", like=like, unlike=unlike, offset=1)
        assert keys(page) == keys(hits)[1 : 1 + k]


def test_without_a_question(engine: SearchEngine) -> None:
    others = [BY_KEY[key] for key in ("near", "half", "other")]
    hits = engine.search(like=["long", "far"])
    check(hits, brute_force(others, expected_vector(None, ["long", "far"], [])), 10)
    assert hits == engine.similar(["long", "far"]) == engine.similar("long", like=["far"])
    away = engine.similar(["long"], unlike=["far"])
    others = [BY_KEY[key] for key in ("near", "half", "other")]
    check(away, brute_force(others, expected_vector(None, ["long"], ["far"])), 10)
    assert engine.similar(["near"]) == engine.similar("near")


def test_words_stay_and_count_beside_a_longer_vector(engine: SearchEngine) -> None:
    plain = engine.search("bb ccc", mode="hybrid")
    moved = expected_vector(Words().encode(["bb ccc"])[0], ["near"], [])
    share = engine.default_weight * np.linalg.norm(moved)
    weight = share / (share + 1 - engine.default_weight)
    with engine.reading() as snapshot:
        words = snapshot.by_words("bb ccc", 100)
        unrelated = snapshot.unrelated
    text = {hit.key: hit.scores["text"] for hit in plain}
    hits = engine.search("bb ccc", mode="hybrid", like=["near"])
    assert {*keys(hits)} == {"long", "half", "far", "other"}
    cosines = brute_force(DOCUMENTS, moved)
    for hit in hits:
        cosine = max(cosines[hit.key].values())
        assert hit.scores == pytest.approx({"vector": cosine, "text": text[hit.key]}, abs=NEAR)
        share = (cosine - unrelated) / (1 - unrelated)
        score = weight * share + (1 - weight) * text[hit.key] / words.scale
        assert hit.score == pytest.approx(score, abs=NEAR)


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_examples_stand_for_no_group(engine: SearchEngine, mode: str) -> None:
    """ "long" and "near" are of one kind."""
    found = keys(engine.search("bb bb bb ccc", mode=mode, group_by="of.kind", like=["near"]))
    assert sorted(found) == ["far", "half", "long", "other"]


def test_why_an_example_is_not_found(engine: SearchEngine) -> None:
    explanation = engine.explain(QUESTION, "near", like=["near"])
    assert (explanation.lost, explanation.settings) == ("examples", {})
    assert "it is one of the examples" in str(explanation)
    for mode in ("vector", "hybrid"):
        options: dict[str, Any] = {"mode": mode, "like": ["near"], "unlike": ["far"]}
        hits = engine.search(QUESTION, **options)
        for rank, hit in enumerate(hits, 1):
            explanation = engine.explain(QUESTION, hit.key, **options)
            assert (explanation.found, explanation.rank) == (True, rank)
        lost = engine.explain(QUESTION, hits[2].key, 1, **options)
        assert lost.settings == {"k": 3}
    for rank, hit in enumerate(engine.search(like=["near"]), 1):
        assert engine.explain(None, hit.key, like=["near"]).rank == rank


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"like": ["none"]}, "has no document 'none'"),
        ({"unlike": ["none"]}, "has no document 'none'"),
        ({"like": "near"}, "like takes a list of keys, got 'near'"),
        ({"like": [1.5]}, "1.5"),
        ({"like": ["near"], "unlike": ["near"]}, "both name 'near'"),
        ({"like": ["near"], "mode": "text"}, "search in the mode vector or hybrid"),
        ({"like": ["words"]}, "'words' has no vector"),
        ({"query": None, "unlike": ["near"]}, "needs a question, or documents"),
        ({"query": None, "like": ["near"], "mode": "hybrid"}, "needs the mode vector, got hybrid"),
        ({"query": None, "like": ["near"], "as_you_type": True}, "as_you_type needs a question"),
        ({"query": None, "like": ["near"], "cross_encoder": "x"}, "cross_encoder needs a question"),
    ],
)
def test_examples_that_are_refused(
    engine: SearchEngine, options: dict[str, Any], message: str
) -> None:
    engine.add([{"_id": "words", "text": "bb"}], [None])
    try:
        with pytest.raises(QueryError, match=message):
            engine.search(**{"query": QUESTION, **options})
    finally:
        engine.delete(["words"])
