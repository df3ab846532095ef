"""The order in which similar rows follow each other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import locality, prefix


def clustered(n: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((20, width))
    rows = centres[rng.integers(20, size=n)] + 0.3 * rng.standard_normal((n, width))
    return prefix(rows.astype(np.float32), width)


@given(st.integers(1, 90), st.integers(1, 40), st.integers(0, 99), st.integers(0, 90))
def test_it_is_a_permutation_whatever_the_blocks(n: int, width: int, seed: int, cut: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)
    order = locality([rows], rows)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == [*range(n)]
    np.testing.assert_array_equal(locality([rows[:cut], rows[cut:]], rows), order)


def test_equal_rows_stay_together_and_in_order() -> None:
    """Ten rows, each 30 times over, all with hashes of their own."""
    different = clustered(10, 24)
    order = locality([np.tile(different, (30, 1))], different)
    groups = order.reshape(10, 30)
    assert sorted(groups[:, 0].tolist()) == [*range(10)]
    assert (groups == groups[:, :1] + 10 * np.arange(30)).all()


def test_by_hand() -> None:
    """The medians of the second and third number are 1 and 1; the first number does not count."""
    rows = np.array([[9, 2, 2], [0, 0, 0], [7, 2, 0], [0, 0, 2], [1, 1, 1], [5, 2, 2]], np.float32)
    assert locality([rows], rows[:5]).tolist() == [1, 4, 3, 2, 0, 5]


def test_neighbours_in_the_order_are_near() -> None:
    rows = clustered(2000, 24)
    ordered = rows[locality([rows[:5], rows[5:]], rows[::3])]
    random = float(np.einsum("nd,nd->n", rows[1:], rows[:-1]).mean())
    near = float(np.einsum("nd,nd->n", ordered[1:], ordered[:-1]).mean())
    assert near > random + 0.4


def test_only_sixteen_numbers_count() -> None:
    """The second to the seventeenth: what comes after them leaves the order as it is."""
    rows = clustered(300, 40)
    changed = rows.copy()
    changed[:, 17:] = 0
    np.testing.assert_array_equal(locality([changed], changed), locality([rows], rows))
