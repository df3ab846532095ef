"""Rows ranked by words: BM25 over the postings of a segment.

    score = Σ over the terms of weight × frequency (k1 + 1) / (frequency + norm of the length)

The compiled kernel searches the postings with MaxScore. Without one, every posting is scored by
numpy; the scores are the same.
"""

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, RowNumbers, address
from searchengine.indexer.native.library import chosen_level, load
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.storage.words_file import K1, WINDOW, Postings, entries_of, norms

MOST_TERMS = 128
"""Maximum terms of a question: kTerms in source/words.h."""


def _structure(integers: str, pointers: str) -> type[ctypes.Structure]:
    """A structure of source/words.h: its fields by type, in order."""
    fields: list[tuple[str, Any]] = [(name, ctypes.c_int64) for name in integers.split()]
    fields += [(name, ctypes.c_void_p) for name in pointers.split()]
    return type("Structure", (ctypes.Structure,), {"_fields_": fields})


_ENTRIES = "entry_starts entry_windows entry_bounds lows"
_POSTINGS = _structure("documents wide", f"{_ENTRIES} term_entries codes frequencies lengths rows")
_UNITED = _structure("entries", f"{_ENTRIES} counts")

_KEPT, _TERMS = 1 << 22, 1 << 16  # postings of united terms, and terms, that are kept
_MIN_WEIGHT = 1e-6  # for a term in half of the documents or more


def weight(documents: int, having: int) -> float:
    """The inverse document frequency, as Lucene has it, of a term that `having` documents have."""
    rare = 2 * having < documents
    return math.log((documents + 1) / (having + 0.5)) if rare else _MIN_WEIGHT


@dataclass(frozen=True, slots=True, eq=False)
class United:
    """Several terms treated as one, such as the forms of a word: their documents, in memory.

    Attributes:
        documents: (postings,) the documents that have at least one of the terms, rising.
        counts: (postings,) float64 number of times that each document has any of them.
        lows, entry_starts, entry_windows, entry_bounds: as in Postings, for this one term.
    """

    documents: RowNumbers
    counts: Doubles
    lows: npt.NDArray[np.uint16]
    entry_starts: RowNumbers
    entry_windows: npt.NDArray[np.uint32]
    entry_bounds: npt.NDArray[np.float32]


Term = int | United
"""The number of a term in its segment, −1 for one that it does not have; or several as one."""


