"""A collection in a folder, as a backend: read and written by this process.

All changes of a collection are here: `upsert` and `delete`, optimize, and its settings.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np

from searchengine.backends.contract import Entry, Known, check_unchanged, checked
from searchengine.backends.folder.folders import (
    DATABASE,
    check_name,
    is_free,
    new_folder,
    new_scratch,
)
from searchengine.backends.folder.merging import to_merge
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.backends.folder.view import View
from searchengine.backends.folder.writer import Measured
from searchengine.corpus.analyzer import DEFAULT, Analyzer
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building import Progress
from searchengine.indexer.segment import SegmentConfig

_log = logging.getLogger(__name__)
_BLOCK = 1000  # documents whose vectors are handed on at a time


class Collection(View):
    """An open collection in a folder. Members without a description: see Backend."""

    @classmethod
    def create(
        cls, path: Path, settings: dict[str, Any], analyzer: Analyzer | None, wait: float = 0
    ) -> Self:
        """Create an empty collection, whole or not at all, and open it; `wait` as for opening.

        `analyzer`: None lets the first documents decide (searchengine.ingest.languages).
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
        made_by = self.settings if made_by is None else made_by
        last = checked(entries, int(made_by["encoder"]["dim"]))
        entries = list(last.values())
        keys = [*last, *(entry.document.key for entry in metadata), *unchanged]
        rows = sum(len(entry.spans) for entry in entries)
        if entries or metadata:  # in the folder that `expected` is of
            made_by = made_by if entries else None
            with self.writing(made_by=made_by, identity=self.identity) as writer:
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
                stored = writer.store.ids_of(keys or ())
                documents = [number for key, number in stored.items() if still(key)]
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

        `finished`: as for to_merge.
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

    def rebuild(
        self,
        measured: Measured,
        config: SegmentConfig,
        tuning: Mapping[str, Any] | None = None,
        building: Progress | None = None,
    ) -> None:
        """Build all segments again with another index config, in one commit: Writer.rebuild.

        `building`: progress callback: step, rows just done, rows in all segments.
        """
        rows = sum(row.rows for row in measured)

        def progress(step: str, done: int, _: int) -> None:
            if building is not None:
                building(step, done, rows)

        with self.writing() as writer:
            writer.rebuild(measured, config, tuning, progress)

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
            if not is_empty:  # others have filled it meanwhile; the next writer does it, too
                store.execute("PRAGMA journal_mode = wal")


def _blocks(entries: Sequence[Entry]) -> Iterator[Floats]:
    """The vectors of all entries, in blocks."""
    for first in range(0, len(entries), _BLOCK):
        block = [entry.vectors for entry in entries[first : first + _BLOCK]]
        if any(map(len, block)):
            yield np.concatenate(block, dtype=np.float32)
