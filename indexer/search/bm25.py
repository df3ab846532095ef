"""Rows ranked by words: BM25 over the postings of a segment.

    score = Σ over the terms of weight × frequency (k1 + 1) / (frequency + norm of the length)

The compiled kernel searches the postings with MaxScore. Without one, every posting is scored by
numpy; the scores are the same.
"""

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from searchengine.indexer.arrays import Doubles, Mask, RowNumbers, address
from searchengine.indexer.native.library import chosen_level, load
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.storage.words_format import K1, WINDOW, Postings, United, norms, weight

__all__ = ["MOST_TERMS", "Words", "weight"]

Term = int | United
"""The number of a term in its segment, −1 for one that it does not have; or several as one."""

MOST_TERMS = 128
"""Maximum terms of a question: kTerms in source/words.h."""

_KEPT = 1 << 22  # postings of united terms that are kept


class Words:
    """The postings of a segment in a collection of some average length.

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
        self._native = None if chosen_level() is None else NativeWords(postings)
        self._counts: dict[int, int] = {}
        self._united: dict[bytes, United | None] = {}
        self._norms: tuple[float, Doubles] | None = None

    def find(self, term: bytes, unfinished: bool = False) -> Term:
        """A term of the segment; `unfinished`: all terms that begin with it, as one."""
        if not unfinished:
            return self.postings.find(term)
        united_terms = self._united  # another thread may begin a new one
        if term not in united_terms:
            united = self._unite(*self.postings.beginning_with(term))
            if sum(entry.lows.size for entry in list(united_terms.values()) if entry) > _KEPT:
                united_terms = self._united = {}
            united_terms[term] = united
        return united_terms[term] or -1

    def _unite(self, first: int, last: int) -> United | None:
        if first == last:
            return None
        if self._native is not None:
            documents, counts = self._native.unite(first, last)
        else:
            repeated, frequencies = self._postings_of(first, last)
            documents = np.unique(repeated)
            counts = np.bincount(repeated, frequencies)[documents].astype(np.float64)
        return United.from_counts(self.postings, documents, counts)

    def count(self, term: Term) -> int:
        """How many documents that are not deleted have a term."""
        if isinstance(term, United):
            if self.live is None:
                return int(term.documents.size)
            return int(self.live.mask[self.postings.rows[term.documents]].sum())
        if term < 0:
            return 0
        if self.live is None:
            return self.postings.count(term)
        count = self._counts.get(term)
        if count is None and self._native is not None:
            count = self._native.count(term, self.live.mask)
        elif count is None:
            documents, _ = self._postings_of(term, term + 1)
            count = int(self.live.mask[self.postings.rows[documents]].sum())
        self._counts[term] = count
        return count

    def count_both(self, one: bytes, other: bytes) -> int:
        """How many documents have both terms; deleted ones count too."""
        rows = self._rows_with(one)
        places = np.searchsorted(others := self._rows_with(other), rows)
        inside = places < others.size
        return int((others[places[inside]] == rows[inside]).sum())

    def rows_with(self, term: bytes, most: int) -> RowNumbers:
        """The rows of the first documents that have a term and are not deleted, at most `most`."""
        rows = self._rows_with(term)
        return (rows if self.live is None else rows[self.live.mask[rows]])[:most]

    def _rows_with(self, term: bytes) -> RowNumbers:
        number = self.postings.find(term)
        documents, _ = self._postings_of(number, number + 1) if number >= 0 else ((), ())
        rows: RowNumbers = self.postings.rows[np.asarray(documents, np.int64)]
        return rows

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
        """
        if len(terms) > MOST_TERMS:
            raise ValueError(f"at most {MOST_TERMS} terms can be searched, got {len(terms)}")
        only = self.live if allowed is None else allowed
        mask = None if only is None else only.mask
        added = self._by_length(average)
        weights = np.ascontiguousarray(weights, np.float64)
        if self._native is not None:
            ratio = self.postings.average / average
            return self._native.best(terms, weights, added, ratio, k, mask, floor)
        sums = np.zeros(self.postings.documents)
        for term, factor in zip(terms, weights.tolist(), strict=True):
            if isinstance(term, United):
                documents, frequencies = term.documents, term.counts
            elif term >= 0:
                documents, frequencies = self._postings_of(term, term + 1)
            else:
                continue
            norm = added[self.postings.lengths[documents]]
            sums[documents] += factor * ((frequencies * (K1 + 1.0)) / (frequencies + norm))
        possible = (sums > 0) & (sums >= floor)
        if mask is not None:
            possible &= mask[self.postings.rows]
        documents = np.flatnonzero(possible)
        order = np.argsort(-sums[documents], kind="stable")[:k]
        return self.postings.rows[documents[order]], sums[documents[order]]

    def _postings_of(self, term: int, behind: int) -> tuple[RowNumbers, Doubles]:
        """The documents and frequencies of terms, one term after the other."""
        first, last = self.postings.term_entries[[term, behind]]
        start, end = int(self.postings.entry_starts[first]), int(self.postings.entry_starts[last])
        documents = self.postings.documents_of(start, end)
        inside = documents < self.postings.documents  # opening does not check them one by one
        return documents[inside], self.postings.frequencies_of(start, end)[inside]

    def _by_length(self, average: float) -> Doubles:
        """The norms of all lengths; kept, because a collection keeps its average."""
        cached = self._norms
        if cached is None or cached[0] != average:
            cached = self._norms = average, norms(average, np.arange(self._longest + 1))
        return cached[1]


