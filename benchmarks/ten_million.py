"""Ten million vectors on one machine: build, open, search, add 100,000, memory.

    python benchmarks/ten_million.py --scratch /big/disk               # 36 GB of room
    python benchmarks/ten_million.py --scratch . --rows 200000 --added 5000

Synthetic rows (synthetic.py), 768 wide, in a float16 .npy file. They are added to a collection
without an encoder, as `searchengine index vectors.npy` does. Every step runs in a process of its
own, so that its peak memory is its own. While the last step adds rows, one process asks and another
adds single rows: what is reported is the longest that either waited.
"""

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record, spread
from scale import read_off, resident
from synthetic import Synthetic

from searchengine import SearchEngine
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.tuning.points import recall

DIM = 768
K = 10
QUERIES = 300
TARGETS = (0.95, 0.99)
CONFIGS: dict[str, dict[str, Any]] = {
    "ivf": {"structure": "ivf", "prefix": 192, "code": "int8", "shortlist": 48, "effort": 8},
    "hnsw": {
        "structure": "hnsw",
        "prefix": 192,
        "code": "int8",
        "shortlist": 32,
        "effort": 128,
        "ef_construction": 64,
    },
}
SHORTLISTS = (32, 64, 128)
EFFORTS = {"ivf": (2, 4, 8, 16, 32, 64, 128), "hnsw": (64, 128, 256, 512, 1024)}


def peak() -> dict[str, float]:
    """Most resident memory so far and anonymous memory now, MiB."""
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return {
        "peak resident, MiB": int(lines["VmHWM"].split()[0]) / 1024,
        "anonymous now, MiB": int(lines["RssAnon"].split()[0]) / 1024,
    }


def write(path: Path, rows: int) -> dict[str, float]:
    """The rows as float16, in blocks."""
    begin = time.perf_counter()
    file = np.lib.format.open_memmap(path / "vectors.npy", "w+", np.float16, (rows, DIM))
    start = 0
    for block in Synthetic().blocks(rows):
        file[start : start + len(block)] = block
        start += len(block)
        file.flush()
    return {"seconds": time.perf_counter() - begin}


def build(path: Path, rows: int, structure: str) -> dict[str, Any]:
    """Add the first rows to a new collection; seconds by step."""
    vectors = np.load(path / "vectors.npy", mmap_mode="r")
    steps: dict[str, float] = {}
    begin = time.perf_counter()
    last, step = begin, "documents"

    def progress(name: str, _done: int, _total: int) -> None:
        nonlocal last, step
        now = time.perf_counter()
        steps[step] = steps.get(step, 0.0) + now - last
        last, step = now, name

    config = CONFIGS[structure]
    with SearchEngine.create(path / "c", encoder=None, dim=DIM, config=config) as engine:
        engine.add(vectors=vectors[:rows], building=progress)
        seconds = time.perf_counter() - begin
        steps[step] = steps.get(step, 0.0) + time.perf_counter() - last
        figures = {"seconds": seconds, "processor, s": time.process_time(), "steps": steps}
        return figures | {"bytes": engine.stats().bytes, **peak()}


def opened(path: Path) -> dict[str, Any]:
    """Seconds to open, and of the first question."""
    query = Synthetic().queries(1)[0]
    begin = time.perf_counter()
    with SearchEngine.open(path / "c") as engine:
        between = time.perf_counter()
        engine.search(query, K)
        return {"open, s": between - begin, "first question, s": time.perf_counter() - between}


def searched(path: Path, structure: str) -> dict[str, Any]:
    """Recall, single and batch, by shortlist and effort; then one question with its documents."""
    queries = Synthetic().queries(QUERIES)
    with SearchEngine.open(path / "c") as engine:
        (segment,) = engine.collection.segments.values()
        begin = time.perf_counter()
        truth = segment.exact(queries, K).rows
        exact = time.perf_counter() - begin
        curve: list[dict[str, Any]] = []
        stored = segment.config.as_dict()
        for shortlist, effort in product(SHORTLISTS, EFFORTS[structure]):
            point = {"shortlist": shortlist, "effort": effort}
            view = segment.over(SegmentConfig.from_dict(stored | point))
            view.search(queries, K)
            begin = time.perf_counter()
            found = view.search(queries, K).rows
            batch = QUERIES / (time.perf_counter() - begin)
            alone = one_by_one(lambda query, view=view: view.search(query[None], K), queries)
            point |= {"recall": recall(found, truth), "batch queries/s": batch}
            curve.append(point | alone)
            click.echo(f"{curve[-1]}", err=True)
        whole = one_by_one(lambda query: engine.search(query, K), queries)
        return {
            "curve": curve,
            "ms alone at": {str(target): alone_at(curve, target) for target in TARGETS},
            f"exact, {QUERIES} questions, s": exact,
            "with documents, ms": whole,
            "resident, MiB": resident(),
            **peak(),
        }


