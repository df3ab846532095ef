"""The shortlist structures: which rows have the most similar prefixes.

Scores made here rank candidates and are never returned to a user. Ties are broken by row number
wherever rows are scanned, also at the cut, so a flat coarse stage is deterministic and a longer
shortlist contains every shorter one.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

import numpy as np

from indexer.arrays import Floats, RowNumbers
from indexer.config import SegmentConfig, Structure
from indexer.errors import SegmentError, VectorError
from indexer.faiss_calls import bitmap, faiss, native_threads, read_index, write_index
from indexer.search.allowed import Allowed
from indexer.search.locality import locality

LEAST_EFFORT = 32
"""Lowest efSearch that a shortlist's size stands for."""

SCAN_SHARE = 0.1
"""Below this share of allowed rows a graph is not walked: they are scanned instead."""

TRAIN_ROWS = 50_000
"""Rows that the ranges and codebooks of a code are fitted on; k-means takes 40 a list if more."""

LEAST_DISTINCT = 100

MOSTLY = 0.75
"""From this share of allowed rows all are scanned and the others left out of what was found: to
ask of every row whether it is allowed takes faiss three times as long as the scan itself."""

Search = Callable[[Floats, int], tuple[Floats, RowNumbers]]
Progress = Callable[[int], None]


class PrefixRows(Protocol):
    """Re-normalised prefixes of all rows, in row order."""

    @property
    def width(self) -> int:
        """How many numbers each has."""

    @property
    def rows(self) -> int:
        """How many there are."""

    def blocks(self, order: RowNumbers | None = None) -> Iterator[Floats]:
        """All of them, in blocks (n_i, p): by row number, or in another order."""

    def sample(self, count: int) -> Floats:
        """At most `count` of them, spread evenly: (n, p)."""


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
        self.structure = _structure(inner)
        self._inner = inner
        # A graph keeps its codes in a flat index of its own, which can be scanned as it is.
        graph = self.structure in (Structure.HNSW, Structure.NSG)
        self._flat = faiss.downcast_index(inner.storage) if graph else inner
        self.rows = int(index.ntotal)
        self.width = int(index.d)
        self._selectors: WeakKeyDictionary[Allowed, Any] = WeakKeyDictionary()

    @classmethod
    def build(
        cls,
        prefixes: PrefixRows,
        config: SegmentConfig,
        on_rows: Progress | None = None,
        kept: RowNumbers | None = None,
    ) -> Self:
        """Index prefixes, all or those `kept`. `on_rows` hears how many rows were just added.

        A graph is laid out by `locality`: neighbours lie near each other, and a walk meets fewer
        pages (12 to 17 % more queries a second, 200k real sentences, two cores).

        Memory is the finished index, its training sample, 10 bytes a row and one block; NSG, whose
        graph is made of all rows at once, holds them all as float32 besides.

        Raises:
            VectorError: there are no rows, or blocks of another width.
        """
        rows = prefixes.rows if kept is None else kept.size
        if rows == 0:
            raise VectorError("a coarse index needs at least one row, got none")
        index = empty(config, rows)
        if not index.is_trained:
            _train(index, prefixes)
        order = kept
        if config.structure in (Structure.HNSW, Structure.NSG):
            order = locality(prefixes.blocks(kept), prefixes.sample(TRAIN_ROWS))
            order = order if kept is None else kept[order]
        if order is not None:
            inner, index = index, faiss.IndexIDMap(index)
            inner.this.disown()
            index.own_fields = True
        blocks = prefixes.blocks(order)
        if config.structure is Structure.NSG:
            blocks = iter([_distinct_enough(np.concatenate(list(blocks)))])
        done = 0
        for block in blocks:
            if block.ndim != 2 or block.shape[1] != config.prefix:
                raise VectorError(
                    f"coarse blocks must be (n, {config.prefix}), got shape {block.shape}"
                )
            if order is None:
                index.add(block)
            else:
                index.add_with_ids(block, order[done : done + len(block)])
            done += len(block)
            if on_rows is not None:
                on_rows(len(block))
        return cls(index)

    @classmethod
    def open(cls, path: Path, *, mapped: bool = False) -> Self:
        """Read a saved index. The caller has verified the file's checksum: faiss trusts it.

        Args:
            path: the file.
            mapped: leave the codes and links in the file and map them, which several processes
                then share; otherwise they are loaded.

        Raises:
            SegmentError: faiss cannot read it, or it is no structure that this package writes.
        """
        index = read_index(path, mapped=mapped)
        inner = index.index if isinstance(index, faiss.IndexIDMap) else index
        if (
            _structure(faiss.downcast_index(inner)) is None
            or index.metric_type != faiss.METRIC_INNER_PRODUCT
        ):
            raise SegmentError(f"{path} holds {type(index).__name__}, no coarse structure of ours")
        return cls(index)

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
                walked = int(max(effort or LEAST_EFFORT, size) / share)
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
            found[:, :wanted] = first(scan, queries, wanted, available)[1]
            return found
        parameters = self.search_parameters(wanted, effort, allowed)
        with native_threads(len(queries)):
            _, walked = self.index.search(queries, wanted, params=parameters)
        found[:, :wanted] = walked
        short = np.flatnonzero((walked < 0).any(axis=1))  # the walk ended before it found enough
        if short.size:
            found[short, :wanted] = first(scan, queries[short], wanted, available)[1]
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
        if allowed.share < MOSTLY:
            return self._scanned(queries, ask, self._selector(allowed))
        # Twice as many as there would be if those left out were spread evenly.
        more = ask + min(allowed.total - allowed.size, round(2 * ask / allowed.share) - ask + 10)
        scores, rows = self._scanned(queries, more, None)
        kept = allowed.mask[rows]
        order = np.argsort(~kept, axis=1, kind="stable")[:, :ask]
        scores = np.take_along_axis(scores, order, axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        short = np.flatnonzero(np.count_nonzero(kept, axis=1) < ask)
        if short.size:
            selector = self._selector(allowed)
            scores[short], rows[short] = self._scanned(queries[short], ask, selector)
        return scores, rows

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


def first(search: Search, queries: Floats, size: int, available: int) -> tuple[Floats, RowNumbers]:
    """Scores and rows (q, size) by (-score, row), from a search that breaks ties at will.

    One row more than wanted tells whether the cut goes through a tie; if it does, the search is
    asked for more until the tie is whole.
    """
    ask = min(size + 1, available)
    scores, rows = search(queries, ask)
    if (scores[:, 1:] < scores[:, :-1]).all():
        return scores[:, :size], rows[:, :size]  # no tie: faiss has sorted them
    found = np.empty((queries.shape[0], size), np.int64)
    best = np.empty(found.shape, np.float32)
    pending = np.arange(queries.shape[0])
    while True:
        order = np.lexsort((rows, -scores))[:, :size]
        found[pending] = np.take_along_axis(rows, order, axis=1)
        best[pending] = np.take_along_axis(scores, order, axis=1)
        if ask == available:
            return best, found
        pending = pending[scores[:, size - 1] == scores[:, -1]]
        if pending.size == 0:
            return best, found
        ask = min(2 * ask, available)
        scores, rows = search(queries[pending], ask)


def empty(config: SegmentConfig, rows: int) -> Any:
    """A faiss index of the recipe's coarse stage, for `rows` rows, not trained and without any."""
    recipe = config.factory(rows)
    index = faiss.index_factory(config.prefix, recipe, faiss.METRIC_INNER_PRODUCT)
    if isinstance(index, faiss.IndexHNSW):
        index.hnsw.efConstruction = config.ef_construction
    return index


def _distinct_enough(rows: Floats) -> Floats:
    """The rows, unless NSG would look among them for neighbours that differ, for ever."""
    distinct = len({hash(row.tobytes()) for row in rows})
    if distinct < LEAST_DISTINCT:
        raise VectorError(
            f"nsg needs {LEAST_DISTINCT} different prefixes, got {distinct} among {len(rows)} "
            "rows; take flat or hnsw"
        )
    return rows


def _train(index: Any, prefixes: PrefixRows) -> None:
    count = TRAIN_ROWS
    if isinstance(index, faiss.IndexIVF):
        count = max(count, 40 * index.nlist)
        index.cp.min_points_per_centroid = 1  # faiss warns on stdout, where JSON may be expected
    if hasattr(index, "pq"):
        index.pq.cp.max_points_per_centroid = 64  # four times faster than faiss's 256
        index.pq.cp.min_points_per_centroid = 1
    index.train(prefixes.sample(count))


def _structure(index: Any) -> Structure | None:
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
