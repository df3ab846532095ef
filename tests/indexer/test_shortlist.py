"""The shortlist that a segment measures when it is built."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from searchengine.indexer import building
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.segment import Segment, SegmentConfig

OPEN = SegmentConfig(prefix=8, rotation="identity", shortlist=0)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """1,100 rows of 32 dimensions, whose energy falls: a prefix of 8 says most of it."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((1100, 32)) * 0.88 ** np.arange(32)).astype(np.float32)


@pytest.fixture(scope="module")
def wide(rows: np.ndarray) -> np.ndarray:
    """The same with zeros behind: a segment of them is not small."""
    return np.pad(rows, ((0, 0), (0, 4096 - 32)))


def recall(segment: Segment, size: int) -> float:
    """Recall@10 of the rows that the module samples, by brute force."""
    stored = segment.vectors(np.arange(segment.rows))
    sample = np.linspace(0, segment.rows - 1, building.SAMPLE).astype(int)
    scores = stored[sample] @ stored.T
    scores[np.arange(len(sample)), sample] = -np.inf
    true = np.argsort(-scores, axis=1)[:, :10]
    found = segment.shortlist(stored[sample], size + 1)
    return float(np.mean([np.isin(*pair).mean() for pair in zip(true, found, strict=True)]))


def test_a_small_segment_is_searched_exactly(tmp_path: Path, rows: np.ndarray) -> None:
    with Segment.build(tmp_path / "s", rows, OPEN) as segment:
        assert segment.config.shortlist == len(rows)
        result = segment.search(rows[:5], 10)
        assert result.exact
        np.testing.assert_array_equal(result.rows, segment.exact(rows[:5], 10).rows)


@pytest.mark.parametrize("structure", ["flat", "hnsw"])
def test_the_shortest_of_the_ladder_that_finds_enough(
    tmp_path: Path, wide: np.ndarray, structure: str
) -> None:
    config = SegmentConfig.from_dict({**OPEN.as_dict(), "structure": structure})
    with Segment.build(tmp_path / "s", wide, config) as segment:
        size = segment.config.shortlist
        assert segment.config.structure.value == structure
        assert 25 < size < 1100
        assert recall(segment, size) >= building.RECALL > recall(segment, round(size / 1.25))
        assert segment.manifest.config.shortlist == size


def test_a_given_shortlist_is_kept_and_a_view_takes_the_measured_one(
    tmp_path: Path, wide: np.ndarray
) -> None:
    with Segment.build(tmp_path / "s", wide, OPEN) as segment:
        assert segment.over(OPEN).config.shortlist == segment.config.shortlist
    with Segment.build(tmp_path / "given", wide, replace(OPEN, shortlist=7)) as segment:
        assert segment.config.shortlist == 7
        assert not segment.search(wide[:1], 3).exact
    with pytest.raises(SegmentConfigError, match="stages need a shortlist, got 0"):
        SegmentConfig(prefix=8, shortlist=0, stages=((16, 5),))
