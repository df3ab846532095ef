"""Building, memory, speed-up and growth: one recipe at 10k, 100k and a million rows.

    python benchmarks/scale.py --rows 10000,100000,1000000             # synthetic, see synthetic.py
    python benchmarks/scale.py --structure ivf
    python benchmarks/scale.py --rows 10000,50000,200000 --vectors vectors.npy

Each size is built in a process of its own (peak memory is its own) and searched in another (what
is resident after searching is its own too).
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record, spread
from synthetic import Synthetic

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.points import hot_row, recall

K = 10
QUERIES = 1000
TARGETS = (0.95, 0.98, 0.99)
PREFIXES = (64, 128, 192)
RECIPES: dict[str, dict[str, Any]] = {
    "hnsw": {"code": "int8", "ef_construction": 64},
    "ivf": {"code": "int8"},
}
EFFORTS = {"hnsw": (32, 48, 64, 96, 128, 192, 256, 384, 512), "ivf": (1, 2, 4, 8, 16, 32, 64)}


def recipe(structure: str, **point: int) -> SegmentConfig:
    """192 numbers in 8 bits."""
    values = {"prefix": 192, "structure": structure} | RECIPES[structure] | point
    return SegmentConfig.from_dict(values)


def source(rows: int, vectors: str) -> tuple[Iterator[Any], Any]:
    """Blocks of rows, and queries that are none of them."""
    if not vectors:
        synthetic = Synthetic()
        return synthetic.blocks(rows), synthetic.queries(QUERIES)
    stored = np.load(vectors, mmap_mode="r")
    blocks = (np.array(stored[i : min(i + 16384, rows)]) for i in range(0, rows, 16384))
    return blocks, np.array(stored[-QUERIES:])


def built(folder: str, rows: int, vectors: str, structure: str) -> dict[str, Any]:
    """Build a segment from a stream; seconds without making the vectors, and peak memory."""
    blocks = source(rows, vectors)[0]
    making = 0.0

    def timed() -> Iterator[Any]:
        nonlocal making
        while True:
            begin = time.perf_counter()
            block = next(blocks, None)
            making += time.perf_counter() - begin
            if block is None:
                return
            yield block

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    Segment.build(folder, timed(), recipe(structure)).close()
    seconds = time.perf_counter() - begin - making
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    anonymous = resident()["anonymous"]
    return {"build_s": seconds, "peak_mib": peak / 1024, "before_mib": before / 1024} | {
        "anonymous_after_mib": anonymous
    }


def resident() -> dict[str, float]:
    """MiB resident now: anonymous, of coarse.faiss and of vectors.faiss."""
    sums = {"anonymous": 0, "coarse.faiss": 0, "vectors.faiss": 0}
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            name = head[-1].rsplit("/", 1)[-1]
        elif head[0] == "Anonymous:":
            sums["anonymous"] += int(head[1])
        elif head[0] == "Rss:" and name in sums:
            sums[name] += int(head[1])
    return {key: value / 1024 for key, value in sums.items()}


def alone(search: Any, queries: Any) -> dict[str, float]:
    """Milliseconds of queries one by one."""
    times = []
    for query in queries:
        begin = time.perf_counter()
        search(query[None])
        times.append((time.perf_counter() - begin) * 1e3)
    return spread(times[len(times) // 10 :])


def searched(folder: str, rows: int, vectors: str, structure: str) -> dict[str, Any]:
    """Recall and latency by effort, memory after searching, exact search beside it."""
    queries = source(rows, vectors)[1]
    segment = Segment.open(folder)
    first = segment.over(recipe(structure, shortlist=48, effort=EFFORTS[structure][-3]))
    for query in queries:
        first.search(query[None], K)
    figures: dict[str, Any] = {"resident_mib": resident()}
    truth = segment.exact(queries[:QUERIES], K).rows
    curve = []
    for effort in EFFORTS[structure]:
        view = segment.over(recipe(structure, shortlist=32, effort=effort))
        found = view.search(queries, K).rows
        times = alone(lambda query, view=view: view.search(query, K), queries[:300])
        curve.append({"effort": effort, "recall": recall(found, truth)} | times)
        if curve[-1]["recall"] > 0.995:
            break
    figures["curve"] = curve
    figures["at"] = {str(target): read_off(curve, target) for target in TARGETS}
    figures["shortlist"] = {str(p): shortlists(segment, queries[:200], truth, p) for p in PREFIXES}
    figures |= exact(segment, queries[:20], rows, vectors)
    return figures


def read_off(curve: list[dict[str, Any]], target: float) -> float | None:
    """Median milliseconds at a recall, between the nearest efforts."""
    recalls = [point["recall"] for point in curve]
    if not recalls[0] <= target <= recalls[-1]:
        return None
    return float(np.exp(np.interp(target, recalls, [np.log(point["median"]) for point in curve])))


def shortlists(segment: Segment, queries: Any, truth: Any, width: int) -> dict[str, int | None]:
    """The shortlist of an exact prefix ranking that holds each recall."""
    flat = SegmentConfig(prefix=width, structure="flat", code="fp16")  # type: ignore[arg-type]
    view = segment.over(flat)
    size = min(segment.rows, 4000)
    found = view.shortlist(unit_rows(queries), size)
    hits = (found[:, :, None] == truth[: len(queries), None, :]).any(axis=2).cumsum(axis=1) / K
    means = hits.mean(axis=0)
    return {str(t): int(np.argmax(means >= t)) + 1 if (means >= t).any() else None for t in TARGETS}


def exact(segment: Segment, queries: Any, rows: int, vectors: str) -> dict[str, Any]:
    """Single-shot exact search: a float32 scan in memory, and the mapped file."""
    import faiss

    blocks = source(rows, vectors)[0]
    flat = faiss.IndexFlatIP(segment.dim)
    for block in blocks:
        flat.add(block)
    faiss.omp_set_num_threads(1)
    single = alone(lambda query: flat.search(query, K), queries)
    return {
        "flat fp32 ms": single,
        "exact ms": alone(lambda query: segment.exact(query, K), queries),
    }


def child(step: str, folder: Path, rows: int, vectors: Path | None, structure: str) -> Any:
    """One step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    command += [
        "--structure",
        structure,
        "--rows",
        str(rows),
        *(["--vectors", str(vectors)] if vectors else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def slope(sizes: list[int], values: list[float | None]) -> float | None:
    """The exponent a of values ~ sizes^a, by least squares of the logarithms."""
    points = [(n, v) for n, v in zip(sizes, values, strict=True) if v]
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points, float)).T
    return float(np.polyfit(x, y, 1)[0])


