"""The compiled kernel against numpy and faiss: walks, threads, lifetimes, damaged graphs."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_cases import Case, clustered, small_segment, work

from searchengine.indexer.errors import SegmentError
from searchengine.indexer.native import library
from searchengine.indexer.native.hnsw import NativeGraph, NodeFilter
from searchengine.indexer.search.cascade import NativeCascade
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment
from searchengine.indexer.threads import ThreadBudget

LEVELS = library.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="the kernel is not compiled")


# --- one graph, searched by the kernel, by numpy and by faiss -----------------------------------


def quantized(case: Case, query: np.ndarray) -> np.ndarray:
    """A query in 8 bits, as the kernel has it."""
    graph = faiss.downcast_index(case.index.index)
    trained = faiss.vector_to_array(faiss.downcast_index(graph.storage).sq.trained)
    scales = (trained[case.coarse.width :] / np.float32(255)).astype(np.float32)
    weights = query[: case.coarse.width] * scales
    largest = np.abs(weights).max()
    step = np.float32(127) / largest if largest > 0 else np.float32(0)
    return np.clip(np.rint(weights * step), -127, 127).astype(np.int64)


def by_numpy(case: Case, query: np.ndarray, size: int, rows: np.ndarray) -> np.ndarray:
    """The `size` best of `rows` by (-coarse score, node)."""
    ids, scores = faiss.vector_to_array(case.index.id_map), code_scores_of(case, query)
    nodes = np.flatnonzero(np.isin(ids, rows))
    return ids[nodes[np.argsort(-scores[nodes], kind="stable")[:size]]]


@given(
    rows=st.integers(1, 120),
    dim=st.integers(2, 80),
    data=st.data(),
    storage=st.sampled_from(["float16", "float32"]),
    seed=st.integers(0, 1000),
)
def test_a_wide_walk_is_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    dim: int,
    data: st.DataObject,
    storage: str,
    seed: int,
) -> None:
    """With ef_search of all rows, a walk visits every node in its reach."""
    rng = np.random.default_rng(seed)
    width = data.draw(st.integers(1, dim), label="width")
    distinct = clustered(rng, data.draw(st.integers(1, rows), label="distinct"), dim)
    vectors = distinct[rng.integers(len(distinct), size=rows)]
    case = Case(tmp_path_factory.mktemp("case"), vectors, width, storage)
    size = data.draw(st.integers(1, rows), label="shortlist")
    k = data.draw(st.integers(1, size), label="k")
    queries = np.ascontiguousarray(clustered(rng, data.draw(st.integers(1, 9)), dim))
    results = []
    reached = [reachable(case, query) for query in queries]
    for level in range(len(LEVELS)):
        graph = case.graph(level)
        check_scan(graph, case, queries, k, size, rng)
        order = rng.permutation(len(queries))
        found, scores, short = graph.search(queries, k, size, rows, None, order)
        shortlists, _, _ = graph.search(queries, size, size, rows, reranked=False)
        assert short == any(rows.size < k for rows in reached)
        results.append((found, scores, shortlists))
    for i, query in enumerate(queries):
        expected = by_numpy(case, query, size, reached[i])
        for found, scores, shortlists in results:
            count = len(expected)
            np.testing.assert_array_equal(shortlists[i, :count], expected)
            assert (shortlists[i, count:] == -1).all()
            np.testing.assert_array_equal(found[i], results[0][0][i])
            np.testing.assert_array_equal(scores[i], results[0][1][i])
            check_reranked(case, query, expected, found[i], scores[i])


def check_reranked(
    case: Case, query: np.ndarray, candidates: np.ndarray, rows: np.ndarray, scores: np.ndarray
) -> None:
    """Rows and scores (k,) are the best candidates by (-score, row), and padding."""
    full, kept = case.stored @ query, min(len(rows), len(candidates))
    assert {*rows[:kept]} <= {*candidates}
    assert (rows[kept:] == -1).all() and np.isneginf(scores[kept:]).all()
    np.testing.assert_allclose(scores[:kept], full[rows[:kept]], atol=1e-6)
    best = np.sort(full[candidates])[::-1][:kept]
    np.testing.assert_allclose(scores[:kept], best, atol=1e-6)
    steps = np.diff(scores[:kept])
    assert (steps <= 0).all()
    assert (np.diff(rows[:kept])[steps == 0] > 0).all()


def check_scan(
    graph: NativeGraph,
    case: Case,
    queries: np.ndarray,
    k: int,
    size: int,
    rng: np.random.Generator,
) -> None:
    """A scan of some of the rows scores all of them, and follows no link."""
    allowed = np.flatnonzero(rng.random(len(case.stored)) < rng.random())
    nodes = graph.nodes_of(allowed)
    found, scores = graph.scan(queries, k, size, nodes)
    shortlists, _ = graph.scan(queries, size, size, nodes, reranked=False)
    assert work(graph) == (2 * len(queries) * allowed.size, 0)
    for i, query in enumerate(queries):
        expected = by_numpy(case, query, size, allowed)
        np.testing.assert_array_equal(shortlists[i, : len(expected)], expected)
        assert (shortlists[i, len(expected) :] == -1).all()
        check_reranked(case, query, expected, found[i], scores[i])


def code_scores_of(case: Case, query: np.ndarray) -> np.ndarray:
    """The coarse scores of all nodes."""
    storage = faiss.downcast_index(faiss.downcast_index(case.index.index).storage)
    codes = faiss.vector_to_array(storage.codes).reshape(-1, case.coarse.width)
    return codes.astype(np.int64) @ quantized(case, query)


class Links:
    """The links of a case's graph, and the nodes that a walk begins with."""

    def __init__(self, case: Case) -> None:
        self.hnsw = faiss.downcast_index(case.index.index).hnsw
        self.starts = faiss.vector_to_array(self.hnsw.cum_nneighbor_per_level)
        self.offsets = faiss.vector_to_array(self.hnsw.offsets).astype(np.int64)
        self.neighbors = faiss.vector_to_array(self.hnsw.neighbors)
        self.ids = faiss.vector_to_array(case.index.id_map)

    def of(self, node: int, level: int = 0) -> np.ndarray:
        first = self.offsets[node]
        nodes = self.neighbors[first + self.starts[level] : first + self.starts[level + 1]]
        return nodes[nodes >= 0]

    def entries(self, scores: np.ndarray) -> list[int]:
        """The best four of nodes that are spread over the graph, the best first."""
        size = len(scores)
        spread = {size * i // 256 for i in range(256)} if size > 256 else set(range(size))
        nodes = np.array(sorted(spread | {self.hnsw.entry_point}))
        return nodes[np.argsort(-scores[nodes], kind="stable")[:4]].tolist()


def reachable(case: Case, query: np.ndarray) -> np.ndarray:
    """Row numbers in reach of the entries."""
    links = Links(case)
    waiting = [*links.entries(code_scores_of(case, query)), links.hnsw.entry_point]
    seen = set(waiting)
    while waiting:
        for near in links.of(waiting.pop()).tolist():
            if near not in seen:
                seen.add(near)
                waiting.append(near)
    return links.ids[sorted(seen)]


ROWS, DIM, WIDTH = 4000, 96, 40


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Case:
    rows = clustered(np.random.default_rng(0), ROWS, DIM, 60)
    return Case(tmp_path_factory.mktemp("large"), rows, WIDTH)


QUERIES = np.ascontiguousarray(clustered(np.random.default_rng(1), 400, DIM, 60))


SETTINGS = "searchengine.indexer.search.cascade."


@pytest.mark.parametrize("rescued", [ROWS, 0], ids=["scanned", "walked again"])
def test_a_filter_far_from_the_question_costs_no_recall(
    large: Case, monkeypatch: pytest.MonkeyPatch, rescued: int
) -> None:
    monkeypatch.setattr(SETTINGS + "SCANNED_PER_CANDIDATE", 0)
    monkeypatch.setattr(SETTINGS + "MAX_RESCANNED", rescued)
    graph = large.graph()
    cascade = NativeCascade(large.coarse, graph)
    nearness = large.stored @ QUERIES[0]
    allowed = Allowed.from_rows(np.flatnonzero(nearness > np.quantile(nearness, 0.8)), ROWS)
    far = np.ascontiguousarray(QUERIES[np.argsort(QUERIES @ QUERIES[0])[:200]])
    within = NodeFilter(graph.bits(allowed.mask), 5, 2 / 3 * allowed.size / ROWS)
    given_up = graph.search(far, 10, 20, 32, within)[0][:, -1] < 0
    assert 50 < given_up.sum() < 200
    found = cascade.search(far, 10, 20, 0, allowed)[0]
    assert np.isin(found, allowed.rows).all()
    scanned, _ = graph.scan(far, 10, 20, graph.nodes_of(allowed.rows))
    agree = np.array([np.isin(*pair).mean() for pair in zip(found, scanned, strict=True)])
    assert agree[given_up].mean() > (0.999 if rescued else 0.9)
    assert agree.mean() > 0.9
    every, coarse = (
        np.sort(cascade.search(far, 20, 20, 0, allowed, reranked=reranked)[0])
        for reranked in (True, False)
    )
    np.testing.assert_array_equal(every, coarse)


def test_a_walk_under_a_filter_leaves_nothing_to_the_next_one(large: Case) -> None:
    """Nodes seen are cleared 64 at a time, and here no 64 hold both nodes found and bridges."""
    graph, ids = large.graph(), faiss.vector_to_array(large.index.id_map)
    mask = np.zeros(ROWS, np.bool_)
    mask[ids[np.arange(ROWS) // 64 % 2 == 0]] = True
    first = graph.search(QUERIES, 10, 20, 40)[0]
    assert (graph.search(QUERIES, 10, 20, 40, NodeFilter(graph.bits(mask), 2, 0.0))[0] >= 0).any()
    np.testing.assert_array_equal(graph.search(QUERIES, 10, 20, 40)[0], first)


def test_threads_slices_and_orders_change_nothing(large: Case, thread_budget: ThreadBudget) -> None:
    graph = large.graph()
    alone = [graph.search(query[None], 10, 30, 40) for query in QUERIES]
    rng = np.random.default_rng(0)
    for limit in (1, 2, 5):
        thread_budget.limit = limit
        for order in (None, rng.permutation(len(QUERIES))):
            rows, scores, short = graph.search(QUERIES, 10, 30, 40, None, order)
            assert not short
            np.testing.assert_array_equal(rows, np.concatenate([one[0] for one in alone]))
            np.testing.assert_array_equal(scores, np.concatenate([one[1] for one in alone]))


@pytest.fixture(scope="module")
def segment_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_segment(tmp_path_factory.mktemp("native"))


# --- damaged graphs ----------------------------------------------------------------------------


def damaged(case: Case, what: str, where: int, value: int) -> object:
    """The graph of a case, with one number changed."""
    index = faiss.clone_index(case.index)
    hnsw = faiss.downcast_index(index.index).hnsw
    if what == "entry":
        hnsw.entry_point = value
    elif what == "top":
        hnsw.max_level = value
    else:
        vectors = {
            "ids": index.id_map,
            "links": hnsw.neighbors,
            "offsets": hnsw.offsets,
            "levels": hnsw.levels,
        }
        vector = vectors[what]
        data = faiss.rev_swig_ptr(vector.data(), vector.size())
        data[where] = value
    return index


def upper_link(case: Case) -> int:
    """Where the first link of the second level is stored."""
    hnsw = faiss.downcast_index(case.index.index).hnsw
    node = int(np.flatnonzero(faiss.vector_to_array(hnsw.levels) > 1)[0])
    return int(faiss.vector_to_array(hnsw.offsets)[node]) + hnsw.nb_neighbors(0)


@pytest.mark.parametrize(
    ("what", "where", "value", "message"),
    [
        ("links", 5, ROWS, "a link leads to no node"),
        ("links", 5, -(2**31), "a link leads to no node"),
        ("links", None, "base", "leads to a node that is not on its level"),
        ("ids", 7, ROWS, "the row number of node 7 is out of range"),
        ("ids", 7, "repeated", "is that of another node too"),
        ("entry", 0, ROWS, "the entry point is no node"),
        ("top", 0, 9, "the entry point is not on the highest level"),
        ("levels", 3, 99, "the level of node 3 is out of range"),
        ("offsets", 0, 1, "the offset of node 0 is not 0"),
        ("offsets", 9, 2**63, "the offset after that of node 8 does not fit its level"),
    ],
)
def test_a_damaged_graph_is_refused(
    large: Case, what: str, where: int | None, value: int | str, message: str
) -> None:
    hnsw = faiss.downcast_index(large.index.index).hnsw
    if value == "base":
        value = int(np.flatnonzero(faiss.vector_to_array(hnsw.levels) == 1)[0])
    if value == "repeated":
        value = int(faiss.vector_to_array(large.index.id_map)[8])
    index = damaged(large, what, upper_link(large) if where is None else where, int(value))
    with pytest.raises(SegmentError, match=message) as error:
        NativeGraph(index, large.file, 0, "folder/coarse.faiss")
    assert str(error.value).startswith("folder/coarse.faiss is damaged: ")


def test_views_outlive_the_segment_they_came_from(segment_folder: Path) -> None:
    segment = Segment.open(segment_folder)
    queries = segment.vectors(np.arange(0, 3000, 20))
    expected = segment.search(queries, 10).rows
    other, view = Segment.open(segment_folder), segment.over(segment.config)
    segment.close()
    del segment
    for still in (other, view):
        np.testing.assert_array_equal(still.search(queries, 10).rows, expected)
