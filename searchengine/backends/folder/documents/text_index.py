"""The text index: an FTS5 table of the words of documents, in documents.db.

It is an external-content table: it holds the words of `documents`, not their text, and triggers
update it in the transaction that changes a document (https://sqlite.org/fts5.html, "External
Content Tables"). `INSERT OR REPLACE` deletes without firing triggers; write `ON CONFLICT DO UPDATE`
instead.

    create(connection, Analyzer(Tokenizer.PORTER))
    analyzer(read)                                        # Analyzer(Tokenizer.PORTER)
"""

import re
import sqlite3
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from searchengine.corpus.analyzer import Analyzer, Tokenizer, runs
from searchengine.corpus.normalization import normalized
from searchengine.errors import QueryError

Read = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

TITLE_WEIGHT = 2.0
"""How much more a word of the title counts than one of the text; see docs/hybrid.md."""

# Marks belong to words: without them a vowel sign cuts words of Hindi or Thai in two.
_WORDS = "unicode61 remove_diacritics 2 categories ''L* N* Co Mc Mn''"
TOKENIZE = {
    Tokenizer.PORTER: f"porter {_WORDS}",
    Tokenizer.UNICODE: _WORDS,
    Tokenizer.TRIGRAM: "trigram",
    Tokenizer.STEM: _WORDS.replace("remove_diacritics 2", "remove_diacritics 0"),
}
"""Tokenizer → its name and options in FTS5, quoted again for SQL."""
_ADD = "INSERT INTO text_index (rowid, title, text) VALUES (new.id, {new.title}, {new.text})"
_REMOVE = (
    "INSERT INTO text_index (text_index, rowid, title, text) "
    "VALUES ('delete', old.id, {old.title}, {old.text})"
)
_TRIGGERS = {
    "text_index_insert": f"AFTER INSERT ON documents BEGIN {_ADD}; END",
    "text_index_delete": f"AFTER DELETE ON documents BEGIN {_REMOVE}; END",
    "text_index_update": (
        f"AFTER UPDATE OF id, title, text ON documents BEGIN {_REMOVE}; {_ADD}; END"
    ),
}
"""Trigger → what it does, with columns in braces."""

MISSING = (
    "this collection has no index of words; search with mode='vector', or index into a "
    "new collection with a tokenizer"
)


def connect(connection: sqlite3.Connection) -> None:
    """Let a connection write terms: the triggers call search_terms."""
    connection.create_function("search_terms", 2, _search_terms, deterministic=True)


def create(connection: sqlite3.Connection, analyzer: Analyzer) -> None:
    """Index the words of all present and future documents, in place of an older index.

    Runs in the caller's transaction, if there is one. FTS5 reads normalized texts, or with the
    tokenizer stem terms, through a view; the view names the analyzer.
    """
    drop(connection)
    if analyzer.tokenizer is Tokenizer.NONE:
        return
    connect(connection)
    title, text = (_terms(analyzer, column) for column in ("title", "text"))
    connection.execute(
        f"CREATE VIEW text_words AS SELECT id, {title} AS title, {text} AS text FROM documents"
    )
    connection.execute(
        "CREATE VIRTUAL TABLE text_index USING fts5 (title, text, "
        f"content='text_words', content_rowid='id', tokenize='{TOKENIZE[analyzer.tokenizer]}')"
    )
    connection.execute("CREATE VIRTUAL TABLE text_terms USING fts5vocab (text_index, row)")
    for name in _TRIGGERS:
        connection.execute(trigger(name, analyzer))
    connection.execute("INSERT INTO text_index (text_index) VALUES ('rebuild')")


def trigger(name: str, analyzer: Analyzer) -> str:
    """The statement that creates one of the triggers."""
    columns = re.compile(r"\{(\w+\.\w+)\}")
    does = columns.sub(lambda match: _terms(analyzer, match[1]), _TRIGGERS[name])
    return f"CREATE TRIGGER {name} {does}"


def _terms(analyzer: Analyzer, column: str) -> str:
    """SQL for what FTS5 reads of a column."""
    return f"search_terms('{analyzer.label}', CAST({column} AS BLOB))"


def _search_terms(label: str, text: bytes | str) -> str:
    if isinstance(text, bytes):  # as bytes, because damage may leave a text that is not UTF-8
        text = text.decode("utf-8", "replace")
    return Analyzer.parse(label.partition(" ")[0]).text(text)