@click.command()
@click.option("--rows", default="10000,100000,1000000", show_default=True)
@click.option("--vectors", type=click.Path(exists=True, path_type=Path))
@click.option("--structure", default="hnsw", type=click.Choice(list(RECIPES)), show_default=True)
@click.option("--step", hidden=True)
@click.option("--folder", hidden=True)
@click.option("--scratch", type=click.Path(exists=True, path_type=Path), help="Where to build.")
def main(
    rows: str,
    vectors: Path | None,
    structure: str,
    step: str | None,
    folder: str | None,
    scratch: Path | None,
) -> None:
    """Build and search every size."""
    sizes = [int(part) for part in rows.split(",")]
    if step and folder:
        run = {"build": built, "search": searched}[step]
        click.echo(json.dumps(run(folder, sizes[0], str(vectors or ""), structure)))
        return
    figures: dict[str, Any] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            path = Path(place) / "segment"
            entry = child("build", path, size, vectors, structure)
            entry |= child("search", path, size, vectors, structure)
            entry["hot bytes a row, foreseen"] = hot_row(recipe(structure), size, 768)
            figures[str(size)] = entry
            click.echo(f"{size}: {entry}")
    growth = {t: slope(sizes, [figures[str(n)]["at"][t] for n in sizes]) for t in map(str, TARGETS)}
    figures["latency ~ rows^a"] = growth
    figures["shortlist ~ rows^a"] = {
        str(p): slope(sizes, [figures[str(n)]["shortlist"][str(p)]["0.95"] for n in sizes])
        for p in PREFIXES
    }
    click.echo(f"latency ~ rows^a: {growth}")
    record(f"scale {structure} {'real' if vectors else 'synthetic'}", figures)


if __name__ == "__main__":
    main()
