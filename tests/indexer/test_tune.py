"""The tuner: what it finds holds, on queries it never saw."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.arrays import unit_rows
from indexer.errors import TuneError
from indexer.segment import Segment, SegmentConfig, Storage
from indexer.tuning.confidence import smallest_sample
from indexer.tuning.grid import Questions, candidates, ranks
from indexer.tuning.points import recall
from indexer.tuning.tune import (
    Goal,
    Objective,
    Point,
    _decide,
    _Step,
    tune,
)

DIM = 32


def clustered(n: int, seed: int) -> np.ndarray:
    """Rows whose energy falls along the numbers, around 40 centres."""
    centres = np.random.default_rng(7).standard_normal((40, DIM))
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(40, size=n)] + 0.7 * rng.standard_normal((n, DIM))
    return unit_rows(rows / np.arange(1, DIM + 1) ** 0.5)


ROWS, QUERIES, FRESH = clustered(3000, 1), clustered(600, 2), clustered(3000, 3)
RECIPES = [
    SegmentConfig(prefix=width, **kind)  # type: ignore[arg-type]
    for width in (8, 16)
    for kind in ({"structure": "flat"}, {"structure": "hnsw", "code": "int8"})
]


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Segment]]:
    folder = tmp_path_factory.mktemp("tune")
    parts = [ROWS[:1800], ROWS[1800:]]
    made = [
        Segment.build(folder / str(i), part, SegmentConfig(prefix=4, storage=Storage.FLOAT32))
        for i, part in enumerate(parts)
    ]
    yield made
    for segment in made:
        segment.close()


def merged(segments: list[Segment], queries: np.ndarray, config: SegmentConfig) -> np.ndarray:
    found = [segment.over(config).search(queries, 10) for segment in segments]
    rows = np.concatenate([f.rows + base for f, base in zip(found, (0, 1800), strict=True)], axis=1)
    scores = np.concatenate([f.scores for f in found], axis=1)
    return np.take_along_axis(rows, np.argsort(-scores, axis=1)[:, :10], axis=1)


@pytest.mark.parametrize("objective", Objective)
def test_the_recall_that_was_tuned_for_is_reached_on_fresh_queries(
    segments: list[Segment], objective: Objective
) -> None:
    said: list[str] = []
    goal = Goal(0.9, objective=objective)
    tuned = tune(segments, QUERIES, goal, configs=RECIPES, on_step=said.append)
    assert tuned.held_out == 300 and tuned.rows == 3000 and tuned.source == "given"
    assert tuned.tried == len(tuned.curve) > 5 and said
    truth = np.argsort(-(FRESH @ ROWS.T), axis=1)[:, :10]
    reached = recall(merged(segments, FRESH, tuned.config), truth)
    assert reached > 0.9
    assert abs(reached - tuned.recall) < 0.03  # the held-out mean is no fiction
    # What is chosen is not careful beyond need: some point of the curve was dearer.
    assert tuned.ms < max(point.ms for point in tuned.curve)


def test_rows_made_into_queries_are_left_out_of_what_is_measured(
    segments: list[Segment], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = np.random.default_rng(4).permutation(3000)[:300]
    built: list[np.ndarray] = []

    def over(self: Segment, config: SegmentConfig, kept: object = None) -> Segment:
        if kept is not None:
            built.append(np.asarray(kept) + (0 if self.rows == 1800 else 1800))
        return original(self, config, kept)

    original = Segment.over
    monkeypatch.setattr(Segment, "over", over)
    tuned = tune(segments, ROWS[own], Goal(0.9), self_queries=own, configs=RECIPES)
    assert tuned.source == "documents" and tuned.rows == 3000
    assert len(built) == 2 * len(RECIPES)
    np.testing.assert_array_equal(np.concatenate(built[:2]), np.setdiff1d(np.arange(3000), own))
    # The promise holds for queries that no graph has as nodes; these are such.
    truth = np.argsort(-(FRESH @ ROWS.T), axis=1)[:, :10]
    assert recall(merged(segments, FRESH, tuned.config), truth) > 0.9


@pytest.mark.parametrize("structure", ["flat", "hnsw", "ivf"])
def test_a_trial_index_finds_none_but_the_rows_kept(
    segments: list[Segment], structure: str
) -> None:
    kept = np.arange(0, 1800, 2)
    config = SegmentConfig.from_dict({"prefix": 16, "structure": structure, "effort": 0})
    view = segments[0].over(config, kept)
    for queries in (QUERIES[:100], QUERIES[:1]):
        found = view.search(queries, 10).rows
        assert (found % 2 == 0).all() and (found >= 0).all()
        truth = segments[0].exact(queries, 10, kept).rows
        assert recall(found, truth) > (0.6 if structure == "ivf" else 0.9)


@pytest.mark.parametrize("documents", [False, True])
def test_a_tiny_segment_in_front_does_not_decide(tmp_path: Path, documents: bool) -> None:
    """It is flat whatever the recipe; the large one behind it is not."""
    folders = [(tmp_path / "tiny", ROWS[:20]), (tmp_path / "large", ROWS[20:])]
    made = [Segment.build(path, part, SegmentConfig(prefix=8)) for path, part in folders]
    recipe = SegmentConfig.from_dict({"prefix": 16, "structure": "hnsw", "code": "int8"})
    own = np.arange(30, 3000, 10) if documents else None
    queries = QUERIES if own is None else ROWS[own]
    tuned = tune(made, queries, Goal(0.9), self_queries=own, configs=[recipe])
    assert {point.config.structure for point in tuned.curve} == {"hnsw"}
    assert tuned.config.effort >= tuned.config.shortlist


def test_widths_that_do_not_divide_and_prefixes_of_few_numbers(tmp_path: Path) -> None:
    rows = clustered(10_500, 8)[:, :5]
    config = SegmentConfig.from_dict({"prefix": 4, "code": "pq"})
    with Segment.build(tmp_path / "s", rows, config) as segment:
        tuned = tune([segment], clustered(400, 9)[:, :5], Goal(0.9))
    assert tuned.config.prefix == 5
    assert {point.config.structure for point in tuned.curve} >= {"hnsw", "ivf"}


def test_ranks_are_those_of_the_prefix(segments: list[Segment]) -> None:
    queries = QUERIES[:20]
    truth = np.argsort(-(queries @ ROWS.T), axis=1)[:, :5]
    found = ranks(segments, [None, None], Questions(queries, truth), 4)
    expected = np.empty_like(found)
    parts = []
    for segment in segments:
        stored = np.concatenate(list(segment.prefix_rows(4).blocks()))
        parts.append(segment.rotate(queries)[:, :4] @ stored.T)
    scores = np.concatenate(parts, axis=1)
    for i, line in enumerate(truth):
        expected[i] = [(scores[i] > scores[i, row] + 1e-6).sum() for row in line]
    np.testing.assert_array_equal(found, expected)


def ladder(rng: np.random.Generator, means: list[float], queries: int) -> list[_Step]:
    """Points of known true recall, cheapest first; a query's recalls rise along the ladder."""
    luck = rng.random((queries, 10))
    return [
        _Step(
            Point(replace(RECIPES[0], shortlist=10 + i), mean, 1.0 + i, 8.0),
            True,
            (luck < mean).mean(axis=1),
        )
        for i, mean in enumerate(means)
    ]


