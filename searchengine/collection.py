"""The folder: segments of vectors and documents.db, one writer, any number of readers."""

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

from indexer.build import Progress
from indexer.durable import sync_folder
from indexer.errors import SegmentError
from indexer.segment import Segment, SegmentConfig
from searchengine.adding import Adding, AddOptions, AddSummary, Reading
from searchengine.changes import Changes
from searchengine.corpus import Document
from searchengine.errors import CollectionBusy, CollectionError, QueryError
from searchengine.lexical import Tokenizer
from searchengine.snapshot import Snapshot
from searchengine.store import SegmentRow, Store
from searchengine.writer import (
    Writer,
    due,
    folder_of,
    misfit,
    os_errors,
    remove_garbage,
    writing,
)

_log = logging.getLogger(__name__)
_LOG = 1 << 22  # bytes of SQLite's log that are worth folding into the file
_LONGEST = 2_000_000  # seconds to wait; SQLite counts milliseconds in 32 bits
_TRIES = 20  # a folder that is gone when it is opened was replaced just now: look again


class Collection:
    """An open collection. It shows the commit it was opened on until `refresh`, or its own next.

    Safe to read from several threads while one writes: what is shown is swapped whole.

    Attributes:
        path: the folder.
        wait: seconds to wait for another writer before CollectionBusy.
    """

    def __init__(self, path: Path, wait: float = 0) -> None:
        """Open. Raises CollectionError when the folder is none, or its files are damaged."""
        if not path.is_dir():
            raise CollectionError(f"{path}: no such collection; make one with: searchengine index")
        if not 0 <= wait <= _LONGEST:
            raise QueryError(f"wait must be between 0 and {_LONGEST} seconds, got {wait}")
        self.path = path.absolute()  # a later chdir must not lead elsewhere
        self.wait = wait
        self._changing = Lock()
        self._shown: Snapshot | None = None
        self._shown = self._newest({})

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], tokenizer: Tokenizer) -> "Collection":
        """Make an empty collection, whole or not at all, and open it."""
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CollectionError(f"{path} exists already; choose another folder or remove it")
        scratch = path.with_name(f".{path.name}.{uuid4().hex}.new")
        with os_errors(path):
            (scratch / "segments").mkdir(parents=True)
            try:
                with Store(scratch / "documents.db", create=True) as store, store.transaction():
                    changes = Changes(store)
                    for name, value in settings.items():
                        changes.set(name, value)
                    changes.index_text(tokenizer)
                sync_folder(scratch)
                _move(scratch, path)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return cls(path)

    @contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """The state shown now, which stays as it is throughout the block."""
        with self._changing:
            snapshot = self._current()
            snapshot.readers += 1
        try:
            yield snapshot
        finally:
            with self._changing:
                snapshot.readers -= 1
                if snapshot is not self._shown and not snapshot.readers:
                    snapshot.close()

    @property
    def segments(self) -> Mapping[SegmentRow, Segment]:
        """The segments shown now."""
        return self._current().segments

    @property
    def settings(self) -> Mapping[str, Any]:
        """How the collection is built, as shown now."""
        return self._current().settings

    @property
    def store(self) -> Store:
        """The tables as shown now."""
        return self._current().store

    @contextmanager
    def newest(self) -> Iterator[Snapshot]:
        """The newest commit, for one who must not disturb what is shown."""
        snapshot = self._newest(self._current().segments)
        try:
            yield snapshot
        finally:
            snapshot.close()

    def refresh(self) -> None:
        """Show the newest commit."""
        current = self._current()
        with Store(self.path / "documents.db") as store:
            if store.settings().get("commit", 0) == current.commit:
                return
        self._show(self._newest(current.segments))

    def add(
        self, documents: Iterable[Document], reading: Reading, options: AddOptions
    ) -> AddSummary:
        """Commit documents, in place of those of the same keys; see SearchEngine.add."""
        adding = Adding(self.path, documents, reading, options)
        with self._own_store() as store, adding:
            while adding.goes_on:
                with self._writing(store) as writer:
                    adding.take(writer)
                finished = options.commit_every is not None and not adding.goes_on
                self._merge_due(store, options.building, finished=finished)
        return adding.summary()

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        """Forget documents by key, or all that match a filter; how many there were."""
        with self._own_store() as store:
            with self._writing(store) as writer:
                if where is not None:
                    documents = writer.changes.documents_matching(where)
                else:
                    documents = list(store.ids_of(keys or ()).values())
                writer.changes.remove(documents)
            self._merge_due(store)
        return len(documents)

    def update(self, patches: Mapping[str, Mapping[str, Any]]) -> None:
        """Merge into the metadata of documents; all or none. Raises QueryError on unknown keys."""
        with self._own_store() as store, self._writing(store) as writer:
            ids = store.ids_of(patches)
            unknown = [key for key in patches if key not in ids]
            if unknown:
                raise QueryError(
                    f"{self.path} has no document {unknown[0]!r}; nothing was changed, "
                    "add it first or leave it out"
                )
            writer.changes.patch_metadata({ids[key]: patch for key, patch in patches.items()})

    def index_fields(self, names: Iterable[str]) -> None:
        """Keep an index of metadata fields, which filters then use."""
        with self._own_store() as store, self._writing(store) as writer:
            for name in names:
                writer.changes.index_field(name)

    def optimize(self, progress: Progress | None = None) -> None:
        """One segment, without what was deleted, its rotation fitted anew; searched throughout."""
        with self._own_store() as store:
            with self._writing(store) as writer:
                writer.merge(store.segments(), refit=True, progress=progress)
                writer.changes.optimize_text()
            self._clear_away(store)
            try:
                store.tidy()
            except CollectionError as error:  # what was asked for is committed all the same
                _log.warning("no room was given back: %s", error)

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
        rows = sum(row.rows for row in measured)

        def heard(doing: str, done: int, _: int) -> None:
            if building is not None:
                building(doing, done, rows)

        with self._own_store() as store:
            with self._writing(store) as writer:
                writer.rebuild(measured, config, tuning, heard)
            self._clear_away(store)

    def remove_if_empty(self) -> None:
        """Remove the folder if nothing was ever committed, and close; others cannot write then."""
        with self._own_store() as store, store.transaction():
            if not store.segments():
                shutil.rmtree(self.path)
        self.close()

    def close(self) -> None:
        """Let go of the files; closing twice is harmless."""
        with self._changing:
            shown, self._shown = self._shown, None
            if shown is not None and not shown.readers:
                shown.close()

    def _current(self) -> Snapshot:
        if self._shown is None:
            raise CollectionError(f"{self.path} is closed; open it again")
        return self._shown

    def _newest(self, held: Mapping[SegmentRow, Segment]) -> Snapshot:
        """The last commit; segments that are `held` open are not opened again."""

        def open_segment(row: SegmentRow) -> Segment:
            return held.get(row) or self._open_segment(row, held)

        failed: list[SegmentRow] | None = None
        for _ in range(_TRIES):
            try:
                return Snapshot(self.path, open_segment, self._shown)
            except (CollectionError, OSError):
                # Replaced just now, and removed by the next writer? Then there are others.
                before, failed = failed, self._committed()
                if failed == before:
                    raise
        return Snapshot(self.path, open_segment)

    def _committed(self) -> list[SegmentRow]:
        with Store(self.path / "documents.db") as store:
            return store.segments()

    def _show(self, snapshot: Snapshot) -> None:
        """Show another state; the former is closed as soon as nobody reads it."""
        with self._changing:
            before = self._shown
            if before is None or before.commit > snapshot.commit:
                snapshot.close()  # closed meanwhile, or overtaken by another thread
                return
            self._shown = snapshot
            if not before.readers:
                before.close()

    @contextmanager
    def _own_store(self) -> Iterator[Store]:
        """A connection to write by: whoever reads sees nothing half done."""
        self._current()  # refuses a closed collection before anything is written
        with Store(self.path / "documents.db") as store:
            yield store

    @contextmanager
    def _writing(self, store: Store) -> Iterator[Writer]:
        """A transaction; what it commits is shown when the block has ended."""
        opened: dict[SegmentRow, Segment] = {}

        def open_segment(row: SegmentRow) -> Segment:
            if row not in opened:
                held = self._current().segments
                opened[row] = held.get(row) or self._open_segment(row, held)
            return opened[row]

        with writing(self.path, store, open_segment, self.wait) as writer:
            yield writer
        try:
            held = {**self._current().segments, **opened, **writer.opened}
            self._show(self._newest(held))
            if store.log_bytes > _LOG:
                # A log is begun anew once nobody reads it: fold it, and look at the file itself.
                store.fold_log()
                self._show(self._newest(held))
        except (CollectionError, OSError) as error:
            raise CollectionError(
                f"{self.path}: the change is committed, but cannot be shown ({error}); "
                "open the collection again"
            ) from error

    def _merge_due(
        self, store: Store, progress: Progress | None = None, *, finished: bool = False
    ) -> None:
        """Keep the number of segments low, in commits of their own."""
        try:
            while due(store, finished=finished):
                with self._writing(store) as writer:
                    writer.merge(due(store, finished=finished), progress=progress)
                self._clear_away(store)
            while row := misfit(self.segments):
                with self._writing(store) as writer:
                    if row in store.segments():
                        writer.merge([row], refit=True, progress=progress)
                self._clear_away(store)
        except CollectionBusy:
            pass  # another came first; whoever writes last merges
        except CollectionError as error:  # what was asked for is committed all the same
            _log.warning(
                "segments were not merged, which the next change will try again: %s", error
            )

    def _clear_away(self, store: Store) -> None:
        """Remove the folders that were replaced, unless another is writing just now.

        Who has them open goes on reading; who is about to open them looks again.
        """
        try:
            with suppress(CollectionBusy), store.transaction():
                remove_garbage(self.path, store.segments())
        except CollectionError as error:  # what was asked for is committed all the same
            _log.warning("replaced segments were left behind for the next change: %s", error)

    def _open_segment(self, row: SegmentRow, held: Mapping[SegmentRow, Segment]) -> Segment:
        """Open and check a segment; it shares the rotation of one that is `held`, if it has it."""
        like = max(held.values(), key=lambda segment: segment.rows, default=None)
        with self.named_segment(row):
            segment = Segment.open(folder_of(self.path, row.id), rotation_of=like)
            if segment.manifest_sha256 != row.manifest_sha256 or segment.rows != row.rows:
                raise SegmentError(f"{segment.path}: manifest.json is not the committed one")
            return segment

    @contextmanager
    def named_segment(self, row: SegmentRow) -> Iterator[None]:
        """A segment's fault as the collection's, with what was lost and what was not."""
        try:
            yield
        except SegmentError as error:
            raise CollectionError(
                f"{error}; the texts are in {self.path / 'documents.db'}: restore the folder "
                f"{folder_of(self.path, row.id)} from a copy, or encode it again with: "
                f"searchengine repair {self.path}"
            ) from error


def _move(scratch: Path, path: Path) -> None:
    """Give a finished folder its name."""
    try:
        scratch.rename(path)
    except OSError as error:
        if not path.exists():
            raise
        raise CollectionBusy(
            f"{path} was made by another process just now; run this again to add to it"
        ) from error
    sync_folder(path.parent)
