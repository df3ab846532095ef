"""Numbers that the worker processes of a server share, so that limits hold for the whole server.

A file holds a row of float64 for each worker, mapped into memory. A worker writes its own row only
and reads the sum of all, so that no lock is needed and none can be left behind by a killed worker.
The row is claimed by a lock on a byte of the file, which ends with the process.
"""

import mmap
import os
import time
from pathlib import Path

import numpy as np

REQUESTS = 0  # column: requests under way
_WINDOW = 1.0  # seconds over which the rate of a token is counted


def reserve(path: Path, size: int) -> None:
    """Write a file of zeros that is to be mapped: on a full disk an error now.

    Where a mapped file has holes, a store to memory that finds no room ends the process by SIGBUS.
    """
    try:
        path.write_bytes(bytes(size))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class Shared:
    """The row of this process, and the sums of all.

    Columns: requests under way; the number of changes of each collection; three for each token:
    the number of a second, the requests in it, and in the second before.
    """

    def __init__(self, collections: int, tokens: int, path: Path | None = None) -> None:
        """`path`: from `create`; None: there is one process only.

        Raises OSError if all rows are taken.
        """
        self._changes, self._tokens = 1, 1 + collections
        columns = self._tokens + 3 * tokens
        if path is None:
            self._rows = np.zeros((1, columns))
            row = 0
        else:
            rows = path.stat().st_size // (8 * columns)
            # Opened once, and never closed: to close any descriptor of a file drops all locks that
            # the process holds on it. So no np.memmap, which opens it and closes it again.
            self._file = os.open(path, os.O_RDWR)
            mapped = mmap.mmap(self._file, 8 * rows * columns)
            self._rows = np.frombuffer(mapped).reshape(rows, columns)
            row = self._claim()
        self._row = self._rows[row]

    @staticmethod
    def create(path: Path, workers: int, collections: int, tokens: int) -> None:
        """Write a file of zeros; twice as many rows as workers, which may overlap in a restart."""
        reserve(path, 8 * (2 * workers + 8) * (1 + collections + 3 * tokens))

    def _claim(self) -> int:
        """Lock a free row, and forget the requests of processes that were killed."""
        import fcntl  # not on Windows, where there is one worker

        claimed = None
        for row in range(len(self._rows)):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
            except OSError:
                continue
            self._rows[row, REQUESTS] = 0
            if claimed is None:
                claimed = row
            else:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)
        if claimed is None:
            raise OSError("all rows of the shared file are taken")
        return claimed

    def requests(self) -> int:
        """Requests under way in all workers."""
        return int(self._rows[:, REQUESTS].sum())

    def enter(self, limit: int) -> bool:
        """Count a request, unless `limit` are under way already."""
        if self._rows[:, REQUESTS].sum() >= limit:
            return False
        self._row[REQUESTS] += 1
        return True

    def leave(self) -> None:
        """End a request that was counted."""
        self._row[REQUESTS] -= 1

    def changed(self, collection: int) -> None:
        """Count a change of a collection."""
        self._row[self._changes + collection] += 1

    def changes(self, collection: int) -> float:
        """A number that differs after a worker has changed a collection."""
        return float(self._rows[:, self._changes + collection].sum())

    def within_rate(self, token: int, rate: float, now: float | None = None) -> bool:
        """Count a request of a token, unless it exceeds `rate` per second.

        Counts this second and the part of the last one that a window of a second reaches back to.
        """
        now = time.monotonic() if now is None else now  # one clock for all processes of a machine
        second, part = divmod(now, _WINDOW)
        start = self._tokens + 3 * token
        seconds, current, before = self._rows[:, start : start + 3].T
        same, last = seconds == second, seconds == second - 1
        recent = current[same].sum()
        previous = before[same].sum() + current[last].sum()
        if recent + previous * (1 - part) + 1 > max(1.0, rate):
            return False
        own = self._row[start : start + 3]
        if own[0] != second:
            own[:] = second, 0, own[1] if own[0] == second - 1 else 0
        own[1] += 1
        return True
