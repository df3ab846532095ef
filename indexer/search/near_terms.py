"""The terms of a segment that are near a word, for words with typing errors.

Edits are those of the restricted Damerau-Levenshtein distance (optimal string alignment): a letter
is inserted, dropped or replaced, or two neighbours are swapped, and no place is edited twice. The
compiled kernel reads the terms in their order, and keeps the distances of the letters that a term
shares with the one before; without a kernel, Python does the same.
"""

import ctypes
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import RowNumbers, address
from searchengine.indexer.native.library import chosen_level, load
from searchengine.indexer.storage.words_format import Postings

MOST_LETTERS = 48
"""Letters of a word, at most: kLetters in source/words.h."""
EDIT = 16
"""What an edit costs, and a letter that is left out 1: kEdit in source/words.h."""
_MOST = 1 << 14  # terms that are returned

Costs = npt.NDArray[np.uint8]


class NearTerms:
    """Finds the terms of a segment that are near a word. Safe to use from several threads."""

    def __init__(self, postings: Postings) -> None:
        self._postings = postings

    def find(self, word: str, edits: int, ending: int = 0) -> tuple[RowNumbers, Costs]:
        """The terms at most `edits` away from a word, with or without some of its last letters.

        With two edits, only terms with the same first letter.

        Args:
            word: at most MOST_LETTERS characters.
            edits: 1 or 2.
            ending: letters that may be left out at the end of the word, at most EDIT - 2.

        Returns:
            numbers (n,) int64 of terms, rising, and costs (n,) uint8: the fewest edits times EDIT,
            plus the fewest letters left out with so many. If letters may be left out, so may the
            last one of the term: "happi" is the stem of "happy".

        Raises ValueError for other numbers.
        """
        if not (0 < len(word) <= MOST_LETTERS and 1 <= edits <= 2 and 0 <= ending <= EDIT - 2):
            raise ValueError(
                f"expected a word of 1 to {MOST_LETTERS} letters, 1 or 2 edits and an ending of at "
                f"most {EDIT - 2} letters, got {word!r:.80}, {edits} and {ending}"
            )
        first, last = 0, self._postings.terms
        if edits > 1:
            first, last = self._postings.beginning_with(word[0].encode())
        if chosen_level() is not None:
            return self._by_kernel(word, edits, ending, first, last)
        return self._by_python(word, edits, ending, first, last)

    @cached_property
    def _shared(self) -> npt.NDArray[np.uint8]:
        """(terms,) letters that each term shares with the one before."""
        shared = np.zeros(self._postings.terms, np.uint8)
        load().kernel_words_shared(
            ctypes.byref(self._terms(shared, 0, shared.size)), address(shared)
        )
        return shared

    def _terms(self, shared: npt.NDArray[np.uint8], first: int, last: int) -> "_Terms":
        postings = self._postings
        starts = postings.term_starts[first:]
        return _Terms(
            address(postings.term_bytes), address(starts), last - first, address(shared[first:])
        )

    def _by_kernel(
        self, word: str, edits: int, ending: int, first: int, last: int
    ) -> tuple[RowNumbers, Costs]:
        terms = self._terms(self._shared, first, last)
        letters = np.array([ord(letter) for letter in word], np.uint32)
        numbers, costs = np.empty(_MOST, np.int64), np.empty(_MOST, np.uint8)
        count = load().kernel_words_near(
            ctypes.byref(terms), address(letters), letters.size, edits, ending, _MOST,
            address(numbers), address(costs),
        )  # fmt: skip
        return numbers[:count] + first, costs[:count].copy()

    @cached_property
    def _vocabulary(self) -> list[str]:
        return [term.decode(errors="replace") for term in self._postings.vocabulary()]

    def _by_python(
        self, word: str, edits: int, ending: int, first: int, last: int
    ) -> tuple[RowNumbers, Costs]:
        rows, before = [list(range(len(word) + 1))], ""
        numbers: list[int] = []
        costs: list[int] = []
        term = first
        while term < last and len(numbers) < _MOST:
            text = self._vocabulary[term]
            shared = 0
            for letter, other in zip(text, before[: len(rows) - 1], strict=False):
                if letter != other:
                    break
                shared += 1
            del rows[shared + 1 :]
            while len(rows) <= len(text) and min(rows[-1]) <= edits:
                rows.append(_row(text, word, rows))
            before, term = text, term + 1
            if len(rows) > len(text):
                least = _cost(rows, len(word), ending, edits)
                if least < EDIT * (edits + 1):
                    numbers.append(term - 1)
                    costs.append(least)
            if min(rows[-1]) > edits:
                dead = text[: len(rows) - 1]
                while term < last and self._vocabulary[term].startswith(dead):
                    term += 1
        return np.array(numbers, np.int64), np.array(costs, np.uint8)


def _cost(rows: Sequence[Sequence[int]], length: int, ending: int, edits: int) -> int:
    """The cost of a term by the distances of its letters; as many as there are if it is too far."""
    all_costs = [EDIT * (edits + 1)]
    for left_out, row in enumerate(rows[: -3 if ending and len(rows) > 2 else -2 : -1]):
        for j in range(max(0, length - ending), length + 1):
            if row[j] <= edits:
                all_costs.append(EDIT * row[j] + length - j + left_out)
    return min(all_costs)


def distance(one: str, other: str) -> int:
    """Edits between two words."""
    rows = [list(range(len(other) + 1))]
    for _ in one:
        rows.append(_row(one, other, rows))
    return rows[-1][-1]


def _row(text: str, word: str, rows: Sequence[Sequence[int]]) -> list[int]:
    """The row of the next letter of a text: its distances to the beginnings of a word."""
    k, above = len(rows), rows[-1]
    letter = text[k - 1]
    row = [k]
    for j, other in enumerate(word, start=1):
        value = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
        if k > 1 and j > 1 and letter == word[j - 2] and text[k - 2] == other:
            value = min(value, rows[-2][j - 2] + 1)
        row.append(value)
    return row


class _Terms(ctypes.Structure):
    """Equal to Terms in source/words.h, field by field."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("shared", ctypes.c_void_p),
    )
