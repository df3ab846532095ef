"""Exact search through a segment: brute force's answer."""

from pathlib import Path

import numpy as np
import pytest
from clustered import clustered

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.cascade import SearchResult, rerank
from searchengine.indexer.segment import Segment, SegmentConfig

DIM = 48


ROWS, QUERIES = unit_rows(clustered(4000, 1, DIM)), unit_rows(clustered(25, 2, DIM))


def brute(segment: Segment, k: int, allowed: np.ndarray | None = None) -> SearchResult:
    """Every (allowed) row scored at full width."""
    numbers = np.arange(segment.rows) if allowed is None else allowed
    everything = np.broadcast_to(numbers, (len(QUERIES), numbers.size))
    return rerank(segment, unit_rows(QUERIES), everything, k)


def test_more_rows_than_there_are_and_a_single_one(tmp_path: Path) -> None:
    config = SegmentConfig(prefix=16)
    with Segment.build(tmp_path / "s", ROWS[:1200], config) as segment:
        found = segment.exact(QUERIES, 1500)
        assert found.exact and (found.rows[:, 1200:] == -1).all()
        assert (np.sort(found.rows[:, :1200], axis=1) == np.arange(1200)).all()
    with Segment.build(tmp_path / "one", ROWS[:1], config) as segment:
        assert segment.exact(QUERIES, 3).rows.tolist() == [[0, -1, -1]] * 25


def test_near_duplicates_are_told_apart(tmp_path: Path) -> None:
    """Thousands of rows closer than a scan's rounding: the right ones, the lower row first."""
    rng = np.random.default_rng(5)
    rows = ROWS[:1] + 3e-6 * rng.standard_normal((3000, DIM)).astype(np.float32)
    with Segment.build(tmp_path / "s", rows, SegmentConfig(prefix=16)) as segment:
        found, expected = segment.exact(QUERIES, 10), brute(segment, 10)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-6)
        # By the scores that are returned, which the order follows, and those of all other rows.
        every = segment.exact(QUERIES, 3000)
        np.testing.assert_array_equal(found.rows, every.rows[:, :10])
        order = np.lexsort((every.rows, -every.scores), axis=1)
        np.testing.assert_array_equal(order, np.broadcast_to(np.arange(3000), order.shape))


def test_a_result_too_large_to_hold_is_refused(tmp_path: Path) -> None:
    with Segment.build(tmp_path / "s", ROWS, SegmentConfig(prefix=16)) as segment:
        rotated, most = unit_rows(QUERIES), "at most 1048576 for a segment of 4000 rows, got"
        calls = [
            lambda k: segment.search(QUERIES, k),
            lambda k: segment.exact(QUERIES, k),
            lambda k: segment.rerank(rotated, np.zeros((25, 1), np.int64), k),
            lambda k: segment.shortlist(rotated, k),
        ]
        for call in calls:
            with pytest.raises(VectorError, match=f"{most} 1000000000000; ask for 4000"):
                call(10**12)
        # A shortlist longer than all rows is one of all rows.
        assert segment.search(QUERIES, 10, shortlist=10**12).exact
