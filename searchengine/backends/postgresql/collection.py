"""A collection in PostgreSQL, as a backend."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, Self

import numpy as np
from pgvector import HalfVector

from searchengine.backends.contract import (
    Backend,
    Changed,
    Entry,
    Known,
    as_json,
    check_made_by,
    check_unchanged,
    checked,
)
from searchengine.backends.postgresql import BESIDE
from searchengine.backends.postgresql import schema as tables
from searchengine.backends.postgresql.connections import (
    Connection,
    Connections,
    Rows,
    Statement,
    run,
)
from searchengine.backends.postgresql.filters import condition, dates_of
from searchengine.backends.postgresql.schema import State, set_values
from searchengine.backends.postgresql.snapshot import (
    FIELDS,
    PostgresSnapshot,
    known_of,
    storable_keys,
)
from searchengine.backends.postgresql.words import vector_of
from searchengine.corpus.analyzer import DEFAULT, Analyzer, Tokenizer
from searchengine.errors import CollectionBusy, CollectionError, CorpusError
from searchengine.indexer.arrays import Floats, unit_rows
from searchengine.indexer.config import FLAT_BELOW, RotationKind
from searchengine.indexer.storage.vectors import pca

_DOCUMENT = {
    "key": "text", "title": "text", "text": "text", "digest": "bytea", "vectors": "bytea",
    "tokens": "int4", "words": "tsvector", "metadata": "json", "fields": "jsonb",
    "dates": "jsonb", "source": "json", "root": "text",
}  # fmt: skip
_PASSAGE = {
    "id": "int8", "document": "int8", "first": "int4", "last": "int4", "vector": "halfvec",
}  # fmt: skip
_PREFIX = {"passage": "int8", "document": "int8", "prefix": "halfvec"}
"""Columns that a writer fills, and their types."""
_SAMPLE = 20_000  # rows that a rotation is fitted on
_BLOCK = 1_000  # documents, or prefixes, that one statement writes
_SUM_UP: Statement = (
    "WITH gone AS (DELETE FROM word_totals WHERE (SELECT count(*) FROM word_totals) > 500 "
    "RETURNING documents, tokens) INSERT INTO word_totals "
    "SELECT sum(documents), sum(tokens) FROM gone HAVING count(*) > 0",
    (),
)
_NUMBERS = "SELECT nextval(pg_get_serial_sequence('passages', 'id')) FROM generate_series(1, %s)"


class PostgresCollection(Backend):
    """An open collection. Safe to use from several threads.

    Members without a description: see Backend.

    Every search sees the last commit. Until the graph is built, searches compare all rows. At the
    end of an `add`, once there are FLAT_BELOW passages, the rotation is fitted, for good, and the
    graph is built, in one commit.
    """

    path: str

    def __init__(self, url: str, end: str = "") -> None:
        """Open. Raises CollectionError, BackendUnavailable and ImportError (missing extra).

        `end` of the schema: BESIDE, or nothing; here and below.
        """
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._url, self._connections = url, Connections(url, end)
        self.path = self._connections.name
        try:
            with self._connections.borrow(replica=True) as connection:
                if not tables.exists(connection, self._connections.schema):
                    raise CollectionError(
                        f"{self.path}: no such collection; make one with: searchengine copy FOLDER "
                        "URL, or searchengine index CORPUS URL"
                    )
                self._state = State.read(connection, self.path)
        except BaseException:
            self._connections.close()
            raise

    @classmethod
    def create(
        cls, url: str, settings: Mapping[str, Any], analyzer: Analyzer | None, end: str = ""
    ) -> Self:
        """Create an empty collection, whole or not at all, and open it.

        `settings`: as of a folder; `analyzer`: None is stem:en. Raises CollectionError for stems
        without languages, which here no documents tell.
        """
        if analyzer == Analyzer(Tokenizer.STEM):
            raise CollectionError(
                "a collection on a server does not read the languages of its stems from the first "
                "documents: name them, such as stem:en or stem:de,ru, or copy a folder"
            )
        stored = {**settings, "tokenizer": str(analyzer or DEFAULT)}
        with closing(Connections(url, end)) as connections:
            tables.create(connections, stored)
        return cls(url, end)

    @classmethod
    def exists(cls, url: str, end: str = "") -> bool:
        """Whether there is a collection. Raises as opening it, if the server cannot be asked."""
        with closing(Connections(url, end)) as connections, connections.borrow() as connection:
            return tables.exists(connection, connections.schema)

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._state.settings

    @contextmanager
    def reading(self, *, newest: bool = False) -> Iterator[PostgresSnapshot]:
        """`newest`: of the primary, on which a write is based."""
        reading = self._connections.transaction("ACCESS SHARE", replica=not newest)
        with reading as (connection, revision):
            yield PostgresSnapshot(connection, self.path, self._current(connection, revision))

    def upsert(
        self,
        entries: Sequence[Entry],
        expected: Mapping[str, Known] | None = None,
        made_by: Mapping[str, Any] | None = None,
        *,
        metadata: Sequence[Entry] = (),
        unchanged: Sequence[str] = (),
        choose: object = None,
        finished: int | None = None,
        progress: object = None,
    ) -> None:
        """As Backend; `unchanged`, `choose` and `progress` are for folders."""
        made_by = self.settings if made_by is None else made_by
        last = checked(entries, int(made_by["encoder"]["dim"]))
        analyzer = Analyzer.parse(self.settings["tokenizer"])
        rows = {key: _row(entry, analyzer) for key, entry in last.items()}
        patched = {entry.document.key: _patch(entry) for entry in metadata}
        keys = [*last, *patched]

        def work(connection: Connection, revision: str) -> None:
            state = self._current(connection, revision)
            check_made_by(self.path, made_by, state.settings)
            sql, values = known_of(keys)  # in one order, so that no two writers wait for each other
            lock = f"{sql} ORDER BY key FOR NO KEY UPDATE", values
            passages = sum(len(entry.spans) for entry in last.values())
            stored, numbers = run(connection, lock, (_NUMBERS, (passages,)))
            known = {row[0]: Known(*row[1:]) for row in stored}
            check_unchanged(expected, known, keys)
            if not known.keys() >= patched.keys():
                raise Changed
            for key, row in patched.items():
                sets = ", ".join(f"{name} = %s" for name in row)
                sql = f"UPDATE documents SET {sets} WHERE key = %s"
                connection.execute(sql, (*row.values(), key))
            if last:
                _write(connection, last, rows, sorted(number for (number,) in numbers), state)

        if keys:
            self._connections.write(work)
        if finished is not None:
            self.build_graph()

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        def work(connection: Connection, _: str) -> int:
            matches, values = condition(where)
            if keys is not None:
                matches, values = "key = ANY(%s)", (storable_keys(keys),)
            sql = f"DELETE FROM documents WHERE {matches} RETURNING tokens"
            gone = connection.execute(sql, values).fetchall()
            counted = -len(gone), -sum(tokens for (tokens,) in gone)
            run(connection, ("INSERT INTO word_totals VALUES (%s, %s)", counted), _SUM_UP)
            return len(gone)

        return self._connections.write(work)

    def configure(self, values: Mapping[str, Any], *, fields: Iterable[str] = ()) -> None:
        """As Backend. Equality and `contains` have an index without `fields`, comparisons not."""
        wanted = [*fields]

        def work(connection: Connection, revision: str) -> None:
            changed, known = (
                dict(values),
                self._current(connection, revision).settings.get(FIELDS, ()),
            )
            if missing := [name for name in dict.fromkeys(wanted) if name not in known]:
                for name in missing:
                    tables.index_field(connection, name)
                connection.execute("ANALYZE documents")  # which collects those of the index
                changed[FIELDS] = [*known, *missing]
            set_values(connection, changed)

        self._connections.write(work, alone=True)
        self.refresh()

    def build_graph(self) -> None:
        """Fit and build it, if it is missing and there is enough. Others search meanwhile."""
        if self._state.indexed:
            return
        sql = (
            "SELECT count(*) >= %s FROM passages WHERE (SELECT pg_has_role(relowner, 'USAGE') "
            "FROM pg_class WHERE oid = 'passages'::regclass)"  # else nothing is counted
        )
        with self._connections.borrow() as connection:
            if connection.execute(sql, (FLAT_BELOW,)).fetchone() != (True,):
                return

        def work(connection: Connection, revision: str) -> None:
            state = self._current(connection, revision)
            if not state.indexed:  # nor has another process built it
                tables.build_graph(connection, _fit(connection, state))

        self._connections.write(work, alone=True)
        self.refresh()

    def refresh(self) -> None:
        """Read the settings again. Raises EncoderMismatch if another encoder built them."""
        with self.reading(newest=True):
            pass

    def close(self) -> None:
        self._connections.close()

    # ---------------------------------------------------------------------------------- a reindex

    @contextmanager
    def beside(self, settings: Mapping[str, Any]) -> "Iterator[PostgresCollection]":
        """The collection that is to take the place of this one: the pending one, or a new one.

        One process at a time has it. Raises CollectionBusy.
        """
        with self._reindexing():
            if not self.exists(self._url, BESIDE):
                analyzer = Analyzer.parse(self.settings["tokenizer"])
                self.create(self._url, settings, analyzer, BESIDE).close()
            with closing(type(self)(self._url, BESIDE)) as other:
                yield other

    def discard(self) -> bool:
        """Drop the pending reindex; whether there was one. Raises CollectionBusy."""
        with self._reindexing() as connection:
            if is_pending := self.exists(self._url, BESIDE):
                connection.execute(f'DROP SCHEMA "{self._connections.schema}{BESIDE}" CASCADE')
            return is_pending

    @contextmanager
    def _reindexing(self) -> Iterator[Connection]:
        with self._connections.borrow() as connection:
            sql = "SELECT pg_try_advisory_lock(hashtextextended(%s, 1))"
            if connection.execute(sql, (self._connections.schema,)).fetchone() != (True,):
                raise CollectionBusy(
                    f"{self.path} is being reindexed by another process; wait until it has "
                    "finished, or end it"
                )
            try:
                yield connection
            finally:
                connection.execute("SELECT pg_advisory_unlock_all()")

    def differing(self, other: "PostgresCollection") -> list[tuple[str, bool]]:
        """The documents that a collection beside this one lacks, has too many or with another text.

        Key, and whether it is stored here; as they were first added.
        """
        with self.reading(newest=True) as snapshot:
            return snapshot.read(
                "SELECT key, here.id IS NOT NULL FROM documents AS here "
                f'FULL JOIN "{other._connections.schema}".documents AS there USING (key) '
                "WHERE here.digest IS DISTINCT FROM there.digest ORDER BY here.id"
            )

    def replace_by(
        self, other: "PostgresCollection", finish: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Put the collection beside in the place of this one, in one commit.

        `finish`: called before, while nobody else writes, maybe several times; returns settings
        that differ. Raises CollectionBusy if others read without a pause.
        """

        def work(connection: Connection, revision: str) -> None:
            values, kept = finish(), self._current(connection, revision).settings
            other.configure({**kept, **values}, fields=kept.get(FIELDS, ()))
            tables.replace(connection, self._connections.schema, other._connections.schema)

        self._connections.write(work, alone=True)
        self.refresh()

    # ------------------------------------------------------------------------------------ settings

    def _current(self, connection: Connection, revision: str) -> State:
        """The state of the commit that a connection sees."""
        state = self._state
        if state.settings["revision"] != revision:
            state = State.read(connection, self.path)
            self.accepts(state.settings)
            self._state = state
        return state