class _Postings(ctypes.Structure):
    """Equal to Postings in source/words.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("documents", "windows", "terms", "entries")),
        *((name, ctypes.c_int64) for name in ("postings", "wide")),
        *((name, ctypes.c_void_p) for name in ("term_entries", "entry_starts", "entry_windows")),
        *((name, ctypes.c_void_p) for name in ("entry_bounds", "lows", "codes", "frequencies")),
        *((name, ctypes.c_void_p) for name in ("lengths", "rows")),
    )


class _United(ctypes.Structure):
    """Equal to United in source/words.h, field by field."""

    _fields_ = (
        ("entries", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("entry_starts", "entry_windows", "entry_bounds")),
        *((name, ctypes.c_void_p) for name in ("lows", "counts")),
    )


class _Question(ctypes.Structure):
    """Equal to Question in source/words.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("terms", "united", "weights")),
        ("count", ctypes.c_int64),
        ("norms", ctypes.c_void_p),
        ("ratio", ctypes.c_double),
        ("mask", ctypes.c_void_p),
        ("k", ctypes.c_int64),
        ("floor", ctypes.c_double),
    )


class NativeWords:
    """The postings of a segment, searched by the kernel. Safe to use from several threads."""

    def __init__(self, postings: Postings) -> None:
        self._postings = postings
        self._library = load()
        self._arrays = _Postings(
            documents=postings.documents,
            windows=postings.lengths.size // WINDOW,
            terms=postings.terms,
            entries=postings.entry_windows.size,
            postings=postings.lows.size,
            wide=postings.codes.itemsize == 2,
            **{
                name: address(getattr(postings, name))
                for name in (
                    *("term_entries", "entry_starts", "entry_windows", "entry_bounds", "lows"),
                    *("codes", "frequencies", "lengths", "rows"),
                )
            },
        )

    def best(
        self,
        terms: Sequence[int | United],
        weights: Doubles,
        norms: Doubles,
        ratio: float,
        k: int,
        mask: Mask | None,
        floor: float,
    ) -> tuple[RowNumbers, Doubles]:
        """As indexer.search.bm25.Words.best, which checks the arguments. Raises MemoryError."""
        k = min(k, self._postings.documents)
        rows, scores = np.empty(k, np.int64), np.empty(k, np.float64)
        numbers = np.array([term if isinstance(term, int) else -1 for term in terms], np.int64)
        united = [None if isinstance(term, int) else _in_place(term) for term in terms]
        pointers = (ctypes.c_void_p * len(terms))(
            *(None if term is None else ctypes.addressof(term) for term in united)
        )
        question = _Question(
            terms=address(numbers),
            united=ctypes.addressof(pointers) if any(united) else None,
            weights=address(weights),
            count=len(terms),
            norms=address(norms),
            ratio=ratio,
            mask=None if mask is None else address(mask),
            k=k,
            floor=floor,
        )
        count = self._library.kernel_words_best(
            ctypes.byref(self._arrays), ctypes.byref(question), address(rows), address(scores)
        )
        if count < 0:
            raise MemoryError(f"no memory for the best {k} documents by words")
        return rows[:count], scores[:count]

    def unite(self, first: int, last: int) -> tuple[RowNumbers, Doubles]:
        """The documents that have a term from `first` up to `last`, rising, and how often.

        Raises MemoryError.
        """
        starts = self._postings.entry_starts[self._postings.term_entries[[first, last]]]
        most = min(self._postings.documents, int(starts[1] - starts[0]))
        documents, counts = np.empty(most, np.int64), np.empty(most, np.float64)
        size = self._library.kernel_words_unite(
            ctypes.byref(self._arrays), first, last, address(documents), address(counts)
        )
        if size < 0:
            raise MemoryError(f"no memory to unite {last - first} terms")
        return documents[:size].copy(), counts[:size].copy()

    def count(self, term: int, mask: Mask) -> int:
        """How many documents with a term have a row that may be found."""
        count: int = self._library.kernel_words_count(
            ctypes.byref(self._arrays), term, address(mask)
        )
        return count


def _in_place(united: United) -> _United:
    return _United(
        entries=united.entry_windows.size,
        **{
            name: address(getattr(united, name))
            for name in ("entry_starts", "entry_windows", "entry_bounds", "lows", "counts")
        },
    )
