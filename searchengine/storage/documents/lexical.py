"""Words: BM25 over SQLite's FTS5.

The index is an external-content table: it holds the words of `documents`, not their text, and
triggers update it in the transaction that changes a document (https://sqlite.org/fts5.html,
"External Content Tables"). `INSERT OR REPLACE` deletes without firing triggers; write
`ON CONFLICT DO UPDATE` instead. BM25 is FTS5's own, with k1 = 1.2 and b = 0.75.

    create(connection, Tokenizer.PORTER)
    search(read, "how do whales sleep", k=10)             # [(document id, score), …], best first
"""

import json
import re
import sqlite3
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from searchengine.corpus.languages import UNSPACED_OR_KOREAN
from searchengine.errors import QueryError

Read = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
Scored = list[tuple[int, float]]
T = TypeVar("T")
_In = TypeVar("_In", contravariant=True)

TITLE_WEIGHT = 2.0
"""How much more a word of the title counts than one of the text; see docs/hybrid.md."""

WORDS = 256
"""Maximum distinct words of a query; the first ones are used."""

TERMS = 64
"""Maximum words to search for; the rarest ones are used."""

SHORT_TERMS = 16
"""The same, if every document is read."""

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


class Ranker(Index[bytes], Protocol):
    """An Index that is not FTS5."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of its terms."""

    def terms(self, words: Sequence[str]) -> Sequence[bytes] | None:
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

# Takes 5 ms to compile, and is seldom needed.
_PIECES = f"([{UNSPACED_OR_KOREAN}]+)|[^{UNSPACED_OR_KOREAN}]+"


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
) -> Scored:
    """The k best documents that share a word with the question: (id, BM25), by (−score, id).

    `question` is text and never syntax: a document needs one of its words. `condition` is SQL over
    `documents`; fewer than k documents are returned only if fewer match it. Scores are positive,
    and comparable within one result only. A question without words has no results. Raises
    QueryError if the collection has no index of words.

    With a trigram index, a question that has only words of one or two letters may read every
    document (see docs/hybrid.md).

    `ranker`: ranks instead of FTS5, with the same scores, documents that match the condition.
    """
    kind = tokenizer(read) if ranker is None else ranker.tokenizer
    if kind is Tokenizer.NONE:
        raise QueryError(
            "this collection has no index of words; search with mode='vector', or index into a "
            "new collection with a tokenizer"
        )
    query = words(question)
    candidates = (query if kind is not Tokenizer.TRIGRAM else _trigrams(read, query))[:WORDS]
    terms = None if ranker is None else ranker.terms(candidates)
    if ranker is None or terms is None:
        quoted = [_quoted(word) for word in candidates]
        scored = _ranked(_Fts5(read, condition, parameters), quoted, k)
    else:
        scored = _ranked(ranker, terms, k)
    if len(scored) < k and kind is Tokenizer.TRIGRAM and all(len(word) < 3 for word in query):
        scored = _scan(read, query, k, condition, parameters)
    return scored


def words(text: str) -> list[str]:
    """The runs of letters, digits and marks, in order; of runs equal but for case, the last."""
    spaced = "".join(c if _in_word(c) else " " for c in text)
    # FTS5 folds case its own way (it knows no final sigma), so the words stay as they were written.
    return list({word.casefold(): word for word in spaced.split()}.values())


def _in_word(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LNM" or category == "Co"


def _quoted(term: str) -> str:
    """Quoted for FTS5: text, not syntax."""
    doubled = term.replace('"', '""')
    return f'"{doubled}"'


def _trigrams(read: Read, query: Sequence[str]) -> list[str]:
    """The terms to search a trigram index for: the words of three letters or more, unchanged.

    In scripts without spaces, and in Korean, whose particles are attached to words, every three
    letters are a term, because a whole run rarely occurs. Two such letters are a word; its terms
    are the trigrams that begin with it.
    """
    terms: dict[str, None] = {}
    for word in query[:WORDS]:
        for piece in re.finditer(_PIECES, word):
            run = piece[0]
            if piece[1] and len(run) == 2:
                sql = (
                    "SELECT term FROM text_terms WHERE term >= ? AND term < ? "
                    "ORDER BY doc DESC, term LIMIT ?"
                )
                rows = read(sql, (run, run + chr(sys.maxunicode), CONTINUATIONS))
                terms |= dict.fromkeys(term for (term,) in rows)
            elif piece[1]:
                terms |= dict.fromkeys(run[i : i + 3] for i in range(len(run) - 2))
            elif len(run) >= 3:
                terms[run] = None
    return list(terms)


def _ranked(index: Index[T], terms: Sequence[T], k: int) -> Scored:
    """The k best documents by the TERMS rarest terms.

    Terms in half of the documents or more count only if there are fewer than k with another one:
    they have no weight in FTS5's BM25 (its inverse document frequency is at least 1e-6) and take
    most of its time.
    """
    half = (index.documents + 1) // 2
    counted = zip(index.counts(terms, half), terms, strict=True)
    taken = sorted((pair for pair in counted if pair[0]), key=itemgetter(0))[:TERMS]
    rare = [term for count, term in taken if count < half]
    scored = index.best(rare, k) if rare else []
    if len(scored) < k and len(rare) < len(taken):
        scored = index.best([term for _, term in taken], k)
    return scored


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
) -> Scored:
    """Score every document, for words too short for a trigram, by how often they occur.

    Scores saturate as in BM25. Only ASCII letters are compared without case.
    """
    if not query:
        return []
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
    return [(row[0], row[1]) for row in read(sql, (*bound, *parameters, k))]


def _reader(connection: sqlite3.Connection) -> Read:
    return lambda sql, parameters: connection.execute(sql, parameters).fetchall()
