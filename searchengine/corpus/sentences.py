"""Ends of sentences, by a few rules: the marks of each script, and common abbreviations.

Only for choosing good places to cut: a missed end makes a passage a little longer, a wrong one cuts
a sentence in two.
"""

import re

UNSPACED = ((0x3041, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Code points, first to last, of scripts without spaces: kana and Chinese characters."""

_CLOSING = "\"'”’»)\\]」』】》〉）"
_THAI = "\u0e01-\u0e4e\u0e81-\u0ece"  # letters and marks of Thai and Lao
_END = re.compile(
    # 。 ends a sentence everywhere, with repeated marks and closing quotes; so do the marks of
    # Arabic, Hindi, Ethiopic, Burmese, Khmer and Armenian, and, but before digits, of Urdu.
    f"[。！？｡؟।॥።፧။។៕։܀]++[{_CLOSING}]*+"
    f"|[۔．](?!\\d)[{_CLOSING}]*+"
    # A period needs a space after it, or 3.14 and example.org would be two sentences each. The
    # quotes of some languages close by a mark that opens those of others, or after a space.
    f"|(?<![.!?…])(?P<stop>[.!?…]++)[{_CLOSING}“‘«]*+(?:[ \u00a0\u202f]»(?=\\s|\\Z))?+(?=\\s|\\Z)"
    # The question mark of Greek.
    "|(?<=[\u0370-\u03ff\u1f00-\u1fff])[;\u037e](?=\\s|\\Z)"
    # Thai and Lao have no mark but the space between clauses.
    f"|(?<=[{_THAI}])(?= ++[{_THAI}])"
    # Before blank lines, a heading, or another item of a list.
    r"|\n(?:[ \t]*+\r?\n)++"
    r"|\n(?=[ \t]*+(?:#++ |[-*+•·▪] |\d{1,3}[.)] ))"
)
_NEXT = re.compile(r"\s*(\S?)")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘„«/]*\Z")
_ITEM = re.compile(r"(?:\A|\n)[ \t]*\d{1,3}\Z")
_INITIALS = re.compile(r"(?:.*[.-])?([^\W\d_])")  # J. Smith, U.S., e.g., Ph.D., А. С., J.-C.
_BACK = 16  # characters before a period that are looked at: more than any abbreviation has
# Those at which no sentence ends as a rule, and that are no word of another language.
_ABBREVIATIONS = frozenset(
    "al approx assoc ave blvd capt cf dept dr gen gov jr lt messrs mr mrs ms mt mts prof rep rev "
    "sen sgt sr st univ viz vs bspw bzw evtl ggf hrsg insb mio mrd vgl zzgl boul mgr mlle mme tél "
    "av avda dra sra srta dott sig sigg bijv dhr mevr np ul bkz örn bl.a dvs t.ex акад им млн млрд "
    "проф руб тыс ул د डॉ".split()
)
_SHORT = 4  # letters, at most, of one that a number follows: Fig. 3, No. 5, Abb. 2, рис. 1


def sentence_ends(text: str) -> list[int]:
    """Offsets, rising, where a sentence, a paragraph or an item of a list has just ended.

    Closing quotes and brackets belong to the sentence; the space after it does not.
    """
    ends = []
    for match in _END.finditer(text):
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
    initial = _INITIALS.fullmatch(word)
    return not (
        following.islower()
        or word in _ABBREVIATIONS
        or (following.isdecimal() and word.isalpha() and len(word) <= _SHORT)
        or (initial and initial[1] != initial[1].upper())  # letters without case are words
        or _ITEM.search(before)
    )
