"""The search benchmark: files of ann-benchmarks read and written, settings, absent peers."""

import json
import sys
from pathlib import Path

import click
import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import REPOSITORY
from search_sides import OURS, PEERS, SIDES, Index, K, Requests, Setting, be, prefix, recall
from search_speed import Data, Stopped, exact, main, read_hdf5

ROWS, QUERIES, DIM = 1200, 60, 64  # more rows than a segment searches exactly


def data(length: float = 1.0, distance: str = "angular") -> Data:
    """Rows and queries of one length, drawn around ten centres."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((10, DIM))
    drawn = centres[rng.integers(10, size=ROWS + QUERIES)]
    drawn = drawn + 0.6 * rng.standard_normal(drawn.shape)
    unit = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    neighbors = np.argsort(-(unit[ROWS:] @ unit[:ROWS].T), axis=1, kind="stable")[:, :K]
    return Data("small", distance, unit[:ROWS] * length, unit[ROWS:] * length, neighbors)


def write(path: Path, of: Data, **changed: object) -> Path:
    """A file in the layout of ann-benchmarks."""
    neighbors = np.hstack([of.neighbors, of.neighbors]).astype(np.int32)
    sets = {"train": of.rows, "test": of.queries, "neighbors": neighbors} | changed
    with h5py.File(path, "w") as file:
        file.attrs["distance"] = of.distance
        for name, values in sets.items():
            if values is not None:
                file[name] = values
    return path


@pytest.mark.parametrize(
    ("distance", "length"),
    [("angular", 3.0), ("cosine", 0.5), ("normalized", 1.0), ("euclidean", 1.0), ("ip", 1.0)],
)
def test_a_file_is_read_as_unit_rows(tmp_path: Path, distance: str, length: float) -> None:
    read = read_hdf5(write(tmp_path / "small.hdf5", data(length, distance)))
    assert (read.name, read.distance) == ("small", distance)
    np.testing.assert_allclose(read.rows, data().rows, atol=1e-7)
    np.testing.assert_allclose(read.queries, data().queries, atol=1e-7)
    np.testing.assert_array_equal(read.neighbors, data().neighbors)
    again = exact("small", read.rows, read.queries)
    np.testing.assert_array_equal(again.neighbors, data().neighbors)


@pytest.mark.parametrize(
    ("changed", "of", "message"),
    [
        ({}, data(distance="hamming"), "distance must be one of angular, .*, ip, got hamming"),
        ({}, data(2.0, "euclidean"), "euclidean needs vectors of length 1, got lengths from 2 to"),
        ({}, data(2.0, "ip"), "distance ip needs vectors of length 1"),
        ({"neighbors": None}, data(), "has no data set neighbors"),
        ({"neighbors": data().neighbors[:, :9]}, data(), "must have 10 columns, got 9"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, changed: dict[str, object], of: Data, message: str
) -> None:
    with pytest.raises(click.UsageError, match=message):
        read_hdf5(write(tmp_path / "small.hdf5", of, **changed))


@pytest.mark.parametrize(
    ("distance", "expected"),
    [("angular", [0.0, 1.0, 2.0]), ("ip", [-1.0, 0.0, 1.0]), ("euclidean", [0, 2**0.5, 2])],
)
def test_distances(distance: str, expected: list[float]) -> None:
    rows = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    small = Data("small", distance, rows, rows[:1], np.zeros((1, K), np.int64))
    np.testing.assert_allclose(small.distances(np.array([[0, 1, 2]])), [expected], rtol=1e-6)


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
    assert side.results({"found": K}, batch=True)["rows"] == np.arange(200).reshape(20, K).tolist()
    assert len(side.results({"found": 2}, batch=False)["seconds"]) == 20


@pytest.mark.parametrize(("dim", "width"), [(24, 24), (100, 64), (384, 128), (768, 192)])
def test_the_prefix_is_a_quarter(dim: int, width: int) -> None:
    assert prefix(dim) == width


def test_a_peer_that_is_not_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rabitqlib", None)
    for part in ("queries", "neighbors"):
        np.save(tmp_path / f"{part}.npy", getattr(data(), part))
    _, about = be("symphonyqg", str(tmp_path))
    assert "ModuleNotFoundError: import of rabitqlib" in about["left_out"]


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


def test_a_file_in_results_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours and faiss, from end to end; figures and files agree."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    source = data(3.0)
    arguments = ["--hdf5", write(tmp_path / "small.hdf5", source), "--out", tmp_path / "out"]
    done = CliRunner().invoke(main, [*map(str, arguments), "--rounds", "2", "--peer", "faiss"])
    assert done.exit_code == 0, done.output
    assert "recall@10 0.98: 1200 rows, small" in done.output and "BLAS of numpy" in done.output
    (written,) = (tmp_path / "out").glob("*.json")
    figures = json.loads(written.read_text())["search_speed"]
    assert figures["rows"] == ROWS and set(figures["sides"]) == {OURS, "faiss"}
    for name, about in figures["sides"].items():
        at = about["at 0.95"]
        assert at["reached"] and at["batch_us"]["n"] == at["alone_times_ours"]["n"] == 2
        setting = "_".join(f"{key}_{value}" for key, value in at["setting"].items())
        for batch in (False, True):
            path = tmp_path / "out" / "small" / "10" / (name + "-batch" * batch)
            with h5py.File(path / f"{setting}.hdf5") as file:
                noted = dict(file.attrs)
                rows, distances = file["neighbors"][:], file["distances"][:]
                assert (file["times"][:] > 0).all() and file["times"].dtype == np.float32
            assert noted["algo"] == name and noted["dataset"] == "small"
            assert (noted["count"], noted["candidates"], noted["run_count"]) == (10, 10, 1)
            assert noted["distance"] == "angular" and noted["batch_mode"] == batch
            assert noted["build_time"] == about["build_s"] and noted["index_size"] > 0
            assert rows.shape == (QUERIES, K) and rows.dtype == np.int32
            unit = data()
            cosines = np.einsum("qd,qkd->qk", unit.queries, unit.rows[rows])
            np.testing.assert_allclose(distances, 1 - cosines, atol=1e-6)
            half = QUERIES // 2
            assert recall(rows[half:], source.neighbors[half:]) == pytest.approx(at["recall"])
    ratios = figures["sides"][OURS]["at 0.98"]["batch_times_ours"]
    assert ratios["median"] == ratios["q1"] == 1
