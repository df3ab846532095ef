"""The part of a text to show for a question, and the words of the question in it.

Words are those of the analyzer, so that what is found is marked: by their stems, names as a
whole, and in scripts without spaces every two or three letters.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from textwrap import dedent
from typing import NamedTuple

import numpy as np

from searchengine.backends.lexical import function_words, joined_words
from searchengine.corpus.analyzer import (
    DEFAULT,
    Analyzer,
    aligned,
    cutter,
    folded,
    name_in,
    names,
    plain_signs,
    unaccented,
)
from searchengine.corpus.languages import sentence_ends

Span = tuple[int, int]
Place = Callable[[int, int], Span]
WIDTH = 200
"""Characters of a snippet."""
LONG = 20_000
"""Characters of a passage, at most, that is looked at word by word."""
_HIRAGANA = re.compile("[\u3041-\u309f]")  # a part that begins so is an ending or a particle
_BEFORE = 16  # characters before a sentence's start, which tell abbreviations
_JUDGED, _LONGEST = 4000, 160  # characters of a passage, and of a line, that tell code
_CODE = re.compile(
    r"""
      [;{}\\]\s*$ | ^\s*[])}@$]                        # ends and beginnings of statements
    | \w\( | [-+=!<>&|:]= | \s=\s | ^\s*\w+\s*= | [-=]> | && | \|\|  # calls, assignments, operators
    | ^\s*["']?[\w.-]+["']?:\s*["'\[{\d]         # mappings
    """,
    re.VERBOSE,
)


class Match(NamedTuple):
    """A word of the question in a text: its offsets, its term and the weight of that."""

    start: int
    end: int
    term: str
    weight: int


def snippet(
    text: str,
    question: str,
    start: int,
    end: int,
    width: int = WIDTH,
    analyzer: Analyzer = DEFAULT,
) -> str:
    """The part of text[start:end], about `width` characters, with most words of the question.

    It begins at a sentence if that leaves room for the words, else at a word. "…" marks omitted
    text; white space becomes one space. If none of the words occurs, it is the beginning. Long and
    rare words count more. What looks like code keeps its lines and their indentation, and begins
    at a line.
    """
    low, high = _around_words(text, question, start, end, analyzer)
    before, after = low > start, high < end  # whether text is left out there
    code = _is_code(text[low:high])
    passage = _lines(text, low, high) if code else " ".join(text[low:high].split())
    if len(passage) <= width:
        return passage
    first, last = _densest(_matches(passage, question, analyzer), width)
    near = max(0, last - width - _BEFORE)
    ends = (near + stop for stop in sentence_ends(passage[near : first + 3]))
    if code:
        ends = (line.end() for line in re.finditer("\n", passage))
    begins = [at for at in (0, *ends) if last - width <= at <= first]
    words, place = _placed_names(passage)
    spans = [place(start, end) for start, end, _ in words]
    if begins:
        begin = next((at for at in begins if at + width >= len(passage)), begins[-1])
    else:
        middle = (first + last - width) // 2
        begin = next((at for at, _ in spans if middle <= at <= first), first)
    low, stop = max(last, begin + (width + 1) // 2), min(begin + width, len(passage))
    if code and stop < len(passage) and (line := passage.rfind("\n", low, stop + 1)) >= 0:
        stop = line
    stop = next((at for at, to in spans if low <= at < stop < to), stop)
    while low < stop < len(passage) and unicodedata.category(passage[stop]).startswith("M"):
        stop -= 1  # a mark stays with its letter
    part = dedent(passage[begin:stop]).rstrip() if code else passage[begin:stop].strip()
    before, after = before or begin > 0, after or stop < len(passage)
    return f"{'…' if before else ''}{part}{'…' if after else ''}"


def matched_words(text: str, question: str, analyzer: Analyzer = DEFAULT) -> list[str]:
    """The words of a text that a question asks for, each once, in lower case.

    They are written as in the text. In Korean, and in scripts without spaces, they are the parts of
    words: two letters or three.
    """
    matches = _matches(text, question, analyzer)
    return sorted({text[match.start : match.end].lower() for match in matches if match.weight})


def word_counts(text: str, question: str, spans: Sequence[Span], analyzer: Analyzer) -> list[float]:
    """The weight of the words of the question in each part of a text, by the letters of stems.

    A word weighs its length, shared by the parts that have it.
    """
    languages = analyzer.languages
    beginnings, lengths = _asked(question, languages).beginnings
    parts = (unaccented(folded(text[start:end], languages), languages) for start, end in spans)
    listed = [[*map(part.count, beginnings)] for part in parts]
    counts = np.array(listed, np.float64)
    weights: list[float] = (counts @ (lengths / np.maximum(1, counts.sum(0)))).tolist()
    return weights


def _around_words(text: str, question: str, start: int, end: int, analyzer: Analyzer) -> Span:
    """The part of a long passage with most words of the question; of another one, all."""
    if end - start <= LONG:
        return start, end
    spans = [(at, min(at + LONG, end)) for at in range(start, end, LONG // 2)]
    weights = word_counts(text, question, spans, analyzer)
    low, high = spans[weights.index(max(weights))]
    space = text.find(" ", low, low + WIDTH) if low > start else -1
    return max(low, space), high


def _is_code(passage: str) -> bool:
    """True if half of at least three lines look like code; a quarter, if half are indented."""
    lines = [line for line in passage[:_JUDGED].splitlines() if line.strip()]
    likely = sum(len(line) <= _LONGEST and bool(_CODE.search(line)) for line in lines)
    indented = 2 * sum(line.startswith(("  ", "\t")) for line in lines) >= len(lines)
    return len(lines) >= 3 and (4 if indented else 2) * likely >= len(lines)


def _lines(text: str, start: int, end: int) -> str:
    """The lines of text[start:end] without empty ones and without their common indentation."""
    line = text.rfind("\n", 0, start) + 1
    begin = start if text[line:start].strip() else line  # with the indentation of the first
    lines = text[begin:end].expandtabs(4).splitlines()
    return dedent("\n".join(line.rstrip() for line in lines if line.strip()))


class _Asked:
    """The terms of a question: `telling`, without function words, and `wanted`, all.

    `parts`: the term of a name → those of its parts, which count where the name does not occur.
    `beginnings`: the letters that words with the telling ones have in common, and their lengths.
    """

    def __init__(self, question: str, languages: tuple[str, ...]) -> None:
        self.telling, self.parts, self.cut = set[str](), dict[str, set[str]](), cutter(languages)
        functions, common = function_words(languages), set[str]()
        for name in (*names(question), *joined_words(question, functions)):
            cut = self.cut(name)
            if cut.whole:
                self.parts[cut.whole] = {*cut.parts, *cut.inner} - functions
            for term in (cut.whole,) if cut.whole else cut.asked:
                is_common = name.casefold() in functions or _HIRAGANA.match(term)
                (common if is_common else self.telling).add(term)
        self.wanted = (self.telling | common).union(*self.parts.values())

        terms = sorted(self.telling.union(*self.parts.values()))
        cut_short = [t[:-1] if len(t) > 3 and t[-1] == "i" else t for t in terms]  # "studi": study
        self.beginnings = cut_short, np.array([*map(len, terms)], np.float64)

    def found(self, words: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        """Where a text has terms that are wanted: offsets of a name or a part of a run, term."""
        found = list[tuple[int, int, str]]()
        for start, end, name in words:
            cut, wanted = self.cut(name), self.wanted
            if cut.size:
                for term in wanted:
                    places = (m.start() for m in re.finditer(f"(?={re.escape(term)})", name))
                    found += [(start + at, start + at + len(term), term) for at in places]
            else:
                terms = (cut.whole,) if cut.whole in wanted else (*cut.parts, *cut.inner)
                found += [(start, end, term) for term in terms if term in wanted]
        return sorted(found)


@lru_cache(8)  # those of a hit are needed several times
def _placed_names(text: str) -> tuple[Sequence[tuple[int, int, str]], Place]:
    """The `names` of a text with their offsets as it is read, and what finds these in the text."""
    plain, place = aligned(text)
    shown = plain if plain.isascii() else plain.translate(plain_signs())
    found = [(*match.span(), match[0]) for match in name_in(shown).finditer(shown)]
    if len(shown) == len(plain):
        return found, place
    kept = [i for i, letter in enumerate(plain) if letter.translate(plain_signs())]
    return found, lambda start, end: place(kept[start], kept[end - 1] + 1)


_asked = lru_cache(64)(_Asked)  # the hits of a question need the same


def _matches(text: str, question: str, analyzer: Analyzer) -> list[Match]:
    """The words of the question in a text, in order.

    Of several languages in one script, that counts by which most are found. Function words have no
    weight, unless the text has no others.
    """
    words, place = _placed_names(text)
    every = [_asked(question, order) for order in analyzer.orders]
    asked, found = max(((a, a.found(words)) for a in every), key=lambda pair: len(pair[1]))
    counts = Counter(term for _, _, term in found)
    parts = (parts for name, parts in asked.parts.items() if name not in counts)
    telling = asked.telling.union(*parts)
    silent = frozenset() if telling.isdisjoint(counts) else counts.keys() - telling
    return [
        Match(*place(start, end), term, 0 if term in silent else 1000 * len(term) // counts[term])
        for start, end, term in found
    ]


def _densest(matches: Sequence[Match], width: int) -> Span:
    """Where the different words are that weigh most together within `width`; or (0, 0)."""
    telling = [match for match in matches if match.weight and match.end - match.start <= width]
    best, most = (0, 0), 0
    for i, first in enumerate(telling):
        inside: dict[str, Match] = {}
        for match in telling[i : i + width]:
            if match.end - first.start > width:
                break
            inside.setdefault(match.term, match)
        weight = sum(match.weight for match in inside.values())
        if weight > most:
            best, most = (first.start, max(match.end for match in inside.values())), weight
    return best