def drop(connection: sqlite3.Connection) -> None:
    """Remove the index, if there is one."""
    for name in _TRIGGERS:
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")
    connection.execute("DROP TABLE IF EXISTS text_terms")
    connection.execute("DROP TABLE IF EXISTS text_index")
    connection.execute("DROP VIEW IF EXISTS text_words")


def merge(connection: sqlite3.Connection, pages: int) -> bool:
    """Merge `pages` pages of the index; True if there is nothing left to merge.

    A negative number begins to merge all of it into one tree, the fastest to search. Does nothing
    without an index.
    """
    if analyzer(_reader(connection)).tokenizer is Tokenizer.NONE:
        return True
    before = connection.total_changes
    connection.execute("INSERT INTO text_index (text_index, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before < 2  # https://sqlite.org/fts5.html, 6.8


def check(connection: sqlite3.Connection) -> str | None:
    """The fault of the index, in a sentence; None if it agrees with the documents.

    The connection must be able to write, though nothing is written. Reads every document.
    """
    if analyzer(_reader(connection)).tokenizer is Tokenizer.NONE:
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


def analyzer(read: Read) -> Analyzer:
    """How text becomes the terms of the index; Tokenizer.NONE without an index."""
    return Analyzer.parse(_label(read).partition(" ")[0])


def outdated(read: Read) -> bool:
    """Whether terms are made in another way since the index was built, by another Snowball.

    Then FTS5 cannot remove a document's terms, so the index must be created again before a change.
    """
    label = _label(read)
    return label != Analyzer.parse(label.partition(" ")[0]).label


def _label(read: Read) -> str:
    """The label of the index's analyzer."""
    sql = "SELECT sql FROM sqlite_master WHERE name IN ('text_index', 'text_words')"
    statements = " ".join(statement for (statement,) in read(sql, ()))
    ours = re.search(r"search_terms\('([^']+)'", statements)
    builtin = re.search(r"tokenize='(porter|unicode|trigram)", statements)
    match = ours or builtin
    return match[1] if match else Tokenizer.NONE


def containing(used: Analyzer, phrases: Sequence[str]) -> tuple[str, list[str]]:
    """SQL over `documents` for those with all these phrases in title or text, and its parameters.

    The words of a phrase follow each other; marks between them, case and endings count as they do
    for the tokenizer. With the tokenizer trigram a phrase is any part of the text. Raises
    QueryError if the collection has no index of words.
    """
    kind = used.tokenizer
    if kind is Tokenizer.NONE:
        raise QueryError(MISSING)
    conditions, parameters, matches = [], [], []
    for phrase in phrases:
        if kind is Tokenizer.STEM:
            matches.append(_stemmed(phrase, used))
            continue
        text = normalized(phrase) if kind is Tokenizer.TRIGRAM else " ".join(runs(phrase))
        text = "".join(c if c != "\0" and unicodedata.category(c) != "Cs" else " " for c in text)
        if kind is Tokenizer.TRIGRAM and len(text) < 3:  # FTS5 has no term for it
            columns = (_terms(used, f"documents.{name}") for name in ("title", "text"))
            contained = " OR ".join(f"instr(lower({column}), lower(?))" for column in columns)
            conditions.append(f"({contained})")
            parameters += [text, text]
        else:
            matches.append(quoted(text))
    if matches:
        sql = "documents.id IN (SELECT rowid FROM text_index WHERE text_index MATCH ?)"
        conditions.append(sql)
        parameters.append(" AND ".join(matches))
    return " AND ".join(conditions), parameters


def _stemmed(phrase: str, used: Analyzer) -> str:
    """A phrase for FTS5; its last run may continue in a document if it is split into parts."""
    pieces = used.pieces(phrase)
    last = pieces[-1] if pieces else None
    matches = []
    for order in used.orders(phrase):
        terms, continued = used.terms_by(order, phrase), False
        if last is not None and last.part:
            terms = terms[: len(terms) - len(last.text)] + last.parts(ended=False)
            continued = len(last.text) < last.part
        matches.append(quoted(" ".join(terms)) + " *" * continued)
    distinct = list(dict.fromkeys(matches))
    return distinct[0] if len(distinct) == 1 else f"({' OR '.join(distinct)})"


def quoted(term: str) -> str:
    """Quoted for FTS5: text, not syntax."""
    doubled = term.replace('"', '""')
    return f'"{doubled}"'


def _reader(connection: sqlite3.Connection) -> Read:
    return lambda sql, parameters: connection.execute(sql, parameters).fetchall()
