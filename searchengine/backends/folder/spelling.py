"""Words of a question that no document has, and the nearest that documents have.

    Speller(words, store).replacements("how do wahles sleep")         # {"wahles": "whales"}

Terms are stems, so every word one edit away is stemmed and looked up, which takes as long among a
million terms as among a thousand, and documents with the likely terms are read for it. A right word
may be one edit away from another: letters must follow each other as they seldom do in documents.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial

from searchengine.backends import limits
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.words import WordIndex, texts_of
from searchengine.backends.quotes import phrases
from searchengine.backends.terms import Term, functions_of
from searchengine.corpus.analyzer import folded, runs, stems, unaccented
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN
from searchengine.corpus.normalization import normalized

LEAST, MOST, _WORDS = 4, 32, 50  # letters of a word that is replaced; unknown words of a question
# Chosen on nine collections in six languages: docs/quality.md.
_LIMIT, _RARE = 20.0, 0.1  # how likely an error must be; per mille of terms, added to all shares
_SWAPPED, _LEFT_OUT, _ARABIC, _AFFIX = 30.0, 3.0, 0.3, 0.05  # likely edits, where others have 1
_TOGETHER, _TELLING = 150.0, 4  # maximum factor; the question's other words that count
_COMPARED, _READ, _TEXT = 4, 16, 50_000  # terms; documents of each that are read; characters
_SAMPLE, _ALPHABET, _KEPT = 1 << 14, 20, 1 << 16  # terms; documents; words that are remembered
_WORD = re.compile(r"[^\W\d_]+(?:[^\W\d_]|[\u0300-\u036f])*")
# A name, a path or an address; and what is found by its parts.
_OTHER = re.compile(rf"[\d_@#\\=<>{{}}$]|://|\w[.:]\w|/\w*/|[{UNSPACED_OR_KOREAN}]")


class Speller:
    """Finds replacements in a snapshot, for any thread. `right`: words that are no errors, too."""

    def __init__(self, words: WordIndex, store: Store, right: Iterable[str] = ()) -> None:
        self._words, self._store, self._right = words, store, frozenset(right)
        self._has = lru_cache(_KEPT)(words.has)
        self._sample, self._all = cache(partial(_sampled, words)), cache(partial(_letters, store))
        self._functions = functions_of(words.analyzers)
        languages = dict.fromkeys(used.languages for used in words.analyzers)
        self._language, self._stems = (first := next(iter(languages))), [*map(stems, languages)]
        self._fold: Callable[[str], str] = lambda text: unaccented(folded(text, first), first)

    def replacements(self, question: str) -> dict[str, str]:
        """Words of a question that no document has → what to search for instead."""
        words, found = _WORD.findall(question), dict[str, str]()
        if all(map(self._has, words)):
            return found
        count, most = self._words.count, 1 + self._words.documents / 10
        telling = [t for t in self._words.terms(filter(self._has, words)) if count(t) <= most]
        telling = sorted(telling, key=count)[:_TELLING]
        for word in [*dict.fromkeys(self._unknown(question))][:_WORDS]:
            limits.check()
            if new := self._nearest(word, telling):
                first = new[0].upper() if word[0].isupper() else new[0]
                found[word] = new.upper() if word.isupper() else first + new[1:]
        return found

    def _unknown(self, question: str) -> Iterator[str]:
        """The words that no document has, but for names, addresses and what is quoted."""
        right = self._functions.union(self._right, *(runs(p.text) for p in phrases(question)))
        capitals = question.isupper() and " " in question
        for chunk in re.findall(r"\S+", question):
            for word in _WORD.findall(chunk):
                is_name = word[1:] != word[1:].lower() and not capitals
                is_right = self._has(word) or not right.isdisjoint((word, word.casefold()))
                if LEAST <= len(word) <= MOST and not (is_name or is_right or _OTHER.search(chunk)):
                    yield word

    def _nearest(self, word: str, telling: Sequence[Term]) -> str | None:
        """The likeliest word one edit away, if it is likely; `telling`: terms of other words."""
        plain, forms = folded(word, self._language), dict[bytes, dict[str, float]]()
        edits = self._edits(plain)
        if not all(map(self._words.has, self._functions.intersection(edits))):
            return None  # nearest to a word of grammar
        for stem in self._stems:
            for form, weight in edits.items():
                forms.setdefault(stem(form).encode(), {})[unaccented(form, self._language)] = weight
        parts = self._words.parts.values()
        known = {term for part in parts for term in part.postings.known.intersection(forms)}
        near = sorted(term for term in known if self._words.count(Term((term,))))
        sample, size = self._sample()
        typed, likely = f" {self._stems[0](plain)} ", dict[bytes, float]()
        counts = {(t := typed[i : i + 3]): sample.count(t.encode()) for i in range(len(typed) - 2)}
        for term in near:
            new = [n for triple, n in counts.items() if triple not in f" {term.decode()} "]
            share = _RARE + 1000 * min(new, default=size) / size
            likely[term] = len(plain) / share / len(near) * self._expected(Term((term,)), telling)
        near.sort(key=lambda term: -likely[term] * max(forms[term].values()))
        for term in near[:_COMPARED]:
            if written := self._written(term, forms[term]):
                return written[0] if likely[term] * written[1] >= _LIMIT else None
        return None

    def _edits(self, word: str) -> dict[str, float]:
        """The words one edit away → how likely it is. Arabic joins short words to the next."""
        latin, arabic = word[0] < "\u0370", "\u0600" <= word[0] < "\u0700"
        letters = [c for c in self._all() if (c < "\u0370") == latin or "\u1e00" <= c < "\u1f00"]
        other, left_out = (_ARABIC, _ARABIC) if arabic else (1.0, _LEFT_OUT)
        cuts, edits = [(word[:i], word[i:]) for i in range(len(word) + 1)], dict[str, float]()
        for begin, end in cuts:
            edits |= dict.fromkeys([begin + c + end[1:] for c in letters], other)
            edits[begin + end[1:]] = _AFFIX if not end[1:] or (arabic and not begin) else other
        for begin, end in cuts:
            edits |= dict.fromkeys([begin + c + end for c in letters], left_out)
            edits[begin + end[1:2] + end[:1] + end[2:]] = _SWAPPED
        del edits[word]
        return edits

    def _written(self, term: bytes, forms: dict[str, float]) -> tuple[str, float] | None:
        """The form of a term that most documents have, as it is written there, and its edit."""
        passages, written = self._words.passages_with([Term((term,))]), Counter[tuple[str, float]]()
        stored, sizes = self._store.documents_of, {*map(len, forms)}
        ids = self._words.documents_of(passages[:_READ], lambda ids: stored(ids.tolist()))
        for _, (title, text, name) in texts_of(self._store.scan, ids.tolist()):
            column = normalized(f"{title} {text[:_TEXT]} {name}")
            if any(map(self._fold(column).__contains__, forms)):
                plain = {w.lower(): self._fold(w) for w in _WORD.findall(column) if len(w) in sizes}
                written.update((word, forms[f]) for word, f in plain.items() if f in forms)
        if not written and passages.size > _READ:  # documents that were not read may have it
            return max(forms.items(), key=lambda item: item[1])
        return max(sorted(written), key=written.__getitem__, default=None)

    def _expected(self, term: Term, telling: Sequence[Term]) -> float:
        """How likely a term is, by its documents, and those that have other words as well."""
        count, more = self._words.count(term), 1.0
        for other in telling:
            by_chance = count * self._words.count(other) / self._words.documents
            both = self._words.passages_with([term, other]).size
            more *= max(1.0, (both + 0.5) / (by_chance + 0.5))
        return float((count * min(more, _TOGETHER)) ** 0.5)


def _sampled(words: WordIndex) -> tuple[bytes, int]:
    """Terms with spaces around them, evenly spread, and how many (of few, some more)."""
    every = [part.postings.vocabulary for part in words.parts.values()]
    step = 1 + sum(map(len, every)) // _SAMPLE
    terms = [term for vocabulary in every for term in vocabulary[::step]]
    return b"  ".join([b"", *terms, b""]), 1000 + len(terms)


def _letters(store: Store) -> list[str]:
    """The letters of the documents, in lower case."""
    ids = [i for (i,) in store.scan("SELECT id FROM documents LIMIT ?", [_ALPHABET])]
    texts = (text.title + text.text for _, text in texts_of(store.scan, ids))
    return sorted(filter(str.isalpha, set(folded("".join(texts)))))
