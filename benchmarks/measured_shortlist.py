"""Does the shortlist that a segment measures for itself hold its recall for other queries?

    python benchmarks/measured_shortlist.py --vectors vectors.npy

Segments of the first rows of real sentence vectors, with the shortlist left open; the last 500 rows
of the file are the queries. Recall@10 against exact search, and the time of one query.
"""

import tempfile
import time
from pathlib import Path

import click
import numpy as np
from real_vectors import VECTORS
from record import record, spread

from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.points import recalls

K, QUERIES, TIMED = 10, 500, 60


@click.command()
@VECTORS
@click.option("--rows", multiple=True, type=int, default=(15_000, 50_000, 110_000))
@click.option("--prefix", "prefixes", multiple=True, type=int, default=(64, 128))
def main(vectors: Path, rows: tuple[int, ...], prefixes: tuple[int, ...]) -> None:
    every = np.load(vectors, mmap_mode="r")
    queries = np.array(every[-QUERIES:])
    figures = []
    for count in rows:
        for prefix in prefixes:
            with tempfile.TemporaryDirectory() as folder:
                config = SegmentConfig(prefix=prefix, shortlist=0)
                segment = Segment.build(Path(folder) / "segment", every[:count], config)
                exact = segment.exact(queries, K).rows
                recall = recalls(segment.search(queries, K).rows, exact)
                seconds = []
                for query in queries[:TIMED]:
                    begin = time.perf_counter()
                    segment.search(query[None], K)
                    seconds.append(1000 * (time.perf_counter() - begin))
                row = {
                    "rows": count,
                    "prefix": prefix,
                    "shortlist": segment.config.shortlist,
                    f"recall@{K}": round(float(np.mean(recall)), 4),
                    "ms": spread(seconds),
                }
                segment.close()
            click.echo(row)
            figures.append(row)
    record("measured_shortlist", figures)


if __name__ == "__main__":
    main()
