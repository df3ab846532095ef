"""The library of the kernel: its levels against each other, its choice, and its compilation."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_cases import small_segment

from searchengine.indexer.arrays import address, unit_rows
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.native import compiler, library
from searchengine.indexer.search.cascade import rerank
from searchengine.indexer.segment import Segment

LEVELS = library.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="the kernel is not compiled")


@pytest.fixture(scope="module")
def segment_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_segment(tmp_path_factory.mktemp("native"))


# --- scores, each level against the scalar one -------------------------------------------------


def codes_and_query(
    rng: np.random.Generator, count: int, width: int, *, extreme: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and a query padded to a multiple of 64.

    Extremes are what an instruction that saturates gets wrong.
    """
    codes = rng.integers(0, 256, (count, width), np.uint8)
    query = np.zeros(-(-width // 64) * 64, np.int8)
    query[:width] = rng.integers(-127, 128, width)
    if extreme:
        codes[:] = 255
        query[:width] = rng.choice([-127, 127])
    return codes, query


@given(
    width=st.integers(1, 300) | st.sampled_from([64, 128, 192, 256, 768]),
    count=st.integers(0, 64),
    extreme=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_levels_score_codes_and_blocks_as_integers(
    width: int, count: int, extreme: bool, seed: int
) -> None:
    """A block is 64 codes; its bits tell which are above the least score."""
    rng = np.random.default_rng(seed)
    codes, query = codes_and_query(rng, 70, width, extreme=extreme)
    rows = rng.integers(0, 70, count).astype(np.int32)
    expected = np.zeros(64, np.int64)
    expected[:count] = codes[rows].astype(np.int64) @ query[:width].astype(np.int64)
    least = int(rng.choice(expected))
    at = [address(array) for array in (codes, query, rows)]
    for level in range(len(LEVELS)):
        scores = np.zeros(64, np.int32)
        library.load().kernel_score_codes(level, at[0], width, at[1], at[2], count, address(scores))
        np.testing.assert_array_equal(scores, expected)
        above = library.load().kernel_score_block(
            level, at[0], width, at[1], at[2], count, least, address(scores)
        )
        np.testing.assert_array_equal(scores, expected)
        assert above == sum(1 << i for i in range(64) if expected[i] > least)


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


# --- which kernel searches ---------------------------------------------------------------------


def test_a_segment_finds_the_same_with_every_kernel(
    segment_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {}
    for kernel in ("faiss", *LEVELS):
        monkeypatch.setenv("SEARCHENGINE_KERNEL", kernel)
        with Segment.open(segment_folder) as segment:
            assert (segment._opened().graph is not None) == (kernel != "faiss")
            queries = segment.vectors(np.arange(0, 3000, 20))
            for k, size, allowed in ((10, 60, None), (1, 1, None), (5, 80, np.arange(0, 3000, 2))):
                found = segment.search(queries, k, size, allowed)
                other = results.setdefault((k, size), found)
                assert np.mean(found.rows == other.rows) > 0.995
                candidates = segment.shortlist(unit_rows(queries), size, allowed)
                oracle = rerank(segment._opened().file, unit_rows(queries), candidates, k)
                np.testing.assert_array_equal(found.rows, oracle.rows)
                np.testing.assert_allclose(found.scores, oracle.scores, atol=1e-6)


def test_without_a_library_faiss_searches(
    segment_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = library.load
    with Segment.open(segment_folder) as segment:
        queries = segment.vectors(np.arange(0, 3000, 20))
        expected = segment.search(queries, 10, 80)
    (broken := tmp_path / "kernel.so").write_bytes(b"\x7fELF")  # a damaged one counts as none
    assert load(broken) is None
    monkeypatch.setattr(library, "load", lambda: load(broken))
    monkeypatch.delenv("SEARCHENGINE_KERNEL", raising=False)
    assert library.levels() == []
    with Segment.open(segment_folder) as segment:
        assert segment._opened().graph is None
        found = segment.search(queries, 10, 80)
    assert np.mean(found.rows == expected.rows) > 0.995
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-3)
    monkeypatch.setenv("SEARCHENGINE_KERNEL", "scalar")
    with pytest.raises(SegmentConfigError, match=r"not available .* set it to native or faiss"):
        Segment.open(segment_folder)


def test_an_unknown_kernel_is_refused(
    segment_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCHENGINE_KERNEL", "sse9")
    with pytest.raises(SegmentConfigError, match=r"must be one of native, faiss, .*got 'sse9'"):
        Segment.open(segment_folder)
    absent = next(level for level in library.LEVELS if level not in LEVELS)
    monkeypatch.setenv("SEARCHENGINE_KERNEL", absent)
    with pytest.raises(SegmentConfigError, match=f"{absent} is not available on this machine"):
        Segment.open(segment_folder)


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
