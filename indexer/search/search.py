"""Search by prefix: a shortlist from the coarse stage, then full-width scores.

CoarseIndex finds the rows with the most similar prefixes, `rerank` scores them at full width, and
Cascade does both in one call of faiss: the path that most searches are served by.

Scores of the coarse stage rank candidates and are never returned to a user. Ties are broken by row
number wherever rows are scanned, also at the cut, so a flat coarse stage is deterministic and a
longer shortlist contains every shorter one.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from indexer.arrays import Floats, RowNumbers, locality, prefix
from indexer.config import Structure
from indexer.errors import VectorError
from indexer.faiss_calls import bitmap, faiss, native_threads, ordered, write_index
from indexer.search.allowed import Allowed, scan_allowed
from indexer.storage.vectors import VectorFile

MIN_EF_SEARCH = 32
"""Lowest efSearch that a shortlist's size stands for."""

SCAN_SHARE = 0.1
"""Below this share of allowed rows a graph is not walked: they are scanned instead."""

LOCALITY_BATCH = 64
"""A batch of this many queries is searched in an order in which similar ones follow each other:
they walk over the same rows, which are then still in the cache (1.2 to 1.5 times the queries a
second; 10,000 over 200k real sentences, two cores)."""

_CACHED_PARAMETERS = 64  # operating points whose parameters are kept, for each set of allowed rows

CHUNK_NUMBERS = 1 << 18
"""Numbers gathered at a time: 1 MiB of float32, which stays in the cache of one core."""

_Points = dict[tuple[int, ...], Any]


