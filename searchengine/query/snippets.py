"""The part of a text to show for a question."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from searchengine.corpus.sentences import UNSPACED, sentence_ends

Span = tuple[int, int]
WIDTH = 200
"""Characters of a snippet."""
_HAN = "".join(f"{chr(low)}-{chr(high)}" for low, high in UNSPACED)
_TERM = re.compile(f"(?P<letters>[{_HAN}가-힣]+)|[^\\W{_HAN}가-힣]+")
_ENDING = re.compile(r"(?<=\w{3})(?:ies|ing|ed|es|ly|s|y|e)\Z")
_WITHIN = re.compile(f"[^\\W{_HAN}]{{2}}")  # two letters of one word


def snippet(text: str, question: str, start: int, end: int, width: int = WIDTH) -> str:
    """The part of text[start:end], about `width` characters, with most words of the question.

    It begins at a sentence if that leaves room for the words, else at a word. "…" marks omitted
    text; white space becomes one space. If none of the words occurs, it is the beginning. Long and
    rare words count more.
    """
    passage = " ".join(text[start:end].split())
    if len(passage) <= width:
        return passage
    begin, end = _densest(_places(passage, question), width)
    # The last sentence start that keeps the words inside and fills the width.
    latest = min(begin, len(passage) - width)
    begins = [0, *(stop for stop in sentence_ends(passage) if end - width <= stop <= latest)]
    start = begins[-1]
    if end - start > width:
        start = min((begin + end - width) // 2, len(passage) - width)
        while start < begin and (_WITHIN.match(passage, start - 1) or not passage[start].isalnum()):
            start += 1
    stop = _word_end(passage, max(end, start + (width + 1) // 2), min(start + width, len(passage)))
    shown = passage[start:stop].strip()
    return f"{'…' if start else ''}{shown}{'…' if stop < len(passage) else ''}"


def best_section(text: str, question: str, start: int, end: int, bounds: Sequence[int]) -> int:
    """The offset of a section of the text: of those that `snippet` shows, the one with most words.

    `bounds`: the offsets where sections begin, rising. Without words, where the passage begins.
    """
    passage = text[start:end]
    shown = _densest(_places(passage, question), WIDTH)
    inside = [bound - start for bound in bounds if shown[0] < bound - start < shown[1]]
    edges = [shown[0], *inside, shown[1]]
    spans = list(pairwise(edges))
    return start + best_passage(passage, question, spans)[0]


def _word_end(text: str, low: int, high: int) -> int:
    """The last offset in [low, high] that is not within a word, or else `high`."""
    for end in range(high, low - 1, -1):
        if not _WITHIN.match(text, end - 1):
            return end
    return high


def best_passage(text: str, question: str, spans: Sequence[Span]) -> Span:
    """The passage of a text with most words of the question; the first of equals."""
    places = _places(text, question)
    begins = [place.start for place in places]

    def worth(span: Span) -> tuple[int, int]:
        inside = places[bisect_left(begins, span[0]) : bisect_left(begins, span[1])]
        return sum({place.term: place.weight for place in inside}.values()), len(inside)

    return max(spans, key=worth)


class _Place(NamedTuple):
    """A word of the question in a text: its offsets and its weight."""

    start: int
    end: int
    term: str
    weight: int


def _places(text: str, question: str) -> list[_Place]:
    """The places of words of the question in a text, in order.

    In scripts without spaces every two letters are a word. Korean is treated like them, because its
    words end in particles.
    """
    wanted: set[str] = set()
    for match in _TERM.finditer(question):
        word = match.group()
        if match.lastgroup is None:
            wanted.add(_stem(word.casefold()))
        else:
            wanted.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
    matches = list(_matches(text, wanted)) if wanted else []
    counts = Counter(term for _, _, term in matches)
    return [
        _Place(start, end, term, 1000 * len(term) // counts[term]) for start, end, term in matches
    ]


def _matches(text: str, wanted: set[str]) -> Iterator[tuple[int, int, str]]:
    """Start, end and term of every occurrence of the terms in a text."""
    begins = {term[:3] for term in wanted} | {term[0] for term in wanted}  # most words fail here
    for match in _TERM.finditer(text):
        word = match.group()
        if match.lastgroup is None:
            folded = word.casefold()
            if folded[:3] in begins and (stem := _stem(folded)) in wanted:
                yield *match.span(), stem
            continue
        for i, letter in enumerate(word, match.start()):
            if letter in begins:
                if letter in wanted:
                    yield i, i + 1, letter
                if (pair := text[i : i + 2]) in wanted:
                    yield i, i + 2, pair


def _stem(word: str) -> str:
    """An English word without its ending, roughly; at least three letters of it."""
    return _ENDING.sub("", word)


def _densest(places: Sequence[_Place], width: int) -> Span:
    """The span of the places within `width` that have the largest total weight."""
    best, best_worth = (0, 0), 0
    inside: Counter[str] = Counter()
    first = worth = 0
    places = [place for place in places if place.end - place.start <= width]
    for place in places:
        if not inside[place.term]:
            worth += place.weight
        inside[place.term] += 1
        while place.end - places[first].start > width:
            dropped = places[first]
            inside[dropped.term] -= 1
            if not inside[dropped.term]:
                worth -= dropped.weight
            first += 1
        if worth > best_worth:
            best, best_worth = (places[first].start, place.end), worth
    return best
