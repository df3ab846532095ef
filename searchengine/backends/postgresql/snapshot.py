"""One commit of a collection in PostgreSQL, searched coarse to fine in one statement.

    inner   the rows that match, by the cosine of the prefix, up to the shortlist: an HNSW index,
            in an iterative scan, which goes on until enough rows match
    outer   those by the full-width cosine

Without an index, all rows that match are compared at full width.

An HNSW scan may end too soon, behind a filter that few rows meet. Where it returns fewer rows than
the shortlist, all rows that match are compared at full width instead. So `shortlist` is a lower
bound, and a filter never under-fills.

Words are ranked as in a folder, by BM25 with its terms and weights. The column `words` of a
document is a tsvector of its terms, which `vector_of` writes, so PostgreSQL finds documents with a
term or a phrase by their index. A word of the title is in it twice, and counts so. For a term that
occurs f times, `ts_rank` is (1 + 1/4 + … + 1/f²) · 6/π², so it tells f.
"""

import base64
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from pgvector import HalfVector, Vector

from searchengine.backends import contract, lexical
from searchengine.backends.contract import (
    SAMPLE,
    Ids,
    Known,
    Passages,
    Scored,
    Snapshot,
    Unrelated,
    WordScores,
    spread,
)
from searchengine.backends.filters.parser import field_named
from searchengine.backends.lexical import Term, file_name
from searchengine.backends.postgresql.connections import Connection, Rows, Statement, run
from searchengine.backends.postgresql.filters import condition
from searchengine.corpus.analyzer import Analyzer, Tokenizer, cutter, names, normalized
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats, unit_rows
from searchengine.indexer.config import ALL_ROWS, FLAT_BELOW, SegmentConfig
from searchengine.indexer.search.postings import K1, B
from searchengine.indexer.search.scoring import SearchResult
from searchengine.indexer.storage.vectors import prefixes

VERSION = 6
"""That of the tables."""
GRAPH, ROTATION = "prefixes_graph", "prefix_rotation"
"""The settings of the index config once they are there: the graph and the rotation, see State."""
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
_LONGEST, _MOST, _BYTES = 2046, 255, 1_000_000
"""Limits of a tsvector: bytes of a term, its places, and bytes in all (terms that come later are
left out)."""
_TOTALS = (
    "SELECT coalesce(sum(documents), 0)::int8, coalesce(sum(tokens), 0)::int8 FROM word_totals"
)
_TIMES = "round(1 / (1.6449340668 * (1 - ts_rank('{{1,1,1,1}}', words, {}::tsquery))) - 0.5)"  # f


