"""Terms near a word, against the distance of every term."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from searchengine.backends.folder.spelling import near_terms
from searchengine.indexer.storage.words_file import Counted, Postings, moved, write_postings


def postings_of(path: Path, terms: list[str]) -> Postings:
    """The words of a document that has these terms."""
    numbers = np.arange(len(terms) + 1)
    encoded, counts = [term.encode() for term in terms], np.ones(len(terms))
    lengths = np.ones(1, np.uint32)
    counted = Counted(numbers[:1], lengths, encoded, numbers, 0 * numbers[1:], counts)
    path.unlink(missing_ok=True)
    write_postings(path, [moved(counted, None, 0)], {})
    return Postings.open(path, 1)


def expected(terms: list[str], word: str, edits: int) -> list[tuple[int, int]]:
    """Every term, with and without its last letter, compared with every beginning of the word."""
    result = []
    for number, term in enumerate(terms):
        costs = [
            16 * apart + left_out + cut
            for left_out in range(min(7, len(word) // 2 + 1, len(word) - 3) + 1)
            for cut in range(2)
            if (apart := OSA.distance(term[: len(term) - cut], word[: len(word) - left_out]))
            <= edits
        ]
        if costs and (edits == 1 or term[0] == word[0]):
            result.append((number, min(costs)))
    return result


def test_all_near_terms_are_found(tmp_path: Path) -> None:
    @given(st.data(), st.sampled_from(["ab", "abcé", "абвя", "aß𝒳z"]), st.sampled_from([1, 2]))
    def run(data: st.DataObject, letters: str, edits: int) -> None:
        word = data.draw(st.text(letters, min_size=4, max_size=9))
        others = data.draw(st.sets(st.text(letters, min_size=1, max_size=9), max_size=60))
        wrong = {word[1:], "a" + word, word[1] + word[0] + word[2:3], "b" + word[1:]}
        terms = sorted(others | wrong, key=str.encode)
        near = near_terms(postings_of(tmp_path / "words", terms), word, edits)
        numbers, costs = (array.tolist() for array in near)
        assert list(zip(numbers, costs, strict=True)) == expected(terms, word, edits)

    run()


@pytest.mark.parametrize(
    ("term", "edits"), [("whale", 0), ("wahle", 1), ("whlae", 1), ("hwael", 2)]
)
def test_swapped_neighbours_are_one_edit(term: str, edits: int) -> None:
    assert OSA.distance(term, "whale") == edits