class Words:
    """The postings of a segment in a collection of some average length. Safe to use from threads.

    Attributes:
        postings: the terms, and the documents that have them.
        live: the rows that are not deleted; None for all.
        documents: number of documents that are not deleted.
        tokens: the sum of their lengths.
    """

    def __init__(self, postings: Postings, live: Allowed | None) -> None:
        self.postings, self.live = postings, live
        alive = slice(None) if live is None else live.mask[postings.rows]
        lengths = postings.lengths[: postings.documents][alive]
        self.documents = lengths.size
        self.tokens = int(lengths.sum(dtype=np.int64))
        self._longest = int(postings.lengths.max(initial=0))
        self._in_place: ctypes.Structure | None = None
        if chosen_level() is not None:
            wide = postings.codes.itemsize == 2
            self._in_place = _in_place(_POSTINGS, postings, documents=postings.documents, wide=wide)
        self._counts: dict[int, int] = {}
        self._found: dict[tuple[tuple[bytes, ...], bool], Term] = {}
        self._united = 0  # their postings
        self._norms: tuple[float, Doubles] | None = None

    def numbers(self, terms: Iterable[tuple[tuple[bytes, ...], bool]]) -> list[Term]:
        """As `find`, of several terms."""
        found = self._found
        return [found[term] if term in found else self.find(*term) for term in terms]

    def find(self, forms: tuple[bytes, ...], unfinished: bool = False) -> Term:
        """A term of the segment that has several forms; `unfinished`: all that begin with them."""
        if unfinished:
            term = self._unite([self.postings.beginning_with(form) for form in forms])
        else:
            numbers = [number for form in forms if (number := self.postings.find(form)) >= 0]
            term = numbers[0] if numbers else -1
            if len(numbers) > 1:
                term = self._unite([(number, number + 1) for number in numbers])
        self._united += term.lows.size if isinstance(term, United) else 0
        if len(self._found) >= _TERMS or self._united > _KEPT:
            self._found, self._united = {}, 0  # another thread may read the former one
        self._found[forms, unfinished] = term
        return term

    def _unite(self, ranges: Sequence[tuple[int, int]]) -> Term:
        """The terms in these ranges of numbers as one; −1 if no document has any."""
        taken = [self.postings.take(first, last)[1:] for first, last in ranges]
        repeated, frequencies = (np.concatenate(columns) for columns in zip(*taken, strict=True))
        counts: Doubles = np.bincount(repeated, frequencies).astype(np.float64)
        documents = np.flatnonzero(counts)
        if documents.size == 0:
            return -1
        counts = counts[documents]
        added = norms(self.postings.average, self.postings.lengths[documents])
        heads, windows, bounds = entries_of(documents, 0 * documents, counts, added)
        lows, starts = (documents % WINDOW).astype(np.uint16), np.append(heads, documents.size)
        return United(documents, counts, lows, starts, windows, bounds)

    def count(self, term: Term) -> int:
        """How many documents that are not deleted have a term."""
        if isinstance(term, United):
            return self.rows_with(term).size
        if term < 0 or self.live is None:
            return 0 if term < 0 else int(self.postings.counts(term))
        count = self._counts.get(term)
        if count is None and self._in_place is not None:
            pointer, mask = ctypes.byref(self._in_place), address(self.live.mask)
            count = int(load().kernel_words_count(pointer, term, mask))
        elif count is None:
            count = self.rows_with(term).size
        self._counts[term] = count
        return count

    def rows_with(self, term: Term) -> RowNumbers:
        """The rows of documents that have a term and are not deleted, rising."""
        rows = self.postings.rows[self._postings(term)[0]]
        return rows if self.live is None else rows[self.live.mask[rows]]

    def _postings(self, term: Term) -> tuple[RowNumbers, Doubles]:
        """The documents that have a term, rising, and how often."""
        if isinstance(term, United):
            return term.documents, term.counts
        if term < 0:
            return np.zeros(0, np.int64), np.zeros(0)
        return self.postings.take(term, term + 1)[1:]

    def best(
        self,
        terms: Sequence[Term],
        weights: Doubles,
        average: float,
        k: int,
        allowed: Allowed | None = None,
        floor: float = -math.inf,
    ) -> tuple[RowNumbers, Doubles]:
        """The best k documents, by (−score, row).

        Args:
            terms: at most MOST_TERMS, which are fastest with the rarest first.
            weights: (n,) float64, more than 0.
            average: mean length of the collection's documents, in tokens.
            k: number of documents, at least 1.
            allowed: the rows that may be found; None for all that are not deleted.
            floor: leave out lower scores.

        Returns:
            rows (m,) int64 and scores (m,) float64, m ≤ k: only documents with one of the terms.

        Raises MemoryError.
        """
        if len(terms) > MOST_TERMS:
            raise ValueError(f"at most {MOST_TERMS} terms can be searched, got {len(terms)}")
        only = self.live if allowed is None else allowed
        mask = None if only is None else only.mask
        cached = self._norms  # a collection keeps its average
        if cached is None or cached[0] != average:
            cached = self._norms = average, norms(average, np.arange(self._longest + 1))
        weights, by_length = np.ascontiguousarray(weights, np.float64), cached[1]
        if self._in_place is None:
            sums = self._sums(terms, weights, by_length)
            possible = (sums > 0) & (sums >= floor)
            if mask is not None:
                possible &= mask[self.postings.rows]
            documents = np.flatnonzero(possible)
            order = np.argsort(-sums[documents], kind="stable")[:k]
            return self.postings.rows[documents[order]], sums[documents[order]]
        k = min(k, self.postings.documents)
        rows, scores = np.empty(k, np.int64), np.empty(k, np.float64)
        numbers = np.array([term if isinstance(term, int) else -1 for term in terms], np.int64)
        united = (_UNITED * len(terms))()
        for i, term in enumerate(terms):
            if isinstance(term, United):
                united[i] = _in_place(_UNITED, term, entries=term.entry_windows.size)
        count = load().kernel_best_by_words(
            ctypes.byref(self._in_place), len(terms), address(numbers), united, address(weights),
            address(by_length), None if mask is None else address(mask), k,
            self.postings.average / average, floor, address(rows), address(scores),
        )  # fmt: skip
        if count < 0:
            raise MemoryError(f"no memory for the best {k} documents by words")
        return rows[:count], scores[:count]

    def _sums(self, terms: Sequence[Term], weights: Doubles, by_length: Doubles) -> Doubles:
        """The score of each document, without a kernel; `by_length`: the norm of each length."""
        sums = np.zeros(self.postings.documents)
        for term, factor in zip(terms, weights.tolist(), strict=True):
            documents, frequencies = self._postings(term)
            norm = by_length[self.postings.lengths[documents]]
            sums[documents] += factor * ((frequencies * (K1 + 1.0)) / (frequencies + norm))
        return sums


def _in_place(kind: type[ctypes.Structure], arrays: object, **integers: int) -> ctypes.Structure:
    """A structure with these integers, that points to arrays with the names of its pointers."""
    names = [name for name, *_ in kind._fields_ if name not in integers]
    return kind(**integers, **{name: address(getattr(arrays, name)) for name in names})
