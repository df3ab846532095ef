"""Words of a question that no document has, and the nearest that documents have.

    Speller(words).replacements("how do wahles sleep")         # {(7, 13): "whales"}

Terms are stems, so every word one edit away is stemmed and looked up, which takes as long among a
million terms as among a thousand, and documents with the likely terms are read for it. A right word
may be one edit away from another: letters must follow each other as they seldom do in documents.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial

from searchengine.backends import limits
from searchengine.backends.folder.words import WordIndex, texts_of
from searchengine.backends.synonyms import phrases
from searchengine.backends.terms import Term
from searchengine.corpus.analyzer import folded, normalized, runs, stems, unaccented
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN, function_words

_LIMIT = 20.0  # how likely an error must be; chosen with the weights on nine collections
_WORD = re.compile(r"[^\W\d_]+(?:[^\W\d_]|[\u0300-\u036f])*")
# A name, a path or an address; and what is found by its parts.
_OTHER = re.compile(rf"(?<!\S)\S*?(?:[\d_@#\\/=<>{{}}$]|[.:]\w|[{UNSPACED_OR_KOREAN}])\S*")


class Speller:
    """Finds replacements in a snapshot, for any thread. `right`: words that are no errors, too."""

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

        How likely: `_expected` · weight of the edit · letters of the word / near terms, divided by
        the per mille of terms with the rarest three letters that the word has in place of others.
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
