"""The orthogonal turn."""

import numpy as np
import pytest

from indexer.errors import VectorError
from indexer.rotation import identity, pca


def low_rank(n: int, dim: int, rank: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, dim))
    return (rows + 0.01 * rng.standard_normal((n, dim))).astype(np.float32)


@pytest.mark.parametrize("n", [3, 500])
def test_the_turn_is_orthogonal_also_with_fewer_rows_than_dimensions(n: int) -> None:
    turn = pca([low_rank(n, 40, 5)])
    assert turn.dtype == np.float32
    np.testing.assert_allclose(turn.T @ turn, np.eye(40), atol=1e-5)


def test_full_width_scores_stay() -> None:
    rows = low_rank(200, 32, 6)
    turned = rows @ pca([rows])
    np.testing.assert_allclose(turned @ turned.T, rows @ rows.T, rtol=1e-4, atol=1e-4)


def test_a_known_basis_is_found() -> None:
    """Energy 9 along (1, 1)/sqrt 2 and 1 along (1, -1)/sqrt 2, worked out by hand."""
    s = 1 / np.sqrt(2)
    rows = np.array([[3 * s, 3 * s], [s, -s]], np.float32)
    turned = rows @ pca([rows])
    np.testing.assert_allclose(np.abs(turned), [[3, 0], [0, 1]], atol=1e-6)


def test_the_energy_is_packed_in_front_and_falls() -> None:
    rows = low_rank(300, 48, 4)
    energy = ((rows @ pca([rows])) ** 2).sum(axis=0)
    assert (np.diff(energy) <= 1e-3 * energy[0]).all()
    assert energy[:4].sum() > 0.99 * energy.sum()
    assert (rows[:, :4] ** 2).sum() < 0.5 * energy.sum()


def test_blocks_and_repetition_give_the_same_turn() -> None:
    rows = low_rank(300, 16, 16)
    whole = pca([rows])
    np.testing.assert_array_equal(pca([rows]), whole)
    np.testing.assert_allclose(pca([rows[:100], rows[100:101], rows[101:]]), whole, atol=1e-5)
    largest = np.abs(whole).argmax(axis=0)
    assert (whole[largest, np.arange(16)] > 0).all()


def test_identity() -> None:
    assert identity(3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_no_rows_and_unequal_blocks_are_refused() -> None:
    with pytest.raises(VectorError, match="no rows"):
        pca([])
    with pytest.raises(VectorError, match=r"must be \(n, 3\), got shape \(2, 4\)"):
        pca([np.ones((2, 3)), np.ones((2, 4))])
