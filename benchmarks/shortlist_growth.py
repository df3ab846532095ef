"""How the shortlist that a prefix needs grows with the rows: fitted, then held against 10 million.

    python benchmarks/shortlist_growth.py --vectors vectors.npy       # real rows, the last ones ask
    python benchmarks/shortlist_growth.py --vectors /big/disk/vectors.npy --synthetic

The second takes the rows that ten_million.py wrote, and that generator's questions. A shortlist is
that of an exact ranking by the prefix of rotated rows. log K = a + b log N is fitted to the sizes
up to a million, on questions drawn again a thousand times; the intervals are of these draws.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record
from synthetic import Synthetic

from searchengine.indexer.arrays import Doubles, Floats, RowNumbers, prefix
from searchengine.indexer.storage.rotation import pca

K = 10
BLOCK = 16384
SAMPLE = 100_000
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
FITTED = 1_000_000
PREFIXES = (64, 128, 192)
TARGETS = (0.95, 0.99)
DRAWS = 1000


def blocks(vectors: Any, rows: int) -> Any:
    """(start, float32 rows) of the first rows of a file."""
    for start in range(0, rows, BLOCK):
        yield start, np.asarray(vectors[start : min(start + BLOCK, rows)], np.float32)


def nearest(vectors: Any, queries: Floats, sizes: list[int]) -> dict[int, RowNumbers]:
    """Of each size: (Q, K) the rows nearest to each query among the first ones."""
    best = np.full((len(queries), K), -np.inf, np.float32)
    rows = np.full((len(queries), K), -1, np.int64)
    found = {}
    ends = iter(sizes)
    end = next(ends)
    for start, block in blocks(vectors, sizes[-1]):
        scores = queries @ block.T
        while True:
            within = scores[:, : max(end - start, 0)]
            some = np.argpartition(-within, K - 1)[:, :K] if within.shape[1] > K else None
            at = np.arange(within.shape[1])[None].repeat(len(queries), 0) if some is None else some
            joined = np.hstack([best, np.take_along_axis(within, at, 1)])
            numbers = np.hstack([rows, at + start])
            order = np.argsort(-joined, axis=1, kind="stable")[:, :K]
            now = np.take_along_axis(joined, order, 1), np.take_along_axis(numbers, order, 1)
            if end > start + len(block):
                break
            found[end] = now[1]
            if end == sizes[-1]:
                return found
            end = next(ends)
        best, rows = now
    raise AssertionError("the sizes end within the blocks")


def ranks(
    vectors: Any, turn: Floats, queries: Floats, truth: dict[int, RowNumbers], width: int
) -> dict[int, RowNumbers]:
    """Of each size: (Q, K) how many rows the prefix ranks above each of the nearest."""
    asked = prefix(queries @ turn, width)
    thresholds, above = {}, {}
    for size, rows in truth.items():
        flat, places = np.unique(rows, return_inverse=True)
        nearest = prefix(np.asarray(vectors[flat], np.float32) @ turn, width)
        thresholds[size] = np.einsum("qd,qkd->qk", asked, nearest[places.reshape(rows.shape)])
        above[size] = np.zeros(rows.shape, np.int64)
    for start, block in blocks(vectors, max(truth)):
        scores = asked @ prefix(block @ turn[:, :width], width).T
        for size, bar in thresholds.items():
            within = scores[:, : max(size - start, 0)]
            if within.size:
                # A row's own score, rounded otherwise in another product, does not count.
                higher = [np.count_nonzero(within > each[:, None] + 1e-6, axis=1) for each in bar.T]
                above[size] += np.stack(higher, axis=1)
    return above


def shortlist(above: RowNumbers, target: float) -> int:
    """The shortest shortlist that holds a share of the nearest."""
    return int(np.sort(above, axis=None)[int(np.ceil(target * above.size)) - 1]) + 1


def fit(sizes: list[int], lengths: list[int]) -> Doubles:
    """(slope, intercept) of log K over log N."""
    return np.polyfit(np.log(sizes), np.log(lengths), 1)


def grown(above: dict[int, RowNumbers], target: float) -> dict[str, Any]:
    """Shortlists by size; the fit up to a million rows, and what it predicts for more."""
    fitted = [size for size in above if size <= FITTED]
    more = [size for size in above if size > FITTED]
    further = [*more, 10**8, 10**9]
    rng = np.random.default_rng(0)
    exponents, predictions = [], []
    questions = len(next(iter(above.values())))
    for _ in range(DRAWS):
        draw = rng.integers(0, questions, questions)
        slope, start = fit(fitted, [shortlist(above[size][draw], target) for size in fitted])
        exponents.append(slope)
        predictions.append(np.exp(start + slope * np.log(further)))
    slope, start = fit(fitted, [shortlist(above[size], target) for size in fitted])
    low, high = np.percentile(predictions, (2.5, 97.5), axis=0)
    expected = np.exp(start + slope * np.log(further))
    return {
        "measured": {str(size): shortlist(each, target) for size, each in above.items()},
        "exponent": [float(slope), *np.percentile(exponents, (2.5, 97.5)).tolist()],
        "predicted": {
            str(size): [float(each) for each in three]
            for size, *three in zip(further, expected, low, high, strict=True)
        },
    }


@click.command()
@click.option("--vectors", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--synthetic", is_flag=True, help="The rows are those of synthetic.py.")
@click.option("--questions", default=300, show_default=True)
def main(vectors: Path, synthetic: bool, questions: int) -> None:
    """Rank by each prefix at every size, and fit."""
    stored = np.load(vectors, mmap_mode="r")
    rows = len(stored) if synthetic else len(stored) - questions
    queries = Synthetic().queries(questions) if synthetic else np.asarray(stored[rows:], np.float32)
    sizes = [size for size in SIZES if size < rows]
    sizes += [] if rows >= SIZES[-1] else [rows]
    turn = pca((block for _, block in blocks(stored, min(rows, SAMPLE))), stored.shape[1]).T
    truth = nearest(stored, queries, sizes)
    figures: dict[str, Any] = {}
    for width in PREFIXES:
        above = ranks(stored, turn, queries, truth, width)
        figures[str(width)] = {str(target): grown(above, target) for target in TARGETS}
        click.echo(f"{width}: {figures[str(width)]}", err=True)
    record(f"shortlist growth {'synthetic' if synthetic else 'real'}", figures)


if __name__ == "__main__":
    main()
