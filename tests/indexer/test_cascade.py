"""Shortlist and scores in one native call, against the two steps that can be looked at."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clustered import clustered, overlap

from searchengine.indexer.arrays import prefix, unit_rows
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.native.library import faiss
from searchengine.indexer.search import scoring
from searchengine.indexer.search.cascade import merge
from searchengine.indexer.search.scoring import SearchResult, rerank
from searchengine.indexer.segment import Segment, SegmentConfig

DIM = 48
ROWS = 2500
WALKED = ["ivf", "hnsw"]


QUERIES = clustered(150, 1, DIM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cascade")


def build(folder: Path, structure: str, rows: np.ndarray, **more: object) -> Segment:
    settings = {"prefix": 12, "structure": structure, "code": "int8", "shortlist": 40} | more
    return Segment.build(folder, rows, SegmentConfig.from_dict(settings))


@pytest.fixture(scope="module", params=["flat", *WALKED, "hnsw on faiss"])
def segment(request: pytest.FixtureRequest, folder: Path) -> Iterator[Segment]:
    structure, _, kernel = request.param.partition(" on ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEARCHENGINE_KERNEL", kernel or "native")
        with build(folder / request.param, structure, clustered(ROWS, 0, DIM)) as result:
            yield result


@pytest.fixture(scope="module")
def flat(folder: Path) -> Segment:
    return build(folder / "its-own-flat", "flat", clustered(ROWS, 0, DIM))


@pytest.fixture(scope="module")
def graph(folder: Path) -> Segment:
    return build(folder / "its-own-graph", "hnsw", clustered(ROWS, 0, DIM))


@pytest.fixture(params=[1, scoring.LOCALITY_BATCH - 1, scoring.LOCALITY_BATCH, 150])
def queries(request: pytest.FixtureRequest) -> np.ndarray:
    return QUERIES[: request.param]


def two_steps(
    segment: Segment, queries: np.ndarray, k: int, size: int, allowed: np.ndarray | None = None
) -> SearchResult:
    rotated = unit_rows(queries)
    return segment.rerank(rotated, segment.shortlist(rotated, size, allowed), k)


def check(found: SearchResult, expected: SearchResult) -> None:
    """faiss and numpy add up in another order: scores agree to rounding, and so do the rows."""
    assert (np.diff(found.scores, axis=1) <= 0).all()
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
    assert np.mean(found.rows == expected.rows) > 0.999


# --- one call and two steps --------------------------------------------------------------------


def test_a_batch_is_its_queries_one_by_one(segment: Segment) -> None:
    """Also where similar queries are searched after each other: each gets its own answer."""
    many = segment.search(QUERIES, 5)
    assert len(QUERIES) > scoring.LOCALITY_BATCH
    alone = [segment.search(query[None], 5) for query in QUERIES]
    np.testing.assert_array_equal(many.rows, np.concatenate([one.rows for one in alone]))
    np.testing.assert_allclose(
        many.scores, np.concatenate([one.scores for one in alone]), atol=1e-6
    )


def test_changing_operating_points_are_not_mixed_up(segment: Segment) -> None:
    """Parameters are kept between searches: each search still gets its own."""
    points = [(k, size) for k in (1, 2, 5) for size in (5, 300, *range(6, 40))]
    first = [segment.search(QUERIES[:2], k, size) for k, size in points]
    again = [segment.search(QUERIES[:2], k, size) for k, size in points[::-1]][::-1]
    for (k, size), one, other in zip(points, first, again, strict=True):
        assert one.rows.shape == (2, k)
        np.testing.assert_array_equal(one.rows, other.rows)
        check(one, two_steps(segment, QUERIES[:2], k, size))


def test_a_shortlist_of_all_rows_is_exact_search(segment: Segment, queries: np.ndarray) -> None:
    exact = segment.exact(queries, 10)
    for size in (ROWS, ROWS + 1):
        found = segment.search(queries, 10, size)
        np.testing.assert_array_equal(found.rows, exact.rows)
        # Each rotates the queries again, which other threads may round differently.
        np.testing.assert_allclose(found.scores, exact.scores, atol=1e-6)
        assert found.exact
    # One row less is searched; on clustered data little is lost by lists and graphs.
    near = segment.search(queries, 10, ROWS - 1)
    assert overlap(near.rows, exact.rows) > 0.98


@pytest.mark.parametrize("structure", ["flat", *WALKED])
def test_equal_rows_score_alike_and_come_in_row_order(folder: Path, structure: str) -> None:
    """Every row is there eight times: every place but the eighth is a tie."""
    different = clustered(150, 3, DIM)
    rows = np.tile(different, (8, 1))
    with build(folder / f"ties-{structure}", structure, rows, storage="float32") as segment:
        for k in (5, 8, 16):
            found = segment.search(QUERIES[:80], k, 40)
            check(found, two_steps(segment, QUERIES[:80], k, 40))
            steps = np.diff(found.scores, axis=1)
            assert (steps == 0).mean() > 0.5
            assert (np.diff(found.rows, axis=1)[steps == 0] > 0).all()
            equal = found.rows[:, 1:] % 150 == found.rows[:, :-1] % 150
            assert (steps[equal] == 0).all()


@pytest.mark.parametrize("structure", ["ivf", "hnsw"])
def test_a_walk_that_strands_is_completed(folder: Path, structure: str) -> None:
    """Two distant groups and a filter that hides the whole of the queries' own."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(2, DIM), 1500, axis=0)
    rows = (groups + 0.01 * rng.standard_normal((3000, DIM))).astype(np.float32)
    allowed = np.arange(1500, 3000)
    with build(folder / f"stranded-{structure}", structure, rows, effort=1) as segment:
        for k in (10, 200):
            found = segment.search(rows[:70], k, 200, allowed)
            assert np.isin(found.rows, allowed).all()
            assert all(len({*line}) == k for line in found.rows)
            assert np.isfinite(found.scores).all()


