"""Work that outlives a commit: its folder, its row in the table `pending`, and who does it.

What takes long is done in the folder `pending/NAME`, without the write lock, and its process holds
the lock of that folder (folders.Scratch). A merge or a reindex is named in the table first: so no
other process merges the same segments, and a reindex that was killed goes on. A row whose lock is
free belongs to nobody. The next writer drops it, unless it is a reindex, and removes the folder.

The folder `pending` itself stays, empty as it may be: another process may be about to make a lock
in it.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

from searchengine.backends.folder.folders import Scratch, os_errors, remove_dead_scratch
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.errors import CollectionError
from searchengine.indexer.storage.durable import sync_folder


class Kind(StrEnum):
    """The kinds of unfinished work."""

    MERGE = "merge"
    """Segments become one."""
    REINDEX = "reindex"
    """All documents are encoded by another encoder."""


@dataclass(frozen=True, slots=True)
class Work:
    """A row of the table.

    Attributes:
        id: its number.
        kind: what is being done.
        folder: its folder below `pending`.
        details: what it needs to go on, and who started it when.
    """

    id: int
    kind: Kind
    folder: str
    details: Mapping[str, Any]

    @property
    def inputs(self) -> list[SegmentRow]:
        """The segments that are merged."""
        return [SegmentRow(*row) for row in self.details["inputs"]]


_DETAILS = {Kind.MERGE: {"by", "started", "inputs"}, Kind.REINDEX: {"by", "started", "settings"}}


def works(store: Store) -> list[Work]:
    """All rows, by id. Raises CollectionError for one that makes no sense."""
    works = []
    for i, kind, name, text in store.read("SELECT id, kind, folder, details FROM pending"):
        if kind not in tuple(Kind):
            raise store.damaged(f"pending work {i} is of the kind {kind!r}")
        with store.named_errors():
            details = json.loads(text)
        if lacking := _DETAILS[kind] - (details.keys() if isinstance(details, dict) else set()):
            raise store.damaged(f"pending work {i} lacks {', '.join(sorted(lacking))}")
        works.append(Work(i, Kind(kind), name, details))
    return works


def enter(store: Store, kind: Kind, folder: str, details: Mapping[str, Any]) -> Work:
    """Add a row."""
    work = Work(Changes(store).take("pending"), kind, folder, {**details, **this_process()})
    sql = "INSERT INTO pending (id, kind, folder, details) VALUES (?, ?, ?, ?)"
    store.execute(sql, (work.id, kind, folder, json.dumps(work.details)))
    return work


def note(store: Store, work: Work, **details: Any) -> Work:
    """Change details of a row, whose work this process does now."""
    changed = replace(work, details={**work.details, **details, **this_process()})
    sql = "UPDATE pending SET details = ? WHERE id = ?"
    store.execute(sql, (json.dumps(changed.details), work.id))
    return changed


def leave(store: Store, work: Work) -> None:
    """Remove a row."""
    store.execute("DELETE FROM pending WHERE id = ?", (work.id,))


def drop_all(store: Store) -> None:
    """Remove all rows, in the present transaction."""
    store.execute("DELETE FROM pending")


class Owner(Scratch):
    """The scratch folder of a work of the collection `path`."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path / "pending", name)

    @classmethod
    def new(cls, path: Path) -> "Owner":
        """The owner of a new folder, which it makes."""
        (path / "pending").mkdir(exist_ok=True)
        owner = cls(path, uuid4().hex)
        owner.make()
        for folder in (owner.folder.parent, path):
            sync_folder(folder)
        return owner


@contextmanager
def scratch(path: Path, store: Store) -> Iterator[Owner]:
    """A new folder to build a segment in, before the transaction that adopts it."""
    with os_errors(path):
        owner = Owner.new(path)
    try:
        if not store.in_place:
            raise store.replaced()
        yield owner
    finally:
        owner.clear()


def is_alive(path: Path, work: Work) -> bool:
    """Whether a process does a work now."""
    if (owner := Owner(path, work.folder)).take():
        owner.release()
        return False
    return True


def remove_abandoned(path: Path, store: Store) -> None:
    """Drop the merges of dead processes, and the folders of no work. Call it in a transaction."""
    kept = set()
    for work in works(store):
        if work.kind is Kind.REINDEX or is_alive(path, work):
            kept.add(work.folder)
        else:
            leave(store, work)
    remove_dead_scratch(path / "pending", kept, own=True)


def this_process() -> dict[str, Any]:
    """This process and the time, for `Work.details`."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"by": f"{socket.gethostname()}:{os.getpid()}", "started": now}


def describe(path: Path, work: Work) -> str:
    """A sentence about a work: its kind, its progress, and the process that does it."""
    details = work.details
    by = f"started {details['started']} by {details['by']}"
    if work.kind is Kind.REINDEX:
        encoder, encoded = details["settings"]["encoder"], 0
        tables = path / "pending" / work.folder / "documents.db"
        with suppress(CollectionError), Store(tables, readers=1) as store:
            encoded = store.counts()[1]
        name = encoder["source"] or encoder.get("name") or encoder["fingerprint"][:12]
        return f"reindex by {name}: {encoded} passages encoded; {by}"
    return f"merge of {len(work.inputs)} segments; {by}"
