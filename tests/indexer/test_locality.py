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


def test_neighbours_in_the_order_are_near() -> None:
    rows = clustered(2000, 24)
    ordered = rows[locality([rows[:5], rows[5:]], rows[::3])]
    random = float(np.einsum("nd,nd->n", rows[1:], rows[:-1]).mean())
    near = float(np.einsum("nd,nd->n", ordered[1:], ordered[:-1]).mean())
    assert near > random + 0.4
