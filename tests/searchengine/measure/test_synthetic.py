"""The benchmark's source of vectors: reproducible, and shaped as its settings say."""

from dataclasses import replace

import numpy as np
from vectors import BLOCK_ROWS, Synthetic

from searchengine.indexer.storage.rotation import pca

SMALL = Synthetic(dim=48, knee=20.0)


def rows_of(source: Synthetic, rows: int) -> np.ndarray:
    return np.concatenate(list(source.blocks(rows)))


def test_blocks_are_float32_unit_rows_of_the_requested_number() -> None:
    shapes = [(block.dtype, block.shape) for block in SMALL.blocks(BLOCK_ROWS + 5)]
    assert shapes == [(np.float32, (BLOCK_ROWS, 48)), (np.float32, (5, 48))]
    np.testing.assert_allclose(np.linalg.norm(rows_of(SMALL, 100), axis=1), 1, atol=1e-6)
    assert list(SMALL.blocks(0)) == []


def test_the_first_rows_of_many_are_the_few() -> None:
    many = rows_of(SMALL, BLOCK_ROWS + 200)
    np.testing.assert_array_equal(rows_of(SMALL, 100), many[:100])
    np.testing.assert_array_equal(rows_of(SMALL, BLOCK_ROWS + 1), many[: BLOCK_ROWS + 1])
    assert not np.array_equal(many[:200], many[BLOCK_ROWS:])


def test_queries_are_reproducible_of_the_same_clusters_and_no_rows() -> None:
    rows, queries = rows_of(SMALL, BLOCK_ROWS), SMALL.queries(50)
    np.testing.assert_array_equal(SMALL.queries(7), queries[:7])
    nearest = (queries @ rows.T).max(axis=1)
    strangers = (replace(SMALL, seed=1).queries(50) @ rows.T).max(axis=1)
    assert nearest.max() < 0.9999
    assert np.median(nearest) > np.median(strangers) + 0.1


def test_the_energies_are_those_of_the_formula() -> None:
    """Without clusters and differing lengths the components are independent normal numbers."""
    source = Synthetic(
        dim=128, common=0.0, exponent=0.3, knee=40.0, fall=4.0, levels=(), spread=(0.0, 0.0)
    )
    rows = rows_of(source, BLOCK_ROWS)
    found = np.linalg.eigvalsh(rows.T @ rows / len(rows))[:0:-1]
    j = np.arange(1, 128)
    expected = j**-0.3 / (1 + (j / 40) ** 4)
    np.testing.assert_allclose(found.cumsum(), (expected / expected.sum()).cumsum(), atol=0.02)


def shared(source: Synthetic) -> np.ndarray:
    """What queries share with their nearest row: of the leading 8 components, and of the rest."""
    rows, queries = rows_of(source, 4000), source.queries(500)
    turn = pca([rows], rows.shape[1]).T
    rows, queries = rows @ turn, queries @ turn
    nearest = rows[(queries @ rows.T).argmax(axis=1)]
    products = (queries * nearest).mean(axis=0) / (rows**2).mean(axis=0)
    return np.array([products[1:9].mean(), products[9:].mean()])


def test_coarse_clusters_lie_in_the_leading_components() -> None:
    """The defaults against levels that share every component alike."""
    level = replace(SMALL, levels=tuple((weight, 0.0) for weight, _ in SMALL.levels))
    lead, rest = shared(SMALL) / shared(level)
    assert lead > rest + 0.1
