"""Maximal marginal relevance against its definition, written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.diversity import Floats, mmr

# Unit rows whose products are exact in float32, so that equals are equal to both sides.
_UNITS = np.array(
    [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [-1, 0, 0, 0], [0.5, 0.5, 0.5, 0.5],
     [0.5, -0.5, 0.5, -0.5], [0.5, 0.5, -0.5, -0.5]],
    dtype=np.float32,
)  # fmt: skip

candidates = st.lists(
    st.tuples(st.integers(-8, 8), st.integers(0, len(_UNITS) - 1)), min_size=1, max_size=12
)


def arrays(pairs: list[tuple[int, int]]) -> tuple[Floats, Floats]:
    relevance = np.array([eighths / 8 for eighths, _ in pairs], dtype=np.float32)
    return relevance, _UNITS[[unit for _, unit in pairs]]


def by_definition(relevance: Floats, vectors: Floats, k: int, diversity: float) -> list[int]:
    chosen = [max(range(len(relevance)), key=lambda i: (relevance[i], -i))]
    while len(chosen) < min(k, len(relevance)):

        def marginal(i: int) -> tuple[float, int]:
            nearest = max(float(sum(vectors[i] * vectors[j])) for j in chosen)
            return (1 - diversity) * float(relevance[i]) - diversity * nearest, -i

        chosen.append(max(set(range(len(relevance))) - set(chosen), key=marginal))
    return chosen


@given(candidates, st.integers(1, 14), st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.75, 1.0]))
def test_it_is_the_definition(pairs: list[tuple[int, int]], k: int, diversity: float) -> None:
    relevance, vectors = arrays(pairs)
    found = mmr(relevance, vectors, k, diversity)
    assert found.dtype == np.int64
    assert found.tolist() == by_definition(relevance, vectors, k, diversity)


@given(candidates)
def test_without_diversity_the_order_is_by_relevance(pairs: list[tuple[int, int]]) -> None:
    relevance, vectors = arrays(pairs)
    expected = np.argsort(-relevance, kind="stable")
    assert mmr(relevance, vectors, len(pairs), 0.0).tolist() == expected.tolist()


def test_random_rows_agree_with_the_definition() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, 32), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = vectors @ rng.standard_normal(32, dtype=np.float32)
    for diversity in (0.1, 0.5, 0.9):
        expected = by_definition(relevance, vectors, 20, diversity)
        assert mmr(relevance, vectors, 20, diversity).tolist() == expected


def test_a_copy_gives_way_to_something_else() -> None:
    vectors = _UNITS[[0, 0, 1]]
    relevance = np.array([0.9, 0.9, 0.5], dtype=np.float32)
    assert mmr(relevance, vectors, 2, 0.0).tolist() == [0, 1]
    assert mmr(relevance, vectors, 2, 0.5).tolist() == [0, 2]
    # With novelty alone, the opposite is farther than the merely unrelated.
    assert mmr(np.zeros(3, dtype=np.float32), _UNITS[[0, 1, 3]], 3, 1.0).tolist() == [0, 2, 1]


def test_no_candidates() -> None:
    empty = np.empty((0, 4), dtype=np.float32)
    assert mmr(empty[:, 0], empty, 5, 0.5).tolist() == []


@pytest.mark.parametrize(
    ("relevance", "rows", "k", "diversity", "message"),
    [
        ([0.5, 0.5], 3, 1, 0.5, r"got \(2,\) and \(3, 4\)"),
        ([0.5, np.nan, 0.5], 3, 1, 0.5, "must be finite"),
        ([0.5] * 3, 3, 0, 0.5, "k must be at least 1, got 0"),
        ([0.5] * 3, 3, 1, 1.5, "between 0 and 1, got 1.5"),
        ([0.5] * 3, 3, 1, float("nan"), "between 0 and 1, got nan"),
    ],
)
def test_refused(relevance: list[float], rows: int, k: int, diversity: float, message: str) -> None:
    with pytest.raises(VectorError, match=message):
        mmr(np.array(relevance, dtype=np.float32), _UNITS[:rows], k, diversity)