class RowStore(Protocol):
    """What re-scoring needs of the stored rows; VectorFile is one."""

    @property
    def dim(self) -> int: ...

    def take(self, rows: RowNumbers) -> Floats:
        """Rows of any shape (...) as (..., dim) float32."""
        ...


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, best first: by descending score, equal scores by row number.

    Attributes:
        rows: (q, k) int64 row numbers, -1 where there was nothing more to find.
        scores: (q, k) float32 full-width cosines, -inf there.
        proven: whether these are the true best k, beyond doubt.
        read: (q,) int64 rows that were read at full width for it; None if that was not counted.
    """

    rows: RowNumbers
    scores: Floats
    proven: bool = False
    read: RowNumbers | None = None


class CoarseIndex:
    """Prefixes of all rows of a segment, searched by inner product.

    Attributes:
        index: the faiss index; the numbers it finds are rows.
        structure: what it is.
        rows, width: how many prefixes, and how wide.
    """

    def __init__(self, index: Any, lock: AbstractContextManager[Any] | None = None) -> None:
        """`lock` is held during every scan, for an index that cannot serve two at once."""
        self.index = index
        self._lock = nullcontext() if lock is None else lock
        self._ids: RowNumbers | None = None
        inner = index
        if isinstance(index, faiss.IndexIDMap):
            self._ids = faiss.vector_to_array(index.id_map)
            inner = faiss.downcast_index(index.index)
        self.structure = structure_of(inner)
        self._inner = inner
        # A graph keeps its codes in a flat index of its own, which can be scanned as it is.
        graph = self.structure in (Structure.HNSW, Structure.NSG)  # NSG: of old segments
        self._flat = faiss.downcast_index(inner.storage) if graph else inner
        self.rows = int(index.ntotal)
        self.width = int(index.d)
        self._selectors: WeakKeyDictionary[Allowed, Any] = WeakKeyDictionary()

    def save(self, path: Path) -> None:
        """Write the index to a file. OSError if the disk does not take it."""
        write_index(self.index, path)

    def search_parameters(self, size: int, effort: int = 0, allowed: Allowed | None = None) -> Any:
        """What faiss is asked with for a shortlist of `size`; None if it takes no parameters.

        An effort of 0 follows the size: a graph looks at as many candidates as it is to give (time
        spent on a longer shortlist bought as much recall@10 as a more careful walk for the same
        one, or more: 20k real sentences), an IVF at a sixteenth of its lists. A graph spends its
        effort on rows that are not allowed as well, so the fewer are, the wider it must look.
        """
        selector, share = (None, 1.0) if allowed is None else (allowed.selector, allowed.share)
        match self.structure:
            case Structure.HNSW:
                walked = int(max(effort or MIN_EF_SEARCH, size) / share)
                return faiss.SearchParametersHNSW(efSearch=walked, sel=selector)
            case Structure.IVF:
                lists = int((effort or -(-self.lists // 16)) / share)
                return faiss.SearchParametersIVF(nprobe=min(lists, self.lists), sel=selector)
            case _:
                return None if selector is None else faiss.SearchParameters(sel=selector)

    def shortlist(
        self, queries: Floats, size: int, allowed: Allowed | None = None, effort: int = 0
    ) -> RowNumbers:
        """The rows whose prefixes score highest.

        Args:
            queries: (q, width) float32. Their length does not matter, only their direction.
            size: rows wanted per query, >= 1.
            allowed: the rows that may be returned; None for all.
            effort: how widely to look, see SegmentConfig; 0 follows the size.

        Returns:
            (q, size) int64, best first. Exactly min(size, number of allowed rows) entries are
            rows, the rest are -1.

        Raises:
            VectorError: rows are allowed and the structure cannot be restricted (`selects`).
        """
        if allowed is not None and not self.selects:
            raise VectorError(
                "flat product quantizers cannot be searched among some rows; exact search can"
            )
        available = self.rows if allowed is None else allowed.size
        found = np.full((queries.shape[0], size), -1, np.int64)
        wanted = min(size, available)
        if wanted == 0:
            return found
        queries = np.ascontiguousarray(queries, dtype=np.float32)

        def scan(some: Floats, ask: int) -> tuple[Floats, RowNumbers]:
            return self._scan(some, ask, allowed)

        if not self.walks(available):
            found[:, :wanted] = ordered(scan, queries, wanted, available)[1]
            return found
        parameters = self.search_parameters(wanted, effort, allowed)
        with native_threads(len(queries)):
            _, walked = self.index.search(queries, wanted, params=parameters)
        found[:, :wanted] = walked
        short = np.flatnonzero((walked < 0).any(axis=1))  # the walk ended before it found enough
        if short.size:
            found[short, :wanted] = ordered(scan, queries[short], wanted, available)[1]
        return found

    def walks(self, available: int) -> bool:
        """Whether a search skips rows; where few rows are allowed, all of those are scanned."""
        if self.structure is Structure.NSG:  # its walk knows no selector
            return available >= self.rows
        return self.structure is not Structure.FLAT and available >= SCAN_SHARE * self.rows

    @property
    def lists(self) -> int:
        """The k-means lists of an IVF; 0 for other structures."""
        return int(self._inner.nlist) if self.structure is Structure.IVF else 0

    @property
    def selects(self) -> bool:
        """Whether a search can be restricted to some rows; flat product quantizers cannot."""
        return not isinstance(self._flat, faiss.IndexPQ | faiss.IndexPQFastScan)

    def _scan(
        self, queries: Floats, ask: int, allowed: Allowed | None
    ) -> tuple[Floats, RowNumbers]:
        """Scores and rows (q, ask) of a scan; `ask` is at most the number of allowed rows."""
        if allowed is None or allowed.size == allowed.total:
            return self._scanned(queries, ask, None)
        return scan_allowed(self._scanned, self._selector, queries, ask, allowed)

    def _scanned(self, queries: Floats, ask: int, selector: Any) -> tuple[Floats, RowNumbers]:
        """What faiss finds among all that are in the selector, by the numbers of the segment."""
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)
        if self.structure is Structure.IVF:
            parameters = faiss.SearchParametersIVF(nprobe=self.lists, sel=selector)
        with self._lock, native_threads(len(queries)):
            scores, rows = self._flat.search(queries, ask, params=parameters)
        return scores, rows if self._ids is None else self._ids[rows]

    def _selector(self, allowed: Allowed) -> Any:
        """The allowed rows by the places in which they lie, which a graph's map shuffles."""
        if self._ids is None:
            return allowed.selector
        made = self._selectors.get(allowed)
        if made is None:
            made = self._selectors[allowed] = bitmap(allowed.mask[self._ids])
        return made


