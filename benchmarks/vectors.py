"""Vectors for the benchmarks of the index: real sentences, encoded once and kept, or synthetic.

    python benchmarks/vectors.py vectors.npy          # 316k sentences, 12 minutes on two cores

Real ones are the distinct sentences of text/sentences_mixed, in random order, by the starter at 768
dimensions. Synthetic ones are for millions of rows that nobody stores or encodes. A row is the sum
of a common direction, one vector of each cluster it lies in, on a tree of clusters within clusters,
and its own part. Together they have the spectrum of a real encoder's vectors: a power law with a
knee. Coarse clusters have more of the leading components and fine ones of the rest, as in real
vectors, where what near neighbours do not share lies mostly behind the prefix.

The defaults were fitted by hand to 10,000 vectors, 768 wide, of mixed sentences: to the energy that
the leading components keep, the share of the true top 10 in a shortlist from a rotated prefix, the
cosines to neighbours and to rows at random, and the recall of a graph.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from record import DATA
from texts import sentences

from searchengine.cli.console import progress
from searchengine.indexer.arrays import Floats, RowNumbers

BLOCK_ROWS = 16384
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
VECTORS = click.option(
    "--vectors", type=FILE, help="Rows: a .npy file (n, D); queries are its last [synthetic rows]."
)
ROWS = click.option("--rows", default=200_000, show_default=True, help="Rows to index.")


def blocks_of(vectors: Path | None, rows: int, dim: int = 768) -> Iterator[Floats]:
    """The first rows of a file, or of the synthetic ones, as blocks of float32 (n, D)."""
    if vectors is None:
        return Synthetic(dim).blocks(rows)
    stored = np.load(vectors, mmap_mode="r")
    starts = range(0, rows, BLOCK_ROWS)
    return (np.array(stored[i : min(i + BLOCK_ROWS, rows)], np.float32) for i in starts)


def queries_of(vectors: Path | None, rows: int, count: int, dim: int = 768) -> Floats:
    """float32 (count, D) that are none of the first rows: the last of a file, or synthetic."""
    if vectors is None:
        return Synthetic(dim).queries(count)
    stored = np.load(vectors, mmap_mode="r")
    if len(stored) < rows + count:
        raise click.UsageError(
            f"{vectors} has {len(stored)} rows, {rows + count} are needed; lower --rows"
        )
    return np.array(stored[-count:], np.float32)


def nearest(rows: Floats, queries: Floats, k: int) -> RowNumbers:
    """(q, k) the rows of the highest inner products, ties by number."""
    found = []
    for start in range(0, len(queries), 100):
        scores = queries[start : start + 100] @ rows.T
        best = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
        found.append(np.take_along_axis(best, order, 1))
    return np.concatenate(found)


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


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--rows", default=0, help="Number of sentences; 0 for all.")
@DATA
def main(path: Path, rows: int, data: Path) -> None:
    """Encode sentences and write a float32 array (n, 768)."""
    from searchengine.trainer.encoder import Encoder

    texts, encoder = sentences(data, rows or None), Encoder.load("starter-768")
    shape = (len(texts), encoder.dim)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    with progress("Encoding", len(texts)) as advance:
        for start in range(0, len(texts), BLOCK_ROWS):
            part = texts[start : start + BLOCK_ROWS]
            out[start : start + len(part)] = encoder.encode(part)
            advance(len(part))
    out.flush()


if __name__ == "__main__":
    main()
