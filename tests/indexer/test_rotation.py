"""The rotation that a prefix is made with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import prefix
from searchengine.indexer.errors import VectorError
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


def test_a_known_rotation_is_found() -> None:
    """Energy 9 along (1, 1)/sqrt 2 and 1 along (1, -1)/sqrt 2, worked out by hand."""
    s = 1 / np.sqrt(2)
    rows = np.array([[3 * s, 3 * s], [s, -s]], np.float32)
    np.testing.assert_allclose(np.abs(rotated(rows, pca([rows], 2))), [[3, 0], [0, 1]], atol=1e-6)


def test_no_rows_are_refused() -> None:
    for blocks in ([], [np.empty((0, 4), np.float32)]):
        with pytest.raises(VectorError, match="at least one row"):
            pca(blocks, 2)
    np.testing.assert_array_equal(
        pca([np.empty((0, DIM), np.float32), rows_of(3)], 5), pca([rows_of(3)], 5)
    )


def test_the_identity_cuts_and_nothing_else() -> None:
    rows = low_rank(30, 12, 3)
    np.testing.assert_array_equal(prefixes(rows, 5, None), prefix(rows, 5))


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
