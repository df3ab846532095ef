"""Operating points: what they find."""

from dataclasses import replace

import numpy as np
import pytest

from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.points import (
    OperatingPoint,
    in_turns,
    recall,
)

DIM = 24


def rows(n: int, seed: int) -> np.ndarray:
    falling = np.arange(1, DIM + 1) ** -0.7
    return np.random.default_rng(seed).standard_normal((n, DIM)).astype(np.float32) * falling


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> list[Segment]:
    folder = tmp_path_factory.mktemp("bench")
    config = SegmentConfig(prefix=4, rotation="identity", storage="float32")  # type: ignore[arg-type]
    return [Segment.build(folder / str(i), rows(300, i), config) for i in range(2)]


def test_recall_by_hand() -> None:
    exact = np.array([[1, 2, 3, 4], [5, 6, -1, -1], [-1, -1, -1, -1]])
    found = np.array([[4, 9, 1, -1], [6, 5, 7, -1], [1, 2, 3, 4]])
    assert recall(found, exact) == (2 / 4 + 2 / 2) / 2
    assert recall(exact, exact) == 1.0
    assert recall(np.full((3, 4), -1), exact) == 0.0


def pointed(segments: list[Segment], p: int, size: int | None, k: int = 5) -> OperatingPoint:
    views = tuple(each.over(replace(each.config, prefix=p)) for each in segments)
    return OperatingPoint(views, (None,) * len(views), k, size)


@pytest.mark.parametrize("p", [4, 8, DIM])
@pytest.mark.parametrize("size", [5, 40, 600])
def test_a_point_finds_what_two_stages_in_numpy_find(
    segments: list[Segment], p: int, size: int
) -> None:
    queries = rows(20, 9)
    exact = pointed(segments, 4, None).search(queries).rows
    point = pointed(segments, p, size)
    found = point.search(queries).rows
    one_by_one = np.concatenate([point.search(query[None]).rows for query in queries])
    assert (one_by_one == found).all() and found.shape == (20, 5)
    assert recall(found, exact) == pytest.approx(expected(queries, p, size))


def test_points_take_turns(segments: list[Segment]) -> None:
    points = [pointed(segments, p, 20) for p in (4, 8, DIM)]
    alone = [*in_turns(points, rows(20, 9), 3)]
    assert [number for number, _ in alone] == [0, 1, 2, 1, 2, 0, 2, 0, 1]
    assert all(seconds.shape == (20,) and (seconds > 0).all() for _, seconds in alone)
    (_, mean), *_ = in_turns(points, rows(20, 9), 1, batch=True)
    assert mean.shape == (1,) and mean[0] > 0


def expected(queries: np.ndarray, p: int, size: int) -> float:
    """Recall at 5 of the two stages over both segments, in plain numpy."""

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    parts = [unit(rows(300, i)) for i in range(2)]
    whole = np.concatenate(parts)
    shares = []
    for query in unit(queries):
        truth = {*np.argsort(-(whole @ query))[:5]}
        candidates = np.concatenate(
            [
                300 * i + np.argsort(-(unit(part[:, :p]) @ query[:p]))[:size]
                for i, part in enumerate(parts)
            ]
        )
        best = candidates[np.argsort(-(whole[candidates] @ query))[:5]]
        shares.append(len(truth & {*best}) / 5)
    return float(np.mean(shares))


def test_a_point_keeps_to_the_live_rows(segments: list[Segment]) -> None:
    queries = rows(10, 9)
    best = OperatingPoint((segments[0],), (None,), 1, None).search(queries).rows[:, 0]
    live = Allowed.without(np.unique(best), 300)
    for size in (None, 20):
        found = OperatingPoint((segments[0],), (live,), 3, size).search(queries).rows
        assert not np.isin(found, best).any()
