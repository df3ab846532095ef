"""The turn fitted on few rows: the same leading directions, found in the span of the rows."""

import numpy as np
import pytest

from searchengine.indexer.errors import VectorError
from searchengine.indexer.storage.basis import pca

DIM = 48


def rows_of(n: int) -> np.ndarray:
    """Rows whose energies along the principal directions are well apart."""
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, DIM)) * np.geomspace(1, 1e-2, DIM)
    return rows.astype(np.float32)


def eigenvectors(rows: np.ndarray) -> np.ndarray:
    """All eigenvectors of X^T X as the whole-width fit makes them, with products in X's dtype."""
    vectors = np.linalg.eigh((rows.T @ rows).astype(np.float64))[1][:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    return (vectors * np.sign(vectors[largest, np.arange(len(vectors))])).astype(np.float32)


@pytest.mark.parametrize("n", [1, 2, 7, 24])
def test_few_rows_have_the_leading_eigenvectors(n: int) -> None:
    turn = pca([rows_of(n)])
    np.testing.assert_allclose(
        turn[:, :n], eigenvectors(rows_of(n).astype(np.float64))[:, :n], atol=1e-5
    )
    np.testing.assert_allclose(turn.T @ turn, np.eye(DIM), atol=1e-6)
    largest = np.abs(turn).argmax(axis=0)
    assert (turn[largest, np.arange(DIM)] > 0).all()
    np.testing.assert_array_equal(pca([rows_of(n)]), turn)


@pytest.mark.parametrize("n", [25, 47, 48, 200])
def test_from_half_the_width_on_the_fit_is_the_whole_width_one_bit_for_bit(n: int) -> None:
    rows = rows_of(n)
    np.testing.assert_array_equal(pca([rows]), eigenvectors(rows))
    gram = np.zeros((DIM, DIM))
    for block in np.array_split(rows, 5):
        gram += block.T @ block  # rows of float32: the sum alone is float64
    root = np.linalg.eigh(gram)[1][:, ::-1]
    largest = np.abs(root).argmax(axis=0)
    expected = root * np.sign(root[largest, np.arange(DIM)])
    np.testing.assert_array_equal(pca(np.array_split(rows, 5)), expected.astype(np.float32))


@pytest.mark.parametrize("n", [1, 5, 24])
def test_rows_that_repeat_are_no_trouble(n: int) -> None:
    rows = np.repeat(rows_of(1), n, axis=0)
    turn = pca([rows])
    np.testing.assert_allclose(turn.T @ turn, np.eye(DIM), atol=1e-6)
    np.testing.assert_allclose(np.abs(rows @ turn)[:, 1:], 0, atol=1e-5)


def test_blocks_of_no_rows_are_no_rows() -> None:
    with pytest.raises(VectorError, match="at least one row"):
        pca([np.empty((0, 4))])
    np.testing.assert_array_equal(pca([np.empty((0, DIM)), rows_of(3)]), pca([rows_of(3)]))
