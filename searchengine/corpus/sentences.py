"""Ends of sentences, by a few rules for English, Korean, Chinese and Japanese.

Only for choosing good places to cut: a missed end makes a passage a little longer, a wrong one cuts
a sentence in two. Nothing is looked up but a short list of abbreviations.
"""

import re

UNSPACED = ((0x3041, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Code points, first to last, of scripts without spaces: kana and Chinese characters."""

_CLOSING = "\"'”’»)\\]」』】》〉）"
_END = re.compile(
    # 。 ends a sentence everywhere, with repeated marks and closing quotes.
    f"[。！？｡]++[{_CLOSING}]*+"
    # A period needs a space after it, or 3.14 and example.org would be two sentences each.
    f"|(?<![.!?…])(?P<stop>[.!?…]++)[{_CLOSING}]*+(?=\\s|\\Z)"
    # Before blank lines, a heading, or another item of a list.
    r"|\n(?:[ \t]*+\r?\n)++"
    r"|\n(?=[ \t]*+(?:#++ |[-*+•·▪] |\d{1,3}[.)] ))"
)
_NEXT = re.compile(r"\s*(\S?)")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]*\Z")
_ITEM = re.compile(r"(?:\A|\n)[ \t]*\d{1,3}\Z")
_INITIALS = re.compile(r"(?:.*\.)?[A-Za-z]")  # J. Smith, U.S., e.g., Ph.D.
_BACK = 16  # characters before a period that are looked at: more than any abbreviation has
_ABBREVIATIONS = frozenset(
    "al approx capt cf dr gen gov jr lt messrs mr mrs ms prof rep rev sen sgt sr st viz vs".split()
)
_BEFORE_NUMBERS = frozenset(
    "art ch eq eqs fig figs no nos nr p pp ref refs sec tab vol "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)


def sentence_ends(text: str, first: int = 0, last: int | None = None) -> list[int]:
    """Offsets, rising, where a sentence, a paragraph or an item of a list has just ended.

    Closing quotes and brackets belong to the sentence; the space after it does not. All from
    `first` to `last` are among them; there may be some more.
    """
    ends = []
    for match in _END.finditer(text, max(0, first - _BACK)):
        if last is not None and match.start() > last:
            break
        if match["stop"] is None or _is_end(text, match):
            ends.append(match.start() if match.group().startswith("\n") else match.end())
    return ends


def _is_end(text: str, match: re.Match[str]) -> bool:
    """Whether . ! ? or … with a space behind it ends a sentence."""
    after = _NEXT.match(text, match.end())
    following = after.group(1) if after else ""
    if match["stop"] != ".":
        return not following.islower()
    before = text[max(0, match.start() - _BACK) : match.start()]
    match_before = _LAST_WORD.search(before)
    word = match_before.group().casefold() if match_before else ""
    return not (
        following.islower()
        or word in _ABBREVIATIONS
        or (word in _BEFORE_NUMBERS and following.isdecimal())
        or _INITIALS.fullmatch(word)
        or _ITEM.search(before)
    )
