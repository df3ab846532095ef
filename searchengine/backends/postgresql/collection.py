"""A collection in PostgreSQL, as a backend."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from searchengine.backends.contract import (
    Backend,
    Entry,
    Known,
    check_unchanged,
    checked,
    entries_of,
)
from searchengine.backends.filters.parser import field_named
from searchengine.backends.mode import Mode
from searchengine.backends.postgresql import schema, statistics, writing
from searchengine.backends.postgresql.connections import Connections
from searchengine.backends.postgresql.replacing import Pending, Replacement
from searchengine.backends.postgresql.snapshot import PostgresSnapshot
from searchengine.backends.postgresql.words import postings_of
from searchengine.backends.unrelated import MeanCosine
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.errors import CollectionError, EncoderMismatch
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import FLAT_BELOW, SegmentConfig
from searchengine.indexer.search.rotating import Rotation
from searchengine.indexer.storage.basis import Basis

if TYPE_CHECKING:
    from searchengine.backends.postgresql.pool import Connection, Transaction

_POLL = 0.1  # seconds between two looks at a lock
_SAMPLE = 20_000  # rows that a rotation is fitted on
_GROWTH = 8  # times the rows of the last fit: then the rotation is fitted again
_MEMORY = "512MB"  # for building the graph, where the server has no value of its own
_MAX_LINKS, _MAX_CANDIDATES = 100, 1000  # the limits of pgvector
ROTATION, SHORTLIST = "rotation", "shortlist"
"""Settings that a copy brings along: the rotation of the vectors, and the measured shortlist."""
_State = tuple[dict[str, Any], Rotation | None]
"""The settings of a commit, and its rotation."""


class PostgresCollection(Backend):
    """An open collection. Safe to use from several threads.

    Members without a description: see Backend.

    It has no state of its own but the settings: every search sees the last commit. Until the index
    of vectors is built, searches compare all rows. `wait_ready` builds it, once there are
    FLAT_BELOW passages, and fits the rotation first unless one came with the collection; when the
    collection has grown to eight times that, up to the sample of a fit, it does both again.

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
        self._added = 0  # passages since then
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
        Raises CollectionError for stems without languages: here no documents tell them.
        """
        if analyzer == Analyzer(Tokenizer.STEM) and carried is None:
            raise CollectionError(
                "a collection on a server does not read the languages of its stems from the first "
                "documents: name them, such as stem:en or stem:de,ru, or copy a folder"
            )
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
                    snapshot.show(*state)

            transaction.began = began
            yield snapshot

    def carried(self) -> dict[str, Any]:
        with self.reading() as snapshot:
            matrix = snapshot.rotation_matrix()
            return {"rotation": matrix, "shortlist": snapshot.settings.get(SHORTLIST)}

    def upsert(
        self,
        entries: Sequence[Entry],
        expected: Mapping[str, Known] | None = None,
        made_by: Mapping[str, Any] | None = None,
    ) -> None:
        made_by = self.settings if made_by is None else made_by
        last = checked(entries, int(made_by["encoder"]["dim"]))
        used = Analyzer.parse(self.settings["tokenizer"] if self.words else Tokenizer.NONE)
        terms = postings_of(list(last.values()), used)

        def work(transaction: "Transaction") -> None:
            # Until this commits, nobody may change the rotation that it writes by.
            seen: list[_State] = []
            transaction.began = lambda revision: seen.append(
                self._current(transaction.connection, revision)
            )
            known, numbers = writing.prepare(transaction, last)
            if _making(seen[0][0]) != _making(made_by):
                raise EncoderMismatch(
                    f"{self.path}: it was reindexed while the documents were encoded; open the "
                    "collection again and add them again"
                )
            check_unchanged(expected, known, last)
            writing.upsert(transaction, last, known, numbers, seen[0][1], terms, self._spread)

        self._connections.write(work)
        self._added += sum(len(entry.spans) for entry in entries)

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

        self._connections.write(work, "FOR UPDATE")
        self.refresh()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Build the index of vectors if it is missing and there are FLAT_BELOW passages.

        If the collection has outgrown its rotation, fit it again, and the index with it. Others
        search and write meanwhile. Raises CollectionError after `timeout` seconds.
        """
        if self._ready and self._added < FLAT_BELOW:
            return
        self._added = 0
        with self._connections.borrow() as connection:
            few = f"(SELECT count(*) FROM (SELECT 1 FROM passages LIMIT {FLAT_BELOW}) AS first)"
            extent = "(SELECT coalesce(max(id) - min(id) + 1, 0) FROM passages)"
            (((self._ready, rows, most),),) = connection.run(
                (f"SELECT {schema.INDEXED}, {few}, {extent}", ())
            )
        if rows < FLAT_BELOW or (self._ready and not _has_outgrown(self.settings, most)):
            return
        with self._connections.single() as connection:
            if timeout is not None:
                connection.execute(f"SET statement_timeout = {max(1, int(1000 * timeout))}")
            if not self._ready:
                self._wait_alone(connection, timeout)
            elif not self._is_alone(connection):  # searches do without, and another one is at work
                return
            self._arrange(connection)

    def replaced(
        self,
        replacement: Replacement,
        write: Callable[[Sequence[Pending]], None],
        config: SegmentConfig,
        rotation: Rotation | None,
    ) -> None:
        """Put new passages in place: see Replacement.finish. `rotation`: what they are stored by.

        `config`: what the index of vectors is built by.
        """
        connection = replacement.connection
        packed = None if rotation is None else schema.pack(rotation.matrix)
        rows = _count(connection)

        def changes() -> Mapping[str, Any]:
            # A rotation of few passages is fitted when there are more.
            fitted = rows if rows >= FLAT_BELOW else None
            return {ROTATION: packed, schema.FITTED: fitted}

        def index(table: str, name: str) -> None:
            sql = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
            if rows < FLAT_BELOW or connection.execute(sql, (name,)).fetchone() == (True,):
                return
            connection.execute(f"DROP INDEX IF EXISTS {name}")  # one that was interrupted
            self._build_index(connection, config, table, name)

        replacement.finish(write, index, changes)
        self._load(connection)

    def fitted(self, sample: Floats, config: SegmentConfig) -> Rotation | None:
        """The rotation of vectors (n, D) in the encoder's basis; None: the config wants none."""
        with tempfile.TemporaryDirectory() as folder:
            basis = Basis.fitted(lambda: [sample], len(sample), config, Path(folder))
        return None if basis.matrix is None else Rotation(basis.matrix)

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
        while not self._is_alone(connection):
            if deadline is not None and time.monotonic() > deadline:
                raise CollectionError(
                    f"{self.path}: another process did not finish the index of vectors within "
                    f"{timeout} seconds; searches work meanwhile, wait longer"
                )
            time.sleep(_POLL)

    def _is_alone(self, connection: "Connection") -> bool:
        """Take that lock; False if another process has it."""
        sql = "SELECT pg_try_advisory_lock(hashtextextended(%s, 1))"
        return connection.execute(sql, (self._connections.schema,)).fetchone() == (True,)

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

    def _arrange(self, connection: "Connection") -> None:
        """Fit the rotation if it is time, and build the index of vectors, as others may have."""
        settings, before = self._load(connection)
        indexed, rows = schema.is_indexed(connection), _count(connection)
        config = SegmentConfig.from_dict(settings["index"])
        rotation = None
        if _has_outgrown(settings, rows) or (before is None and schema.FITTED not in settings):
            rotation = self.fitted(self._sample(connection, before), config)
        replacement = Replacement(connection, self.path, self._spread)
        if rotation is not None:
            replacement.begin(int(settings["encoder"]["dim"]))
            write = _rotating(replacement, before, rotation)
            self.replaced(replacement, write, config, rotation)
        elif not indexed:
            self._build_index(connection, config)
        if not indexed:
            statistics.create(connection)
        if schema.FITTED not in settings and rotation is None:
            with connection.transaction():
                schema.set_value(connection, schema.FITTED, rows)
        self._ready = True

    def _sample(self, connection: "Connection", rotation: Rotation | None) -> Floats:
        """Vectors (n, D) of random passages, in the encoder's basis."""
        sql = "SELECT embedding FROM passages ORDER BY random() LIMIT %s"
        rows = connection.cursor(binary=True).execute(sql, (_SAMPLE,)).fetchall()
        sample = np.array([row[0].to_numpy() for row in rows], np.float32)
        return sample if rotation is None else rotation.undo(sample)

    def _build_index(
        self,
        connection: "Connection",
        config: SegmentConfig,
        table: str = "passages",
        name: str = schema.INDEX,
    ) -> None:
        """Build the graph as the server's parameters say: memory, and processes that take part."""
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
            f"CREATE INDEX CONCURRENTLY {name} ON {table} "
            f"USING hnsw (({head}) halfvec_cosine_ops) "
            f"WITH (m = {links}, ef_construction = {candidates})"
        )


