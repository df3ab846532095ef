"""Building the coarse stage: the structure that is searched first, over re-normalised prefixes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from searchengine.indexer.arrays import BLOCK_ROWS, Floats, RowNumbers, evenly, locality, prefix
from searchengine.indexer.config import Code, SegmentConfig, Structure
from searchengine.indexer.errors import VectorError
from searchengine.indexer.faiss_calls import faiss
from searchengine.indexer.native.hnsw import build_graph
from searchengine.indexer.native.library import chosen_level
from searchengine.indexer.search.cascade import CoarseIndex
from searchengine.indexer.storage.rotation import Prefixes

TRAIN_ROWS = 50_000
"""Rows that the ranges of a code are fitted on; k-means takes 40 per list."""

_MOST_TRAINED = 256  # rows per list
_ITERATIONS = 10  # of k-means
_SEED = 1235  # faiss draws the same first centroids
_SCORES = 1 << 22  # computed at a time: 16 MiB
_APART = 1 / 1024  # by how much the halves of a list that is split differ

Progress = Callable[[int], None]


def build_coarse(
    prefixes: Prefixes,
    config: SegmentConfig,
    progress: Progress | None = None,
    kept: RowNumbers | None = None,
) -> CoarseIndex:
    """Index the prefixes of all rows, or of the rows `kept`.

    A graph is stored in the order of `locality`: neighbours are stored close together, and a walk
    touches fewer pages (12 to 17 % more queries per second, 200k real sentences, two cores).

    Memory: the finished index, its training sample, 10 bytes per row and one block.

    Args:
        prefixes: re-normalised prefixes of all rows.
        config: the index config.
        progress: called with the number of rows just added.
        kept: rising row numbers; None for all.

    Raises:
        VectorError: there are no rows, or blocks of another width.
    """
    rows = prefixes.rows if kept is None else kept.size
    if rows == 0:
        raise VectorError("a coarse index needs at least one row, got none")
    index = empty(config, rows)
    centroids = None
    if config.structure is Structure.IVF:
        centroids = _train_lists(index, prefixes)
    elif not index.is_trained:
        index.train(prefixes.sample(TRAIN_ROWS))
    order = kept
    if config.structure is Structure.HNSW:
        order = locality(prefixes.blocks(kept), prefixes.sample(TRAIN_ROWS))
        order = order if kept is None else kept[order]
        level = chosen_level()
        if config.code is Code.INT8 and level is not None:
            report = progress or (lambda _: None)
            graph = build_graph(index, prefixes.blocks(order), order, level, report)
            return CoarseIndex(graph)
    if order is not None and centroids is None:
        inner, index = index, faiss.IndexIDMap(index)
        inner.this.disown()
        index.own_fields = True
    done = 0
    for block in prefixes.blocks(order):
        if block.ndim != 2 or block.shape[1] != config.prefix:
            raise VectorError(
                f"coarse blocks must be (n, {config.prefix}), got shape {block.shape}"
            )
        end = done + len(block)
        numbers = np.arange(done, end) if order is None else order[done:end]
        _add(index, block, numbers, centroids)
        done = end
        if progress is not None:
            progress(len(block))
    return CoarseIndex(index)


def empty(config: SegmentConfig, rows: int) -> Any:
    """An empty, untrained faiss index for the coarse stage of `rows` rows."""
    index = faiss.index_factory(config.prefix, config.factory(rows), faiss.METRIC_INNER_PRODUCT)
    if isinstance(index, faiss.IndexHNSW):
        index.hnsw.efConstruction = config.ef_construction
    return index


def _train_lists(index: Any, prefixes: Prefixes) -> Floats:
    """Fit the lists and the code of an empty IVF, without faiss's matrix products.

    faiss-cpu comes with an OpenBLAS of 2021, which takes newer processors for old ones.

    Returns:
        the centroids (lists, p) float32.
    """
    sample = prefixes.sample(max(TRAIN_ROWS, 40 * index.nlist))
    centroids = kmeans(sample, index.nlist)
    index.quantizer.add(centroids)
    sample -= centroids[nearest(sample, centroids)]  # faiss stores what is left
    index.train_encoder(len(sample), faiss.swig_ptr(sample), None)
    index.is_trained = True
    return centroids


def _add(index: Any, rows: Floats, numbers: RowNumbers, centroids: Floats | None) -> None:
    if centroids is not None:
        lists = nearest(rows, centroids)
        index.add_core(len(rows), *map(faiss.swig_ptr, (rows, numbers, lists)))
    elif isinstance(index, faiss.IndexIDMap):
        index.add_with_ids(rows, numbers)
    else:
        index.add(rows)


def kmeans(points: Floats, count: int) -> Floats:
    """Spherical k-means, as faiss does it: unit centroids (count, p) float32 of points (n, p).

    The first are points drawn at random, always the same. Where a list has no points, a long one is
    split in two.

    Raises:
        VectorError: fewer points than lists.
    """
    if len(points) < count:
        raise VectorError(f"lists must be at most the number of rows, {len(points)}, got {count}")
    if len(points) > _MOST_TRAINED * count:
        points = points[evenly(len(points), _MOST_TRAINED * count)]
    drawn = np.empty(len(points), np.int32)
    faiss.rand_perm(faiss.swig_ptr(drawn), drawn.size, _SEED)
    centroids = points[drawn[:count]]
    rng = np.random.default_rng(_SEED)
    tilt = _APART * (1 - 2 * (np.arange(points.shape[1]) % 2)).astype(np.float32)
    for _ in range(_ITERATIONS):
        lists = nearest(points, centroids)
        sizes, sums = np.bincount(lists, minlength=count), np.zeros_like(centroids)
        for start in range(0, len(points), BLOCK_ROWS):
            block = lists[start : start + BLOCK_ROWS]
            order = np.argsort(block, kind="stable")
            filled, firsts = np.unique(block[order], return_index=True)
            sums[filled] += np.add.reduceat(points[start + order], firsts, axis=0)
        centroids = prefix(sums, sums.shape[1])
        for empty_list in np.flatnonzero(sizes == 0):
            longer = np.maximum(sizes - 1, 0)
            full = rng.choice(count, p=longer / longer.sum())
            centroids[empty_list] = centroids[full] * (1 + tilt)
            centroids[full] *= 1 - tilt
            sizes[empty_list] = sizes[full] // 2
            sizes[full] -= sizes[empty_list]
    return prefix(centroids, centroids.shape[1])


def nearest(rows: Floats, centroids: Floats) -> RowNumbers:
    """The list (n,) int64 of each row: the centroid with the largest inner product."""
    lists = np.empty(len(rows), np.int64)
    step = max(1, _SCORES // len(centroids))
    for start in range(0, len(rows), step):
        scores = rows[start : start + step] @ centroids.T
        lists[start : start + step] = scores.argmax(axis=1)
    return lists
