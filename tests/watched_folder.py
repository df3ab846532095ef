"""A folder that changes by chance, and what a collection that follows it may hold."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from searchengine.ingest.folder_sync import Watcher

Held = Mapping[str, tuple[str, str]]
"""Key → title and text."""

_LOOK = 0.2  # seconds between two looks of `watch`, at most
_NAMES = ("a", "b", "c", "d", "e")
_FEWEST, _MOST = 2, 6  # files: of an empty folder nothing is removed


class WatchedFolder:
    """Text files, in a folder and one below it. Each change is made at once: by a rename.

    Attributes:
        path: the folder.
        prefix: of the keys of its documents.
        history: what a collection of the folder would hold, at first and after each change.
    """

    def __init__(self, path: Path, prefix: str, choose: Random, text: Callable[[], str]) -> None:
        """Make the folder. `text`: returns a new text at each call."""
        self.path, self.prefix = path, prefix
        self.history: list[Held] = [{}]
        self._choose, self._text = choose, text
        self._times = 10**9
        (path / "below").mkdir(parents=True)
        for _ in range(_FEWEST + 1):
            self._write(self._free())

    @property
    def now(self) -> int:
        """The index of the last change."""
        return len(self.history) - 1

    def change(self) -> str:
        """Write, add, move, rename or remove a file; returns a description of it."""
        files = self._files()
        file = self._choose.choice(files)
        kind = self._choose.choice(["write", "add", "move", "rename", "remove"])
        if len(files) > _MOST or (kind == "remove" and len(files) > _FEWEST):
            kind = "remove"
            file.unlink()
        elif kind == "move" and not (other := self._other(file)).exists():
            file.rename(other)
        elif kind == "rename":
            file.rename(self._free())
        else:
            kind, file = ("add", self._free()) if kind == "add" else ("write", file)
            return self._write(file)
        self._note()
        return f"{kind} {file.relative_to(self.path)}"

    def wrong_change(self, before: Held, after: Held, since: int) -> str | None:
        """Why a pass must not have made one state of another; None if it may have.

        A document of the folder may become what its file has been since a time, or go if there was
        no such file then. Others stay. `since`: the index of the last change before the pass.
        """
        for key in sorted(before.keys() | after.keys()):
            held = after.get(key)
            if held == before.get(key):
                continue
            if not key.startswith(self.prefix):
                return f"{key} is none of its documents"
            if held not in (possible := [held.get(key) for held in self.history[since:]]):
                return f"{key} became {held}, its file has been {possible}"
        return None

    def not_followed(self, held: Held, since: int) -> str | None:
        """Which document is not as its file, which has not changed since a time; None: none."""
        keys = {key for key in held if key.startswith(self.prefix)}
        for key in sorted(keys.union(*self.history[since:])):
            possible = {files.get(key) for files in self.history[since:]}
            if len(possible) == 1 and held.get(key) not in possible:
                return f"{key} is {held.get(key)}, and its file {possible}"
        return None

    def _write(self, file: Path) -> str:
        """Replace a file, which gets a time of its own: else a quick change might not be seen."""
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text(self._text())
        self._times += 1
        os.utime(new, (self._times, self._times))
        new.rename(file)
        self._note()
        return f"write {file.relative_to(self.path)}"

    def _note(self) -> None:
        self.history.append(
            {
                f"{self.prefix}{file.relative_to(self.path).as_posix()}": (
                    file.stem,
                    file.read_text(),
                )
                for file in self._files()
            }
        )

    def _files(self) -> list[Path]:
        return sorted(self.path.rglob("*.txt"))

    def _other(self, file: Path) -> Path:
        below = self.path / "below"
        return (self.path if file.parent == below else below) / file.name

    def _free(self) -> Path:
        """A path that no file has."""
        folders = (self.path, self.path / "below")
        paths = [folder / f"{name}.txt" for folder in folders for name in _NAMES]
        return self._choose.choice([path for path in paths if not path.exists()])


class Looks:
    """In place of folder_sync.Watcher: the looks of `watch` at its folder, without waiting."""

    def __init__(self, begin: Callable[[], None], end: Callable[[bool], bool]) -> None:
        """`begin` and `end` are called at each look; `end` returns whether it was the last.

        It is passed whether the collection should be in step with the folder.
        """
        self.stopped = False
        self.follow, self._end = begin, end

    def wait(self, seconds: float | None = None) -> None:
        """Called at the end of a look; None: all was read, and no file has changed meanwhile."""
        self.stopped = self._end(seconds is None)


class AskedWatcher(Watcher):
    """Ends watching when it is asked to, once the collection is in step with the folder."""

    asked: float | None = None  # when

    def follow(self) -> None:
        """A look begins."""
        self._began = time.monotonic()
        super().follow()

    def wait(self, seconds: float | None = None) -> None:
        """A look has ended. None: all was read, and no file has changed meanwhile."""
        if seconds is None and AskedWatcher.asked is not None and AskedWatcher.asked <= self._began:
            self._stop.set()
        super().wait(min(seconds or _LOOK, _LOOK))