def alone_at(curve: list[dict[str, Any]], target: float) -> dict[int, float | None]:
    """Median milliseconds of one question at a recall, by shortlist."""
    by_shortlist = {size: [p for p in curve if p["shortlist"] == size] for size in SHORTLISTS}
    return {size: read_off(points, target) for size, points in by_shortlist.items()}


def one_by_one(search: Callable[[Any], object], queries: Any) -> dict[str, float]:
    """Milliseconds of questions one by one, in the second pass over them."""
    for query in queries:
        search(query)
    times = []
    for query in queries:
        begin = time.perf_counter()
        search(query)
        times.append(1e3 * (time.perf_counter() - begin))
    return spread(times)


def asking(path: Path, stop: Any, answer: Any) -> None:
    """Ask until stopped; the longest question and refresh, ms."""
    queries = Synthetic().queries(QUERIES)
    longest, count = 0.0, 0
    with SearchEngine.open(path / "c") as engine:
        for query in queries:
            engine.search(query, K)
        while not stop.is_set():
            begin = time.perf_counter()
            engine.refresh()
            engine.search(queries[count % QUERIES], K)
            longest = max(longest, time.perf_counter() - begin)
            count += 1
    answer.put(("reader", {"longest wait, ms": 1e3 * longest, "questions": count}))


def adding_one(path: Path, stop: Any, answer: Any) -> None:
    """Add single rows every tenth of a second until stopped; the longest, ms."""
    vectors = Synthetic().queries(10_000)
    waits: list[float] = []
    run = time.time_ns()
    with SearchEngine.open(path / "c", wait=600) as engine:
        while not stop.is_set():
            number = len(waits)
            begin = time.perf_counter()
            document = {"_id": f"one-{run}-{number}", "text": f"single row {number}"}
            engine.add([document], vectors[number : number + 1])
            waits.append(1e3 * (time.perf_counter() - begin))
            time.sleep(0.1)
    answer.put(("second writer", {"longest wait, ms": max(waits), **spread(waits)}))


def grown(path: Path, rows: int, added: int) -> dict[str, Any]:
    """Add rows while others ask and add."""
    vectors = np.load(path / "vectors.npy", mmap_mode="r")
    context = multiprocessing.get_context("spawn")
    stop, answer = context.Event(), context.Queue()
    others = [
        context.Process(target=each, args=(path, stop, answer)) for each in (asking, adding_one)
    ]
    for process in others:
        process.start()
    time.sleep(10)
    run = time.time_ns()  # other keys in every run, so that nothing is known already
    documents = ({"_id": f"{run}-{i}", "text": f"added row {i}"} for i in range(added))
    with SearchEngine.open(path / "c", wait=600) as engine:
        begin = time.perf_counter()
        engine.add(documents, vectors[rows : rows + added], commit_every=5000)
        seconds = time.perf_counter() - begin
    time.sleep(10)
    stop.set()
    waits = dict(answer.get(timeout=600) for _ in others)
    for process in others:
        process.join()
    return {"seconds": seconds, **waits, **peak()}


@click.command()
@click.option("--rows", default=10_000_000, show_default=True)
@click.option("--added", default=100_000, show_default=True)
@click.option("--structure", default="ivf", type=click.Choice(list(CONFIGS)), show_default=True)
@click.option("--scratch", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--step", type=click.Choice(["write", "build", "open", "search", "grow"]))
def main(rows: int, added: int, structure: str, scratch: Path, step: str | None) -> None:
    """Run every step, each in a process of its own, or one here."""
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "write": lambda: write(scratch, rows + added),
        "build": lambda: build(scratch, rows, structure),
        "open": lambda: opened(scratch),
        "search": lambda: searched(scratch, structure),
        "grow": lambda: grown(scratch, rows, added),
    }
    if step:
        click.echo(json.dumps(steps[step]()))
        return
    figures: dict[str, Any] = {"rows": rows, "added": added, "structure": structure}
    for name, again in (("write", 1), ("build", 1), ("open", 2), ("search", 1), ("grow", 1)):
        if name == "write" and (scratch / "vectors.npy").exists():
            continue
        for turn in range(again):
            command = [sys.executable, __file__, "--scratch", str(scratch), "--step", name]
            command += ["--rows", str(rows), "--added", str(added), "--structure", structure]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            key = f"{name} again" if turn else name
            figures[key] = json.loads(done.stdout.splitlines()[-1])
            click.echo(f"{key}: {figures[key]}", err=True)
    record(f"ten million {structure}", figures)


if __name__ == "__main__":
    main()
