"""The budget of threads, and searches that share it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.threads import ThreadBudget


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_many_callers_never_use_more_than_the_limit(limit: int) -> None:
    budget, used, lock = ThreadBudget(limit), [0, 0], threading.Lock()  # now, and at most

    def call(i: int) -> int:
        with budget.take(1 + i % 5) as taken:
            assert 1 <= taken <= 1 + i % 5
            with lock:
                used[:] = used[0] + taken, max(used[1], used[0] + taken)
            time.sleep(0.001)
            with lock:
                used[0] -= taken
        return taken

    with ThreadPoolExecutor(20) as pool:
        took = [*pool.map(call, range(200))]
    assert len(took) == 200
    assert used == [0, limit]  # all of the limit, and never more
    with budget.take(99) as rest:
        assert rest == limit  # all were given back


def test_single_queries_without_end_do_not_stop_a_batch() -> None:
    budget, ended = ThreadBudget(1), threading.Event()

    def single() -> None:
        while not ended.is_set():
            with budget.take(1):
                time.sleep(0.001)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(single)
        with budget.take(2) as taken:
            assert taken == 1
        ended.set()


@pytest.mark.parametrize("structure", ["flat", "ivf", "hnsw"])
def test_concurrent_searches_equal_serial_ones(
    tmp_path: Path, structure: str, thread_budget: ThreadBudget
) -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((20, 24))
    rows = centres[rng.integers(20, size=1300)] + 0.5 * rng.standard_normal((1300, 24))
    queries = [rng.standard_normal((count, 24)) for count in (1, 5, 70, 2) * 12]
    filters = (None, np.arange(200, 1300), np.arange(0, 1300, 2))  # searched, and scanned
    searches = [(some, 3 + i % 5, filters[i % 3]) for i, some in enumerate(queries)]
    config = SegmentConfig.from_dict({"structure": structure, "prefix": 12, "shortlist": 30})
    thread_budget.limit = 3
    with Segment.build(tmp_path / "s", rows, config) as segment:
        serial = [segment.search(some, k, allowed=allowed) for some, k, allowed in searches]
        with ThreadPoolExecutor(8) as pool:
            together = [
                *pool.map(lambda one: segment.search(one[0], one[1], None, one[2]), searches)
            ]
    for one, other in zip(serial, together, strict=True):
        np.testing.assert_array_equal(other.rows, one.rows)
        np.testing.assert_allclose(other.scores, one.scores, atol=1e-6)
