"""Documents ranked by words: BM25 with k1 = 1.2 and b = 0.75, a word of the title counts twice.

search(read, "how do whales sleep", k=10)             # [(document id, score), …], best first

The ranker is the words files of the segments (WordIndex), read by the native kernel of `indexer`.
The fallback, and the oracle of the tests, is FTS5 in documents.db: scores and order are the same.
It answers where a document with words is in no words file (it has no vector), and for a word that
the tokenizer cuts into several terms. A scan of all texts answers a trigram index for words of one
or two letters, which are no term of FTS5.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from searchengine.backends.contract import EXPECTED, Ids, Scored, WordScores
from searchengine.backends.folder.documents import text_index
from searchengine.backends.folder.documents.questions import (
    WORDS,
    Word,
    stems,
    trigrams,
    words,
)
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.documents.synonyms import Added
from searchengine.backends.folder.documents.terms import notes, terms_of
from searchengine.backends.folder.documents.text_index import MISSING, TITLE_WEIGHT, Read, quoted
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.function_words import function_words
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Doubles
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.bm25 import Words, max_gain, weight
from searchengine.indexer.segment import Segment

T = TypeVar("T")
_AVERAGES = 1  # the row of FTS5's table of averages
_In = TypeVar("_In")

TERMS = 128
"""Maximum words to search for; the rarest ones are used. With more, long questions are answered
worse: of questions with 276 terms, nDCG@10 is 0.594 with 128 of them and 0.544 with all."""

FUNCTION_WORD = 1 / 9
"""How often a function word counts, where another word counts once: see `_weight`."""

SHORT_TERMS = 16
"""The same, if every document is read."""

MIN_INDEXED = 10
"""Minimum documents that the index must find for short words; with fewer, every document is read.
The number does not depend on k, so the order of documents does not either."""

CONTINUATIONS = 32
"""Maximum trigrams for a word of two letters; the most frequent ones are used."""


class Index(Protocol[_In]):
    """Ranks documents by terms of words files, or by words quoted for FTS5."""

    @property
    def documents(self) -> int:
        """Number of documents in the collection."""

    def counts(self, terms: Sequence[_In], limit: int) -> list[int]:
        """How many documents have each term, counted up to `limit`."""

    def best(self, terms: Mapping[_In, float], k: int) -> Scored:
        """The k best documents with one of the terms, by (−score, id).

        The score of each term is multiplied by its number.
        """


Key = tuple[bytes, bool]
"""A term of a words file; or the beginning of terms, and True."""


@dataclass(frozen=True, slots=True)
class WordIndex:
    """The words files of a snapshot. Safe to use from several threads.

    Attributes:
        parts: the segments, the one with most documents first.
        documents: number of documents in the collection.
        average: their mean length, in tokens.
        analyzer: how text becomes terms.
    """

    parts: Mapping[SegmentRow, Words]
    documents: int
    average: float
    analyzer: Analyzer

    @classmethod
    def from_segments(
        cls,
        store: Store,
        segments: Mapping[SegmentRow, Segment],
        live: Mapping[SegmentRow, Allowed | None],
    ) -> Self | None:
        """The index; None unless every document with words is in a words file."""
        analyzer = text_index.analyzer(store.read)
        if analyzer.tokenizer is Tokenizer.NONE:
            return None
        parts, expected = {}, notes(analyzer)
        for row, segment in segments.items():
            if segment.words is None or segment.words.notes != expected:
                return None
            parts[row] = Words(segment.words, live[row])
        documents, tokens = _totals(store)
        if tokens != sum(part.tokens for part in parts.values()):
            return None
        largest = sorted(parts.items(), key=lambda item: -item[1].documents)
        return cls(dict(largest), documents, tokens / max(1, documents) or 1.0, analyzer)

    def ranker(
        self,
        documents_of: Callable[[Ids], list[int]],
        allowed: Mapping[SegmentRow, Allowed] | None,
        first: dict[int, int],
    ) -> "Ranker":
        """Ranks the documents with allowed rows; None: all documents. Others: see Ranker."""
        return Ranker(self, documents_of, allowed, first)


@dataclass(frozen=True, slots=True)
class Ranker:
    """An Index over the words files.

    Attributes:
        index: the words files.
        documents_of: the documents of passages (n,), in their order.
        allowed: the rows that may be found; None for all.
        first: document → its first passage, of those that were found.
    """

    index: WordIndex
    documents_of: Callable[[Ids], list[int]]
    allowed: Mapping[SegmentRow, Allowed] | None
    first: dict[int, int]

    @property
    def documents(self) -> int:
        """Number of documents in the collection."""
        return self.index.documents

    @property
    def analyzer(self) -> Analyzer:
        """How text becomes terms."""
        return self.index.analyzer

    def terms(self, words: Mapping[Word, float]) -> dict[Key, float] | None:
        """The term of each word, and how often it counts; None if a word is several terms.

        Words that the tokenizer leaves out have none.
        """
        cut = terms_of(self.index.analyzer).look_up(list(words))
        if any(len(terms) > 1 for terms in cut):
            return None
        counted = zip(words.items(), cut, strict=True)
        return {(t, word.unfinished): times for (word, times), terms in counted for t in terms}

    def counts(self, terms: Sequence[Key], limit: int) -> list[int]:
        """How many documents have each term, at most `limit`."""
        return [min(limit, self._count(term)) for term in terms]

    def best(self, terms: Mapping[Key, float], k: int) -> Scored:
        """The k best documents with one of the terms: id and BM25, by (−score, id)."""
        weights = np.array(
            [times * weight(self.documents, self._count(term)) for term, times in terms.items()]
        )
        passages, scores = self._best(terms, weights, k + 1)
        if scores.size > k > 0 and scores[k] == scores[k - 1]:  # which are first, their ids tell
            passages, scores = self._best(terms, weights, self.documents, float(scores[k]))
        documents = np.array(self.documents_of(passages), np.int64)
        order = np.lexsort((documents, -scores))[:k]
        chosen = documents[order].tolist()
        self.first.update(zip(chosen, passages[order].tolist(), strict=True))
        return [*zip(chosen, scores[order].tolist(), strict=True)]

    def _best(
        self, terms: Mapping[Key, float], weights: Doubles, k: int, floor: float = -math.inf
    ) -> tuple[Ids, Doubles]:
        """The first passages of the k best documents and their scores, by (−score, passage).

        `floor`: leave out lower scores.
        """
        passages, best = np.zeros(0, np.int64), np.zeros(0)
        for row, part in self.index.parts.items():
            numbers = [part.find(*term) for term in terms]
            if numbers.count(-1) == len(numbers):
                continue
            only = None if self.allowed is None else self.allowed[row]
            least = max(floor, best[k - 1]) if best.size == k else floor
            rows, scores = part.best(numbers, weights, self.index.average, k, only, least)
            passages = np.concatenate([passages, rows + row.base])
            best = np.concatenate([best, scores])
            order = np.lexsort((passages, -best))[:k]
            passages, best = passages[order], best[order]
        return passages, best

    def _count(self, term: Key) -> int:
        return sum(part.count(part.find(*term)) for part in self.index.parts.values())


def _totals(store: Store) -> tuple[int, int]:
    """Documents, and tokens of all, as FTS5 counts them.

    They are in its row of averages, as integers of variable length: see "Averages" in
    https://sqlite.org/fts5.html, section 9. The table is private to FTS5, but one row is read. The
    public fts5vocab has no totals: to add up its rows reads the whole vocabulary at each commit.
    """
    rows = store.read("SELECT block FROM text_index_data WHERE id = ?", (_AVERAGES,))
    numbers, value = [], 0
    for byte in rows[0][0] if rows and rows[0][0] else b"":
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    return (numbers[0], sum(numbers[1:])) if numbers else (0, 0)


def search(
    read: Read,
    question: str,
    k: int,
    condition: str = "1",
    parameters: Sequence[Any] = (),
    ranker: Ranker | None = None,
    *,
    synonyms: Mapping[str, Added] = MappingProxyType({}),
) -> WordScores:
    """The k best documents that share a word with the question: (id, BM25), by (−score, id).

    `question` is text and never syntax: a document needs one of its words. `condition` is SQL over
    `documents`; fewer than k documents are returned only if fewer match it. Scores are positive,
    and comparable within one result only. A question without words has no results. Raises
    QueryError if the collection has no index of words.

    `ranker`: ranks instead of FTS5, with the same scores, documents that match the condition.
    `synonyms`: other words to search for, see documents.synonyms.

    With a trigram index, short words are the beginnings of trigrams. FTS5 knows no such term: it
    ranks by the most frequent of these trigrams, and if there are only short words and fewer than
    MIN_INDEXED or k documents, every document is read (see docs/hybrid.md).
    """
    used = text_index.analyzer(read) if ranker is None else ranker.analyzer
    kind = used.tokenizer
    if kind is Tokenizer.NONE:
        raise QueryError(MISSING)
    fts5 = _Fts5(read, condition, parameters)
    query = counted_words(question, used, _shares(synonyms, used, question, fts5, ranker))
    if kind is Tokenizer.TRIGRAM:
        candidates = trigrams(query)
    elif kind is Tokenizer.STEM:
        candidates = stems(query, used, question, lambda word: _occurs(word, fts5, ranker))
    else:
        candidates = {Word(word): times for word, times in query.items()}
    candidates = merged(candidates, used)
    terms = None if ranker is None else ranker.terms(candidates)
    if ranker is not None and terms is not None:
        return ranked(ranker, terms, k)
    quoted_terms = {
        term: times for word, times in candidates.items() for term in _for_fts5(read, kind, word)
    }
    if kind is not Tokenizer.TRIGRAM or any(len(word) >= 3 for word in query):
        return ranked(fts5, quoted_terms, k)
    scored = ranked(fts5, quoted_terms, max(k, MIN_INDEXED))
    if len(scored) >= max(k, MIN_INDEXED):
        return WordScores(scored[:k], scored.most)
    scanned = _scan(read, query, k, condition, parameters)
    return _continued(scored, scanned, k) if len(scored) >= MIN_INDEXED else scanned


def _for_fts5(read: Read, kind: Tokenizer, word: Word) -> list[str]:
    """A word as terms of a query; with a trigram index, the most frequent that begin with it."""
    if not word.unfinished:
        return [quoted(word.text)]
    if kind is not Tokenizer.TRIGRAM:
        return [f"{quoted(word.text)} *"]
    sql = "SELECT term FROM text_terms WHERE term >= ? AND term < ? ORDER BY doc DESC, term LIMIT ?"
    beginning = word.text.lower()
    rows = read(sql, (beginning, beginning + chr(sys.maxunicode), CONTINUATIONS))
    return [quoted(term) for (term,) in rows]


def _shares(
    synonyms: Mapping[str, Added],
    used: Analyzer,
    question: str,
    fts5: "_Fts5",
    ranker: Ranker | None,
) -> dict[str, float]:
    """How often each synonym counts: see `shares`."""
    if not synonyms:
        return {}
    documents = fts5.documents if ranker is None else ranker.documents

    def occurs(part: Word) -> bool:
        return _occurs(part, fts5, ranker)

    def having(word: str) -> int:
        parts = {Word(word): 1.0}
        if used.tokenizer is Tokenizer.STEM:
            parts = stems({word: 1.0}, used, question, occurs)
        counts = (_having(part, (documents + 1) // 2, fts5, ranker) for part in parts)
        return min(counts, default=0)

    return shares(synonyms, documents, cache(having))


def shares(
    synonyms: Mapping[str, Added], documents: int, having: Callable[[str], int]
) -> dict[str, float]:
    """How often each synonym counts: less where it is rarer than all words it stands for.

    Then it gains a document what the rarest of them does. `documents`: in the collection.
    `having`: how many of them have a word, at most half of them.
    """
    counts = {}
    for word, (share, of) in synonyms.items():
        own = max(1, having(word))
        rarest = min((count for each in of if (count := having(each))), default=0)
        if own < rarest:
            share *= weight(documents, rarest) / weight(documents, own)
        counts[word] = share
    return counts


def counted_words(question: str, used: Analyzer, synonyms: Mapping[str, float]) -> dict[str, float]:
    """The words of a question and their synonyms, and how often each counts.

    `synonyms`: word → its weight, beside 1 of a word of the question.
    """
    languages = used.languages if used.tokenizer is Tokenizer.STEM else ("en",)
    functions = function_words(languages)
    counts: dict[str, float] = dict(islice(words(question).items(), WORDS))
    for word, share in synonyms.items():
        counts[word] = share**2  # `ranked` takes the root
    return {
        word: times * (FUNCTION_WORD if word.lower() in functions else 1.0)
        for word, times in counts.items()
    }


def merged(candidates: Mapping[Word, float], used: Analyzer) -> dict[Word, float]:
    """The words that have terms; of several words with equal terms, the first counts for all."""
    first: dict[tuple[tuple[bytes, ...], bool], Word] = {}
    merged = defaultdict[Word, float](float)
    for word, terms in zip(candidates, terms_of(used).look_up(list(candidates)), strict=True):
        if terms:
            merged[first.setdefault((terms, word.unfinished), word)] += candidates[word]
    return merged


MANY, NOT_TELLING = 10, 1.0
"""Where at least so many documents are, words that half of them have tell nothing: the most that
they could give is this, and not the millionth that FTS5 leaves them."""


def _weight(times: float) -> float:
    """The weight of a term by its number of occurrences in a question.

    The square root: nDCG@10 of questions of 150 words is 0.034 higher than if it counts once. Three
    function words count as another one.
    """
    return math.sqrt(times)


def ranked(index: Index[T], terms: Mapping[T, float], k: int) -> WordScores:
    """The k best documents by the TERMS rarest terms.

    `most` grows with the part of the question that no document has.

    Terms in half of the documents or more count only if there are fewer than k with another one:
    they have no weight in FTS5's BM25 (its inverse document frequency is at least 1e-6) and take
    most of its time.
    """
    documents = index.documents
    half = (documents + 1) // 2
    counted = [*zip(index.counts(list(terms), half), terms, strict=True)]
    terms_first = sorted((pair for pair in counted if pair[0]), key=itemgetter(0))[:TERMS]
    weights = {term: _weight(terms[term]) for _, term in terms_first}
    parts = [weights[term] * max_gain(documents, count) for count, term in terms_first]
    known, most = math.fsum(parts), math.fsum(nlargest(EXPECTED, parts))
    if known:
        # A question in another language has a name or a number in common with documents by chance.
        gains = (max_gain(documents, 1) * _weight(terms[term]) for n, term in counted if not n)
        most *= 1 + math.fsum(gains) / known
    rare = {term: weights[term] for count, term in terms_first if count < half}
    if terms_first and not rare and documents >= MANY:
        most = max(most, NOT_TELLING)
    scored = WordScores(index.best(rare, k) if rare else (), most)
    if len(scored) < k and len(rare) < len(terms_first):
        return _continued(scored, index.best(weights, k), k)
    return scored


def _continued(scored: WordScores, more: Scored, k: int) -> WordScores:
    """A result, then the others of a second one, at most k: whatever k, in one order.

    `scored` has all documents of its kind. A score does not exceed those before it.
    """
    seen, lowest = {document for document, _ in scored}, scored[-1][1] if scored else math.inf
    further = [(document, min(score, lowest)) for document, score in more if document not in seen]
    return WordScores((scored + further)[:k], scored.most)


def _occurs(word: Word, fts5: "_Fts5", ranker: Ranker | None) -> bool:
    """Whether a document has a word; not with a trigram index."""
    return _having(word, 1, fts5, ranker) > 0


def _having(word: Word, limit: int, fts5: "_Fts5", ranker: Ranker | None) -> int:
    """How many documents have a word, at most `limit`; of no term, 0."""
    terms = None if ranker is None else ranker.terms({word: 1})
    if ranker is not None and terms is not None:
        return max(ranker.counts(list(terms), limit), default=0)
    return max(fts5.counts(_for_fts5(fts5.read, Tokenizer.PORTER, word), limit))


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

    def best(self, terms: Mapping[str, float], k: int) -> Scored:
        # An FTS5 query has no weights, so the words of each weight are a query of their own.
        by_weight = defaultdict[float, list[str]](list)
        for term, times in terms.items():
            by_weight[times].append(term)
        part = (
            f"SELECT rowid, -bm25(text_index, {TITLE_WEIGHT}, 1.0) * ? AS part FROM text_index "
            "WHERE text_index MATCH ?"
        )
        # CROSS JOIN keeps the order: first the words, then the condition on their documents.
        everything = self.condition == "1"
        join = "" if everything else "CROSS JOIN documents ON documents.id = parts.rowid"
        sql = (
            f"WITH parts AS MATERIALIZED ({' UNION ALL '.join([part] * len(by_weight))}) "
            f"SELECT parts.rowid, sum(part) AS score FROM parts {join} WHERE {self.condition} "
            "GROUP BY parts.rowid ORDER BY score DESC, parts.rowid LIMIT ?"
        )
        matches = [
            bound for times, equal in by_weight.items() for bound in (times, " OR ".join(equal))
        ]
        rows = self.read(sql, (*matches, *self.parameters, k))
        return [(row[0], row[1]) for row in rows]


def _scan(
    read: Read, query: Mapping[str, float], k: int, condition: str, parameters: Sequence[Any]
) -> WordScores:
    """Score every document, for words too short for a trigram, by how often they occur.

    Scores saturate as in BM25. Only ASCII letters are compared without case.
    """
    if not query:
        return WordScores()
    words = list(query)[:SHORT_TERMS]
    count = "1.0 * (length(body) - length(replace(body, lower(?), ''))) / ?"
    score = " + ".join([f"(1 - 1.2 / (1.2 + {count}))"] * len(words))
    texts = (
        "SELECT documents.id AS id, lower(text_words.title || ' ' || text_words.text) AS body "
        f"FROM documents JOIN text_words USING (id) WHERE {condition}"
    )
    sql = (
        f"SELECT id, score FROM (SELECT id, {score} AS score FROM ({texts})) "
        "WHERE score > 0 ORDER BY score DESC, id LIMIT ?"
    )
    bound = [value for word in words for value in (word, len(word))]
    rows = read(sql, (*bound, *parameters, k))
    return WordScores(((row[0], row[1]) for row in rows), most=len(words[:EXPECTED]))
