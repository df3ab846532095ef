"""The compiled kernel: every level against the scalar one, walks against numpy and faiss."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import indexer.threads
from indexer.arrays import prefix
from indexer.building.coarse import build_coarse
from indexer.config import SegmentConfig, Storage
from indexer.errors import SegmentConfigError, SegmentError
from indexer.native import compiler, library
from indexer.native.graph import NativeGraph
from indexer.search.allowed import Allowed
from indexer.search.cascade import Cascade
from indexer.search.native_cascade import NativeCascade
from indexer.segment import Segment
from indexer.storage.vectors import Prefixes, VectorFile, VectorWriter

LEVELS = library.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="the kernel is not compiled")


# --- scores, each level against the scalar one -------------------------------------------------


def address(array: npt.NDArray[np.generic]) -> int:
    return array.__array_interface__["data"][0]


def code_scores(level: int, codes: np.ndarray, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    width = codes.shape[1]
    padded = np.zeros(-(-width // 64) * 64, np.int8)
    padded[:width] = query
    scores = np.empty(len(rows), np.int32)
    arguments = [address(array) for array in (codes, padded, rows, scores)]
    codes_at, query_at, rows_at, scores_at = arguments
    library.load().kernel_score_codes(
        level, codes_at, width, query_at, rows_at, len(rows), scores_at
    )
    return scores


@given(
    width=st.integers(1, 300) | st.sampled_from([64, 128, 192, 256, 768]),
    count=st.integers(0, 19),
    extreme=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_levels_score_codes_as_integers(width: int, count: int, extreme: bool, seed: int) -> None:
    """Extremes are what an instruction that saturates gets wrong."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (7, width), np.uint8)
    query = rng.integers(-127, 128, width).astype(np.int8)
    if extreme:
        codes[:] = 255
        query[:] = rng.choice([-127, 127])
    rows = rng.integers(0, 7, count).astype(np.int32)
    expected = codes[rows].astype(np.int64) @ query.astype(np.int64)
    for level in range(len(LEVELS)):
        np.testing.assert_array_equal(code_scores(level, codes, query, rows), expected)


