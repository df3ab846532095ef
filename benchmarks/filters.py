"""Recall under filters of 50, 10, 1 and 0.1 %, in every structure, beside the unfiltered one.

    python benchmarks/filters.py --vectors vectors.npy

A filter lets a random share of the rows through; recall@10 is against exact search of those.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from real_vectors import VECTORS, split
from record import record

from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.points import recall

K = 10
SHARES = (1.0, 0.5, 0.1, 0.01, 0.001)
POINTS = {
    "flat": {"code": "fp16", "shortlist": 64},
    "hnsw": {"code": "int8", "shortlist": 64, "effort": 128},
    "ivf": {"code": "fastscan", "shortlist": 128, "effort": 128},
}


@click.command()
@VECTORS
@click.option("--rows", default=200_000, show_default=True)
@click.option("--structures", default="flat,hnsw,ivf", show_default=True)
def main(vectors: Path, rows: int, structures: str) -> None:
    """Build one segment, search it by every structure and filter."""
    base, spare = split(vectors, rows)
    queries = spare[:500]
    rng = np.random.default_rng(0)
    filters = {s: np.flatnonzero(rng.random(rows) < s) if s < 1 else None for s in SHARES}
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        plain = Segment.build(Path(scratch) / "s", base, SegmentConfig(prefix=192))
        truth = {share: plain.exact(queries, K, rows).rows for share, rows in filters.items()}
        for name in structures.split(","):
            settings: Any = {"structure": name, "ef_construction": 64} | POINTS[name]
            view = plain.over(replace(plain.config, **settings))
            for share, allowed in filters.items():
                found = view.search(queries, K, allowed=allowed).rows
                times = []
                for query in queries[:100]:
                    begin = time.perf_counter()
                    view.search(query[None], K, allowed=allowed)
                    times.append((time.perf_counter() - begin) * 1e3)
                row = {"recall": recall(found, truth[share]), "p50_ms": float(np.median(times))}
                figures[f"{name} {share}"] = row
                click.echo(f"{name:5} {share:6.1%} {row}")
    record("filters", figures)


if __name__ == "__main__":
    main()
