"""A collection in a folder, as a backend: read and written by this process.

What View shows, this changes: upsert, delete, configure, optimize. `writing` is the transaction of
all changes; its commit is shown afterwards.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np

from searchengine.backends.contract import Entry, Known, check_made_by, check_unchanged, checked
from searchengine.backends.folder.database import FOLDED, Identity
from searchengine.backends.folder.folders import (
    DATABASE,
    check_name,
    is_free,
    new_folder,
    new_scratch,
    remove_unnamed,
)
from searchengine.backends.folder.snapshot import View
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.backends.folder.writer import Writer, to_merge, writing
from searchengine.corpus.analyzer import DEFAULT, Analyzer
from searchengine.errors import BackendUnavailable, CollectionBusy, CollectionError, QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building import Progress
from searchengine.indexer.config import Device
from searchengine.indexer.search.scoring import require_gpu
from searchengine.indexer.segment import Segment

_BLOCK = 1000  # documents whose vectors are handed on at a time
_GROWN = 1.25  # growth of the log since readers were waited for in vain, to wait for them again
_log = logging.getLogger(__name__)


class Collection(View):
    """An open collection. Members without a description: see Backend.

    Writing threads queue; other processes are waited for as long as `wait` says.

    Attributes:
        wait: seconds to wait for a writer of another process before CollectionBusy.
    """

    def __init__(self, path: Path, wait: float = 0, device: str = Device.CPU) -> None:
        """Open. Raises CollectionError (no collection, damaged files), SegmentError (no GPU)."""
        check_name(path)
        if not path.is_dir():
            raise CollectionError(
                f"{path}: no such collection; make one with: searchengine index SOURCE {path}"
            )
        if not wait >= 0:
            raise QueryError(f"wait must be at least 0 seconds, got {wait}")
        if device not in tuple(Device):
            raise QueryError(f"device must be one of {', '.join(Device)}, got {device!r}")
        if device == Device.GPU:
            require_gpu()
        self.wait = wait
        self._log_left = 0  # bytes of the log when readers were last waited for in vain
        super().__init__(path.absolute(), Device(device))  # a later chdir must not lead elsewhere

    @classmethod
    def create(
        cls, path: Path, settings: dict[str, Any], analyzer: Analyzer | None, wait: float = 0
    ) -> Self:
        """Create an empty collection, whole or not at all, and open it; `wait` as for opening.

        `analyzer`: None lets the first documents decide (searchengine.ingest.defaults).
        """
        path = path.absolute()
        check_name(path)
        if not is_free(path):
            if (path / DATABASE).exists():
                way_out = "open it with SearchEngine.open_or_create"
            else:
                way_out = "it is no collection, and not empty; choose another folder"
            raise CollectionError(f"{path} exists already; {way_out}")
        with new_folder(path) as scratch:
            (scratch / "segments").mkdir()
            with Store(scratch / DATABASE, create=True) as store, store.transaction():
                changes = Changes(store)
                new: dict[str, Any] = {"commit_id": uuid4().hex}
                if analyzer is None:
                    new["tokenizer_auto"] = True
                for name, value in (settings | new).items():
                    changes.set(name, value)
                changes.set("tokenizer", str(analyzer or DEFAULT))
        return cls(path, wait)

    def upsert(
        self,
        entries: Sequence[Entry],
        expected: Mapping[str, Known] | None = None,
        made_by: Mapping[str, Any] | None = None,
        *,
        metadata: Sequence[Entry] = (),
        unchanged: Sequence[str] = (),
        choose: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        finished: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        used = self.settings if made_by is None else made_by
        last = checked(entries, int(used["encoder"]["dim"]))
        entries = list(last.values())
        keys = [*last, *(entry.document.key for entry in metadata), *unchanged]
        rows = sum(len(entry.spans) for entry in entries)
        if entries or metadata:  # not in a folder that has replaced this one since
            with self.writing(made_by=used if entries else None, identity=self.identity) as writer:
                store, changes = writer.store, writer.changes
                before = store.known(keys)
                check_unchanged(expected, before, keys)
                if choose is not None and not store.ids_after(-1, None, 1).size:
                    changes.configure(choose(store.settings()))
                changes.write(entries, before, changes.next_id("passages"))
                changes.set_metadata(metadata, before)
                if rows:
                    writer.append(_blocks(entries), progress, rows)
        if entries or metadata or finished:
            self._merge_due(finished or 0, progress)

    def delete(
        self,
        keys: Sequence[str] | None,
        where: str | None,
        still: Callable[[str], bool] = lambda key: True,
    ) -> int:
        """As Backend; of `keys` those for which `still` holds once no other process writes."""
        with self.writing() as writer:
            if where is not None:
                documents = writer.store.matching(where).tolist()
            else:
                stored = writer.store.known(keys or ())
                documents = [state.id for key, state in stored.items() if still(key)]
            writer.changes.remove(documents)
        self._merge_due()
        return len(documents)

    def configure(self, values: Mapping[str, Any], *, fields: Iterable[str] = ()) -> None:
        with self.writing() as writer:
            for name in fields:
                writer.changes.index_field(name)
            writer.changes.configure(values)

    def optimize(self, progress: Progress | None = None) -> None:
        """Merge all segments into one without deleted rows.

        Raises CollectionBusy if another process is writing for longer than `wait`.
        """
        with self.writing() as writer:
            writer.merge(writer.store.segments(), progress=progress)

    def _merge_due(self, finished: int = 0, progress: Progress | None = None) -> None:
        """Merge segments while there are too many; each merge is a commit, behind a change.

        `finished`: as for writer.to_merge.
        """

        def due(store: Store) -> list[SegmentRow]:
            rows = store.segments()
            sizes = [(row.rows - store.dead_count(row), row.rows) for row in rows]
            return [rows[i] for i in to_merge(sizes, finished)]

        def is_due() -> bool:
            with self.reading() as snapshot:
                return bool(due(snapshot.store))

        try:
            while is_due():
                with self.writing() as writer:  # nothing if others have merged meanwhile
                    writer.merge(due(writer.store), progress=progress)
        except CollectionBusy:
            pass  # the last process to write merges
        except CollectionError as error:  # the change before is committed
            _log.warning(
                "segments were not merged, which the next change will try again: %s", error
            )

    def remove_if_empty(self) -> None:
        """Close, and remove the folder if it has no document and no other process has it open.

        What is no collection, or cannot be read, stays."""
        self.close()
        with suppress(CollectionError, OSError), Store(self.path / DATABASE) as store:
            store.execute("PRAGMA journal_mode = delete")  # raises where others have it open
            store.execute("BEGIN EXCLUSIVE")
            is_empty = not store.segments() and not any(store.counts())
            if is_empty:  # at once: a process that is killed leaves all of it, or none
                scratch = new_scratch(self.path)
                scratch.take()
                self.path.rename(scratch.folder)
                scratch.clear()
            store.execute("ROLLBACK")
            if not is_empty:  # filled meanwhile: WAL again, as the next writer would set it
                store.execute("PRAGMA journal_mode = wal")

    @contextmanager
    def open_store(self, identity: Identity | None = None) -> Iterator[Store]:
        """A connection for writing.

        `identity`: the database that must be in the folder; None: the one that is there now, which
        is shown. Raises CollectionError for a closed collection, and one of another encoder.
        """
        if identity is None:
            if not self._current().store.in_place:
                self.refresh()
            identity = self.identity
        with Store(self.path / DATABASE) as store:
            if store.identity != identity:
                raise store.replaced()
            yield store

    def open_segments(self, rows: Sequence[SegmentRow]) -> dict[SegmentRow, Segment]:
        """Committed segments; they stay open whatever becomes of their folders."""
        open_segment = self._opener(dict(self.segments))
        return {row: open_segment(row) for row in rows}

    @contextmanager
    def writing(
        self,
        *,
        wait: float | None = None,
        made_by: Mapping[str, Any] | None = None,
        identity: Identity | None = None,
    ) -> Iterator[Writer]:
        """A transaction. Afterwards its commit is shown, and replaced folders are removed.

        `wait`: seconds to wait for another writer; None: as the view was opened. `made_by`: the
        settings that the passages and vectors to add were made with; None: none are added.
        `identity`: as for `open_store`.

        Raises EncoderMismatch if the collection is not accepted here, or they do not suit it.
        """
        opened, wait = dict(self.segments), self.wait if wait is None else wait
        with self.open_store(identity) as store:
            try:
                with writing(self.path, store, self._opener(opened), wait) as writer:
                    self.accepts(store.settings())
                    check_made_by(self.path, made_by, store.settings())
                    yield writer
                built = writer.opened if self.device is Device.CPU else {}  # for a GPU: reopened
                self._show_commit(store, {**opened, **built})
            except BaseException as error:  # Ctrl-C may come between any two steps
                self._interrupted |= not isinstance(error, Exception)
                raise
            try:  # processes that have the folders open go on reading; others look for newer ones
                with suppress(CollectionBusy):
                    remove_unnamed(self.path, store, writer.before)
            except CollectionError as error:  # the change itself is committed
                _log.warning("replaced segments are removed by the next change: %s", error)

    def _show_commit(self, store: Store, opened: Mapping[SegmentRow, Segment]) -> None:
        """Show what was just committed."""
        held = {**self.segments, **opened}  # another thread's, too
        try:
            self._show_newest(held)
            self._fold_log(store, held)
        except (CollectionError, OSError) as error:
            kind = BackendUnavailable if isinstance(error, BackendUnavailable) else CollectionError
            raise kind(
                f"{self.path}: the change is committed, but cannot be shown ({error}); "
                "open the collection again"
            ) from error

    def _fold_log(self, store: Store, held: Mapping[SegmentRow, Segment]) -> None:
        """Fold SQLite's log into the database if it is large; this view then reads the file."""
        if (size := store.log_bytes) > FOLDED:
            patient = store.overgrown and size > _GROWN * self._log_left
            complete = store.fold_log(lambda: self._show_newest(held), patient)
            if patient:
                self._log_left = 0 if complete else size


def _blocks(entries: Sequence[Entry]) -> Iterator[Floats]:
    """The vectors of all entries, in blocks."""
    for first in range(0, len(entries), _BLOCK):
        block = [entry.vectors for entry in entries[first : first + _BLOCK]]
        if any(map(len, block)):
            yield np.concatenate(block, dtype=np.float32)
