"""The shortlist structures against a numpy oracle."""

import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.coarse import CoarseIndex
from indexer.config import Code, SegmentConfig, Structure
from indexer.errors import SegmentError, VectorError
from indexer.prefix import prefix

WIDTH = 16
EVERY = [(structure, code) for structure in Structure for code in Code]


def clustered(n: int, seed: int = 0) -> np.ndarray:
    centres = np.random.default_rng(99).standard_normal((30, WIDTH))
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(30, size=n)] + 0.4 * rng.standard_normal((n, WIDTH))
    return prefix(rows.astype(np.float32), WIDTH)


def build(rows: np.ndarray, structure: Structure, code: Code) -> CoarseIndex:
    config = SegmentConfig(prefix=rows.shape[1], structure=structure, code=code)
    return CoarseIndex.build([rows[:7], rows[7:]], config)


def decoded(rows: np.ndarray, code: Code) -> np.ndarray:
    """What each code makes of the rows: int8 has 255 steps over [-1, 1], read at mid-step."""
    if code is Code.FP16:
        return rows.astype(np.float16).astype(np.float32)
    if code is Code.INT8:
        steps = np.trunc(np.clip((rows + 1) / 2, 0, 1) * 255)
        return ((steps + 0.5) / 255 * 2 - 1).astype(np.float32)
    return rows


def oracle(
    queries: np.ndarray, rows: np.ndarray, size: int, allowed: np.ndarray | None = None
) -> np.ndarray:
    numbers = np.arange(len(rows)) if allowed is None else allowed
    scores = queries @ rows[numbers].T
    return numbers[np.lexsort((np.broadcast_to(numbers, scores.shape), -scores))[:, :size]]


def overlap(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.mean([len({*f} & {*e}) / len(e) for f, e in zip(found, expected, strict=True)]))


ROWS = clustered(3000)
QUERIES = clustered(40, seed=1)


@pytest.mark.parametrize("code", Code)
def test_a_flat_shortlist_is_the_oracles(code: Code) -> None:
    found = build(ROWS, Structure.FLAT, code).shortlist(QUERIES, 50)
    assert found.dtype == np.int64 and found.shape == (40, 50)
    # Rounding may swap neighbours whose scores agree to the last bits, and nothing more.
    expected = oracle(QUERIES, decoded(ROWS, code), 50)
    scores = np.einsum("qd,qsd->qs", QUERIES, decoded(ROWS, code)[found])
    truth = np.einsum("qd,qsd->qs", QUERIES, decoded(ROWS, code)[expected])
    np.testing.assert_allclose(scores, truth, atol=2e-6)
    assert overlap(found, expected) > 0.999


@pytest.mark.parametrize("code", Code)
def test_a_graph_finds_nearly_all_of_the_oracles_shortlist(code: Code) -> None:
    found = build(ROWS, Structure.HNSW, code).shortlist(QUERIES, 50)
    assert overlap(found, oracle(QUERIES, decoded(ROWS, code), 50)) > 0.97
    assert all(len({*line}) == 50 for line in found)


@pytest.mark.parametrize(("structure", "code"), EVERY)
@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_only_allowed_rows_are_found(structure: Structure, code: Code, share: float) -> None:
    rng = np.random.default_rng(3)
    allowed = np.flatnonzero(rng.random(len(ROWS)) < share)
    found = build(ROWS, structure, code).shortlist(QUERIES, 20, allowed)
    assert np.isin(found, allowed).all()
    expected = oracle(QUERIES, decoded(ROWS, code), 20, allowed)
    assert overlap(found, expected) > (0.999 if share < 0.1 else 0.95)


@pytest.mark.parametrize(("structure", "code"), EVERY)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_never_fewer_than_there_are(structure: Structure, code: Code, count: int) -> None:
    rows = clustered(40)
    allowed = np.arange(count) * 8
    found = build(rows, structure, code).shortlist(QUERIES, 7, allowed)
    assert found.shape == (40, 7)
    assert (np.sort(found[:, :count], axis=1) == allowed).all()
    assert (found[:, count:] == -1).all()
    everything = build(rows, structure, code).shortlist(QUERIES, 50)
    assert (np.sort(everything[:, :40], axis=1) == np.arange(40)).all()


def test_a_narrow_filter_is_scanned_and_not_walked() -> None:
    """faiss counts the distances that walks computed: none for 9 %, some for half of the rows."""
    index = build(ROWS, Structure.HNSW, Code.FP16)
    for step, walked in ((11, False), (2, True)):
        faiss.cvar.hnsw_stats.reset()
        index.shortlist(QUERIES, 20, np.arange(0, 3000, step))
        assert (faiss.cvar.hnsw_stats.ndis > 0) is walked


