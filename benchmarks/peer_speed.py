"""Our cascade and other search libraries on the same rows, in turns.

    python benchmarks/peer_speed.py vectors.npy --queries queries.npy

Every row is an operating point: those of ours, and those of the peers in benchmarks/peers, each in
a process of its own. In every round each answers the same queries one by one, and the next follows
at once; then each answers them in one call. Recall is the share of the exact k nearest.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
from peer_runner import Peer, PeerFailed, peer_files
from record import REPOSITORY, record, spread

from searchengine.cli.console import show_rows, steps
from searchengine.indexer.arrays import RowNumbers, unit_rows
from searchengine.indexer.config import Code, SegmentConfig, Structure
from searchengine.indexer.tuning.points import OperatingPoint, recalls
from searchengine.measure.bench_data import Dataset, vectors_dataset
from searchengine.measure.operating_points import Grid, Searchers

PEERS = REPOSITORY / "benchmarks" / "peers"
TIMED = 100
Timed = Callable[[int], tuple[RowNumbers, Any]]


@click.command()
@click.argument("vectors", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--queries", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--peers", default=REPOSITORY / "benchmarks" / "peers", type=click.Path(path_type=Path)
)
@click.option("--rounds", default=5, show_default=True)
@click.option("-k", default=10, show_default=True)
def main(vectors: Path, queries: Path | None, peers: Path, rounds: int, k: int) -> None:
    """Build all of them, and measure them in turns."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dataset = stack.enter_context(vectors_dataset(vectors, queries, SegmentConfig(), scratch))
        points = own(dataset, k, scratch)
        for file in peer_files(peers):
            try:
                peer = stack.enter_context(started(file, dataset, k, scratch))
            except PeerFailed as error:
                click.echo(f"left out: {error}", err=True)
                continue
            for number, point in enumerate(peer.points):
                points[f"{peer.name} {dict(point) or ''}".strip()] = (
                    lambda count, peer=peer, number=number: peer.round(number, count),
                    lambda count, peer=peer, number=number: peer.batch(number, count),
                )
        rows = measured(points, min(TIMED, len(dataset.queries)), rounds)
    show_rows([{name: value for name, value in row.items() if name != "rounds"} for row in rows])
    record("peers", rows)


def own(dataset: Dataset, k: int, scratch: Path) -> dict[str, tuple[Timed, Timed]]:
    """Exact search first, then cascades over a graph."""
    grid = Grid.fitting(
        dataset.rows, dataset.segments[0].dim, k,
        structures=[Structure.HNSW], codes=[Code.INT8], baselines=False,
    )  # fmt: skip
    with steps() as report:
        searchers = Searchers(dataset, grid, scratch, report)
        searchers.build()
    return {str(s.fields["name"]): timed(s.point, dataset) for s in searchers.searchers}


def timed(point: OperatingPoint, dataset: Dataset) -> tuple[Timed, Timed]:
    """The first queries searched one by one, and in one call."""
    queries = dataset.queries
    return (
        lambda count: point.one_by_one(queries[:count]),
        lambda count: point.at_once(queries[:count]),
    )


def started(file: Path, dataset: Dataset, k: int, scratch: Path) -> Peer:
    """A peer with the rows of the data set."""
    vectors, queries = scratch / "vectors.npy", scratch / "queries.npy"
    if not queries.exists():
        rows = [block for segment in dataset.segments for block in segment.verified()]
        np.save(vectors, np.concatenate(rows).astype(np.float32))
        np.save(queries, unit_rows(dataset.queries))
    return Peer.start(file, vectors, queries, k=k, folder=scratch / file.stem)


def measured(
    points: dict[str, tuple[Timed, Timed]], count: int, rounds: int
) -> list[dict[str, Any]]:
    """Recall, milliseconds per query and queries per second of every point."""
    seconds: dict[str, list[float]] = {name: [] for name in points}
    rates: dict[str, list[float]] = {name: [] for name in points}
    rows: dict[str, RowNumbers] = {}
    for _ in range(rounds):
        for name, (one_by_one, _) in points.items():
            seconds[name].append(1e3 * float(np.median(one_by_one(count)[1])))
        for name, (_, at_once) in points.items():
            rows[name], total = at_once(count)
            rates[name].append(count / total)
    exact = rows[next(iter(points))]
    return [
        {
            "name": name,
            "recall": float(recalls(rows[name], exact).mean()),
            "p50 ms": float(np.median(seconds[name])),
            "queries/s": float(np.median(rates[name])),
            "rounds": {"p50 ms": spread(seconds[name]), "queries/s": spread(rates[name])},
        }
        for name in points
    ]


if __name__ == "__main__":
    main()
