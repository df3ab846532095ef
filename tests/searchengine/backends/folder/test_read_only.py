"""A collection on a disk that cannot be written: a mount of this process alone, or by its mode."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from faults import in_child

from searchengine import SearchEngine
from searchengine.errors import CollectionError

_NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS, for Python 3.11


def enter_namespace() -> None:
    """Leave the mounts of other processes."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)


def mounts() -> bool:
    """Whether this user may mount something in a namespace of its own."""
    return not in_child(lambda say: enter_namespace()).problem


pytestmark = pytest.mark.skipif(
    os.geteuid() == 0 and not (sys.platform == "linux" and mounts()),
    reason="root needs a mount to have a disk that it cannot write",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder that was copied while its engine had a log: as after a power cut."""
    path = tmp_path / "disk" / "c"
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": str(i), "text": "x" * (i + 1)} for i in range(9)])
        engine.update({"3": {"n": 1}})
        shutil.copytree(tmp_path / "c", path)
    assert (path / "documents.db-wal").stat().st_size
    return path


def on_read_only_disk(path: Path, work: Callable[[], Any]) -> Any:
    """Do something in a child that cannot write the folder above; what it returns."""
    disk = path.parent

    def child(say: Callable[[Any], None]) -> None:
        if os.geteuid() == 0:
            enter_namespace()
            for options in ("bind", "remount,bind,ro"):
                command = ["mount", "-o", options, str(disk), str(disk)]
                subprocess.run(command, check=True, capture_output=True)
        with pytest.raises(OSError):
            (path / "written").touch()
        say(work())

    folders = [each for each in (disk, *disk.rglob("*")) if each.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        outcome = in_child(child)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert outcome.problem is None, outcome.problem
    return outcome.said[0]


@pytest.mark.parametrize("log", [True, False])
def test_the_last_commit_is_read(path: Path, log: bool) -> None:
    if not log:  # as the last process to close leaves it
        SearchEngine.open(path, WordLengths()).close()
        assert not (path / "documents.db-wal").exists()

    def read() -> list[Any]:
        with SearchEngine.open(path, WordLengths()) as engine:
            engine.verify()
            engine.refresh()
            document = engine.get("3")
            assert document is not None
            with pytest.raises(CollectionError, match=r"readonly|read-only"):
                engine.delete(["3"])
            return [len(engine), document.metadata, engine.search("xx", 1)[0].text]

    assert on_read_only_disk(path, read) == [9, {"n": 1}, "xx"]


def test_a_log_that_a_power_cut_has_left_must_be_read_once(path: Path) -> None:
    (path / "documents.db-shm").unlink()

    def read() -> str:
        with pytest.raises(CollectionError) as refused:
            SearchEngine.open(path, WordLengths())
        return str(refused.value)

    assert on_read_only_disk(path, read).endswith(f"make {path} writable once and open it there")
    with SearchEngine.open(path, WordLengths()) as engine:
        assert len(engine) == 9
