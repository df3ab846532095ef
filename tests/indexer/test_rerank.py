"""Exact scores of a shortlist; groups of near duplicates against a plain loop over all pairs."""

from dataclasses import replace

import numpy as np
import pytest

from searchengine.indexer.errors import VectorError
from searchengine.indexer.search import scoring
from searchengine.indexer.search.scoring import SearchResult, leaders, merge, rerank


class Store:
    """Rows in memory."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.dim = rows.astype(np.float32), rows.shape[1]

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self.rows[rows]


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
    exact = replace(first, exact=True)
    assert merge([exact, exact], [0, 10], 1).exact and not merge([exact, second], [0, 10], 1).exact
    with pytest.raises(VectorError, match="1 results with 2 bases"):
        merge([first], [0, 1], 3)


def plain(vectors: np.ndarray, above: float) -> tuple[list[int], list[float]]:
    """As `leaders` states it."""
    leader, cosine = [], []
    for i, vector in enumerate(vectors):
        firsts = [j for j in range(i) if leader[j] == j]
        near = [j for j in firsts if vectors[j] @ vector >= above]
        leader.append(near[0] if near else i)
        cosine.append(float(vectors[near[0]] @ vector) if near else 1.0)
    return leader, cosine


def clustered(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Unit rows around a few centres, some of them equal, a row of zeros among them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count // 6, dim))
    noise = rng.standard_normal((count, dim)) * rng.choice([0, 0.1, 0.3], (count, 1))
    vectors = centres[rng.integers(0, len(centres), count)] + noise
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[count // 2] = 0
    return vectors.astype(np.float32)


@pytest.mark.parametrize(("dim", "above"), [(3, 0.93), (66, 0.5), (200, 1 - 1e-6)])
def test_groups_are_those_of_all_pairs(
    dim: int, above: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_FEW", 10)
    vectors = clustered(260, dim)
    expected = plain(vectors, above)
    for block in (1, 97, 1024):
        monkeypatch.setattr(scoring, "_BLOCK", block)
        done: list[int] = []
        leader, cosine = leaders(vectors, above, done.append)
        assert leader.tolist() == expected[0]
        assert cosine == pytest.approx(expected[1], abs=1e-5)
        assert sum(done) == len(vectors) and len(done) == -(-260 // block)
    assert (leader != np.arange(260)).any() or above > 0.99
