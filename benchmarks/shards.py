"""A corpus in 1, 2, 4 and 8 shards, each with a shortlist of its own; and the loss of a copy.

    python benchmarks/shards.py --rows 200000

Rows are spread over the shards at random. A question goes to all of them; each reranks the
shortlist that `shard_shortlist` gives it, and the results are merged by score. Reported are
recall@10 and the share of results equal to those of one shard. Then one of two copies of every
shard is removed, and the answers must stay as they were.
"""

import shutil
import tempfile
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record
from synthetic import Synthetic

from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.points import recall

K = 10
QUERIES = 500
COUNTS = (1, 2, 4, 8)
SHORTLIST, EFFORT = 64, 16


def build(folder: Path, rows: Floats, places: list[RowNumbers]) -> list[Path]:
    """A segment of each shard's rows, twice."""
    config = SegmentConfig.from_dict({"structure": "ivf", "prefix": 192, "code": "int8"})
    paths = []
    for number, place in enumerate(places):
        path = folder / f"{len(places)}-{number}"
        Segment.build(path, rows[place], config).close()
        shutil.copytree(path, path.with_name(f"{path.name}-copy"))
        paths.append(path)
    return paths


def shard_shortlist(shortlist: float, shards: int, k: int) -> int:
    """Candidates of one shard, so that all shards together hold the shortlist of the whole.

    Rows are spread over the shards at random, so the number of candidates in one is binomial: its
    mean and four standard deviations, and at least k.
    """
    mean = shortlist / shards
    return ceil(max(k, mean + 4 * sqrt(mean * (1 - 1 / shards))))


def asked(
    shards: list[Segment], places: list[RowNumbers], queries: Floats
) -> tuple[RowNumbers, int]:
    """The merged rows of every query, and the shortlist of a shard."""
    size = shard_shortlist(SHORTLIST, len(shards), K)
    views = []
    for shard in shards:
        config = shard.config.as_dict() | {"shortlist": size, "effort": EFFORT}
        views.append(shard.over(SegmentConfig.from_dict(config)))
    results = [view.search(queries, K) for view in views]
    rows = np.hstack([place[each.rows] for place, each in zip(places, results, strict=True)])
    scores = np.hstack([each.scores for each in results])
    best = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    return np.take_along_axis(rows, best, 1), size


@click.command()
@click.option("--rows", default=200_000, show_default=True)
def main(rows: int) -> None:
    """Build the shards, ask them, and lose a copy of each."""
    stored = np.concatenate(list(Synthetic().blocks(rows)))
    queries = Synthetic().queries(QUERIES)
    truth = np.argsort(-(queries @ stored.T), axis=1, kind="stable")[:, :K]
    figures: dict[str, Any] = {"rows": rows, "shortlist": SHORTLIST, "nprobe": EFFORT}
    one: RowNumbers | None = None
    with tempfile.TemporaryDirectory() as name:
        for count in COUNTS:
            of = np.random.default_rng(count).integers(0, count, rows)
            places = [np.flatnonzero(of == shard) for shard in range(count)]
            paths = build(Path(name), stored, places)
            shards = [Segment.open(path) for path in paths]
            found, size = asked(shards, places, queries)
            one = found if one is None else one
            figures[str(count)] = {
                "shortlist of a shard": size,
                "recall": recall(found, truth),
                "as one shard": recall(found, one),
            }
            for shard, path in zip(shards, paths, strict=True):
                shard.close()
                shutil.rmtree(path)
            copies = [Segment.open(path.with_name(f"{path.name}-copy")) for path in paths]
            again, _ = asked(copies, places, queries)
            figures[str(count)]["equal after the loss"] = bool(np.array_equal(again, found))
            for copy in copies:
                copy.close()
                shutil.rmtree(copy.path)
            click.echo(f"{count}: {figures[str(count)]}", err=True)
    record("shards", figures)


if __name__ == "__main__":
    main()
