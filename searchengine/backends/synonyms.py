"""The phrases in quotation marks of a question, and the words that synonyms add to it.

    phrases('+"heart attack" risk')                     # (Phrase("heart attack", True),)
    added("heart attack symptoms", settings)            # {"myocardial": 1.0, …}

Words are compared as the tokenizer of the collection cuts them: a group with "car" holds for "cars"
too. The setting of a collection has one group of synonyms a line, separated by commas.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from searchengine.corpus.analyzer import Analyzer, normalized, runs
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN
from searchengine.errors import QueryError

MAX_ADDED = 64
"""Maximum words that are added to a question."""

_Terms = tuple[str, ...]
_Groups = Mapping[_Terms, list[tuple[str, list[str]]]]
"""Terms of a synonym → the synonym, with each of its groups."""


def added(question: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """The words of synonyms of a question, and how often each counts.

    A synonym of n words counts for m words of the question: each of its words by m / n, at most 1,
    before the square root of `lexical.search`. Words in quotation marks have no synonyms.
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


PHRASES = 16
"""Maximum phrases of a question; of further ones only the words count."""

_MARKS = str.maketrans(dict.fromkeys('"“„”', " "))
# A letter or a mark of one, next to which a word ends or begins; in scripts without spaces none.
_LETTER = f"(?:[^\\W_{UNSPACED_OR_KOREAN}]|[\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0dff])"
_PHRASE = re.compile(
    rf'((?<!\S)\+)?(?:[“„]|(?<!{_LETTER})")(.*?)([”“]|"(?!{_LETTER})|\Z)', re.DOTALL
)


class Phrase(NamedTuple):
    """A text between quotation marks; `required`: with a plus sign before it."""

    text: str
    required: bool = False


@lru_cache(256)
def phrases(question: str) -> tuple[Phrase, ...]:
    """The distinct texts between pairs of quotation marks that have words, at most PHRASES.

    A straight mark opens a phrase where no word ends, and closes one where none begins: those of
    7" and 12" are inches. A mark without a second one has no meaning.
    """
    required: dict[str, bool] = {}
    for plus, between, end in _PHRASE.findall(normalized(question)):
        text = " ".join(between.split())
        if end and runs(text):
            required[text] = required.get(text, False) or bool(plus)
    return tuple(Phrase(*pair) for pair in required.items())[:PHRASES]


def unquoted(question: str) -> str:
    """The question, normalized, with spaces in place of the marks around phrases."""
    return normalized(question).replace('+"', '"').translate(_MARKS).strip()


SETTING = "synonyms"
"""The setting of a collection, a text as `stored` writes it."""
_FORBIDDEN = re.compile("[\ud800-\udfff]|,|=>")


def stored(groups: Iterable[Iterable[str]]) -> str:
    """Groups as the setting of a collection. Raises QueryError."""
    listed = _listed(groups, "synonyms must be a list of groups")
    return "\n".join(", ".join(_checked(group)) for group in listed)


def _listed(values: Any, rule: str) -> Iterable[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise QueryError(f"{rule}, got {values!r:.80}")
    return values


def _checked(group: Iterable[str]) -> tuple[str, ...]:
    synonyms: dict[str, str] = {}
    for synonym in _listed(group, "a group of synonyms must be a list of texts"):
        text = " ".join(synonym.split()) if isinstance(synonym, str) else ""
        if not runs(text) or _FORBIDDEN.search(text):  # all of a group stand for each other: no =>
            raise QueryError(
                "a synonym must be text of one word or more in UTF-8, without commas and =>, got "
                f"{synonym!r:.80}"
            )
        synonyms.setdefault(text.casefold(), text)
    if len(synonyms) < 2:
        listed = ", ".join(synonyms.values())
        raise QueryError(f"a group must have at least 2 different synonyms, got {listed!r:.80}")
    return tuple(synonyms.values())
