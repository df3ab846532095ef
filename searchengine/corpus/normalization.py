"""Texts that look the same to a reader as equal texts: Unicode's NFKC, and where its words end.

    normalized("the eﬃciency of 5㎡ of Python™")     # "the efficiency of 5 m2 of Python TM"

PDF readers and many corpora keep ligatures, full-width letters, superscripts and circled digits as
the characters that they are. Words, phrases and the texts for an encoder are read through
`normalized`, of documents and of questions; what is stored and shown stays as it was given.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable

VERSION = 1
"""Of the rules here, on which the terms of an index of words depend."""

SIGNS = (
    "\u20a8\u2100\u2101\u2103\u2105\u2106\u2109\u2116\u2120-\u2122\u213b\u249c-\u24e9\u3200-\u3247"
    "\u3250-\u33ff\ufdfc\U0001f110-\U0001f251"
)
"""Signs that stand for letters, such as ™ and ㎏, for a class of `re`: a word ends at them."""
FRACTIONS = "\xbc-\xbe\u2150-\u215f\u2189"
ACCENTS = (
    "\xa8\xaf\xb4\xb8\u02d8-\u02dd\u037a\u0384\u0385\u1fbd-\u1fc1\u1fcd-\u1fcf\u1fdd-\u1fdf\u1fed"
    "\u1fee\u1ffd\u1ffe\u2017\u203e\u309b\u309c\uffe3"
)
"""Accents without a letter, often in place of an apostrophe: they are spaces, but NFKC makes of
them a space and an accent of what follows."""
_APART = re.compile(f"[{ACCENTS}]|(?<=\\S)(?=[{SIGNS}{FRACTIONS}])|(?<=[{SIGNS}])(?=\\S)")
# The marks and letters that NFKC may join with the character before: all with an accent's class,
# vowels and ends of Hangul syllables, vowel signs of Indian scripts, and Japanese voiced marks.
_CLUSTER = re.compile(
    ".[\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u065f\u06d6-\u06ed\u093c-\u0dff\u1161-\u11ff"
    "\u1b34\u1b35\u1dc0-\u1dff\u20d0-\u20f0\u3099\u309a\uff9e\uff9f\uffc2-\uffdc]*",
    re.DOTALL,
)
_SOFT_HYPHEN = "\xad"  # shown only where a line ends at it
_OTHER = re.compile("[\0-\x7f]?[^\0-\x7f]+")


def normalized(text: str) -> str:
    """A text in NFKC without soft hyphens; words do not join signs and fractions beside them."""
    text = text.replace(_SOFT_HYPHEN, "")
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return text
    return unicodedata.normalize("NFKC", _APART.sub(" ", text))


def aligned(text: str) -> tuple[str, Callable[[int, int], tuple[int, int]]]:
    """A text `normalized`, and what finds a part [start, end) of that in the text itself.

    Signs have spaces around them, whatever is beside them.
    """
    if text == normalized(text):
        return text, lambda start, end: (start, end)
    parts: list[str] = []
    # Where pieces begin, in the new text and in the given one; every second piece was changed.
    new, given = [0], [0]
    for match in _OTHER.finditer(text):
        if match[0] == normalized(match[0]):
            continue
        for cluster in _CLUSTER.finditer(text, *match.span()):
            replaced = normalized(f"0{cluster[0]}0")[1:-1]
            if replaced != cluster[0]:
                parts += [text[given[-1] : cluster.start()], replaced]
                new += [new[-1] + len(parts[-2])]
                new += [new[-1] + len(replaced)]
                given += cluster.span()
    parts.append(text[given[-1] :])

    def place(start: int, end: int) -> tuple[int, int]:
        first, last = bisect_right(new, start) - 1, max(0, bisect_left(new, end) - 1)
        if not first % 2:
            begin = given[first] + start - new[first]
        else:  # what begins within a piece, and goes on behind it, begins behind it
            begin = given[first + (start > new[first] and last > first)]
        stop = given[last + 1] if last % 2 else given[last] + end - new[last]
        return begin, max(begin, stop)

    return "".join(parts), place
