"""The words that synonyms add to a question.

    added("heart attack symptoms", settings)            # {"myocardial": 1.0, …}

Words are compared as the tokenizer of the collection cuts them: a group with "car" holds for "cars"
too.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from searchengine.backends.quotes import phrases
from searchengine.corpus.analyzer import Analyzer, runs
from searchengine.corpus.synonym_groups import SETTING

MAX_ADDED = 64
"""Maximum words that are added to a question."""

_Terms = tuple[str, ...]
_Groups = Mapping[_Terms, list[tuple[str, list[str]]]]
"""Terms of a synonym → the synonym, with each of its groups."""


def added(question: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """The words of synonyms of a question, and how often each counts.

    A synonym of n words counts for m words of the question: each of its words by m / n, at most 1,
    before the square root of `lexical.ranked`. Words in quotation marks have no synonyms.
    """
    if not (text := settings.get(SETTING)):
        return {}
    used = Analyzer.parse(settings["tokenizer"])
    groups, quoted = _groups(text, used), [_terms(p.text, used) for p in phrases(question)]
    terms, counts = _terms(question, used), dict[str, float]()
    start, longest, spelling = 0, max(map(len, groups), default=0), dict[_Terms, str]()
    while start < len(terms):
        rest = terms[start : start + longest]
        size = next((n for n in range(len(rest), 0, -1) if rest[:n] in groups), 0)
        found = f" {' '.join(rest[:size])} "
        if size and not any(found in f" {' '.join(phrase)} " for phrase in quoted):
            for one, group in groups[rest[:size]]:
                others = {o: min(1.0, size / len(_terms(o, used))) for o in group if o != one}
                for word, share in ((w, n) for o, n in others.items() for w in runs(o)):
                    if not set(terms).issuperset(own := _terms(word, used)):
                        word = spelling.setdefault(own, word)
                        counts[word] = max(counts.get(word, 0.0), share)
        start += max(1, size)
    return dict(islice(counts.items(), MAX_ADDED))


def with_added(question: str, settings: Mapping[str, Any]) -> str:
    """A question with the words of its synonyms at the end, to mark them in texts."""
    return " ".join([question, *added(question, settings)])


def known(settings: Mapping[str, Any]) -> frozenset[str]:
    """The words of all groups, in lower case: typing errors are not looked for in them."""
    return frozenset(map(str.casefold, runs(settings.get(SETTING) or "")))


@lru_cache(maxsize=32)
def _groups(text: str, used: Analyzer) -> _Groups:
    """The groups of a setting, ready to be looked up."""
    groups = defaultdict[_Terms, list[tuple[str, list[str]]]](list)
    for line in text.splitlines():
        group = [synonym for synonym in line.split(", ") if _terms(synonym, used)]
        for one in group:
            groups[_terms(one, used)].append((one, group))
    return dict(groups)


@lru_cache(maxsize=4096)
def _terms(text: str, used: Analyzer) -> _Terms:
    """The terms of a text, in order."""
    return tuple(term for cut in used.cuts(text) for term in cut.asked)