def test_a_graph_that_underfills_is_completed_by_a_scan() -> None:
    """A selector that hides a whole half of two distant groups strands the walk."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(2, WIDTH), 300, axis=0)
    rows = prefix((groups + 0.01 * rng.standard_normal((600, WIDTH))).astype(np.float32), WIDTH)
    index = CoarseIndex.build(
        [rows], SegmentConfig(prefix=WIDTH, structure=Structure.HNSW, hnsw_m=2, ef_construction=2)
    )
    allowed = np.arange(300, 600)
    found = index.shortlist(rows[:20], 250, allowed)
    assert np.isin(found, allowed).all()
    assert all(len({*line}) == 250 for line in found)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("size", [1, 30, 99, 100, 400, 1500])
def test_ties_go_to_the_lower_row_also_at_the_cut(code: Code, size: int) -> None:
    """1600 rows but only 16 different ones: every cut goes through a tie."""
    rows = np.tile(np.eye(WIDTH, dtype=np.float32), (100, 1))
    query = np.linspace(1, 0.5, WIDTH, dtype=np.float32)[None]
    found = build(rows, Structure.FLAT, code).shortlist(query, size)
    by_score = np.concatenate([np.arange(100) * WIDTH + i for i in range(WIDTH)])
    assert found[0].tolist() == by_score[:size].tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(0, 60), st.sampled_from(Code))
def test_a_flat_shortlist_only_grows(seed: int, small: int, more: int, code: Code) -> None:
    rows = np.random.default_rng(seed).integers(-1, 2, (60, 4)).astype(np.float32)
    index = build(prefix(rows, 4), Structure.FLAT, code)
    query = np.random.default_rng(seed + 1).standard_normal((3, 4)).astype(np.float32)
    longer = index.shortlist(query, small + more)
    np.testing.assert_array_equal(index.shortlist(query, small), longer[:, :small])


@pytest.mark.parametrize(("structure", "code"), EVERY)
def test_saved_and_opened_is_the_same(tmp_path: Path, structure: Structure, code: Code) -> None:
    index = build(ROWS, structure, code)
    index.save(tmp_path / "c")
    again = CoarseIndex.open(tmp_path / "c")
    assert (again.rows, again.width) == (3000, WIDTH)
    for allowed in (None, np.arange(0, 3000, 2), np.arange(0, 3000, 20)):
        np.testing.assert_array_equal(
            again.shortlist(QUERIES, 30, allowed), index.shortlist(QUERIES, 30, allowed)
        )


def test_the_querys_length_does_not_matter() -> None:
    index = build(ROWS, Structure.FLAT, Code.FP16)
    np.testing.assert_array_equal(index.shortlist(QUERIES * 4, 20), index.shortlist(QUERIES, 20))


def test_searching_leaves_the_thread_setting_alone() -> None:
    before = faiss.omp_get_max_threads()
    build(ROWS, Structure.HNSW, Code.INT8).shortlist(QUERIES[:1], 5)
    assert faiss.omp_get_max_threads() == before


def test_bad_blocks_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VectorError, match="at least one row"):
        CoarseIndex.build([], SegmentConfig())
    with pytest.raises(VectorError, match=r"must be \(n, 64\), got shape \(2, 3\)"):
        CoarseIndex.build([np.ones((2, 3), np.float32)], SegmentConfig())
    (tmp_path / "noise").write_bytes(b"IxXX" + bytes(100))
    with pytest.raises(SegmentError, match=r"cannot read .*noise"):
        CoarseIndex.open(tmp_path / "noise")
    faiss.write_index(faiss.IndexLSH(16, 16), str(tmp_path / "lsh"))
    with pytest.raises(SegmentError, match="lsh holds IndexLSH"):
        CoarseIndex.open(tmp_path / "lsh")
    with pytest.raises(OSError, match="could not write"):
        build(ROWS, Structure.FLAT, Code.FP32).save(tmp_path / "no" / "folder")


def test_without_faiss_the_way_out_is_named() -> None:
    program = (
        "import sys; sys.modules['faiss'] = None\n"
        "try:\n    import indexer.coarse\n"
        'except ImportError as error:\n    assert "searchengine[cpu]" in str(error), error\n'
        "else:\n    raise SystemExit('imported')\n"
        "import indexer.config, indexer.manifest, indexer.vectors\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
