"""The words that synonyms add to a question.

    added("heart attack symptoms", settings, analyzer)        # {"myocardial": Added(1.0, …), …}

Words are compared as the tokenizer of the collection cuts them: a group with "car" holds for "cars"
too.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from searchengine.backends.folder.documents.questions import Word, phrases
from searchengine.backends.folder.documents.terms import terms_of
from searchengine.corpus.analyzer import Analyzer, Tokenizer, runs
from searchengine.corpus.synonym_groups import SETTING

MAX_ADDED = 64
"""Maximum words that are added to a question."""

_Terms = tuple[str, ...]


class Added(NamedTuple):
    """A word that is added to a question: how often it counts, and the words it stands for."""

    share: float
    of: tuple[str, ...]


def added(question: str, settings: Mapping[str, Any], used: Analyzer) -> dict[str, Added]:
    """The words of synonyms of a question, and how often each counts, as `counted_words`.

    A synonym of n words counts for m words of the question: each of its words by m / n, at most 1,
    before the square root of `lexical.ranked`. Words in quotation marks have no synonyms.
    """
    text = settings.get(SETTING)
    return _synonyms(text, used).added(question) if text else {}


def with_added(question: str, settings: Mapping[str, Any]) -> str:
    """A question with the words of its synonyms at the end, to mark them in texts."""
    if not settings.get(SETTING):
        return question
    words = added(question, settings, Analyzer.parse(settings["tokenizer"]))
    return " ".join([question, *words])


def known(settings: Mapping[str, Any], used: Analyzer) -> frozenset[str]:
    """The words of all groups, in lower case: typing errors are not looked for in them."""
    text = settings.get(SETTING)
    return _synonyms(text, used).words if text else frozenset()


@dataclass(frozen=True, slots=True)
class _Synonym:
    """A synonym as its terms, and as words to search for."""

    terms: _Terms
    words: tuple[str, ...]


_InGroup = tuple[_Synonym, list[_Synonym]]


@dataclass(frozen=True, slots=True)
class _Synonyms:
    """The groups of a collection.

    Attributes:
        used: how text becomes terms.
        groups: terms of a synonym → the synonym, with each of its groups.
        terms: word of a synonym → its terms.
        longest: most terms of a synonym.
        words: all words, in lower case.
    """

    used: Analyzer
    groups: Mapping[_Terms, list[_InGroup]]
    terms: Mapping[str, _Terms]
    longest: int
    words: frozenset[str]

    def added(self, question: str) -> dict[str, Added]:
        """See `added`."""
        quoted = [_terms(phrase.text, self.used) for phrase in phrases(question)]
        terms, counts = _terms(question, self.used), dict[str, Added]()
        start, present, spelling = 0, set(terms), dict[_Terms, str]()
        while start < len(terms) and len(counts) < MAX_ADDED:
            rest = terms[start : start + self.longest]
            size = next((n for n in range(len(rest), 0, -1) if rest[:n] in self.groups), 0)
            if size and not any(_contains(phrase, rest[:size]) for phrase in quoted):
                for one, group in self.groups[rest[:size]]:
                    if len(counts) >= MAX_ADDED:
                        break
                    for other in (each for each in group if each is not one):
                        share = min(1.0, size / len(other.terms))
                        for word in other.words:
                            if not present.issuperset(cut := self.terms[word]):
                                word = spelling.setdefault(cut, word)
                                before = counts.get(word, Added(0.0, ()))
                                of = dict.fromkeys((*before.of, *one.words))
                                counts[word] = Added(max(before.share, share), tuple(of))
            start += max(1, size)
        return dict(islice(counts.items(), MAX_ADDED))


def _contains(terms: _Terms, part: _Terms) -> bool:
    return any(terms[i : i + len(part)] == part for i in range(len(terms) - len(part) + 1))


@lru_cache(maxsize=32)
def _synonyms(text: str, used: Analyzer) -> _Synonyms:
    """The groups of a setting, ready to be looked up."""
    words, groups = dict.fromkeys(runs(text)), defaultdict[_Terms, list[_InGroup]](list)
    if used.tokenizer not in (Tokenizer.STEM, Tokenizer.TRIGRAM):
        terms_of(used).look_up([Word(word) for word in words])  # together: each alone is slow
    for line in text.splitlines():
        group = []
        for synonym in line.split(", "):
            if terms := _terms(synonym, used):
                group.append(_Synonym(terms, tuple(dict.fromkeys(runs(synonym)))))
        for one in group:
            groups[one.terms].append((one, group))
    return _Synonyms(
        used,
        dict(groups),
        {word: _terms(word, used) for word in words},
        max(map(len, groups), default=0),
        frozenset(map(str.casefold, words)),
    )


def _terms(text: str, used: Analyzer) -> _Terms:
    """The terms of a text, in order; with the tokenizer trigram its words."""
    if used.tokenizer is Tokenizer.STEM:
        pieces = used.pieces(text)
        parts = (p.parts(ended=False) if p.part else [used.word(p.text)] for p in pieces)
        return tuple(term for part in parts for term in part if term)
    if used.tokenizer is Tokenizer.TRIGRAM:
        return tuple(word.casefold() for word in runs(text))
    cut = terms_of(used).look_up([Word(word) for word in runs(text)])
    return tuple(term.decode() for terms in cut for term in terms)