class Cascade:
    """A coarse stage and the full-width rows behind it, for rotated queries (q, D)."""

    def __init__(self, coarse: CoarseIndex, full: CoarseIndex) -> None:
        head = faiss.RemapDimensionsTransform(full.width, coarse.width)
        faiss.copy_array_to_vector(np.arange(coarse.width, dtype=np.int32), head.map)
        staged = faiss.IndexPreTransform(head, coarse.index)
        staged.ntotal = full.rows  # a trial index may lack rows, but knows no others
        self._index = faiss.IndexRefine(staged, full.index)
        self._parts = (head, staged, coarse, full)  # faiss holds no references of its own
        self._coarse = coarse
        self._kept: _Points = {}
        self._kept_for: WeakKeyDictionary[Allowed, _Points] = WeakKeyDictionary()

    def search(
        self,
        rotated: Floats,
        k: int,
        size: int,
        effort: int = 0,
        allowed: Allowed | None = None,
    ) -> SearchResult:
        """The best k of a shortlist of `size` rows a query, k <= size.

        Rows that the walk did not find are -1 with a score of -inf; see CoarseIndex.shortlist.
        """
        if len(rotated) >= LOCALITY_BATCH:
            heads = rotated[:, : self._coarse.width]
            order = locality([heads], heads)
            ordered = self._search(rotated[order], k, size, effort, allowed)
            rows, scores = np.empty_like(ordered.rows), np.empty_like(ordered.scores)
            rows[order], scores[order] = ordered.rows, ordered.scores
            return SearchResult(rows, scores)
        return self._search(rotated, k, size, effort, allowed)

    def _search(
        self, rotated: Floats, k: int, size: int, effort: int, allowed: Allowed | None
    ) -> SearchResult:
        def ask(some: Floats, most: int) -> tuple[Floats, RowNumbers]:
            parameters = self._parameters(most, size, effort, allowed)
            with native_threads(len(some)):
                scores, rows = self._index.search(some, most, params=parameters)
            if (rows[:, -1] < 0).any():
                scores[rows < 0] = -np.inf
            return scores, rows

        return SearchResult(*ordered(ask, np.ascontiguousarray(rotated, np.float32), k, size)[::-1])

    def _parameters(self, most: int, size: int, effort: int, allowed: Allowed | None) -> Any:
        """What faiss is asked with. Making them takes as long as a short walk: they are kept.

        Those with a set of rows for each thread: while it searches, faiss's IndexIDMap puts a
        selector of its own into them, which lies on that thread's stack.
        """
        key: tuple[int, ...] = (most, size, effort)
        points = self._kept
        if allowed is not None:
            points = self._kept_for.setdefault(allowed, {})
            key = (*key, get_ident())
        kept = points.get(key)
        if kept is not None:
            return kept
        staged = self._coarse.search_parameters(size, effort, allowed)
        # faiss multiplies and cuts: half a row more, so that the size survives the rounding
        parameters = faiss.IndexRefineSearchParameters(k_factor=(size + 0.5) / most)
        if staged is not None:
            parameters.base_index_params = faiss.SearchParametersPreTransform(index_params=staged)
        if len(points) > _CACHED_PARAMETERS:
            points.clear()
        points[key] = parameters
        return parameters


