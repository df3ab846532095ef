"""Pages where many documents have equal scores: concatenated, they are one answer."""

from collections.abc import Callable
from contextlib import closing
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pytest
from cut_documents import Words
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_server import new_url

from searchengine import SearchEngine

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.errors.LanguageWarning")

# Words of a few lengths: texts of equal lengths have equal vectors.
texts = st.lists(
    st.sampled_from(["a", "b", "cc", "dd", "eee", "the", "ffff"]), min_size=1, max_size=9
).map(" ".join)
changes = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.dictionaries(st.integers(0, 29), texts, min_size=1, max_size=25)
        ),
        st.tuples(st.just("again"), st.lists(st.integers(0, 29), max_size=4)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 29), max_size=4)),
    ),
    min_size=1,
    max_size=5,
)
configs = st.sampled_from(
    [
        {"prefix": 4},
        {"prefix": 2, "shortlist": 3},
        {"prefix": 2, "shortlist": 4, "structure": "hnsw"},
    ]
)

BOUNDS = {"vector": (-1, 1), "text": (0, inf), "hybrid": (0, 1)}


def check_pages(
    create: Callable[[dict[str, Any]], SearchEngine],
    config: dict[str, Any],
    changes: list[Any],
    question: str,
) -> None:
    with create(config) as engine:
        stored: dict[int, str] = {}
        for kind, values in changes:
            if kind == "add":
                stored |= values
                engine.add(
                    {"_id": f"{n:02}", "text": text, "n": n, "g": n % 4}
                    for n, text in values.items()
                )
            elif kind == "delete":
                engine.delete([f"{n:02}" for n in values if n in stored])
                stored = {n: text for n, text in stored.items() if n not in values}
            else:  # a changed text, and back again: its rows are the last ones now
                known = [n for n in dict.fromkeys(values) if n in stored]
                for text in ("ffff", None) if known else ():
                    engine.add(
                        {"_id": f"{n:02}", "text": text or stored[n], "n": n, "g": n % 4}
                        for n in known
                    )
        for mode in BOUNDS:
            for options in ({}, {"where": "n < 20"}, {"group_by": "g"}, {"min_score": 0.3}):
                whole = engine.search(question, 1000, mode=mode, **options)
                assert len({hit.key for hit in whole}) == len(whole)
                scores = [hit.score for hit in whole]
                assert mode == "vector" or scores == sorted(scores, reverse=True)
                low, high = BOUNDS[mode]  # float16 rows are not quite of length one
                assert all(low <= score <= high for score in scores)
                for size in (3, 10):
                    pages: list[Any] = []
                    for offset in range(0, len(whole) + size, size):
                        pages += engine.search(question, size, offset=offset, mode=mode, **options)
                    assert pages == whole


@settings(deadline=None)
@given(config=configs, changes=changes, question=texts)
def test_pages_are_one_answer(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], changes: Any, question: str
) -> None:
    def create(config: dict[str, Any]) -> SearchEngine:
        path = tmp_path_factory.mktemp("ties") / "c"
        return SearchEngine.create(path, Words(), config, tokenizer="stem:en")

    check_pages(create, config, changes, question)


@settings(deadline=None, max_examples=5)
@given(changes=changes, question=texts)
def test_pages_are_one_answer_of_a_server(changes: Any, question: str) -> None:
    def create(config: dict[str, Any]) -> SearchEngine:
        return SearchEngine.create(new_url(), Words(), config, tokenizer="stem:en")

    check_pages(create, {"prefix": 4}, changes, question)


def test_equal_documents_rank_by_their_keys(tmp_path: Path) -> None:
    """In whatever order they were added and changed, and wherever the ranking is cut."""
    with closing(SearchEngine.create(tmp_path / "c", Words(), tokenizer="stem:en")) as engine:
        engine.add({"_id": f"{i * 7 % 500:03}", "text": "a bb"} for i in range(500))
        for text in ("dddd", "a bb"):
            engine.add({"_id": f"{i:03}", "text": text} for i in (0, 1, 50))
        expected = [f"{i:03}" for i in range(500)]
        for mode, asked in product(("text", "hybrid", "vector"), ("bb", '"a bb"')):
            for k in (1, 3, 99, 150, 500):
                assert [hit.key for hit in engine.search(asked, k, mode=mode)] == expected[:k]
