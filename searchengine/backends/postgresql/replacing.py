"""All passages of a collection written again, beside those that searches read, and swapped once.

    passages_next   the new passages: a table like `passages`, by another rotation
    passages_done   the documents whose new passages are written, and the version that was read

What must be written is every document without a row in `passages_done`, or with another version
there: its xmin, the transaction that changed it last. So writers need not know of all this, and an
interrupted one goes on. A deleted document takes its new passages along.

The swap waits for writers by a lock on `settings`, writes what they left, and truncates `settings`:
so it waits for the readers too, and one that began before it, and comes after it, finds no settings
and begins again (pool.py). Everybody else waits for a moment. If a reader lasts, it gives way.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from searchengine.backends.contract import Span
from searchengine.backends.postgresql import schema, writing
from searchengine.errors import BackendUnavailable, CollectionError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.search.rotating import Rotation

if TYPE_CHECKING:
    from searchengine.backends.postgresql.pool import Connection

NEXT, DONE = "passages_next", "passages_done"
_FEW = 64  # documents that are written while writers wait
_ROUNDS = 8  # after which all that is left is
_BLOCK = 2000  # documents
_PATIENCE = 2.0  # seconds that others wait for a reader that lasts
_TRIES = 60


class Pending(NamedTuple):
    """A document that lacks new passages."""

    id: int
    version: int


Write = Callable[[Sequence[Pending]], None]
"""Writes the new passages of documents, by Replacement.record."""


class Replacement:
    """The new passages, and the connection that writes them; nobody else does.

    Attributes:
        connection: in autocommit, without a limit on time.
    """

    def __init__(self, connection: "Connection", name: str, spread: bool) -> None:
        """`name`: of the collection, for messages; `spread`: over a cluster."""
        self.connection = connection
        self._name, self._spread = name, spread

    def begin(self, dim: int) -> None:
        """Create the tables, in place of former ones, for vectors of width `dim`."""
        with self._transaction():
            self.connection.execute(f"DROP TABLE IF EXISTS {NEXT}, {DONE}")
            schema.create_passages(self.connection, NEXT, dim, self._spread)
            self.connection.execute(
                f"CREATE TABLE {DONE} (document bigint PRIMARY KEY "
                "REFERENCES documents ON DELETE CASCADE, version bigint NOT NULL)"
            )
            if self._spread:
                self.connection.execute(schema.spread_by(DONE, "document"))
            self._grant()

    def left(self) -> int:
        """How many documents lack new passages; reads all ids."""
        row = self.connection.execute(f"SELECT count(*) FROM {_UNWRITTEN}").fetchone()
        return int(row[0]) if row else 0

    def unwritten(self) -> Iterator[list[Pending]]:
        """The documents that lack new passages, in their order, in blocks."""
        last = -1
        sql = (
            f"SELECT documents.id, documents.xmin::text::int8 FROM {_UNWRITTEN} "
            "AND documents.id > %s ORDER BY 1 LIMIT %s"
        )
        while rows := self.connection.execute(sql, (last, _BLOCK)).fetchall():
            yield [Pending(*row) for row in rows]
            last = rows[-1][0]

    def record(
        self,
        written: Sequence[Pending],
        spans: Sequence[Sequence[Span]],
        vectors: Floats,
        rotation: Rotation | None,
    ) -> None:
        """Store the new passages of documents: their spans, and vectors (passages, D).

        What was changed meanwhile is left for the next round.
        """
        with self._transaction():
            self._keep_writers_out()
            ids = [each.id for each in written]
            sql = "SELECT id, xmin::text::int8 FROM documents WHERE id = ANY(%s)"
            present = dict(self.connection.execute(sql, (ids,)).fetchall())
            for table in (NEXT, DONE):
                self.connection.execute(f"DELETE FROM {table} WHERE document = ANY(%s)", (ids,))
            placed: list[tuple[int, int, int]] = []
            rows: list[int] = []
            row = 0
            for each, cut in zip(written, spans, strict=True):
                if present.get(each.id) == each.version:
                    placed += [(each.id, *span) for span in cut]
                    rows += range(row, row + len(cut))
                row += len(cut)
            sql, parameters = writing.new_ids("passages", len(rows))
            numbers = sorted(n for (n,) in self.connection.execute(sql, parameters).fetchall())
            new = writing.stored(vectors[rows], rotation) if rows else []
            passages = [(n, *p, v) for n, p, v in zip(numbers, placed, new, strict=True)]
            writing.copy_passages(self.connection, NEXT, passages)
            done = [(i, version) for i, version in written if present.get(i) == version]
            writing.copy(self.connection, DONE, "document, version", ["int8", "int8"], done)

    def finish(
        self,
        write: Write,
        index: Callable[[str, str], None],
        settings: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Write what is left, build the index, and put the new passages in place.

        Args:
            write: writes documents.
            index: builds the index of vectors of a table by a name.
            settings: what changes with the swap; None as a value removes one. Called in its
                transaction, in which it may change more.
        """
        for _ in range(_ROUNDS):
            for block in self.unwritten():
                write(block)
            if self.left() <= _FEW:
                break
        index(NEXT, f"{NEXT}_prefix")
        self.connection.execute(f"ANALYZE {NEXT}")
        for attempt in range(_TRIES):
            if self._swapped(write, settings):
                return
            time.sleep(min(1.0, 0.05 * 2**attempt))
        raise BackendUnavailable(
            f"{self._name}: a transaction of a reader lasts and keeps the new vectors from their "
            "place; they are kept, end it (pg_stat_activity names it) and call this again"
        )

    def _swapped(self, write: Write, settings: Callable[[], Mapping[str, Any]]) -> bool:
        """Put the new passages in place; False if a reader lasts."""
        from psycopg import errors

        run = self.connection.execute
        for block in self.unwritten():
            write(block)
        try:
            with self._transaction():
                self._keep_writers_out()
                for block in self.unwritten():
                    write(block)
                if self.left():
                    raise CollectionError(
                        f"{self._name}: documents cannot be given passages; the tables were "
                        "changed by hand, restore them from a backup"
                    )
                for name, value in settings().items():
                    schema.set_value(self.connection, name, value)
                kept = run("SELECT name, value::text FROM settings").fetchall()
                run("SELECT set_config('lock_timeout', %s, true)", (f"{_PATIENCE}s",))
                run("TRUNCATE settings")
                with self.connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO settings VALUES (%s, %s)", kept)
                ends = "pg_get_serial_sequence(%s, 'id')::regclass"
                run(f"SELECT setval({ends}, nextval({ends}))", (NEXT, "passages"))
                run(f"DROP TABLE {DONE}, passages")
                run(f"ALTER TABLE {NEXT} RENAME TO passages")
                for end in ("pkey", "document", "prefix"):
                    run(f"ALTER INDEX IF EXISTS {NEXT}_{end} RENAME TO passages_{end}")
        except errors.LockNotAvailable:
            return False
        return True

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction, or a part of one."""
        with self.connection.transaction():
            if self._spread:  # definitions and rows are changed by one connection to each node
                self.connection.execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
            yield

    def _keep_writers_out(self) -> None:
        """Until the transaction ends: all of them lock the row of the revision."""
        self.connection.execute("LOCK TABLE settings IN EXCLUSIVE MODE")

    def _grant(self) -> None:
        """Grant to others what they may do with `passages`."""
        from psycopg import sql

        rights = self.connection.execute(
            "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, "
            "privilege_type FROM pg_class, aclexplode(relacl) "
            "WHERE oid = 'passages'::regclass AND grantee <> relowner"
        ).fetchall()
        for role, right in rights:
            self.connection.execute(
                sql.SQL("GRANT {} ON {} TO {}").format(
                    sql.SQL(right), sql.Identifier(NEXT), sql.SQL(role)
                )
            )


_UNWRITTEN = (
    f"documents LEFT JOIN {DONE} ON {DONE}.document = documents.id "
    f"WHERE {DONE}.version IS DISTINCT FROM documents.xmin::text::int8"
)