def _making(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What passages and vectors depend on."""
    encoder = settings["encoder"]
    return encoder["fingerprint"], encoder["dim"], settings.get("passages")


def _count(connection: "Connection") -> int:
    """Number of passages; reads all ids."""
    row = connection.execute("SELECT count(*) FROM passages").fetchone()
    return int(row[0]) if row else 0


def _has_outgrown(settings: Mapping[str, Any], rows: int) -> bool:
    """Whether the rotation was fitted to much fewer passages than there are, and to few."""
    fitted = settings.get(schema.FITTED)
    return fitted is not None and fitted < _SAMPLE and rows >= _GROWTH * fitted


def _rotating(
    replacement: Replacement, before: Rotation | None, after: Rotation
) -> Callable[[Sequence[Pending]], None]:
    """Writes the passages of documents by another rotation."""

    def write(block: Sequence[Pending]) -> None:
        sql = (
            "SELECT document, first, last, embedding FROM passages WHERE document = ANY(%s) "
            "ORDER BY document, id"
        )
        cursor = replacement.connection.cursor(binary=True)
        rows = cursor.execute(sql, ([each.id for each in block],)).fetchall()
        spans: dict[int, list[tuple[int, int]]] = {each.id: [] for each in block}
        for document, first, last, _ in rows:
            spans[document].append((first, last))
        vectors = np.array([row[3].to_numpy() for row in rows], np.float32)
        if before is not None and rows:
            vectors = before.undo(vectors)
        replacement.record(block, list(spans.values()), vectors, after)

    return write
