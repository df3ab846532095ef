"""Words: BM25 over SQLite's FTS5.

The index is an external-content table: it holds the words of `documents`, not their text, and
triggers update it in the transaction that changes a document (https://sqlite.org/fts5.html,
"External Content Tables"). `INSERT OR REPLACE` deletes without firing triggers; write
`ON CONFLICT DO UPDATE` instead. BM25 is FTS5's own, with k1 = 1.2 and b = 0.75.

    create(connection, Tokenizer.PORTER)
    search(read, "how do whales sleep", k=10)             # [(document id, score), …], best first
"""

import json
import math
import re
import sqlite3
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from indexer.storage.bm25 import greatest
from searchengine.errors import QueryError
from searchengine.storage.documents.questions import (
    WORDS,
    Word,
    runs,
    trigrams,
    unfinished,
    whole,
    words,
)
from searchengine.storage.documents.scored import EXPECTED, Found, Scored

Read = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
T = TypeVar("T")
_In = TypeVar("_In", contravariant=True)

TITLE_WEIGHT = 2.0
"""How much more a word of the title counts than one of the text; see docs/hybrid.md."""

TERMS = 64
"""Maximum words to search for; the rarest ones are used."""

SHORT_TERMS = 16
"""The same, if every document is read."""

MIN_INDEXED = 10
"""Minimum documents that the index must find for short words; with fewer, every document is read.
The number does not depend on k, so the order of documents does not either."""

ENDING = 4
"""Maximum letters at the end of an unfinished word that may be part of an English ending."""

CONTINUATIONS = 32
"""Maximum trigrams for a word of two letters; the most frequent ones are used."""


class Tokenizer(StrEnum):
    """How text becomes words. It is chosen when the index is created."""

    PORTER = "porter"
    """Words without their English endings."""
    UNICODE = "unicode"
    """Words, without case and accents."""
    TRIGRAM = "trigram"
    """Every three letters: parts of words, and languages without spaces."""
    NONE = "none"
    """No index of words."""


class Index(Protocol[_In]):
    """Ranks documents by terms, which are words quoted for FTS5, or FTS5's own."""

    @property
    def documents(self) -> int:
        """Number of documents in the collection."""

    def counts(self, terms: Sequence[_In], limit: int) -> list[int]:
        """How many documents have each term; `limit` stands for any number from there on."""

    def best(self, terms: Sequence[_In], k: int) -> Scored:
        """The k best documents with one of the terms, by (−score, id)."""


Key = tuple[bytes, bool]
"""A term of FTS5; or the beginning of terms, and True."""


class Ranker(Index[Key], Protocol):
    """An Index that is not FTS5."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of its terms."""

    def terms(self, words: Sequence[Word]) -> Sequence[Key] | None:
        """FTS5's terms for words, without those that it drops; None: it must search itself."""


# Marks belong to words: without them a vowel sign cuts words of Hindi or Thai in two.
_WORDS = "unicode61 remove_diacritics 2 categories ''L* N* Co Mc Mn''"
TOKENIZE = {
    Tokenizer.PORTER: f"porter {_WORDS}",
    Tokenizer.UNICODE: _WORDS,
    Tokenizer.TRIGRAM: "trigram",
}
"""Tokenizer → its name and options in FTS5, quoted once more for SQL."""
_ADD = "INSERT INTO text_index (rowid, title, text) VALUES (new.id, new.title, new.text)"
_REMOVE = (
    "INSERT INTO text_index (text_index, rowid, title, text) "
    "VALUES ('delete', old.id, old.title, old.text)"
)
_TRIGGERS = {
    "text_index_insert": f"AFTER INSERT ON documents BEGIN {_ADD}; END",
    "text_index_delete": f"AFTER DELETE ON documents BEGIN {_REMOVE}; END",
    "text_index_update": (
        f"AFTER UPDATE OF id, title, text ON documents BEGIN {_REMOVE}; {_ADD}; END"
    ),
}

