"""A small disk that fills, and commands that run on it: a tmpfs in a mount namespace of a child.

tests/faults.c lets calls fail with ENOSPC. It cannot show what a store to mapped memory does where
there is no room: only a real file system raises SIGBUS. A command runs to see how much room it
takes, then with parts of that. It must end by itself, with one sentence on stderr if it fails.
Then there is room again: the collection must verify and hold what it held, or all of the change;
and the same command, run again, must succeed and leave nothing but what it writes.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import filelock  # noqa: F401  # else each child would import it, and those below
import rich.progress  # noqa: F401

from searchengine.backends.folder.collection import Collection
from searchengine.cli import cli
from searchengine.corpus import language_traits
from searchengine.upkeep.verify import verify

_NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS, for Python 3.11
_LARGE = 1 << 29  # bytes of the disk before it is made small
_PAGE = 4096
_RANDOM = re.compile("[0-9a-f]{32}|[0-9]{6}")
_LIBRARIES = {"torchinductor_root"}  # temporary folders that are not ours


@dataclass(frozen=True)
class Case:
    """A command to run in the folder of the disk, which holds copies of some files.

    Attributes:
        files: names of the files to copy; NAME>OTHER renames the copy.
        held: numbers of documents that the collection `c` may hold afterwards; none: there is none.
        before: what is done to the disk first.
        repairs: whether the collection is damaged until the command succeeds.
        around: what the command runs in.
        sentence: how the line about a full disk looks.
    """

    arguments: Sequence[str]
    files: Sequence[str]
    held: Sequence[int] = ()
    before: Callable[[Path], None] = lambda _: None
    repairs: bool = False
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    sentence: str = "Error: "


@dataclass
class Found:
    """What happened to a command."""

    points: int = 0
    room: int = 0  # bytes that it takes
    refused: int = 0
    sentences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@cache
def missing() -> str | None:
    """Why no disk can be mounted here; None if one can."""
    if sys.platform != "linux":
        return "a small disk is mounted in a namespace, on Linux"
    child = os.fork()
    if child == 0:
        try:
            with tempfile.TemporaryDirectory() as folder:
                enter_namespace()
                _mount(Path(folder), _LARGE)
                subprocess.run(["umount", folder], check=True)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return "mounting a small disk needs root" if os.waitpid(child, 0)[1] else None


def enter_namespace() -> None:
    """Leave the mounts of other processes."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)


def _mount(disk: Path, size: int, *options: str) -> None:
    what = ["-t", "tmpfs", "-o", ",".join([*options, f"size={size}"]), "tmpfs", str(disk)]
    subprocess.run(["mount", *what], check=True, capture_output=True)


class Disk:
    """A small disk, with the files of a case and the folders for temporary files and caches."""

    def __init__(self, place: Path, sources: Path) -> None:
        self.place, self._sources = place, sources
        place.mkdir(exist_ok=True)

    def fill(self, case: Case) -> None:
        """A new disk."""
        while not subprocess.run(["umount", str(self.place)], capture_output=True).returncode:
            pass
        _mount(self.place, _LARGE)
        for name in case.files:
            name, _, other = name.partition(">")
            source, target = self._sources / name, self.place / (other or name)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)
        for name in ("tmp", "cache"):
            (self.place / name).mkdir()
        case.before(self.place)

    @property
    def used(self) -> int:
        """Bytes."""
        status = os.statvfs(self.place)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def leave(self, free: int) -> None:
        """Have so much room from now on."""
        _mount(self.place, max(_PAGE, self.used + free), "remount")

    def make_room(self) -> None:
        """As much as before."""
        _mount(self.place, _LARGE, "remount")


@dataclass(frozen=True)
class Ended:
    """How a process ended; room: the most bytes that it took."""

    status: int
    errors: str
    room: int


def _run(disk: Disk, work: Callable[[], object], log: Path, seconds: int = 120) -> Ended:
    """Do something in a child, whose current and temporary folders are on the disk."""
    before, most, done = disk.used, 0, threading.Event()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out if number == 2 else os.open(os.devnull, os.O_WRONLY), number)
        sys.stderr = open(2, "w", closefd=False)
        sys.stdout = open(1, "w", closefd=False)
        os.chdir(disk.place)
        temporary = str(disk.place / "tmp")
        tempfile.tempdir = temporary
        os.environ |= {"TMPDIR": temporary, "SQLITE_TMPDIR": temporary}
        os.environ["XDG_CACHE_HOME"] = str(disk.place / "cache")
        code: Any = 1
        try:
            work()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, disk.used - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = os.waitpid(child, 0)[1]
    done.set()
    watcher.join()
    return Ended(status, log.read_text(errors="replace"), max(most, disk.used - before))


