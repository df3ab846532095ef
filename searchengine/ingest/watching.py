"""Waits until a folder has changed, by watchfiles.

What has changed is not taken from its events, which may be lost, but seen by FolderState. Every
folder is watched by itself: a recursive watch would follow links, out of the folder and in circles.
"""

import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from searchengine.corpus.files import folders_below

_TIMES = {"debounce": 500, "step": 50, "rust_timeout": 100}  # milliseconds: changes close together
_LOOK = 10.0  # seconds after which the folder is looked at without an event
_SHARE = 50  # the same, in times that a look takes
_UNWATCHED = 1.0  # the same, where folders cannot be watched
_TURN = 0.2  # seconds in which `stop` is noticed


class Watcher:
    """Watches a folder in a thread. A context manager."""

    def __init__(self, folder: Path, stop: Event | None = None) -> None:
        """`stop`: ends waiting."""
        import watchfiles

        self._watch = watchfiles.watch
        self._folder = folder
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
        for folder in folders_below(self._folder):
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
        while not self.stopped and (left := end - time.monotonic()) > 0:
            if self._changed.wait(min(left, _TURN)):
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
