"""Recall and time under filters of 50, 10, 1 and 0.1 %, in every structure, beside no filter.

    python benchmarks/filters.py --vectors vectors.npy
    python benchmarks/filters.py --rows 600000 --structures hnsw    # synthetic rows

A filter is random, or lets the rows through that are most similar to one of the queries. The
queries are then those most similar to it ("near"), or of the half least similar ("far"): what a far
query looks for is mostly filtered out. recall@10 is against exact search of the allowed rows. Times
are of queries one by one, in turns with the same queries without a filter, and by a filter that is
used again; `new_ms` has the time to take in a new one.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record, spread
from vectors import ROWS, VECTORS, blocks_of, queries_of

from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.native.library import description
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.tune import shares
from searchengine.measure.bench import processor_name

K = 10
SHARES = (0.5, 0.1, 0.01, 0.001)
QUERIES, TIMED, ROUNDS = 300, 60, 7
POINTS = {
    "flat": {"code": "fp16", "shortlist": 64},
    "hnsw": {"code": "int8", "shortlist": 64, "effort": 128},
    "ivf": {"code": "int8", "shortlist": 128, "effort": 128},
}
Filter = tuple[str, RowNumbers, Floats]  # name, allowed rows, queries


def filters(base: Floats, queries: Floats) -> Iterator[Filter]:
    """Random ones, then those by the similarity to the last query."""
    rng = np.random.default_rng(0)
    for share in SHARES:
        yield (
            f"random {share:.1%}",
            np.flatnonzero(rng.random(len(base)) < share),
            queries[:QUERIES],
        )
    similar, order = base @ queries[-1], np.argsort(-(queries @ queries[-1]))
    near, far = queries[order[:QUERIES]], queries[order[len(order) // 2 :]]
    for share in SHARES[:-1]:
        rows = np.flatnonzero(similar >= np.quantile(similar, 1 - share))
        yield f"near {share:.1%}", rows, near
        yield f"far {share:.1%}", rows, far[:: len(far) // QUERIES][:QUERIES]


def p50(view: Segment, queries: Floats, allowed: Any) -> float:
    """Median milliseconds of one query."""
    times = []
    for query in queries[:TIMED]:
        begin = time.perf_counter()
        view.search(query[None], K, allowed=allowed)
        times.append((time.perf_counter() - begin) * 1e3)
    return float(np.median(times))


def measure(view: Segment, rows: RowNumbers, queries: Floats, truth: Any) -> dict[str, Any]:
    """Recall, time, and time relative to no filter, of one filter."""
    allowed = Allowed.from_rows(rows, view.rows)
    found = view.search(queries, K, allowed=allowed)
    pairs = [(p50(view, queries, None), p50(view, queries, allowed)) for _ in range(ROUNDS)]
    return {
        "recall": float(shares(found, truth, view.dim).mean()),
        "ms": spread([ms for _, ms in pairs]),
        "times_unfiltered": spread([ms / without for without, ms in pairs]),
        "new_ms": p50(view, queries, rows),
    }


@click.command()
@VECTORS
@ROWS
@click.option("--structures", default="flat,hnsw,ivf", show_default=True)
def main(vectors: Path | None, rows: int, structures: str) -> None:
    """Build one segment, search it by every structure and filter."""
    base = np.concatenate([*blocks_of(vectors, rows)])
    queries = queries_of(vectors, rows, 2000)
    cases = list(filters(base, queries))
    figures: dict[str, Any] = {"processor": processor_name(), "kernel": description(), "rows": rows}
    with tempfile.TemporaryDirectory() as scratch:
        plain = Segment.build(Path(scratch) / "s", base, SegmentConfig(prefix=192))
        del base
        truth = {name: plain.exact(some, K, allowed) for name, allowed, some in cases}
        all_rows = plain.exact(queries[:QUERIES], K)
        for structure in structures.split(","):
            settings: Any = {"structure": structure} | POINTS[structure]
            view = plain.over(replace(plain.config, **settings))
            found = view.search(queries[:QUERIES], K)
            unfiltered = float(shares(found, all_rows, view.dim).mean())
            figures[f"{structure} no filter"] = {
                "recall": unfiltered,
                "ms": spread([p50(view, queries, None) for _ in range(ROUNDS)]),
            }
            click.echo(f"{structure} no filter: {figures[f'{structure} no filter']}")
            for name, allowed, some in cases:
                row = measure(view, allowed, some, truth[name])
                figures[f"{structure} {name}"] = row
                ratio = row["times_unfiltered"]
                click.echo(
                    f"{structure:5} {name:13} recall {row['recall']:.4f}, "
                    f"{row['ms']['median']:.3f} ms, {ratio['median']:.2f} "
                    f"({ratio['q1']:.2f}–{ratio['q3']:.2f}) times no filter, "
                    f"new {row['new_ms']:.2f} ms"
                )
    record("filters" if vectors else "filters_synthetic", figures)


if __name__ == "__main__":
    main()
