"""Commands disturbed at every step (tests/fault_harness.py), and files that are damaged."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from conftest import REPOSITORY, WordLengths
from faults import Record, missing
from powercut import Disk
from scenarios import document

from searchengine import SearchEngine
from searchengine.errors import CollectionError


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize(
    "options", [["--points", "1"], pytest.param([], marks=pytest.mark.long, id="all")]
)
@pytest.mark.long
def test_a_disturbed_command_happens_whole_or_not_at_all(options: list[str]) -> None:
    program = [sys.executable, "tests/fault_harness.py", *options]
    ended = subprocess.run(
        program, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True, timeout=20_000
    )
    tallies = [json.loads(line) for line in ended.stdout.splitlines()]
    problems = {each["command"]: each["problems"] for each in tallies if each["problems"]}
    assert (ended.returncode, problems) == (0, {}), ended.stderr[-2000:]
    assert all(each["kill"] and each["full"] and each["cut"] for each in tallies)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "c"
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([document(number) for number in range(5)])
    return path


def damages(file: Path) -> list[tuple[str, bytes | None]]:
    """Ways to damage a file, and what is left of it: bits flipped, its end cut off, taken away."""
    data = file.read_bytes()
    ways: list[tuple[str, bytes | None]] = [("gone", None), ("half", data[: len(data) // 2])]
    for place in Random(0).sample(range(len(data)), min(6, len(data))):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        ways.append((f"bit of {place}", bytes(flipped)))
    return ways


def test_verify_finds_every_damaged_file_of_a_segment(whole: Path, tmp_path: Path) -> None:
    names = [file.relative_to(whole) for file in whole.glob("segments/*/*")]
    assert len(names) >= 4
    for name in names:
        for way, left in damages(whole / name):
            shutil.rmtree(tmp_path / "c", ignore_errors=True)
            shutil.copytree(whole, tmp_path / "c")
            (tmp_path / "c" / name).unlink()
            if left is not None:
                (tmp_path / "c" / name).write_bytes(left)
            with pytest.raises(CollectionError):
                with SearchEngine.open(tmp_path / "c", WordLengths()) as engine:
                    with suppress(CollectionError):
                        engine.search("x xx")
                    engine.verify()
                    pytest.fail(f"verify has not found {name}: {way}")


def test_a_damaged_database_is_named_or_harmless(whole: Path, tmp_path: Path) -> None:
    for _, left in damages(whole / "documents.db"):
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "c")
        (tmp_path / "c" / "documents.db").unlink()
        if left is not None:
            (tmp_path / "c" / "documents.db").write_bytes(left)
        with suppress(CollectionError):
            with SearchEngine.open(tmp_path / "c", WordLengths()) as engine:
                engine.search("x xx", k=20)
                engine.verify()
                engine.add([document(9)])


# --- what a disk holds after a cut: tests/powercut.py --------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one file, which is safe."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").write_bytes(b"old")
    return root


def call(kind: str, root: Path, name: str, to: str = "", at: int = 0, data: bytes = b"") -> Record:
    return Record(kind, f"{root}/{name}".rstrip("/"), f"{root}/{to}" if to else "", at, data)


def after_cut(disk: Disk, to: Path, seed: int | None = None) -> dict[str, bytes]:
    disk.write_after_cut(to, seed)
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
    assert after_cut(disk, tmp_path / "1") == {"old": b"old"}
    some = [after_cut(disk, tmp_path / f"s{seed}", seed) for seed in range(40)]
    for part in ({}, {"sub/new": b""}, {"sub/new": b"\0\0new"}):
        assert {"old": b"old", **part} in some and {"old": b"oLDER", **part} in some
    disk.apply(call("s", root, "sub/new"))
    assert after_cut(disk, tmp_path / "2") == {"old": b"old"}
    disk.apply(call("S", root, "sub"))
    disk.apply(call("S", root, ""))
    assert after_cut(disk, tmp_path / "3") == {"old": b"old", "sub/new": b"\0\0new"}
