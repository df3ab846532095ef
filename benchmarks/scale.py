"""Building, memory, speed-up and growth: one config at 10,000, 100,000 and a million rows.

    python benchmarks/scale.py --rows 10000,100000,1000000             # synthetic, see vectors.py
    python benchmarks/scale.py --structure ivf
    python benchmarks/scale.py --rows 10000,50000,200000 --vectors vectors.npy

Each size is built in a process of its own (its peak memory is its own) and searched in another
(what is resident after searching is its own too). `shortlist` is that of an exact ranking by the
prefix of rotated rows, which holds a share of the true ten nearest.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from record import record, spread
from sides import memory_mb, once, run
from vectors import VECTORS, blocks_of, queries_of

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.tune import shares

K = 10
QUERIES, TIMED, SCANNED = 1000, 300, 20
TARGETS = (0.95, 0.98, 0.99)
PREFIXES = (64, 128, 192)
STRUCTURES = ("hnsw", "ivf")
EFFORTS = {"hnsw": (32, 48, 64, 96, 128, 192, 256, 384, 512), "ivf": (1, 2, 4, 8, 16, 32, 64)}


def config(structure: str, **point: int) -> SegmentConfig:
    """192 dimensions in 8 bits."""
    values = {"prefix": 192, "code": "int8", "structure": structure}
    return SegmentConfig.from_dict(values | point)


def build(folder: str, rows: int, vectors: Path | None, structure: str) -> dict[str, Any]:
    """Build a segment from a stream; seconds without making the vectors, and peak memory."""
    blocks, making = blocks_of(vectors, rows), 0.0

    def timed() -> Iterator[Any]:
        nonlocal making
        while True:
            begin = time.perf_counter()
            block = next(blocks, None)
            making += time.perf_counter() - begin
            if block is None:
                return
            yield block

    begin = time.perf_counter()
    Segment.build(folder, timed(), config(structure)).close()
    seconds = time.perf_counter() - begin - making
    return {"build_s": seconds, "peak_mb": memory_mb()["peak"]}


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


def alone(search: Callable[[Any], Any], queries: Any) -> dict[str, float]:
    """Milliseconds of queries one by one."""
    times = []
    for query in queries:
        begin = time.perf_counter()
        search(query[None])
        times.append((time.perf_counter() - begin) * 1e3)
    return spread(times[len(times) // 10 :])


def search(folder: str, rows: int, vectors: Path | None, structure: str) -> dict[str, Any]:
    """Recall and latency by effort, memory after searching, exact search beside it."""
    queries = queries_of(vectors, rows, QUERIES)
    segment = Segment.open(folder)
    first = segment.over(config(structure, shortlist=48, effort=EFFORTS[structure][-3]))
    for query in queries:
        first.search(query[None], K)
    figures: dict[str, Any] = {"resident_mib": resident()}
    truth = segment.exact(queries, K)
    curve = []
    for effort in EFFORTS[structure]:
        view = segment.over(config(structure, shortlist=32, effort=effort))
        share = float(shares(view.search(queries, K), truth, view.dim).mean())
        times = alone(lambda query, view=view: view.search(query, K), queries[:TIMED])
        curve.append({"effort": effort, "recall": share} | times)
        if share > 0.995:
            break
    figures["curve"] = curve
    figures["at"] = {str(target): read_off(curve, target) for target in TARGETS}
    figures["shortlist"] = {str(p): shortlists(segment, queries[:200], truth, p) for p in PREFIXES}
    figures["exact ms"] = alone(lambda query: segment.exact(query, K), queries[:SCANNED])
    flat = faiss.IndexFlatIP(segment.dim)
    for block in blocks_of(vectors, rows):
        flat.add(block)
    faiss.omp_set_num_threads(1)
    figures["flat fp32 ms"] = alone(lambda query: flat.search(query, K), queries[:SCANNED])
    return figures


def read_off(curve: list[dict[str, Any]], target: float) -> float | None:
    """Median milliseconds at a recall, between the nearest efforts."""
    recalls = [point["recall"] for point in curve]
    if not recalls[0] <= target <= recalls[-1]:
        return None
    return float(np.exp(np.interp(target, recalls, [np.log(point["median"]) for point in curve])))


def shortlists(segment: Segment, queries: Any, truth: Any, width: int) -> dict[str, int | None]:
    """The shortlist of an exact prefix ranking that holds each recall."""
    flat = SegmentConfig.from_dict({"prefix": width, "structure": "flat", "code": "fp16"})
    found = segment.over(flat).shortlist(unit_rows(queries), min(segment.rows, 4000))
    hits = (found[:, :, None] == truth.rows[: len(queries), None, :]).any(axis=2).cumsum(axis=1) / K
    means = hits.mean(axis=0)
    return {str(t): int(np.argmax(means >= t)) + 1 if (means >= t).any() else None for t in TARGETS}


def slope(sizes: list[int], values: list[float | None]) -> float | None:
    """The exponent a of values ~ sizes^a, by least squares of the logarithms."""
    points = [(n, v) for n, v in zip(sizes, values, strict=True) if v]
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points, float)).T
    return float(np.polyfit(x, y, 1)[0])


@click.command()
@click.option("--rows", default="10000,100000,1000000", show_default=True)
@VECTORS
@click.option("--structure", default="hnsw", type=click.Choice(STRUCTURES), show_default=True)
@click.option("--scratch", type=click.Path(exists=True, path_type=Path), help="Where to build.")
def main(rows: str, vectors: Path | None, structure: str, scratch: Path | None) -> None:
    """Build and search every size."""
    sizes = [int(part) for part in rows.split(",")]
    figures: dict[str, Any] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            what = {"rows": size, "vectors": str(vectors or ""), "structure": structure}
            what["folder"] = f"{place}/segment"
            entry = once(__file__, step="build", **what) | once(__file__, step="search", **what)
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


def be(step: str, vectors: str, **what: Any) -> tuple[Callable[[], Any], Any]:
    """A side that takes one step."""
    steps = {"build": build, "search": search}
    return lambda: steps[step](vectors=Path(vectors) if vectors else None, **what), {}


if __name__ == "__main__":
    run(main, be)
