"""Scans by the compiled kernel and by faiss, in turns; and single queries beside a batch.

    python benchmarks/scans.py --vectors vectors.npy

Exact search of 1 and 200 queries, filters that leave 1,000, 20,000 and half of the rows, and a flat
coarse stage over 128 dimensions. Then the time of a single query while another thread searches one
batch after the other: over a graph, flat, and exact.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from real_vectors import VECTORS
from record import record, spread

from searchengine.indexer.native.library import KERNEL
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig

K, QUERIES = 10, 2000
SECONDS = 6  # of single queries beside each kind of batch


def opened(folder: Path, kernel: str) -> Segment:
    os.environ[KERNEL] = kernel
    return Segment.open(folder)


def milliseconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begin)


def scans(folder: Path, queries: np.ndarray, rounds: int) -> dict[str, Any]:
    ours, faiss = opened(folder, "native"), opened(folder, "faiss")
    rng, rows = np.random.default_rng(0), ours.rows
    few, more, half = (
        Allowed.from_rows(np.sort(rng.permutation(rows)[:count]), rows)
        for count in (1000, 20_000, rows // 2)
    )
    one, many = queries[:1], queries[:200]
    cases: dict[str, Callable[[Segment], Any]] = {
        "exact, one query": lambda segment: segment.exact(one, K),
        "exact, 200 queries": lambda segment: segment.exact(many, K),
        "1,000 allowed rows, one query": lambda segment: segment.search(one, K, allowed=few),
        "20,000 allowed rows, exact": lambda segment: segment.exact(one, K, allowed=more),
        "half of the rows allowed, exact": lambda segment: segment.exact(one, K, allowed=half),
        "flat, 128 dimensions, one query": lambda segment: segment.search(one, K),
        "flat, 128 dimensions, 200 queries": lambda segment: segment.search(many, K),
    }
    figures = {}
    for name, case in cases.items():
        pairs = []
        for _ in range(rounds):
            pairs.append(tuple(milliseconds(lambda s=s, case=case: case(s)) for s in (ours, faiss)))
        native, by_faiss = zip(*pairs[1:], strict=True)
        ratios = [slow / fast for fast, slow in pairs[1:]]
        figures[name] = {
            "native ms": spread([*native]),
            "faiss ms": spread([*by_faiss]),
            "ratio": spread(ratios),
        }
        click.echo(f"{name}: {figures[name]}")
    return figures


def beside_a_batch(segment: Segment, queries: np.ndarray, exact: bool) -> dict[str, float]:
    """Times of single queries while a thread searches 20,000 queries again and again."""
    ended = threading.Event()

    def batches() -> None:
        batch = np.concatenate([queries] * 10)[: 400 if exact else None]
        while not ended.is_set():
            (segment.exact if exact else segment.search)(batch, K)

    thread = threading.Thread(target=batches)
    thread.start()
    time.sleep(0.5)
    times, until = [], time.monotonic() + SECONDS
    while time.monotonic() < until:
        query = queries[len(times) % len(queries)][None]
        times.append(milliseconds(lambda query=query: segment.search(query, K)))
        time.sleep(0.002)
    ended.set()
    thread.join()
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "max": max(times), "n": len(times)}


@click.command()
@VECTORS
@click.option("--rows", default=100_000)
@click.option("--rounds", default=15)
def main(vectors: Path, rows: int, rounds: int) -> None:
    every = np.load(vectors, mmap_mode="r")
    queries = np.array(every[-QUERIES:])
    with tempfile.TemporaryDirectory() as folder:
        flat, graph = Path(folder) / "flat", Path(folder) / "graph"
        Segment.build(flat, every[:rows], SegmentConfig(prefix=128, shortlist=150)).close()
        config = SegmentConfig(prefix=128, structure="hnsw", code="int8", shortlist=50, effort=100)
        Segment.build(graph, every[:rows], config).close()
        figures: dict[str, Any] = {"rows": rows, "scans": scans(flat, queries, rounds)}
        segments = {"a graph": graph, "a flat stage": flat, "exact search": graph}
        for name, path in segments.items():
            segment = opened(path, "native")
            alone = [
                milliseconds(lambda s=segment, q=q: s.search(q[None], K)) for q in queries[:300]
            ]
            beside = beside_a_batch(segment, queries, name == "exact search")
            figures[f"beside batches of {name}"] = beside | {"alone": spread(alone)}
            click.echo(f"{name}: {figures[f'beside batches of {name}']}")
    record("scans", figures)


if __name__ == "__main__":
    main()
