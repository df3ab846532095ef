"""The rotation that a prefix is made with; prefixes: truncated and re-normalised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from searchengine.indexer.arrays import prefix
from searchengine.indexer.storage.rotation import pca, prefixes, rotated

DIM = 48


def low_rank(n: int, dim: int, rank: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, dim))
    return (rows + 0.01 * rng.standard_normal((n, dim))).astype(np.float32)


def rows_of(n: int) -> np.ndarray:
    """Rows whose energies along the principal directions are well apart."""
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, DIM)) * np.geomspace(1, 1e-2, DIM)
    return rows.astype(np.float32)


@given(st.integers(1, 80), st.integers(2, 40), st.data())
def test_directions_are_orthonormal_and_packed_by_energy(
    n: int, dim: int, data: st.DataObject
) -> None:
    width = data.draw(st.integers(1, dim))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    rows = (rng.standard_normal((n, dim)) * rng.exponential(1, dim)).astype(np.float32)
    matrix = pca([rows[: n // 2], rows[n // 2 :]], width)
    assert matrix.dtype == np.float32 and matrix.shape == (width, dim)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-5)
    energy = ((rows @ matrix.T) ** 2).sum(axis=0)
    assert (np.diff(energy) <= 1e-3 * energy[0]).all()
    best = np.linalg.svd(rows, compute_uv=False)[:width] ** 2
    np.testing.assert_allclose(energy.sum(), best.sum(), rtol=1e-3)
    np.testing.assert_allclose(rotated(rows, matrix), rows @ matrix.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 8, 9, 300])
def test_prefixes_of_equal_rows_are_equal_bit_for_bit_wherever_they_stand(n: int) -> None:
    """Otherwise equal documents would get different codes."""
    rows = low_rank(n, 64, 30)
    rows[n // 2 :] = rows[0]
    matrix = pca([rows], 16)
    found = prefixes(rows, 16, matrix)
    np.testing.assert_array_equal(found[n // 2 :], np.broadcast_to(found[0], (n - n // 2, 16)))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found, prefix(rows @ matrix.T, 16), atol=1e-5)


MATRICES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(4, 12)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def test_prefixes_by_hand() -> None:
    rows = np.array([[3, 4, 99], [0, -2, 7]], np.float32)
    assert prefix(rows, 2).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, -1]]
    assert prefix(rows, 1).tolist() == [[1], [0]]


@given(MATRICES, st.integers(1, 4))
def test_a_prefix_of_a_prefix_is_the_prefix(rows: np.ndarray, p: int) -> None:
    wider = prefix(rows, 4)
    # A tail that dwarfs the head may push the head below float32's smallest normal number.
    heads = np.linalg.norm(wider[:, :p].astype(np.float64), axis=1)
    kept = heads > 1e-30
    np.testing.assert_allclose(prefix(wider, p)[kept], prefix(rows, p)[kept], rtol=1e-5, atol=1e-6)


@given(MATRICES, st.integers(1, 4))
def test_rows_have_length_one_or_are_zero(rows: np.ndarray, p: int) -> None:
    cut = prefix(rows, p)
    lengths = np.linalg.norm(cut.astype(np.float64), axis=1)
    assert cut.dtype == np.float32
    np.testing.assert_allclose(lengths, (rows[:, :p] != 0).any(axis=1).astype(float), atol=1e-6)