_MISSING = (
    "this collection has no index of words; search with mode='vector', or index into a "
    "new collection with a tokenizer"
)


def create(connection: sqlite3.Connection, tokenizer: Tokenizer) -> None:
    """Index the words of all present and future documents, in place of an older index.

    Runs in the caller's transaction, if there is one.
    """
    drop(connection)
    if tokenizer is Tokenizer.NONE:
        return
    connection.execute(
        "CREATE VIRTUAL TABLE text_index USING fts5 (title, text, "
        f"content='documents', content_rowid='id', tokenize='{TOKENIZE[tokenizer]}')"
    )
    connection.execute("CREATE VIRTUAL TABLE text_terms USING fts5vocab (text_index, row)")
    for name, does in _TRIGGERS.items():
        connection.execute(f"CREATE TRIGGER {name} {does}")
    connection.execute("INSERT INTO text_index (text_index) VALUES ('rebuild')")


def drop(connection: sqlite3.Connection) -> None:
    """Remove the index, if there is one."""
    for name in _TRIGGERS:
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")
    connection.execute("DROP TABLE IF EXISTS text_terms")
    connection.execute("DROP TABLE IF EXISTS text_index")


def merge(connection: sqlite3.Connection, pages: int) -> bool:
    """Merge `pages` pages of the index; True if there is nothing left to merge.

    A negative number begins to merge all of it into one tree, the fastest to search. Does nothing
    without an index.
    """
    if tokenizer(_reader(connection)) is Tokenizer.NONE:
        return True
    before = connection.total_changes
    connection.execute("INSERT INTO text_index (text_index, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before < 2  # https://sqlite.org/fts5.html, 6.8


def check(connection: sqlite3.Connection) -> str | None:
    """The fault of the index, in a sentence; None if it agrees with the documents.

    The connection must be able to write, though nothing is written. Reads every document.
    """
    if tokenizer(_reader(connection)) is Tokenizer.NONE:
        return None
    triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    if missing := _TRIGGERS.keys() - {name for (name,) in triggers}:
        return f"the triggers that keep the text index are missing: {', '.join(sorted(missing))}"
    inside = connection.in_transaction
    try:
        connection.execute(
            "INSERT INTO text_index (text_index, rank) VALUES ('integrity-check', 1)"
        )
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
            raise  # locked or read-only: not a fault of the index
        return f"the text index does not match the documents ({error})"
    finally:
        if connection.in_transaction and not inside:
            connection.rollback()
    return None


def tokenizer(read: Read) -> Tokenizer:
    """The tokenizer of the index; NONE without an index."""
    rows = read("SELECT sql FROM sqlite_master WHERE name = 'text_index'", ())
    match = re.search(r"tokenize='(porter|unicode|trigram)", rows[0][0]) if rows else None
    return Tokenizer(match[1]) if match else Tokenizer.NONE


def search(
    read: Read,
    question: str,
    k: int,
    condition: str = "1",
    parameters: Sequence[Any] = (),
    ranker: Ranker | None = None,
    *,
    as_you_type: bool = False,
) -> Found:
    """The k best documents that share a word with the question: (id, BM25), by (−score, id).

    `question` is text and never syntax: a document needs one of its words. `condition` is SQL over
    `documents`; fewer than k documents are returned only if fewer match it. Scores are positive,
    and comparable within one result only. A question without words has no results. Raises
    QueryError if the collection has no index of words.

    `ranker`: ranks instead of FTS5, with the same scores, documents that match the condition.
    `as_you_type`: the last word may be unfinished, unless something follows it.

    With a trigram index, short words are the beginnings of trigrams. FTS5 knows no such term: it
    ranks by the most frequent of these trigrams, and if there are only short words and fewer than
    MIN_INDEXED or k documents, every document is read (see docs/hybrid.md).
    """
    kind = tokenizer(read) if ranker is None else ranker.tokenizer
    if kind is Tokenizer.NONE:
        raise QueryError(_MISSING)
    query = words(question)
    cut = trigrams if kind is Tokenizer.TRIGRAM else whole
    candidates = cut(query[:WORDS], unfinished(question) if as_you_type else None)[:WORDS]
    fts5 = _Fts5(read, condition, parameters)
    if kind is Tokenizer.PORTER:
        candidates = [_begun(word, fts5, ranker) for word in candidates]
    terms = None if ranker is None else ranker.terms(candidates)
    if ranker is not None and terms is not None:
        return _ranked(ranker, terms, k)
    quoted = [term for word in candidates for term in _for_fts5(read, kind, word)][:WORDS]
    if kind is not Tokenizer.TRIGRAM or any(len(word) >= 3 for word in query):
        return _ranked(fts5, quoted, k)
    scored = _ranked(fts5, quoted, max(k, MIN_INDEXED))
    if len(scored) >= max(k, MIN_INDEXED):
        return Found(scored[:k], scored.most)
    scanned = _scan(read, query, k, condition, parameters)
    return _continued(scored, scanned, k) if len(scored) >= MIN_INDEXED else scanned


def containing(kind: Tokenizer, phrases: Sequence[str]) -> tuple[str, list[str]]:
    """SQL over `documents` for those with all these phrases in title or text, and its parameters.

    The words of a phrase follow each other; what stands between them, case and endings count as
    the tokenizer has it. With the tokenizer trigram a phrase is any part of the text. Raises
    QueryError if the collection has no index of words.
    """
    if kind is Tokenizer.NONE:
        raise QueryError(_MISSING)
    conditions, parameters, matches = [], [], []
    for phrase in phrases:
        text = phrase if kind is Tokenizer.TRIGRAM else " ".join(runs(phrase))
        text = "".join(c if c != "\0" and unicodedata.category(c) != "Cs" else " " for c in text)
        if kind is Tokenizer.TRIGRAM and len(text) < 3:  # FTS5 has no term for it
            columns = ("documents.title", "documents.text")
            contained = " OR ".join(f"instr(lower({each}), lower(?))" for each in columns)
            conditions.append(f"({contained})")
            parameters += [text, text]
        else:
            matches.append(_quoted(text))
    if matches:
        sql = "documents.id IN (SELECT rowid FROM text_index WHERE text_index MATCH ?)"
        conditions.append(sql)
        parameters.append(" AND ".join(matches))
    return " AND ".join(conditions), parameters


def _quoted(term: str) -> str:
    """Quoted for FTS5: text, not syntax."""
    doubled = term.replace('"', '""')
    return f'"{doubled}"'


def _for_fts5(read: Read, kind: Tokenizer, word: Word) -> list[str]:
    """A word as terms of a query; with a trigram index, the most frequent that begin with it."""
    if not word.unfinished:
        return [_quoted(word.text)]
    if kind is not Tokenizer.TRIGRAM:
        return [f"{_quoted(word.text)} *"]
    sql = "SELECT term FROM text_terms WHERE term >= ? AND term < ? ORDER BY doc DESC, term LIMIT ?"
    beginning = word.text.lower()
    rows = read(sql, (beginning, beginning + chr(sys.maxunicode), CONTINUATIONS))
    return [_quoted(term) for (term,) in rows]


def _ranked(index: Index[T], terms: Sequence[T], k: int) -> Found:
    """The k best documents by the TERMS rarest terms.

    Terms in half of the documents or more count only if there are fewer than k with another one:
    they have no weight in FTS5's BM25 (its inverse document frequency is at least 1e-6) and take
    most of its time.
    """
    documents = index.documents
    half = (documents + 1) // 2
    counted = zip(index.counts(terms, half), terms, strict=True)
    taken = sorted((pair for pair in counted if pair[0]), key=itemgetter(0))[:TERMS]
    most = math.fsum(greatest(documents, count) for count, _ in taken[:EXPECTED])
    rare = [term for count, term in taken if count < half]
    scored = Found(index.best(rare, k) if rare else (), most)
    if len(scored) < k and len(rare) < len(taken):
        return _continued(scored, index.best([term for _, term in taken], k), k)
    return scored


def _continued(scored: Found, more: Scored, k: int) -> Found:
    """A result, then the others of a second one, at most k: whatever k, in one order.

    `scored` has all documents of its kind. A score does not exceed those before it.
    """
    seen, lowest = {document for document, _ in scored}, scored[-1][1] if scored else math.inf
    others = [(document, min(score, lowest)) for document, score in more if document not in seen]
    return Found((scored + others)[:k], scored.most)


def _begun(word: Word, fts5: "_Fts5", ranker: Ranker | None) -> Word:
    """An unfinished word, without its last letters where no term begins with them.

    Terms have no endings: none begins with "sleepi", though there may be "sleeping".
    """
    if not word.unfinished:
        return word
    for letters in range(len(word.text), max(len(word.text) - ENDING, 3) - 1, -1):
        shorter = Word(word.text[:letters], unfinished=True)
        terms = None if ranker is None else ranker.terms([shorter])
        if ranker is not None and terms is not None:
            counts = ranker.counts(terms, 1)
        else:
            counts = fts5.counts(_for_fts5(fts5.read, Tokenizer.PORTER, shorter), 1)
        if any(counts):
            return shorter
    return word


@dataclass(frozen=True, slots=True)
class _Fts5:
    """FTS5 as an Index of quoted words; `condition` as for `search`."""

    read: Read
    condition: str
    parameters: Sequence[Any]

    @property
    def documents(self) -> int:
        return int(self.read("SELECT count(*) FROM documents", ())[0][0])

    def counts(self, terms: Sequence[str], limit: int) -> list[int]:
        sql = (
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM text_index "
            "WHERE text_index MATCH term.value LIMIT ?)) FROM json_each(?) AS term ORDER BY key"
        )
        return [count for (count,) in self.read(sql, (limit, json.dumps(terms)))]

    def best(self, terms: Sequence[str], k: int) -> Scored:
        # CROSS JOIN keeps the order: first the words, then the condition on their documents.
        everything = self.condition == "1"
        join = "" if everything else "CROSS JOIN documents ON documents.id = text_index.rowid"
        sql = (
            f"SELECT text_index.rowid, -bm25(text_index, {TITLE_WEIGHT}, 1.0) AS score "
            f"FROM text_index {join} WHERE text_index MATCH ? AND ({self.condition}) "
            "ORDER BY score DESC, text_index.rowid LIMIT ?"
        )
        rows = self.read(sql, (" OR ".join(terms), *self.parameters, k))
        return [(row[0], row[1]) for row in rows]


def _scan(
    read: Read, query: Sequence[str], k: int, condition: str, parameters: Sequence[Any]
) -> Found:
    """Score every document, for words too short for a trigram, by how often they occur.

    Scores saturate as in BM25. Only ASCII letters are compared without case.
    """
    if not query:
        return Found()
    taken = query[:SHORT_TERMS]
    count = "1.0 * (length(body) - length(replace(body, lower(?), ''))) / ?"
    score = " + ".join([f"(1 - 1.2 / (1.2 + {count}))"] * len(taken))
    texts = (
        "SELECT documents.id AS id, lower(documents.title || ' ' || documents.text) AS body "
        f"FROM documents WHERE {condition}"
    )
    sql = (
        f"SELECT id, score FROM (SELECT id, {score} AS score FROM ({texts})) "
        "WHERE score > 0 ORDER BY score DESC, id LIMIT ?"
    )
    bound = [value for word in taken for value in (word, len(word))]
    rows = read(sql, (*bound, *parameters, k))
    return Found(((row[0], row[1]) for row in rows), most=len(taken[:EXPECTED]))


def _reader(connection: sqlite3.Connection) -> Read:
    return lambda sql, parameters: connection.execute(sql, parameters).fetchall()
