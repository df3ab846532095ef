"""Building a graph with the compiled kernel: as good as faiss's, equal on every processor."""

from pathlib import Path

import numpy as np
import pytest
from native_cases import Case, clustered

import searchengine.indexer.native.hnsw
import searchengine.indexer.threads
from searchengine.indexer.arrays import prefix
from searchengine.indexer.building.coarse import build_coarse, empty
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.faiss_calls import faiss
from searchengine.indexer.native import library
from searchengine.indexer.native.hnsw import build_graph
from searchengine.indexer.native.library import KERNEL

pytestmark = pytest.mark.skipif(not library.levels(), reason="no compiled kernel")

ROWS, DIM, WIDTH = 6000, 48, 24
QUERIES = np.ascontiguousarray(clustered(np.random.default_rng(1), 300, DIM, 60))


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    return clustered(np.random.default_rng(seed), count, DIM, 60)


def links_of(case: Case) -> np.ndarray:
    return faiss.vector_to_array(faiss.downcast_index(case.index.index).hnsw.neighbors)


def base_links(case: Case) -> list[np.ndarray]:
    """The links of every node on the base level."""
    hnsw = faiss.downcast_index(case.index.index).hnsw
    links, degree = faiss.vector_to_array(hnsw.neighbors), hnsw.nb_neighbors(0)
    starts = faiss.vector_to_array(hnsw.offsets)[:-1].astype(np.int64)
    return [each[each >= 0] for each in (links[start : start + degree] for start in starts)]


def made_by(kernel: str, monkeypatch: pytest.MonkeyPatch, folder: Path, **more: object) -> Case:
    monkeypatch.setenv(KERNEL, kernel)
    folder.mkdir()
    case = Case(folder, rows_of(ROWS), WIDTH, **more)  # type: ignore[arg-type]
    monkeypatch.delenv(KERNEL)
    return case


@pytest.mark.parametrize("links", [8, 32])
def test_it_is_as_good_as_that_of_faiss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: int
) -> None:
    """At every effort, searched by the kernel and by faiss, and with as many links."""
    ours, theirs = (
        made_by(kernel, monkeypatch, tmp_path / kernel, links=links)
        for kernel in ("native", "faiss")
    )
    rows = prefix(ours.stored, WIDTH)
    truth = np.argsort(-(QUERIES[:, :WIDTH] @ rows.T), axis=1)[:, :10]
    for effort in (12, 24, 48):
        found = [case.graph().search(QUERIES, 10, 10, effort)[0] for case in (ours, theirs)]
        parameters = faiss.SearchParametersHNSW(efSearch=effort)
        heads = np.ascontiguousarray(QUERIES[:, :WIDTH])
        found += [case.index.search(heads, 10, params=parameters)[1] for case in (ours, theirs)]
        recalls = [
            np.mean([np.isin(a, b).mean() for a, b in zip(each, truth, strict=True)])
            for each in found
        ]
        assert recalls[0] > recalls[1] - 0.02
        assert recalls[2] > recalls[3] - 0.02
    assert recalls[0] > 0.85
    counts = [np.mean([len(each) for each in base_links(case)]) for case in (ours, theirs)]
    assert counts[0] == pytest.approx(counts[1], rel=0.05)


def test_every_node_is_reached_and_no_link_is_wrong(tmp_path: Path) -> None:
    case = Case(tmp_path, rows_of(ROWS), WIDTH)
    graph = base_links(case)
    entry = faiss.downcast_index(case.index.index).hnsw.entry_point
    seen, front = {entry}, [entry]
    while front:
        front = [int(n) for node in front for n in graph[node]]
        front = [n for n in dict.fromkeys(front) if n not in seen]
        seen.update(front)
    assert len(seen) > 0.999 * ROWS
    for node, links in enumerate(graph):
        assert len(links) and len(set(links)) == len(links) and node not in links


@pytest.mark.parametrize("level", library.levels()[1:])
def test_all_instruction_sets_make_the_same_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setattr(searchengine.indexer.threads.threads, "limit", 1)
    best, other = (made_by(k, monkeypatch, tmp_path / k) for k in ("native", level))
    np.testing.assert_array_equal(links_of(best), links_of(other))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 70])
def test_few_rows_are_all_found(tmp_path: Path, count: int) -> None:
    case = Case(tmp_path, rows_of(count), WIDTH)
    rows, _, _ = case.graph().search(QUERIES[:5], count, count, max(count, 16))
    np.testing.assert_array_equal(np.sort(rows), np.tile(np.arange(count), (5, 1)))


def test_equal_rows_are_no_trouble(tmp_path: Path) -> None:
    case = Case(tmp_path, np.repeat(rows_of(3), 300, axis=0), WIDTH)
    rows, _, _ = case.graph().search(rows_of(3), 10, 10, 64)
    assert (rows // 300 == np.arange(3)[:, None]).all()


def test_some_rows_only(tmp_path: Path) -> None:
    kept = np.arange(5, ROWS, 7)
    case = Case(tmp_path, rows_of(ROWS), WIDTH, kept=kept)
    rows, _, _ = case.graph().search(QUERIES, 10, 10, 64)
    assert np.isin(rows, kept).all()
    assert case.index.ntotal == len(kept)


def test_progress_counts_every_row_and_may_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searchengine.indexer.native.hnsw, "_CHUNK", 100)
    case = Case(tmp_path, rows_of(250), WIDTH)
    seen: list[int] = []

    def progress(done: int) -> None:
        seen.append(done)
        if sum(seen) == 200:
            raise KeyboardInterrupt

    inner = empty(case.config, 250)
    inner.train(case.stored[:, :WIDTH].copy())
    with pytest.raises(KeyboardInterrupt):
        build_graph(inner, [case.stored[:, :WIDTH].copy()], np.arange(250), 0, progress)
    assert seen == [100, 100]


def test_other_codes_are_built_by_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("searchengine.indexer.building.coarse.build_graph", None)
    rows = rows_of(200)[:, :WIDTH].copy()

    class Rows:
        width, rows = WIDTH, 200

        def blocks(self, order: np.ndarray | None = None) -> list[np.ndarray]:
            return [np.ascontiguousarray(rows if order is None else rows[order])]

        def sample(self, count: int) -> np.ndarray:
            return rows

    for code in ("fp16", "fp32"):
        config = SegmentConfig.from_dict({"prefix": WIDTH, "structure": "hnsw", "code": code})
        coarse = build_coarse(Rows(), config)  # type: ignore[arg-type]
        assert coarse.index.ntotal == 200
