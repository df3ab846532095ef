"""The table `pending`: work that outlives a commit, and the ids of passages that it has taken.

A row hides a range of ids: passages in it are stored and not visible. So the passages of a new
segment are written in many short transactions, while everybody else reads and writes. The commit
that makes the segment visible removes one row and adds others, which hide the passages that were
replaced; those are removed afterwards, again in short transactions.

Deleting a document removes its hidden passages too and leaves tombstones for them, so a new segment
lacks what was deleted while it was built.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from searchengine.backends.folder.documents import schema
from searchengine.backends.folder.documents.changes import Span
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.documents.tables import Ids


class Kind(StrEnum):
    """What is being done."""

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
    """Make of a row one whose passages are removed."""
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