def try_case(name: str, case: Case, disk: Disk, points: int) -> Found:  # noqa: C901
    """Run a command with enough room, then with less."""
    found, log = Found(), disk.place.parent / "stderr"
    after = disk.place.parent / "after"

    def command() -> None:
        with case.around():
            cli.main([*case.arguments], prog_name="searchengine")

    def check() -> None:
        collection = Collection(disk.place / "c")
        verify(collection)
        count = collection.store.count()
        collection.close()
        assert count in case.held, f"{count} documents, expected {case.held}"

    def run_with(free: int) -> Ended:
        disk.fill(case)
        disk.leave(free)
        ended = _run(disk, command, log)
        disk.make_room()
        return ended

    disk.fill(case)
    ended = _run(disk, command, log)
    if ended.status:
        found.problems.append(f"{name} failed with enough room: {ended.errors}")
        return found
    found.room, whole = ended.room, _names(disk.place)
    while run_with(found.room).status:  # what was there for a moment only was not seen
        found.room += max(_PAGE, found.room // 4)
    for point in range(points):
        free = found.room * point // points // _PAGE * _PAGE
        where = f"{name} with {free} of {found.room} bytes"
        ended = run_with(free)
        found.points += 1
        found.problems += [f"{where}: {each}" for each in _faults(ended, case.sentence)]
        if ended.status:
            found.refused += 1
            found.sentences.append(
                ended.errors.strip().splitlines()[-1:][0] if ended.errors else ""
            )
        if left := set(os.listdir(disk.place / "tmp")) - _LIBRARIES:
            found.problems.append(f"{where}: left in the temporary folder: {left}")
        steps = [command] if ended.status else []
        if case.held:
            steps = [check, *steps, check] if not case.repairs else [*steps, check]
        for step in steps:
            again = _run(disk, step, after)
            if again.status:
                found.problems.append(f"{where}, with room again: {again.errors[-2000:]}")
        if ended.status and (others := sorted(_names(disk.place) ^ whole)):
            found.problems.append(f"{where}: left over, or lacking: {others}")
    found.sentences = sorted(set(found.sentences))
    return found


def _faults(ended: Ended, sentence: str) -> list[str]:
    """What a command must not do on a full disk."""
    if os.WIFSIGNALED(ended.status):
        return [f"ended by {signal.Signals(os.WTERMSIG(ended.status)).name}"]
    if not ended.status:
        return []
    lines = [line for line in ended.errors.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(sentence, line)]
    if len(errors) != 1 or lines[-1:] != errors or any("Traceback" in line for line in lines):
        return [f"said {ended.errors[-2000:]!r}"]
    return []


def _names(disk: Path) -> set[str]:
    """The files and folders of a disk, without numbers and random parts of names."""
    names = set()
    for path in disk.rglob("*"):
        relative = path.relative_to(disk)
        if relative.parts[0] in ("cache", "tmp"):
            continue
        kept = [_RANDOM.sub("#", part) for part in relative.parts]
        names.add("/".join(kept))
    return names


def campaign(
    cases: dict[str, Case], prepare: Callable[[Path], None], points: int
) -> dict[str, Any]:
    """Try commands in a namespace of a child; name → Found. `prepare` fills a folder with files."""
    language_traits._identifier()  # loaded once, by way of 65 MB of temporary files
    with tempfile.TemporaryDirectory(prefix="full-disk-") as name:
        folder = Path(name)
        (folder / "sources").mkdir()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                enter_namespace()
                disk = Disk(folder / "disk", folder / "sources")
                _mount(disk.place, _LARGE)
                (disk.place / "tmp").mkdir()
                ended = _run(disk, lambda: prepare(folder / "sources"), folder / "prepared")
                assert not ended.status, ended.errors
                results = {}
                for each, case in cases.items():
                    results[each] = vars(try_case(each, case, disk, points))
                    print(json.dumps({each: results[each]}), file=sys.stderr, flush=True)
                (folder / "found").write_text(json.dumps(results))
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                subprocess.run(["umount", str(folder / "disk")], capture_output=True)
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            raise AssertionError("the campaign failed; see stderr")
        found: dict[str, Any] = json.loads((folder / "found").read_text())
        return found