class Store:
    """Rows in memory."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.dim = rows.astype(np.float32), rows.shape[1]

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self.rows[rows]


def test_scores_of_a_shortlist_by_hand() -> None:
    store = Store(np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]]))
    queries = np.array([[1, 0], [0, 1]], np.float32)
    found = rerank(store, queries, np.array([[3, 0, 2, -1], [-1, 1, -1, 2]]), 3)
    assert found.rows.tolist() == [[0, 3, 2], [1, 2, -1]]
    np.testing.assert_array_equal(
        found.scores, np.array([[1, 0.8, 0.6], [1, 0.8, -np.inf]], np.float32)
    )
    assert found.rows.dtype == np.int64 and found.scores.dtype == np.float32


def test_a_tie_is_completed_whichever_of_its_rows_a_search_keeps() -> None:
    rows, scores = np.array([[9, 8, 7, 6, 5, 1]]), np.array([[3, 2, 2, 2, 2, 1]], np.float32)
    search = lambda _, size: (scores[:, :size], rows[:, :size])  # noqa: E731
    for size in (2, 3, 6):
        found = scoring.ordered(search, np.ones((1, 2), np.float32), size, 6)
        assert found[1].tolist() == [[9, 5, 6, 7, 8, 1][:size]]


def test_merging_numbers_rows_from_their_bases() -> None:
    first = SearchResult(np.array([[4, 0, -1]]), np.array([[0.9, 0.5, -np.inf]], np.float32))
    second = SearchResult(np.array([[2, 1]]), np.array([[0.9, 0.7]], np.float32))
    both = merge([first, second], [0, 100], 5)
    assert both.rows.tolist() == [[4, 102, 101, 0, -1]]
    np.testing.assert_array_equal(
        both.scores, np.array([[0.9, 0.9, 0.7, 0.5, -np.inf]], np.float32)
    )
    assert merge([second, first], [100, 0], 2).rows.tolist() == [[4, 102]]
    exact = replace(first, exact=True)
    assert merge([exact, exact], [0, 10], 1).exact and not merge([exact, second], [0, 10], 1).exact
    with pytest.raises(VectorError, match="1 results with 2 bases"):
        merge([first], [0, 1], 3)


# --- filters -----------------------------------------------------------------------------------


@pytest.fixture(params=[1000, 0], ids=["few are scored", "all are searched"])
def exact_below(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments reach walks and scans under a filter only if few rows are not just scored."""
    monkeypatch.setattr("searchengine.indexer.search.cascade.EXACT_ALLOWED", request.param)
    if not request.param:
        monkeypatch.setattr("searchengine.indexer.search.cascade.SCANNED_PER_CANDIDATE", 0)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01, 0.001])
