"""The embedded backend: a collection in a folder, read and written by this process."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.backends.contract import (
    Backend,
    Capabilities,
    Entry,
    check_unchanged,
    checked,
    entries_of,
)
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.changes import Known, known
from searchengine.backends.folder.documents.store import SegmentRow
from searchengine.corpus.analyzer import Tokenizer
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import BLOCK_ROWS, Floats
from searchengine.indexer.config import Device


class Embedded(Collection):
    """A collection in a folder, as a backend."""

    def __init__(self, path: Path, wait: float = 0, device: str = Device.CPU) -> None:
        """As Collection."""
        super().__init__(path, wait, device)
        self._upserted: set[SegmentRow] = set()

    @property
    def address(self) -> Path:
        """The folder."""
        return self.path

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond the contract."""
        words = None if self.settings["tokenizer"] == Tokenizer.NONE else "BM25"
        return Capabilities("embedded", words, "segment", True)

    def carried(self) -> dict[str, Any]:
        """The rotation of the largest segment, and the longest shortlist of all."""
        with self.reading() as snapshot:
            largest = max(snapshot.segments, key=lambda row: row.rows, default=None)
            if largest is None:
                return {}
            rotation = snapshot.segments[largest].basis().matrix
            return {"rotation": rotation, "shortlist": snapshot.shortlist}

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        """Key → stored state of the documents, for change detection."""
        with self.reading() as snapshot:
            return known(snapshot.store, keys)

    def entries(self, keys: Sequence[str]) -> list[Entry]:
        """The stored entries of these keys, in their order, without unknown keys."""
        with self.reading() as snapshot:
            return entries_of(snapshot, known(snapshot.store, keys), keys)

    def upsert(self, entries: Sequence[Entry], expected: Mapping[str, Known] | None = None) -> None:
        """Store entries in one commit, in place of those of the same keys; see Backend."""
        last = checked(entries, int(self.settings["encoder"]["dim"]))
        entries = list(last.values())
        documents = [entry.document for entry in entries]
        spans = [entry.spans for entry in entries]
        supplied = {e.document.key: e.supplied for e in entries if e.supplied is not None}
        sources = {e.document.key: e.source for e in entries if e.source is not None}
        made_by = self.settings
        with self.own_store() as store:
            with self.writing(store, made_by=made_by) as writer:
                before = writer.changes.known(list(last))
                check_unchanged(expected, before, last)
                # Without its source, nothing of the metadata before is merged.
                stored = {key: state._replace(source=None) for key, state in before.items()}
                first = writer.changes.next_passage()
                writer.changes.write(documents, spans, stored, first, supplied)
                writer.changes.set_sources(sources)
                if any(spans):
                    writer.append(_blocks(entries))
            self._upserted.update(writer.opened)
            self.merge_due(store, made=self._upserted)

    def flush(self) -> None:
        """Return at once: a commit is synced before it ends."""

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return at once: a commit contains the indexes of its segments."""


def folders_only(name: Path | str) -> CollectionError:
    """The error of what works on folders only, for a collection on a server."""
    return CollectionError(
        f"{name} is on a server, and this works on folders only; copy it to a folder first: "
        f"searchengine copy {name} FOLDER"
    )


class Local:
    """What an engine offers only where the collection is a folder."""

    collection: Backend

    @property
    def local(self) -> Embedded:
        """The folder. Raises CollectionError for a collection on a server."""
        if not isinstance(self.collection, Embedded):
            raise folders_only(self.collection.path)
        return self.collection


def _blocks(entries: Sequence[Entry]) -> Iterator[Floats]:
    """The vectors of all entries, in blocks."""
    pending: list[Floats] = []
    for entry in entries:
        pending.append(entry.vectors)
        if sum(map(len, pending)) >= BLOCK_ROWS:
            yield np.concatenate(pending)
            pending = []
    if pending:
        yield np.concatenate(pending)