def test_the_stated_confidence_is_kept_over_many_ladders() -> None:
    """Simulation: three ladders of ten points each cross the target, and the cheapest is taken."""
    rng = np.random.default_rng(5)
    goal = Goal(0.95, confidence=0.9)
    means = [float(m) for m in np.linspace(0.93, 0.97, 10)]
    runs, wrong, found, naive = 400, 0, 0, 0
    for _ in range(runs):
        ladders = [ladder(rng, means, 300) for _ in range(3)]
        step = _decide(ladders, goal, lambda _: None)
        found += step is not None
        wrong += step is not None and step.point.recall < goal.recall
        steps = (step for each in ladders for step in each if step.sealed.mean() >= 0.95)
        cheapest = min((step.point.ms, step.point.recall) for step in steps)
        naive += cheapest[1] < goal.recall
    assert wrong / runs <= 0.1 + 3 * (0.1 * 0.9 / runs) ** 0.5
    assert found / runs > 0.9  # it does not keep its word by saying nothing
    assert naive / runs > 0.5  # the cheapest point whose sample mean reaches the target


def test_the_queries_held_out_decide(segments: list[Segment]) -> None:
    """Where the recipes find all neighbours of the half they are chosen by, and few of the other's.

    The split is the same for every tuning of as many queries.
    """
    truth = np.argsort(-(FRESH @ ROWS.T), axis=1)[:, :10]
    found = merged(segments, FRESH, SegmentConfig(prefix=8, shortlist=48))
    reached = np.array([recall(f[None], t[None]) for f, t in zip(found, truth, strict=True)])
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
    # Among all recipes there is one that needs no queries to show what it finds.
    queries[held_out] = FRESH[hard]
    scan = tune(segments, queries, Goal(0.9))
    assert scan.recall > 0.9


def test_every_ladder_has_half_of_the_error_that_is_left() -> None:
    """The first at 5 of the permitted 10 %, the second at 2.5, whatever became of the first."""
    goal = Goal(0.95, confidence=0.9)
    few, enough = smallest_sample(0.95, 0.95), smallest_sample(0.95, 0.975)

    def step(ms: float, sealed: np.ndarray, exact: bool = False) -> list[_Step]:
        return [_Step(Point(RECIPES[0], 1.0, ms, 8.0), True, sealed, exact)]

    failing, silent = step(1.0, np.zeros(few)), lambda _: None
    first, second = step(2.0, np.ones(few)), step(2.0, np.ones(enough))
    assert _decide([first], goal, silent) is first[0]
    assert _decide([failing, first], goal, silent) is None
    assert _decide([failing, second], goal, silent) is second[0]
    assert _decide([failing, step(1.5, np.zeros(few)), second], goal, silent) is None
    # Scoring all rows is no statement about queries: it takes none of the error, and no test.
    scan = step(0.5, np.ones(1), exact=True)
    assert _decide([scan, first], goal, silent) is scan[0]
    assert _decide([failing, step(3.0, np.ones(1), exact=True)], goal, silent) is not None


