"""Work that outlives a commit: the table `pending`, its folders, and whether its process is alive.

A row of the table hides a range of ids: passages in it are stored and not visible. So the passages
of a new segment are written in many short transactions, while everybody else reads and writes. The
commit that makes the segment visible removes one row and adds others, which hide the passages that
were replaced; those are removed afterwards, again in short transactions. Deleting a document
removes its hidden passages too and leaves tombstones for them, so a new segment lacks the documents
deleted while it was built.

A work named NAME fills the folder `pending/NAME`. Beside it is `pending/NAME.lock`, which its
process holds locked; the system releases the lock of a killed process. The lock is taken before the
transaction that adds the row ends, so a row whose lock is free belongs to nobody: another process
may continue its work, or discard it.

A process adopts an abandoned folder, or removes it, within a write transaction only. The folder
`pending` itself stays, empty as it may be: another process may be about to make a lock in it.
"""

import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

from searchengine.backends.contract import Ids, Span
from searchengine.backends.folder.documents import schema
from searchengine.backends.folder.documents.connections import inherit
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.errors import CollectionError
from searchengine.indexer.storage.durable import sync_folder


class Kind(StrEnum):
    """The kinds of unfinished work."""

    MERGE = "merge"
    """Segments become one."""
    REINDEX = "reindex"
    """All documents are encoded by another encoder."""
    REMOVE = "remove"
    """Passages that were replaced, or never became visible, are removed."""


@dataclass(frozen=True, slots=True)
class Work:
    """A row of the table.

    Attributes:
        id: its number.
        kind: what is being done.
        first, last: the ids of passages that are not visible.
        folder: its folder below `pending`, and the name of its lock; several rows may share it.
        details: what it needs to go on, and who started it when.
    """

    id: int
    kind: Kind
    first: int
    last: int
    folder: str
    details: Mapping[str, Any]

    @property
    def inputs(self) -> list[SegmentRow]:
        """The segments that are merged."""
        return [SegmentRow(*row) for row in self.details["inputs"]]


def works(store: Store) -> list[Work]:
    """All rows, by id."""
    rows = store.read("SELECT id, kind, first, last, folder, details FROM pending ORDER BY id")
    for i, kind, *_ in rows:
        if kind not in tuple(Kind):
            raise store.damaged(f"pending work {i} is of the kind {kind!r}")
    with store.named_errors():
        return [
            Work(i, Kind(kind), first, last, folder, json.loads(details))
            for i, kind, first, last, folder, details in rows
        ]


def enter(
    store: Store, kind: Kind, ends: tuple[int, int], folder: str, details: Mapping[str, Any]
) -> Work:
    """Add a row, which hides the passages from `ends[0]` to `ends[1]`."""
    with store.writing() as connection:
        number = schema.take(connection, "pending")
        connection.execute(
            "INSERT INTO pending (id, kind, first, last, folder, details) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (number, kind, *ends, folder, json.dumps(details)),
        )
    return Work(number, kind, *ends, folder, details)


def note(store: Store, work: Work, **details: Any) -> Work:
    """Change details of a row."""
    changed = {**work.details, **details}
    with store.writing() as connection:
        sql = "UPDATE pending SET details = ? WHERE id = ?"
        connection.execute(sql, (json.dumps(changed), work.id))
    return Work(work.id, work.kind, work.first, work.last, work.folder, changed)


def leave(store: Store, work: Work) -> None:
    """Remove a row: the passages in its range are visible from this commit on."""
    with store.writing() as connection:
        connection.execute("DELETE FROM pending WHERE id = ?", (work.id,))


def give_up(store: Store, work: Work) -> None:
    """Turn an entry into the removal of its passages."""
    with store.writing() as connection:
        sql = "UPDATE pending SET kind = ?, details = '{}' WHERE id = ?"
        connection.execute(sql, (Kind.REMOVE, work.id))


def move(store: Store, passages: Ids, first: int) -> None:
    """Copy passages (n,), ids ascending, of one segment, to the hidden ids from `first` on.

    The live passages of that segment between the first and the last are all among them. Those that
    were deleted meanwhile become tombstones.
    """
    sql = "SELECT id, document, start, end FROM passages WHERE id BETWEEN ? AND ?"
    new = dict(zip(passages.tolist(), range(first, first + len(passages)), strict=True))
    rows = store.read(sql, (int(passages[0]), int(passages[-1])))
    place(store, [(new.pop(old), document, (start, end)) for old, document, start, end in rows])
    bury(store, list(new.values()))


def place(store: Store, passages: Sequence[tuple[int, int, Span]]) -> None:
    """Store passages: id, document, offsets."""
    with store.writing() as connection:
        connection.executemany(
            "INSERT INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)",
            ((i, document, *span) for i, document, span in passages),
        )


