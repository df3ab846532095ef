"""Time of the first query on rows that are on the disk but not in memory."""

import mmap
import os
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from indexer.arrays import Floats
from indexer.segment import Segment
from indexer.tuning.points import OperatingPoint


class ColdRows:
    """Copies of the vectors files of segments, whose pages can be dropped from the page cache.

    The coarse stage stays in memory; only the full-width rows are cold, of which a search reads the
    shortlist. The files of the open segments are mapped and cannot be dropped, hence the copies.
    """

    def __init__(self, copies: Sequence[Path]) -> None:
        self._copies = tuple(copies)

    @classmethod
    @contextmanager
    def copied(cls, segments: Sequence[Segment], folder: Path) -> Iterator["ColdRows"]:
        """Copies in a new folder, for a block. OSError if they cannot be written."""
        folder.mkdir()
        try:
            copies = []
            for number, segment in enumerate(segments):
                copy = folder / f"{number}.faiss"
                shutil.copyfile(segment.path / segment.manifest.vectors_file, copy)
                with copy.open("rb") as file:
                    os.fsync(file.fileno())  # a dirty page cannot be dropped
                copies.append(copy)
            yield cls(copies)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def first(self, point: OperatingPoint, query: Floats) -> tuple[float, int]:
        """Seconds of one query (1, D) on a new map without a page in memory, and pages read.

        Pages include read-ahead. 0 means that the system did not drop them, e.g. because the folder
        is stored in memory.
        """
        for copy in self._copies:
            _drop(copy)
        pairs = zip(point.segments, self._copies, strict=True)
        fresh = [segment.remapped(copy) for segment, copy in pairs]
        cold = replace(point, segments=tuple(fresh))
        try:
            before = _read()
            begin = time.perf_counter()
            cold.search(query)
            seconds = time.perf_counter() - begin
            return seconds, _read() - before
        finally:
            for segment in fresh:
                segment.close()


def _read() -> int:
    """Pages that this process has read from the disk; if unknown, its major page faults."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
        read_bytes = next(line for line in lines if line.startswith("read_bytes"))
        return int(read_bytes.split()[1]) // mmap.PAGESIZE
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _drop(path: Path) -> None:
    """Drop the cached pages of an unmapped file, where the system can; macOS cannot."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
