"""The shortlist that a segment measures when it is built."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from searchengine.indexer import building
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.segment import Segment, SegmentConfig

OPEN = SegmentConfig(prefix=8, shortlist=0)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """1,100 rows of 32 dimensions, whose energy falls slowly: a prefix of 8 says part of it."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((1100, 32)) * np.linspace(1, 0.4, 32)).astype(np.float32)


@pytest.fixture
def build(tmp_path: Path, rows: np.ndarray) -> Callable[[SegmentConfig], Segment]:
    return lambda config: Segment.build(tmp_path / "s", rows, config)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment is small, and its sample is."""
    monkeypatch.setattr(building, "SAMPLE", 150)
    monkeypatch.setattr(building, "EXACT_BYTES", 0)


def recall(segment: Segment, size: int) -> float:
    """Recall@10 of the rows that the module samples, by brute force."""
    stored = segment.vectors(np.arange(segment.rows))
    sample = np.linspace(0, segment.rows - 1, min(segment.rows, building.SAMPLE)).astype(int)
    shares = []
    for row in sample:
        scores = stored @ stored[row]
        scores[row] = -np.inf
        true = np.argsort(-scores)[:10]
        found = segment.shortlist(stored[row : row + 1], min(size + 1, segment.rows))
        shares.append(np.isin(true, found).mean())
    return float(np.mean(shares))


def test_a_small_segment_is_searched_exactly(
    build: Callable[[SegmentConfig], Segment], rows: np.ndarray
) -> None:
    with build(OPEN) as segment:
        assert segment.config.shortlist == len(rows)
        result = segment.search(rows[:5], 10)
        assert result.exact
        np.testing.assert_array_equal(result.rows, segment.exact(rows[:5], 10).rows)


@pytest.mark.parametrize("structure", ["flat", "hnsw"])
def test_the_shortest_of_the_ladder_that_finds_enough(
    build: Callable[[SegmentConfig], Segment], large: None, structure: str
) -> None:
    config = SegmentConfig.from_dict({**OPEN.as_dict(), "structure": structure})
    with build(config) as segment:
        size = segment.config.shortlist
        assert segment.config.structure.value == structure
        assert 25 < size < 1100
        assert recall(segment, size) >= building.RECALL > recall(segment, round(size / 1.25))
        assert segment.manifest.config.shortlist == size


def test_a_given_shortlist_is_kept_and_a_view_takes_the_measured_one(
    build: Callable[[SegmentConfig], Segment], large: None, tmp_path: Path, rows: np.ndarray
) -> None:
    with build(OPEN) as segment:
        assert segment.over(OPEN).config.shortlist == segment.config.shortlist
    with Segment.build(tmp_path / "given", rows, replace(OPEN, shortlist=7)) as segment:
        assert segment.config.shortlist == 7
        assert not segment.search(rows[:1], 3).exact
    with pytest.raises(SegmentConfigError, match="stages need a shortlist, got 0"):
        SegmentConfig(prefix=8, shortlist=0, stages=((16, 5),))
