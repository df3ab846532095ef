"""Exact search by bounds: the same as a scan of everything, to the last bit."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.search import certificates as module
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import CoarseIndex, SearchResult, rerank
from searchengine.indexer.search.certificates import (
    Bounds,
    Rerank,
    _Code,
    _empty,
    _filtered,
    certify,
)
from searchengine.indexer.search.segment_files import open_coarse
from searchengine.indexer.storage.vectors_file import VectorFile, VectorWriter

MAPS = Path("/proc/self/maps")


@contextmanager
def written(rows: np.ndarray, storage: Storage) -> Iterator[tuple[VectorFile, CoarseIndex]]:
    """The rows as a vectors file, opened by numpy and by faiss."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors"
        with VectorWriter(path, rows.shape[1], storage) as writer:
            writer.append(rows)
            writer.seal()
        yield VectorFile(path, *rows.shape, storage), open_coarse(path)


def everything(
    store: VectorFile, queries: np.ndarray, k: int, allowed: np.ndarray | None
) -> SearchResult:
    rows = np.arange(store.rows) if allowed is None else allowed
    return rerank(store, queries, np.tile(rows, (len(queries), 1)), k)


def scored(store: VectorFile) -> Rerank:
    """Scores from the rows of a store."""
    return partial(rerank, store)


def falling(n: int, dim: int, seed: int = 0) -> np.ndarray:
    """Rows whose energy falls along the numbers, as after a rotation."""
    rng = np.random.default_rng(seed)
    return unit_rows(rng.standard_normal((n, dim)) * np.exp(-4 * np.arange(dim) / dim))


def axes(n: int, dim: int) -> np.ndarray:
    """Rows along single axes, in turn: almost all of them have nothing in a short prefix."""
    signs = np.where(np.arange(n) % 3, 1, -1)
    return (np.eye(dim)[np.arange(n) % dim] * signs[:, None]).astype(np.float32)


def signs(n: int, dim: int) -> np.ndarray:
    """Every number is at an end of its range, so every step of the code counts in full."""
    rng = np.random.default_rng(n)
    return unit_rows(rng.choice([-1.0, 1.0], (n, dim)))


