"""The compiled kernel beside faiss, at equal recall: the same segment, and a full-width graph.

    python benchmarks/native_walk.py                                          # synthetic rows
    python benchmarks/native_walk.py --vectors vectors.npy --rows 100000      # real sentences

Three systems answer the same queries in turns, in one batch and one by one: faiss's HNSW32 over
float32, the segment's cascade in faiss, and the same cascade in the compiled kernel. Speed at a
recall is read off between the two nearest search efforts (logarithm of the time against recall),
and a ratio compares systems within one round.
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from real_vectors import split
from record import record, spread
from synthetic import Synthetic

from searchengine.indexer.native.library import KERNEL, description
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.threads import threads
from searchengine.indexer.tuning.points import recall
from searchengine.measure.points import processor_name

K = 10
TARGETS = (0.95, 0.97, 0.98)
CONFIG = SegmentConfig(prefix=192, structure="hnsw", code="int8", ef_construction=64)
FULL = (16, 24, 32, 48, 64, 96, 128, 192)  # ef_search
# (ef_search, shortlist)
CASCADE = ((24, 20), (40, 28), (64, 36), (96, 44), (160, 56), (256, 64), (400, 80))
Search = Callable[[Any], Any]
Point = tuple[float, float, float]  # recall, queries per second, milliseconds of one query


def full_graph(path: Path, rows: Any) -> Callable[[int, bool], Search]:
    """faiss HNSW32 over float32: from an ef_search to a search, in one thread or in all."""
    if path.exists():
        index = faiss.read_index(str(path))
    else:
        index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
        index.add(rows)
        faiss.write_index(index, str(path))

    def at(effort: int, alone: bool) -> Search:
        parameters = faiss.SearchParametersHNSW(efSearch=effort)

        def search(queries: Any) -> Any:
            faiss.omp_set_num_threads(1 if alone else threads.limit)
            return index.search(queries, K, params=parameters)[1]

        return search

    return at


def cascade(path: Path, rows: Any, kernel: str) -> Callable[[tuple[int, int], bool], Search]:
    """A segment that is searched by faiss or by the compiled kernel."""
    if not path.exists():
        Segment.build(path, rows, CONFIG).close()
    os.environ[KERNEL] = kernel
    segment = Segment.open(path)
    del os.environ[KERNEL]

    def at(point: tuple[int, int], alone: bool) -> Search:
        view = segment.over(replace(segment.config, effort=point[0], shortlist=point[1]))
        return lambda queries: view.search(queries, K).rows

    return at


def measure(at: Any, point: Any, queries: Any, truth: Any, alone: int) -> Point:
    """Recall, rate of one batch, and median time of queries one by one."""
    batch, one = at(point, False), at(point, True)
    batch(queries[:64])
    begin = time.perf_counter()
    result = batch(queries)
    rate = len(queries) / (time.perf_counter() - begin)
    times = []
    for query in queries[: alone + 20]:
        begin = time.perf_counter()
        one(query[None])
        times.append(time.perf_counter() - begin)
    return recall(np.asarray(result, np.int64), truth), rate, float(np.median(times[20:])) * 1e3


def read_off(points: list[Point], target: float, column: int) -> float:
    """The figure at a recall, between the nearest measured points; NaN if it was not reached."""
    recalls = [point[0] for point in points]
    if not min(recalls) <= target <= max(recalls):
        return float("nan")
    return float(np.exp(np.interp(target, recalls, [np.log(point[column]) for point in points])))


def figures(rounds: dict[str, list[list[Point]]]) -> dict[str, Any]:
    """Every system's figures at the targets, and how many times better the kernel is."""
    shown: dict[str, Any] = {}
    for name, curves in rounds.items():
        entry: dict[str, Any] = {"curve": curves[-1]}
        for target in TARGETS:
            for column, unit in ((1, "queries/s"), (2, "ms alone")):
                theirs = [read_off(curve, target, column) for curve in curves]
                ours = [read_off(curve, target, column) for curve in rounds["native"]]
                ratios = np.divide(ours, theirs) if column == 1 else np.divide(theirs, ours)
                entry[f"{unit} at {target}"] = spread(theirs)
                entry[f"native is times better: {unit} at {target}"] = spread(ratios.tolist())
        shown[name] = entry
        for key, value in entry.items():
            if key != "curve":
                low, middle, high = (value[part] for part in ("q1", "median", "q3"))
                click.echo(f"{name:13} {key:45} {middle:10.3f} ({low:.3f}–{high:.3f})")
    return shown


@click.command()
@click.option("--vectors", type=click.Path(exists=True, path_type=Path), help="Real vectors.")
@click.option("--rows", default=200_000, show_default=True, help="Rows to index.")
@click.option("--queries", "query_count", default=10_000, show_default=True, help="Of a batch.")
@click.option("--rounds", default=7, show_default=True, help="Rounds of all systems.")
@click.option("--alone", default=300, show_default=True, help="Queries timed one by one.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder that keeps the indexes.")
def main(
    vectors: Path | None,
    rows: int,
    query_count: int,
    rounds: int,
    alone: int,
    work: Path | None,
) -> None:
    """Build or open all, then measure in turns."""
    if vectors is None:
        source = Synthetic()
        base, queries = np.concatenate(list(source.blocks(rows))), source.queries(query_count)
    else:
        base, spare = split(vectors, rows)
        queries = spare[-query_count:]
    context = tempfile.TemporaryDirectory() if work is None else nullcontext(str(work))
    with context as folder:
        work = Path(folder)
        work.mkdir(exist_ok=True)
        if not (work / "truth.npy").exists():
            flat = faiss.IndexFlatIP(base.shape[1])
            flat.add(base)
            np.save(work / "truth.npy", flat.search(queries, K)[1])
            del flat
        truth = np.load(work / "truth.npy")
        systems: dict[str, tuple[Callable[[Any, bool], Search], tuple[Any, ...]]] = {
            "HNSW32 fp32": (full_graph(work / "hnsw.faiss", base), FULL),
            "faiss cascade": (cascade(work / "segment", base, "faiss"), CASCADE),
            "native": (cascade(work / "segment", base, "native"), CASCADE),
        }
        del base
        curves: dict[str, list[list[Point]]] = {name: [] for name in systems}
        for _ in range(rounds):
            for name, (at, points) in systems.items():
                curves[name].append([measure(at, point, queries, truth, alone) for point in points])
    click.echo(f"{processor_name()}, {threads.limit} threads, kernel: {description()}")
    settings: dict[str, Any] = {
        "rows": rows,
        "queries": query_count,
        "vectors": "synthetic" if vectors is None else "real sentences",
    }
    record("native_walk", settings | {"kernel": description()} | figures(curves))


if __name__ == "__main__":
    main()
