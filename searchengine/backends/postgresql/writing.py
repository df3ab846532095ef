"""Writes documents and passages to PostgreSQL, in a transaction; many rows at once, by COPY."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from searchengine.backends.contract import Entry, Known, as_json
from searchengine.backends.postgresql import words
from searchengine.backends.postgresql.filters import condition, dates_of
from searchengine.backends.postgresql.prefixes import COLUMNS, TYPES, Prefixes, half_vectors
from searchengine.backends.postgresql.snapshot import known_of, storable_keys
from searchengine.backends.postgresql.words import Posting
from searchengine.errors import CorpusError
from searchengine.indexer.arrays import unit_rows

if TYPE_CHECKING:
    from searchengine.backends.postgresql.pool import Statement, Transaction

_COLUMNS = "id, key, title, text, metadata, fields, dates, source, root, digest, vectors, tokens"
_TYPES = [
    "int8", "text", "text", "text", "json", "jsonb", "jsonb", "json", "text", "bytea", "bytea",
    "int4",
]  # fmt: skip
_PASSAGE = "id, document, first, last, vector"
_PASSAGE_TYPES = ["int8", "int8", "int4", "int4", "halfvec"]
_POSTING, _POSTING_TYPES = "term, document, frequency, length", ["bytea", "int8", "float4", "int4"]
_BATCH = 5000  # keys inserted at a time
_FEW, _FEW_POSTINGS = 64, 500  # rows that one statement inserts


def prepare(
    transaction: "Transaction", entries: Mapping[str, Entry]
) -> tuple[dict[str, Known], tuple[list[int], list[int]]]:
    """What is stored of these keys, and new ids for as many documents and passages."""
    for entry in entries.values():
        _check(entry)
    passages = sum(len(entry.spans) for entry in entries.values())
    known, *numbers = transaction.run(
        known_of(entries), new_ids("documents", len(entries)), new_ids("passages", passages)
    )
    documents, passages_ = (sorted(int(row[0]) for row in rows) for rows in numbers)
    return {row[0]: Known(*row[1:]) for row in known}, (documents, passages_)


def upsert(
    transaction: "Transaction",
    entries: Mapping[str, Entry],
    known: Mapping[str, Known],
    numbers: tuple[Sequence[int], Sequence[int]],
    tables: Sequence[Prefixes],
    terms: tuple[Sequence[Posting], Sequence[int]],
    spread: bool,
) -> None:
    """Store entries (by key) in place of those that are `known`, and commit.

    `tables`: of prefixes. `terms`: postings and lengths (words.postings_of). `spread`: over a
    cluster.
    """
    new = [key for key in entries if key not in known]
    ids = {key: state.id for key, state in known.items()}
    ids |= dict(zip(new, numbers[0], strict=False))
    postings, lengths = terms
    replaced = [state.id for state in known.values()]
    words.count(transaction, lengths, len(new), replaced)
    numbered = [ids[key] for key in entries]
    terms_of = [(term, numbered[i], count, length) for term, i, count, length in postings]
    _insert(transaction, "postings", _POSTING, _POSTING_TYPES, terms_of, few=_FEW_POSTINGS)
    rows = {
        key: (*_row(ids[key], entry), tokens)
        for (key, entry), tokens in zip(entries.items(), lengths, strict=True)
    }
    for start in range(0, len(new) if spread else 0, _BATCH):
        # By VALUES: of a key that another writer has inserted, COPY tells no code of the error.
        pairs = [(key, ids[key]) for key in new[start : start + _BATCH]]
        sql = f"INSERT INTO keys VALUES {', '.join(['(%s, %s::int8)'] * len(pairs))}"
        transaction.later(sql, [value for pair in pairs for value in pair])
    _insert(transaction, "documents", _COLUMNS, _TYPES, [rows[key] for key in new])
    if known:
        # Passages refer to their document, so its row is changed and not replaced.
        names = _COLUMNS.split(", ")[2:]
        assignments = ", ".join(f"{column} = %s" for column in names)
        for key in known:
            sql = f"UPDATE documents SET {assignments} WHERE id = %s"
            transaction.later(sql, (*rows[key][2:], rows[key][0]))
        for table in ("passages", *(each.table for each in tables)):
            transaction.later(f"DELETE FROM {table} WHERE document = ANY(%s)", (replaced,))
    _insert_passages(
        transaction, [(ids[key], entry) for key, entry in entries.items()], numbers[1], tables
    )
    transaction.commit()


def delete(
    transaction: "Transaction", keys: Sequence[str] | None, where: str | None, spread: bool
) -> int:
    """Delete documents and their passages, and commit; returns how many documents."""
    if keys is None:
        matches, parameters = condition(where)
    else:
        matches, parameters = "key = ANY(%s)", (storable_keys(keys),)
    sql = f"DELETE FROM documents WHERE {matches} RETURNING id, key, tokens"
    (gone,) = transaction.run((sql, parameters))
    if gone:
        ids, names, tokens = zip(*gone, strict=True)
        transaction.later("DELETE FROM postings WHERE document = ANY(%s)", (list(ids),))
        if spread:
            transaction.later("DELETE FROM keys WHERE key = ANY(%s)", (list(names),))
        sql = "INSERT INTO word_totals VALUES (%s, %s)"
        transaction.later(sql, (-len(gone), -sum(tokens)))
    transaction.commit()
    return len(gone)


def _insert_passages(
    transaction: "Transaction",
    entries: Sequence[tuple[int, Entry]],
    numbers: Sequence[int],
    tables: Sequence[Prefixes],
) -> None:
    placed = [(i, *span) for i, entry in entries for span in entry.spans]
    if not placed:
        return
    vectors = unit_rows(np.concatenate([entry.vectors for _, entry in entries]))
    halves = half_vectors(vectors)
    rows = [(n, *row, half) for n, row, half in zip(numbers, placed, halves, strict=True)]
    _insert(transaction, "passages", _PASSAGE, _PASSAGE_TYPES, rows)
    for each in tables:
        prefixes = each.rows([row[:2] for row in rows], vectors)
        _insert(transaction, each.table, COLUMNS, TYPES, prefixes)


def _row(number: int, entry: Entry) -> tuple[Any, ...]:
    from psycopg.types.json import Json

    document = entry.document
    source = None if entry.source is None else Json(entry.source, dumps=str)
    return (
        number, document.key, document.title, document.text, *_metadata(document.metadata), source,
        document.root or None, document.digest, entry.supplied,
    )  # fmt: skip


def _metadata(metadata: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Metadata as JSON, as JSONB, and the shadow of its dates."""
    from psycopg.types.json import Json, Jsonb

    text, dates = as_json(metadata), dates_of(dict(metadata))
    return (
        Json(text, dumps=str),
        Jsonb(text, dumps=str),
        None if dates is None else Jsonb(dates),
    )