def bury(store: Store, passages: Sequence[int]) -> None:
    """Store tombstones of hidden passages."""
    with store.writing() as connection:
        sql = "INSERT INTO tombstones (passage) VALUES (?)"
        connection.executemany(sql, ((i,) for i in passages))


def remove(store: Store, work: Work, limit: int) -> bool:
    """Remove hidden passages and tombstones, at most `limit` of each; True if none are left.

    Then the row is removed too.
    """
    with store.writing() as connection:
        removed = 0
        for table, column in (("passages", "id"), ("tombstones", "passage")):
            sql = (
                f"DELETE FROM {table} WHERE {column} IN (SELECT {column} FROM {table} "
                f"WHERE {column} BETWEEN ? AND ? LIMIT ?)"
            )
            removed += connection.execute(sql, (work.first, work.last, limit)).rowcount
    if removed:
        return False
    leave(store, work)
    return True


def drop_all(store: Store) -> None:
    """Remove all pending work with its passages, in the present transaction."""
    for work in works(store):
        while not remove(store, work, 1 << 30):
            pass


_NAME = re.compile(r"[0-9a-f]{32}")


class _Names:
    """Names of folders."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        inherit(self, _Names.after_fork)

    def after_fork(self) -> None:
        """In a forked child: they belong to the parent."""
        self.names = set()


held = _Names()
"""The folders that threads of this process own."""


class Owner:
    """Holds the lock of a folder, from `take` to `release`.

    Attributes:
        name: of the folder.
        folder: its path; it need not exist.
    """

    def __init__(self, path: Path, name: str) -> None:
        from filelock import FileLock  # takes longer to import than a search

        self.name = name
        self.folder = path / "pending" / name
        self._lock = FileLock(_lock_file(path, name))

    @classmethod
    def new(cls, path: Path) -> "Owner":
        """The owner of a new folder, which it creates."""
        name = uuid4().hex
        owner = cls(path, name)
        if not owner.take():  # nobody else knows the name
            raise OSError(f"{owner.folder} cannot be locked")
        owner.folder.mkdir()
        for folder in (owner.folder.parent, path):
            sync_folder(folder)
        return owner

    def take(self) -> bool:
        """Take the lock, unless another thread or process has it."""
        from filelock import Timeout

        if self.name in held.names:
            return False
        self.folder.parent.mkdir(exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        held.names.add(self.name)
        return True

    def release(self) -> None:
        """Release the lock: another process may go on."""
        held.names.discard(self.name)
        self._lock.release()

    def clear(self) -> None:
        """Remove the folder and the lock; within a transaction that removes its rows, or after."""
        shutil.rmtree(self.folder, ignore_errors=True)
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self.release()


def who() -> dict[str, Any]:
    """This process and the time, for `Work.details`."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"by": f"{socket.gethostname()}:{os.getpid()}", "started": now}


def here(name: str) -> bool:
    """Whether a thread of this process owns a folder."""
    return name in held.names


def alive(path: Path, names: Iterable[str]) -> set[str]:
    """The names of folders that belong to a live process."""
    living = set()
    for name in dict.fromkeys(names):
        if name in held.names:
            living.add(name)
        elif _lock_file(path, name).exists():
            owner = Owner(path, name)
            if owner.take():
                owner.release()
            else:
                living.add(name)
    return living


def remove_abandoned(path: Path, store: Store) -> None:
    """Remove the folders that no row names and nobody owns. Call it within a transaction."""
    folder = path / "pending"
    if not folder.is_dir():
        return
    named = {work.folder for work in works(store)}
    for name in {entry.name.removesuffix(".lock") for entry in folder.iterdir()} - named:
        if _NAME.fullmatch(name) and (owner := Owner(path, name)).take():
            owner.clear()


def _lock_file(path: Path, name: str) -> Path:
    return path / "pending" / f"{name}.lock"


def described(path: Path, work: Work) -> str:
    """A sentence about a work: its kind, its progress, and the process that does it."""
    details = work.details
    if work.kind is Kind.REMOVE:
        return "removal of replaced passages, which the next change completes"
    if work.kind is Kind.REINDEX:
        encoder, encoded = details["settings"]["encoder"], 0
        tables = path / "pending" / work.folder / "documents.db"
        with suppress(CollectionError), Store(tables, readers=1) as store:
            encoded = store.counts()[1]
        name = encoder["source"] or encoder.get("name") or encoder["fingerprint"][:12]
        return f"reindex by {name}: {encoded} passages encoded; {_by(details)}"
    rows = f"{details['moved']} of {details['rows']} passages moved"
    return f"merge of {len(work.inputs)} segments: {rows}; {_by(details)}"


def _by(details: Mapping[str, Any]) -> str:
    return f"started {details['started']} by {details['by']}"
