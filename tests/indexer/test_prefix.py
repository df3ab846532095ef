"""prefix: truncate and re-normalise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from searchengine.indexer.arrays import prefix
from searchengine.indexer.errors import VectorError

ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(4, 12)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def test_known_values() -> None:
    rows = np.array([[3, 4, 99], [0, -2, 7]], np.float32)
    assert prefix(rows, 2).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, -1]]
    assert prefix(rows, 1).tolist() == [[1], [0]]


@given(ROWS, st.integers(1, 4))
def test_a_prefix_of_a_prefix_is_the_prefix(rows: np.ndarray, p: int) -> None:
    wider = prefix(rows, 4)
    # A tail that dwarfs the head may push the head below float32's smallest normal number.
    heads = np.linalg.norm(wider[:, :p].astype(np.float64), axis=1)
    kept = heads > 1e-30
    np.testing.assert_allclose(prefix(wider, p)[kept], prefix(rows, p)[kept], rtol=1e-5, atol=1e-6)


@given(ROWS, st.integers(1, 4))
def test_rows_have_length_one_or_are_zero(rows: np.ndarray, p: int) -> None:
    cut = prefix(rows, p)
    lengths = np.linalg.norm(cut.astype(np.float64), axis=1)
    assert cut.dtype == np.float32
    np.testing.assert_allclose(lengths, (rows[:, :p] != 0).any(axis=1).astype(float), atol=1e-6)


@pytest.mark.parametrize("p", [0, 4, -1])
def test_an_impossible_prefix_is_refused(p: int) -> None:
    with pytest.raises(VectorError, match=rf"prefix of {p} from rows of shape \(2, 3\)"):
        prefix(np.ones((2, 3), np.float32), p)


def test_a_single_vector_is_refused() -> None:
    with pytest.raises(VectorError, match="shape"):
        prefix(np.ones(3, np.float32), 2)
