"""Does a shortlist chosen per query beat the best fixed one at equal cost?

    python benchmarks/adaptive_shortlist.py --vectors rows.npy

The first --rows rows are indexed, the next 3000 are queries: 1000 calibrate a rule, 2000 judge it.
First in rows re-scored, behind a coarse stage that ranks every row. Then in time, over a graph,
whose walk costs most: all queries with a low efSearch and the hard ones again with a high one,
against one efSearch for all. Early termination that is learned: Li et al. 2020.
"""

import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from record import record, spread

from searchengine.indexer.arrays import BLOCK_ROWS, Floats, RowNumbers, prefix
from searchengine.indexer.faiss_calls import faiss
from searchengine.indexer.search.cascade import Cascade, CoarseIndex, SearchResult
from searchengine.indexer.storage.basis import pca

Array = npt.NDArray[Any]
Rule = Callable[[float], Array]  # 0..1, rising -> rows to re-score per query
Walks = dict[str, list[tuple[int, Any]]]  # efSearch and the queries it is spent on, in turn

K, DEPTH, SCORED = 10, 3072, 48
ALL, CALIBRATION, JUDGED = slice(3000), slice(1000), slice(1000, 3000)
TARGETS = (0.95, 0.98, 0.99)
EFFORTS = (32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)


