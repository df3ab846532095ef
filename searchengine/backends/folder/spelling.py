"""Words of a question that no document has, and the nearest that documents have.

    Speller(words, store).replacements("how do wahles sleep")         # {"wahles": "whales"}

Terms are stems, but typing errors are in words. So the terms near the word and near its stems are
found; then the words of some documents with these terms are compared with it. What is searched for
instead is a word that a document has, and so can be shown and encoded.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from searchengine.backends import limits
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.words import WordIndex, texts_of
from searchengine.backends.quotes import phrases
from searchengine.backends.terms import Term, functions_of
from searchengine.corpus.analyzer import folded, runs
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN
from searchengine.corpus.normalization import normalized

ONE, TWO = 4, 8
"""Letters of a word from which one edit is forgiven, and two."""
_MAX_LETTERS = 48  # of a word that is replaced
_WORDS = 50  # unknown words of a question that are replaced: each takes a millisecond or more
# Chosen by how many words are restored of training questions of SciFact and NFCorpus and half of
# those of XQuAD in Spanish, with an edit in the rarest word (benchmarks/typing_errors.py).
_TERMS, _LIKELY, _COMPARED = 100, 24, 8  # terms of a segment; those, and words, compared by text
_READ, _FEW, _TEXT = 24, 3, 50_000  # documents of a word, of a term, that are read; characters
_ENDING, _LEFT_OUT = 7, 0.1  # letters that a stem may lack, and edits that each counts
_FIRST = 0.4  # edits that another first letter counts besides
_RARE = 0.1  # edits that a word counts less for each natural logarithm of its documents
_BESIDE, _MOST_BESIDE = 0.3, 5.0  # the same of meeting the other words more than by chance
_TELLING = 8  # other words of the question
_PART = 3  # letters of a part of a word, at least

_WORD = re.compile(r"[^\W\d_]+(?:[^\W\d_]|[\u0300-\u036f])*")
_CODE = re.compile(r"[\d_@#\\=<>{}$]|://|\w[.:]\w|/\w*/")  # a name, a path or an address


@dataclass(frozen=True, slots=True)
class Speller:
    """Finds replacements in the words of a snapshot.

    Attributes:
        words: the index.
        store: the tables of the snapshot.
        known: other words, in lower case, that are no errors.
    """

    words: WordIndex
    store: Store
    known: frozenset[str] = frozenset()

    def replacements(self, question: str) -> dict[str, str]:
        """Words of a question that no document has → what to search for instead.

        Numbers, names with digits or several capitals, and what is in quotation marks stay. So do
        words in scripts without spaces, and in Korean. If two words are one in documents, the key
        is both with a space between them.
        """
        unknown = dict.fromkeys(islice(dict.fromkeys(self._unknown(question)), _WORDS))
        if not unknown:
            return {}
        found: dict[str, str] = {}
        for first, second in pairwise(_WORD.findall(question)):
            pair, one = f"{first} {second}", first + second.lower()
            if {first, second} & unknown.keys() and pair in question and self.words.has(one):
                found[pair] = one
        joined = {word for pair in found for word in pair.split()}
        telling = self._telling(word for word in runs(question) if word not in unknown)
        for word in (word for word in unknown if word not in joined):
            limits.check()
            new = self._nearest(word, 1, telling) or self._split(word)
            if new := new or self._nearest(word, 2, telling):
                found[word] = _as_written(new, word)
        return found

    def _unknown(self, question: str) -> Iterator[str]:
        """The words that may have a typing error and that no document has, in their order."""
        quoted = {word for phrase in phrases(question) for word in runs(phrase.text)}
        right = quoted | self._functions
        capitals = question.isupper() and len(question.split()) > 1
        for around in re.findall(r"\S+", question):
            for word in _WORD.findall(around):
                if (
                    2 <= len(word) <= _MAX_LETTERS
                    and not self.words.has(word)
                    and not {word, word.casefold()} & right
                    and word.casefold() not in self.known
                    and not re.search(f"[{UNSPACED_OR_KOREAN}]", word)
                    and (word[1:] == word[1:].lower() or capitals)  # else a name
                    and not _CODE.search(around)
                ):
                    yield word

    @property
    def _functions(self) -> frozenset[str]:
        return functions_of(self.words.analyzers)

    def _nearest(self, word: str, edits: int, telling: Sequence[Term]) -> str | None:
        """The likeliest word of documents within a number of edits; None without one.

        `telling`: terms of the other words of the question.
        """
        plain = _plain(word)
        if len(plain) < (ONE if edits == 1 else TWO):
            return None
        if any(OSA.distance(_plain(each), plain) < 2 for each in self._functions):
            return None
        terms = self._near(plain, edits)
        made = self._ended(terms, plain, edits)
        for forms in (
            made,
            _variants(plain) if edits == 1 else [],
            self._read(terms, plain, edits),
        ):
            if new := self._likeliest(forms, plain, telling):
                return new
        return None

    def _likeliest(self, forms: Iterable[str], word: str, telling: Sequence[Term]) -> str | None:
        """The likeliest of some forms that a document has, as it is written there."""

        def cost(form: str) -> float:
            apart = OSA.distance(form, word) + _FIRST * (form[0] != word[0])
            return apart - self._likely(form, telling)

        having = sorted(form for form in forms if len(form) > 1 and self._count(form))
        ranked = sorted(having, key=cost)[:_COMPARED]
        found = (written for form in ranked for written in self._written(form))
        # Documents that were not read may have the others.
        return next(found, None) or next((f for f in ranked if self._count(f) > _READ), None)

    def _written(self, form: str) -> Iterator[str]:
        """A word as documents write it, with its accents."""
        for text in self._texts(self.words.terms([form]), _READ):
            yield from (word for word in _WORD.findall(text) if _plain(word) == form)

    def _near(self, word: str, edits: int) -> list[str]:
        """The likeliest terms within a number of edits of a word, or of one of its beginnings.

        With two edits, only those with the same first letter.
        """
        endings = range(1 + min(_ENDING, len(word) // 2))
        forms, left_out = [word[: len(word) - n] for n in endings], np.array(endings)[:, None]
        ranked: list[tuple[float, str]] = []
        a, b = map(ord, word[:2])
        for part in self.words.parts.values():
            first, second, _ = part.postings.heads
            possible = first == a
            if edits == 1:  # or the first letter is replaced, dropped or swapped, or one is before
                possible |= (first == b) | (second == a) | (second == b)
            numbers = np.flatnonzero(possible)
            texts = part.postings.texts[numbers].tolist()
            apart = cdist(forms, texts, scorer=OSA.distance, score_cutoff=edits, dtype=np.int64)
            costs = np.where(apart > edits, np.inf, apart + _LEFT_OUT * left_out).min(axis=0)
            costs -= _RARE * np.log(np.maximum(part.postings.counts(numbers), 1))
            best = np.argsort(costs)[:_TERMS]
            ranked += ((float(costs[i]), texts[i]) for i in best if costs[i] < np.inf)
        return list(dict.fromkeys(term for _, term in sorted(ranked) if term.isalpha()))

    def _ended(self, terms: Iterable[str], word: str, edits: int) -> list[str]:
        """Each term with each ending of a word, within a number of edits of the word.

        The last letter of a stem may be another: "happi" is that of "happy".
        """
        ends = [word[len(word) - n :] for n in range(1 + min(_ENDING, len(word) // 2))]
        forms = (stem + end for term in terms for stem in (term, term[:-1]) for end in ends)
        return [form for form in dict.fromkeys(forms) if _apart(form, word) <= edits]

    def _read(self, terms: Sequence[str], word: str, edits: int) -> Iterator[str]:
        """Words within a number of edits of a word, from some documents with the first terms."""
        likely = [Term((term.encode(),)) for term in terms[:_LIKELY]]
        words = {word for text in self._texts(likely, _FEW) for word in _WORD.findall(text)}
        forms = set(map(_plain, words))
        yield from (form for form in forms if _apart(form, word) <= edits)

    def _count(self, form: str) -> int:
        return sum(map(self.words.count, self.words.terms([form])))

    def _texts(self, terms: Sequence[Term], count: int) -> Iterator[str]:
        """Titles and texts of `count` documents with each term, in lower case."""
        passages = [self.words.passages_with([term])[:count] for term in terms]
        if passages:
            ids = self.words.documents_of(
                np.unique(np.concatenate(passages)),
                lambda ids: self.store.documents_of(ids.tolist()),
            )
            for _, text in texts_of(self.store.scan, ids.tolist()):
                yield normalized(f"{text.title} {text.text[:_TEXT]} {text.name}").lower()

    def _telling(self, words: Iterable[str]) -> list[Term]:
        """Terms of words that documents have, but not more than one in ten."""
        most = 1 + self.words.documents / 10
        return [t for t in self.words.terms(words) if 0 < self.words.count(t) <= most][:_TELLING]

    def _likely(self, word: str, beside: Sequence[Term]) -> float:
        """How likely a word is, by how many documents have it, and have the others as well."""
        (term, *_), together = self.words.terms([word]), 0.0
        count = self.words.count(term)
        for other in beside:
            by_chance = count * self.words.count(other) / self.words.documents
            both = self.words.passages_with([term, other]).size
            together += max(0.0, math.log((both + 0.5) / (by_chance + 0.5)))
        return _RARE * math.log(max(1, count)) + _BESIDE * min(together, _MOST_BESIDE)

    def _split(self, word: str) -> str | None:
        """The word as two that documents have together, the most frequent; None without such."""
        best, most = None, 0
        for i in range(_PART, len(word) - _PART + 1):
            terms = self.words.terms([word[:i], word[i:]])
            if len(terms) == 2 and (count := self.words.passages_with(terms).size) > most:
                best, most = f"{word[:i]} {word[i:]}", count
        return best


def _apart(form: str, word: str) -> int:
    """The edits between a word and another form; of no other form many."""
    return int(OSA.distance(form, word, score_cutoff=2)) if form != word else 99


def _variants(word: str) -> list[str]:
    """A word with one edit."""
    letters = sorted(set(word) | set("aeinorst"))
    variants: list[str] = []
    for i in range(len(word) + 1):
        begin, rest = word[:i], word[i:]
        variants += [begin + rest[1:], begin + rest[1:2] + rest[:1] + rest[2:]] if rest else []
        variants += [begin + letter + tail for letter in letters for tail in (rest, rest[1:])]
    return list(dict.fromkeys(variants))


def _as_written(new: str, word: str) -> str:
    """A word in lower case with the capitals of another."""
    if len(word) > 1 and word.isupper():
        return new.upper()
    return new[:1].upper() + new[1:] if word[:1].isupper() else new


def _plain(word: str) -> str:
    """A word in lower case without accents."""
    lower = folded(word)
    if lower.isascii():
        return lower
    return "".join(c for c in unicodedata.normalize("NFD", lower) if not unicodedata.combining(c))
