"""The tuner: what it finds holds, on queries it never saw."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clustered import clustered
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.config import Code, SegmentConfig, Storage, Structure
from searchengine.indexer.errors import TuneError
from searchengine.indexer.search.scoring import Allowed, SearchResult
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.goal import holds
from searchengine.indexer.tuning.tune import Goal, Point, choose, cold_row, hot_row, shares, tune

DIM = 32


ROWS, QUERIES, FRESH = (
    unit_rows(clustered(count, seed, DIM, noise=0.7))
    for count, seed in ((3000, 1), (600, 2), (1500, 3))
)
RECIPES = [
    SegmentConfig(prefix=width, **kind)  # type: ignore[arg-type]
    for width in (8, 16)
    for kind in ({"structure": "flat"}, {"structure": "hnsw", "code": "int8"})
]


pytestmark = pytest.mark.usefixtures("few_timings")  # no test needs accurate times


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Segment]]:
    folder = tmp_path_factory.mktemp("tune")
    parts = [ROWS[:1800], ROWS[1800:]]
    result = [
        Segment.build(folder / str(i), part, SegmentConfig(prefix=4, storage=Storage.FLOAT32))
        for i, part in enumerate(parts)
    ]
    yield result
    for segment in result:
        segment.close()


def merged(segments: list[Segment], queries: np.ndarray, config: SegmentConfig) -> np.ndarray:
    found = [segment.over(config).search(queries, 10) for segment in segments]
    rows = np.concatenate([f.rows + base for f, base in zip(found, (0, 1800), strict=True)], axis=1)
    scores = np.concatenate([f.scores for f in found], axis=1)
    return np.take_along_axis(rows, np.argsort(-scores, axis=1)[:, :10], axis=1)


def recalls(rows: np.ndarray, exact: np.ndarray) -> np.ndarray:
    return (rows[:, :, None] == exact[:, None]).any(axis=1).mean(axis=1)


@pytest.mark.parametrize("source", ["given", "documents"])
def test_the_recall_that_was_tuned_for_is_reached_on_fresh_queries(
    segments: list[Segment], source: str
) -> None:
    """The promise holds for queries that no graph has as nodes; documents are left out of it."""
    messages: list[str] = []
    goal, queries, others = Goal(0.9), QUERIES, None
    if source == "documents":
        own = np.random.default_rng(4).permutation(3000)[:600]
        queries, others = ROWS[own], without(own, [range(1800), range(1800, 3000)])
    tuned = tune(segments, queries, goal, searched=others, configs=RECIPES, on_step=messages.append)
    assert (tuned.held_out, tuned.rows, tuned.source) == (300, 3000, source)
    assert len(tuned.curve) > 3 and messages
    truth = np.argsort(-(FRESH @ ROWS.T), axis=1)[:, :10]
    reached = recalls(merged(segments, FRESH, tuned.config), truth).mean()
    assert reached > 0.9
    assert abs(reached - tuned.recall) < 0.03  # the held-out mean is no fiction
    # What is chosen is not careful beyond need: some point of the curve was dearer.
    assert tuned.ms < max(point.ms for point in tuned.curve)


def without(rows: np.ndarray, segments: list[range]) -> list[Allowed]:
    """The other rows of each segment."""
    return [
        Allowed.from_rows(np.setdiff1d(numbers, rows) - numbers.start, len(numbers))
        for numbers in segments
    ]


@pytest.mark.parametrize("structure", ["flat", "hnsw", "ivf"])
def test_a_trial_finds_its_own_rows_alone(segments: list[Segment], structure: str) -> None:
    """With a shortlist of all of them, and under a filter."""
    segment, even = segments[0], np.arange(0, 1800, 2)
    config = SegmentConfig.from_dict({"prefix": 8, "structure": structure, "shortlist": 1800})
    truth, trial = segment.exact(FRESH[:20], 10, even).rows, segment.over(config, even)
    for view in (trial, trial.over(replace(config, shortlist=1000))):
        for found in (view.search(FRESH[:20], 10), view.exact(FRESH[:20], 10)):
            np.testing.assert_array_equal(found.rows, truth)
        for allowed in (np.arange(1790), np.arange(1, 1800, 2)):
            both = [-1, *np.intersect1d(allowed, even)]
            assert np.isin(view.search(FRESH[:20], 10, 5, allowed).rows, both).all()
            assert np.isin(view.exact(FRESH[:20], 10, allowed).rows, both).all()


def measured(*values: tuple[float, float]) -> list[Point]:
    """Points of these recalls and milliseconds."""
    return [
        Point(replace(RECIPES[0], shortlist=10 + i), recall, recall, ms, 8.0)
        for i, (recall, ms) in enumerate(values)
    ]


def test_the_stated_confidence_is_kept_on_a_ladder_of_many_points() -> None:
    """Simulation: three structures of ten points each cross the target; the cheapest is taken."""
    rng = np.random.default_rng(5)
    means = [float(m) for m in np.linspace(0.93, 0.97, 10)]
    runs, wrong, found, naive = 400, 0, 0, 0
    for _ in range(runs):
        points = measured(*((m, i + rng.random()) for _ in range(3) for i, m in enumerate(means)))
        luck = rng.random((3, 300, 10))  # a query's recalls rise along the ladder
        sealed = {
            point.config: (luck[number // 10] < point.recall).mean(axis=1)
            for number, point in enumerate(points)
        }
        best = choose(points, lambda point, each=sealed: holds(each[point.config], 0.95, 0.9))
        found += best is not None
        wrong += best is not None and best.recall < 0.95
        reached = (point for point in points if sealed[point.config].mean() >= 0.95)
        naive += min(reached, key=lambda point: point.ms).recall < 0.95
    assert wrong / runs <= 0.1 + 3 * (0.1 * 0.9 / runs) ** 0.5
    assert found / runs > 0.9  # it does not keep its word by saying nothing
    assert naive / runs > 0.5  # the cheapest point whose sample mean reaches the target


def test_the_queries_held_out_decide(segments: list[Segment]) -> None:
    """Where the recipes find all neighbours of the half they are chosen by, and few of the other's.

    The split is the same for every tuning of as many queries.
    """
    truth = np.argsort(-(FRESH @ ROWS.T), axis=1)[:, :10]
    found = merged(segments, FRESH, SegmentConfig(prefix=8, shortlist=48))
    reached = recalls(found, truth)
    easy, hard = np.flatnonzero(reached == 1)[:100], np.argsort(reached)[:100]
    assert len(easy) == 100 and reached[hard].mean() < 0.8
    queries = np.empty((200, DIM), np.float32)
    seen, held_out = np.array_split(np.random.default_rng(0).permutation(200), 2)
    queries[seen], queries[held_out] = FRESH[easy], FRESH[hard]
    flat = [SegmentConfig(prefix=8)]
    with pytest.raises(TuneError, match=r"no config was shown .* on 100 held-out queries"):
        tune(segments, queries, Goal(0.9), configs=flat)
    queries[held_out] = queries[seen]
    assert tune(segments, queries, Goal(0.9), configs=flat).recall > 0.9
    queries[held_out[:10]] = FRESH[hard[:10]]  # the mean is above the target, but not surely
    with pytest.raises(TuneError, match=r"no config was shown .* on 100 held-out queries"):
        tune(segments, queries, Goal(0.9), configs=flat)
    # Among all recipes there is one that needs no queries to show what it finds.
    queries[held_out] = FRESH[hard]
    scan = tune(segments, queries, Goal(0.9))
    assert scan.recall > 0.9


def test_among_equally_fast_points_the_highest_recall_is_chosen() -> None:
    """A question takes 1 ms besides: 0.1 and 0.25 ms of search are within 15 %, 0.4 is not."""
    points = measured(
        (0.95, 0.1), (0.96, 0.12), (0.97, 0.15), (0.99, 0.25), (0.98, 0.3), (0.999, 0.4)
    )

    def chosen(*refused: int, question_ms: float = 0) -> int | None:
        tested: list[float] = []

        def confirms(point: Point) -> bool:
            tested.append(point.recall)
            return points.index(point) not in refused

        best = choose(points[::-1], confirms, question_ms)
        assert tested == sorted(tested, reverse=True) and 0.98 not in tested  # 0.99 beats it
        return None if best is None else points.index(best)

    assert chosen() == 0
    assert chosen(question_ms=1.0) == 3
    # The first that is not confirmed ends it, and nothing is confirmed behind it.
    assert chosen(2) == 3 and chosen(2, question_ms=1.0) == 5
    assert chosen(0) == 1 and chosen(5) is None
    # What finds all rows is kept as the last resort, even where a faster point missed none.
    everything = replace(points[5], lowest=float("inf"), ms=9.0)
    none_missed = replace(points[3], lowest=1.0)
    assert choose([none_missed, everything], lambda point: point is everything) is everything


def test_memory_is_a_limit(segments: list[Segment]) -> None:
    flat = [recipe for recipe in RECIPES if recipe.structure == "flat"]
    fixed = 2 * 5 * 8 * DIM
    tuned = tune(segments, QUERIES, Goal(0.9, max_ram=fixed + 3000 * 16), configs=RECIPES)
    assert tuned.config.structure == "flat" and tuned.config.prefix <= 8
    with pytest.raises(TuneError, match="no config for 3000 rows fits"):
        tune(segments, QUERIES, Goal(0.9, max_ram=1000), configs=flat)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({"recall": 1.0}, "recall must lie between 0 and 1, at least 0.0001 from both, got 1.0"),
        ({"recall": "high"}, "recall must lie between 0 and 1, .*, got 'high'"),
        ({"recall": 5e-324}, "at least 0.0001 from both, got 5e-324"),
        ({"confidence": 95}, "confidence must lie between 0 and 1, .*, got 95"),
        ({"confidence": np.nextafter(1, 0)}, "confidence must lie .*, got .*0.9999"),
        ({"max_ram": 0}, "max_ram must be a whole number of at least 1"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
    ],
)
def test_a_goal_out_of_range_is_refused(goal: dict[str, object], message: str) -> None:
    with pytest.raises(TuneError, match=message):
        Goal(**goal)  # type: ignore[arg-type]


def test_what_cannot_be_shown_is_said(segments: list[Segment]) -> None:
    with pytest.raises(TuneError, match=r"takes at least 100 queries.* got 99; give more queries"):
        tune(segments, QUERIES[:99], Goal(0.9))
    with pytest.raises(TuneError, match=r"recall@10 above 0.99 .* at least 804 queries.* got 600"):
        tune(segments, QUERIES, Goal(0.99))
    with pytest.raises(TuneError, match="k must be at most the 3000 rows there are, got 10000000"):
        tune(segments, QUERIES, Goal(0.9, k=10**12))
    with pytest.raises(TuneError, match="at least one segment, got none"):
        tune([], QUERIES, Goal(0.9))
    with pytest.raises(TuneError, match=r"no config was shown to exceed recall@10 0.95 with"):
        tune(segments, QUERIES, Goal(0.95), configs=[SegmentConfig(prefix=2)])


class MissesFew(Segment):
    """Finds worse rows where few are allowed."""

    def search(self, queries: Any, k: int, size: Any = None, allowed: Any = None) -> SearchResult:
        result = super().search(queries, k, size, allowed)
        worse = allowed is not None and allowed.size < 0.3 * allowed.total
        return replace(result, scores=result.scores - np.float32(worse))


def test_a_graph_that_misses_rows_under_a_filter_is_not_chosen(segments: list[Segment]) -> None:
    graph = SegmentConfig(prefix=16, structure="hnsw", code="int8")
    found = tune(segments, QUERIES, Goal(0.8), configs=[graph]).filtered
    assert [*found] == ["0.5", "0.1"] and all(recall > 0.8 for recall in found.values())
    worse = [MissesFew.open(segment.path) for segment in segments]
    tuned = partial(tune, worse, QUERIES, Goal(0.8))
    with pytest.raises(TuneError, match=r"best mean on the others was 0\.0000, without a filter"):
        tuned(configs=[graph])
    chosen = tuned(configs=[graph, replace(graph, structure="flat")])
    assert chosen.config.structure == "flat" and chosen.filtered == {}


def test_recalls_by_score_by_hand() -> None:
    """A query finds rows 0 and 1, with scores of 0.9 and 0.8. Fewer true neighbours than k are all
    that count, and another row with the score of a neighbour is as good."""
    none = -np.inf
    neighbours = [
        ([0, 7, -1], [0.9, 0.85, none], 1 / 2),
        ([0, 1, 2], [0.9, 0.8, 0.7], 2 / 3),
        ([7, 8, 9], [0.99, 0.98, 0.95], 0),
        ([-1, -1, -1], [none, none, none], 0),
        ([0, -1, -1], [0.9, none, none], 1),
        ([0, 7, -1], [0.9, 0.8, none], 1),
    ]
    truth, scores, expected = (np.array(part) for part in zip(*neighbours, strict=True))
    found = np.tile(np.float32([0.9, 0.8]), (len(truth), 1))
    result, exact = SearchResult(truth, found), SearchResult(truth, scores.astype(np.float32))
    assert shares(result, exact, DIM).tolist() == pytest.approx(expected)


# --- the bound ------------------------------------------------------------------------------------

SHARES = st.lists(st.integers(0, 10).map(lambda tenths: tenths / 10), min_size=1, max_size=40)
CONFIDENCES = st.sampled_from([0.5, 0.9, 0.95, 0.99])


def slow_capital(values: list[float], mean: float, alpha: float) -> float:
    """max_t K_t(mean), value by value as the paper writes it."""
    capital = most = 1.0
    for i, value in enumerate(values):
        means = [(0.5 + sum(values[: j + 1])) / (j + 2) for j in range(i)]
        spread = sum((values[j] - means[j]) ** 2 for j in range(i))
        variance = (0.25 + spread) / (i + 1)
        bet = min(math.sqrt(2 * math.log(1 / alpha) / (len(values) * variance)), 0.75 / mean)
        capital *= 1 + bet * (value - mean)
        most = max(most, capital)
    return most


@given(SHARES, st.sampled_from([0.1, 0.5, 0.9, 0.97, 1.0]), CONFIDENCES)
def test_capital_equals_the_paper_value_by_value(
    values: list[float], target: float, confidence: float
) -> None:
    goal = 1 / (1 - confidence)
    capital = slow_capital(values, target, 1 - confidence)
    if capital != pytest.approx(goal, rel=1e-9):
        assert holds(np.asarray(values), target, confidence) == (capital > goal)


# --- what is foretold of a segment's size is what it takes ----------------------------------------


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("structure", Structure)
def test_the_coarse_file_is_as_large_as_foretold(
    tmp_path: Path, structure: Structure, code: Code
) -> None:
    config = SegmentConfig(prefix=64, structure=structure, code=code)
    rows = np.random.default_rng(0).standard_normal((4000, 64))
    with Segment.build(tmp_path / "s", rows, config) as segment:
        size = (segment.path / "coarse.faiss").stat().st_size
        cold = (segment.path / "vectors.faiss").stat().st_size
    # Headers are counted as nothing, and small beside a million rows.
    assert abs(size - 4000 * hot_row(config, 4000, 64)) < 0.03 * size + 2048
    assert abs(cold - 4000 * cold_row(config, 64)) < 0.02 * cold + 4096
