"""The orthogonal turn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import prefix
from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.rotating import Rotation
from searchengine.indexer.storage.basis import (
    MIN_FACTORED,
    SPAN,
    completed,
    factored,
    pca,
)


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
    np.testing.assert_allclose(pca([rows[:100], rows[100:101], rows[101:]]), whole, atol=1e-4)
    largest = np.abs(whole).argmax(axis=0)
    assert (whole[largest, np.arange(16)] > 0).all()


def unit(rows: np.ndarray) -> np.ndarray:
    return prefix(rows, rows.shape[1])


@given(st.integers(1, 80), st.integers(2, 40), st.integers(0, 999))
def test_every_rotation_is_orthogonal_and_keeps_the_scores(n: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = unit((rng.standard_normal((n, dim)) * rng.exponential(1, dim)).astype(np.float32))
    turn = pca([rows[: n // 2], rows[n // 2 :]])
    assert turn.dtype == np.float32 and turn.shape == (dim, dim)
    np.testing.assert_allclose(turn.T @ turn, np.eye(dim), atol=1e-5)
    turned = rows @ turn
    np.testing.assert_allclose(turned @ turned.T, rows @ rows.T, atol=1e-5)
    applied = Rotation(turn)
    np.testing.assert_allclose(applied.apply(rows), turned, atol=2e-6)
    np.testing.assert_allclose(applied.apply(rows[:1]), turned[:1], atol=2e-6)
    for some in (rows, rows[:1], rows[:0], np.repeat(rows, 9, axis=0)):
        np.testing.assert_allclose(applied.undo(applied.apply(some)), some, atol=4e-6)


def test_no_rows_and_unequal_blocks_are_refused() -> None:
    with pytest.raises(VectorError, match="at least one row"):
        pca([])
    with pytest.raises(VectorError, match=r"must be \(n, 3\), got shape \(2, 4\)"):
        pca([np.ones((2, 3)), np.ones((2, 4))])


# --- a basis that is quick to apply -------------------------------------------------------------


def orthogonal(dim: int) -> np.ndarray:
    """A random rotation (D, D)."""
    drawn, _ = np.linalg.qr(np.random.default_rng(dim).standard_normal((dim, dim)))
    return drawn.astype(np.float32)


@pytest.mark.parametrize("dim", [MIN_FACTORED, 701, 768])
def test_a_completed_rotation_keeps_its_head_and_has_factors(dim: int) -> None:
    rotation = orthogonal(dim)
    whole = completed(rotation)
    np.testing.assert_array_equal(whole[:, :SPAN], rotation[:, :SPAN])
    np.testing.assert_allclose(whole.T @ whole, np.eye(dim), atol=2e-6)
    assert factored(np.ascontiguousarray(rotation.T)) is None
    factors = factored(np.ascontiguousarray(whole.T))
    assert factors is not None
    columns, inverse, signs = factors
    product = np.eye(dim) - columns.T @ inverse.T @ columns
    product[:, :SPAN] *= signs
    np.testing.assert_allclose(product, whole, atol=5e-6)
