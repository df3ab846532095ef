"""The words files of a snapshot as one index of words; what writes them, and a speller by them.

Speller(words).replacements("how do wahles sleep")         # {(7, 13): "whales"}
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from searchengine.backends import lexical, limits
from searchengine.backends.contract import Ids, Scored
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.lexical import Term, Text, function_words, phrases
from searchengine.corpus.analyzer import (
    Analyzer,
    Tokenizer,
    folded,
    normalized,
    runs,
    stems,
    unaccented,
)
from searchengine.corpus.languages import UNSPACED_OR_KOREAN
from searchengine.indexer.arrays import Doubles, Floats, RowNumbers
from searchengine.indexer.search.postings import (
    Moved,
    Postings,
    Words,
    WriteWords,
    moved,
    write_postings,
)
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment

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
            count = sum(part.count(*part.find_all([term])) for part in self.parts.values())
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
        return [*lexical.asked_terms(asked, orders, lambda _: False)]

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
            terms = part.find_all(weights)
            if terms.count(-1) == len(terms):
                continue
            only = None if allowed is None else allowed[row]
            least = max(floor, best[k - 1]) if best.size == k else floor
            rows, scores = part.best(terms, values, self.average, k, only, least)
            passages = np.concatenate([passages, rows + row.base])
            best = np.concatenate([best, scores])
            order = np.lexsort((passages, -best))[:k]
            passages, best = passages[order], best[order]
        return passages, best

    def passages_with(self, wanted: Sequence[Term]) -> Ids:
        """The first passages of documents that have all terms; none without terms."""
        found = [np.zeros(0, np.int64)]
        for row, part in self.parts.items() if wanted else ():
            found.append(row.base + in_all([*map(part.rows_with, part.find_all(wanted))]))
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
    notes = {"terms": used.label, "title": repr(lexical.TITLE_WEIGHT)}

    def write(path: Path) -> None:
        ids = documents()
        first = np.flatnonzero(np.diff(ids, prepend=-1))
        texts = texts_of(store.read, ids[first].tolist())
        chunks = lexical.counted(((int(first[i]), text) for i, text in texts), used)
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
                yield place, Text(title, text, lexical.file_name(key))


_LIMIT = 20.0  # how likely an error must be; chosen with the weights on nine collections
_WORD = re.compile(r"[^\W\d_]+(?:[^\W\d_]|[\u0300-\u036f])*")
# A name, a path or an address; and what is found by its parts.
_OTHER = re.compile(rf"(?<!\S)\S*?(?:[\d_@#\\/=<>{{}}$]|[.:]\w|[{UNSPACED_OR_KOREAN}])\S*")


class Speller:
    """Words of a question that no document has, and the nearest that documents have.

    Terms are stems, so every word one edit away is stemmed and looked up, which takes as long among
    a million terms as among a thousand, and documents with the likely terms are read for it. A
    right word may be one edit away from another: letters must follow each other as they seldom do
    in documents. `right`: words that are no errors, too. For any thread.
    """

    def __init__(self, words: WordIndex, right: Iterable[str] = ()) -> None:
        self._words, self._right = words, frozenset(right)
        self._has = lru_cache(1 << 16)(words.has)
        self._sample = cache(partial(_sampled, words))
        self._language = language = words.analyzer.languages
        self._functions, self._stem = function_words(language), stems(language)
        self._fold: Callable[[str], str] = lambda text: unaccented(folded(text, language), language)

    def replacements(self, question: str) -> dict[tuple[int, int], str]:
        """Where a word is in a question that no document has → what to search for instead."""
        found, unknown = dict[tuple[int, int], str](), self._unknown(question)
        count, most = self._words.count, 1 + self._words.documents / 10
        telling = self._words.terms(filter(self._has, _WORD.findall(question if unknown else "")))
        telling = sorted((t for t in telling if count(t) <= most), key=count)[:4]  # rare ones
        for word, places in unknown.items():
            limits.check()
            if new := self._nearest(word, telling):
                cased = new.capitalize() if word[0].isupper() else new
                found |= dict.fromkeys(places, new.upper() if word.isupper() else cased)
        return dict(sorted(found.items()))

    def _unknown(self, question: str) -> dict[str, list[tuple[int, int]]]:
        """The first 50 words that no document has → their places; no names and no quoted words."""
        right = self._functions.union(self._right, *(runs(p.text) for p in phrases(question)))
        capitals = question.isupper() and " " in question
        unknown = dict[str, list[tuple[int, int]]]()
        for match in _WORD.finditer(_OTHER.sub(lambda name: " " * len(name[0]), question)):
            is_name = (word := match[0])[1:] != word[1:].lower() and not capitals
            is_right = is_name or not right.isdisjoint((word, word.casefold()))
            if 4 <= len(word) <= 32 and not is_right and not self._has(word):
                if word in unknown or len(unknown) < 50:
                    unknown.setdefault(word, []).append(match.span())
        return unknown

    def _nearest(self, word: str, telling: Sequence[Term]) -> str | None:
        """The likeliest word one edit away, if it is likely; `telling`: terms of other words.

        How likely: `_expected` · weight of the edit · letters of the word / number of near terms,
        divided by the per mille of terms (plus 0.1) with the rarest three letters that it corrects.
        """
        plain, forms = folded(word, self._language), dict[bytes, dict[str, float]]()
        edits = self._edits(plain)
        if not all(map(self._has, self._functions.intersection(edits))):
            return None  # nearest to a word of grammar
        for form, weight in edits.items():
            plain_form = unaccented(form, self._language)
            forms.setdefault(self._stem(form).encode(), {})[plain_form] = weight
        parts = self._words.parts.values()
        known = {term for part in parts for term in part.postings.known.intersection(forms)}
        near = sorted(term for term in known if self._words.count(Term((term,))))
        sample, size, _ = self._sample()
        typed, likely = f" {self._stem(plain)} ", dict[bytes, float]()
        counts = {(t := typed[i : i + 3]): sample.count(t.encode()) for i in range(len(typed) - 2)}
        for term in near:
            new = [n for triple, n in counts.items() if triple not in f" {term.decode()} "]
            share = 0.1 + 1000 * min(new, default=size) / size  # more than 0, if no term has them
            likely[term] = len(plain) / share / len(near) * self._expected(Term((term,)), telling)
        near.sort(key=lambda term: -likely[term] * max(forms[term].values()))
        for term in near[:4]:  # documents are read for each
            if written := self._written(term, forms[term]):
                return written[0] if likely[term] * written[1] >= _LIMIT else None
        return None

    def _edits(self, word: str) -> dict[str, float]:
        """The words one edit away → its weight; low where Arabic joins words, and at the end."""
        latin, arabic = word[0] < "\u0370", "\u0600" <= word[0] < "\u0700"
        every = self._sample()[2]
        letters = [c for c in every if (c < "\u0370" or "\u1e00" <= c < "\u1f00") == latin]
        other, left_out = (0.3, 0.3) if arabic else (1.0, 3.0)
        cuts, edits = [(word[:i], word[i:]) for i in range(len(word) + 1)], dict[str, float]()
        for begin, end in cuts:
            edits |= dict.fromkeys([begin + c + end[1:] for c in letters], other)
            edits[begin + end[1:]] = 0.05 if not end[1:] or (arabic and not begin) else other
        for begin, end in cuts:
            edits |= dict.fromkeys([begin + c + end for c in letters], left_out)
            edits[begin + end[1:2] + end[:1] + end[2:]] = 30.0  # swapped
        del edits[word]
        return edits

    def _written(self, term: bytes, forms: dict[str, float]) -> tuple[str, float] | None:
        """The form that most documents of a term have, of 16 at a time, 64 at most; its weight."""
        passages, written = self._words.passages_with([Term((term,))]), Counter[tuple[str, float]]()
        step, size = 1 + (passages.size - 1) // 16, 0
        for first in range(min(step, 4)):  # evenly spread, until one has a form
            limits.check()
            ids = self._words.documents_of(passages[first::step])
            for _, (title, text, name) in texts_of(self._words.store.scan, ids.tolist()):
                column = normalized(f"{title} {text[:50_000]} {name}")
                size += len(column)
                if any(map(self._fold(column).__contains__, forms)):
                    plain = {w.lower(): self._fold(w) for w in _WORD.findall(column)}
                    written.update((word, forms[f]) for word, f in plain.items() if f in forms)
            if written or size > 200_000:  # characters
                break
        return max(sorted(written), key=written.__getitem__, default=None)

    def _expected(self, term: Term, telling: Sequence[Term]) -> float:
        """How likely a term is, by its documents, and those with other words, 150 times at most."""
        count, more = self._words.count(term), 1.0
        for other in telling:
            by_chance = 0.5 + count * self._words.count(other) / self._words.documents
            more *= max(1.0, (self._words.passages_with([term, other]).size + 0.5) / by_chance)
        return float((count * min(more, 150.0)) ** 0.5)


def _sampled(words: WordIndex) -> tuple[bytes, int, list[str]]:
    """Some terms in spaces; how many (of few, some more); their letters, and of 50 documents."""
    every = [part.postings.vocabulary for part in words.parts.values()]
    step = 1 + sum(map(len, every)) // (1 << 14)
    terms = [term for vocabulary in every for term in vocabulary[::step]]
    sample = b"  ".join([b"", *terms, b""])
    ((last,),) = words.store.scan("SELECT ifnull(max(id), 0) FROM documents")
    sql = "SELECT title || text FROM documents WHERE id > ? ORDER BY id LIMIT 1"
    texts = [words.store.scan(sql, [i])[0][0][:5000] for i in range(0, last, 1 + last // 50)]
    letters = re.findall(rf"[^\W\d_{UNSPACED_OR_KOREAN}]", folded(sample.decode() + "".join(texts)))
    return sample, 1000 + len(terms), sorted(set(letters))