def rerank(store: RowStore, queries: Floats, candidates: RowNumbers, k: int) -> SearchResult:
    """Score candidates by the inner product with the stored rows and keep the best k.

    The score of a (query, row) pair does not depend on what is scored beside it, to the last bit:
    equal rows get equal scores, and the tie goes to the lower row number.

    Args:
        store: the full-width rows.
        queries: (q, dim) float32 unit rows, rotated as the rows are.
        candidates: (q, s) int64 row numbers, without repeats in a line; -1 is no candidate.
        k: how many to keep, >= 1.

    Returns:
        (q, k) rows and scores, padded with -1 and -inf.
    """
    if queries.ndim != 2 or candidates.ndim != 2 or len(queries) != len(candidates):
        raise VectorError(
            f"queries (q, dim) and candidates (q, s) must have the same q, "
            f"got shapes {queries.shape} and {candidates.shape}"
        )
    scores = np.empty(candidates.shape, np.float32)
    wide = max(1, min(candidates.shape[1], CHUNK_NUMBERS // store.dim))
    many = max(1, CHUNK_NUMBERS // (wide * store.dim))
    for top in range(0, candidates.shape[0], many):
        for left in range(0, candidates.shape[1], wide):
            part = np.s_[top : top + many, left : left + wide]
            rows = store.take(np.maximum(candidates[part], 0))
            # einsum and not a matrix product: BLAS sums a row in an order that depends on its
            # place in the block, so that equal rows could differ in the last bit.
            scores[part] = np.einsum("qsd,qd->qs", rows, queries[top : top + many])
    scores[candidates < 0] = -np.inf
    return _best(candidates, scores, k)


def narrow(
    file: VectorFile, queries: Floats, candidates: RowNumbers, width: int, keep: int
) -> RowNumbers:
    """A stage of a funnel: the candidates whose first `width` numbers are most similar.

    Args:
        file: the full-width rows, of which only the first `width` numbers are read.
        queries: (q, dim) float32 unit rows, rotated as the rows are.
        candidates: (q, s) int64 row numbers; -1 is no candidate.
        width: numbers to compare, re-normalised, <= dim.
        keep: how many to keep, >= 1.

    Returns:
        (q, keep) row numbers, best first, padded with -1.
    """
    kept = np.full((len(candidates), keep), -1, np.int64)
    for i, rows in enumerate(candidates):
        real = rows[rows >= 0]
        scores = prefix(file.take(real, width), width) @ queries[i, :width]
        best = real[np.lexsort((real, -scores))[:keep]]
        kept[i, : best.size] = best
    return kept


def merge(results: Sequence[SearchResult], bases: Sequence[int], k: int) -> SearchResult:
    """The best k of several segments, whose rows are numbered from their bases.

    Args:
        results: one (q, k_i) result per segment, all for the same queries.
        bases: what to add to each segment's row numbers.
        k: how many to keep, >= 1.
    """
    if not results or len(results) != len(bases):
        raise VectorError(f"cannot merge {len(results)} results with {len(bases)} bases")
    rows = np.concatenate(
        [
            np.where(result.rows < 0, -1, result.rows + base)
            for result, base in zip(results, bases, strict=True)
        ],
        axis=1,
    )
    best = _best(rows, np.concatenate([result.scores for result in results], axis=1), k)
    counts = [result.read for result in results if result.read is not None]
    return replace(
        best,
        proven=all(result.proven for result in results),
        read=sum(counts[1:], counts[0]) if len(counts) == len(results) else None,
    )


def _best(rows: RowNumbers, scores: Floats, k: int) -> SearchResult:
    """The first k by (-score, row), padding last."""
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    kept = order.shape[1]
    best_rows = np.full((rows.shape[0], k), -1, np.int64)
    best_scores = np.full((rows.shape[0], k), -np.inf, np.float32)
    best_rows[:, :kept] = np.take_along_axis(rows, order, axis=1)
    best_scores[:, :kept] = np.take_along_axis(scores, order, axis=1)
    return SearchResult(best_rows, best_scores)


def structure_of(index: Any) -> Structure | None:
    """Which of our structures a faiss index is; None if it is another."""
    kinds = {
        faiss.IndexHNSW: Structure.HNSW,
        faiss.IndexNSG: Structure.NSG,
        faiss.IndexIVF: Structure.IVF,
        (faiss.IndexFlatCodes, faiss.IndexFastScan): Structure.FLAT,
    }
    if hasattr(faiss, "GpuIndexFlat"):
        kinds[faiss.GpuIndexFlat] = Structure.FLAT
    return next((kind for types, kind in kinds.items() if isinstance(index, types)), None)
