"""Killed at every write, sync and rename; power cut: the collection holds whole commits."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from campaign_results import Results
from conftest import REPOSITORY
from faults import Record, campaign, missing
from powercut import Disk, Lost

DRIVER = REPOSITORY / "tests" / "campaign.py"
pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def faults(scenario: str, few: int, many: int) -> list[Any]:
    """A scenario with few faults in every run of the tests, and with many in a long one.

    few: 0 leaves it to the long one.
    """
    return [
        *([(scenario, few)] if few else []),
        pytest.param(scenario, many, marks=pytest.mark.long),
    ]


@pytest.mark.parametrize(
    ("scenario", "points"),
    [
        *faults("add", 7, 1000),
        *faults("create", 0, 40),
        *faults("stream", 0, 50),
        *faults("changes", 5, 150),
        *faults("merge", 9, 400),
        pytest.param("long", 80, marks=pytest.mark.long),
    ],
)
def test_a_killed_writer_leaves_whole_commits(scenario: str, points: int) -> None:
    tally = campaign("kill", "--scenario", scenario, "--points", str(points), "--seed", "1")
    assert tally["problems"] == []
    assert tally["faults"] >= min(points, 40)
    rare = {"kill sync"} if points >= 40 else set()
    assert {"kill write", "tear write", *rare} <= tally["kinds"].keys()


@pytest.mark.parametrize(
    ("scenario", "points"),
    [
        *faults("add", 0, 60),
        *faults("create", 16, 40),
        *faults("stream", 0, 40),
        *faults("changes", 16, 120),
        *faults("merge", 16, 400),
        pytest.param("long", 60, marks=pytest.mark.long),
    ],
)
def test_a_power_cut_loses_no_acknowledged_commit(scenario: str, points: int) -> None:
    tally = campaign("cut", "--scenario", scenario, "--points", str(points), "--seed", "1")
    assert tally["problems"] == []
    assert tally["kinds"].keys() == {lost.value for lost in Lost}


@pytest.mark.long  # it tests the campaign, not the product
def test_the_campaign_notices_a_change_in_two_commits() -> None:
    tally = campaign("kill", "--scenario", "broken", "--points", "40")
    assert any("none of what it may" in problem for problem in tally["problems"])


@pytest.mark.long  # it tests the campaign, not the product
def test_the_campaign_notices_that_nothing_is_synced() -> None:
    tally = campaign("cut", "--scenario", "adds", "--points", "40", "--unsynced")
    assert any("manifest.json" in problem for problem in tally["problems"])


@pytest.mark.long
def test_a_campaign_goes_on_where_it_ended(tmp_path: Path) -> None:
    results = tmp_path / "found.jsonl"

    def seeds(wanted: str) -> int:
        arguments = ["kill", "--scenario", "add", "--points", "2", "--seeds", wanted]
        done = subprocess.run(
            [sys.executable, str(DRIVER), *arguments, "--results", str(results)],
            capture_output=True,
            text=True,
            check=True,
        )
        return len(done.stdout.splitlines())

    assert [seeds("0:1"), seeds("0:2")] == [1, 1]
    assert "(current source): 2 pieces" in Results(results).summary()
    assert Results(results).pieces()[1].counts["faults"] == 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one file, which is safe."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").write_bytes(b"old")
    return root


def call(kind: str, root: Path, name: str, to: str = "", at: int = 0, data: bytes = b"") -> Record:
    return Record(kind, f"{root}/{name}".rstrip("/"), f"{root}/{to}" if to else "", at, data)


def after_cut(disk: Disk, to: Path, lost: Lost, seed: int = 0) -> dict[str, bytes]:
    disk.write_after_cut(to, lost, seed)
    return {str(f.relative_to(to)): f.read_bytes() for f in to.rglob("*") if f.is_file()}


def test_unsynced_writes_are_lost(root: Path, tmp_path: Path) -> None:
    disk = Disk(root)
    for record in (
        call("w", root, "old", at=1, data=b"LDER"),
        call("m", root, "sub"),
        call("c", root, "sub/new"),
        call("w", root, "sub/new", at=2, data=b"new"),
    ):
        disk.apply(record)
    assert after_cut(disk, tmp_path / "1", Lost.NOTHING) == {"old": b"oLDER", "sub/new": b"\0\0new"}
    assert after_cut(disk, tmp_path / "2", Lost.ALL) == {"old": b"old"}
    assert after_cut(disk, tmp_path / "3", Lost.DATA) == {"old": b"old", "sub/new": b""}
    assert after_cut(disk, tmp_path / "4", Lost.NAMES) == {"old": b"oLDER"}
    disk.apply(call("s", root, "sub/new"))
    assert after_cut(disk, tmp_path / "5", Lost.DATA) == {"old": b"old", "sub/new": b"\0\0new"}
    assert after_cut(disk, tmp_path / "6", Lost.ALL) == {"old": b"old"}
    disk.apply(call("S", root, "sub"))
    disk.apply(call("S", root, ""))
    assert after_cut(disk, tmp_path / "7", Lost.ALL) == {"old": b"old", "sub/new": b"\0\0new"}


def test_a_rename_is_whole_or_not_at_all(root: Path, tmp_path: Path) -> None:
    disk = Disk(root)
    disk.apply(call("c", root, "new"))
    disk.apply(call("S", root, ""))
    disk.apply(call("r", root, "new", "old"))
    assert after_cut(disk, tmp_path / "all", Lost.ALL) == {"old": b"old", "new": b""}
    assert after_cut(disk, tmp_path / "data", Lost.DATA) == {"old": b""}
    some = [after_cut(disk, tmp_path / str(i), Lost.SOME, seed=i) for i in range(20)]
    assert {len(files) for files in some} == {1, 2}


def test_a_write_is_torn_between_sectors(root: Path, tmp_path: Path) -> None:
    disk = Disk(root)
    disk.apply(call("w", root, "old", at=500, data=b"x" * 1036))  # ends at the third sector's end
    some = [after_cut(disk, tmp_path / str(i), Lost.SOME, seed=i)["old"] for i in range(60)]
    kept = {tuple(part[-1:] == b"x" for part in (c[:512], c[512:1024], c[1024:])) for c in some}
    assert len(kept) == 8  # of three sectors each subset, once in 60 tries