@dataclass(frozen=True, slots=True)
class State:
    """The settings of a commit, and how prefixes are made.

    Attributes:
        settings: without what follows.
        indexed: whether the rotation is fitted and the graph built; else there are no prefixes.
        rotation: M (p, D) float32, with orthonormal rows; None: the first p dimensions.
        unrelated: samples of passages, by the size of the collection.
    """

    settings: dict[str, Any]
    indexed: bool = False
    rotation: Floats | None = None
    unrelated: dict[int, Unrelated] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: Connection, name: str) -> Self:
        """Raises CollectionError for tables of another version."""
        rows = connection.execute("SELECT name, value FROM settings").fetchall()
        settings: dict[str, Any] = dict(rows)
        if (version := settings.get("version")) != VERSION:
            raise CollectionError(
                f"{name} has tables of version {version}, and this searchengine reads version "
                f"{VERSION}; upgrade searchengine if that is older; else index the documents "
                "again, or copy them to a folder by the older one, and from there to a new name"
            )
        fitted, indexed = settings.pop(ROTATION, None), settings.pop(GRAPH, False)
        matrix = None
        if fitted and fitted["matrix"] is not None:
            matrix = np.frombuffer(base64.b64decode(fitted["matrix"]), np.float32)
            matrix = matrix.reshape(-1, settings["encoder"]["dim"])
        return cls(settings, bool(indexed), matrix)

    @property
    def config(self) -> SegmentConfig:
        """The index config."""
        return SegmentConfig.from_dict(self.settings["index"])

    def prefixes(self, rows: Floats) -> Floats:
        """The prefixes (n, p) of rows (n, D), of length one."""
        return prefixes(rows, self.config.prefix, self.rotation)


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
            ((self._count, _),) = self.read(_TOTALS)
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
        ((self._count, tokens),) = self.read(_TOTALS)
        average, question = tokens / max(1, self._count) or 1.0, _storable(question)
        best = partial(self._best, average, (holds, values))
        return lexical.search(self._count, self._counts, best, question, k, self.settings)

    def _counts(self, terms: Sequence[Term], limit: int) -> list[int]:
        """How many documents have each term, counted up to `limit`."""
        sql = (
            "SELECT count(*) FROM (SELECT 1 FROM documents WHERE words @@ %s::tsquery LIMIT %s) "
            "AS counted"
        )
        rows = self._run(*((sql, (_query(term), limit)) for term in terms))
        return [int(count) for ((count,),) in rows]

    def _best(
        self, average: float, matches: Statement, weights: Mapping[Term, float], k: int
    ) -> Scored:
        """See lexical.Best. `average`: length of documents. `matches`: a condition they meet."""
        gains, gained = list[str](), list[object]()
        for term, weight in weights.items():
            times = " + ".join([_TIMES.format("%s")] * len(term.forms))
            if term.unfinished:  # a rank of several terms does not tell their number
                times = (
                    "(SELECT coalesce(sum(cardinality(positions)), 0) FROM unnest(words) "
                    "WHERE starts_with(lexeme, %s))"
                )
            gains.append(f"%s * (1 - norm / (norm + {times}))")
            forms = [form.decode() for form in term.forms]
            gained += [weight * (K1 + 1), *(forms if term.unfinished else map(_quoted, forms))]
        sql = (
            f"SELECT id, {' + '.join(gains)} AS score FROM (SELECT id, key, "
            f"words, {K1} * ({1 - B} + {B} * tokens / %s::float8) AS norm FROM documents "
            f"WHERE words @@ %s::tsquery AND {matches[0]}) AS found "
            'ORDER BY 2 DESC, key COLLATE "C" LIMIT %s'
        )
        any_of = " | ".join(map(_query, weights))
        rows = self.read(sql, (*gained, average, any_of, *matches[1], min(k, 1 << 62)))
        scored = [(int(i), float(score)) for i, score in rows]
        return sorted(scored, key=lambda each: (-each[1], each[0]))

    def replacements(self, question: str) -> Mapping[tuple[int, int], str]:
        return {}

    def _matches(self, where: str | None, phrases: tuple[str, ...]) -> _Matches:
        """The condition that a filter and phrases set."""
        if where is None and not phrases:
            return "", "true", ()
        holds, values = condition(where)
        holds = " AND ".join([holds, *["words @@ %s::tsquery"] * len(phrases)])
        join = " JOIN documents ON documents.id = document"
        asked = [_phrase_query(_storable(each), self.settings) for each in phrases]
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

    def documents(self, ids: Iterable[int], *, texts: bool = True) -> list[contract.DocumentRow]:
        order = [int(i) for i in ids]
        columns = "text, metadata" if texts else "'', '{}'::json"
        sql = f"SELECT id, key, title, {columns} FROM documents WHERE id = ANY(%s)"
        stored = {row[0]: contract.DocumentRow(*row[1:]) for row in self.read(sql, (order,))}
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
    storable = [key for key in keys if "\0" not in key]  # judgements, for one, may name others
    return f"SELECT {columns} FROM documents WHERE key = ANY(%s)", (storable,)


def _query(term: Term) -> str:
    """The tsquery of documents with a term."""
    return " | ".join(
        _quoted(form.decode()) + (":*" if term.unfinished else "") for form in term.forms
    )


def vector_of(document: Document, used: Analyzer) -> tuple[str | None, int]:
    """The terms of a document as a tsvector in text, and its length in terms."""
    if used.tokenizer is Tokenizer.NONE:
        return None, 0
    cut = cutter(used.order_of(f"{document.title}\n{document.text}"))
    places, beside = defaultdict[str, list[int]](list), list[str]()
    place = length = 0
    name = file_name(document.key) if document.root else ""
    for column, is_counted in (
        (document.title, 1), (document.title, 0), (document.text, 1), (name, 0)
    ):  # fmt: skip
        place += 1  # no phrase goes on in another column
        for each in map(cut, names(column)):
            for part in each.parts:
                place += 1
                places[part].append(place)
            length += is_counted * len(each.parts)
            beside += [*filter(None, [each.whole]), *each.inner]
    for term in beside:
        place += 2
        places[term].append(place)
    size, written = 0, []
    for term, at in places.items():
        size += (longest := len(term.encode())) + 2 * len(at) + 8
        if longest <= _LONGEST and size < _BYTES:
            written.append(f"{_quoted(term)}:{','.join(map(str, at[:_MOST]))}")
    return " ".join(written), length


def _quoted(term: str) -> str:
    """A term as tsvector and tsquery write it."""
    return "'{}'".format(term.replace("\\", "\\\\").replace("'", "''"))


def _phrase_query(phrase: str, settings: Mapping[str, Any]) -> str:
    """The tsquery of documents that contain a phrase; "" if it has no words, which none do."""
    found = []
    for order in lexical.analyzer_of(settings).orders:
        place, before, written = 0, 0, ""
        for each in map(cutter(order), names(phrase)):
            for at, part in enumerate(each.asked, place + 1):
                written += f" <{at - before}> {_quoted(part)}" if written else _quoted(part)
                before = at
            place += len(each.parts)
        found += [f"({written})"] if written else []
    return " | ".join(dict.fromkeys(found))


def _storable(question: str) -> str:
    """A question, normalized, without the characters that no stored text has."""
    return normalized(question).encode("utf-8", "replace").decode().replace("\0", " ")
