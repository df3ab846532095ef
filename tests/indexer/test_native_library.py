"""The library of the kernel: its levels against each other, its choice, and its compilation."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_cases import small_segment

from searchengine.indexer.arrays import address, unit_rows
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.native import compiler, library
from searchengine.indexer.search.scoring import rerank
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
    with pytest.raises(SegmentConfigError, match="one of native, faiss here, got 'scalar'"):
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


# --- the compiled code checked by its compiler, and on ARM --------------------------------------

CHECKED = """
import sys
from pathlib import Path
import pytest
from searchengine.indexer.native import compiler
compiler.LIBRARY = Path(sys.argv[1])
from searchengine.indexer.native import library
from searchengine.trainer.native import library as encoder
encoder.load = lambda load=encoder.load: load(Path(sys.argv[2]))
assert library.levels() and encoder.levels(), "the checked libraries do not load"
sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-m", "not long", *sys.argv[3:]]))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the checks are preloaded as on Linux")
def test_nothing_is_read_or_written_out_of_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of both kernels, by libraries that check memory accesses and arithmetic."""
    targets = [tmp_path / name / "kernel.so" for name in ("search", "encoder")]
    checking = "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    (script := tmp_path / "c++").write_text(f'#!/bin/sh\nc++ "$@" {checking} -DVNNI_BY_AVX512\n')
    script.chmod(0o700)
    monkeypatch.setenv("CXX", shlex.quote(str(script)))
    for target, kernel in zip(targets, (compiler.LIBRARY, compiler.ENCODER), strict=True):
        target.parent.mkdir()
        target.with_name("source").symlink_to(kernel.with_name("source"))
        problem = compiler.compile_kernel(target)
        assert problem is None, problem
    asan = ["c++", "-print-file-name=libasan.so"]
    preloaded = subprocess.run(asan, check=True, capture_output=True, text=True).stdout.strip()
    checks = {"LD_PRELOAD": preloaded, "ASAN_OPTIONS": "detect_leaks=0"}
    environment = os.environ | checks | {"PYTHONPATH": os.pathsep.join(sys.path)}
    tests = Path(__file__).parents[1]
    names = ("native", "native_building", "words")
    files = [tests / "indexer" / f"test_{name}.py" for name in names]
    files += [tests / "trainer" / f"test_{name}.py" for name in ("native_runtime",)]
    command = [sys.executable, "-c", CHECKED, *map(str, (*targets, *files))]
    subprocess.run(command, check=True, env=environment)


ARM, EMULATOR = "aarch64-linux-gnu-g++", shutil.which("qemu-aarch64")


@pytest.mark.long
@pytest.mark.skipif(
    not (shutil.which(ARM) and EMULATOR),
    reason=f"needs {ARM} and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
@pytest.mark.parametrize(
    ("main", "kernel", "names"),
    [
        ("neon_scores.cpp", compiler.LIBRARY, ("scores.cpp", "scores_arm.cpp", "prefix.cpp")),
        ("neon_encoder.cpp", compiler.ENCODER, ("*.cpp",)),
    ],
)
def test_neon_computes_as_the_scalar_level(
    tmp_path: Path, main: str, kernel: Path, names: Sequence[str]
) -> None:
    """Compiled for ARM and run by an emulator."""
    program, source = tmp_path / "neon", kernel.with_name("source")
    flags = [flag for flag in compiler.FLAGS if flag not in ("-shared", "-fPIC")]
    sources = [Path(__file__).parents[1] / main, *(p for name in names for p in source.glob(name))]
    command = [ARM, *flags, "-static", f"-I{source}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(EMULATOR), str(program)], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stdout.endswith(" 0 differ\n"), done.stdout
