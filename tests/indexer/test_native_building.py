"""Building a graph with the compiled kernel: as good as faiss's, equal on every processor."""

from pathlib import Path

import numpy as np
import pytest
from native_cases import Case, clustered, work

from searchengine.indexer.arrays import prefix, unit_rows
from searchengine.indexer.native import library
from searchengine.indexer.native.library import KERNEL, faiss
from searchengine.indexer.threads import ThreadBudget

pytestmark = pytest.mark.skipif(not library.levels(), reason="no compiled kernel")

ROWS, DIM, WIDTH = 6000, 48, 24
QUERIES = np.ascontiguousarray(clustered(np.random.default_rng(1), 300, DIM, 60))


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    return clustered(np.random.default_rng(seed), count, DIM, 60)


def links_of(case: Case) -> np.ndarray:
    return faiss.vector_to_array(faiss.downcast_index(case.index.index).hnsw.neighbors)


def links_at(case: Case, level: int) -> dict[int, np.ndarray]:
    """The links of every node of a level."""
    hnsw = faiss.downcast_index(case.index.index).hnsw
    links, degree = faiss.vector_to_array(hnsw.neighbors), hnsw.nb_neighbors(level)
    starts = faiss.vector_to_array(hnsw.offsets)[:-1].astype(np.int64)
    starts += faiss.vector_to_array(hnsw.cum_nneighbor_per_level)[level]
    nodes = np.flatnonzero(faiss.vector_to_array(hnsw.levels) > level)
    lists = {int(node): links[starts[node] : starts[node] + degree] for node in nodes}
    return {node: each[each >= 0] for node, each in lists.items()}


def made_by(kernel: str, monkeypatch: pytest.MonkeyPatch, folder: Path, **more: object) -> Case:
    monkeypatch.setenv(KERNEL, kernel)
    folder.mkdir()
    case = Case(folder, rows_of(ROWS), WIDTH, **more)  # type: ignore[arg-type]
    monkeypatch.delenv(KERNEL)
    return case


def found_and_compared(case: Case, effort: int) -> tuple[float, float]:
    """The share of the ten best prefixes that walks find, and the codes that one compares."""
    truth = np.argsort(-(QUERIES[:, :WIDTH] @ prefix(case.stored, WIDTH).T), axis=1)[:, :10]
    graph = case.graph()
    rows = graph.search(QUERIES, 10, 10, effort)[0]
    found = np.mean([np.isin(a, b).mean() for a, b in zip(rows, truth, strict=True)])
    return float(found), work(graph)[0] / len(QUERIES)


@pytest.mark.parametrize("links", [4, 32])
def test_it_finds_as_much_as_that_of_faiss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: int
) -> None:
    """For as many codes compared. With 4 links, it matters which of many are kept."""
    ours, theirs = (
        made_by(kernel, monkeypatch, tmp_path / kernel, links=links)
        for kernel in ("native", "faiss")
    )
    curve = [found_and_compared(theirs, effort) for effort in (12, 24, 48, 96)]
    for effort in (24, 48):
        found, compared = found_and_compared(ours, effort)
        at = np.interp(compared, [point[1] for point in curve], [point[0] for point in curve])
        assert found > at - 0.01


def islands(count: int) -> np.ndarray:
    """Groups of rows that are further from each other than a row's candidates reach."""
    rng = np.random.default_rng(3)
    centres = 20 * np.eye(8, DIM)[np.arange(count) % 8]
    return unit_rows(centres + rng.standard_normal((count, DIM)))


@pytest.mark.parametrize(
    "rows",
    [rows_of(ROWS), islands(ROWS), islands(700), np.repeat(rows_of(3), 1500, axis=0)],
    ids=["clusters", "islands", "one group", "equal rows"],
)
@pytest.mark.parametrize("links", [2, 16])
def test_every_node_is_reached_and_no_link_is_wrong(
    tmp_path: Path, rows: np.ndarray, links: int
) -> None:
    case = Case(tmp_path, rows, WIDTH, links=links)
    hnsw = faiss.downcast_index(case.index.index).hnsw
    levels = faiss.vector_to_array(hnsw.levels)
    for level in range(int(levels.max())):
        graph = links_at(case, level)
        seen, front = {hnsw.entry_point}, [hnsw.entry_point]
        while front:
            front = [int(n) for node in front for n in graph[node]]
            front = [n for n in dict.fromkeys(front) if n not in seen]
            seen.update(front)
        assert seen == set(np.flatnonzero(levels > level))
        for node, each in graph.items():
            assert len(set(each)) == len(each) and node not in each


@pytest.mark.parametrize("level", library.levels()[1:])
def test_all_instruction_sets_and_any_threads_make_the_same_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread_budget: ThreadBudget, level: str
) -> None:
    thread_budget.limit = 3
    best = made_by("native", monkeypatch, tmp_path / "best")
    thread_budget.limit = 1
    other = made_by(level, monkeypatch, tmp_path / "other")
    np.testing.assert_array_equal(links_of(best), links_of(other))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 70])
def test_few_rows_are_all_found(tmp_path: Path, count: int) -> None:
    case = Case(tmp_path, rows_of(count), WIDTH)
    rows, _, _ = case.graph().search(QUERIES[:5], count, count, max(count, 16))
    np.testing.assert_array_equal(np.sort(rows), np.tile(np.arange(count), (5, 1)))
