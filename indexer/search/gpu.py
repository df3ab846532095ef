"""Scans on a GPU, where faiss sees one: the flat coarse stage and the exact full-width scan.

Graphs are walked on the CPU, whose caches suit them better than a copy over the bus would.
"""

from threading import Lock

from indexer.errors import SegmentError
from indexer.faiss_calls import faiss
from indexer.search.coarse import CoarseIndex, PrefixRows

LONGEST = 2048
"""Most rows a query that faiss gives from a GPU."""

SLACK = 2.0**-9
"""Scores made there may be off by this much more: rows scaled and rounded to float16 once again."""


def require_gpu() -> None:
    """Raise SegmentError if faiss sees no GPU, or was built without support for one."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise SegmentError(
            "this faiss was built without GPU support: "
            "pip uninstall faiss-cpu, then pip install 'searchengine[gpu]'; or leave out the device"
        )
    if not faiss.get_num_gpus():
        raise SegmentError("faiss sees no GPU here; leave out the device to search on the CPU")


def flat(rows: PrefixRows) -> CoarseIndex:
    """All rows as a flat float16 index in the memory of the first GPU.

    Raises:
        SegmentError: no GPU, or not enough memory on it.
    """
    require_gpu()
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    try:
        index = faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), rows.width, config)
        for block in rows.blocks():
            index.add(block)
    except RuntimeError as error:
        raise SegmentError(
            f"the GPU does not take {rows.rows} rows of {2 * rows.width} bytes: {error}; "
            "search on the CPU"
        ) from error
    return CoarseIndex(index, lock=Lock())  # faiss: one search at a time on a GPU index