def test_a_filter_is_exact_and_costs_no_recall(
    segment: Segment, exact_below: None, share: float
) -> None:
    unfiltered = overlap(segment.search(QUERIES, 10).rows, segment.exact(QUERIES, 10).rows)
    assert unfiltered > 0.95
    rng = np.random.default_rng(5)
    allowed = np.sort(rng.choice(ROWS, round(share * ROWS), replace=False))
    found, exact = (
        search(QUERIES, 10, allowed=allowed) for search in (segment.search, segment.exact)
    )
    count = min(10, allowed.size)
    assert np.isin(found.rows[:, :count], allowed).all()
    assert all(len({*line[:count]}) == count for line in found.rows)
    assert (found.rows[:, count:] == -1).all() and np.isneginf(found.scores[:, count:]).all()
    assert overlap(found.rows[:, :count], exact.rows[:, :count]) >= unfiltered - 0.01
    truth = np.einsum(
        "qd,qkd->qk", unit_rows(QUERIES), segment._opened().file.take(found.rows[:, :count])
    )
    np.testing.assert_allclose(found.scores[:, :count], truth, atol=1e-6)


# --- funnels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [((24, 30),), ((16, 35), (24, 20), (36, 12))], ids=str)
@pytest.mark.parametrize("k", [5, 25])
def test_a_funnel_is_numpys(flat: Segment, stages: tuple[tuple[int, int], ...], k: int) -> None:
    """Oracle: widening prefixes as the encoder gave them, one query at a time, in float64."""
    settings = flat.config.as_dict() | {"code": "fp16", "stages": stages}
    found = flat.over(SegmentConfig.from_dict(settings)).search(QUERIES, k)
    stored, matrix = flat.vectors(np.arange(ROWS)), np.load(flat.path / "rotation.npy")
    heads = prefix(stored @ matrix.T, 12).astype(np.float16).astype(np.float64)
    for line, query in zip(found.rows, unit_rows(QUERIES).astype(np.float64), strict=True):
        left = np.argsort(-(heads @ (matrix @ query)), kind="stable")[: max(k, 40)]
        for width, keep in stages:
            scores = prefix(stored[left], width) @ query[:width]
            left = left[np.argsort(-scores, kind="stable")[: max(k, keep)]]
        best = left[np.argsort(-(stored[left] @ query), kind="stable")[:k]]
        assert line.tolist() == best.tolist()


# --- on a GPU, and the error without one ----------------------------------------------------------


GPU_ROWS = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float32)
GPU_QUERIES = np.random.default_rng(1).standard_normal((70, 32)).astype(np.float32)
THERE = bool(faiss.get_num_gpus())


@pytest.mark.skipif(THERE, reason="there is a GPU here")
def test_without_a_gpu_the_device_is_refused_in_one_sentence(tmp_path: Path) -> None:
    Segment.build(tmp_path / "s", GPU_ROWS, SegmentConfig(prefix=8)).close()
    with pytest.raises(SegmentError, match=r"GPU.*(leave out the device|search on the CPU)"):
        Segment.open(tmp_path / "s", device="gpu")


@pytest.mark.skipif(not THERE, reason="faiss sees no GPU here")
@pytest.mark.parametrize("structure", ["flat", "hnsw"])
def test_a_gpu_finds_what_the_cpu_finds(tmp_path: Path, structure: str) -> None:
    config = SegmentConfig.from_dict({"prefix": 8, "structure": structure, "shortlist": 200})
    with Segment.build(tmp_path / "s", GPU_ROWS, config) as cpu:
        with Segment.open(tmp_path / "s", device="gpu") as gpu:
            for queries in (GPU_QUERIES, GPU_QUERIES[:1]):
                exact = gpu.exact(queries, 10)
                np.testing.assert_array_equal(exact.rows, cpu.exact(queries, 10).rows)
                found, expected = gpu.search(queries, 10), cpu.search(queries, 10)
                assert (found.rows == expected.rows).mean() > 0.99
                np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
            some = np.arange(0, 3000, 2)
            filtered = gpu.search(GPU_QUERIES, 10, allowed=some)
            np.testing.assert_array_equal(
                filtered.rows, cpu.search(GPU_QUERIES, 10, allowed=some).rows
            )
