"""One commit of a collection in PostgreSQL, searched coarse to fine in one statement.

    inner   the rows that match, by the cosine of the prefix, up to the shortlist: an HNSW index,
            in an iterative scan, which goes on until enough rows match
    outer   those by the full-width cosine

Without an index, all rows that match are compared at full width.

An HNSW scan may end too soon, behind a filter that few rows meet. Where it returns fewer rows than
the shortlist, all rows that match are compared at full width instead. So `shortlist` is a lower
bound, and a filter never under-fills.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pgvector import HalfVector, Vector

from searchengine.backends import lexical
from searchengine.backends.contract import (
    SAMPLE,
    Ids,
    Known,
    Passages,
    Snapshot,
    Unrelated,
    WordScores,
    spread,
)
from searchengine.backends.filters.parser import field_named
from searchengine.backends.postgresql import words
from searchengine.backends.postgresql.connections import Connection, Rows, Statement, run
from searchengine.backends.postgresql.filters import condition
from searchengine.backends.postgresql.schema import State
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats, unit_rows
from searchengine.indexer.config import ALL_ROWS, FLAT_BELOW
from searchengine.indexer.search.scoring import SearchResult

FIELDS = "fields"
"""The setting with the metadata fields that are indexed for comparisons."""
_DEFAULT_SHORTLIST = 400
"""The shortlist of a collection without a configured one."""
_EFFORT = 250
"""ef_search, unless the collection sets one or the shortlist is longer. With it a shortlist of 100
rows has all of the 10 best, but 1 in 130 (100,000 sentences, 384 dimensions)."""
_RARE = "documents.id + 0 >= 0"
"""True of all documents; the planner expects that of a third. So it compares all rows that match up
to a twentieth of 60,000: 30 ms, where the graph takes 99, because it must pass by all others."""
_MAX_EF = 1000  # the limit of pgvector
_ASKED = 8 * SAMPLE  # ids looked up for a sample of passages; some may be deleted
_Matches = tuple[str, str, tuple[Any, ...]]  # a join with documents, condition, its parameters


class PostgresSnapshot(Snapshot):
    """One commit. Members: see backends.contract.Snapshot.

    Passages that a search has found are not read again.
    """

    def __init__(self, connection: Connection, name: str, state: State) -> None:
        self.settings, self._state, self._name = state.settings, state, name
        self._connection, self._run = connection, partial(run, connection)
        self._dim = int(state.settings["encoder"]["dim"])
        self._passages: dict[int, tuple[int, ...]] = {}
        self._count: int | None = None  # of documents, if it is known

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """All rows of a statement."""
        return self._run((sql, parameters))[0]

    # --------------------------------------------------------------------------------- by vectors

    @property
    def shortlist(self) -> int:
        least = _DEFAULT_SHORTLIST if self._state.indexed else FLAT_BELOW
        return int(self.settings["index"]["shortlist"] or least)

    @property
    def unrelated(self) -> Unrelated:
        """As of a folder; measured again as the number of documents grows or falls by an eighth."""
        if self._count is None:
            self._count = words.Index(self._run).documents
        measured, size = self._state.unrelated, int(6 * np.log2(1 + self._count))
        if size not in measured:
            # Passages of different documents, evenly spread over the ids.
            ((first, last),) = self.read("SELECT min(id), max(id) FROM passages")
            ids = [] if first is None else (first + spread(last - first + 1, _ASKED)).tolist()
            sql = "SELECT min(id) FROM passages WHERE id = ANY(%s) GROUP BY document ORDER BY 1"
            stored = np.array(self.read(sql, (ids,)), np.int64).reshape(-1)
            measured[size] = Unrelated.of(self.vectors(stored[spread(len(stored))]))
        return measured[size]

    def search(
        self,
        queries: Floats,
        k: int,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        phrases: tuple[str, ...] = (),
        exact: bool = False,
    ) -> SearchResult:
        size = max(k, shortlist or self.shortlist)
        walks = self._state.indexed and not exact and size < ALL_ROWS
        unit, matches = unit_rows(queries, dim=self._dim), self._matches(where, phrases)
        before, near = [self._parameters(size)] if walks else [], size if walks else None
        chosen = [self._nearest(query, k, near, matches) for query in unit]
        results = self._run(*before, *chosen)[len(before) :]
        if walks:  # the graph may have missed rows
            few = [i for i, rows in enumerate(results) if not rows or rows[0][2] < size]
            again = [self._nearest(unit[i], k, None, matches) for i in few]
            for i, best in zip(few, self._run(*again), strict=True):
                results[i] = best
        widest = max(map(len, results), default=0)
        rows = np.full((len(queries), widest), -1, np.int64)
        scores = np.full((len(queries), widest), -np.inf, np.float32)
        for i, best in enumerate(results):
            rows[i, : len(best)] = [row[0] for row in best]
            scores[i, : len(best)] = [row[1] for row in best]
            self._passages.update((row[0], (row[0], *row[3:6])) for row in best)
        return SearchResult(rows, scores, not walks)

    def _parameters(self, size: int) -> Statement:
        """Set the parameters of HNSW for this transaction, so that a scan returns `size` rows."""
        effort = max(size, int(self.settings["index"].get("effort") or _EFFORT))
        sql = (
            "SELECT set_config('hnsw.ef_search', %s::text, true), "
            "set_config('hnsw.iterative_scan', 'relaxed_order', true)"
        )
        return sql, (min(effort, _MAX_EF),)

    def _nearest(self, query: Floats, k: int, size: int | None, matches: _Matches) -> Statement:
        """The k best rows for a unit query (D,), which is not rounded to float16.

        `size`: of the shortlist by the prefix; None: all rows that match. Rows: id, full-width
        cosine, number of rows that were scored; document, offsets.
        """
        join, holds, values = matches
        source, scored = f"passages{join} WHERE {holds}", "0"
        if size is not None:
            scored = "count(*) OVER ()"
            if join and "= ANY(" not in holds:  # of which the planner expects few as it is
                holds += f" AND {_RARE}"
            source = (
                f"(SELECT passage FROM prefixes{join} WHERE {holds} ORDER BY prefix <#> "
                "%s::halfvec LIMIT %s) AS near JOIN passages ON passages.id = passage"
            )
            prefix = self._state.prefixes(query[None])[0].astype(np.float16)
            values = *values, HalfVector(prefix), size
        sql = (
            f"SELECT passages.id, -(vector::vector({self._dim}) <#> %s::vector) AS score, "
            f"{scored}, document, first, last FROM {source} ORDER BY 2 DESC, 1 LIMIT %s"
        )
        return sql, (Vector(query), *values, k)

    def prefix_ranks(
        self, query: Floats, passages: Ids, where: str | None, shortlist: int | None
    ) -> list[int]:
        return []

    def cosines(self, query: Floats, passages: Ids) -> SearchResult:
        matches = "", "passages.id = ANY(%s)", (passages.tolist(),)
        unit = unit_rows(query[None], dim=self._dim)[0]
        listed = self.read(*self._nearest(unit, len(passages), None, matches))
        rows = np.array([[row[0] for row in listed]], np.int64)
        return SearchResult(rows, np.array([[row[1] for row in listed]], np.float32))

    def vectors(self, passages: Ids) -> Floats:
        sql = "SELECT id, vector FROM passages WHERE id = ANY(%s)"
        cursor = self._connection.cursor(binary=True)
        stored: dict[int, Any] = dict(cursor.execute(sql, (passages.tolist(),)).fetchall())
        return np.array([stored[int(i)].to_numpy() for i in passages], np.float32)

    # ----------------------------------------------------------------------------------- by words

    def by_words(
        self,
        question: str,
        k: int,
        where: str | None = None,
        *,
        required: tuple[str, ...] = (),
    ) -> WordScores:
        """The k best documents with any word of the question, by BM25: (id, score)."""
        _, holds, values = self._matches(where, required)
        index = words.Index(self._run, (holds, values))
        self._count, question = index.documents, words.storable(question)
        return lexical.search(index, index.best, question, k, self.settings)

    def replacements(self, question: str) -> Mapping[tuple[int, int], str]:
        return {}

    def _matches(self, where: str | None, phrases: tuple[str, ...]) -> _Matches:
        """The condition that a filter and phrases set."""
        if where is None and not phrases:
            return "", "true", ()
        holds, values = condition(where)
        holds = " AND ".join([holds, *["words @@ %s::tsquery"] * len(phrases)])
        join = " JOIN documents ON documents.id = document"
        used, text = lexical.analyzer_of, words.storable
        asked = [words.phrase_query(text(each), used(self.settings)) for each in phrases]
        return join, holds, (*values, *asked)

    # ----------------------------------------------------------------------------------- the rows

    def passages(
        self,
        ids: Ids | None = None,
        of: Sequence[int] = (),
        known: Mapping[int, int] | None = None,
    ) -> Passages:
        sql = "SELECT id, document, first, last FROM passages WHERE {} = ANY(%s) ORDER BY id"
        if ids is None:
            rows = self.read(sql.format("document"), ([*map(int, of)],)) if len(of) else []
        else:
            order, kept = ids.tolist(), dict(self._passages)
            if missing := [i for i in order if i not in kept]:
                kept |= {row[0]: row for row in self.read(sql.format("id"), (missing,))}
            rows = self._in_order(kept, order, "passage")
        return Passages(*np.array(rows, np.int64).reshape(-1, 4).T)

    def documents(self, ids: Iterable[int], *, texts: bool = True) -> list[Document]:
        order = [int(i) for i in ids]
        columns = "text, title, metadata" if texts else "'', title, '{}'::json"
        sql = f"SELECT id, key, {columns} FROM documents WHERE id = ANY(%s)"
        stored = {row[0]: Document.stored(*row[1:]) for row in self.read(sql, (order,))}
        return self._in_order(stored, order, "document")

    def known(self, keys: Iterable[str]) -> dict[str, Known]:
        return {row[0]: Known(*row[1:]) for row in self.read(*known_of(keys))}

    def ids_after(self, after: int, where: str | None, limit: int) -> Ids:
        matches, parameters = condition(where)
        sql = f"SELECT id FROM documents WHERE id > %s AND {matches} ORDER BY id LIMIT %s"
        rows = self.read(sql, (after, *parameters, limit))
        return np.array([row[0] for row in rows], np.int64)

    def count(self, where: str | None = None) -> int:
        matches, parameters = condition(where)
        sql = f"SELECT count(*) FROM documents WHERE {matches}"
        return int(self.read(sql, parameters)[0][0])

    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[Any, int]]:
        matches, parameters = condition(where)
        field = field_named(name)
        at = f"(fields{' -> %s::text' * len(field)})"
        sql = (
            f"SELECT item, count(DISTINCT id) FROM (SELECT id, {at} AS at FROM documents "
            f"WHERE {matches}) AS chosen CROSS JOIN LATERAL jsonb_array_elements(CASE "
            "jsonb_typeof(at) WHEN 'array' THEN at ELSE jsonb_build_array(at) END) "
            "AS items (item) WHERE jsonb_typeof(at) <> 'object' "
            "AND jsonb_typeof(item) NOT IN ('array', 'object') GROUP BY item"
        )
        return self.read(sql, (*field, *parameters))

    def sizes(self) -> dict[str, Any]:
        ((passages,),) = self.read("SELECT count(*) FROM passages")
        ((total,),) = self.read(
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relkind = 'r'"
        )
        waiting = "the index of vectors is not built; searches read all rows"
        return {
            "passages": passages,
            "segments": 0,
            "tombstones": 0,
            "commit": 0,
            "fields": tuple(self.settings.get(FIELDS, ())),
            "shortlist": self.shortlist,
            "exact": not self._state.indexed or self.shortlist >= passages,
            "bytes": total,
            "pending": () if self._state.indexed else (waiting,),
        }

    def _in_order(self, stored: Mapping[int, Any], order: Sequence[int], what: str) -> list[Any]:
        try:
            return [stored[i] for i in order]
        except KeyError as error:
            raise CollectionError(
                f"{self._name}: {what} {error} is missing; the tables were changed by hand, "
                "restore them from a backup"
            ) from None


def known_of(keys: Iterable[str]) -> Statement:
    """Reads the stored state of documents: the key, and what Known has."""
    columns = "key, id, digest, metadata::text, source::text, root, vectors"
    return f"SELECT {columns} FROM documents WHERE key = ANY(%s)", (storable_keys(keys),)


def storable_keys(keys: Iterable[str]) -> list[str]:
    """The keys that PostgreSQL can store."""
    return [key for key in keys if "\0" not in key]
