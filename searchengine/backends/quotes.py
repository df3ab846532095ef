"""The phrases in quotation marks of a question."""

import re
from functools import lru_cache
from typing import NamedTuple

from searchengine.corpus.analyzer import runs
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN
from searchengine.corpus.normalization import normalized

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
