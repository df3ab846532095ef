"""A collection in PostgreSQL, as a backend."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from searchengine.backends.contract import (
    Backend,
    Entry,
    Known,
    Reindexed,
    check_unchanged,
    checked,
    entries_of,
)
from searchengine.backends.filters.parser import field_named
from searchengine.backends.mode import Mode
from searchengine.backends.postgresql import schema, statistics, writing
from searchengine.backends.postgresql.connections import Connections
from searchengine.backends.postgresql.snapshot import PostgresSnapshot
from searchengine.backends.postgresql.words import postings_of
from searchengine.backends.unrelated import MeanCosine
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import FLAT_BELOW, SegmentConfig
from searchengine.indexer.search.rotating import Rotation
from searchengine.indexer.storage.basis import Basis

if TYPE_CHECKING:
    from searchengine.backends.postgresql.pool import Connection, Transaction

_POLL = 0.1  # seconds between two looks at a lock
_SAMPLE = 20_000  # rows that a rotation is fitted on
_MEMORY = "512MB"  # for building the graph, where the server has no value of its own
_MAX_LINKS, _MAX_CANDIDATES = 100, 1000  # the limits of pgvector
ROTATION, SHORTLIST = "rotation", "shortlist"
"""Settings that a copy brings along: the rotation of the vectors, and the measured shortlist."""
_State = tuple[dict[str, Any], Rotation | None]
"""The settings of a commit, and its rotation."""


class PostgresCollection(Backend):
    """An open collection. Safe to use from several threads, and in a forked child.

    Members without a description: see Backend.

    It has no state of its own but the settings: every search sees the last commit. Until the index
    of vectors is built, searches compare all rows. `wait_ready` builds it, once there are
    FLAT_BELOW passages, and fits the rotation first unless one came with the collection.

    Attributes:
        address: the URL, with its password.
        wait: not used: writers of a server wait for each other by row.
    """

    path: str

    def __init__(self, url: str, wait: float = 0) -> None:
        """Open. Raises CollectionError, BackendUnavailable and ImportError (missing extra)."""
        self.address, self.wait = url, wait
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._connections = Connections(url)
        self.path = self._connections.name
        self._ready = False  # the index of vectors has been seen
        self._state: _State | None = None
        self._cosine = MeanCosine()
        try:
            with self._connections.borrow(replica=True) as connection:
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
                stored[ROTATION] = schema.pack(carried["rotation"])
        if schema.words_config(stored) is None:
            stored["mode"] = Mode.VECTOR
        try:
            with connections.borrow() as connection, connection.transaction():
                schema.create(connection, connections, stored)
        finally:
            connections.close()
        return cls(url, wait)

    @classmethod
    def exists(cls, url: str) -> bool:
        """Whether there is a collection. Raises as opening it, if the server cannot be asked."""
        connections = Connections(url)
        try:
            with connections.borrow() as connection:
                return schema.exists(connection, connections.schema)
        finally:
            connections.close()

    @property
    def settings(self) -> Mapping[str, Any]:
        assert self._state is not None
        return self._state[0]

    @property
    def words(self) -> str | None:
        return None if schema.words_config(self.settings) is None else schema.WORDS_RANKER

    def reading(self) -> AbstractContextManager[PostgresSnapshot]:
        return self._reading(replica=True)

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        with self._reading(replica=False) as snapshot:  # which a write is based on
            return snapshot.store.known(keys)

    def entries(self, keys: Sequence[str]) -> list[Entry]:
        with self._reading(replica=False) as snapshot:
            return entries_of(snapshot, keys)

    def highest_number(self) -> int:
        with self._reading(replica=False) as snapshot:
            return snapshot.store.highest_number()

    @contextmanager
    def _reading(self, *, replica: bool) -> Iterator[PostgresSnapshot]:
        assert self._state is not None
        shown = self._state
        with self._connections.reading(replica=replica) as transaction:
            snapshot = PostgresSnapshot(transaction, self.path, *shown, self._cosine)

            def began(revision: str) -> None:
                state = self._current(transaction.connection, revision)
                if state is not shown:
                    if state[0]["encoder"] != shown[0]["encoder"]:
                        raise Reindexed(f"{self.path}: another encoder indexed it just now")
                    snapshot.show(*state)

            transaction.began = began
            yield snapshot

    def carried(self) -> dict[str, Any]:
        with self.reading() as snapshot:
            matrix = snapshot.rotation_matrix()
            return {"rotation": matrix, "shortlist": snapshot.shortlist}

    def upsert(self, entries: Sequence[Entry], expected: Mapping[str, Known] | None = None) -> None:
        last = checked(entries, int(self.settings["encoder"]["dim"]))
        used = Analyzer.parse(self.settings["tokenizer"] if self.words else Tokenizer.NONE)
        terms = postings_of(list(last.values()), used)

        def work(transaction: "Transaction") -> None:
            # Until this commits, nobody may change the rotation that it writes by.
            seen: list[_State] = []
            transaction.began = lambda revision: seen.append(
                self._current(transaction.connection, revision)
            )
            known, numbers = writing.prepare(transaction, last)
            check_unchanged(expected, known, last)
            writing.upsert(transaction, last, known, numbers, seen[0][1], terms, self._spread)

        self._connections.write(work, "FOR SHARE")

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        return self._connections.write(lambda t: writing.delete(t, keys, where, self._spread))

    def update(self, patches: Mapping[str, Mapping[str, Any]]) -> None:
        self._connections.write(lambda t: writing.update(t, self.path, patches))

    def index_fields(self, names: Iterable[str]) -> None:
        """Index metadata fields for comparisons; equality and `contains` always have an index."""
        for name in names:
            with self._connections.single() as connection, connection.transaction():
                schema.index_field(connection, field_named(name), name)
                connection.execute("ANALYZE documents")  # which collects those of the index

    def configure(self, values: Mapping[str, Any]) -> None:

        def work(transaction: "Transaction") -> None:
            for name, value in values.items():
                schema.set_value(transaction.connection, name, value)

        self._connections.write(work)
        self.refresh()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Build the index of vectors if it is missing and there are FLAT_BELOW passages.

        Others search and write meanwhile. Raises CollectionError after `timeout` seconds.
        """
        if self._ready:
            return
        with self._connections.borrow() as connection:
            few = f"(SELECT count(*) FROM (SELECT 1 FROM passages LIMIT {FLAT_BELOW}) AS first)"
            (((self._ready, rows),),) = connection.run((f"SELECT {schema.INDEXED}, {few}", ()))
        if self._ready or rows < FLAT_BELOW:
            return
        with self._connections.single() as connection:
            if timeout is not None:
                connection.execute(f"SET statement_timeout = {max(1, int(1000 * timeout))}")
            self._wait_alone(connection, timeout)
            self._ready = schema.is_indexed(connection)
            if self._ready:
                return
            self._fit_rotation(connection)
            self._build_index(connection)
            statistics.create(connection)
            self._ready = True

    def settle(self) -> None:
        with self._connections.single() as connection:
            connection.execute("VACUUM (ANALYZE) documents, passages, postings, word_totals")

    def remove(self) -> None:
        with self._connections.single() as connection:
            connection.execute(f'DROP SCHEMA "{self._connections.schema}" CASCADE')
        self.close()

    def processor_seconds(self) -> dict[int, float] | None:
        """Of all connections to the database."""
        sql = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type IN ('client backend', 'parallel worker')"
        )
        used: dict[int, float] = {}
        with self._connections.borrow(replica=True) as connection:
            for (pid,) in connection.execute(sql).fetchall():
                with suppress(OSError):  # it has ended, or runs elsewhere
                    if Path(f"/proc/{pid}/comm").read_text().startswith("postgres"):
                        schedule = Path(f"/proc/{pid}/schedstat").read_text()
                        used[pid] = int(schedule.split()[0]) / 1e9
            return used if connection.info.backend_pid in used else None

    @property
    def _spread(self) -> bool:
        """Whether the tables are spread over the nodes of a cluster."""
        return bool(self.settings.get(schema.CITUS))

    def is_indexed(self) -> bool:
        """Whether the index of vectors serves searches."""
        with self._connections.borrow(replica=True) as connection:
            return schema.is_indexed(connection)

    def explain(self, vector: Floats, k: int = 10, where: str | None = None) -> str:
        """The server's plan (EXPLAIN) of a search for a vector (D,) in the encoder's basis."""
        with self.reading() as snapshot:
            return snapshot.explain(vector, k, where)

    def refresh(self) -> None:
        """Read the settings again. Raises EncoderMismatch if another encoder built them."""
        self._ready = False
        with self._connections.borrow(replica=True) as connection:
            self._load(connection)

    def close(self) -> None:
        self._connections.close()

    def _wait_alone(self, connection: "Connection", timeout: float | None) -> None:
        """Keep others from building the index until the connection is closed.

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

    def _current(self, connection: "Connection", revision: str) -> _State:
        """The settings and the rotation of the commit that a connection sees."""
        state = self._state
        if state is None or state[0]["revision"] != revision:
            state = self._load(connection)
        return state

    def _load(self, connection: "Connection") -> _State:
        settings = schema.read_settings(connection, self.path)
        self.accepts(settings)
        packed = settings.pop(ROTATION, None)
        rotation = None if packed is None else Rotation(schema.unpack(packed))
        self._state = settings, rotation
        return self._state

    def _fit_rotation(self, connection: "Connection") -> None:
        """Fit the rotation to the stored vectors, and rotate them, unless there is one."""
        with connection.transaction():
            # Waits for the writers that have read the settings; others begin again when it ends.
            connection.execute("SELECT FROM settings WHERE name = 'revision' FOR UPDATE")
            settings, before = self._load(connection)
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
            schema.set_value(connection, ROTATION, schema.pack(basis.matrix))

    def _build_index(self, connection: "Connection") -> None:
        """Build the graph as the server's parameters say: memory, and processes that take part."""
        config = SegmentConfig.from_dict(self.settings["index"])
        head = schema.prefix_sql("embedding", config.prefix)
        links = min(config.hnsw_m, _MAX_LINKS)
        candidates = min(max(config.ef_construction, 2 * links), _MAX_CANDIDATES)
        # The graph should fit into memory while it is built. A server that says how much may be
        # used is obeyed; only the value that PostgreSQL has from the start is raised.
        connection.execute(
            f"SELECT set_config(name, '{_MEMORY}', false) FROM pg_settings "
            "WHERE name = 'maintenance_work_mem' AND source = 'default'"
        )
        schema.drop_interrupted(connection)
        connection.execute(
            f"CREATE INDEX CONCURRENTLY {schema.INDEX} ON passages "
            f"USING hnsw (({head}) halfvec_cosine_ops) "
            f"WITH (m = {links}, ef_construction = {candidates})"
        )
