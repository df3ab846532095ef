"""Languages of texts, by script where it suffices, else by py3langid; their sentences.

    text = "Wale schlafen mit einer Hälfte des Gehirns."
    identify_languages(["고래는 잔다.", text])  # ["ko", "de"]

py3langid (https://github.com/adbar/py3langid) takes 0.4 s to load, so texts in a script of one
language are not shown to it, and a question does not wait for it.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from searchengine.errors import CorpusError

CHINESE_JAPANESE_KOREAN = (  # Hangul letters, kana, Chinese, Hangul, Chinese again
    "\u1100-\u11ff\u3005-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
OTHER_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
UNSPACED_OR_KOREAN = CHINESE_JAPANESE_KOREAN + OTHER_UNSPACED
"""Letters, for a class of `re`, of scripts without spaces, and of Korean, which attaches particles
to words: in these, words are found by their parts."""

EXCERPT, _PIECES = 1000, 5
"""Characters of a text that are looked at, and the pieces from all over it that have them."""

# Patterns, compiled when they are needed: that takes milliseconds, and this is imported early.
# The first script that has a fifth of these letters names the language: Japanese has kana among
# Chinese characters, and Chinese has no others.
SCRIPTS = {
    "ko": "[\u1100-\u11ff\uac00-\ud7af]",
    "ja": "[\u3041-\u30ff]",
    "th": "[\u0e00-\u0e7f]",
    "lo": "[\u0e80-\u0eff]",
    "my": "[\u1000-\u109f]",
    "km": "[\u1780-\u17ff]",
    "zh": "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]",
}
"""Languages in letters of UNSPACED_OR_KOREAN → these, as a pattern."""
_SHARE = 0.2  # of a text's letters: texts in these languages quote names in Latin letters
_PUNCTUATION = r"[][{}();=<>_]"
# Share of code's punctuation: of 3,007 Python functions 92 % have more, of 5,000 abstracts and
# sentences 0.1 %, of manual pages 2–10 %.
_CODE = 0.06
_MARKUP = re.compile(r"(?ms)^(```|~~~)[^\n]*\n.*?^\1|</?\w[^<>]*>|\]\([^()]*\)")
_ENOUGH = 60  # letters to tell a language by: shorter texts are joined
_MIN_LETTERS = 40  # letters, below which no language is named
_SURE = 0.8  # probability of a language that is named


def identify_languages(texts: Sequence[str]) -> list[str | None]:
    """The language of each text, such as a piece of `prose`; None where it is not clear, and of
    code.

    Short texts are judged together with the next ones, so titles in one language are recognised.
    """
    result = [*map(_by_script, texts)]
    unclear = [position for position, found in enumerate(result) if found is None]
    pending: list[int] = []  # positions of texts that py3langid is shown together
    for position in unclear:
        pending.append(position)
        joined = "".join(f"{texts[i]}\n" for i in pending)
        if _letters(joined) >= (_MIN_LETTERS if position == unclear[-1] else _ENOUGH):
            language, probability = _identifier().classify(joined)
            if probability >= _SURE and language != "zxx":  # zxx: no language
                for i in pending:
                    result[i] = language
            pending = []
    return result


def prose(text: str) -> list[str]:
    """Pieces from all over a text, EXCERPT characters, without code, commands and markup."""
    text = "\n".join(_pieces(text, 20 * EXCERPT))  # a long one is not read whole
    lines = filter(_is_prose, _MARKUP.sub("", text).splitlines())
    return [piece.strip() for piece in _pieces("\n".join(lines).strip(), EXCERPT)]


def _pieces(text: str, length: int) -> list[str]:
    """A text; or pieces from all over it, `length` characters in all."""
    if len(text) <= length:
        return [text]
    size = length // _PIECES
    starts = (i * (len(text) - size) // (_PIECES - 1) for i in range(_PIECES))
    return [text[start : start + size] for start in starts]


def _is_prose(line: str) -> bool:
    signs = len(re.findall(_PUNCTUATION, line))
    return not line.startswith(("    ", "\t", "$ ")) and signs <= _CODE * len("".join(line.split()))


def _by_script(text: str) -> str | None:
    """The language, if the characters tell."""
    parts = len(re.findall(f"[{UNSPACED_OR_KOREAN}]", text))
    if parts and parts >= _SHARE * _letters(text):
        scripts = ((name, len(re.findall(script, text))) for name, script in SCRIPTS.items())
        return next((name for name, count in scripts if count >= _SHARE * parts), None)
    return None


def _letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    try:  # it is unpacked into a temporary file of 65 MB
        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    except OSError as error:
        raise CorpusError(
            f"the language of the documents cannot be identified: {error.strerror or error}; make "
            "room for 65 MB of temporary files, or set TMPDIR to a folder that has it"
        ) from error


# ------------------------------------------------------------------------------- ends of sentences
#
# Only for choosing good places to cut: a missed end makes a passage a little longer, a wrong one
# cuts a sentence in two.

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
_BEFORE_WORD = re.compile(r"[\s(\[\"'“‘„«/]")
_INITIALS = re.compile(r"(?:.*[.-])?([^\W\d_])")  # J. Smith, U.S., e.g., Ph.D., А. С., J.-C.
_BESIDE = 16  # characters on each side of a period that are looked at
_SHORT = 3  # letters of an abbreviation, digits of an item of a list: Dr. Smith, рис. 1, 12. Whales


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
    following = text[match.end() : match.end() + _BESIDE].lstrip()[:1]
    if match["stop"] != ".":
        return not following.islower()
    word = _BEFORE_WORD.split(text[max(0, match.start() - _BESIDE) : match.start()])[-1]
    initial = _INITIALS.fullmatch(word.casefold())
    is_short = following and word.isalnum() and len(word) <= _SHORT
    return not (
        following.islower()
        or (is_short and (word.istitle() or word.isdecimal() or following.isdecimal()))
        or (initial and initial[1] != initial[1].upper())  # letters without case are words
    )