def test_a_shortlist_of_all_rows_is_tried_last(segments: list[Segment]) -> None:
    """It finds every neighbour, so that a tuning that was started has a result."""
    truth = np.argsort(-(QUERIES @ ROWS.T), axis=1)[:, :10]
    asked = Questions(QUERIES, truth)
    *_, (config, shortlists) = candidates(
        segments, [1800, 1200], [None, None], asked, Goal(0.9), None
    )
    assert shortlists == [1800] and config.shortlist == 1800
    found = [segment.over(config).search(QUERIES, 10) for segment in segments]
    assert all(each.proven for each in found)
    # Of rows made into queries: all there will be, not all but those.
    kept = [np.arange(30, 1800), np.arange(30, 1200)]
    tried = [*candidates(segments, [1800, 1200], kept, asked, Goal(0.9, k=1190), None)]
    assert [sizes for _, sizes in tried] == [[1800]]


def test_memory_is_a_limit(segments: list[Segment]) -> None:
    flat = [recipe for recipe in RECIPES if recipe.structure == "flat"]
    fixed = 2 * 3 * 4 * DIM * DIM
    tuned = tune(segments, QUERIES, Goal(0.9, max_ram=fixed + 3000 * 16), configs=RECIPES)
    assert tuned.config.structure == "flat" and tuned.config.prefix <= 8
    with pytest.raises(TuneError, match="no config for 3000 rows fits"):
        tune(segments, QUERIES, Goal(0.9, max_ram=1000), configs=flat)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({"recall": 1.0}, "recall must lie between 0 and 1, got 1.0"),
        ({"confidence": 95}, "confidence must lie between 0 and 1, got 95"),
        ({"objective": "speed"}, "objective must be one of latency, throughput, got 'speed'"),
        ({"max_ram": 0}, "max_ram must be a whole number of at least 1"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"recall": "high"}, "recall must lie between 0 and 1, got 'high'"),
    ],
)
def test_a_goal_out_of_range_is_refused(goal: dict[str, object], message: str) -> None:
    with pytest.raises(TuneError, match=message):
        Goal(**goal)  # type: ignore[arg-type]


def test_a_goal_holds_plain_numbers() -> None:
    goal = Goal(k=np.int64(5), max_ram=np.int64(1 << 20))  # type: ignore[arg-type]
    assert json.dumps([goal.k, goal.max_ram]) == "[5, 1048576]"


def test_what_cannot_be_shown_is_said(segments: list[Segment]) -> None:
    with pytest.raises(TuneError, match=r"takes at least 100 queries.* got 99; give more queries"):
        tune(segments, QUERIES[:99], Goal(0.9))
    with pytest.raises(TuneError, match=r"recall@10 above 0.99 .* at least 988 queries.* got 600"):
        tune(segments, QUERIES, Goal(0.99))
    with pytest.raises(TuneError, match="k must be at most the 3000 rows there are, got 10000000"):
        tune(segments, QUERIES, Goal(0.9, k=10**12))
    with pytest.raises(TuneError, match="at least one segment, got none"):
        tune([], QUERIES, Goal(0.9))
    with pytest.raises(TuneError, match=r"no prefix reaches recall@10 0.95 with a shortlist"):
        tune(segments, QUERIES, Goal(0.95), configs=[SegmentConfig(prefix=2)])
    with pytest.raises(TuneError, match=r"no config was shown to exceed recall@10 0.96 with"):
        tune(segments, QUERIES[:250], Goal(0.96), configs=[SegmentConfig(prefix=12)])


def test_the_usual_recipes_are_tried_where_none_are_given(tmp_path: Path) -> None:
    with Segment.build(tmp_path / "s", ROWS, SegmentConfig(prefix=8)) as segment:
        tuned = tune([segment], QUERIES, Goal(0.95))
    tried = {(p.config.structure, p.config.prefix) for p in tuned.curve}
    assert {structure for structure, _ in tried} >= {"flat", "hnsw"}
    assert all(prefix <= DIM for _, prefix in tried)


@pytest.mark.parametrize(("former", "name"), [("own", "self_queries"), ("recipes", "configs")])
def test_a_former_keyword_still_works_and_warns(former: str, name: str) -> None:
    with (
        pytest.warns(DeprecationWarning, match=f"{former} is now {name}"),
        pytest.raises(TuneError, match="at least one segment"),
    ):
        tune([], QUERIES, **{former: []})  # type: ignore[arg-type]
