"""A collection in PostgreSQL, as a backend."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from pgvector import HalfVector
from psycopg.types.json import Json, Jsonb

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
from searchengine.backends.mode import Mode
from searchengine.backends.postgresql import schema
from searchengine.backends.postgresql.connections import Connection, Connections, run
from searchengine.backends.postgresql.filters import condition, dates_of
from searchengine.backends.postgresql.schema import State, set_value
from searchengine.backends.postgresql.snapshot import (
    SHORTLIST,
    PostgresSnapshot,
    known_of,
    storable_keys,
)
from searchengine.backends.postgresql.words import vector_of
from searchengine.backends.unrelated import MeanCosine
from searchengine.corpus.analyzer import DEFAULT, Analyzer, Tokenizer
from searchengine.errors import CollectionError, CorpusError
from searchengine.indexer.arrays import Floats, unit_rows
from searchengine.indexer.config import FLAT_BELOW
from searchengine.indexer.storage.rotation import fit

_PASSAGE = {
    "id": "int8", "document": "int8", "first": "int4", "last": "int4", "vector": "halfvec",
    "prefix": "halfvec",
}  # fmt: skip
_SAMPLE = 20_000  # rows that a rotation is fitted on
_GROWTH = 8  # times the rows of the last fit: then the rotation is fitted again
_BLOCK = 5_000  # passages whose prefixes are written at a time
_MAX_TOTALS = 500  # rows of word_totals until a writer adds them up


class PostgresCollection(Backend):
    """An open collection. Safe to use from several threads.

    Members without a description: see Backend.

    Every search sees the last commit. Until the graph is built, searches compare all rows. Once
    there are FLAT_BELOW passages, `upsert` fits the rotation, and at the end of an `add` it builds
    the graph. When the collection has grown to eight times those that the rotation was fitted to,
    up to the sample of a fit, it is fitted again.
    """

    path: str

    def __init__(self, url: str) -> None:
        """Open. Raises CollectionError, BackendUnavailable and ImportError (missing extra)."""
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._url, self._connections = url, Connections(url)
        self.path, self._cosine = self._connections.name, MeanCosine()
        try:
            with self._connections.borrow(replica=True) as connection:
                if not schema.exists(connection, self._connections.schema):
                    raise CollectionError(
                        f"{self.path}: no such collection; make one with: searchengine copy FOLDER "
                        "URL, or searchengine index CORPUS URL"
                    )
                self._state = State.read(connection, self.path)
        except BaseException:
            self._connections.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._url,)

    @classmethod
    def create(cls, url: str, settings: dict[str, Any], analyzer: Analyzer | None) -> Self:
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
        stored = settings | {"tokenizer": str(analyzer or DEFAULT)}
        if stored["tokenizer"] == Tokenizer.NONE:
            stored["mode"] = Mode.VECTOR
        connections = Connections(url)
        try:
            schema.create(connections, stored)
        finally:
            connections.close()
        return cls(url)

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
    def settings(self) -> Mapping[str, Any]:
        return self._state.settings

    @contextmanager
    def reading(self, *, newest: bool = False) -> Iterator[PostgresSnapshot]:
        """`newest`: of the primary, on which a write is based."""
        with self._connections.reading(replica=not newest) as reading:
            snapshot = PostgresSnapshot(reading, self.path, self._state, self._cosine)
            reading.began = lambda revision: snapshot.show(
                self._current(reading.connection, revision)
            )
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
        made_by = self.settings if made_by is None else made_by
        last = checked(entries, int(made_by["encoder"]["dim"]))
        rows = {key: _row(entry, self.settings) for key, entry in last.items()}
        patched = {entry.document.key: _patch(entry) for entry in metadata}

        def work(connection: Connection, revision: str) -> None:
            state = self._current(connection, revision)
            check_made_by(self.path, made_by, state.settings)
            keys = [*last, *patched]
            known = {row[0]: Known(*row[1:]) for row in run(connection, known_of(keys))[0]}
            check_unchanged(expected, known, keys)
            if not known.keys() >= patched.keys():
                raise Changed
            if rows:
                _write(connection, rows, last, known, state)
            with connection.pipeline():
                _change(connection, {known[key].id: columns for key, columns in patched.items()})

        if last or patched:
            self._connections.write(work)
            self._fit_if_due()
        if finished is not None:
            self.build_graph()

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        def work(connection: Connection, _: str) -> int:
            matches, values = condition(where)
            if keys is not None:
                matches, values = "key = ANY(%s)", (storable_keys(keys),)
            sql = f"DELETE FROM documents WHERE {matches} RETURNING tokens"
            gone = connection.execute(sql, values).fetchall()
            _count(connection, -len(gone), -sum(tokens for (tokens,) in gone))
            return len(gone)

        return self._connections.write(work)

    def configure(self, values: Mapping[str, Any], *, fields: Iterable[str] = ()) -> None:
        """As Backend. Equality and `contains` have an index without `fields`, comparisons not."""
        with self._connections.single() as connection:
            for name in fields:
                schema.index_field(connection, name)
            if fields:
                connection.execute("ANALYZE documents")  # which collects those of the index

        def work(connection: Connection, _: str) -> None:
            for name, value in values.items():
                set_value(connection, name, value)

        if values:
            self._connections.write(work, alone=True)
            self.refresh()

    def build_graph(self) -> None:
        """Build the graph if it is missing and there are prefixes; others search and write.

        Searches do without meanwhile, and if another process is at work.
        """
        if not self._state.indexed:
            self.refresh()
        if self._state.indexed or not self._state.fitted:
            return
        with self._connections.single() as connection:
            sql = "SELECT pg_try_advisory_lock(hashtextextended(%s, 1))"
            if connection.execute(sql, (self._connections.schema,)).fetchone() == (True,):
                schema.index_frequent_fields(connection)
                schema.build_graph(connection, self._state.config)
        self.refresh()

    def explain(self, vector: Floats, k: int = 10, where: str | None = None) -> str:
        """The server's plan (EXPLAIN) of a search for a vector (D,)."""
        with self.reading() as snapshot:
            return snapshot.explain(vector, k, where)

    def refresh(self) -> None:
        """Read the settings again. Raises EncoderMismatch if another encoder built them."""
        with self._connections.borrow() as connection:
            self._load(connection)

    def close(self) -> None:
        self._connections.close()

    def _current(self, connection: Connection, revision: str) -> State:
        """The state of the commit that a connection sees."""
        state = self._state
        return state if state.settings["revision"] == revision else self._load(connection)

    def _load(self, connection: Connection) -> State:
        state = State.read(connection, self.path)
        self.accepts(state.settings)
        self._state = state
        return state

    def _fit_if_due(self) -> None:
        """Fit the rotation if it is time, and write the prefixes of all passages.

        Other writers wait. Searches go on, and compare all rows until the graph is built again.
        """
        if (fitted := self._state.fitted) >= _SAMPLE:
            return
        least = _GROWTH * fitted or FLAT_BELOW
        sql = (
            "SELECT max(id) - min(id) >= %s AND (SELECT pg_has_role(relowner, 'USAGE') "
            "FROM pg_class WHERE oid = 'passages'::regclass) FROM passages"
        )
        with self._connections.borrow() as connection:
            if connection.execute(sql, (least - 1,)).fetchone() != (True,):
                return
        if fitted:
            with self._connections.single() as connection:
                set_value(connection, schema.GRAPH, None)
                connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema.GRAPH}")

        def work(connection: Connection, revision: str) -> None:
            ((count,),) = connection.execute("SELECT count(*) FROM passages").fetchall()
            if self._current(connection, revision).fitted != fitted or count < least:
                return  # another process has done it
            sql = f"SELECT vector FROM passages ORDER BY random() LIMIT {_SAMPLE}"
            sample = _vectors(connection.cursor(binary=True).execute(sql).fetchall())
            schema.set_rotation(connection, fit([sample], self._state.config), count)
            state, last = State.read(connection, self.path), -1
            sql = f"SELECT vector, id FROM passages WHERE id > %s ORDER BY id LIMIT {_BLOCK}"
            while rows := connection.cursor(binary=True).execute(sql, (last,)).fetchall():
                last = rows[-1][1]
                prefixes = _halves(state.prefixes(_vectors(rows)))
                with connection.cursor() as cursor:
                    pairs = zip(prefixes, (row[1] for row in rows), strict=True)
                    cursor.executemany("UPDATE passages SET prefix = %s WHERE id = %s", pairs)

        self._connections.write(work, alone=True)
        self.refresh()


