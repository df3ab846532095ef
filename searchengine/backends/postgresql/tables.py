"""The documents and passages of one commit, read from PostgreSQL."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from searchengine.backends.contract import Ids, Known, Passage, Tables
from searchengine.backends.filters.parser import field_named
from searchengine.backends.postgresql.filters import condition
from searchengine.corpus.documents import Document
from searchengine.errors import CollectionError

if TYPE_CHECKING:
    from searchengine.backends.postgresql.pool import Statement, Transaction


class PostgresTables(Tables):
    """The tables, as a transaction sees them. Members: see Tables.

    Rows that another statement has brought along are not read again.
    """

    def __init__(self, transaction: "Transaction", name: str) -> None:
        self._transaction = transaction
        self._name = name
        self._passages: dict[int, Passage] = {}
        self._documents: dict[int, Document] = {}

    def keep(self, passages: Iterable[Passage], documents: Mapping[int, Document]) -> None:
        """Keep rows that a search has brought along, until the transaction ends."""
        self._passages.update((passage.id, passage) for passage in passages)
        self._documents.update(documents)

    def forget(self) -> None:
        self._passages.clear()
        self._documents.clear()

    def passages(self, ids: Iterable[int]) -> list[Passage]:
        order = [int(i) for i in ids]
        sql = "SELECT id, document, first, last FROM passages WHERE id = ANY(%s)"
        if missing := [i for i in order if i not in self._passages]:
            self.keep((Passage(*row) for row in self.read(sql, (missing,))), {})
        return self._in_order(self._passages, order, "passage")

    def passages_of(self, documents: Iterable[int]) -> list[Passage]:
        sql = "SELECT id, document, first, last FROM passages WHERE document = ANY(%s) ORDER BY id"
        if not (numbers := [int(i) for i in documents]):
            return []
        passages = [Passage(*row) for row in self.read(sql, (numbers,))]
        self.keep(passages, {})
        return passages

    def documents(self, ids: Iterable[int]) -> list[Document]:
        order = [int(i) for i in ids]
        sql = "SELECT id, key, text, title, metadata FROM documents WHERE id = ANY(%s)"
        stored = {i: self._documents[i] for i in order if i in self._documents}
        if missing := [i for i in order if i not in stored]:
            stored |= {row[0]: Document.stored(*row[1:]) for row in self.read(sql, (missing,))}
        return self._in_order(stored, order, "document")

    def keys_of(self, ids: Iterable[int]) -> list[str]:
        if not (order := [int(i) for i in ids]):
            return []
        stored = dict(self.read("SELECT id, key FROM documents WHERE id = ANY(%s)", (order,)))
        return self._in_order(stored, order, "document")

    def titles_of(self, ids: Iterable[int]) -> list[tuple[str, str]]:
        order = [int(i) for i in ids]
        rows = self.read("SELECT id, key, title FROM documents WHERE id = ANY(%s)", (order,))
        return self._in_order({i: (key, title) for i, key, title in rows}, order, "document")

    def ids_of(self, keys: Iterable[str]) -> dict[str, int]:
        if not (names := storable_keys(keys)):
            return {}
        return dict(self.read("SELECT key, id FROM documents WHERE key = ANY(%s)", (names,)))

    def highest_number(self) -> int:
        sql = "SELECT coalesce(max(key::bigint), -1) FROM documents WHERE key ~ '^[0-9]{1,18}$'"
        return int(self.read(sql)[0][0])

    def known(self, keys: Iterable[str]) -> dict[str, Known]:
        if not (keys := list(keys)):
            return {}
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

    def counts(self) -> tuple[int, int]:
        sql = "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM passages)"
        documents, passages = self.read(sql)[0]
        return documents, passages

    def values(self, documents: Iterable[int], name: str) -> dict[int, Hashable]:
        field = field_named(name)
        at = f"(fields{' -> %s::text' * len(field)})"
        sql = (
            f"SELECT id, jsonb_typeof(value), value::text, value FROM (SELECT id, {at} AS value "
            "FROM documents WHERE id = ANY(%s)) AS chosen"
        )
        rows = self.read(sql, (*field, [int(i) for i in documents]))
        return {
            i: ("missing", i)
            if kind is None
            else (kind, text if kind in ("array", "object") else value)
            for i, kind, text, value in rows
        }

    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[str, Any, int]]:
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
        rows = self.read(sql, (*field, *parameters))
        return [(_kind(value), value, number) for value, number in rows]

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        return self._transaction.run((sql, parameters))[0]

    def _in_order(self, stored: Mapping[int, Any], order: Sequence[int], what: str) -> list[Any]:
        for i in order:
            if i not in stored:
                raise CollectionError(
                    f"{self._name}: {what} {i} is missing; the tables were changed by hand, "
                    "restore them from a backup"
                )
        return [stored[i] for i in order]


def known_of(keys: Iterable[str]) -> "Statement":
    """Reads the stored state of documents: the key, and what Known has."""
    columns = "key, id, digest, metadata::text, source::text, root, vectors"
    return f"SELECT {columns} FROM documents WHERE key = ANY(%s)", (storable_keys(keys),)


def storable_keys(keys: Iterable[str]) -> list[str]:
    """The keys that PostgreSQL can store."""
    return [key for key in keys if "\0" not in key]


def _kind(value: Any) -> str:
    """The kind of a scalar, as SQLite's json_type names it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "text" if isinstance(value, str) else type(value).__name__
