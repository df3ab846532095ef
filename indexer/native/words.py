"""Documents ranked by BM25 over their postings, by the compiled kernel."""

import ctypes
from collections.abc import Sequence

import numpy as np

from indexer.arrays import Doubles, Mask, RowNumbers, address
from indexer.native.library import load
from indexer.storage.postings import WINDOW, Postings
from indexer.storage.united import United

MOST_TERMS = 128
"""Terms of a question: kTerms in source/words.h."""


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
        """As indexer.search.words.Words.best, whose arguments are checked. Raises MemoryError."""
        k = min(k, self._postings.documents)
        rows, scores = np.empty(k, np.int64), np.empty(k, np.float64)
        numbers = np.array([term if isinstance(term, int) else -1 for term in terms], np.int64)
        united = [None if isinstance(term, int) else _in_place(term) for term in terms]
        pointers = (ctypes.c_void_p * len(terms))(
            *(None if each is None else ctypes.addressof(each) for each in united)
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
