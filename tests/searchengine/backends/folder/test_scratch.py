"""What a process that was stopped leaves of a new folder, and who removes it."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
from conftest import REPOSITORY, WordLengths
from faults import in_mounts

from searchengine import SearchEngine
from searchengine.errors import CollectionError

# Stops in the midst of a backup or of creating a collection, and says so.
PROGRAM = """\
import shutil, signal, sys, time
import searchengine.backends.folder.store
from searchengine import SearchEngine
from searchengine.upkeep import copies
from searchengine.cli import cli
from conftest import REPOSITORY, WordLengths

def stop(*_):
    print("filling", flush=True)
    while True:
        time.sleep(0.05)  # not one long sleep: a signal just before it would wait for its end

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may run the tests, ignores it
copies.files.link_verified = stop
what, source, target = sys.argv[1:]
if what == "create":
    searchengine.backends.folder.store.Changes.set = stop
    SearchEngine.create(target, WordLengths())
else:
    if what == "export":
        searchengine.upkeep.copies.all_entries = stop
    cli([what, source, target])
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "source" / "c", WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "a bee"}, {"_id": "b", "text": "two bees"}])
        yield engine


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """The folder that copies are written to."""
    copies = tmp_path / "copies"
    copies.mkdir()
    return copies


@contextmanager
def filling(what: str, source: Path, target: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to fill a new folder, and goes on throughout the block."""
    command = [sys.executable, "-c", PROGRAM, what, str(source), str(target)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY / "tests",  # where conftest is
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "filling\n", process.stderr.read()
        try:
            yield process
        finally:
            process.kill()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def scratch_folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if re.fullmatch(r"\..+\.new", path.name)]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("what", ["backup", "export"])
def test_a_signal_ends_a_command_in_order(
    engine: SearchEngine, copies: Path, what: str, number: signal.Signals, status: int
) -> None:
    with filling(what, engine.collection.path, copies / "copy") as process:
        assert len(scratch_folders(copies)) == 1
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    assert stderr == f"Ended by {number.name}\n"
    assert names(copies) == []


def test_folders_of_a_live_process_are_not_removed(engine: SearchEngine, copies: Path) -> None:
    with filling("backup", engine.collection.path, copies / "slow"):
        (living,) = scratch_folders(copies)
        before = names(copies)
        engine.backup(copies / "quick")
        engine.export(copies / "export")
        SearchEngine.create(copies / "new", WordLengths()).close()
        assert names(copies) == sorted([*before, "quick", "export", "new"])
        assert (living / "segments").is_dir()
    engine.backup(copies / "after")
    assert names(copies) == ["after", "export", "new", "quick"]


def create(path: Path) -> None:
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "a bee"}])


def test_an_empty_folder_keeps_its_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "chosen"
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    path.chmod(0o2770)
    (link := tmp_path / "link").symlink_to(path)
    before = path.stat()
    create(link)
    after, database = path.stat(), path / "documents.db"
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )
    assert stat.S_IMODE(database.stat().st_mode) == 0o660
    assert names(path) == ["documents.db", "segments"] and names(tmp_path) == ["chosen", "link"]
    with pytest.raises(CollectionError, match="exists already"):
        create(path)


def test_the_current_folder_cannot_be_replaced(tmp_path: Path) -> None:
    with chdir(tmp_path), pytest.raises(CollectionError, match="name a folder inside it"):
        create(Path("."))
    assert names(tmp_path) == []


def test_a_mount_point_cannot_be_replaced(tmp_path: Path) -> None:
    """A file system of its own, as the volume of a container."""
    script = """
mount -t tmpfs none "$1" || exit 77
exec "$2" -c '
import sys
from searchengine import SearchEngine
from searchengine.errors import CollectionError
from conftest import WordLengths
try:
    SearchEngine.create(sys.argv[1], WordLengths())
except CollectionError as error:
    print(str(error).partition(";")[2])
with SearchEngine.create(sys.argv[1] + "/c", WordLengths()) as engine:
    engine.add([{"_id": "a", "text": "a bee"}])
    print(list(engine.keys()))
' "$1"
"""
    assert in_mounts(script, tmp_path) == " name a folder inside it\n['a']\n"
