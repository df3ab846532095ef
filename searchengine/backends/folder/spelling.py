"""Words of a question that no document has, and the nearest that documents have.

Speller(index, store).replacements("how do wahles sleep")         # {"wahles": "whales"}

Terms are stems, but typing errors are in words. So the terms near the word are found, with and
without its ending; then the words of some documents with these terms are compared with it. What is
searched for instead is a word that a document has, and so can be shown and encoded.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from searchengine.backends import limits
from searchengine.backends.folder.documents.questions import Word, phrases
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.documents.terms import terms_of
from searchengine.backends.folder.lexical import WordIndex
from searchengine.corpus.analyzer import Analyzer, Tokenizer, runs
from searchengine.corpus.function_words import function_words
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN
from searchengine.corpus.normalization import normalized
from searchengine.indexer.arrays import RowNumbers
from searchengine.indexer.storage.words_file import Postings

ONE, TWO = 4, 8
"""Letters of a word from which one edit is forgiven, and two."""
_MAX_LETTERS = 48  # of a word that is replaced
_EDIT = 16  # cost of an edit; a letter that is left out costs 1

# Chosen by how many words are restored of training questions of SciFact and NFCorpus and half of
# those of XQuAD in Spanish, with an edit in the rarest word (benchmarks/typing_errors.py).
_ENDING = 7  # letters at the end of a word that its stem may lack
_CHECKED = 100  # terms of a segment, the likeliest, that may be the stem of a word
_LIKELY, _OTHERS, _BEGUN = 12, 4, 8  # terms whose words are compared, by kind: see `_nearest`
_READ, _TEXT = 3, 50_000  # documents read for each of them, and characters of each
_FIRST = 0.4  # edits that another first letter counts besides; of terms, another first byte
_LEFT_OUT = 0.1  # the same of a letter of the ending, until words are compared
_RARE = 0.1  # edits that a term counts less for each natural logarithm of its documents
_BESIDE, _MOST_BESIDE = 0.3, 5.0  # the same of meeting the other words more than by chance
_TELLING = 8  # other words of the question
_WORDS = 50  # unknown words of a question that are replaced: each takes a millisecond or more
_PART, _SPLITS = 2, 3  # letters of a part of a word, and pairs of parts that documents may have

_WORD = re.compile(r"[^\W\d_]+(?:[^\W\d_]|[\u0300-\u036f])*")
_CODE = re.compile(r"[\d_@#\\=<>{}$]|://|\w[.:]\w|/\w*/")  # a name, a path or an address


@dataclass(frozen=True, slots=True)
class Speller:
    """Finds replacements in the words files of a snapshot.

    Attributes:
        index: the words files; not of the tokenizer trigram, whose terms are no words.
        store: the tables of the snapshot.
        known: other words, in lower case, that are no errors.
    """

    index: WordIndex
    store: Store
    known: frozenset[str] = frozenset()

    def replacements(self, question: str) -> dict[str, str]:
        """Words of a question that no document has → what to search for instead.

        Numbers, names with digits or several capitals, and what is in quotation marks stay. So do
        words in scripts without spaces, and in Korean. If two words are one in documents, the key
        is both with a space between them. Of many such words, the first _WORDS are replaced.
        """
        unknown = list(islice(self._unknown(question), _WORDS))
        if not unknown:
            return {}
        beside = self._telling(question)
        found: dict[str, str] = {}
        for word, before, after in unknown:
            limits.check()
            if any(word in key.split() for key in found):
                continue
            if joined := self._joined(word, before, after):
                found |= joined
                continue
            new = self._nearest(word, 1, beside) or self._split(word)
            new = new or self._nearest(word, 2, beside)
            if new is not None:
                found[word] = _as_written(new, word)
        return found

    def _unknown(self, question: str) -> Iterator[tuple[str, str, str]]:
        """The words that no document has, in their order, each with the words before and after it.

        These are "" unless only spaces are between.
        """
        quoted = {word for phrase in phrases(question) for word in runs(phrase.text)}
        matches = list(_WORD.finditer(question))
        texts = [match.group() for match in matches]
        candidates = [
            i
            for i, match in enumerate(matches)
            if texts[i] not in quoted and self._may_be_wrong(question, match)
        ]
        for i, terms in zip(candidates, self._terms([texts[i] for i in candidates]), strict=True):
            if not terms or self._count(terms):
                continue
            before = after = ""
            if i > 0 and question[matches[i - 1].end() : matches[i].start()].isspace():
                before = texts[i - 1]
            if texts[i + 1 :] and question[matches[i].end() : matches[i + 1].start()].isspace():
                after = texts[i + 1]
            yield texts[i], before, after

    def _may_be_wrong(self, question: str, match: re.Match[str]) -> bool:
        """Whether a match is a word that may have a typing error."""
        word = match.group()
        if not 2 <= len(word) <= _MAX_LETTERS or word.lower() in self._functions:
            return False
        if word.casefold() in self.known or re.search(f"[{UNSPACED_OR_KOREAN}]", word):
            return False
        all_capitals = question.isupper() and len(runs(question)) > 1
        if word[1:] != word[1:].lower() and not all_capitals:
            return False  # an abbreviation, or a name in code
        begin, end = match.span()
        while begin and not question[begin - 1].isspace():
            begin -= 1
        while end < len(question) and not question[end].isspace():
            end += 1
        return not _CODE.search(question[begin:end])

    def _telling(self, question: str) -> list[bytes]:
        """Terms of a question that documents have, but not more than one in ten."""
        words = sorted({word for word in runs(question) if word.lower() not in self._functions})
        terms = sorted({term for terms in self._terms(words) for term in terms})
        most = 1 + self.index.documents / 10
        return [term for term in terms if 0 < self._count([term]) <= most][:_TELLING]

    @property
    def _functions(self) -> frozenset[str]:
        return function_words(self.index.analyzer.languages or ("en",))

    # ------------------------------------------------------------------------------ words and terms

    def _terms(self, words: Sequence[str]) -> list[frozenset[bytes]]:
        """The terms that each word may have, by language; none if it is not one term."""
        used = self.index.analyzer
        if used.tokenizer is not Tokenizer.STEM:
            cut = terms_of(used).look_up([Word(word) for word in words])
            return [frozenset(terms if len(terms) == 1 else ()) for terms in cut]
        stems: list[set[str]] = []
        for word in words:
            pieces = used.pieces(word)
            one = len(pieces) == 1 and not pieces[0].part
            orders = used.orders(word) if one else ()
            stems.append({used.word(pieces[0].text, order) for order in orders})
        distinct = sorted({stem for each in stems for stem in each})
        cut = terms_of(used).look_up([Word(stem) for stem in distinct])
        of_stem = dict(zip(distinct, cut, strict=True))
        return [frozenset(term for stem in each for term in of_stem[stem]) for each in stems]

    def _folded(self, words: Sequence[str]) -> list[str]:
        """Words with their endings, written as terms are."""
        used = self.index.analyzer
        if used.tokenizer is Tokenizer.STEM:
            return [used.word(used.folded(word), unfinished=True) for word in words]
        cut = terms_of(Analyzer(Tokenizer.UNICODE)).look_up([Word(word) for word in words])
        return [b"".join(terms).decode() for terms in cut]

    def _count(self, terms: Iterable[bytes]) -> int:
        """How many documents have each of the terms, in all."""
        parts = self.index.parts.values()
        return sum(part.count(part.find(term)) for term in terms for part in parts)

    # ---------------------------------------------------------------------------- the nearest words

    def _nearest(self, word: str, edits: int, beside: Sequence[bytes]) -> str | None:
        """The likeliest word of documents within a number of edits; None without one.

        `beside`: terms of the other words of the question.
        """
        (folded,) = self._folded([word])
        if not (ONE if edits == 1 else TWO) <= len(folded) <= _MAX_LETTERS:
            return None
        functions = [_plain(word) for word in self._functions if word[0] == folded[0]]
        if any(OSA.distance(function, folded) < 2 for function in functions):
            return None
        lower = self.index.analyzer.folded(word)
        accented = lower if len(lower) == len(folded) else folded
        costs = self._near(folded, edits)
        made = self._with_ending(costs, accented)
        begun = [term for term, cost in costs.items() if cost < _EDIT][:_BEGUN]
        others = [term for term in costs if term not in made and term not in begun][:_OTHERS]
        best: tuple[float, str] | None = None
        for term, written, other in self._words_with([*list(made)[:_LIKELY], *begun, *others]):
            if (apart := OSA.distance(other, folded)) <= edits:
                worse = apart + _FIRST * (other[0] != folded[0]) - self._likely(term, beside)
                best = min(best or (math.inf, ""), (worse, written))
        if best is not None or edits > 1:
            return None if best is None else best[1]
        # Documents that were not read may have other words with these terms.
        tries = ((t, form) for t in begun for form in _variants(accented, len(folded) - costs[t]))
        forms = self._having(list(tries)) | made
        return next((form for t, form in forms.items() if self._count([t]) > _READ), None)

    def _near(self, word: str, edits: int) -> dict[bytes, int]:
        """The likeliest terms near a word, and their costs: see `near_terms`."""
        ranked: list[tuple[float, bytes, int]] = []
        for part in self.index.parts.values():
            postings = part.postings
            numbers, costs = near_terms(postings, word, edits)
            other = postings.term_bytes[postings.term_starts[numbers]] != word.encode()[0]
            worse = np.maximum(costs // _EDIT, 1) + _LEFT_OUT * (costs % _EDIT) + _FIRST * other
            worse -= _RARE * np.log(np.maximum(postings.counts(numbers), 1))
            for i in np.argsort(worse, kind="stable")[:_CHECKED].tolist():
                term = postings.term(int(numbers[i]))
                ranked.append((float(worse[i]), term, int(costs[i])))
        return {term: cost for _, term, cost in sorted(ranked) if self._count([term])}

    def _likely(self, term: bytes, beside: Sequence[bytes]) -> float:
        """How likely a term is, by how many documents have it, and have the others as well."""
        parts = self.index.parts.values()
        count, together = self._count([term]), 0.0
        for other in beside:
            by_chance = count * self._count([other]) / self.index.documents
            both = sum(part.count_both(term, other) for part in parts)
            together += max(0.0, math.log((both + 0.5) / (by_chance + 0.5)))
        return _RARE * math.log(count) + _BESIDE * min(together, _MOST_BESIDE)

    def _with_ending(self, costs: Mapping[bytes, int], word: str) -> dict[bytes, str]:
        """The terms that are the stem of a word with the ending of this one, and these words."""
        tries: list[tuple[bytes, str]] = []
        for term, cost in costs.items():
            if cost >= _EDIT:
                stem, end = term.decode(errors="replace"), len(word) - cost % _EDIT
                tries.append((term, stem + word[end:]))
                if end < len(word):  # the last letter of the term may be one of those left out
                    tries.append((term, stem[:-1] + word[end + 1 :]))
        return self._having(tries)

    def _having(self, tries: Sequence[tuple[bytes, str]]) -> dict[bytes, str]:
        """The terms that are those of the words beside them; of several words the first."""
        having: dict[bytes, str] = {}
        all_terms = self._terms([form for _, form in tries])
        for (term, form), terms in zip(tries, all_terms, strict=True):
            if term in terms:
                having.setdefault(term, form)
        return having

    def _words_with(self, terms: Sequence[bytes]) -> list[tuple[bytes, str, str]]:
        """Words of some documents with these terms: the term, the word in lower case, and folded.

        Not function words; and only words that have the first letters of one of the terms.
        """
        begins = "|".join({re.escape(term.decode(errors="replace")[:3]) for term in terms})
        within, beginning = re.compile(begins), re.compile(rf"\b(?:{begins})[a-z]*\b")
        words: set[str] = set()
        for text in map(str.lower, self._texts(terms) if terms else ()):
            words.update((beginning if text.isascii() else _WORD).findall(text))
        written = sorted(w for w in words - self._functions if within.search(_plain(w)))
        wanted = frozenset(terms)
        found = zip(written, self._folded(written), self._terms(written), strict=True)
        return [(term, word, folded) for word, folded, its in found for term in its & wanted]

    def _texts(self, terms: Sequence[bytes]) -> list[str]:
        """Titles and texts of some documents with the terms, normalized."""
        passages: dict[int, None] = {}
        for term in terms:
            rows = (
                row.base + number
                for row, part in self.index.parts.items()
                for number in part.rows_with(term, part.live)[:_READ].tolist()
            )
            passages |= dict.fromkeys(islice(rows, _READ))
        ids = sorted(set(self.store.documents_of(passages)))
        columns = f"substr(title, 1, {_TEXT}) || ' ' || substr(text, 1, {_TEXT})"
        marks = ", ".join("?" * len(ids))
        sql = f"SELECT {columns} FROM documents WHERE id IN ({marks})"
        return [normalized(text) for (text,) in self.store.scan(sql, ids)]

    # --------------------------------------------------------------------- words joined and split

    def _joined(self, word: str, before: str, after: str) -> dict[str, str]:
        """The word and the one beside it as one that documents have; empty if they have none."""
        for first, second in ((before, word), (word, after)):
            if first and second and self._count(self._terms([first + second])[0]):
                return {f"{first} {second}": first + second}
        return {}

    def _split(self, word: str) -> str | None:
        """The word as two that follow each other in a document; None: no document has such."""
        pairs = [(word[:i], word[i:]) for i in range(_PART, len(word) - _PART + 1)]
        terms = iter(self._terms([part for pair in pairs for part in pair]))
        counted = [(min(self._count(next(terms)) for _ in pair), " ".join(pair)) for pair in pairs]
        likely = sorted((pair for pair in counted if pair[0]), reverse=True)[:_SPLITS]
        return next((text for _, text in likely if self.store.count_with(text, 1)), None)


def near_terms(postings: Postings, word: str, edits: int) -> tuple[RowNumbers, RowNumbers]:
    """The terms of a segment at most 1 or 2 edits away from a word, with or without its ending.

    An edit inserts, drops or replaces a letter, or swaps two neighbours (optimal string alignment).
    With two edits, only terms with the same first letter are found.

    Returns:
        numbers (n,) int64 of terms, rising, and costs (n,) int64: the fewest edits times _EDIT,
        plus the fewest letters left out with so many: of the word, or the last one of the term
        ("happi" is the stem of "happy").
    """
    first, second, third = postings.heads
    a, b, c = map(ord, word[:3])
    possible = first == a
    if edits == 1:  # or the first one is replaced, one is before it, it is dropped, or swapped
        possible |= (second == b) & (third == c) | (second == a) & (third == b)
        possible |= (first == b) & ((second == c) | (second == a))
    numbers = np.flatnonzero(possible)
    left_out = range(1 + min(_ENDING, len(word) // 2 + 1, len(word) - 3))
    beginnings = [word[: len(word) - n] for n in left_out]

    def cost(terms: Sequence[str], edits: int) -> RowNumbers:
        apart = cdist(beginnings, terms, scorer=OSA.distance, score_cutoff=edits, dtype=np.int64)
        costs: RowNumbers = (_EDIT * apart + np.array(left_out)[:, None]).min(axis=0)
        return costs

    costs = cost(postings.texts[numbers].tolist(), edits + 1)
    few = costs < _EDIT * (edits + 2)  # the others are too far without their last letter, too
    numbers, costs = numbers[few], costs[few]
    shorter = [text[:-1] for text in postings.texts[numbers]]
    costs = np.minimum(costs, cost(shorter, edits) + 1)
    near = costs < _EDIT * (edits + 1)
    return numbers[near], costs[near]


def _variants(word: str, start: int) -> list[str]:
    """A word with one edit at its letters from `start`, or at the one before."""
    letters = sorted(set(word) | set("aeinorst"))
    variants: list[str] = []
    for i in range(max(start - 1, 1), len(word) + 1):
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
    """A word without accents."""
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))
