"""The files of a folder: which have changed since they were read, and waiting for a change.

FolderState finds the changes; the events of watchfiles may be lost and only wake it. Every folder
is watched by itself: a recursive watch would follow links, out of the folder and in circles.
"""

import time
from collections.abc import Hashable, Iterable
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple, Self

from searchengine.corpus.files import Unread, check_corpus, folder_files, folders_below
from searchengine.corpus.formats.kinds import AS_THEY_ARE, FileChoice
from searchengine.errors import CorpusError

RECENT = 2.0
"""Seconds in which a file system may give two writes the same time."""
_ATTEMPTS, _PAUSE = 10, 0.05  # to list a folder that changes meanwhile


class Stamp(NamedTuple):
    """Properties of a file that change when it is written again."""

    inode: int
    size: int
    modified: int
    changed: int


class Listing(NamedTuple):
    """The files of a folder at one time: path below the folder → stamp; and which to read.

    `collection`: the one that they are to be read into, see `FolderState.look`.
    """

    files: dict[str, Stamp]
    changed: list[str]
    unsettled: set[str]
    collection: Hashable = None


class FolderState:
    """The stamps of the files that were read, in memory."""

    def __init__(self, folder: Path, choice: FileChoice = AS_THEY_ARE) -> None:
        """`folder`: absolute."""
        self.folder, self._choice = folder, choice
        self._stamps: dict[str, Stamp | None] = {}  # None: to be read again
        self._collection: Hashable = None  # the one that the files were read into
        self._fresh: dict[str, tuple[Stamp, float]] = {}  # a recent stamp, and when it was seen

    def look(self, unread: Unread, collection: Hashable = None) -> Listing:
        """List the folder; `unread` counts files that are not read. Raises CorpusError, OSError.

        `collection`: what identifies the collection. Another one, such as a backup that was put in
        its place, has not read what the one before has: every file has changed.
        """
        check_corpus(self.folder)
        if not self.folder.is_dir():
            raise CorpusError(f"{self.folder} is not a folder; name the folder to mirror")
        now, began = time.time(), time.monotonic()
        files = {}
        for path in _listed(self.folder, unread, self._choice):
            if stamp := _stamp(path):
                files[path.relative_to(self.folder).as_posix()] = stamp
        stamps = self._stamps if collection == self._collection else {}
        changed = [path for path, stamp in files.items() if stamps.get(path) != stamp]
        # A file just written may be written again without another time: it is read again later.
        # Its time may be by another clock, and in the future: then it is settled once it has stayed
        # the same as long by this clock.
        listed = time.monotonic()
        fresh = {path: stamp for path, stamp in files.items() if now - stamp.changed / 1e9 < RECENT}
        seen = {path: at for path, (stamp, at) in self._fresh.items() if fresh.get(path) == stamp}
        self._fresh = {path: (stamp, seen.get(path, listed)) for path, stamp in fresh.items()}
        recent = {
            path for path in changed if path in fresh and began - seen.get(path, began) < RECENT
        }
        return Listing(files, changed, recent, collection)

    def has_changed(self, listing: Listing) -> bool:
        """Whether files have appeared, changed or gone, or another collection is to read them."""
        return (
            bool(listing.changed)
            or listing.files.keys() != self._stamps.keys()
            or listing.collection != self._collection
        )

    def done(self, listing: Listing) -> bool:
        """Note that the changed files of a listing were read; True if all were settled."""
        unsettled = set(listing.unsettled)
        for path in listing.changed:
            if _stamp(self.folder / path) != listing.files[path]:  # written while it was read
                unsettled.add(path)
        self._stamps = {
            path: None if path in unsettled else stamp for path, stamp in listing.files.items()
        }
        self._collection = listing.collection
        return not unsettled


def _listed(folder: Path, unread: Unread, choice: FileChoice) -> Iterable[Path]:
    """The files; tries again if a folder below it goes meanwhile.

    Raises CorpusError if a folder below it cannot be read.
    """
    for attempt in range(_ATTEMPTS + 1):
        listed = Unread()
        try:
            files = folder_files(folder, listed, choice)
            break
        except (FileNotFoundError, NotADirectoryError):
            if attempt == _ATTEMPTS or not folder.is_dir():
                raise
            time.sleep(_PAUSE)
    if listed.failed.count:  # nobody can tell which files of that folder are gone
        raise CorpusError(listed.failed.first[0])
    unread.kinds, unread.ignored = listed.kinds, listed.ignored
    return files


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


_TIMES = {"debounce": 500, "step": 50, "rust_timeout": 100}  # milliseconds: changes close together
_LOOK = 10.0  # seconds after which the folder is looked at without an event
_SHARE = 50  # the same, in times that a look takes
_UNWATCHED = 1.0  # the same, where folders cannot be watched
_TURN = 0.2  # seconds in which `stop` is noticed


class Watcher:
    """Watches a folder in a thread. A context manager."""

    def __init__(
        self, folder: Path, stop: Event | None = None, choice: FileChoice = AS_THEY_ARE
    ) -> None:
        """`stop`: ends waiting."""
        import watchfiles

        self._watch = watchfiles.watch
        self._folder, self._choice = folder, choice
        self._stop = Event() if stop is None else stop
        self._changed = Event()
        self._folders: dict[Path, int] = {}
        self._listener: _Listener | None = None
        self._took = 0.0  # seconds of the last look at the folders

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def stopped(self) -> bool:
        """Whether to end."""
        return self._stop.is_set()

    def follow(self) -> None:
        """Watch the folders that there are now; what changes from here on ends the next wait."""
        self._changed.clear()
        began = time.monotonic()
        folders = {}
        for folder in folders_below(self._folder, self._choice):
            try:
                folders[folder] = folder.stat().st_ino
            except OSError:  # gone already
                continue
        self._took = time.monotonic() - began
        if self._listener is not None and self._listener.is_alive() and folders == self._folders:
            return
        self._end()
        if folders:
            self._folders = folders
            self._listener = _Listener(self._watch, list(folders), self._changed)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for a change, for `seconds`, or until it is time to look without one."""
        watched = self._listener is not None and self._listener.is_alive()
        most = max(_LOOK if watched else _UNWATCHED, _SHARE * self._took)
        end = time.monotonic() + (most if seconds is None else seconds)
        while not self.stopped and (remaining := end - time.monotonic()) > 0:
            if self._changed.wait(min(remaining, _TURN)):
                break

    def _end(self) -> None:
        if self._listener is not None:
            self._listener.end()
            self._listener = None


class _Listener(Thread):
    """Sets an event when watchfiles reports a change. Has begun to watch when it is made."""

    def __init__(self, watch: Any, folders: list[Path], changed: Event) -> None:
        super().__init__(name="watching", daemon=True)
        self._watch, self._folders, self._changed = watch, folders, changed
        self._begun, self._ended = Event(), Event()
        self.start()
        self._begun.wait()

    def run(self) -> None:
        """Until `end`, or until a folder cannot be watched: it is gone, or there are too many."""
        try:
            for changes in self._watch(
                *self._folders,
                watch_filter=None,
                stop_event=self._ended,
                yield_on_timeout=True,
                recursive=False,
                ignore_permission_denied=True,
                **_TIMES,
            ):
                self._begun.set()
                if changes:
                    self._changed.set()
        except OSError:
            pass
        finally:
            self._begun.set()

    def end(self) -> None:
        """Stop watching, and wait for the thread."""
        self._ended.set()
        self.join()
