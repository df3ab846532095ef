"""Exact scores of a shortlist."""

from dataclasses import replace

import numpy as np
import pytest

from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.cascade import SearchResult, merge, narrow, rerank


class Store:
    """Rows in memory; remembers the most numbers it had to hand out at a time."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows.astype(np.float32)
        self.dim = rows.shape[1]
        self.largest = 0

    def take(self, rows: np.ndarray, width: int | None = None) -> np.ndarray:
        self.largest = max(self.largest, rows.size * (width or self.dim))
        return self.rows[rows][..., :width]


def test_by_hand() -> None:
    store = Store(np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]]))
    queries = np.array([[1, 0], [0, 1]], np.float32)
    found = rerank(store, queries, np.array([[3, 0, 2, -1], [-1, 1, -1, 2]]), 3)
    assert found.rows.tolist() == [[0, 3, 2], [1, 2, -1]]
    np.testing.assert_array_equal(
        found.scores, np.array([[1, 0.8, 0.6], [1, 0.8, -np.inf]], np.float32)
    )
    assert found.rows.dtype == np.int64 and found.scores.dtype == np.float32


def test_merging_numbers_rows_from_their_bases() -> None:
    first = SearchResult(np.array([[4, 0, -1]]), np.array([[0.9, 0.5, -np.inf]], np.float32))
    second = SearchResult(np.array([[2, 1]]), np.array([[0.9, 0.7]], np.float32))
    both = merge([first, second], [0, 100], 5)
    assert both.rows.tolist() == [[4, 102, 101, 0, -1]]
    np.testing.assert_array_equal(
        both.scores, np.array([[0.9, 0.9, 0.7, 0.5, -np.inf]], np.float32)
    )
    assert merge([second, first], [100, 0], 2).rows.tolist() == [[4, 102]]
    with pytest.raises(VectorError, match="1 results with 2 bases"):
        merge([first], [0, 1], 3)


def test_a_merged_result_is_exact_if_all_parts_are() -> None:
    part = SearchResult(np.array([[1], [2]]), np.zeros((2, 1), np.float32))
    exact = replace(part, exact=True)
    assert merge([exact, exact], [0, 10], 1).exact
    assert not merge([exact, part], [0, 10], 1).exact


def test_a_stage_of_a_funnel_by_hand() -> None:
    """By the first number of two, re-normalised: 1 and -1, and 0 where it is 0."""
    store = Store(np.array([[0.6, 0.8], [-0.6, 0.8], [0, 1], [0.01, 1], [5, 0]]))
    queries = np.array([[0.5, 9], [-0.5, 9]], np.float32)
    candidates = np.array([[3, 1, 2, 0, 4], [0, -1, 1, 2, -1]])
    assert narrow(store, queries, candidates, 1, 4).tolist() == [[0, 3, 4, 2], [1, 2, 0, -1]]
    assert store.largest == 5  # only the first number of each row is read
