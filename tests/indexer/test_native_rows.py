"""Scans and reranking by the compiled kernel, against numpy."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.config import Storage
from searchengine.indexer.native import library
from searchengine.indexer.search.cascade import NativeRows
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.storage.vectors import VectorFile
from searchengine.indexer.threads import ThreadBudget

LEVELS = library.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="the kernel is not compiled")


def native(rows: np.ndarray, level: int = 0) -> NativeRows:
    """Rows of float16 or float32, at an odd byte as in a vectors file."""
    memory = np.zeros(rows.nbytes + 1, np.uint8)
    memory[1:] = rows.reshape(-1).view(np.uint8)
    file = SimpleNamespace(
        rows=rows.shape[0],
        dim=rows.shape[1],
        storage=Storage(rows.dtype.name),
        address=memory.ctypes.data + 1,
        read_ahead=lambda _: None,
        memory=memory,
    )
    return NativeRows(cast(VectorFile, file), level)


def of_small_numbers(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> np.ndarray:
    """Whole numbers, whose products and sums are exact in any order: there are many ties."""
    return rng.integers(-2, 3, shape).astype(kind)


def best(scores: np.ndarray, allowed: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The oracle: the best k allowed rows by (-score, row), from all scores (q, n)."""
    order = allowed[np.lexsort((np.broadcast_to(allowed, (len(scores), allowed.size)),
                                -scores[:, allowed]), axis=1)[:, :k]]  # fmt: skip
    rows = np.full((len(scores), k), -1, np.int64)
    values = np.full((len(scores), k), -np.inf, np.float32)
    rows[:, : order.shape[1]] = order
    values[:, : order.shape[1]] = np.take_along_axis(scores, order, axis=1)
    return rows, values


def check(
    rows: np.ndarray, queries: np.ndarray, level: int, k: int, mask: np.ndarray, size: int
) -> None:
    """Compare scans for k rows, and k of `size` candidates, with those of numpy."""
    scores, allowed = queries @ rows.astype("float32").T, np.flatnonzero(mask)
    count, scanned, rng = len(rows), native(rows, level), np.random.default_rng(0)
    for found, wanted in (
        (scanned.best(queries, k), np.arange(count)),
        (scanned.best(queries, k, rows=allowed), allowed),
        (scanned.best(queries, k, mask=mask), allowed),
    ):
        for one, other in zip(found, best(scores, wanted, k), strict=True):
            np.testing.assert_array_equal(one, other)
    candidates = np.array([rng.permutation(count)[:size] for _ in queries])
    candidates[rng.random(candidates.shape) < 0.2] = -1
    found = scanned.rerank(queries, candidates, k)
    for i, line in enumerate(candidates):
        numbers = np.sort(line[line >= 0])
        for one, other in zip(found, best(scores[i : i + 1], numbers, k), strict=True):
            np.testing.assert_array_equal(one[i], other[0])


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize("kind", ["float16", "float32"])
@given(data=st.data())
def test_the_best_rows_and_candidates_are_those_of_numpy(
    level: int, kind: str, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999), label="seed"))
    count, dim = data.draw(st.integers(1, 300), label="rows"), data.draw(st.integers(1, 70))
    queries = of_small_numbers(rng, (data.draw(st.integers(1, 9)), dim), "float32")
    rows, k = of_small_numbers(rng, (count, dim), kind), data.draw(st.integers(1, count + 5))
    mask = rng.random(count) < data.draw(st.sampled_from([0.0, 0.05, 0.5, 1.0]), label="share")
    check(rows, queries, level, k, mask, data.draw(st.integers(1, count), label="candidates"))


@pytest.mark.parametrize("level", range(len(LEVELS)))
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_passes_and_threads_change_nothing(
    level: int, kind: str, thread_budget: ThreadBudget
) -> None:
    """So many rows, and so wide, that a scan takes several passes, each by three threads."""
    thread_budget.limit, rng = 3, np.random.default_rng(0)
    rows, queries = (of_small_numbers(rng, (n, 1200), kind) for n in (6000, 9))
    check(rows, queries.astype("float32"), level, 3000, rng.random(6000) < 0.5, 2000)


def test_a_score_depends_on_nothing_but_the_pair(
    tmp_path: Path, thread_budget: ThreadBudget
) -> None:
    """Alone, in a batch, as a candidate, under a filter, with other threads: the same bits."""
    thread_budget.limit, rng = 3, np.random.default_rng(3)
    vectors, queries = rng.standard_normal((6000, 1200)), rng.standard_normal((6, 1200))
    config = SegmentConfig(prefix=16, rotation="identity")  # a rotation rounds by the batch
    with Segment.build(tmp_path / "s", vectors, config) as segment:
        together = segment.exact(queries, 6000)
        for i in range(6):
            alone = segment.exact(queries[i : i + 1], 20, allowed=np.arange(0, 6000, 2))
            known = dict(zip(together.rows[i].tolist(), together.scores[i].tolist(), strict=True))
            for row, score in zip(alone.rows[0].tolist(), alone.scores[0].tolist(), strict=True):
                assert known[row] == score
            searched = segment.search(queries[i : i + 1], 20, shortlist=60)
            pairs = zip(searched.rows[0].tolist(), searched.scores[0].tolist(), strict=True)
            assert all(known[row] == score for row, score in pairs)
