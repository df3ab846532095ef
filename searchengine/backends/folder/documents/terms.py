"""The terms of documents, as FTS5 sees them: for the words file of a segment, and for questions.

FTS5 itself cuts the text, in a table in memory with the tokenizer of the collection.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from searchengine.backends.folder.documents.connections import guarded, inherit
from searchengine.backends.folder.documents.questions import Word
from searchengine.backends.folder.documents.text_index import TITLE_WEIGHT, TOKENIZE, Read, analyzer
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.normalization import VERSION, normalized
from searchengine.indexer.arrays import RowNumbers
from searchengine.indexer.storage.words_file import (
    Counted,
    Moved,
    Postings,
    WriteWords,
    moved,
    write_postings,
)

_LETTERS = 1 << 25
"""Characters of text that are counted at a time; they take some hundred MB in the meantime."""
_IDS = 500  # documents read by a statement
_CACHED = 1 << 16  # words whose terms are remembered

Text = tuple[int, str, str]
"""The first row of a document, its title and its text."""

_END = "\U0010fffd"  # a character of no text, by Unicode: for private use
_ENDS = 2 * _END


def notes(used: Analyzer) -> dict[str, str]:
    """What a words file notes: how its terms were made."""
    tokenize = TOKENIZE[used.tokenizer].replace("''", "'")
    noted = {"tokenizer": tokenize, "title": repr(TITLE_WEIGHT), "normalization": str(VERSION)}
    if used.tokenizer is Tokenizer.STEM:
        return noted | {"terms": used.label}
    return noted | {"ends": _ENDS} if used.tokenizer is Tokenizer.TRIGRAM else noted


class _Table:
    """A table of FTS5 in memory. Safe to use from several threads, and in forked children."""

    def __init__(self, kind: Tokenizer) -> None:
        self._lock = Lock()
        with guarded(self):
            self._connection = sqlite3.connect(
                ":memory:", isolation_level=None, check_same_thread=False
            )
            self._connection.text_factory = bytes
            self._connection.execute(
                "CREATE VIRTUAL TABLE texts USING fts5 (title, text, content='', "
                f"tokenize='{TOKENIZE[kind]}')"
            )
            self._connection.execute("CREATE VIRTUAL TABLE terms USING fts5vocab (texts, instance)")
        inherit(self, _Table.after_fork)

    def rows(self, texts: Iterable[tuple[int, str, str]], sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement over `terms`, of these documents: id, title and text."""
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.execute("INSERT INTO texts (texts) VALUES ('delete-all')")
            self._connection.executemany(
                "INSERT INTO texts (rowid, title, text) VALUES (?, ?, ?)", texts
            )
            self._connection.execute("COMMIT")
            return self._connection.execute(sql).fetchall()

    def close(self) -> None:
        with guarded(self), self._lock:
            self._connection.close()

    def pause(self) -> None:
        self._lock.acquire()

    def resume(self) -> None:
        self._lock.release()

    def abandon(self) -> None:
        """Nothing of it is shared with the parent."""

    def after_fork(self) -> None:
        with guarded(self):  # a child may fork, too
            pass


class Terms:
    """Words to terms. Safe to use from several threads."""

    def __init__(self, used: Analyzer) -> None:
        self._table, self._kind = _Table(used.tokenizer), used.tokenizer
        self._cache: dict[Word, tuple[bytes, ...]] = {}

    def look_up(self, words: Sequence[Word]) -> list[tuple[bytes, ...]]:
        """The terms of each word: one, but for words that the tokenizer cuts or leaves out.

        Of an unfinished word, the beginnings of terms.
        """
        cached = self._cache  # another thread may begin a new one
        missing = [word for word in words if word not in cached]
        if missing:
            cut = self._cut(missing)
            if len(cached) > _CACHED:
                cached = {word: cached[word] for word in words if word in cached}
            cached.update(cut)
            self._cache = cached
        return [cached[word] for word in words]

    def _cut(self, words: Sequence[Word]) -> dict[Word, tuple[bytes, ...]]:
        begins = self._kind is Tokenizer.TRIGRAM  # with fewer letters than a term has
        ended = [begins and word.unfinished for word in words]
        texts = (
            (i, "", normalized(word.text) + _ENDS * end)
            for i, (word, end) in enumerate(zip(words, ended, strict=True))
        )
        terms: list[list[bytes]] = [[] for _ in words]
        for i, term in self._table.rows(texts, "SELECT doc, term FROM terms ORDER BY doc, offset"):
            terms[i].append(term or b"")
        for i, end in enumerate(ended):
            if end:
                terms[i] = [term.rstrip(_END.encode()) for term in terms[i][:1]]
        return {word: tuple(cut) for word, cut in zip(words, terms, strict=True)}


@cache
def terms_of(used: Analyzer) -> Terms:
    """Words to terms by an analyzer, for all collections that use it."""
    return Terms(used)


def writer(read: Read, documents: Callable[[], RowNumbers]) -> WriteWords | None:
    """Writes the words file of a segment; its rows are passages of these documents, (rows,).

    The passages of a document follow each other. Documents that are not stored are left out. None:
    the collection has no index of words.
    """

    def stored() -> tuple[int, Iterable[Text]]:
        ids = documents()
        first = np.flatnonzero(np.append(True, np.diff(ids) != 0)) if ids.size else ids
        return ids.size, _stored(read, ids[first].tolist(), first.tolist())

    return writer_of(analyzer(read), stored)


