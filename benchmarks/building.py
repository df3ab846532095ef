"""Building a segment by the compiled kernel and by faiss, beside a full-width graph.

    python benchmarks/building.py --vectors vectors.npy --rows 100000

Everything is built in turns. A segment's build is complete: the rotation is fitted, rows are
rotated, written and synced, the graph is built. Processor time of all threads counts as well as the
clock: another program on the machine delays the one more than the other.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from real_vectors import VECTORS
from record import record, spread

from searchengine.indexer.native.library import KERNEL
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.threads import threads

CONFIG = SegmentConfig(prefix=192, structure="hnsw", code="int8", ef_construction=64)  # type: ignore[arg-type]


def segment(rows: Any, kernel: str) -> None:
    os.environ[KERNEL] = kernel
    try:
        with tempfile.TemporaryDirectory() as folder:
            Segment.build(Path(folder) / "segment", rows, CONFIG).close()
    finally:
        del os.environ[KERNEL]


def full_width(rows: Any, ef_construction: int) -> None:
    faiss.omp_set_num_threads(threads.limit)
    index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = ef_construction
    index.add(rows)


@click.command()
@VECTORS
@click.option("--rows", default=100_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(vectors: Path, rows: int, rounds: int) -> None:
    """Build each in turns, and report seconds and what the kernel's take of the others'."""
    data = np.array(np.load(vectors, mmap_mode="r")[:rows], np.float32)
    systems = {
        "compiled kernel": lambda: segment(data, "native"),
        "the same segment by faiss": lambda: segment(data, "faiss"),
        "HNSW32, float32, efConstruction 40": lambda: full_width(data, 40),
        "HNSW32, float32, efConstruction 100": lambda: full_width(data, 100),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, build in systems.items():
            clock, processor = time.perf_counter(), time.process_time()
            build()
            found[name].append((time.perf_counter() - clock, time.process_time() - processor))
            click.echo(f"{name}: {found[name][-1]}")
    ours = np.array(found["compiled kernel"])
    figures: dict[str, Any] = {"rows": rows}
    for name, times in found.items():
        ratios = ours / np.array(times)
        figures[name] = {
            "seconds": spread([clock for clock, _ in times]),
            "processor seconds": spread([processor for _, processor in times]),
            "the kernel takes": spread(ratios[:, 0].tolist()),
            "the kernel takes of the processor": spread(ratios[:, 1].tolist()),
        }
        click.echo(f"{name}: {figures[name]}")
    record("building", figures)


if __name__ == "__main__":
    main()
