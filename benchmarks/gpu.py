"""Searching on a GPU by faiss: a segment opened there beside the processor, in turns.

    python benchmarks/gpu.py                              # where faiss sees no GPU, it says so
    python benchmarks/gpu.py --rows 20000 --processor     # without a GPU, to try it

Synthetic rows (vectors.py) of 384 dimensions in a flat segment with a rotated prefix of 96: exact
search, and search through a shortlist of 200, for many queries and for one. What several segments
on the GPU reserve of its memory is measured before anything else. How fast a GPU encodes:
`python benchmarks/encoding.py --device cuda`.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from record import record, spread, times
from sides import in_turn
from vectors import ROWS, Synthetic

from searchengine.indexer.segment import Segment, SegmentConfig

DIM, PREFIX, K, SHORTLIST = 384, 96, 10, 200
ALONE = 50  # queries that are searched one by one
SEGMENTS = 8
CONFIG = SegmentConfig(prefix=PREFIX, shortlist=SHORTLIST)


def timed(ways: dict[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, Any]:
    """Queries per second of each device, measured in turns, and the ratio to the processor."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    for turn in range(rounds):
        for name in in_turn([*ways], turn):
            start = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "queries/s": spread([count / each for each in took]),
            "times the processor": times(seconds["cpu"], took),
        }
        for name, took in seconds.items()
    }


def one_by_one(search: Callable[[Any], Any], queries: np.ndarray) -> Callable[[], None]:
    def call() -> None:
        for query in queries[:ALONE]:
            search(query[None])

    return call


def segments(folder: Path, queries: np.ndarray, devices: list[Any], rounds: int) -> Any:
    """A segment on each device: queries per second, and how many rows are those of the first."""
    opened = {device: Segment.open(folder, device=device) for device in devices}
    found: dict[str, Any] = {}
    for name in ("exact", "search"):
        searches = {d: partial(getattr(s, name), k=K) for d, s in opened.items()}
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

    Segment.build(scratch / "small", rows[:1000], CONFIG).close()
    before, opened, taken = free(), [], []
    for _ in range(SEGMENTS):
        opened.append(Segment.open(scratch / "small", device="gpu"))
        opened[-1].exact(rows[:1], 1)
        taken.append(before - free())
    for segment in opened:
        segment.close()
    return {"1": taken[0], f"{SEGMENTS}": taken[-1]}


@click.command()
@ROWS
@click.option("--queries", "count", default=2000, show_default=True, help="In a batch.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--processor", is_flag=True, help="Measure here, without a GPU, to try it.")
def main(rows: int, count: int, rounds: int, processor: bool) -> None:
    """Search in turns on the processor and on the GPU."""
    if not processor and not faiss.get_num_gpus():
        click.echo("faiss sees no GPU here: nothing was measured.")
        return
    source = Synthetic(dim=DIM)
    base, queries = np.concatenate([*source.blocks(rows)]), source.queries(count)
    figures: dict[str, Any] = {"rows": rows, "dim": DIM, "prefix": PREFIX}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if not processor:
            import torch

            figures["device"] = torch.cuda.get_device_name()
            figures["MB of the GPU, by segments"] = shared_memory(scratch, base)
            click.echo(f"memory: {figures['MB of the GPU, by segments']}")
        Segment.build(scratch / "s", base, CONFIG).close()
        devices = ["cpu"] if processor else ["cpu", "gpu"]
        figures["segments"] = segments(scratch / "s", queries, devices, rounds)
    record("gpu", figures)


if __name__ == "__main__":
    main()
