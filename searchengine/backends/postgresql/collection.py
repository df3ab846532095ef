"""A collection in PostgreSQL, as a backend."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from searchengine.backends.contract import Capabilities, Entry, check_unchanged, checked, entries_of
from searchengine.backends.folder.documents.changes import Known
from searchengine.backends.folder.filters.parser import field_named
from searchengine.backends.folder.mode import Mode
from searchengine.backends.postgresql import schema, writing
from searchengine.backends.postgresql.connections import Connections
from searchengine.backends.postgresql.snapshot import PostgresSnapshot
from searchengine.backends.postgresql.tables import PostgresTables
from searchengine.backends.stored import pack, unpack
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import FLAT_BELOW, SegmentConfig
from searchengine.indexer.search.rotating import Rotation
from searchengine.indexer.storage.basis import Basis

if TYPE_CHECKING:
    from searchengine.backends.postgresql.connections import Connection

_POLL = 0.1  # seconds between two looks at a lock
_SAMPLE = 20_000  # rows that a rotation is fitted on
ROTATION, SHORTLIST = "rotation", "shortlist"
"""Settings that a copy brings along: the rotation of the vectors, and the measured shortlist."""


class PostgresCollection:
    """An open collection. Safe to use from several threads, and in a forked child.

    It has no state of its own but the settings: every search sees the last commit. Until the index
    of vectors is built, searches compare all rows. `wait_ready` builds it, once there are
    FLAT_BELOW passages, and fits the rotation first unless one came with the collection.

    Attributes:
        path: the URL without its password.
        address: the URL, with its password.
        wait: not used: writers of a server wait for each other by row.
        accepts: as of searchengine.backends.folder.view.View.
    """

    def __init__(self, url: str, wait: float = 0) -> None:
        """Open. Raises CollectionError, BackendUnavailable and ImportError (missing extra)."""
        self.address, self.wait = url, wait
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._connections = Connections(url)
        self._ready = False  # the index of vectors has been seen
        self._state: tuple[dict[str, Any], Rotation | None] | None = None
        try:
            with self._connections.single() as connection:
                if not schema.exists(connection, self._connections.schema):
                    raise CollectionError(
                        f"{self.path}: no such collection; make one with: searchengine copy FOLDER "
                        "URL, or searchengine index CORPUS URL"
                    )
                self._load(connection)
        except BaseException:
            self._connections.close()
            raise

    @classmethod
    def create(
        cls,
        url: str,
        settings: dict[str, Any],
        analyzer: Analyzer | None,
        wait: float = 0,
        carried: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create an empty collection, whole or not at all, and open it.

        `settings`: as of a folder; `analyzer`: None is porter; `carried`: of another backend.
        """
        connections = Connections(url)
        stored = settings | {"tokenizer": str(analyzer or Tokenizer.PORTER)}
        if carried:
            stored[SHORTLIST] = carried["shortlist"]
            if carried["rotation"] is not None:
                stored[ROTATION] = pack(carried["rotation"])
        if schema.words_config(stored) is None:
            stored["mode"] = Mode.VECTOR
        try:
            with connections.single() as connection, connection.transaction():
                schema.create(connection, connections, stored)
        finally:
            connections.close()
        return cls(url, wait)

    @classmethod
    def exists(cls, url: str) -> bool:
        """Whether there is a collection. Raises as opening it, if the server cannot be asked."""
        connections = Connections(url)
        try:
            with connections.single() as connection:
                return schema.exists(connection, connections.schema)
        finally:
            connections.close()

    @property
    def path(self) -> str:
        """The URL without its password."""
        return self._connections.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """The collection settings."""
        assert self._state is not None
        return self._state[0]

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond the contract."""
        words = None if schema.words_config(self.settings) is None else "ts_rank"
        return Capabilities("postgresql", words, "collection", False)

    @contextmanager
    def reading(self) -> Iterator[PostgresSnapshot]:
        """The last commit, which stays as it is throughout the block."""
        with self._connections.reading() as connection:
            settings, rotation = self._current(connection)
            yield PostgresSnapshot(connection, self.path, settings, rotation)

    def carried(self) -> dict[str, Any]:
        """What a copy takes over: the rotation of the vectors, and the shortlist."""
        with self.reading() as snapshot:
            _, rotation = self._current(snapshot.connection)
            matrix = None if rotation is None else rotation.matrix
            return {"rotation": matrix, "shortlist": snapshot.shortlist}

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        """Key → stored state of the documents, for change detection."""
        with self.reading() as snapshot:
            return snapshot.store.known(keys)

    def entries(self, keys: Sequence[str]) -> list[Entry]:
        """The stored entries of these keys, in their order, without unknown keys."""
        with self.reading() as snapshot:
            return entries_of(snapshot, snapshot.store.known(keys), keys)

    def upsert(self, entries: Sequence[Entry], expected: Mapping[str, Known] | None = None) -> None:
        """Store entries in one commit, in place of those of the same keys; see Backend."""
        last = checked(entries, int(self.settings["encoder"]["dim"]))

        def work(connection: "Connection") -> None:
            # Until this commits, nobody may change the rotation that it writes by.
            _, rotation = self._current(connection, "FOR SHARE")
            known = PostgresTables(connection, self.path).known(last)
            check_unchanged(expected, known, last)
            writing.upsert(connection, last, known, rotation)

        self._connections.write(work)

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""
        return self._connections.write(lambda c: writing.delete(c, keys, where))

    def update(self, patches: Mapping[str, Mapping[str, Any]]) -> None:
        """Merge into the metadata of documents, all or none. Raises QueryError: unknown key."""
        self._connections.write(lambda c: writing.update(c, self.path, patches))

    def index_fields(self, names: Iterable[str]) -> None:
        """Index metadata fields for comparisons; equality and `contains` always have an index."""
        from psycopg import sql

        for name in names:
            steps = sql.SQL(" -> ").join(map(sql.Literal, field_named(name)))
            index = sql.Identifier(schema.field_index(name))
            with self._connections.single() as connection, connection.transaction():
                connection.execute(
                    sql.SQL("CREATE INDEX IF NOT EXISTS {} ON documents ((fields -> {}))").format(
                        index, steps
                    )
                )
                connection.execute(
                    sql.SQL("COMMENT ON INDEX {} IS {}").format(index, sql.Literal(name))
                )

    def configure(self, values: Mapping[str, Any]) -> None:
        """Store collection settings in one commit; None removes one."""

        def work(connection: "Connection") -> None:
            for name, value in values.items():
                schema.set_value(connection, name, value)

        self._connections.write(work)
        self.refresh()

    def flush(self) -> None:
        """Return at once: a commit is synced by the server before it ends."""

    def wait_ready(self, timeout: float | None = None) -> None:
        """Build the index of vectors if it is missing and there are FLAT_BELOW passages.

        Others search and write meanwhile. Raises CollectionError after `timeout` seconds.
        """
        if self._ready:
            return
        with self._connections.single() as connection:
            if timeout is not None:
                connection.execute(f"SET statement_timeout = {max(1, int(1000 * timeout))}")
            self._wait_alone(connection, timeout)
            self._ready = self._indexed(connection)
            if self._ready:
                return
            rows = connection.execute("SELECT count(*) FROM passages").fetchone()
            if rows is None or rows[0] < FLAT_BELOW:
                return
            self._fit_rotation(connection)
            self._build_index(connection)
            connection.execute("ANALYZE documents, passages")
            self._ready = True

    def fields(self) -> tuple[str, ...]:
        """The metadata fields that `index_fields` has indexed, as filters name them."""
        sql = (
            "SELECT coalesce(obj_description(oid, 'pg_class'), substr(relname, 7)) "
            "FROM pg_class WHERE relkind = 'i' "
            "AND starts_with(relname, 'field ') "
            "AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s) ORDER BY oid"
        )
        with self._connections.borrow() as connection:
            rows = connection.execute(sql, (self._connections.schema,)).fetchall()
        return tuple(row[0] for row in rows)

    def stored_bytes(self) -> int:
        """Bytes of all tables and indexes of the collection."""
        sql = (
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
        )
        with self._connections.borrow() as connection:
            row = connection.execute(sql, (f'"{self._connections.schema}"',)).fetchone()
        return int(row[0]) if row else 0

    def is_indexed(self) -> bool:
        """Whether the index of vectors serves searches."""
        with self._connections.borrow() as connection:
            return self._indexed(connection)

    def explain(self, vector: Floats, k: int = 10, where: str | None = None) -> str:
        """The server's plan (EXPLAIN) of a search for a vector (D,) in the encoder's basis."""
        with self.reading() as snapshot:
            return snapshot.explain(vector, k, where)

    def follow(self) -> None:
        """Return at once: every search sees the last commit."""

    def refresh(self) -> None:
        """Read the settings again. Raises EncoderMismatch if another encoder built them."""
        self._ready = False
        with self._connections.reading() as connection:
            self._current(connection)

    def close(self) -> None:
        """Close the connections; closing twice is harmless."""
        self._connections.close()

    def _wait_alone(self, connection: "Connection", timeout: float | None) -> None:
        """Until the connection is closed, nobody else builds the index.

        A statement that waits for the lock would keep a snapshot, and the index that another
        process builds would wait for this statement.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        sql = "SELECT pg_try_advisory_lock(hashtextextended(%s, 1))"
        while connection.execute(sql, (self._connections.schema,)).fetchone() != (True,):
            if deadline is not None and time.monotonic() > deadline:
                raise CollectionError(
                    f"{self.path}: another process did not finish the index of vectors within "
                    f"{timeout} seconds; searches work meanwhile, wait longer"
                )
            time.sleep(_POLL)

    def _current(
        self, connection: "Connection", lock: str = ""
    ) -> tuple[dict[str, Any], Rotation | None]:
        """The settings and the rotation of the commit that a connection sees."""
        sql = f"SELECT value FROM settings WHERE name = 'revision' {lock}"
        row = connection.execute(sql).fetchone()
        state = self._state
        if state is None or row is None or state[0]["revision"] != row[0]:
            state = self._load(connection)
        return state

    def _load(self, connection: "Connection") -> tuple[dict[str, Any], Rotation | None]:
        settings = schema.read_settings(connection, self.path)
        self.accepts(settings)
        packed = settings.pop(ROTATION, None)
        rotation = None if packed is None else Rotation(unpack(packed))
        self._state = settings, rotation
        return self._state

    @staticmethod
    def _indexed(connection: "Connection") -> bool:
        sql = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        return connection.execute(sql, (schema.INDEX,)).fetchone() == (True,)

    def _fit_rotation(self, connection: "Connection") -> None:
        """Fit the rotation to the stored vectors, and rotate them, unless there is one."""
        with connection.transaction():
            # Waits for the writers that have read the settings; others begin again when it ends.
            settings, before = self._current(connection, "FOR UPDATE")
            if before is not None:
                return
            config = SegmentConfig.from_dict(settings["index"])
            sql = "SELECT embedding FROM passages ORDER BY random() LIMIT %s"
            rows = connection.cursor(binary=True).execute(sql, (_SAMPLE,)).fetchall()
            sample = np.array([row[0].to_numpy() for row in rows], np.float32)
            with tempfile.TemporaryDirectory() as folder:
                basis = Basis.fitted(lambda: [sample], len(sample), config, Path(folder))
            if basis.matrix is None:
                return
            writing.rotate(connection, Rotation(basis.matrix))
            schema.set_value(connection, ROTATION, pack(basis.matrix))

    def _build_index(self, connection: "Connection") -> None:
        prefix = int(self.settings["index"]["prefix"])
        head = schema.prefix_sql("embedding", prefix)
        # The graph should fit into memory while it is built; only this session asks for it.
        connection.execute("SET maintenance_work_mem = '512MB'")
        connection.execute(f"DROP INDEX IF EXISTS {schema.INDEX}")  # one that was interrupted
        connection.execute(
            f"CREATE INDEX CONCURRENTLY {schema.INDEX} ON passages "
            f"USING hnsw (({head}) halfvec_cosine_ops)"
        )
