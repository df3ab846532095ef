"""Rows that may be found: made once, the same answers as an array gives."""

from collections.abc import Iterator

import numpy as np
import pytest
from clustered import clustered

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.allowed import Allowed, restriction
from searchengine.indexer.segment import Segment, SegmentConfig

TOTAL, DIM = 2400, 24


ROWS, QUERIES = clustered(TOTAL, 0, DIM), clustered(25, 1, DIM)


@pytest.fixture(scope="module", params=["flat", "ivf", "hnsw"])
def segment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Segment]:
    settings = {"prefix": 8, "structure": request.param, "code": "int8", "shortlist": 40}
    path = tmp_path_factory.mktemp("allowed") / "s"
    with Segment.build(path, ROWS, SegmentConfig.from_dict(settings)) as result:
        yield result


def test_by_hand() -> None:
    for some in (Allowed.from_rows([0, 2, 3], 5), Allowed.without([1, 4], 5)):
        assert (some.size, some.total, some.share) == (3, 5, 0.6)
        assert some.rows.tolist() == [0, 2, 3] and some.rows.dtype == np.int64
        assert some.mask.tolist() == [True, False, True, True, False]
        assert repr(some) == "Allowed(3 of 5 rows)"
        assert [some.selector.is_member(i) for i in range(5)] == some.mask.tolist()
        for array in (some.rows, some.mask):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    assert Allowed.from_rows([], 5).size == 0 and Allowed.without([], 5).size == 5
    assert Allowed.without([], 5).selector is None  # nothing to ask of every row
    assert Allowed.without(range(5), 5).rows.tolist() == []


@pytest.mark.parametrize(
    "bad", [[2, 1], [1, 1], [-1, 2], [3, 10], [[1, 2]], [0.5], ["a"], [True, False]]
)
def test_what_is_no_rising_set_is_refused(bad: list[object]) -> None:
    for make in (Allowed.from_rows, Allowed.without):
        with pytest.raises(VectorError, match="allowed rows must"):
            make(bad, 10)  # type: ignore[arg-type]


def test_rows_of_another_segment_are_refused(segment: Segment) -> None:
    for use in (segment.search, segment.exact):
        with pytest.raises(VectorError, match="of a segment of 2400 rows, got 5 rows"):
            use(QUERIES, 3, allowed=Allowed.from_rows([1], 5))
    assert restriction(None, 5) is None


def sets() -> list[np.ndarray]:
    """From all but one row to none; with the whole neighbourhood of the first query left out."""
    rng = np.random.default_rng(3)
    near = np.argsort(-(ROWS / np.linalg.norm(ROWS, axis=1)[:, None] @ QUERIES[0]))
    some = [np.sort(rng.permutation(TOTAL)[:n]) for n in (2399, 2160, 1900, 1100, 200, 5, 0)]
    return [np.sort(near[n:]) for n in (1, 30, 300)] + some


def test_exact_search_is_exact_under_every_restriction(segment: Segment) -> None:
    stored, rotated = segment.take(np.arange(TOTAL)), unit_rows(QUERIES)
    scores = np.einsum("nd,qd->qn", stored, rotated)
    for numbers in sets():
        some = Allowed.from_rows(numbers, TOTAL)
        best = np.argsort(-scores[:, numbers], axis=1, kind="stable")[:, :10]
        found, dead = segment.exact(QUERIES, 10, some), np.setdiff1d(np.arange(TOTAL), numbers)
        one, other = (
            segment.search(QUERIES, 10, 60, each).rows
            for each in (numbers, Allowed.without(dead, TOTAL))
        )
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(found.rows[:, : best.shape[1]], numbers[best])
        kept = np.take_along_axis(scores[:, numbers], best, axis=1)
        np.testing.assert_allclose(found.scores[:, : best.shape[1]], kept, rtol=0, atol=1e-6)
        assert found.exact and np.isneginf(found.scores[:, best.shape[1] :]).all()
        if segment.config.structure == "flat":  # a scan of all codes, whatever is left out
            wide = segment.over(SegmentConfig.from_dict({"prefix": DIM}))
            near = wide.search(QUERIES, 10, 60, some)
            np.testing.assert_array_equal(near.rows, found.rows)
