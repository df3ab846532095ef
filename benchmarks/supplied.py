"""Milliseconds per row to index vectors that come with the documents, and where they go.

    python benchmarks/supplied.py
    python benchmarks/supplied.py --rows 10000 --repeats 1

A synthetic .npy file, mapped: rows of a random low-rank map with noise. In turn, each in a process
of its own: `Segment.build` alone, which writes the same vectors and index; `add` of the vectors
alone, with row numbers as keys; `add` with a document of some 60 characters each. Profiled once,
the time of `add` is split by the layer that spends it.
"""

import cProfile
import json
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record, spread

from searchengine import SearchEngine
from searchengine.indexer.segment import Segment, SegmentConfig

RANK = 96  # of the map that makes the rows: some directions carry more than others


@click.command()
@click.option("--rows", default=50_000, show_default=True)
@click.option("--dim", default=768, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--side", help="Measure one side once, in this process.")
@click.option("--file", type=click.Path(path_type=Path), help="The .npy file, for --side.")
def main(rows: int, dim: int, repeats: int, side: str | None, file: Path | None) -> None:
    """Measure in turn and report milliseconds per row."""
    if side is not None and file is not None:
        print(json.dumps(once(side, file)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "vectors.npy"
        write(path, rows, dim)
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
        for turn in range(repeats):
            for name in [*SIDES][:: -1 if turn % 2 else 1]:
                command = [sys.executable, __file__, "--side", name, "--file", str(path)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                result = json.loads(done.stdout.splitlines()[-1])
                measured[name].append(result)
                click.echo(f"{name:22} {result}", err=True)
        split = layers(path)
    figures: dict[str, Any] = {
        name: {
            kind: spread([each[kind] for each in runs]) for kind in ("ms per row", "cpu ms per row")
        }
        for name, runs in measured.items()
    }
    conditions = {"rows": rows, "dim": dim}
    record("supplied vectors", {**conditions, **figures, "share of the time of add": split})


def write(path: Path, rows: int, dim: int) -> None:
    """Write float32 rows (n, D) in blocks."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((RANK, dim)) / np.sqrt(np.arange(1, RANK + 1))[:, None]
    file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim))
    for start in range(0, rows, 4096):
        count = len(file[start : start + 4096])
        noise = 0.1 * rng.standard_normal((count, dim))
        file[start : start + count] = rng.standard_normal((count, RANK)) @ directions + noise
    file.flush()


def build(vectors: Any, folder: Path) -> None:
    """Write and index the vectors, without documents."""
    Segment.build(folder / "segment", vectors, SegmentConfig(prefix=64)).close()


def add_vectors(vectors: Any, folder: Path) -> None:
    """`searchengine index vectors.npy`."""
    with SearchEngine.create(folder / "c", encoder=None, dim=vectors.shape[1]) as engine:
        engine.add(vectors=vectors)


def add_documents(vectors: Any, folder: Path) -> None:
    """`searchengine index documents.jsonl --vectors vectors.npy`, without reading the JSON."""
    text = "A whale rests one half of its brain at a time, number"
    documents = ({"_id": f"k{i}", "text": f"{text} {i}", "n": i} for i in range(len(vectors)))
    with SearchEngine.create(folder / "c", encoder=None, dim=vectors.shape[1]) as engine:
        engine.add(documents, vectors)


SIDES: dict[str, Callable[[Any, Path], None]] = {
    "Segment.build": build,
    "add vectors": add_vectors,
    "add documents": add_documents,
}


def once(side: str, path: Path) -> dict[str, float]:
    """Wall and processor milliseconds per row of one side."""
    vectors = np.load(path, mmap_mode="r")
    vectors.max()  # in the system's cache, whoever comes first
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        begin, cpu = time.perf_counter(), time.process_time()
        SIDES[side](vectors, Path(folder))
        wall, used = time.perf_counter() - begin, time.process_time() - cpu
    return {"ms per row": 1e3 * wall / len(vectors), "cpu ms per row": 1e3 * used / len(vectors)}


LAYERS = {
    "segment": "indexer/",
    "documents.db": "searchengine/backends/folder/",
    "documents read and checked": "searchengine/corpus/",
    "spool and comparison": "searchengine/ingest/",
}


def layers(path: Path) -> dict[str, float]:
    """Share of the time of `add documents` in each layer; built-ins count for who calls them."""
    profile = cProfile.Profile()
    vectors = np.load(path, mmap_mode="r")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        profile.runcall(add_documents, vectors, Path(folder))
    stats: Any = pstats.Stats(profile)
    seconds = dict.fromkeys([*LAYERS, "other"], 0.0)
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():
        if layer(file) != "other" or not callers:
            seconds[layer(file)] += own
            continue
        for (caller, _, _), (_, _, part, _) in callers.items():
            seconds[layer(caller)] += part
    total = sum(seconds.values())
    return {name: round(value / total, 3) for name, value in seconds.items()}


def layer(file: str) -> str:
    """The layer of a source file."""
    return next((name for name, part in LAYERS.items() if part in file), "other")


if __name__ == "__main__":
    main()