def tiny_tails(n: int, dim: int) -> np.ndarray:
    rows = falling(n, dim)
    half = (dim + 1) // 2
    rows[:, half:] *= 1e-6
    rows[n // 2 :, half:] = 0
    return unit_rows(rows)


@given(st.data())
def test_equal_to_a_scan_of_everything(data: st.DataObject) -> None:
    n, dim, q = (data.draw(st.integers(1, most)) for most in (120, 40, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 9999)))
    width = data.draw(st.sampled_from([1, dim // 2 + 1, max(1, dim - 1), dim, min(29, dim)]))
    kind = data.draw(st.sampled_from([falling, axes, signs, tiny_tails]))
    rows = kind(n, dim)[rng.integers(0, n, n)]  # some rows twice, so scores tie
    queries = unit_rows(rng.standard_normal((q, dim)))
    queries[0] = rows[rng.integers(n)]
    k = data.draw(st.integers(1, n + 3))
    allowed = None
    if data.draw(st.booleans()):
        allowed = np.flatnonzero(rng.random(n) < rng.random())
    size = data.draw(st.integers(0, n))
    found = np.stack([rng.permutation(n) for _ in range(q)])[:, :size]
    found = np.where(rng.random(found.shape) < 0.1, -1, found)
    with written(rows, data.draw(st.sampled_from(Storage))) as (store, full):
        stored = store.take(slice(None))
        sample = stored[: data.draw(st.integers(1, n))]
        bounds = Bounds.build([stored[: n // 2], stored[n // 2 :]], width, sample)
        only = None if allowed is None else Allowed.from_rows(allowed, n)
        certified = certify(bounds, scored(store), full, queries, k, found, only)
        expected = everything(store, queries, k, allowed)
    np.testing.assert_array_equal(certified.rows, expected.rows)
    np.testing.assert_array_equal(certified.scores, expected.scores)
    assert certified.rows.dtype == np.int64 and certified.read.dtype == np.int64
    available = n if allowed is None else allowed.size
    assert (certified.read <= available).all()


@pytest.mark.parametrize("few", [0.0, 1.0], ids=["filtered by a scan", "gathered"])
@pytest.mark.parametrize("storage", Storage)
def test_many_rows_few_of_which_are_read(
    storage: Storage, few: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER_SHARE", few)
    rows = falling(5000, 96)
    rows[::7] = rows[1::7][: len(rows[::7])]
    queries = unit_rows(rows[:20] + 0.3 * falling(20, 96, seed=1))
    with written(rows, storage) as (store, full):
        bounds = Bounds.build(store.blocks(), 61, store.take(slice(0, 5000, 5)))
        expected = everything(store, queries, 10, None)
        certified = certify(bounds, scored(store), full, queries, 10, expected.rows)
        lazy = certify(bounds, scored(store), full, queries, 10, np.tile(np.arange(50), (20, 1)))
    for one in (certified, lazy):
        np.testing.assert_array_equal(one.rows, expected.rows)
        np.testing.assert_array_equal(one.scores, expected.scores)
    assert certified.read.max() < 250 < lazy.read.max()
    assert (certified.read <= lazy.read).all()


class Adverse:
    """A scan whose scores err as far as they may: the true best go down, the others go up."""

    def __init__(self, rows: np.ndarray, best: np.ndarray, slack: float) -> None:
        self._rows, self.rows = rows, len(rows)
        self._error = np.where(np.isin(np.arange(len(rows)), best), -slack, slack)
        self.index = self

    def search(self, query: np.ndarray, size: int, params: object) -> tuple[object, object]:
        scores = (self._rows @ query[0]).astype(np.float64) + 0.99 * self._error
        order = np.argsort(-scores, kind="stable")[:size]
        return scores[None, order], order[None]


@pytest.mark.parametrize("dim", [64, 768])
def test_a_scan_that_errs_as_far_as_it_may_loses_no_row(
    dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than a scan gives at first lie within its error behind the k-th best."""
    monkeypatch.setattr(module, "GATHER_SHARE", 0.0)
    k, slack = 5, module.score_slack(dim)
    steps = np.full(400, 0.5)
    steps[:k] += 1.5 * slack  # the best k; all others are less than two errors below them
    steps[k:] -= np.linspace(0, 0.2 * slack, 395)
    rows = np.zeros((400, dim), np.float32)
    rows[:, 0], rows[:, 1] = steps, np.sqrt(1 - steps**2)
    query = np.eye(1, dim, dtype=np.float32)
    expected = rerank(Rows(rows), query, np.arange(400)[None], k)
    full = Adverse(rows, expected.rows[0], slack)
    bounds = Bounds.build([rows], 29, rows)
    certified = certify(bounds, scored(Rows(rows)), full, query, k, np.arange(300, 310)[None])  # type: ignore[arg-type]
    np.testing.assert_array_equal(certified.rows, expected.rows)


@pytest.mark.parametrize("width", [1, 3, 29, 40])
@pytest.mark.parametrize("kind", [falling, axes, signs, tiny_tails])
def test_a_bound_is_never_below_the_score(kind: object, width: int) -> None:
    """Asked for its own score, every row is a candidate, whatever the ranges were made of."""
    rows = kind(60, 40)  # type: ignore[operator]
    queries = np.concatenate([axes(5, 40), signs(5, 40), falling(5, 40, seed=2), rows[:5]])
    store = Rows(rows)
    for sample in (rows, rows[:1]):
        bounds = Bounds.build([rows], width, sample)
        for row in range(len(rows)):
            scores = rerank(store, queries, np.full((len(queries), 1), row), 1).scores[:, 0]
            found = bounds.candidates(queries, scores)
            assert all(row in rows for rows in found)


class Rows:
    """Rows in memory."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.dim = rows.shape[1]

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self.rows[rows]


def test_weights_that_no_byte_holds_are_lent_to_every_row() -> None:
    """A wide query of which all but one number round to zero, against rows of utmost length."""
    rows = signs(200, 900)
    query = np.full((1, 900), 0.49)
    query[0, 0] = 127
    query = unit_rows(query * rows[0])
    bounds = Bounds.build([rows], 900, rows)
    scores = rerank(Rows(rows), query, np.arange(200)[None], 200)
    for row, score in zip(scores.rows[0], scores.scores[0], strict=True):
        assert row in bounds.candidates(query, np.array([score]))[0]


@pytest.mark.parametrize("width", [29, 32, 253, 900])
def test_faiss_multiplies_bytes_exactly(width: int) -> None:
    """Also at their ends, where a narrow accumulator would saturate."""
    rows = signs(64, width)
    rows[0] = np.abs(rows[0])
    rows[1] = -rows[0]
    bounds = Bounds.build([rows], width, rows)
    codes = bounds._code.encode(rows)[0].astype(np.float64) - 128
    assert np.abs(codes[:2, :width]).min() >= 127
    queries = np.full((2, width + 3), 127, np.float32) * [[1], [-1]]
    both = faiss.SearchParametersIVF(nprobe=2)
    scores, order = bounds._index.search(queries.astype(np.float32), 64, params=both)
    np.testing.assert_array_equal(scores, np.take_along_axis(queries @ codes.T, order, axis=1))
    assert order[:, 0].tolist() == [0, 1]


def test_ranges_far_from_zero_do_not_shift_the_products() -> None:
    """The middles are added once, in the limit, and not again by faiss as a centroid."""
    rows = unit_rows(1 + 0.1 * np.random.default_rng(0).standard_normal((64, 29)))
    bounds = Bounds.build([rows], 29, rows)
    assert (bounds._code.middle > 0.1).all()
    codes = bounds._code.encode(rows)[0].astype(np.float64) - 128
    query = np.full((1, 32), 127, np.float32)
    both = faiss.SearchParametersIVF(nprobe=2)
    scores, order = bounds._index.search(query, 64, params=both)
    np.testing.assert_array_equal(scores, np.take_along_axis(query @ codes.T, order, axis=1))


def hand_made(middle: float, unit: list[float]) -> _Code:
    """A code of one prefix dimension, whose steps are 1/128."""
    return _Code(np.array([[middle, 0, 0, 0], [2**-7, *unit]], np.float32))


def test_codes_by_hand() -> None:
    """A tail of 255.5 units is rounded up to 256, which a byte does not hold."""
    code = hand_made(0, [1, 2**-8, 1])
    rows = np.array([[0.5, 0], [0.5, 254.5 / 256], [0.5, 255.5 / 256]], np.float32)
    codes, fits = code.encode(rows)
    # The prefix is 64 steps; the length of the code is 64, and a billionth more.
    assert codes.tolist() == [[192, 0, 0, 65], [192, 0, 255, 65], [192, 0, 255, 65]]
    assert fits.tolist() == [True, True, False]


def test_the_limit_of_a_row_on_the_grid_by_hand() -> None:
    """Asked for its own score, the row passes by one grain and the one that the floor takes."""
    code = hand_made(0.25, [1e-30, 1, 65])
    codes, fits = code.encode(np.array([[0.75]], np.float32))
    assert codes.tolist() == [[192, 0, 0, 1]] and fits.all()  # 0.25 + 64 steps
    query, limit = code.bounding(np.array([1.0]), 0.75)
    # One step is 127 grains. The weight of what the code leaves out, nearly 0, is rounded up to 1.
    assert query.tolist() == [127, 1, 0, 0]
    assert query @ (codes[0].astype(np.float64) - 128) == 127 * 64 - 128 == 8000
    assert limit == 127 * 64 - 128 - 2  # 0.5 is 127 * 64 grains, less a billionth


def test_a_weight_beyond_a_byte_is_lent_by_hand() -> None:
    """The tail weighs 127 grains, rounded up to 128: 127 are in the query, 1 is lent."""
    query, limit = hand_made(0, [1, 127, 1]).bounding(np.array([0.0, 1.0]), 0.5)
    assert query.tolist() == [0, 0, 127, 0]
    lent = 128 * 127 + 255  # the 128 that the signed code is short of, and the longest length
    assert limit == -lent - 1  # half a grain, rounded down to 0, less 1


class Ranked:
    """A scan with these scores, best first. It notes how many rows each call asks for."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores, self.rows, self.index = scores[None], scores.size, self
        self.sizes: list[int] = []

    def search(self, query: np.ndarray, size: int, params: object) -> tuple[object, object]:
        self.sizes.append(size)
        return self.scores[:, :size], np.arange(size)[None]


def test_a_filter_ends_where_the_scores_are_further_apart_than_they_can_err() -> None:
    """Four times the slack, times the query's length: 4 * 0.01 * 2 = 0.08 behind the second."""
    query, rows = np.array([[2.0, 0]], np.float32), np.arange(100)
    scores = np.full(100, 0.9 - 0.09)
    scores[0], scores[1], scores[2:34] = 1, 0.9, 0.9 - 0.07
    full = Ranked(scores)
    assert _filtered(full, query, 2, rows, 0.01).tolist() == [*range(68)]  # type: ignore[arg-type]
    assert full.sizes == [34, 68]
    # Where the scores never part, all are taken; where no more are left to ask for, at once.
    full = Ranked(np.full(100, 0.9))
    assert _filtered(full, query, 2, rows, 0.01) is rows  # type: ignore[arg-type]
    assert full.sizes == [34, 68]
    full = Ranked(scores)
    assert _filtered(full, query, 2, rows[:34], 0.01).size == 34  # type: ignore[arg-type]
    assert full.sizes == []


def test_a_scan_asks_for_more_until_the_scores_are_far_enough_apart() -> None:
    """Four times the slack, 0.004; the first query's second-best row is only the 41st of it."""
    rows = np.zeros((200, 3), np.float32)
    rows[:, 0] = 0.496
    rows[0, 0], rows[1, 0], rows[2:34, 0], rows[40, 0] = 0.9, 0.5, 0.4975, 0.5005
    rows[0, 1], rows[1, 1] = 0.8, 0.3
    queries = np.eye(2, 3, dtype=np.float32)
    calls: list[tuple[int, int]] = []

    def shortlist(rotated: np.ndarray, size: int) -> np.ndarray:
        assert len(calls) < 9, "it asks for ever"
        calls.append((len(rotated), size))
        return np.tile(np.arange(size), (len(rotated), 1))

    best = module.scan(shortlist, Rows(rows), queries, 2, 200, 0.001)
    assert best.rows.tolist() == [[0, 40], [0, 1]]
    assert calls == [(2, 34), (1, 68)]
    calls.clear()
    few = module.scan(shortlist, Rows(rows[:20]), queries, 2, 20, 0.001)
    assert few.rows.tolist() == [[0, 1], [0, 1]]
    assert calls == [(2, 20)]


def test_what_is_read_counts_row_0_like_any_other() -> None:
    rows = np.eye(4, dtype=np.float32)
    bounds, allowed = Bounds.build([rows], 4, rows), Allowed.from_rows([0, 1, 2], 4)
    full = Ranked(np.zeros(4))
    for best, start, only, read in (
        (1, [0, 1], None, 2),  # the best row, and row 0 that was read to begin with
        (0, [0, 3], allowed, 1),  # row 3 is not read, for it is not allowed
        (0, [3, -1], allowed, 3),  # no row to begin with: all that are allowed
    ):
        query, found = rows[best : best + 1], np.array([start])
        certified = certify(bounds, scored(Rows(rows)), full, query, 1, found, only)  # type: ignore[arg-type]
        assert certified.rows.tolist() == [[best]]
        assert certified.read.tolist() == [read], (start, only)
    with pytest.raises(FrozenInstanceError):
        certified.read = np.zeros(1, np.int64)  # type: ignore[misc]


def test_only_many_candidates_are_filtered_by_a_scan() -> None:
    """More than one in 400 rows, two of 800."""
    rows = np.eye(2, dtype=np.float32)[np.minimum(np.arange(800), 1)]
    bounds, query = Bounds.build([rows], 2, rows), rows[:1]
    for start, sizes in ((0, []), (-1, [33])):
        full = Ranked(rows[:, 0])
        certified = certify(bounds, scored(Rows(rows)), full, query, 1, np.array([[start]]))  # type: ignore[arg-type]
        assert certified.rows.tolist() == [[0]]
        assert full.sizes == sizes


@pytest.mark.skipif(not MAPS.exists(), reason="there is no /proc/self/maps")
def test_an_opened_file_is_mapped(tmp_path: Path) -> None:
    rows = falling(500, 40)
    Bounds.build([rows], 29, rows).save(tmp_path / "bounds")
    bounds = Bounds.open(tmp_path / "bounds", 40)
    assert str(tmp_path / "bounds") in MAPS.read_text()
    assert bounds.rows == 500


def test_by_hand() -> None:
    """Prefix (0.6, 0) and (0, 0.6) with the same tail; the bound is the prefix's part + 0.64."""
    rows = np.array([[0.6, 0, 0.8, 0], [0, 0.6, 0, 0.8]], np.float32)
    bounds = Bounds.build([rows], 2, rows)
    query = rows[:1]
    for limit, expected in ((0.63, [0, 1]), (0.66, [0]), (0.999, [0]), (1.03, [])):
        (found,) = bounds.candidates(query, np.array([limit], np.float32))
        assert found.tolist() == expected, limit
    (found,) = bounds.candidates(query, np.array([-np.inf]), Allowed.from_rows([1], bounds.rows))
    assert found.tolist() == [1]


def test_rows_outside_the_sample_are_always_candidates() -> None:
    rows = np.tile(falling(1, 8), (50, 1))
    rows[7] = -rows[7]
    bounds = Bounds.build([rows], 4, rows[:3])
    (found,) = bounds.candidates(rows[:1], np.array([1.5], np.float32))
    assert found.tolist() == [7]
    (found,) = bounds.candidates(
        rows[:1], np.array([1.5], np.float32), Allowed.from_rows([3, 9], 50)
    )
    assert found.tolist() == []


def test_a_saved_file_bounds_the_same(tmp_path: Path) -> None:
    rows = falling(500, 40)
    rows[3] = np.eye(40)[39]  # outside the sample
    bounds = Bounds.build([rows], 29, rows[100:])
    bounds.save(tmp_path / "bounds")
    opened = Bounds.open(tmp_path / "bounds", 40)
    assert (opened.rows, opened.dim, opened.width) == (500, 40, 29)
    limits = np.full(5, 0.7, np.float32)
    before, after = (one.candidates(rows[:5], limits) for one in (bounds, opened))
    for ours, theirs in zip(before, after, strict=True):
        assert 0 < ours.size < 500
        np.testing.assert_array_equal(ours, theirs)


def test_errors(tmp_path: Path) -> None:
    rows = falling(10, 8)
    for width, sample in ((0, rows), (9, rows), (4, rows[:0]), (4, rows[0])):
        with pytest.raises(VectorError, match="bounds need a sample"):
            Bounds.build([rows], width, sample)
    for block in (rows[:, :5], 2 * rows, rows * np.nan):
        with pytest.raises(VectorError, match=r"rows \(n, 8\) of length one"):
            Bounds.build([block], 4, rows)
    with pytest.raises(VectorError, match="at least one row"):
        Bounds.build([], 4, rows)
    bounds = Bounds.build([rows], 4, rows)
    with pytest.raises(ValueError, match="shorter"):
        bounds.candidates(rows[:2], np.zeros(1, np.float32))
    with written(rows, Storage.FLOAT16) as (store, full):
        with pytest.raises(VectorError, match="k must be"):
            certify(bounds, scored(store), full, rows, 0, np.zeros((10, 1), np.int64))
        with pytest.raises(VectorError, match=r"queries must be \(q, 8\)"):
            certify(bounds, scored(store), full, rows[:, :4], 1, np.zeros((10, 1), np.int64))
    bounds.save(tmp_path / "bounds")
    with pytest.raises(SegmentError, match="no bounds of rows 3 wide"):
        Bounds.open(tmp_path / "bounds", 3)
    faiss.write_index(faiss.IndexFlatIP(8), str(tmp_path / "flat"))
    with pytest.raises(SegmentError, match="no bounds of rows 8 wide"):
        Bounds.open(tmp_path / "flat", 8)
    faiss.write_index(_empty(_Code(np.zeros((2, 3), np.float32))), str(tmp_path / "empty"))
    with pytest.raises(SegmentError, match="no bounds of rows 8 wide"):
        Bounds.open(tmp_path / "empty", 8)  # three lengths behind a prefix of no dimension
    with pytest.raises(SegmentError, match="faiss cannot read"):
        Bounds.open(tmp_path / "missing", 8)
    with pytest.raises(OSError, match="No such file or directory"):
        bounds.save(tmp_path / "no folder" / "bounds")
