"""What a changing collection costs: single additions, and memory against the size of the corpus.

    python benchmarks/living.py adds                    # 10,000 additions of one document
    python benchmarks/living.py memory                  # 10k, 100k and a million documents
    python benchmarks/living.py concurrency             # a question's time while another writes

The encoder is benchmarks/words.py, 384 wide, so that what is measured is the collection.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record, spread
from words import Words, documents

from searchengine import SearchEngine

QUESTIONS = [document["text"] for document in documents(200, length=4)]


@click.group()
def main() -> None:
    """See the module's beginning."""


def milliseconds(engine: SearchEngine, vectors: Any) -> list[float]:
    """Each question alone, its encoding left out."""
    found = []
    for vector in vectors:
        start = time.perf_counter()
        engine.search(vector, 10)
        found.append(1000 * (time.perf_counter() - start))
    return found


@main.command()
@click.option("--count", default=10_000, show_default=True)
def adds(count: int) -> None:
    """One document at a time: seconds, segments on the way, and search before and after."""
    vectors = Words().encode(QUESTIONS)
    points, each = [], []
    with tempfile.TemporaryDirectory() as folder:
        with SearchEngine.create(Path(folder) / "c", Words()) as engine:
            started = time.perf_counter()
            for i, document in enumerate(documents(count), start=1):
                start = time.perf_counter()
                engine.add([document])
                each.append(1000 * (time.perf_counter() - start))
                if i in (10, 100, 1000, 2000, 5000) or i == count:
                    point = {
                        "documents": i,
                        "segments": engine.stats().segments,
                        "seconds": time.perf_counter() - started,
                        "search_ms": spread(milliseconds(engine, vectors)),
                    }
                    click.echo(json.dumps(point), err=True)
                    points.append(point)
            engine.optimize()
            optimized = spread(milliseconds(engine, vectors))
            engine.verify()
    figures = {
        "points": points,
        "one addition, ms": spread(each),
        "slowest addition, ms": max(each),
        "search when optimized, ms": optimized,
    }
    click.echo(json.dumps(figures, indent=2))
    record("single additions", figures)


@main.command()
@click.option("--counts", default="10000,100000,1000000", show_default=True)
@click.option("--one", type=int, hidden=True)
def memory(counts: str, one: int | None) -> None:
    """Peak memory of `add` that commits as it goes, in a process for each size."""
    if one is not None:
        print(json.dumps(_indexed(one)))
        return
    figures = []
    for count in map(int, counts.split(",")):
        command = [sys.executable, __file__, "memory", "--one", str(count)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures.append(json.loads(done.splitlines()[-1]))
        click.echo(json.dumps(figures[-1]), err=True)
    record("memory of indexing", figures)


def _indexed(count: int) -> dict[str, Any]:
    """Index this number of documents; peak memory of the process, without the system's cache."""
    peak = _Peak()
    with tempfile.TemporaryDirectory() as folder:
        with SearchEngine.create(Path(folder) / "c", Words()) as engine:
            before = _own()
            started = time.perf_counter()
            with peak:
                engine.add(documents(count), commit_every=5000)
            stats = engine.stats()
            return {
                "documents": count,
                "seconds": time.perf_counter() - started,
                "segments": stats.segments,
                "bytes on disk": stats.bytes,
                "own memory before, MiB": before / 2**20,
                "own memory at its peak, MiB": peak.most / 2**20,
            }


def _own() -> int:
    """Bytes of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class _Peak:
    """Looks at this process's memory a hundred times a second."""

    def __init__(self) -> None:
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, _own())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@main.command()
@click.option("--count", default=50_000, show_default=True)
def concurrency(count: int) -> None:
    """One question's time, alone and while another thread of the process adds documents."""
    vectors = Words().encode(QUESTIONS)
    with tempfile.TemporaryDirectory() as folder:
        with SearchEngine.create(Path(folder) / "c", Words()) as engine:
            engine.add(documents(count))
            alone = milliseconds(engine, np.tile(vectors, (5, 1)))
            stop = threading.Event()
            writer = threading.Thread(target=_add_on, args=(engine, count, stop))
            writer.start()
            busy = milliseconds(engine, np.tile(vectors, (5, 1)))
            stop.set()
            writer.join()
    figures = {"alone, ms": _tail(alone), "while adding, ms": _tail(busy)}
    click.echo(json.dumps(figures, indent=2))
    record("reading while writing", figures)


def _add_on(engine: SearchEngine, first: int, stop: threading.Event) -> None:
    for i, document in enumerate(documents(1_000_000)):
        if stop.is_set():
            return
        engine.add([{**document, "_id": f"more{first + i}"}])


def _tail(values: Sequence[float]) -> dict[str, float]:
    return {
        name: float(np.percentile(values, share))
        for name, share in (("p50", 50), ("p95", 95), ("p99", 99))
    }


if __name__ == "__main__":
    main()
