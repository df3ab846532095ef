"""Vectors without end whose prefixes behave as a real encoder's do, and the proof beside real ones.

    python benchmarks/synthetic.py --vectors sentences.npy --rows 50000

For measuring at millions of rows without storing or encoding them. A row is the sum of a common
direction, one vector of each cluster it lies in, on a tree of clusters within clusters, and its own
part. Together they have the spectrum of a real encoder's vectors: a power law with a knee. Coarse
clusters have more of the leading components and fine ones of the rest, as in real vectors, where
what near neighbours do not share lies mostly behind the prefix.

The defaults were fitted by hand to 10,000 vectors, 768 wide, of mixed sentences. What is compared:
the energy that the leading components keep, the share of the true top 10 in a shortlist from a
rotated prefix, the cosines to neighbours and to rows at random, and the recall of a graph.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from record import record

from searchengine.indexer.arrays import Floats, prefix
from searchengine.indexer.storage.rotation import pca

BLOCK_ROWS = 16384
QUERIES = 500
GRAPH_ROWS = 50_000
PREFIXES = (32, 64, 128, 192, 256, 384)
SHORTLISTS = (20, 100, 500)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A source of float32 unit rows: equal settings give equal rows, on one machine.

    Row i depends neither on how many rows are asked for nor on the queries: the first 100,000 of a
    million are the 100,000. Queries come from the same process and are no rows.

    Attributes:
        dim: the width D of a row.
        seed: of everything drawn.
        common: the energy of the direction that all rows share.
        exponent, knee, fall: component j = 1, 2, … of the rest has the energy
            j^-exponent / (1 + (j / knee)^fall), scaled to a sum of 1 - common.
        fanout: the clusters that a cluster is divided into.
        zipf: of these, the k-th is drawn in proportion to k^-zipf.
        levels: (weight, tilt) of each level of clusters, from coarse to fine. A component's energy
            is divided among the levels and the row's own part as weight · j^-tilt is to 1.
    """

    dim: int = 768
    seed: int = 0
    common: float = 0.14
    exponent: float = 0.54
    knee: float = 240.0
    fall: float = 5.0
    fanout: int = 16
    zipf: float = 1.2
    levels: tuple[tuple[float, float], ...] = (
        (6.0, 1.0),
        (3.5, 0.6),
        (1.6, 0.35),
        (0.6, 0.2),
        (0.2, 0.1),
    )
    spread: tuple[float, float] = (0.3, 0.12)

    def blocks(self, rows: int) -> Iterator[Floats]:
        """The first `rows` rows: (n, D) float32 unit rows, n = 16384 but for the last block."""
        parts = _Parts(self)
        for number, start in enumerate(range(0, rows, BLOCK_ROWS)):
            yield parts.draw(np.random.default_rng((self.seed, 0, number)))[: rows - start]

    def queries(self, count: int) -> Floats:
        """(count, D) float32 unit rows; fewer queries are the first of more."""
        parts = _Parts(self)
        numbers = range(-(-count // BLOCK_ROWS))
        samples = [parts.draw(np.random.default_rng((self.seed, 1, number))) for number in numbers]
        return np.concatenate(samples)[:count]


class _Parts:
    """What is drawn once: the vectors of the clusters and the turn that hides the components."""

    TABLE_BITS = 12
    """A level has 4096 vectors; the number of its cluster, hashed, says which is a cluster's."""

    def __init__(self, of: Synthetic) -> None:
        rng = np.random.default_rng((of.seed, 2))
        j = np.maximum(np.arange(of.dim), 1.0)
        energy = j**-of.exponent / (1 + (j / of.knee) ** of.fall)
        energy[0] = 0.0  # the common direction lies here
        energy *= (1 - of.common) / energy.sum()
        shares = np.stack([weight * j**-tilt for weight, tilt in (*of.levels, (1.0, 0.0))])
        scales = np.sqrt(shares / shares.sum(axis=0) * energy).astype(np.float32)
        clusters, self._spread = of.spread
        count = 1 << self.TABLE_BITS
        self._tables = [normal(rng, count, scale, clusters) for scale in scales[:-1]]
        self._own = scales[-1]
        self._common = np.float32(of.common**0.5)
        chances = np.arange(1.0, of.fanout + 1) ** -of.zipf
        self._rising = np.cumsum(chances / chances.sum())[:-1]
        self._turn = np.linalg.qr(rng.standard_normal((of.dim, of.dim)))[0].astype(np.float32)

    def draw(self, rng: np.random.Generator) -> Floats:
        """(BLOCK_ROWS, D) unit rows. A whole block always: its draws are not in row order."""
        rows = normal(rng, BLOCK_ROWS, self._own, self._spread)
        cluster = np.zeros(BLOCK_ROWS, np.uint64)
        for table in self._tables:
            child = self._rising.searchsorted(rng.random(BLOCK_ROWS), side="right")
            cluster = cluster * np.uint64(self._rising.size + 1) + child.astype(np.uint64)
            # Knuth's multiplicative hash; + 1, for 0 would be its own hash at every level
            hashed = (cluster + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            rows += table[hashed >> np.uint64(64 - self.TABLE_BITS)]
        rows[:, 0] += self._common
        rows /= np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
        turned: Floats = rows @ self._turn
        return turned


def normal(rng: np.random.Generator, count: int, scale: Floats, spread: float) -> Floats:
    """(count, D) normal numbers, component j of deviation scale[j]; lengths spread log-normally."""
    vectors = rng.standard_normal((count, scale.size), np.float32)
    vectors *= scale
    lengths = np.float32(spread) * rng.standard_normal((count, 1), np.float32)
    vectors *= np.exp(lengths - np.float32(spread**2))  # the mean energy stays
    return vectors


def measure(rows: Floats, queries: Floats) -> dict[str, Any]:
    """How (n, D) unit rows behave: energies, shares of the true top 10, cosines, graph recall."""
    blocks = (rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS))
    turn = pca(blocks, rows.shape[1]).T
    rows, queries = rows @ turn, queries @ turn
    kept = np.cumsum(np.einsum("nd,nd->d", rows, rows) / len(rows))
    scores, truth = search_flat(rows, queries, 100)
    figures: dict[str, Any] = {
        f"energy kept by {p}": float(kept[p - 1]) for p in PREFIXES if p < rows.shape[1]
    }
    for p in (64, 128, 192):
        _, found = search_flat(prefix(rows, p), prefix(queries, p), max(SHORTLISTS))
        for size in SHORTLISTS:
            share = recall(found[:, :size], truth[:, :10])
            figures[f"top 10 in a shortlist of {size} from {p}"] = share
    for rank in (1, 10, 100):
        figures[f"cosine to neighbour {rank}"] = quartiles(scores[:, rank - 1])
    figures["cosine to a row at random"] = quartiles(queries @ rows[: len(queries)].T)
    figures[f"HNSW recall@10, first {GRAPH_ROWS}"] = graph_recall(rows[:GRAPH_ROWS], queries)
    return figures


def graph_recall(rows: Floats, queries: Floats) -> float:
    """recall@10 of HNSW, M = 32, efConstruction 40, efSearch 64, at full width."""
    _, truth = search_flat(rows, queries, 10)
    graph = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    graph.add(rows)
    graph.hnsw.efSearch = 64
    return recall(graph.search(queries, 10)[1], truth)


def search_flat(rows: Floats, queries: Floats, k: int) -> tuple[Floats, Any]:
    """Scores (q, k) and row numbers (q, k) of exact search by inner product."""
    flat = faiss.IndexFlatIP(rows.shape[1])
    flat.add(rows)
    scores, found = flat.search(queries, k)
    return scores, found


def recall(found: Any, truth: Any) -> float:
    """The share of `truth` (q, k) that is in the same row of `found` (q, any)."""
    return float((truth[:, :, None] == found[:, None, :]).any(axis=2).mean())


def quartiles(values: Floats) -> list[float]:
    """First quartile, median, third quartile."""
    return [float(value) for value in np.percentile(values, (25, 50, 75))]


def read(vectors: Path, rows: int) -> tuple[Floats, Floats]:
    """The first rows of a .npy file, and the 500 after them as queries."""
    stored = np.load(vectors, mmap_mode="r")
    if len(stored) < rows + QUERIES:
        raise click.UsageError(
            f"{vectors} has {len(stored)} rows, {rows + QUERIES} are needed; lower --rows"
        )
    both = np.asarray(stored[: rows + QUERIES], dtype=np.float32)
    return both[:rows], both[rows:]


@click.command()
@click.option(
    "--vectors",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Real unit rows in random order: (n, D) float32 in a .npy file.",
)
@click.option("--rows", default=50_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(vectors: Path, rows: int, seed: int) -> None:
    """Measure real and synthetic vectors in the same way, side by side."""
    real = measure(*read(vectors, rows))
    source = Synthetic(seed=seed)
    out = np.empty((rows, source.dim), np.float32)
    start = time.perf_counter()
    for first, block in zip(range(0, rows, BLOCK_ROWS), source.blocks(rows), strict=True):
        out[first : first + len(block)] = block
    rate = rows / (time.perf_counter() - start)
    synthetic = measure(out, source.queries(QUERIES))
    for name in real:
        cells = chain(np.atleast_1d(real[name]), [None], np.atleast_1d(synthetic[name]))
        line = "  ".join("|" if cell is None else f"{cell:.3f}" for cell in cells)
        click.echo(f"{name:40} {line}")
    click.echo(f"{rate:.0f} rows/s")
    figures = {"rows": rows, "real": real, "synthetic": synthetic, "synthetic rows/s": rate}
    record("synthetic", figures)


if __name__ == "__main__":
    main()
