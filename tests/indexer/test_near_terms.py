"""Terms near a word: the kernel and Python against the distance of every term."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.native.library import chosen_level
from searchengine.indexer.search.near_terms import EDIT, MOST_LETTERS, NearTerms, distance
from searchengine.indexer.storage.words_format import Postings


def near_terms(terms: list[str]) -> NearTerms:
    encoded = [term.encode() for term in terms]
    postings: Any = SimpleNamespace(
        term_bytes=np.frombuffer(b"".join(encoded) or b" ", np.uint8),
        term_starts=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        terms=len(encoded),
        vocabulary=lambda: encoded,
        term=encoded.__getitem__,
    )
    postings.first_from = lambda term: Postings.first_from(postings, term)
    postings.beginning_with = lambda text: Postings.beginning_with(postings, text)
    return NearTerms(postings)


def expected(terms: list[str], word: str, edits: int, ending: int) -> list[tuple[int, int]]:
    """Every term compared with the word, with and without its ending."""
    result = []
    for number, term in enumerate(terms):
        if edits == 2 and term[0] != word[0]:
            continue
        costs = [
            EDIT * apart + left_out + cut
            for left_out in range(min(ending, len(word)) + 1)
            for cut in range(2 if ending and len(term) > 1 else 1)
            if (apart := distance(term[: len(term) - cut], word[: len(word) - left_out])) <= edits
        ]
        if costs:
            result.append((number, min(costs)))
    return result


LETTERS = st.sampled_from(["ab", "abcé", "абвя", "aß𝒳z"])


@given(st.data())
def test_the_kernel_and_python_find_what_is_near(data: st.DataObject) -> None:
    word_of = st.text(data.draw(LETTERS), min_size=1, max_size=9)
    terms = sorted(data.draw(st.sets(word_of, min_size=1, max_size=60)), key=str.encode)
    word = data.draw(word_of)
    edits, ending = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([0, 1, 3, 7]))
    near, wanted = near_terms(terms), expected(terms, word, edits, ending)
    bounds = (0, len(terms)) if edits == 1 else near._postings.beginning_with(word[0].encode())
    ways = [near._by_python] + [near._by_kernel] * (chosen_level() is not None)
    for way in (*ways, lambda *asked: near.find(*asked[:3])):
        numbers, costs = way(word, edits, ending, *bounds)
        assert list(zip(numbers.tolist(), costs.tolist(), strict=True)) == wanted


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("whale", "whale", 0), ("wahle", "whale", 1), ("whales", "whale", 1), ("hwael", "whale", 2),
     ("ca", "abc", 3), ("", "abc", 3)],
)  # fmt: skip
def test_distances_are_those_of_optimal_string_alignment(one: str, other: str, edits: int) -> None:
    assert distance(one, other) == distance(other, one) == edits


@pytest.mark.parametrize(
    ("word", "edits", "ending"),
    [("", 1, 0), ("a" * (MOST_LETTERS + 1), 1, 0), ("a", 0, 0), ("a", 3, 0), ("a", 1, EDIT - 1)],
)
def test_other_numbers_are_refused(word: str, edits: int, ending: int) -> None:
    with pytest.raises(ValueError, match="expected a word of 1 to 48 letters, 1 or 2 edits"):
        near_terms(["a"]).find(word, edits, ending)


def test_the_longest_words_fit() -> None:
    longest = "a" * MOST_LETTERS
    terms = [longest, longest + "b", longest + "bb", longest + "bbb"]
    numbers, costs = near_terms(terms).find(longest, 2)
    assert numbers.tolist() == [0, 1, 2] and costs.tolist() == [0, EDIT, 2 * EDIT]
