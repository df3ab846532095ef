"""Every benchmark starts, and search_speed.py: files of ann-benchmarks, settings, every side."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import REPOSITORY
from peer_runner import OURS, PEERS, SIDES, Index, K, Requests, Setting
from search_speed import Data, Stopped, exact, main, read_hdf5

BENCHMARKS = sorted(
    path
    for path in (REPOSITORY / "benchmarks").glob("*.py")
    if "click.command" in path.read_text(encoding="utf-8")
)


@pytest.mark.long
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_help(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path, "--help"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


ROWS, QUERIES, DIM = 1200, 60, 64  # more rows than a segment searches exactly


def data(length: float = 1.0) -> Data:
    """Rows and queries of one length, drawn around ten centres."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((10, DIM))
    drawn = centres[rng.integers(10, size=ROWS + QUERIES)]
    drawn = drawn + 0.6 * rng.standard_normal(drawn.shape)
    unit = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    neighbors = np.argsort(-(unit[ROWS:] @ unit[:ROWS].T), axis=1, kind="stable")[:, :K]
    return Data("small", unit[:ROWS] * length, unit[ROWS:] * length, neighbors)


def write(path: Path, of: Data, distance: str = "angular") -> Path:
    """A file in the layout of ann-benchmarks."""
    neighbors = np.hstack([of.neighbors, of.neighbors]).astype(np.int32)
    with h5py.File(path, "w") as file:
        file.attrs["distance"] = distance
        file["train"], file["test"], file["neighbors"] = of.rows, of.queries, neighbors
    return path


@pytest.mark.parametrize(
    ("distance", "length"),
    [("angular", 3.0), ("cosine", 0.5), ("normalized", 1.0), ("euclidean", 1.0), ("ip", 1.0)],
)
def test_a_file_is_read_as_unit_rows(tmp_path: Path, distance: str, length: float) -> None:
    read = read_hdf5(write(tmp_path / "small.hdf5", data(length), distance))
    assert read.name == "small"
    np.testing.assert_allclose(read.rows, data().rows, atol=1e-7)
    np.testing.assert_allclose(read.queries, data().queries, atol=1e-7)
    np.testing.assert_array_equal(read.neighbors, data().neighbors)
    again = exact("small", read.rows, read.queries)
    np.testing.assert_array_equal(again.neighbors, data().neighbors)


def requests(ladders: list[list[Setting]]) -> Requests:
    """A side whose setting says how many of the true neighbors it finds."""
    truth = np.arange(20 * K).reshape(20, K)

    def configure(threads: int, found: int, slow: int = 0) -> object:
        def search(queries: np.ndarray) -> np.ndarray:
            sum(range(slow * len(queries)))
            rows = truth[queries[:, 0].astype(int)].copy()
            rows[:, found:] = -1
            return rows

        return search

    queries = np.arange(20, dtype=np.float32)[:, None]
    return Requests(Index(configure, ladders), queries, truth)  # type: ignore[arg-type]


def test_the_fastest_setting_that_reaches_the_target_is_chosen() -> None:
    slow = [{"found": found, "slow": 20_000} for found in range(1, 10)]
    fast = [{"found": found} for found in range(1, 9)]
    side = requests([slow, fast])
    assert side.choose(0.75) == {"setting": {"found": 8}, "recall": 0.8, "reached": True}
    chosen = {"setting": {"found": 9, "slow": 20_000}, "recall": 0.9}
    assert side.choose(0.85) == chosen | {"reached": True}
    assert side.choose(0.95) == chosen | {"reached": False}
    assert side.batch({"found": 7})["recall"] == pytest.approx(0.7)


@pytest.mark.parametrize("name", SIDES)
def test_every_side_finds_the_neighbors(tmp_path: Path, name: str) -> None:
    if name != OURS:
        pytest.importorskip(PEERS[name][0])
    for part in ("rows", "queries", "neighbors"):
        np.save(tmp_path / f"{part}.npy", getattr(data(), part))
    with Stopped(name, tmp_path) as side:
        if reason := side.about.get("left_out"):
            pytest.skip(reason)  # of these dimensions, or this processor
        chosen = side.ask(do="choose", target=0.95)
        assert chosen["reached"] and chosen["recall"] >= 0.95
        assert side.ask(do="alone", setting=chosen["setting"], count=5) > 0


@pytest.mark.long
def test_a_file_in_figures_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours by both kernels, and faiss, from end to end."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setattr("record.RESULTS", tmp_path / "out")
    arguments = ["--hdf5", str(write(tmp_path / "small.hdf5", data(3.0))), "--rounds", "2"]
    done = CliRunner().invoke(main, [*arguments, "--peer", "faiss", "--peer", "ours by faiss"])
    assert done.exit_code == 0, done.output
    assert "recall@10 0.98: 1200 rows, small" in done.output and "BLAS of numpy" in done.output
    (written,) = (tmp_path / "out").glob("*.json")
    figures = json.loads(written.read_text())["search_speed"]
    assert figures["rows"] == ROWS and set(figures["sides"]) == {OURS, "ours by faiss", "faiss"}
    for about in figures["sides"].values():
        at = about["at 0.95"]
        assert at["reached"] and at["batch_us"]["n"] == at["alone_times_ours"]["n"] == 2
    ratios = figures["sides"][OURS]["at 0.98"]["batch_times_ours"]
    assert ratios["median"] == ratios["q1"] == 1
