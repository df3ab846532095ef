"""The files of a commit, all of them open: a writer that removes their names leaves their bytes.

Other processes merge segments, and remove the merged ones, at any moment. What takes long over the
files of a commit (`backup`, `verify`) opens all of them first, in milliseconds.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.store import SegmentRow
from searchengine.backends.folder.folders import folder_of
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.errors import CollectionError
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.storage.manifest import MANIFEST

_TRIES = 20  # segments may be replaced between the opening of a commit and that of its files


@dataclass(frozen=True, slots=True)
class HeldFile:
    """An open file of a segment.

    Attributes:
        row: the segment.
        path: the name under which it was opened.
        sha256: the checksum that it must have.
        file: the bytes.
    """

    row: SegmentRow
    path: Path
    sha256: str
    file: BufferedReader

    @property
    def intact(self) -> bool:
        """Whether it has its checksum; reads all of it."""
        self.file.seek(0)
        return hashlib.file_digest(self.file, "sha256").hexdigest() == self.sha256


class Held(NamedTuple):
    """A commit and the files of its segments."""

    snapshot: Snapshot
    files: list[HeldFile]


@contextmanager
def held(collection: Collection) -> Iterator[Held]:
    """The newest commit, with all files of its segments open during the block.

    Raises CollectionError if a file is missing.
    """
    for tries_left in reversed(range(_TRIES)):
        with ExitStack() as stack:
            try:
                snapshot = stack.enter_context(collection.newest())
                files = list(_opened(collection, snapshot, stack))
            except CollectionError:
                if tries_left:
                    continue
                raise
            yield Held(snapshot, files)
            return


def _opened(collection: Collection, snapshot: Snapshot, stack: ExitStack) -> Iterator[HeldFile]:
    for row, segment in snapshot.segments.items():
        checksums = {name: entry.sha256 for name, entry in segment.manifest.files.items()}
        for name, checksum in (checksums | {MANIFEST: row.manifest_sha256}).items():
            path = folder_of(snapshot.path, row.id) / name
            with collection.named_segment(row):
                try:
                    file = stack.enter_context(path.open("rb"))
                except FileNotFoundError:
                    raise SegmentError(f"{path} is missing") from None
            yield HeldFile(row, path, checksum, file)
