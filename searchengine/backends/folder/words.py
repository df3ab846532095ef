"""The words files of a snapshot as one index of words; and what writes them."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from searchengine.backends import limits, terms
from searchengine.backends.contract import Ids, Scored
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.terms import Term, Text
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.indexer.arrays import Doubles, Floats, RowNumbers
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.bm25 import Words
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.words_file import (
    Moved,
    Postings,
    WriteWords,
    moved,
    write_postings,
)

Read = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
TIED = 10_000
"""Maximum documents of one score whose keys are read, to find the first ones."""
_KEPT = 1 << 16  # terms and words of questions that are remembered
_IDS = 500  # documents read by a statement
# Of a text, cut between words: no other thread runs while one is cut into words.
_PIECES = re.compile(r".{1,65536}[^\s。、，！？]*", re.DOTALL)


class WordIndex:
    """All words of a snapshot. Safe to use from several threads.

    Attributes:
        parts: the segments, the largest first.
        documents: number of documents.
        average: their mean length, in words.
        analyzer: how texts became terms.
        store: the tables of the snapshot.
        documents_of: the documents of passages, in their order.
    """

    def __init__(
        self,
        store: Store,
        segments: Mapping[SegmentRow, Segment],
        live: Mapping[SegmentRow, Allowed | None],
        analyzer: Analyzer,
        documents_of: Callable[[Ids], Ids],
    ) -> None:
        """The index of one commit, of the documents that have passages."""
        self.documents_of = documents_of
        files = {row: segment.words for row, segment in segments.items()}
        parts = {row: Words(file, live[row]) for row, file in files.items() if file is not None}
        self.store = store
        self.parts: Mapping[SegmentRow, Words] = dict(
            sorted(parts.items(), key=lambda item: -item[1].documents)
        )
        self.documents = sum(part.documents for part in parts.values())
        tokens = sum(part.tokens for part in parts.values())
        self.average = tokens / max(1, self.documents) or 1.0
        self.analyzer = analyzer
        self._counts: dict[Term, int] = {}

    def count(self, term: Term) -> int:
        """How many documents have a term; remembered."""
        if (count := self._counts.get(term)) is None:
            limits.check()
            if len(self._counts) >= _KEPT:  # documents do not change, questions do
                self._counts = {}  # another thread may read the former one
            count = sum(part.count(*part.numbers([term])) for part in self.parts.values())
            self._counts[term] = count
        return count

    def counts(self, terms: Iterable[Term], limit: int = 0) -> list[int]:
        """How many documents have each term; all are counted, which takes no longer."""
        return [*map(self.count, terms)]

    def has(self, word: str) -> bool:
        """Whether documents have a word, in any of its forms; of a name, one of its parts."""
        forms = self.terms([word])
        return not forms or any(map(self.count, forms))

    def terms(self, words: Iterable[str]) -> list[Term]:
        """The terms of words by all languages, of names the parts alone."""
        asked, orders = dict.fromkeys(words, 1.0), self.analyzer.orders
        return [*terms.asked_terms(asked, orders, lambda _: False)]

    def best(
        self,
        weights: Mapping[Term, float],
        k: int,
        allowed: Mapping[SegmentRow, Allowed] | None,
        first: dict[int, int],
    ) -> Scored:
        """The k best documents with one of the terms: id and BM25; see `best_by_key`.

        Args:
            weights: by term; see `lexical.Best`.
            k: number of documents.
            allowed: the rows that may be found; None for all.
            first: gets the first passage of each of them.
        """
        passages, scores = self._best(weights, k + 1, allowed)
        if scores.size > k > 0 and scores[k] == scores[k - 1]:
            passages, scores = self._best(weights, self.documents, allowed, float(scores[k]))
        documents = self.documents_of(passages)
        order = best_by_key(documents, scores, k, self.store.keys_of)
        chosen = documents[order].tolist()
        first.update(zip(chosen, passages[order].tolist(), strict=True))
        return [*zip(chosen, scores[order].tolist(), strict=True)]

    def _best(
        self,
        weights: Mapping[Term, float],
        k: int,
        allowed: Mapping[SegmentRow, Allowed] | None,
        floor: float = -math.inf,
    ) -> tuple[Ids, Doubles]:
        """The first passages of the k best documents and their scores, by (−score, passage).

        `floor`: leave out lower scores.
        """
        passages, best, values = np.zeros(0, np.int64), np.zeros(0), np.array([*weights.values()])
        for row, part in self.parts.items():
            limits.check()
            numbers = part.numbers(weights)
            if numbers.count(-1) == len(numbers):
                continue
            only = None if allowed is None else allowed[row]
            least = max(floor, best[k - 1]) if best.size == k else floor
            rows, scores = part.best(numbers, values, self.average, k, only, least)
            passages = np.concatenate([passages, rows + row.base])
            best = np.concatenate([best, scores])
            order = np.lexsort((passages, -best))[:k]
            passages, best = passages[order], best[order]
        return passages, best

    def passages_with(self, wanted: Sequence[Term]) -> Ids:
        """The first passages of documents that have all terms; none without terms."""
        found = [np.zeros(0, np.int64)]
        for row, part in self.parts.items() if wanted else ():
            found.append(row.base + in_all([*map(part.rows_with, part.numbers(wanted))]))
        return np.concatenate(found)


def best_by_key(
    ids: Ids, scores: Doubles | Floats, k: int, keys: Callable[[Ids], list[str]]
) -> Ids:
    """The places of the k best documents or passages, by (−score, id).

    Keys tell which of the last ones are among them: of more than TIED of one score, ids.
    """
    order = np.lexsort((ids, -scores))
    if order.size > k > 0 and scores[order[k]] == scores[order[k - 1]]:
        last = order[scores[order] == scores[order[k]]]
        if last.size <= TIED:
            higher = int(np.count_nonzero(scores > scores[order[k]]))
            by_key = np.argsort(np.array(keys(ids[last]), object), kind="stable")
            order[higher:k] = last[np.sort(by_key[: k - higher])]
    return order[:k]


def in_all(ids: Sequence[Ids]) -> Ids:
    """The intersection of arrays of ids. Each array has an id at most once."""
    common, *others = sorted(ids, key=len)
    for other in others:
        limits.check()
        common = np.intersect1d(common, other, assume_unique=True)
    return common


def contains(text: Text, phrase: str, used: Analyzer) -> bool:
    """Whether the title or the text has the words of a phrase, one after the other.

    Marks between them, case and endings count as they do for the analyzer. The last word may go on
    where words have no spaces.
    """
    for column in (text.title, text.text):
        order = used.order_of(column)
        if not (cuts := used.cuts(phrase, order)):
            continue
        *before, last = cuts
        wanted = [*(part for cut in before for part in cut.parts), *last.asked]
        end, parts = "" if len(wanted[-1]) < last.size else " ", list[str]()
        for piece in _PIECES.finditer(column):
            limits.check()
            of_piece = (part for cut in used.cuts(piece[0], order) for part in cut.parts)
            parts = [*parts[-len(wanted) :], *of_piece]
            if f" {' '.join(wanted)}{end}" in f" {' '.join(parts)} ":
                return True
    return False


def writer(store: Store, documents: Callable[[], RowNumbers]) -> WriteWords | None:
    """Writes the words file of a segment; its rows are passages of these documents, (rows,).

    The passages of a document follow each other. Documents that are not stored are left out. None:
    the collection has no index of words.
    """
    used = Analyzer.parse(store.settings()["tokenizer"])
    notes = {"terms": used.label, "title": repr(terms.TITLE_WEIGHT)}

    def write(path: Path) -> None:
        ids = documents()
        first = np.flatnonzero(np.diff(ids, prepend=-1))
        texts = texts_of(store.read, ids[first].tolist())
        chunks = terms.counted(((int(first[i]), text) for i, text in texts), used)
        parts = list[Moved]()
        last = next(chunks)
        with TemporaryDirectory(dir=path.parent) as scratch:
            for following in chunks:
                chunk = Path(scratch) / str(len(parts))
                write_postings(chunk, [moved(last, None, 0)], notes)
                parts.append(moved(Postings.open(chunk, ids.size), None, 0))
                last = following
            write_postings(path, [*parts, moved(last, None, 0)], notes)

    return None if used.tokenizer is Tokenizer.NONE else WriteWords(write, notes)


def texts_of(read: Read, ids: Sequence[int]) -> Iterator[tuple[int, Text]]:
    """The place of a document among `ids`, and its text, of those that are stored."""
    for start in range(0, len(ids), _IDS):
        chunk = ids[start : start + _IDS]
        sql = (
            "SELECT id, title, text, CASE WHEN root IS NULL THEN '' ELSE key END FROM documents "
            f"WHERE id IN ({', '.join('?' * len(chunk))})"
        )
        rows = {i: (title, text, key) for i, title, text, key in read(sql, chunk)}
        for place, document in enumerate(chunk, start=start):
            if document in rows:
                title, text, key = rows[document]
                yield place, Text(title, text, terms.file_name(key))
