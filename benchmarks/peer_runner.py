"""The processes of search_speed.py: our segment and its peers, each in one of its own.

A side reads rows.npy from the folder of the run, builds its index, and answers requests about
queries.npy: settings are chosen on the first half of the queries, and measured on the other. To add
a peer, write a function that builds it, and a line in PEERS.
"""

import ctypes
import gc
import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sides import run

K = 10
OURS = "ours"
WARM_UP = 100  # queries before any are timed
TUNED = 200  # queries timed one by one while settings are chosen
# Above 96, settings are further apart: they serve data on which less does not reach the target.
EFFORTS = (*range(16, 100, 4), 128, 192, 256, 384, 512)
SHORTLISTS = (12, 16, 20, 24, 32, 40, 48)
Setting = dict[str, int]
Search = Callable[[Any], Any]


class Index(NamedTuple):
    """A built index.

    Attributes:
        configure: called with the number of threads and a setting; returns a search, from queries
            (q, D) float32 to row numbers (q, K), nearest first.
        ladders: sequences of settings, each rising in recall.
        build_s: seconds to build it, where another process did.
    """

    configure: Callable[..., Search]
    ladders: Sequence[Sequence[Setting]]
    build_s: float | None = None


def prefix(dim: int) -> int:
    """Dimensions of the coarse stage, ours and LeanVec's: a quarter, in steps of 64."""
    return min(dim, -(-dim // 256) * 64)


def efforts(name: str) -> list[list[Setting]]:
    """The one ladder of a peer with one setting."""
    return [[{name: value} for value in (K, *EFFORTS)]]


def ours(rows: Any, folder: Path, kernel: str | None = None) -> Index:
    from searchengine.indexer.native.library import KERNEL
    from searchengine.indexer.segment import Segment

    # In a process of its own, as usual: what is left of a build is not memory of a search.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        seconds = pool.submit(build_segment, folder / "segment", folder.parent).result()
    os.environ |= {KERNEL: kernel} if kernel else {}
    segment = Segment.open(folder / "segment")

    def configure(threads: int, ef: int, shortlist: int) -> Search:
        view = segment.over(replace(segment.config, effort=ef, shortlist=shortlist))
        return lambda queries: view.search(queries, K).rows

    ladders = [
        [{"ef": ef, "shortlist": size} for ef in EFFORTS if ef >= size] for size in SHORTLISTS
    ]
    return Index(configure, ladders, seconds)


def build_segment(path: Path, folder: Path) -> float:
    """Build our segment over rows.npy of a folder; returns seconds."""
    from searchengine.indexer.segment import Segment, SegmentConfig

    rows = np.load(folder / "rows.npy")
    config: Any = {"prefix": prefix(rows.shape[1]), "structure": "hnsw", "code": "int8"}
    begin = time.perf_counter()
    Segment.build(path, rows, SegmentConfig(**config)).close()
    return time.perf_counter() - begin


def faiss_hnsw(rows: Any, folder: Path) -> Index:
    import faiss

    index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 100
    index.add(rows)

    def configure(threads: int, ef: int) -> Search:
        faiss.omp_set_num_threads(threads)
        index.hnsw.efSearch = ef
        return lambda queries: index.search(queries, K)[1]

    return Index(configure, efforts("ef"))


def hnswlib_hnsw(rows: Any, folder: Path) -> Index:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(len(rows), M=16, ef_construction=200)
    index.add_items(rows)

    def configure(threads: int, ef: int) -> Search:
        index.set_ef(ef)
        return lambda queries: index.knn_query(queries, K, num_threads=threads)[0]

    return Index(configure, efforts("ef"))


def svs_leanvec(rows: Any, folder: Path) -> Index:
    import svs

    file, dim = folder / "rows.fvecs", rows.shape[1]
    svs.write_vecs(rows, str(file))
    loader = svs.VectorDataLoader(str(file), svs.float32, dims=dim)
    kind = svs.LeanVecKind.lvq8
    parameters = svs.VamanaBuildParameters(graph_max_degree=64, window_size=128, alpha=0.95)
    index = svs.Vamana.build(
        parameters,
        svs.LeanVecLoader(loader, prefix(dim), kind, kind),
        svs.MIP,
        num_threads=processors(),
    )
    file.unlink()

    def configure(threads: int, window: int) -> Search:
        index.num_threads = threads
        index.search_window_size = window
        return lambda queries: index.search(queries, K)[0]

    return Index(configure, efforts("window"))


def symphonyqg(rows: Any, folder: Path) -> Index:
    import rabitqlib

    index = rabitqlib.SymqgIndex(rows.shape[1], 64, metric="ip")
    index.build(rows, 200, num_threads=processors(), init="pipnn")

    def configure(threads: int, ef: int) -> Search:
        if threads == 1:
            return lambda queries: index.search(queries, K, ef)[0]
        return lambda queries: index.search_batch(queries, K, ef, num_threads=threads)[0]

    return Index(configure, efforts("ef"))


def usearch_hnsw(rows: Any, folder: Path) -> Index:
    import usearch.index

    index = usearch.index.Index(
        ndim=rows.shape[1], metric="ip", dtype="bf16", connectivity=32, expansion_add=100
    )
    index.add(np.arange(len(rows)), rows, threads=processors())

    def configure(threads: int, expansion: int) -> Search:
        index.expansion_search = expansion
        return lambda queries: index.search(queries, K, threads=threads).keys

    return Index(configure, efforts("expansion"))


def by_faiss(rows: Any, folder: Path) -> Index:
    """Our segment, searched by faiss in place of the compiled kernel."""
    return ours(rows, folder, "faiss")


# name: its module, what its index is, what builds it
PEERS: dict[str, tuple[str, str, Callable[[Any, Path], Index]]] = {
    "ours by faiss": ("faiss", "HNSW, int8 of a quarter", by_faiss),
    "faiss": ("faiss", "HNSW32, float32, efConstruction 100", faiss_hnsw),
    "hnswlib": ("hnswlib", "HNSW, M 16, float32, ef_construction 200", hnswlib_hnsw),
    "svs": ("svs", "LeanVec of a quarter, LVQ8x8, graph_max_degree 64", svs_leanvec),
    "symphonyqg": ("rabitqlib", "SymphonyQG, degree 64, ef_construction 200", symphonyqg),
    "usearch": ("usearch.index", "HNSW, connectivity 32, bf16", usearch_hnsw),
}
SIDES = {OURS: ("searchengine.indexer.segment", "HNSW, int8 of a quarter", ours)} | PEERS


class Requests:
    """The requests that a side answers. Times are seconds a query."""

    def __init__(self, index: Index, queries: Any, truth: Any) -> None:
        """`queries`: (q, D) float32. `truth`: their nearest rows (q, K)."""
        self._index, self._queries, self._truth = index, queries, truth
        half = len(queries) // 2
        self._first, self._other = slice(0, half), slice(half, None)

    def choose(self, target: float) -> dict[str, Any]:
        """The fastest setting whose recall of the first half is the target, or the highest recall.

        Of each ladder the first setting that reaches it; if there are several, they are timed: the
        product of a batch and of queries one by one decides.
        """
        reached, missed = [], []
        for ladder in self._index.ladders:
            for setting in ladder:
                share = recall(self._batch(setting, self._first)[0], self._truth[self._first])
                (missed if share < target else reached).append((setting, share))
                if share >= target:
                    break
        if not reached:
            setting, share = max(missed, key=lambda pair: pair[1])
        elif len(reached) == 1:
            setting, share = reached[0]
        else:
            setting, share = min(reached, key=lambda pair: self._product(pair[0]))
        return {"setting": setting, "recall": share, "reached": bool(reached)}

    def batch(self, setting: Setting) -> dict[str, float]:
        """Recall and time of the other half in one call, with all threads."""
        rows, seconds = self._batch(setting, self._other)
        return {"recall": recall(rows, self._truth[self._other]), "seconds": seconds}

    def alone(self, setting: Setting, count: int) -> float:
        """The median time of queries of the other half, each in a call with one thread."""
        return float(np.median(self._alone(setting, self._queries[self._other][:count])))

    def _product(self, setting: Setting) -> float:
        seconds = min(self._batch(setting, self._first)[1] for _ in range(3))
        times = self._alone(setting, self._queries[self._first][:TUNED])
        return seconds * float(np.median(times))

    def _batch(self, setting: Setting, part: slice) -> tuple[Any, float]:
        search, queries = self._index.configure(processors(), **setting), self._queries[part]
        search(self._queries[:WARM_UP])
        begin = time.perf_counter()
        rows = search(queries)
        seconds = (time.perf_counter() - begin) / len(queries)
        return np.asarray(rows, np.int64), seconds

    def _alone(self, setting: Setting, queries: Any) -> list[float]:
        search, times = self._index.configure(1, **setting), []
        singles = [query[None] for query in queries]
        for query in islice(cycle(singles), WARM_UP):
            search(query)
        for query in singles:
            begin = time.perf_counter()
            search(query)
            times.append(time.perf_counter() - begin)
        return times


def recall(rows: Any, truth: Any) -> float:
    """The share of the true K nearest (q, K) that is among the rows (q, K)."""
    return float((truth[:, :, None] == rows[:, None, :]).any(axis=2).mean())


def processors() -> int:
    """Processors that this process may use: the threads of a batch."""
    return len(os.sched_getaffinity(0))


def private_bytes() -> int:
    """Memory of this process that is no file's. OSError where the system does not report it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(text.split("\nAnonymous:")[1].split()[0])


def blas() -> Iterator[dict[str, str]]:
    """Each BLAS library of this process: which it is, its version, and the kernel it chose."""
    from threadpoolctl import threadpool_info

    for library in threadpool_info():
        if library["user_api"] == "blas":
            yield {
                "of": Path(library["filepath"]).parent.name.removesuffix(".libs"),
                "library": library["internal_api"],
                "version": str(library["version"]),
                "kernel": str(library.get("architecture")),
            }


def be(side: str, folder: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A side, and its description; a peer that is absent or fails says why as "left_out"."""
    module, about, build = SIDES[side]
    work, data = Path(folder) / side, Path(folder)
    work.mkdir()
    queries, truth = np.load(data / "queries.npy"), np.load(data / "neighbors.npy")
    try:
        importlib.import_module(module)
        before = private_bytes()
        rows = np.load(data / "rows.npy")
        begin = time.perf_counter()
        index = build(rows, work)
        seconds = time.perf_counter() - begin
    except Exception as error:
        if side == OURS:
            raise
        return print, {"left_out": f"{type(error).__name__}: {error}".splitlines()[0]}
    count = len(rows)
    del rows
    requests = Requests(index, queries, truth)
    requests.batch(index.ladders[0][0])
    return lambda do, **arguments: getattr(requests, do)(**arguments), {
        "index": about,
        "build_s": index.build_s or seconds,
        "private_bytes_a_row": max(0, private_bytes() - before) / count,
        "mapped_bytes_a_row": sum(path.stat().st_size for path in work.rglob("*.*")) / count,
        "blas": list(blas()),
    }


if __name__ == "__main__":
    # A stopped process does not notice that its parent is gone: PR_SET_PDEATHSIG.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    run(lambda: print("started by search_speed.py"), be)