@given(
    dim=st.integers(1, 200) | st.sampled_from([256, 768]),
    half=st.booleans(),
    shift=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_levels_score_rows_bit_for_bit(dim: int, half: bool, shift: int, seed: int) -> None:
    """Rows start at any byte. Small values of float16 are subnormal."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(dim) * 10.0 ** rng.integers(-7, 1, dim)
    row = values.astype("f2" if half else "f4")
    padded = np.zeros(-(-dim // 32) * 32, np.float32)
    padded[:dim] = rng.standard_normal(dim)
    raw = np.zeros(shift + row.nbytes, np.uint8)
    raw[shift:] = row.view(np.uint8)
    scores = [
        library.load().kernel_score_row(level, address(raw) + shift, address(padded), dim, half)
        for level in range(len(LEVELS))
    ]
    assert len({*scores}) == 1
    exact = row.astype(np.float64) @ padded[:dim].astype(np.float64)
    magnitude = np.abs(row.astype(np.float64)) @ np.abs(padded[:dim]).astype(np.float64)
    assert abs(scores[0] - exact) <= 1e-6 * magnitude + 1e-12


# --- one graph, searched by the kernel, by numpy and by faiss -----------------------------------


class Case:
    """Rows in a file and a graph over their prefixes, of any size."""

    def __init__(
        self,
        folder: Path,
        rows: np.ndarray,
        width: int,
        storage: str = "float16",
        kept: np.ndarray | None = None,
    ) -> None:
        path = folder / "vectors"
        path.unlink(missing_ok=True)
        with VectorWriter(path, rows.shape[1], Storage(storage)) as writer:
            writer.append(rows)
            writer.seal()
        self.file = VectorFile(path, len(rows), rows.shape[1], Storage(storage))
        self.config = SegmentConfig.from_dict(
            {"prefix": width, "structure": "hnsw", "code": "int8", "hnsw_m": 8}
        )
        self.coarse = build_coarse(Prefixes(self.file, width), self.config, kept=kept)
        self.index = self.coarse.index
        self.stored = self.file.take(np.arange(len(rows)))

    def graph(self, level: int = 0) -> NativeGraph:
        return NativeGraph(self.index, self.file, level, "coarse.faiss")


def clustered(rng: np.random.Generator, rows: int, dim: int, clusters: int = 8) -> np.ndarray:
    centres = rng.standard_normal((clusters, dim))
    noise = 0.4 * rng.standard_normal((rows, dim))
    spread = (centres[rng.integers(clusters, size=rows)] + noise) * np.arange(1, dim + 1) ** -0.4
    unit = spread / np.linalg.norm(spread, axis=1, keepdims=True)
    return unit.astype(np.float32)


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
    graph = faiss.downcast_index(case.index.index)
    storage = faiss.downcast_index(graph.storage)
    codes = faiss.vector_to_array(storage.codes).reshape(-1, case.coarse.width)
    ids = faiss.vector_to_array(case.index.id_map)
    scores = codes.astype(np.int64) @ quantized(case, query)
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
    """With ef_search of all rows, a walk over a connected graph visits every node."""
    rng = np.random.default_rng(seed)
    width = data.draw(st.integers(1, dim), label="width")
    distinct = clustered(rng, data.draw(st.integers(1, rows), label="distinct"), dim)
    vectors = distinct[rng.integers(len(distinct), size=rows)]
    case = Case(tmp_path_factory.mktemp("case"), vectors, width, storage)
    size = data.draw(st.integers(1, rows), label="shortlist")
    k = data.draw(st.integers(1, size), label="k")
    queries = np.ascontiguousarray(clustered(rng, data.draw(st.integers(1, 9)), dim))
    mask = None
    if data.draw(st.booleans(), label="filtered"):
        mask = rng.random(rows) < data.draw(st.sampled_from([0.0, 0.2, 0.8]), label="share")
    allowed = np.arange(rows) if mask is None else np.flatnonzero(mask)
    nodes = reachable(case)
    allowed = allowed[np.isin(allowed, nodes)]
    results = []
    for level in range(len(LEVELS)):
        graph = case.graph(level)
        order = rng.permutation(len(queries))
        found, scores, short = graph.search(queries, k, size, rows, mask, order)
        shortlists, _ = graph.shortlist(queries, size, rows, mask)
        assert short == (allowed.size < k)
        results.append((found, scores, shortlists))
    for i, query in enumerate(queries):
        expected = by_numpy(case, query, size, allowed)
        for found, scores, shortlists in results:
            count = len(expected)
            np.testing.assert_array_equal(shortlists[i, :count], expected)
            assert (shortlists[i, count:] == -1).all()
            np.testing.assert_array_equal(found[i], results[0][0][i])
            np.testing.assert_array_equal(scores[i], results[0][1][i])
            full = case.stored @ query
            kept = min(k, count)
            assert {*found[i, :kept]} <= {*expected}
            assert (found[i, kept:] == -1).all() and np.isneginf(scores[i, kept:]).all()
            np.testing.assert_allclose(scores[i, :kept], full[found[i, :kept]], atol=1e-6)
            np.testing.assert_allclose(
                scores[i, :kept], np.sort(full[expected])[::-1][:kept], atol=1e-6
            )
            steps = np.diff(scores[i, :kept])
            assert (steps <= 0).all()
            assert (np.diff(found[i, :kept])[steps == 0] > 0).all()


def reachable(case: Case) -> np.ndarray:
    """Row numbers that can be reached from the entry point on the base level."""
    hnsw = faiss.downcast_index(case.index.index).hnsw
    offsets = faiss.vector_to_array(hnsw.offsets).astype(np.int64)
    links, degree = faiss.vector_to_array(hnsw.neighbors), hnsw.nb_neighbors(0)
    seen, waiting = {hnsw.entry_point}, [hnsw.entry_point]
    while waiting:
        start = offsets[waiting.pop()]
        for node in links[start : start + degree].tolist():
            if node >= 0 and node not in seen:
                seen.add(node)
                waiting.append(node)
    ids = faiss.vector_to_array(case.index.id_map)
    return ids[sorted(seen)]


ROWS, DIM, WIDTH = 4000, 96, 40


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Case:
    rows = clustered(np.random.default_rng(0), ROWS, DIM, 60)
    return Case(tmp_path_factory.mktemp("large"), rows, WIDTH)


QUERIES = np.ascontiguousarray(clustered(np.random.default_rng(1), 400, DIM, 60))


def recall(rows: np.ndarray, case: Case, allowed: np.ndarray) -> float:
    best = allowed[np.argsort(-(QUERIES @ case.stored[allowed].T), axis=1)[:, :10]]
    return float(np.mean([len({*a} & {*b}) / 10 for a, b in zip(rows, best, strict=True)]))


@pytest.mark.parametrize("share", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("size", [10, 20, 60])
def test_recall_is_that_of_faiss(large: Case, share: float, size: int) -> None:
    full = build_coarse_full(large)
    allowed = None
    if share < 1:
        rng = np.random.default_rng(2)
        numbers = np.sort(rng.choice(ROWS, round(share * ROWS), replace=False))
        allowed = Allowed.of(numbers, ROWS)
    rows = np.arange(ROWS) if allowed is None else allowed.rows
    native = NativeCascade(large.coarse, large.graph()).search(QUERIES, 10, size, 0, allowed)
    reference = Cascade(large.coarse, full).search(QUERIES, 10, size, 0, allowed)
    ours, theirs = (recall(result.rows, large, rows) for result in (native, reference))
    assert ours >= theirs - 0.005
    assert theirs > 0.5
    assert np.isin(native.rows, rows).all()


def build_coarse_full(case: Case) -> object:
    from indexer.search.opening import open_coarse

    return open_coarse(case.file.path, mapped=True)


def test_threads_slices_and_orders_change_nothing(
    large: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = large.graph()
    alone = [graph.search(query[None], 10, 30, 40) for query in QUERIES]
    rng = np.random.default_rng(0)
    for limit in (1, 2, 5):
        monkeypatch.setattr(indexer.threads.threads, "limit", limit)
        for order in (None, rng.permutation(len(QUERIES))):
            rows, scores, short = graph.search(QUERIES, 10, 30, 40, None, order)
            assert not short
            np.testing.assert_array_equal(rows, np.concatenate([one[0] for one in alone]))
            np.testing.assert_array_equal(scores, np.concatenate([one[1] for one in alone]))


def test_several_python_threads_search_at_once(
    large: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer.threads.threads, "limit", 6)
    graph, wrong = large.graph(), []
    mask = np.arange(ROWS) % 2 == 0
    points = [(10, 20, 30, None), (5, 50, 300, mask), (1, 1, 7, None)]
    expected = [graph.search(QUERIES, *point)[0] for point in points]

    def work(start: int) -> None:
        for i in range(9):
            point, rows = points[(start + i) % 3], expected[(start + i) % 3]
            if (graph.search(QUERIES, *point)[0] != rows).any():
                wrong.append(1)
            if (graph.search(QUERIES[i, None], *point)[0] != rows[i]).any():
                wrong.append(2)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


FORKED = """
import os, sys, threading
import numpy as np
from indexer.segment import Segment
segment = Segment.open(sys.argv[1])
queries = segment.take(np.arange(200))
expected = segment.search(queries, 5).rows
stop = threading.Event()
def work():
    while not stop.is_set():
        segment.search(queries, 5)
workers = [threading.Thread(target=work) for _ in range(3)]
for worker in workers:
    worker.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(int((segment.search(queries, 5).rows != expected).any()))
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for worker in workers:
    worker.join()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / "segment"
    rows = clustered(np.random.default_rng(0), 3000, 48, 60)
    settings = {"prefix": 24, "structure": "hnsw", "code": "int8", "shortlist": 40}
    Segment.build(path, rows, SegmentConfig.from_dict(settings)).close()
    return path


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_forked_during_a_search_can_search(built: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(built)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, timeout=60, env=environment)


# --- which kernel searches ---------------------------------------------------------------------


def test_a_segment_finds_the_same_with_every_kernel(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {}
    for kernel in ("faiss", *LEVELS):
        monkeypatch.setenv("SEARCHENGINE_KERNEL", kernel)
        with Segment.open(built) as segment:
            is_native = isinstance(segment._opened().cascade, NativeCascade)
            assert is_native == (kernel != "faiss")
            queries = segment.vectors(np.arange(0, 3000, 20))
            for k, size, allowed in ((10, 60, None), (1, 1, None), (5, 80, np.arange(0, 3000, 2))):
                found = segment.search(queries, k, size, allowed)
                other = results.setdefault((k, size), found)
                assert np.mean(found.rows == other.rows) > 0.995
                candidates = segment.shortlist(segment.rotate(queries), size, allowed)
                oracle = segment.rerank(segment.rotate(queries), candidates, k)
                np.testing.assert_array_equal(found.rows, oracle.rows)
                np.testing.assert_allclose(found.scores, oracle.scores, atol=1e-6)


def test_without_a_library_faiss_searches(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Segment.open(built) as segment:
        queries = segment.vectors(np.arange(0, 3000, 20))
        expected = segment.search(queries, 10, 80)
    monkeypatch.setattr(library, "load", lambda: None)
    assert library.levels() == []
    assert library.description().startswith("faiss (no compiled kernel")
    with Segment.open(built) as segment:
        assert isinstance(segment._opened().cascade, Cascade)
        found = segment.search(queries, 10, 80)
    assert np.mean(found.rows == expected.rows) > 0.995
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-3)
    monkeypatch.setenv("SEARCHENGINE_KERNEL", "scalar")
    with pytest.raises(SegmentConfigError, match=r"not available .* set it to native or faiss"):
        Segment.open(built)


def test_an_unknown_kernel_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCHENGINE_KERNEL", "sse9")
    with pytest.raises(SegmentConfigError, match=r"must be one of native, faiss, .*got 'sse9'"):
        Segment.open(built)
    absent = next(level for level in library.LEVELS if level not in LEVELS)
    monkeypatch.setenv("SEARCHENGINE_KERNEL", absent)
    with pytest.raises(SegmentConfigError, match=f"{absent} is not available on this machine"):
        Segment.open(built)


def test_the_description_names_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.description().startswith("native, ")
    monkeypatch.setenv("SEARCHENGINE_KERNEL", "scalar")
    assert library.description() == "native, scalar code"
    monkeypatch.setenv("SEARCHENGINE_KERNEL", "faiss")
    assert library.description() == "faiss (chosen by SEARCHENGINE_KERNEL)"


def test_a_damaged_library_counts_as_none(tmp_path: Path) -> None:
    broken = tmp_path / "kernel.so"
    assert library.load(broken) is None
    broken.write_bytes(b"\x7fELF")
    assert library.load(broken) is None


def test_a_failing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "kernel.so"
    target.write_bytes(b"of an earlier version")
    for command in ("false", "no-such-compiler"):
        monkeypatch.setenv("CXX", command)
        problem = compiler.compile_kernel(target)
        assert problem is not None and command in problem and "\n" not in problem
        assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C++ compiler was found" in str(compiler.compile_kernel(target))


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
        ("links", 5, -2, "a link leads to no node"),
        ("links", 5, -(2**31), "a link leads to no node"),
        ("links", None, "base", "leads to a node that is not on its level"),
        ("ids", 7, ROWS, "the row number of node 7 is out of range"),
        ("ids", 7, -1, "the row number of node 7 is out of range"),
        ("ids", 7, "repeated", "is that of another node too"),
        ("entry", 0, ROWS, "the entry point is no node"),
        ("entry", 0, -1, "the entry point is no node"),
        ("top", 0, 9, "the entry point is not on the highest level"),
        ("top", 0, -1, "the entry point is not on the highest level"),
        ("levels", 3, 0, "the level of node 3 is out of range"),
        ("levels", 3, 99, "the level of node 3 is out of range"),
        ("offsets", 0, 1, "the offset of node 0 is not 0"),
        ("offsets", 9, 2**63, "the offset after that of node 8 does not fit its level"),
        ("offsets", 9, 0, "the offset after that of node 8 does not fit its level"),
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


def test_missing_numbers_are_refused(large: Case) -> None:
    index = faiss.clone_index(large.index)
    index.id_map.resize(ROWS - 1)
    with pytest.raises(SegmentError, match="must hold 4000 row numbers, got 3999"):
        NativeGraph(index, large.file, 0, "coarse.faiss")


def test_a_trial_may_hold_fewer_rows_than_the_file(tmp_path: Path) -> None:
    rows = clustered(np.random.default_rng(3), 500, 40)
    kept = np.arange(0, 500, 3)
    case = Case(tmp_path, rows, 20, kept=kept)
    found, _, short = case.graph().search(rows[:20], 10, 40, 100)
    assert not short and np.isin(found, kept).all()
    heads = prefix(case.stored, 20)
    assert heads.shape == (500, 20)


def test_views_outlive_the_segment_they_came_from(built: Path) -> None:
    segment = Segment.open(built)
    queries = segment.vectors(np.arange(0, 3000, 20))
    expected = segment.search(queries, 10).rows
    other, view = Segment.open(built), segment.over(segment.config)
    segment.close()
    del segment
    for still in (other, view):
        np.testing.assert_array_equal(still.search(queries, 10).rows, expected)


SANITIZED = """
import sys
from pathlib import Path
import pytest
from indexer.native import compiler
compiler.LIBRARY = Path(sys.argv[1])
from indexer.native import library
assert library.levels(), "the checked library does not load"
sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-m", "not long", sys.argv[2]]))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the checks are preloaded as on Linux")
def test_nothing_is_read_or_written_out_of_bounds(tmp_path: Path) -> None:
    """These tests again, by a library that checks its memory accesses and its arithmetic."""
    target = tmp_path / "kernel.so"
    problem = compiler.compile_kernel(target, compiler.SANITIZE)
    assert problem is None, problem
    command = [*(compiler.compiler() or []), "-print-file-name=libasan.so"]
    preloaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    environment = os.environ | {
        "LD_PRELOAD": preloaded,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run(
        [sys.executable, "-c", SANITIZED, str(target), __file__], check=True, env=environment
    )
