"""Milliseconds a query for the proven best k: bounds and the rows they leave, against full scans.

    python benchmarks/certified.py --vectors vectors.npy

The file is an (n, D) array of floats in shuffled order: the first --rows are stored as float16
after a rotation, the next --queries are asked. One thread, one query at a time, all sides in turn
for each query. Certifying starts from an answer, here the best k of a flat 192-dim shortlist of
100, which is not timed; `agree` counts queries that get the rows and scores of the mapped scan.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from record import record, spread

from searchengine.indexer.arrays import BLOCK_ROWS, Floats, prefix, unit_rows
from searchengine.indexer.config import Storage
from searchengine.indexer.search.cascade import SearchResult, rerank
from searchengine.indexer.search.certificates import EXTRA_ROWS, Bounds, certify
from searchengine.indexer.search.segment_files import open_coarse
from searchengine.indexer.storage.basis import pca
from searchengine.indexer.storage.vectors_file import VectorFile, VectorWriter

START = 192


@click.command()
@click.option("--vectors", type=click.Path(path_type=Path), help="An .npy file (n, D).")
@click.option("--rows", default=200_000, show_default=True)
@click.option("--queries", default=100, show_default=True)
@click.option("--k", default=10, show_default=True)
@click.option(
    "--widths", default="189,221,253,285", show_default=True, help="Prefixes of the bounds."
)
@click.option(
    "--panorama", default="", help="Levels of faiss's Panorama to time beside, e.g. 8,16."
)
def main(vectors: Path | None, rows: int, queries: int, k: int, widths: str, panorama: str) -> None:
    """Time exact search by scans and by bounds, print a table and record it."""
    if vectors is None or not vectors.is_file():
        raise click.UsageError("--vectors must name an .npy file of (n, D) rows; encode some first")
    matrix = np.load(vectors, mmap_mode="r")
    if matrix.ndim != 2 or len(matrix) < rows + queries:
        raise click.UsageError(
            f"{vectors} has shape {matrix.shape}, expected {rows} rows and {queries} queries; "
            "lower --rows or --queries"
        )
    faiss.omp_set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        store, query_vectors = stored(matrix, rows, queries, Path(scratch) / "vectors")
        figures = compare(store, query_vectors, k, numbers(widths), numbers(panorama))
    for name, figure in figures.items():
        click.echo(f"{name:24} {json.dumps(figure)}")
    record("certified", {"rows": rows, "dim": store.dim, "k": k, **figures})


def numbers(text: str) -> list[int]:
    """Whole numbers between commas."""
    return [int(part) for part in text.split(",") if part]


def stored(vectors: Floats, rows: int, queries: int, path: Path) -> tuple[VectorFile, Floats]:
    """The rotated rows in a file, and the rotated queries."""
    starts = range(0, rows, BLOCK_ROWS)
    turn = pca(vectors[start : min(start + BLOCK_ROWS, rows)] for start in starts[::4])
    with VectorWriter(path, vectors.shape[1], Storage.FLOAT16) as writer:
        for start in starts:
            writer.append(vectors[start : min(start + BLOCK_ROWS, rows)] @ turn)
        writer.seal()
    query_vectors = unit_rows(vectors[rows : rows + queries] @ turn)
    return VectorFile(path, rows, vectors.shape[1], Storage.FLOAT16), query_vectors


def compare(
    store: VectorFile, query_vectors: Floats, k: int, widths: list[int], levels: list[int]
) -> dict[str, Any]:
    """Milliseconds of every side, with the share of rows read by those that certify."""
    found = first_answer(store, query_vectors, k)
    full = open_coarse(store.path)
    sample = store.take(np.linspace(0, store.rows - 1, min(store.rows, 20_000)).astype(np.int64))
    bounds = {width: Bounds.build(store.blocks(), width, sample) for width in widths}
    scans = {"flat float32": faiss.IndexFlatIP(store.dim)}
    for level in levels:
        scans[f"panorama {level}"] = faiss.IndexFlatIPPanorama(store.dim, level, 512)
    for block in store.blocks():
        for scan in scans.values():
            scan.add(block)

    times: dict[str, list[float]] = {}
    touched: dict[int, list[float]] = {width: [] for width in widths}
    agree = dict.fromkeys(widths, 0)
    for i in range(len(query_vectors)):
        query = query_vectors[i : i + 1]
        for name, scan in scans.items():
            timed(times, name, lambda scan=scan, query=query: scan.search(query, k))
        expected: SearchResult = timed(
            times,
            "mapped float16",
            lambda query=query: rerank(store, query, full.shortlist(query, k + EXTRA_ROWS), k),
        )
        for width, of in bounds.items():
            one = timed(
                times,
                f"certified {width}",
                lambda of=of, query=query, i=i: certify(
                    of, partial(rerank, store), full, query, k, found[i : i + 1]
                ),
            )
            touched[width].append(float(one.read[0] / store.rows))
            agree[width] += np.array_equal(one.rows, expected.rows) and np.array_equal(
                one.scores, expected.scores
            )
    figures: dict[str, Any] = {name: spread(values) for name, values in times.items()}
    for width in widths:
        figures[f"certified {width}"] |= {
            "touched": float(np.mean(touched[width])),
            "agree": agree[width],
            "times faster than flat": spread(ratio(times, "flat float32", f"certified {width}")),
            "than mapped": spread(ratio(times, "mapped float16", f"certified {width}")),
        }
    return figures


def first_answer(store: VectorFile, query_vectors: Floats, k: int) -> Any:
    """Rows (q, k) of an ordinary search."""
    width = min(START, store.dim)
    coarse = faiss.index_factory(width, "SQ8", faiss.METRIC_INNER_PRODUCT)
    for block in store.blocks(width):
        if not coarse.is_trained:
            coarse.train(prefix(block, width))
        coarse.add(prefix(block, width))
    _, shortlist = coarse.search(prefix(query_vectors, width), 100)
    return rerank(store, query_vectors, shortlist, k).rows


def timed(times: dict[str, list[float]], name: str, call: Callable[[], Any]) -> Any:
    """What the call returns; its milliseconds are kept under its name."""
    start = time.perf_counter()
    result = call()
    times.setdefault(name, []).append(1000 * (time.perf_counter() - start))
    return result


def ratio(times: dict[str, list[float]], slow: str, fast: str) -> list[float]:
    """How many times faster one side was, query by query."""
    return [a / b for a, b in zip(times[slow], times[fast], strict=True)]


if __name__ == "__main__":
    main()
