"""The folder: segments of vectors and documents.db, one writer, atomic commits.

A commit is one SQLite transaction that names a segment whose files are already complete and synced.
Until then the segment's folder is garbage, which the next writer removes; so at every instant a
reader sees all of a commit or none of it.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.errors import SegmentError
from indexer.rerank import SearchResult, merge
from indexer.segment import Segment, SegmentConfig
from searchengine.corpus import Document
from searchengine.errors import CollectionError, DuplicateKey, EmptyCorpus
from searchengine.store import SegmentRow, Store

Vectors = npt.NDArray[np.float32]
Encode = Callable[[list[Document]], Vectors]

_BLOCK = 512  # documents encoded at a time: enough to sort by length, few enough to show progress


@dataclass(frozen=True, slots=True)
class AddSummary:
    """What `add` did: documents added, keys left out for want of text, and bad records left out."""

    added: int
    without_text: tuple[str, ...]
    bad: tuple[str, ...]


class Collection:
    """An open collection. It shows the commits it was opened on until `refresh`."""

    def __init__(self, path: Path) -> None:
        """Open. Raises CollectionError when the folder is none, or its files are damaged."""
        if not path.is_dir():
            raise CollectionError(f"{path}: no such collection; make one with: searchengine index")
        self.path = path
        self.store = Store(path / "documents.db")
        self.settings = self.store.settings()
        self.segments: dict[SegmentRow, Segment] = {}
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any]) -> "Collection":
        """Make an empty collection, whole or not at all, and open it."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CollectionError(f"{path} exists already; choose another folder or remove it")
        scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
        with _os_errors(path):
            (scratch / "segments").mkdir(parents=True)
            try:
                store = Store(scratch / "documents.db", create=True)
                try:
                    with store.transaction():
                        for name, value in settings.items():
                            store.set(name, value)
                finally:
                    store.close()
                scratch.rename(path)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return cls(path)

    def refresh(self) -> None:
        """Show the commits made since opening."""
        for row in self.store.segments():
            if row not in self.segments:
                self.segments[row] = self._open_segment(row)

    def add(
        self,
        documents: Iterable[Document],
        encode: Encode,
        *,
        skip_bad: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> AddSummary:
        """Commit documents as one new segment; searchable when this returns.

        `encode` gives float32 (n, D) unit rows; `progress` hears how many documents a block held.
        Raises DuplicateKey (unless `skip_bad`), EmptyCorpus, CollectionBusy; then nothing changes.
        """
        without_text: list[str] = []
        bad: list[str] = []
        # A connection of its own: whoever searches through self.store sees nothing half done.
        store = Store(self.store.path)
        try:
            with _os_errors(self.path), store.transaction():
                committed = store.segments()
                self._remove_garbage(committed)
                number = max((row.id for row in committed), default=0) + 1
                base = next_id = store.next_id()

                def blocks() -> Iterator[Vectors]:
                    nonlocal next_id
                    fresh = self._fresh(store, documents, without_text, bad if skip_bad else None)
                    for block in fresh:
                        store.insert(block, next_id)
                        next_id += len(block)
                        yield encode(block)
                        if progress:
                            progress(len(block))

                vectors = blocks()
                first = next(vectors, None)
                if first is None:
                    raise EmptyCorpus(_nothing(without_text, bad))
                self._build_segment(store, number, base, _chain(first, vectors))
        finally:
            store.close()
        self.refresh()
        return AddSummary(next_id - base, tuple(without_text), tuple(bad))

    def search(
        self, queries: Vectors, k: int, *, shortlist: int | None = None, where: str | None = None
    ) -> SearchResult:
        """Passage ids (as `rows`) and full-width cosines, both (q, k), by (−score, id).

        Where fewer than k match, the rest is −1 and −inf. The filter is applied before the
        shortlist is counted; each segment gives a shortlist of its own.
        """
        matching = None if where is None else self.store.matching(where)

        def search(row: SegmentRow, segment: Segment) -> SearchResult:
            allowed = None
            if matching is not None:
                low, high = np.searchsorted(matching, [row.base, row.base + row.rows])
                allowed = matching[low:high] - row.base
            return segment.search(queries, k, shortlist=shortlist, allowed=allowed)

        return self.merge(search, k)

    def merge(self, search: Callable[[SegmentRow, Segment], SearchResult], k: int) -> SearchResult:
        """The k best over all segments of what `search` finds in each; rows become passage ids."""
        if not self.segments:
            raise CollectionError(f"{self.path} is empty; add documents first: searchengine index")
        found = [search(row, segment) for row, segment in self.segments.items()]
        return merge(found, [row.base for row in self.segments], k)

    def verify(self) -> None:
        """Check every checksum and SQLite's own integrity. Raises on the first fault."""
        self.store.verify()
        for row, segment in self.segments.items():
            with self._named_segment(row):
                segment.verify()

    def remove_if_empty(self) -> None:
        """Remove the folder if nothing was ever committed, and close; others cannot write then."""
        with self.store.transaction():
            if not self.store.segments():
                shutil.rmtree(self.path)
        self.close()

    def close(self) -> None:
        """Let go of the files; closing twice is harmless."""
        for segment in self.segments.values():
            segment.close()
        self.segments.clear()
        self.store.close()

    def _folder(self, number: int) -> Path:
        return self.path / "segments" / f"{number:06d}"

    def _open_segment(self, row: SegmentRow) -> Segment:
        with self._named_segment(row):
            segment = Segment.open(self._folder(row.id))
            if segment.manifest_sha256 != row.manifest_sha256 or segment.rows != row.rows:
                raise SegmentError(
                    f"{self._folder(row.id)}: manifest.json is not the committed one"
                )
            return segment

    @contextmanager
    def _named_segment(self, row: SegmentRow) -> Iterator[None]:
        """A segment's fault as the collection's, with what was lost and what was not."""
        try:
            yield
        except SegmentError as error:
            raise CollectionError(
                f"{error}; the documents are whole in {self.store.path}: restore the folder "
                f"{self._folder(row.id)} from a copy, or index anew"
            ) from error

    def _remove_garbage(self, committed: list[SegmentRow]) -> None:
        """Remove what a writer that died has left: folders that no commit names."""
        named = {self._folder(row.id) for row in committed}
        for folder in (self.path / "segments").iterdir():
            if folder not in named:
                shutil.rmtree(folder)

    def _fresh(
        self,
        store: Store,
        documents: Iterable[Document],
        without_text: list[str],
        bad: list[str] | None,
    ) -> Iterator[list[Document]]:
        """Blocks of documents that have a text and a new key."""
        stream = iter(documents)
        while block := list(islice(stream, _BLOCK)):
            taken = store.stored_keys([document.key for document in block])
            fresh = []
            for document in block:
                if not document.full_text:
                    without_text.append(document.key)
                elif document.key in taken:
                    message = (
                        f"{document.origin or 'add'}: the key {document.key!r} occurs twice or is "
                        f"in {self.path} already; give it another key or leave the document out"
                    )
                    if bad is None:
                        raise DuplicateKey(message)
                    bad.append(message)
                else:
                    taken.add(document.key)
                    fresh.append(document)
            if fresh:
                yield fresh

    def _build_segment(
        self, store: Store, number: int, base: int, blocks: Iterable[Vectors]
    ) -> None:
        """Write and sync a segment, then name it in the open transaction."""
        folder = self._folder(number)
        config = SegmentConfig.from_dict(self.settings["index"])
        provenance = {"encoder": self.settings["encoder"]["fingerprint"]}
        with Segment.build(folder, blocks, config, provenance=provenance) as segment:
            store.insert_segment(SegmentRow(number, base, segment.rows, segment.manifest_sha256))
        _sync_folder(folder.parent)


def _chain(first: Vectors, rest: Iterable[Vectors]) -> Iterator[Vectors]:
    yield first
    yield from rest


def _nothing(without_text: list[str], bad: list[str]) -> str:
    counts = [f"{len(without_text)} without text"] if without_text else []
    counts += [f"{len(bad)} bad"] if bad else []
    left_out = f" ({', '.join(counts)})" if counts else ""
    return f"no document to index{left_out}; nothing was changed"


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """Disk full, read-only folder, …: as CollectionError, with the promise that nothing changed."""
    try:
        yield
    except OSError as error:
        raise CollectionError(
            f"{path}: {error.strerror or error}; nothing was changed, "
            "make room or choose a folder that can be written"
        ) from error