def _fit(connection: Connection, state: State) -> Floats | None:
    """Fit the rotation, write the prefixes of all passages by it, and return it."""
    cursor = connection.cursor(binary=True)
    sql = f"SELECT vector FROM passages ORDER BY random() LIMIT {_SAMPLE}"
    sample = _vectors(cursor.execute(sql).fetchall())
    matrix = None
    if state.config.rotation is not RotationKind.IDENTITY:
        matrix = pca([sample], state.config.prefix)
    fitted, last = replace(state, rotation=matrix), -1
    connection.execute("DELETE FROM prefixes")  # that an older version left without a graph
    sql = "SELECT vector, id, document FROM passages WHERE id > %s ORDER BY id LIMIT 1000"
    while rows := cursor.execute(sql, (last,)).fetchall():
        last = rows[-1][1]
        prefixes = _with((row[1:] for row in rows), fitted.prefixes(_vectors(rows)))
        _insert(connection, "prefixes", _PREFIX, prefixes)
    return matrix


def _row(entry: Entry, analyzer: Analyzer) -> dict[str, Any]:
    """The columns of a document. Raises CorpusError for the only text that cannot be stored."""
    document = entry.document
    if "\0" in document.title or "\0" in document.text:  # keys and metadata never have it
        raise CorpusError(
            f"document {document.key!r:.80} holds the character U+0000, which PostgreSQL cannot "
            "store; remove it, nothing was changed"
        )
    words, tokens = vector_of(document, analyzer)
    columns = {name: getattr(document, name) for name in ("key", "title", "text", "digest")}
    counted = {"vectors": entry.supplied, "tokens": tokens, "words": words}
    return columns | counted | _patch(entry)


