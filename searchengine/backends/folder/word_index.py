"""Words of a snapshot: documents ranked by BM25 over the words files of its segments.

Scores and order are those of FTS5 (backends.folder.documents.lexical), which answers where a
document with words is in no words file: one without a vector, or of a segment of an older version.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from searchengine.backends.contract import Scored
from searchengine.backends.folder.documents import text_index
from searchengine.backends.folder.documents.lexical import Key
from searchengine.backends.folder.documents.questions import Word
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.documents.terms import notes, terms_of
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.bm25 import Words, weight
from searchengine.indexer.segment import Segment

_AVERAGES = 1  # the row of FTS5's table of averages


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
    def of(
        cls,
        store: Store,
        segments: Mapping[SegmentRow, Segment],
        live: Mapping[SegmentRow, Allowed | None],
    ) -> Self | None:
        """The index; None unless every document with words is in a words file."""
        analyzer = text_index.analyzer(store.read)
        if analyzer.tokenizer is Tokenizer.NONE:
            return None
        parts, made = {}, notes(analyzer)
        for row, segment in segments.items():
            if segment.words is None or segment.words.notes != made:
                return None
            parts[row] = Words(segment.words, live[row])
        documents, tokens = _totals(store)
        if tokens != sum(part.tokens for part in parts.values()):
            return None
        largest = sorted(parts.items(), key=lambda item: -item[1].documents)
        return cls(dict(largest), documents, tokens / max(1, documents) or 1.0, analyzer)

    def ranker(self, store: Store, allowed: Mapping[SegmentRow, Allowed] | None = None) -> "Ranker":
        """Ranks the documents whose rows are allowed; None: all."""
        return Ranker(self, store, allowed)


@dataclass(frozen=True, slots=True)
class Ranker:
    """Documents ranked by terms: a lexical.Ranker.

    Attributes:
        index: the words files.
        store: the tables of the snapshot.
        allowed: the rows that may be found; None for all.
    """

    index: WordIndex
    store: Store
    allowed: Mapping[SegmentRow, Allowed] | None

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
        cut = terms_of(self.index.analyzer).of(list(words))
        if any(len(terms) > 1 for terms in cut):
            return None
        counted = zip(words.items(), cut, strict=True)
        return {(t, word.unfinished): times for (word, times), terms in counted for t in terms}

    def counts(self, terms: Sequence[Key], limit: int) -> list[int]:
        """How many documents have each term, at most `limit`."""
        return [min(limit, self._count(term)) for term in terms]

    def best(self, terms: Mapping[Key, float], k: int) -> Scored:
        """The k best documents with one of the terms: id and BM25, by (−score, id).

        Of documents with equal scores at the end, those with the first passages.
        """
        weights = np.array(
            [times * weight(self.documents, self._count(term)) for term, times in terms.items()]
        )
        best: list[tuple[float, int]] = []
        for row, part in self.index.parts.items():
            found = [part.find(*term) for term in terms]
            if found.count(-1) == len(found):
                continue
            floor = -best[k - 1][0] if len(best) >= k else -math.inf
            only = None if self.allowed is None else self.allowed[row]
            rows, scores = part.best(found, weights, self.index.average, k, only, floor)
            listed = zip((-scores).tolist(), (rows + row.base).tolist(), strict=True)
            best = sorted([*best, *listed])[:k]
        documents = self.store.documents_of(passage for _, passage in best)
        ranked = sorted(zip((score for score, _ in best), documents, strict=True))
        return [(document, -score) for score, document in ranked]

    def _count(self, term: Key) -> int:
        return sum(part.count(part.find(*term)) for part in self.index.parts.values())


def _totals(store: Store) -> tuple[int, int]:
    """Documents, and tokens of all, as FTS5 counts them.

    They are in its row of averages, as integers of variable length: see "Averages" in
    https://sqlite.org/fts5.html, section 9.
    """
    rows = store.read("SELECT block FROM text_index_data WHERE id = ?", (_AVERAGES,))
    numbers, value = [], 0
    for byte in rows[0][0] if rows and rows[0][0] else b"":
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    return (numbers[0], sum(numbers[1:])) if numbers else (0, 0)