@click.command()
@click.option("--vectors", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--rows", default=200_000, show_default=True, help="How many to index.")
@click.option("--repeats", default=7, show_default=True)
def main(vectors: Path, rows: int, repeats: int) -> None:
    """Print and record what each rule saves."""
    source = np.load(vectors, mmap_mode="r")
    turn = pca(source[i : min(i + BLOCK_ROWS, rows)] for i in range(0, rows, BLOCK_ROWS))
    stored, queries = source[:rows] @ turn, source[rows : rows + ALL.stop] @ turn
    best = ranking(queries, stored, K)[0]
    lines = [line for p in (64, 128, 192) for line in rows_saved(p, queries, stored, best)]
    record("adaptive_shortlist", lines + time_saved(192, queries, stored, best, repeats))


def ranking(queries: Floats, stored: Floats, depth: int) -> tuple[Array, Array]:
    """The first `depth` rows by exact scan, and their scores: (q, depth)."""
    parts = []
    for start in range(0, len(queries), 100):
        scores = queries[start : start + 100, : stored.shape[1]] @ stored.T
        rows = np.argpartition(scores, -depth, axis=1)[:, -depth:]
        order = np.argsort(-np.take_along_axis(scores, rows, 1), axis=1, kind="stable")
        rows = np.take_along_axis(rows, order, 1)
        parts.append((rows, np.take_along_axis(scores, rows, 1)))
    found_rows, their_scores = zip(*parts, strict=True)
    return np.concatenate(found_rows), np.concatenate(their_scores)


def found(rows: RowNumbers, best: RowNumbers) -> Array:
    """Which rows are among the true best K of their query."""
    return np.array([np.isin(some, true) for some, true in zip(rows, best, strict=True)])


def rows_saved(p: int, queries: Floats, stored: Floats, best: RowNumbers) -> list[dict[str, Any]]:
    """Each rule against the fixed shortlist of equal cost, in rows re-scored."""
    rows, coarse = ranking(queries, prefix(stored, p), DEPTH)
    hits = found(rows, best)
    recalls = np.hstack([np.zeros((len(hits), 1)), hits.cumsum(1) / K])  # after 0, 1, 2, … rows
    least = coarse[:, K - 1 : K]
    rules: dict[str, Rule] = {
        "at most a margin below the 10th": lambda x: np.maximum((coarse > least - x).sum(1), K),
        "regression on coarse scores": regression(coarse, hits),
        "oracle": oracle(hits),
    }
    lines = []
    for name, rule in rules.items():
        for target in TARGETS:
            cost = calibrated(rule, recalls, target)
            gains = compared(taken(recalls, cost)[JUDGED], cost[JUDGED], recalls[JUDGED])
            lines.append({"prefix": p, "rule": name, "target": target, **gains})
            click.echo(lines[-1])
    return lines


def calibrated(rule: Rule, recalls: Array, target: float) -> Array:
    """The rule at its lowest setting that reaches the target on the calibration queries."""

    def reached(millionths: int) -> float:
        return float(taken(recalls, rule(millionths / 1e6))[CALIBRATION].mean())

    return rule(bisect_left(range(10**6), target, key=reached) / 1e6)


def taken(recalls: Array, cost: Array) -> Array:
    """Each query's entry at its own cost: (q, n), (q,) -> (q,)."""
    chosen: Array = np.take_along_axis(recalls, cost[:, None], 1)[:, 0]
    return chosen


def regression(coarse: Floats, hits: Array) -> Rule:
    """In proportion to the root of the rows needed, by a fit of their logarithm.

    The root did better than the fit itself, which trusts its own noise.
    """
    last = np.where(hits.sum(1) < K, 2 * DEPTH, DEPTH - hits[:, ::-1].argmax(1))
    inputs = np.insert(coarse[:, [0, 4, 9, 14, 19, 29, 49, 99, 199]], 0, 1, axis=1)
    weights = np.linalg.lstsq(inputs[CALIBRATION], np.log(last[CALIBRATION]), rcond=None)[0]
    root = np.exp(inputs @ weights / 2)
    return lambda x: np.clip(x * DEPTH * root / root.min(), K, DEPTH).astype(np.int64)


def oracle(hits: Array) -> Rule:
    """Knows where the true best are, and stops where one more costs too much; no rule can win."""
    ranks = np.sort(np.where(hits, np.arange(1, DEPTH + 1), DEPTH), axis=1)[:, :K]
    ranks = np.maximum(np.insert(ranks, 0, K, axis=1), K)
    gain = np.arange(K + 1) / K
    return lambda x: taken(ranks, (gain - 10 ** (-1 - 5 * x) * ranks).argmax(1))


def compared(recall: Array, cost: Array, recalls: Array) -> dict[str, Any]:
    """A rule's recall and cost (q,) against the recall of 0, 1, 2, … rows for all (q, n).

    The gain's 95 % interval is bootstrapped over queries; a query that costs more than the mean
    is charged what the fixed shortlist would have gained by it.
    """
    mean = cost.mean()
    below = int(mean)
    slope = recalls[:, below + 1] - recalls[:, below]
    gains = recall - recalls[:, below] - slope * (mean - below) - slope.mean() * (cost - mean)
    draws = np.random.default_rng(0).integers(0, len(gains), (1000, len(gains)))
    interval = np.quantile(gains[draws].mean(1), (0.025, 0.975))
    equal = np.interp(recall.mean(), recalls.mean(0), np.arange(recalls.shape[1]))
    return {
        "recall": float(recall.mean()),
        "rows": float(mean),
        "fixed, rows at equal recall": float(equal),
        "recall gained at equal rows": [float(gains.mean()), *interval.tolist()],
    }


def walked(p: int, stored: Floats) -> tuple[Any, Cascade]:
    """A graph over 8-bit prefixes, and the cascade of it and the full-width rows."""
    prefixes = prefix(stored, p)
    graph = faiss.index_factory(p, "HNSW32,SQ8", faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = 100
    graph.train(prefixes[::4])
    graph.add(prefixes)
    full = faiss.index_factory(stored.shape[1], "SQfp16", faiss.METRIC_INNER_PRODUCT)
    full.add(stored)
    return graph, Cascade(CoarseIndex(graph), CoarseIndex(full))


def time_saved(
    p: int, queries: Floats, stored: Floats, best: RowNumbers, repeats: int
) -> list[dict[str, Any]]:
    """Two walks against one, timed alternately; hard queries are known at no cost."""
    graph, cascade = walked(p, stored)
    heads = np.ascontiguousarray(queries[:, :p])

    def search(effort: int, part: Any = ALL) -> SearchResult:
        return cascade.search(queries[part], K, min(effort, SCORED), effort)

    def recall(effort: int) -> Array:
        share: Array = found(search(effort).rows, best).mean(1)
        return share

    def judged(effort: int) -> float:
        return float(recall(effort)[JUDGED].mean())

    def signs(effort: int) -> Array:  # the K-th and the last coarse and the K-th exact score
        parameters = faiss.SearchParametersHNSW(efSearch=effort)
        coarse = graph.search(heads, min(effort, SCORED), params=parameters)[0][:, [K - 1, -1]]
        return np.insert(coarse, 0, search(effort).scores[:, -1], axis=1)

    rounds = [[timed(search, effort, CALIBRATION) for effort in EFFORTS] for _ in range(4)]
    costs = np.polyval(np.polyfit(EFFORTS, np.min(rounds, axis=0), 1), EFFORTS)
    recalls = [recall(effort) for effort in EFFORTS]
    signals = [signs(effort) for effort in EFFORTS]
    lines = []
    for target in TARGETS:
        low, high, hard = two_walks(recalls, costs, signals, target)
        reached = np.where(hard, recalls[high], recalls[low])[JUDGED].mean()
        again = JUDGED.start + np.flatnonzero(hard[JUDGED])
        twice = [(EFFORTS[low], JUDGED), (EFFORTS[high], again)]
        walks: Walks = {
            "two walks": twice if again.size else twice[:1],
            "one walk": [(bisect_left(range(2048), reached, lo=24, key=judged), JUDGED)],
        }
        for name, times in alternately(walks, search, repeats).items():
            efforts = [effort for effort, _ in walks[name]]
            line = {"target": target, "way": name, "efSearch": efforts, "recall": float(reached)}
            lines.append({**line, "walked twice": len(again) / 2000, **times})
            click.echo(lines[-1])
    return lines


def two_walks(
    recalls: list[Array], costs: Array, signals: list[Array], target: float
) -> tuple[int, int, Array]:
    """The cheapest pair of efforts, as places in EFFORTS, and which queries are walked twice."""
    ways = []
    for low, high in combinations(range(len(EFFORTS)), 2):
        gains = (recalls[high] - recalls[low])[CALIBRATION]
        inputs = np.insert(signals[low], 0, 1, axis=1)
        hardness = inputs @ np.linalg.lstsq(inputs[CALIBRATION], gains, rcond=None)[0]
        order = np.argsort(-hardness[CALIBRATION], kind="stable")
        reached = recalls[low][CALIBRATION].mean() + gains[order].cumsum() / len(gains)
        if reached[-1] >= target:
            count = int((reached >= target).argmax())
            cost = costs[low] + (count + 1) / len(gains) * costs[high]
            ways.append((cost, low, high, hardness >= hardness[order[count]]))
    return min(ways, key=itemgetter(0))[1:]


def alternately(
    walks: Walks, search: Callable[..., Any], repeats: int
) -> dict[str, dict[str, Any]]:
    """Queries per second of a batch, and mean microseconds of a query that comes alone."""
    times: dict[str, dict[str, Any]] = {way: {"queries/s": [], "us alone": []} for way in walks}
    for _ in range(repeats):
        for way, parts in walks.items():
            batch = alone = 0.0
            for effort, part in parts:
                batch += timed(search, effort, part)
                for i in np.arange(ALL.stop)[part][::4]:
                    alone += timed(search, effort, slice(i, i + 1))
            times[way]["queries/s"].append(2000 / batch)
            times[way]["us alone"].append(alone / 500 * 1e6)
    return {
        way: {unit: spread(values) for unit, values in each.items()} for way, each in times.items()
    }


def timed(work: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that the work took."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