def _row(entry: Entry, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a document. Raises CorpusError for the only text that cannot be stored."""
    document, patch = entry.document, _patch(entry)
    written = as_json(document.metadata) + (entry.source or "")
    has_nul = "\\u0000" in written.replace("\\\\", "")
    for name in ("key", "title", "text"):
        has_nul |= "\0" in getattr(document, name)
    if has_nul:
        raise CorpusError(
            f"document {document.key!r:.80} holds the character U+0000, which PostgreSQL cannot "
            "store; remove it, nothing was changed"
        )
    words, tokens = vector_of(document, Analyzer.parse(settings["tokenizer"]))
    texts = {name: getattr(document, name) for name in ("key", "title", "text", "digest")}
    return {**texts, **patch, "vectors": entry.supplied, "tokens": tokens, "words": words}


def _patch(entry: Entry) -> dict[str, Any]:
    """The columns of metadata: as JSON, as JSONB, the shadow of its dates; source and root."""
    text, dates = as_json(entry.document.metadata), dates_of(dict(entry.document.metadata))
    return {
        "metadata": Json(text, dumps=str),
        "fields": Jsonb(text, dumps=str),
        "dates": None if dates is None else Jsonb(dates),
        "source": None if entry.source is None else Json(entry.source, dumps=str),
        "root": entry.document.root or None,
    }


def _write(
    connection: Connection,
    rows: Mapping[str, Mapping[str, Any]],
    entries: Mapping[str, Entry],
    known: Mapping[str, Known],
    state: State,
) -> None:
    """Store entries (by key) and their rows in place of those that are `known`."""
    new = [key for key in rows if key not in known]
    ids = {key: known[key].id for key in rows if key in known}
    replaced, count = [*ids.values()], sum(len(entry.spans) for entry in entries.values())
    sql = "SELECT coalesce(sum(tokens), 0)::int8 FROM documents WHERE id = ANY(%s)"
    free, numbers, ((before,),) = run(
        connection, _new_ids("documents", len(new)), _new_ids("passages", count), (sql, (replaced,))
    )
    ids |= {key: i for key, (i,) in zip(new, sorted(free), strict=True)}
    with connection.pipeline():
        _count(connection, len(new), sum(row["tokens"] for row in rows.values()) - before)
        _change(connection, {ids[key]: rows[key] for key in rows if key in known})
        connection.execute("DELETE FROM passages WHERE document = ANY(%s)", (replaced,))
    if new:
        names = ", ".join(["id", *rows[new[0]]])
        sql = f"COPY documents ({names}) FROM STDIN"
        with connection.cursor() as cursor, cursor.copy(sql) as copy:
            for key in new:
                copy.write_row((ids[key], *rows[key].values()))
    if not count:
        return
    vectors = unit_rows(np.concatenate([entry.vectors for entry in entries.values()]))
    prefixes = _halves(state.prefixes(vectors)) if state.fitted else [None] * count
    spans = [(ids[key], *span) for key, entry in entries.items() for span in entry.spans]
    sql = f"COPY passages ({', '.join(_PASSAGE)}) FROM STDIN WITH (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(sql) as copy:
        copy.set_types([*_PASSAGE.values()])
        rows_ = zip(sorted(numbers), spans, _halves(vectors), prefixes, strict=True)
        for (i,), span, vector, prefix in rows_:
            copy.write_row((i, *span, vector, prefix))


def _change(connection: Connection, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Change columns of documents, by id: passages refer to a row, so it is not replaced."""
    for i, columns in changes.items():
        sets = ", ".join(f"{name} = %s" for name in columns)
        connection.execute(f"UPDATE documents SET {sets} WHERE id = %s", (*columns.values(), i))


def _count(connection: Connection, documents: int, tokens: int) -> None:
    """Count documents and their tokens in, or out."""
    connection.execute("INSERT INTO word_totals VALUES (%s, %s)", (documents, tokens))
    connection.execute(
        "WITH gone AS (DELETE FROM word_totals WHERE (SELECT count(*) FROM word_totals) > %s "
        "RETURNING documents, tokens) INSERT INTO word_totals "
        "SELECT sum(documents), sum(tokens) FROM gone HAVING count(*) > 0",
        (_MAX_TOTALS,),
    )


def _new_ids(table: str, count: int) -> tuple[str, tuple[Any, ...]]:
    sql = (
        "SELECT nextval(sequence) FROM (SELECT pg_get_serial_sequence(%s, 'id')::regclass AS "
        "sequence) AS of_table, generate_series(1, %s)"
    )
    return sql, (table, count)


def _vectors(rows: Sequence[tuple[Any, ...]]) -> Floats:
    """The vectors that rows begin with, (n, D)."""
    return np.array([row[0].to_numpy() for row in rows], np.float32)


def _halves(rows: Floats) -> list[HalfVector]:
    """Rows (n, d) as float16, for the database."""
    return [HalfVector(row) for row in rows.astype(np.float16)]