def _patch(entry: Entry) -> dict[str, Any]:
    """The columns of metadata: as JSON, as JSONB, the shadow of its dates; source and root."""
    text, dates = as_json(entry.document.metadata), dates_of(dict(entry.document.metadata))
    shadow, root = None if dates is None else json.dumps(dates), entry.document.root or None
    return {
        "metadata": text, "fields": text, "dates": shadow, "source": entry.source, "root": root
    }  # fmt: skip


def _write(
    connection: Connection,
    entries: Mapping[str, Entry],
    rows: Mapping[str, Mapping[str, Any]],
    numbers: Iterable[int],
    state: State,
) -> None:
    """Store entries and their rows, by key, in place of stored ones; `numbers`: of passages."""
    keys, tokens = [*rows], sum(row["tokens"] for row in rows.values())
    stored = "FROM documents WHERE key = ANY(%s)"
    count = f"INSERT INTO word_totals SELECT %s - count(*), %s - coalesce(sum(tokens), 0) {stored}"
    delete = f"DELETE FROM passages WHERE document IN (SELECT id {stored})"
    run(connection, (count, (len(keys), tokens, keys)), _SUM_UP, (delete, (keys,)))
    columns = (tuple(row.values()) for row in rows.values())
    sets = ", ".join(f"{name} = excluded.{name}" for name in _DOCUMENT)
    update = f"ON CONFLICT (key) DO UPDATE SET {sets} RETURNING key, id"
    ids: dict[str, int] = dict(_insert(connection, "documents", _DOCUMENT, columns, update))
    free = iter(numbers)
    spans = [(next(free), ids[key], *span) for key in keys for span in entries[key].spans]
    if not spans:
        return
    vectors = unit_rows(np.concatenate([entry.vectors for entry in entries.values()]))
    _insert(connection, "passages", _PASSAGE, _with(spans, vectors))
    if state.indexed:
        pairs = [span[:2] for span in spans]
        _insert(connection, "prefixes", _PREFIX, _with(pairs, state.prefixes(vectors)))


def _insert(
    connection: Connection,
    table: str,
    types: Mapping[str, str],
    rows: Iterable[tuple[Any, ...]],
    end: str = "",
) -> Rows:
    """Insert rows in their order, some at a time; what they return."""
    # Text of numbers would be slow to write and to read.
    formats = ({"halfvec": "%b"}.get(kind, "%s") + f"::{kind}[]" for kind in types.values())
    arrays = ", ".join(formats)
    sql = f"INSERT INTO {table} ({', '.join(types)}) SELECT * FROM unnest({arrays}) {end}"
    rest, returned = iter(rows), Rows()
    while block := [*islice(rest, _BLOCK)]:
        returned += run(connection, (sql, [*map(list, zip(*block, strict=True))]))[0]
    return returned


def _with(rows: Iterable[tuple[int, ...]], vectors: Floats) -> Iterator[tuple[Any, ...]]:
    """Rows, each with its vector of (n, d) as float16, for the database."""
    for row, half in zip(rows, vectors.astype(np.float16), strict=True):
        yield (*row, HalfVector(half))


def _vectors(rows: Rows) -> Floats:
    """The vectors that rows begin with, (n, D)."""
    return np.array([row[0].to_numpy() for row in rows], np.float32)
