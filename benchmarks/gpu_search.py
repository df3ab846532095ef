"""Searching on a GPU by faiss: segments opened there beside the processor, and IVF.

    python benchmarks/gpu_search.py             # where faiss sees no GPU, it says so
    python benchmarks/gpu_search.py --rows 20000 --processor

Synthetic rows (see synthetic.py) of 384 dimensions. A flat segment with a rotated prefix of 96
dimensions is opened on the processor and on the GPU, which take turns: exact search, and search
through a shortlist of 200, for one query and for many. IVF is that of faiss, over the same prefix
in 8 bits: built and searched on both, by the number of probed lists; recall@10 is of the prefix.
What several segments on the GPU reserve of its memory is measured before anything else.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from record import record, spread
from sides import in_turn
from synthetic import Synthetic

from searchengine.indexer.segment import Segment, SegmentConfig

DIM, PREFIX, K, SHORTLIST = 384, 96, 10, 200
ALONE = 50  # queries that are searched one by one
PROBES = (8, 32, 128)
SEGMENTS = 8
Search = Callable[[Any], Any]


def timed(ways: dict[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, Any]:
    """Queries per second of each way, measured in turns, and the ratio to the first way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    for turn in range(rounds):
        for name in in_turn([*ways], turn):
            start = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - start)
    first = next(iter(seconds.values()))
    return {
        name: {
            "queries/s": spread([count / each for each in took]),
            "times the processor": spread([a / b for a, b in zip(first, took, strict=True)]),
        }
        for name, took in seconds.items()
    }


def one_by_one(search: Search, queries: np.ndarray) -> Callable[[], None]:
    def call() -> None:
        for query in queries[:ALONE]:
            search(query[None])

    return call


def segments(folder: Path, queries: np.ndarray, devices: Sequence[str], rounds: int) -> Any:
    """A segment on each device: queries per second, and how many rows are those of the first."""
    opened = {device: Segment.open(folder, device=device) for device in devices}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    exact: dict[str, Search] = {d: partial(s.exact, k=K) for d, s in opened.items()}
    short: dict[str, Search] = {d: partial(s.search, k=K) for d, s in opened.items()}
    for name, searches in {"exact": exact, f"shortlist {SHORTLIST}": short}.items():
        many = {d: partial(search, queries) for d, search in searches.items()}
        rows = [call().rows for call in many.values()]
        alone = {d: one_by_one(search, queries) for d, search in searches.items()}
        found[name] = {
            "same rows": float((rows[0] == rows[-1]).mean()),
            f"{len(queries)} queries": timed(many, len(queries), rounds),
            "one query": timed(alone, ALONE, rounds),
        }
        click.echo(f"{name}: {found[name]}")
    for segment in opened.values():
        segment.close()
    return found


def shared_memory(scratch: Path, rows: np.ndarray) -> dict[str, float]:
    """MB of the GPU that one open segment takes, and that several do."""
    import torch

    def free() -> float:
        return float(torch.cuda.mem_get_info()[0]) / 2**20

    config = SegmentConfig(prefix=PREFIX, shortlist=SHORTLIST)
    Segment.build(scratch / "small", rows[:1000], config).close()
    before, opened, taken = free(), [], []
    for _ in range(SEGMENTS):
        opened.append(Segment.open(scratch / "small", device="gpu"))
        opened[-1].exact(rows[:1], 1)
        taken.append(before - free())
    for segment in opened:
        segment.close()
    return {"1": taken[0], f"{SEGMENTS}": taken[-1]}


def ivf(rows: np.ndarray, queries: np.ndarray, on_gpu: bool, rounds: int) -> dict[str, Any]:
    """faiss's IVF of 8-bit codes: seconds to build, queries per second by lists probed."""
    truth = faiss.knn(queries, rows, K, metric=faiss.METRIC_INNER_PRODUCT)[1]
    kind = f"IVF{4 * int(len(rows) ** 0.5)},SQ8"
    found: dict[str, Any] = {"structure": kind}
    cpu = faiss.index_factory(rows.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    built = {"cpu": cpu}
    if on_gpu:
        resources = faiss.StandardGpuResources()
        empty = faiss.index_factory(rows.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        built["gpu"] = faiss.index_cpu_to_gpu(resources, 0, empty)
    for name, index in built.items():
        start = time.perf_counter()
        index.train(rows[:: max(1, len(rows) // 200_000)])
        index.add(rows)
        found[f"build on {name}, s"] = time.perf_counter() - start
    if on_gpu:  # the same lists, so that speeds are of the same work
        built["gpu"] = faiss.index_cpu_to_gpu(resources, 0, cpu)
    for probes in PROBES:
        for index in built.values():
            index.nprobe = probes
        many = {d: partial(i.search, queries, K) for d, i in built.items()}
        alone = {d: one_by_one(partial(i.search, k=K), queries) for d, i in built.items()}
        hits = [(call()[1][:, :, None] == truth[:, None]).any(axis=1) for call in many.values()]
        found[f"nprobe {probes}"] = {
            "recall@10": dict(zip(built, [float(hit.mean()) for hit in hits], strict=True)),
            f"{len(queries)} queries": timed(many, len(queries), rounds),
            "one query": timed(alone, ALONE, rounds),
        }
        click.echo(f"{kind} {probes}: {found[f'nprobe {probes}']}")
    return found


@click.command()
@click.option("--rows", "count", default=500_000, show_default=True)
@click.option("--queries", "asked", default=2000, show_default=True, help="In a batch.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--processor", is_flag=True, help="Measure here, without a GPU, to try it.")
def main(count: int, asked: int, rounds: int, processor: bool) -> None:
    """Search in turns on the processor and on the GPU."""
    if not processor and not faiss.get_num_gpus():
        click.echo("faiss sees no GPU here: nothing was measured.")
        return
    source = Synthetic(dim=DIM)
    rows, queries = np.concatenate([*source.blocks(count)]), source.queries(asked)
    figures: dict[str, Any] = {"rows": count, "dim": DIM, "prefix": PREFIX}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if not processor:
            import torch

            figures["device"] = torch.cuda.get_device_name()
            figures["MB of the GPU, by segments"] = shared_memory(scratch, rows)
            click.echo(f"memory: {figures['MB of the GPU, by segments']}")
        config = SegmentConfig(prefix=PREFIX, shortlist=SHORTLIST)
        with Segment.build(scratch / "s", rows, config) as segment:
            rotate = segment.rotate
            prefixes = np.concatenate(
                [rotate(rows[i : i + 10_000])[:, :PREFIX] for i in range(0, count, 10_000)]
            )
            short = rotate(queries)[:, :PREFIX]
        faiss.normalize_L2(prefixes)
        devices = ["cpu"] if processor else ["cpu", "gpu"]
        figures["segments"] = segments(scratch / "s", queries, devices, rounds)
        record("gpu_search", figures)
        figures["ivf"] = ivf(
            np.ascontiguousarray(prefixes), np.ascontiguousarray(short), not processor, rounds
        )
        record("gpu_search", figures)


if __name__ == "__main__":
    main()
