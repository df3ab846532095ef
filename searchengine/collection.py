"""The folder: segments of vectors and documents.db, one writer, atomic commits.

A commit is one SQLite transaction that names a segment whose files are already complete and synced.
Until then the segment's folder is garbage, which the next writer removes; so at every instant a
reader sees all of a commit or none of it.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from indexer.build import Progress
from indexer.durable import sync_folder
from indexer.errors import SegmentError
from indexer.rerank import SearchResult, merge
from indexer.segment import Segment, SegmentConfig
from searchengine.corpus import Document
from searchengine.errors import CollectionBusy, CollectionError, EmptyCorpus
from searchengine.intake import Intake
from searchengine.store import SegmentRow, Store

Vectors = npt.NDArray[np.float32]
Encode = Callable[[list[Document]], Vectors]


@dataclass(frozen=True, slots=True)
class AddSummary:
    """What `add` did: documents added, keys left out for want of text, and bad records left out."""

    added: int
    without_text: tuple[str, ...]
    bad: tuple[str, ...]


class Collection:
    """An open collection. It shows the commits it was opened on until `refresh`.

    Safe to search from several threads while one adds: what is shown is swapped whole.
    """

    def __init__(self, path: Path) -> None:
        """Open. Raises CollectionError when the folder is none, or its files are damaged."""
        if not path.is_dir():
            raise CollectionError(f"{path}: no such collection; make one with: searchengine index")
        self.path = path.absolute()  # a later chdir must not lead elsewhere
        self.store = Store(self.path / "documents.db")
        self._segments: dict[SegmentRow, Segment] = {}
        self._changing = Lock()
        self._closed = False
        try:
            self.settings: dict[str, Any] = {}
            self.refresh()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any]) -> "Collection":
        """Make an empty collection, whole or not at all, and open it."""
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CollectionError(f"{path} exists already; choose another folder or remove it")
        scratch = path.with_name(f".{path.name}.{uuid4().hex}.new")
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
                sync_folder(scratch)
                try:
                    scratch.rename(path)
                except OSError as error:
                    if not path.exists():
                        raise
                    raise CollectionBusy(
                        f"{path} was made by another process just now; run this again to add to it"
                    ) from error
                sync_folder(path.parent)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return cls(path)

    @property
    def segments(self) -> Mapping[SegmentRow, Segment]:
        """The segments shown now; a snapshot, which no later add or refresh changes."""
        if self._closed:
            raise CollectionError(f"{self.path} is closed; open it again")
        return self._segments

    def refresh(self) -> None:
        """Show the commits made since opening.

        What no commit names any more is let go, not closed: another thread may be searching it.
        """
        with self._changing:
            held = self.segments
            committed = self.store.segments()
            while True:
                try:
                    shown = {row: held.get(row) or self._open_segment(row) for row in committed}
                    break
                except (CollectionError, OSError):
                    # Replaced just now, and removed by the next writer? Then there are others.
                    before, committed = committed, self.store.segments()
                    if committed == before:
                        raise
            self.settings = self.store.settings()
            self._segments = shown

    def add(
        self,
        documents: Iterable[Document],
        encode: Encode,
        *,
        skip_bad: bool = False,
        progress: Callable[[int], None] | None = None,
        building: Progress | None = None,
    ) -> AddSummary:
        """Commit documents as one new segment; searchable when this returns.

        `encode` gives float32 (n, D) unit rows; `progress` hears how many documents a block held,
        `building` what is done with the rows after that (indexer.build.Progress).
        Raises DuplicateKey (unless `skip_bad`), EmptyCorpus, CollectionBusy; then nothing changes.
        """
        intake = Intake(self.path, skip_bad)
        _ = self.segments  # refuses a closed collection before anything is written
        # A connection of its own: whoever searches through self.store sees nothing half done.
        store = Store(self.store.path)
        try:
            with store.transaction():
                committed = store.segments()
                self._remove_garbage(committed)
                base = next_id = store.next_id()
                outside: list[OSError] = []

                def blocks() -> Iterator[Vectors]:
                    nonlocal next_id
                    try:
                        for block in intake.blocks(store, documents):
                            store.insert(block, next_id)
                            next_id += len(block)
                            yield encode(block)
                            if progress:
                                progress(len(block))
                    except OSError as error:  # the caller's own, from documents or encode
                        outside.append(error)
                        raise

                vectors = blocks()
                first = next(vectors, None)
                if first is None:
                    raise EmptyCorpus(intake.nothing())
                number = max((row.id for row in committed), default=0) + 1
                with _os_errors(self.path, outside):
                    config = SegmentConfig.from_dict(store.settings()["index"])
                    rows = chain((first,), vectors)
                    segment = self._build_segment(number, rows, config, building)
                try:
                    row = SegmentRow(number, base, segment.rows, segment.manifest_sha256)
                    store.insert_segment(row)
                except BaseException:
                    segment.close()
                    raise
        finally:
            store.close()
        with self._changing:
            self._segments = {**self.segments, row: segment}
        return AddSummary(next_id - base, tuple(intake.without_text), tuple(intake.bad))

    def rebuild(
        self,
        measured: Mapping[SegmentRow, Segment],
        config: SegmentConfig,
        tuning: Mapping[str, Any],
        building: Progress | None = None,
    ) -> None:
        """Replace all segments by the same rows searched another way, in one commit.

        Segments that are added later are built by that recipe too.

        Args:
            measured: the segments that the recipe was found on.
            config: the recipe.
            tuning: what it is founded on, kept in every manifest.
            building: hears "Building", rows just done and rows in all (of all segments).

        Raises:
            CollectionError: the collection is another than was measured.
            CollectionBusy: another is writing. Then nothing changes.
        """
        _ = self.segments  # refuses a closed collection before anything is written
        rows = sum(row.rows for row in measured)

        def heard(doing: str, done: int, _: int) -> None:
            if building is not None:
                building(doing, done, rows)

        rebuilt: dict[SegmentRow, Segment] = {}
        store = Store(self.store.path)
        try:
            with store.transaction():
                committed = store.segments()
                if committed != list(measured):
                    raise CollectionError(
                        f"{self.path} was changed by another process while it was measured; "
                        "nothing was changed here, tune it again"
                    )
                self._remove_garbage(committed)
                try:
                    with _os_errors(self.path):
                        for number, row in enumerate(committed, start=committed[-1].id + 1):
                            segment = measured[row].rebuild(
                                self._folder(number), config, tuning=tuning, progress=heard
                            )
                            new = SegmentRow(number, row.base, row.rows, segment.manifest_sha256)
                            rebuilt[new] = segment
                    store.replace_segments(rebuilt)
                    store.set("index", config.as_dict())
                except BaseException:
                    for row in rebuilt:
                        shutil.rmtree(self._folder(row.id), ignore_errors=True)
                    raise
        finally:
            store.close()
        with self._changing:
            self.settings = {**self.settings, "index": config.as_dict()}
            self._segments = rebuilt

    def search(
        self,
        queries: Vectors,
        k: int,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        exact: bool = False,
    ) -> SearchResult:
        """Passage ids (as `rows`) and full-width cosines, both (q, k), by (−score, id).

        k is cut to the number of rows; where fewer than that match, the rest is −1 and −inf. The
        filter is applied before the shortlist is counted; each segment gives one of its own.
        `exact` proves that there is nothing better, and needs no shortlist.
        """
        rows = max(1, sum(row.rows for row in self.segments))
        k, shortlist = min(k, rows), None if shortlist is None else min(shortlist, rows)
        matching = None if where is None else self.store.matching(where)

        def search(row: SegmentRow, segment: Segment) -> SearchResult:
            allowed = None
            if matching is not None:
                low, high = np.searchsorted(matching, [row.base, row.base + row.rows])
                allowed = matching[low:high] - row.base
            if exact:
                return segment.exact(queries, k, allowed)
            return segment.search(queries, k, shortlist=shortlist, allowed=allowed)

        return self.merge(search, k)

    def merge(self, search: Callable[[SegmentRow, Segment], SearchResult], k: int) -> SearchResult:
        """The k best over all segments of what `search` finds in each; rows become passage ids."""
        segments = self.segments
        if not segments:
            raise CollectionError(f"{self.path} is empty; add documents first: searchengine index")
        found = [search(row, segment) for row, segment in segments.items()]
        return merge(found, [row.base for row in segments], k)

    def verify(self) -> None:
        """Check every checksum and SQLite's own integrity. Raises on the first fault.

        Segments that are shown but named by no commit any more are passed over.
        """
        self.store.verify()
        committed = set(self.store.segments())
        for row, segment in self.segments.items():
            if row not in committed:
                continue
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
        with self._changing:
            self._closed = True
            for segment in self._segments.values():
                segment.close()
            self._segments = {}
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
        with _os_errors(self.path):
            for folder in (self.path / "segments").iterdir():
                # What is not named like a segment is none of ours.
                if folder.name.isdigit() and folder.is_dir() and folder not in named:
                    shutil.rmtree(folder)

    def _build_segment(
        self,
        number: int,
        blocks: Iterable[Vectors],
        config: SegmentConfig,
        building: Progress | None,
    ) -> Segment:
        """Write and sync a segment and open it; until a commit names it, it is garbage."""
        provenance = {"encoder": self.settings["encoder"]["fingerprint"]}
        return Segment.build(
            self._folder(number), blocks, config, provenance=provenance, progress=building
        )


@contextmanager
def _os_errors(path: Path, outside: list[OSError] | None = None) -> Iterator[None]:
    """Disk full, read-only folder, …: as CollectionError, with the promise that nothing changed.

    Errors listed in `outside` are not about the collection and pass as they are.
    """
    try:
        yield
    except OSError as error:
        if outside and error in outside:
            raise
        raise CollectionError(
            f"{path}: {error.strerror or error}; nothing was changed, "
            "make room or choose a folder that can be written"
        ) from error
