"""Building an HNSW graph with the compiled kernel, in the arrays of a faiss index."""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from indexer.arrays import Floats, RowNumbers, address
from indexer.faiss_calls import faiss
from indexer.native.graph import MESSAGE, graph_arrays
from indexer.native.library import load
from indexer.threads import threads

_CHUNK = 8192  # nodes of a call, between which progress is reported
_SEED = 12345


def build_graph(
    inner: Any,
    blocks: Iterable[Floats],
    ids: RowNumbers,
    level: int,
    progress: Callable[[int], None],
) -> Any:
    """Fill an index with rows and link them, in a fraction of the time that faiss takes.

    The links are chosen as faiss chooses them (Malkov and Yashunin 2016), between 8-bit codes.

    Args:
        inner: a trained, empty IndexHNSWSQ with 8-bit codes; its efConstruction is used.
        blocks: rows (n_i, p) in the order of their nodes.
        ids: (n,) their row numbers.
        level: from `library.chosen_level`.
        progress: called with the number of rows just linked.

    Returns:
        An IndexIDMap that owns `inner`. Memory on top of it while building: the codes once more.

    Raises:
        MemoryError
    """
    index = faiss.IndexIDMap(inner)
    inner.this.disown()
    index.own_fields = True
    storage = faiss.downcast_index(inner.storage)
    for block in blocks:
        storage.add(block)
    inner.ntotal = storage.ntotal
    hnsw = inner.hnsw
    hnsw.prepare_level_tab(inner.ntotal, False)
    levels = faiss.vector_to_array(hnsw.levels)
    shuffled = np.random.default_rng(_SEED).permutation(levels.size).astype(np.int32)
    order = shuffled[np.argsort(-levels[shuffled], kind="stable")]
    hnsw.entry_point, hnsw.max_level = int(order[0]), int(levels[order[0]]) - 1
    faiss.copy_array_to_vector(np.ascontiguousarray(ids, np.int64), index.id_map)
    index.ntotal = inner.ntotal

    arrays, _kept = graph_arrays(index, "the new graph")
    arrays.rows, arrays.dim = int(ids.max()) + 1, arrays.width
    lowest = np.ascontiguousarray(faiss.vector_to_array(storage.sq.trained)[: arrays.width])
    library, message = load(), ctypes.create_string_buffer(MESSAGE)
    builder = library.kernel_build(
        ctypes.byref(arrays),
        arrays.links,
        address(lowest),
        level,
        hnsw.efConstruction,
        message,
        MESSAGE,
    )
    if not builder:
        raise MemoryError(message.value.decode() or "no memory to build the graph")
    try:
        for start in range(0, len(order), _CHUNK):
            part = order[start : start + _CHUNK]
            with threads.take(-(-len(part) // 64)) as count:
                if library.kernel_insert(builder, address(part), len(part), count) < 0:
                    raise MemoryError("no memory to build the graph")
            progress(len(part))
    finally:
        library.kernel_built(builder)
    return index
