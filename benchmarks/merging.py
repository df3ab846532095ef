"""How long a writer and a reader wait while another process merges segments.

    python benchmarks/merging.py
    python benchmarks/merging.py --rows 2000000 --structure hnsw

A collection without an encoder, of random vectors in four segments. One process optimizes it.
Meanwhile a second one adds a document again and again and deletes every tenth one, and a third one
searches by a vector, with a refresh before every tenth search. Reported are the longest and the
median wait of each, beside those of the same calls when nothing is merged.
"""

import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record

from searchengine import SearchEngine
from searchengine.indexer.config import SegmentConfig

PAUSE = 0.02  # seconds between two calls
QUIET = 5.0  # seconds measured when nothing is merged


@click.command()
@click.option("--rows", default=500_000, show_default=True)
@click.option("--dim", default=128, show_default=True)
@click.option("--structure", default="flat", show_default=True)
@click.option("--kept", type=click.Path(path_type=Path), help="Create it here, or copy it.")
def main(rows: int, dim: int, structure: str, kept: Path | None) -> None:
    """Measure and report seconds."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "c"
        if kept is None or not kept.exists():
            create(kept or path, rows, dim, structure)
        if kept is not None:
            shutil.copytree(kept, path)
        merging, ended = context.Event(), context.Event()
        queue = context.Queue()
        jobs = {"add": add, "search": search}
        workers = [
            context.Process(target=job, args=(path, dim, merging, ended, queue))
            for job in jobs.values()
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            queue.get()  # it is open
        time.sleep(QUIET)
        with SearchEngine.open(path, wait=60) as engine:
            merging.set()
            begun = time.monotonic()
            engine.optimize()
            seconds = time.monotonic() - begun
            ended.set()
            waits = dict(queue.get() for _ in workers)
            for worker in workers:
                worker.join()
            engine.refresh()
            engine.verify()
    conditions = {"rows": rows, "dim": dim, "structure": structure}
    figures = {**conditions, "merge seconds": seconds, **waits}
    click.echo(json.dumps(figures, indent=1))
    record("merging", figures)


def create(path: Path, rows: int, dim: int, structure: str) -> None:
    """Four segments of random vectors."""
    rng = np.random.default_rng(0)
    config = SegmentConfig(prefix=min(dim, 64), shortlist=100, structure=structure)  # type: ignore[arg-type]
    with SearchEngine.create(path, None, config, dim=dim) as engine:
        sizes = [rows // 2, rows // 4, rows // 8, rows - rows // 2 - rows // 4 - rows // 8]
        first = 0
        for size in sizes:
            vectors = rng.standard_normal((size, dim), np.float32)
            engine.add([{"_id": str(first + i), "text": ""} for i in range(size)], vectors)
            first += size


def add(path: Path, dim: int, merging: Event, ended: Event, queue: Any) -> None:
    """Add a document at a time; delete every tenth."""
    rng = np.random.default_rng(1)
    count = 0

    def call(engine: SearchEngine) -> None:
        nonlocal count
        count += 1
        if count % 10:
            vector = rng.standard_normal((1, dim), np.float32)
            engine.add([{"_id": f"new {count}", "text": ""}], vector)
        else:
            engine.delete([f"new {count - 5}", str(count)])

    _timed("add", call, path, merging, ended, queue)


def search(path: Path, dim: int, merging: Event, ended: Event, queue: Any) -> None:
    """Search by a vector."""
    vector = np.random.default_rng(2).standard_normal(dim, np.float32)
    count = 0

    def call(engine: SearchEngine) -> None:
        nonlocal count
        count += 1
        if not count % 10:
            engine.refresh()
        assert len(engine.search(vector, mode="vector")) == 10

    _timed("search", call, path, merging, ended, queue)


def _timed(
    name: str,
    call: Callable[[SearchEngine], None],
    path: Path,
    merging: Event,
    ended: Event,
    queue: Any,
) -> None:
    """Put (name, seconds of the calls before and while segments are merged) into the queue."""
    quiet: list[float] = []
    during: list[float] = []
    with SearchEngine.open(path, wait=600) as engine:
        call(engine)
        queue.put(name)
        while not ended.is_set():
            begun = time.monotonic()
            call(engine)
            waits = during if merging.is_set() else quiet
            waits.append(time.monotonic() - begun)
            time.sleep(PAUSE)
    measured = {"quiet": quiet, "merging": during}
    queue.put((name, {when: _spread(waits) for when, waits in measured.items()}))


def _spread(waits: list[float]) -> dict[str, float]:
    return {
        "calls": len(waits),
        "median": float(np.median(waits)),
        "p99": float(np.quantile(waits, 0.99)),
        "longest": max(waits),
    }


if __name__ == "__main__":
    main()