def _check(entry: Entry) -> None:
    """Raise CorpusError for the only text that PostgreSQL cannot hold."""
    document = entry.document
    written = as_json(document.metadata) + (entry.source or "")
    parts = {"key": document.key, "title": document.title, "text": document.text}
    for name, text in parts.items():
        if "\0" in text:
            raise _unstorable(document.key, name)
    if "\\u0000" in written.replace("\\\\", ""):
        raise _unstorable(document.key, "metadata")


def _unstorable(key: str, part: str) -> CorpusError:
    return CorpusError(
        f"document {key!r:.80}: the {part} holds the character U+0000, which PostgreSQL cannot "
        "store; remove it, nothing was changed"
    )


def new_ids(table: str, count: int) -> "Statement":
    """New ids."""
    sql = (
        "SELECT nextval(sequence) FROM (SELECT pg_get_serial_sequence(%s, 'id')::regclass AS "
        "sequence) AS of_table, generate_series(1, %s)"
    )
    return sql, (table, count)


def _insert(
    transaction: "Transaction",
    table: str,
    columns: str,
    types: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    few: int = _FEW,
) -> None:
    """Insert rows: few with the next statement, without a round trip of their own."""
    if len(rows) > few:
        transaction.connection.insert(table, columns, types, rows)
    elif rows:
        row = f"({', '.join(f'%s::{kind}' for kind in types)})"
        sql = f"INSERT INTO {table} ({columns}) VALUES {', '.join([row] * len(rows))}"
        transaction.later(sql, [value for values in rows for value in values])
