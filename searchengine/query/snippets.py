"""What of a text to show for a question."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from searchengine.corpus.sentences import UNSPACED, sentence_ends

Span = tuple[int, int]
_HAN = "".join(f"{chr(low)}-{chr(high)}" for low, high in UNSPACED)
_TERM = re.compile(f"(?P<letters>[{_HAN}가-힣]+)|[^\\W{_HAN}가-힣]+")
_ENDING = re.compile(r"(?<=\w{3})(?:ies|ing|ed|es|ly|s|y|e)\Z")
_WITHIN = re.compile(f"[^\\W{_HAN}]{{2}}")  # two letters of one word


def snippet(text: str, question: str, start: int, end: int, width: int = 200) -> str:
    """The part of text[start:end], about `width` characters, that has most words of the question.

    From the beginning of a sentence if that leaves room for the words, else from word to word; "…"
    stands for what is left out, white space becomes one space. Without any of the words it is the
    beginning. Words count the more the longer they are, and the less often they come.
    """
    passage = " ".join(text[start:end].split())
    if len(passage) <= width:
        return passage
    begin, end = _densest(_places(passage, question), width)
    # As far on as a sentence can begin for the words to be in, and no emptiness behind the text.
    most = min(begin, len(passage) - width)
    begins = [0, *(stop for stop in sentence_ends(passage) if end - width <= stop <= most)]
    start = begins[-1]
    if end - start > width:
        start = min((begin + end - width) // 2, len(passage) - width)
        while start < begin and (_WITHIN.match(passage, start - 1) or not passage[start].isalnum()):
            start += 1
    stop = _word_end(passage, max(end, start + (width + 1) // 2), min(start + width, len(passage)))
    shown = passage[start:stop].strip()
    return f"{'…' if start else ''}{shown}{'…' if stop < len(passage) else ''}"


def _word_end(text: str, low: int, high: int) -> int:
    """The last offset in [low, high] that is not within a word, or else `high`."""
    for end in range(high, low - 1, -1):
        if not _WITHIN.match(text, end - 1):
            return end
    return high


def best_passage(text: str, question: str, spans: Sequence[Span]) -> Span:
    """That of the passages of a text which has most words of the question; the first of equals."""
    places = _places(text, question)
    begins = [place.start for place in places]

    def worth(span: Span) -> tuple[int, int]:
        inside = places[bisect_left(begins, span[0]) : bisect_left(begins, span[1])]
        return sum({place.term: place.weight for place in inside}.values()), len(inside)

    return max(spans, key=worth)


class _Place(NamedTuple):
    """A word of the question in a text: offsets, and what it counts."""

    start: int
    end: int
    term: str
    weight: int


def _places(text: str, question: str) -> list[_Place]:
    """Where words of the question stand in a text, in order.

    Of what is written without spaces, every two letters are a word. Korean is treated like that,
    too: its words end in particles.
    """
    wanted: set[str] = set()
    for match in _TERM.finditer(question):
        word = match.group()
        if match.lastgroup is None:
            wanted.add(_stem(word.casefold()))
        else:
            wanted.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
    found = list(_found(text, wanted)) if wanted else []
    often = Counter(term for _, _, term in found)
    return [_Place(start, end, term, 1000 * len(term) // often[term]) for start, end, term in found]


def _found(text: str, wanted: set[str]) -> Iterator[tuple[int, int, str]]:
    """Where a text has which of the terms."""
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
    """From the first to the last of those places within `width` that count most together."""
    best, most = (0, 0), 0
    inside: Counter[str] = Counter()
    first = worth = 0
    places = [place for place in places if place.end - place.start <= width]
    for place in places:
        if not inside[place.term]:
            worth += place.weight
        inside[place.term] += 1
        while place.end - places[first].start > width:
            gone = places[first]
            inside[gone.term] -= 1
            if not inside[gone.term]:
                worth -= gone.weight
            first += 1
        if worth > most:
            best, most = (places[first].start, place.end), worth
    return best
