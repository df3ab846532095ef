"""Queries a second at equal recall: the tuned cascade beside full-width graphs.

    python benchmarks/real_vectors.py vectors.npy
    python benchmarks/search_speed.py --vectors vectors.npy

Every system answers the same 10,000 queries in one batch, and some of them one by one, at rising
efforts; rounds alternate between the systems. Speed at recall@10 = 0.95 and 0.98 is read off
between the two nearest efforts (logarithm of the time against recall). The cascade's recipe is
tuned on other queries. --peer adds a file of benchmarks/peers, in a process of its own.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import faiss
import hnswlib
import numpy as np
import usearch.index
from peer_runner import Peer
from real_vectors import VECTORS, split
from record import REPOSITORY, record, spread

from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.threads import threads
from searchengine.indexer.tuning.points import recall
from searchengine.indexer.tuning.tune import Goal, tune

K = 10
TARGETS = (0.95, 0.98)
EFFORTS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
GRAPHS = [
    SegmentConfig.from_dict(
        {"prefix": width, "structure": "hnsw", "code": "int8", "ef_construction": 64}
    )
    for width in (96, 128, 192, 256)
]
Search = Callable[[Any], Any]


@dataclass
class System:
    """Something that searches: `at(effort, alone)` gives a function of queries to row numbers."""

    name: str
    build_seconds: float
    at: Callable[[int, bool], Search]
    efforts: tuple[int, ...] = EFFORTS
    points: list[list[tuple[float, float, float]]] = field(default_factory=list)

    def timed(self, effort: int, queries: Any, alone: int) -> tuple[Any, float, float]:
        """Row numbers of all queries, seconds for them in a batch, and the median of one alone."""
        batch = self.at(effort, False)
        batch(queries[:64])
        begin = time.perf_counter()
        found = batch(queries)
        seconds = time.perf_counter() - begin
        one, times = self.at(effort, True), []
        for query in queries[: alone + 20]:
            begin = time.perf_counter()
            one(query[None])
            times.append(time.perf_counter() - begin)
        return found, seconds, float(np.median(times[20:]))


class PeerSystem(System):
    """A file of benchmarks/peers; an effort is the number of one of its points."""

    def __init__(self, name: str, folder: Path, rows: Any, queries: Any) -> None:
        """Start its process, which builds its index."""
        files = [folder / f"{part}.npy" for part in ("rows", "queries")]
        for file, part in zip(files, (rows, queries), strict=True):
            if not file.exists():
                np.save(file, part)
        peers = REPOSITORY / "benchmarks" / "peers"
        self.peer = Peer.start(peers / f"{name}.py", *files, K, folder / name)
        efforts = tuple(range(len(self.peer.points)))
        super().__init__(name, self.peer.build_s, lambda *_: None, efforts)

    def timed(self, effort: int, queries: Any, alone: int) -> tuple[Any, float, float]:
        found, seconds = self.peer.batch(effort, len(queries))
        return found, seconds, float(np.median(self.peer.round(effort, alone)[1]))


def cascade(folder: Path, rows: Any, questions: Any) -> System:
    """This project's segment; its index config is tuned on other questions, then built again."""
    with Segment.build(folder / "plain", rows, SegmentConfig()) as plain:
        begin = time.perf_counter()
        tuned = tune([plain], questions, Goal(0.95), configs=GRAPHS)
        click.echo(f"tuned in {time.perf_counter() - begin:.0f} s, not counted as building")
    recipe = replace(tuned.config, shortlist=100, effort=0)
    click.echo(f"tuned: {tuned}")
    begin = time.perf_counter()
    segment = Segment.build(folder / "tuned", rows, recipe)
    seconds = time.perf_counter() - begin

    def at(effort: int, alone: bool) -> Search:
        # A shortlist beyond 48 of these prefixes bought nothing that a wider walk did not.
        shortlist = max(tuned.config.shortlist, min(48, effort // 2))
        view = segment.over(replace(recipe, shortlist=shortlist, effort=effort))
        return lambda queries: view.search(queries, K).rows

    return System("cascade", seconds, at)


def faiss_graph(kind: str, rows: Any) -> System:
    """faiss HNSW, M = 32, efConstruction = 100, full width."""
    index = faiss.index_factory(rows.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 100
    begin = time.perf_counter()
    index.train(rows[:50_000])
    index.add(rows)
    seconds = time.perf_counter() - begin

    def at(effort: int, alone: bool) -> Search:
        parameters = faiss.SearchParametersHNSW(efSearch=effort)

        def search(queries: Any) -> Any:
            faiss.omp_set_num_threads(1 if alone else threads.limit)
            return index.search(queries, K, params=parameters)[1]

        return search

    return System(f"faiss {kind}", seconds, at)


def hnswlib_graph(rows: Any, m: int, construction: int) -> System:
    """hnswlib, full width, float32."""
    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(len(rows), ef_construction=construction, M=m)
    begin = time.perf_counter()
    index.add_items(rows, num_threads=threads.limit)
    seconds = time.perf_counter() - begin

    def at(effort: int, alone: bool) -> Search:
        def search(queries: Any) -> Any:
            index.set_ef(max(effort, K))
            return index.knn_query(queries, K, num_threads=1 if alone else threads.limit)[0]

        return search

    return System(f"hnswlib M={m} ef={construction}", seconds, at)


def usearch_graph(rows: Any, dtype: str) -> System:
    """usearch, full width, connectivity 32."""
    index = usearch.index.Index(
        ndim=rows.shape[1], metric="ip", dtype=dtype, connectivity=32, expansion_add=100
    )
    begin = time.perf_counter()
    index.add(np.arange(len(rows)), rows, threads=threads.limit)
    seconds = time.perf_counter() - begin

    def at(effort: int, alone: bool) -> Search:
        def search(queries: Any) -> Any:
            index.expansion_search = effort
            found = index.search(queries, K, threads=1 if alone else threads.limit)
            return np.atleast_2d(found.keys.astype(np.int64))

        return search

    return System(f"usearch {dtype}", seconds, at)


def measure(system: System, queries: Any, truth: Any, alone: int) -> None:
    """One round: (recall, queries a second in a batch, median milliseconds alone) an effort."""
    points = []
    for effort in system.efforts:
        found, seconds, one = system.timed(effort, queries, alone)
        rate = len(queries) / seconds
        points.append((recall(np.asarray(found, np.int64), truth), rate, one * 1e3))
        if points[-1][0] > 0.99:
            break
    system.points.append(points)


def read_off(points: list[tuple[float, float, float]], target: float, column: int) -> float:
    """The figure at a recall, between the nearest measured points; NaN if it was not reached."""
    recalls = [point[0] for point in points]
    if not min(recalls) <= target <= max(recalls):
        return float("nan")
    return float(np.exp(np.interp(target, recalls, [np.log(point[column]) for point in points])))


@click.command()
@VECTORS
@click.option("--rows", default=200_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--alone", default=300, show_default=True, help="Queries timed one by one.")
@click.option("--peer", "peers", multiple=True, help="A file of benchmarks/peers, without .py.")
def main(vectors: Path, rows: int, rounds: int, alone: int, peers: tuple[str, ...]) -> None:
    """Build all, then measure in turn."""
    base, spare = split(vectors, rows)
    queries, questions = spare[:10_000], spare[10_000:]
    flat = faiss.IndexFlatIP(base.shape[1])
    flat.add(base)
    truth = flat.search(queries, K)[1]
    del flat
    with tempfile.TemporaryDirectory() as scratch:
        systems = []
        for make in (
            lambda: cascade(Path(scratch), base, questions),
            lambda: faiss_graph("HNSW32", base),
            lambda: faiss_graph("HNSW32,SQ8", base),
            lambda: hnswlib_graph(base, 16, 200),
            lambda: usearch_graph(base, "bf16"),
            lambda: usearch_graph(base, "i8"),
            *(partial(PeerSystem, name, Path(scratch), base, queries) for name in peers),
        ):
            systems.append(make())
            click.echo(f"{systems[-1].name}: built in {systems[-1].build_seconds:.1f} s")
        for _ in range(rounds):
            for system in systems:
                measure(system, queries, truth, alone)
    record("search_speed", figures(systems, rows))


def figures(systems: list[System], rows: int) -> dict[str, Any]:
    """Every system's curve, its speed at the targets, and how many times faster the cascade is."""
    ours = systems[0]
    shown: dict[str, Any] = {"rows": rows}
    for system in systems:
        entry: dict[str, Any] = {"build_s": system.build_seconds, "curve": system.points[-1]}
        entry["build_ratio"] = ours.build_seconds / system.build_seconds
        for target in TARGETS:
            for column, name in ((1, "qps"), (2, "p50_ms")):
                mine = [read_off(points, target, column) for points in ours.points]
                theirs = [read_off(points, target, column) for points in system.points]
                ratios = [
                    (a / b if column == 1 else b / a) for a, b in zip(mine, theirs, strict=True)
                ]
                entry[f"{name}@{target}"] = spread(theirs)
                entry[f"times {name}@{target}"] = spread(ratios)
        shown[system.name] = entry
        line = {key: value for key, value in entry.items() if key != "curve"}
        click.echo(f"{system.name}: {line}")
    return shown


if __name__ == "__main__":
    main()
