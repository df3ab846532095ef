"""A collection in PostgreSQL, as a backend."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from searchengine.backends.contract import (
    Backend,
    Changed,
    Entry,
    Known,
    check_unchanged,
    checked,
)
from searchengine.backends.entries import entries as entries_of_keys
from searchengine.backends.filters.parser import field_named
from searchengine.backends.mode import Mode
from searchengine.backends.postgresql import prefixes, schema, statistics, writing
from searchengine.backends.postgresql.connections import Connections
from searchengine.backends.postgresql.prefixes import IN_USE, NEXT, Prefixes, State
from searchengine.backends.postgresql.snapshot import SHORTLIST, PostgresSnapshot
from searchengine.backends.postgresql.words import postings_of
from searchengine.backends.unrelated import MeanCosine
from searchengine.corpus.analyzer import DEFAULT, Analyzer, Tokenizer
from searchengine.errors import CollectionError, EncoderMismatch
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import FLAT_BELOW, SegmentConfig

if TYPE_CHECKING:
    from searchengine.backends.postgresql.pool import Connection, Transaction

_POLL = 0.1  # seconds between two looks at a lock


class PostgresCollection(Backend):
    """An open collection. Safe to use from several threads.

    Members without a description: see Backend.

    It has no state of its own but the settings: every search sees the last commit. Until the index
    of vectors is built, searches compare all rows. `wait_ready` fits the rotation and builds it,
    once there are FLAT_BELOW passages; when the collection has grown to eight times those that the
    rotation was fitted to, up to the sample of a fit, it does both again.

    Attributes:
        address: the URL, with its password.
    """

    path: str

    def __init__(self, url: str, wait: float = 0) -> None:
        """Open. Raises CollectionError, BackendUnavailable and ImportError (missing extra)."""
        self.address = url
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._connections = Connections(url)
        self.path = self._connections.name
        self._added = FLAT_BELOW  # passages since the number of all was known; at first it is not
        self._state: State | None = None
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
    ) -> Self:
        """Create an empty collection, whole or not at all, and open it.

        `settings`: as of a folder, and of a copy the measured SHORTLIST, or None; `analyzer`: None
        is stem:en. Raises CollectionError for stems without languages, which here no documents
        tell, unless it is a copy.
        """
        if analyzer == Analyzer(Tokenizer.STEM) and SHORTLIST not in settings:
            raise CollectionError(
                "a collection on a server does not read the languages of its stems from the first "
                "documents: name them, such as stem:en or stem:de,ru, or copy a folder"
            )
        connections = Connections(url)
        stored = settings | {"tokenizer": str(analyzer or DEFAULT)}
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
        return self._state.settings

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address,)

    @contextmanager
    def reading(self, *, newest: bool = False) -> Iterator[PostgresSnapshot]:
        """`newest`: of the primary, on which a write is based."""
        assert self._state is not None
        shown = self._state
        with self._connections.reading(replica=not newest) as transaction:
            snapshot = PostgresSnapshot(transaction, self.path, shown, self._cosine)

            def began(revision: str) -> None:
                state = self._current(transaction.connection, revision)
                if state is not shown:
                    snapshot.show(state)

            transaction.began = began
            yield snapshot

    def upsert(
        self,
        entries: Sequence[Entry],
        expected: Mapping[str, Known] | None = None,
        made_by: Mapping[str, Any] | None = None,
        *,
        metadata: Sequence[Entry] = (),
        finished: int | None = None,
        **_: Any,
    ) -> None:
        if entries or metadata:
            self._write(entries, expected, made_by, metadata)
        if finished is not None:
            self.wait_ready()

    def _write(
        self,
        entries: Sequence[Entry],
        expected: Mapping[str, Known] | None,
        made_by: Mapping[str, Any] | None,
        metadata: Sequence[Entry],
    ) -> None:
        """A commit of `upsert`."""
        made_by = self.settings if made_by is None else made_by
        kept = entries_of_keys(self, [entry.document.key for entry in metadata])
        if len(kept) < len(metadata):
            raise Changed
        patched = zip(kept, metadata, strict=True)
        new = [
            replace(
                k,
                document=replace(k.document, metadata=e.document.metadata, root=e.document.root),
                source=e.source,
            )
            for k, e in patched
        ]
        entries = [*entries, *new]
        last = checked(entries, int(made_by["encoder"]["dim"]))
        used = Analyzer.parse(self.settings["tokenizer"])
        terms = postings_of(list(last.values()), used)

        def work(transaction: "Transaction") -> None:
            # Until this commits, nobody may change the tables of prefixes that it writes to.
            seen: list[State] = []
            transaction.began = lambda revision: seen.append(
                self._current(transaction.connection, revision)
            )
            known, numbers = writing.prepare(transaction, last)
            if _making(seen[0].settings) != _making(made_by):
                raise EncoderMismatch(
                    f"{self.path}: it was reindexed while the documents were encoded; open the "
                    "collection again and add them again"
                )
            check_unchanged(expected, known, last)
            writing.upsert(transaction, last, known, numbers, seen[0].tables, terms, self._spread)

        self._connections.write(work)
        self._added += sum(len(entry.spans) for entry in entries)

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        return self._connections.write(lambda t: writing.delete(t, keys, where, self._spread))

    def configure(self, values: Mapping[str, Any], *, fields: Iterable[str] = ()) -> None:
        """As Backend. Equality and `contains` have an index without `fields`, comparisons not."""
        for name in fields:
            with self._connections.single() as connection, connection.transaction():
                schema.index_field(connection, field_named(name), name)
                connection.execute("ANALYZE documents")  # which collects those of the index

        def work(transaction: "Transaction") -> None:
            for name, value in values.items():
                schema.set_value(transaction.connection, name, value)

        if values:
            self._connections.write(work, "FOR UPDATE")
            self.refresh()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Build the index of vectors if it is missing and there are FLAT_BELOW passages.

        If the collection has outgrown its rotation, fit it again, and the index with it. Others
        search and write meanwhile. Raises CollectionError after `timeout` seconds.
        """
        assert self._state is not None
        in_use = self._state.in_use
        if in_use is not None and self._added < FLAT_BELOW:
            return
        self._added = 0
        with self._connections.borrow() as connection:
            few = f"(SELECT count(*) FROM (SELECT 1 FROM passages LIMIT {FLAT_BELOW}) AS first)"
            extent = "(SELECT coalesce(max(id) - min(id) + 1, 0) FROM passages)"
            (((rows, most),),) = connection.run((f"SELECT {few}, {extent}", ()))
        if rows < FLAT_BELOW or (in_use is not None and not in_use.is_outgrown(most)):
            return
        with self._connections.single() as connection:
            if timeout is not None:
                connection.execute(f"SET statement_timeout = {max(1, int(1000 * timeout))}")
            if in_use is None:
                self._wait_alone(connection, timeout)
            elif not self._is_alone(connection):  # searches do without, and another one is at work
                return
            self._arrange(connection)

    @property
    def _spread(self) -> bool:
        """Whether the tables are spread over the nodes of a cluster."""
        return bool(self.settings.get(schema.CITUS))

    def is_indexed(self) -> bool:
        """Whether the index of vectors serves searches."""
        with self._connections.borrow(replica=True) as connection:
            return self._load(connection).in_use is not None

    def explain(self, vector: Floats, k: int = 10, where: str | None = None) -> str:
        """The server's plan (EXPLAIN) of a search for a vector (D,)."""
        with self.reading() as snapshot:
            return snapshot.explain(vector, k, where)

    def refresh(self) -> None:
        """Read the settings again. Raises EncoderMismatch if another encoder built them."""
        self._added = FLAT_BELOW
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

    def _current(self, connection: "Connection", revision: str) -> State:
        """The state of the commit that a connection sees."""
        state = self._state
        if state is None or state.settings["revision"] != revision:
            state = self._load(connection)
        return state

    def _load(self, connection: "Connection") -> State:
        settings = schema.read_settings(connection, self.path)
        self.accepts(settings)
        tables = [Prefixes.parse(settings.pop(name, None)) for name in (IN_USE, NEXT)]
        self._state = State(settings, *tables)
        return self._state

    def _arrange(self, connection: "Connection") -> None:
        """Fit the rotation if it is time, and build the index of vectors, as others may have."""
        settings, in_use, following = self._load(connection)
        ((passages,),) = connection.execute("SELECT count(*) FROM passages").fetchall()
        if in_use is None or in_use.is_outgrown(passages):
            following = following or prefixes.begin(connection, settings, passages)
            prefixes.fill(connection, following)
            config = SegmentConfig.from_dict(settings["index"])
            prefixes.build_index(connection, following, config)
            if in_use is None:
                statistics.create(connection)
            prefixes.replace(connection, following)
            self._load(connection)
            prefixes.drop_former(connection, following)


def _making(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What passages and vectors depend on."""
    encoder = settings["encoder"]
    return encoder["fingerprint"], encoder["dim"], settings.get("passages")
