"""The phrases in quotation marks of a question."""

import re
import unicodedata
from typing import NamedTuple

from searchengine.corpus.analyzer import runs
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN
from searchengine.corpus.normalization import normalized

PHRASES = 16
"""Maximum phrases of a question; of further ones only the words count."""

_STRAIGHT, _OPENING, _CLOSING = '"', "“„", "”“"
_ALL_MARKS = frozenset(_STRAIGHT + _OPENING + _CLOSING)
_MARKS = str.maketrans(dict.fromkeys(_ALL_MARKS, " "))


class Phrase(NamedTuple):
    """A text between quotation marks; `required`: with a plus sign before it."""

    text: str
    required: bool = False


def phrases(question: str) -> tuple[Phrase, ...]:
    """The distinct texts between pairs of quotation marks that have words, at most PHRASES.

    A straight mark opens a phrase where no word ends, and closes one where none begins: those of
    7" and 12" are inches. A mark without a second one has no meaning.
    """
    question = normalized(question)
    if _ALL_MARKS.isdisjoint(question):
        return ()
    required: dict[str, bool] = {}
    opened = None
    for place, mark in enumerate(question):
        if opened is not None and _closes(question, place, mark):
            text = " ".join(question[opened + 1 : place].split())
            if runs(text):
                plus = _at(question, opened - 1) == "+" and _at(question, opened - 2).isspace()
                required[text] = required.get(text, False) or plus
            opened = None
        elif opened is None and _opens(question, place, mark):
            opened = place
    return tuple(Phrase(*pair) for pair in required.items())[:PHRASES]


def joins_words(phrase: str) -> bool:
    """Whether a phrase is more than a word; in scripts without spaces, than three letters."""
    return len(runs(phrase)) > 1 or bool(re.search(f"[{UNSPACED_OR_KOREAN}]{{4}}", phrase))


def _opens(question: str, place: int, mark: str) -> bool:
    return mark in _OPENING or (mark == _STRAIGHT and not _joins(_at(question, place - 1)))


def _closes(question: str, place: int, mark: str) -> bool:
    return mark in _CLOSING or (mark == _STRAIGHT and not _joins(_at(question, place + 1)))


def _at(text: str, place: int) -> str:
    """A character, or a space before the first one and after the last one."""
    return text[place] if 0 <= place < len(text) else " "


def _joins(character: str) -> bool:
    """Whether a word ends at a mark next to it; in scripts without spaces none does."""
    letter = unicodedata.category(character)[0] in "LNM"
    return letter and not re.match(f"[{UNSPACED_OR_KOREAN}]", character)


def unquoted(question: str) -> str:
    """The question, normalized, with spaces in place of the marks around phrases."""
    return normalized(question).replace('+"', '"').translate(_MARKS).strip()