def writer_of(used: Analyzer, texts: Callable[[], tuple[int, Iterable[Text]]]) -> WriteWords | None:
    """Writes the words file of a segment: its number of rows, and the texts in them, by row."""
    if used.tokenizer is Tokenizer.NONE:
        return None

    def write(path: Path) -> None:
        rows, documents = texts()
        parts: list[Moved] = []
        scratch: list[Path] = []
        try:
            with closing(_Table(used.tokenizer)) as table:
                chunks = _counted(table, documents, used)
                counted = next(chunks)
                for following in chunks:
                    scratch.append(path.with_name(f"{path.name}-{len(parts)}"))
                    write_postings(scratch[-1], [moved(counted, None, 0)], notes(used))
                    parts.append(moved(Postings.open(scratch[-1], rows), None, 0))
                    counted = following
            write_postings(path, [*parts, moved(counted, None, 0)], notes(used))
        finally:
            for chunk in scratch:
                chunk.unlink(missing_ok=True)

    return WriteWords(write, notes(used))


def count_terms(
    texts: Sequence[tuple[str, str]], used: Analyzer
) -> tuple[list[int], list[tuple[bytes, int, float]]]:
    """The lengths of documents in tokens; and term, document and how often, by term.

    `texts`: title and text of each. A term in the title counts TITLE_WEIGHT times.
    """
    if used.tokenizer is Tokenizer.NONE:
        return [0] * len(texts), []
    lengths: list[int] = []
    counts: list[tuple[bytes, int, float]] = []
    numbered = ((i, title, text) for i, (title, text) in enumerate(texts))
    with closing(_Table(used.tokenizer)) as table:
        for chunk in _counted(table, numbered, used):
            lengths += chunk.lengths.tolist()
            rows, times = chunk.rows[chunk.documents].tolist(), chunk.frequencies.tolist()
            for term, first, last in zip(
                chunk.vocabulary, chunk.starts[:-1].tolist(), chunk.starts[1:].tolist(), strict=True
            ):
                counts += [(term, rows[i], times[i]) for i in range(first, last)]
    return lengths, counts


def _stored(read: Read, ids: Sequence[int], first: Sequence[int]) -> Iterator[Text]:
    """The texts of stored documents."""
    for start in range(0, len(ids), _IDS):
        chunk = ids[start : start + _IDS]
        marks = ", ".join("?" * len(chunk))
        sql = f"SELECT id, title, text FROM documents WHERE id IN ({marks})"
        texts = {i: (title, text) for i, title, text in read(sql, chunk)}
        for i, document in enumerate(chunk, start=start):
            if document in texts:
                yield first[i], *texts[document]


def _counted(table: _Table, texts: Iterable[Text], used: Analyzer) -> Iterator[Counted]:
    """The terms of documents, some at a time.

    With trigrams, every letter begins one: the last two letters of a text begin terms that end
    with _END, so that one or two letters find all words that begin with them.
    """
    end = _ENDS if used.tokenizer is Tokenizer.TRIGRAM else ""
    block: list[tuple[int, str, str]] = []
    rows: list[int] = []
    letters = 0
    for first, title, text in texts:
        words, body = used.text(title), used.text(text)
        block.append((len(block), words and words + end, body and body + end))
        rows.append(first)
        letters += len(words) + len(body)
        if letters > _LETTERS:
            yield _count(table, block, rows)
            block, rows, letters = [], [], 0
    yield _count(table, block, rows)


def _count(table: _Table, texts: Sequence[tuple[int, str, str]], rows: Sequence[int]) -> Counted:
    # One row a term, with all its places: a row for each takes six times as long.
    sql = "SELECT term, group_concat(2 * doc + (col = 'title')) FROM terms GROUP BY term"
    terms, places = [], []
    for term, listed in table.rows(texts, sql):
        terms.append(term or b"")  # a lone accent is a term without letters
        places.append(listed)
    counted = np.array([not term.endswith(_END.encode()) for term in terms], bool)
    sizes = np.fromiter((listed.count(b",") + 1 for listed in places), np.int64, len(places))
    occurrences = np.fromstring(b",".join(places), np.int64, sep=",") if places else sizes
    inside = occurrences[np.repeat(counted, sizes)]  # FTS5 has no terms that end with _END
    keys = np.repeat(np.arange(sizes.size), sizes) * len(texts) + occurrences // 2
    order = np.argsort(keys, kind="stable")  # FTS5 gives them in order, but promises nothing
    keys, counts = keys[order], np.where(occurrences[order] % 2, TITLE_WEIGHT, 1.0)
    heads = np.flatnonzero(np.diff(keys, prepend=-1))
    summed = np.add.reduceat(counts, heads) if heads.size else counts
    numbers = keys[heads]
    term_of = numbers // max(1, len(texts))
    return Counted(
        rows=np.array(rows, np.int64),
        lengths=np.bincount(inside // 2, minlength=len(texts)).astype(np.uint32),
        vocabulary=terms,
        starts=np.searchsorted(term_of, np.arange(len(terms) + 1)),
        documents=numbers % max(1, len(texts)),
        frequencies=summed,
    )
