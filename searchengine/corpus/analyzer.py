"""How text becomes terms, on both sides: of documents, and of questions.

    Analyzer.parse("stem:de").cuts("Häuser in 東京都")  # haus · in · 東京 京都 都
    Analyzer.parse("stem:en").cuts("snake_case")       # snake case, and snakecas for the whole

A text is folded (Unicode's NFKC and case; digits of any script are digits, and soft hyphens and
zero-width characters are nothing). Its words become Snowball's stems, by the languages of the
collection (https://snowballstem.org), without the accents of Latin letters. A name such as
snake_case, kebab-case, a.b.c, camelCase, 3.11.4, sha256 or C++ is its parts and the whole, without
_ and - but between digits; self.file_name is also file_name. In scripts without spaces, and in
Korean, every two characters are a term; in Thai, Lao, Burmese and Khmer, every three.
"""

import re
import threading
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import NamedTuple

from searchengine.corpus.languages import (
    CHINESE_JAPANESE_KOREAN,
    OTHER_UNSPACED,
    identify_languages,
    prose,
)


class Tokenizer(StrEnum):
    """How text becomes words. It is chosen when the index is created."""

    UNICODE = "unicode"
    """Words, without case and accents."""
    STEM = "stem"
    """Words without their endings, by language."""
    NONE = "none"
    """No index of words."""


# First code points of scripts, Greek to Telugu; Latin, 0, is all before, and what none has.
_BLOCKS = (0x370, 0x400, 0x530, 0x590, 0x600, 0x700, 0xB80, 0xC00)
_BLOCK = {"el": 0x370, "ru": 0x400, "sr": 0x400, "hy": 0x530, "ar": 0x600, "fa": 0x600, "ta": 0xB80}
# Hindi is left out: its words as they are were found better than by others' stems.
ALGORITHMS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian",
    "fi": "finnish", "fr": "french", "ga": "irish", "hu": "hungarian", "hy": "armenian",
    "id": "indonesian", "it": "italian", "lt": "lithuanian", "nb": "norwegian", "nl": "dutch",
    "nn": "norwegian", "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish", "vi": "",
}  # fmt: skip
"""Language → Snowball's algorithm; "": none."""
_LATIN = ALGORITHMS.keys() - _BLOCK
_NAMES = {
    "bg": "Bulgarian", "bn": "Bengali", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian",
    "ja": "Japanese", "ka": "Georgian", "ko": "Korean", "sk": "Slovak", "sl": "Slovenian",
    "th": "Thai", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
_NAME = r"#?{0}+(?:(?:[-_.:@°]{{1,2}}|(?<=\d)/(?=\d)){0}+)*(?:\+\+|\#)?"
_ASCII_NAME = re.compile(_NAME.format("[a-zA-Z0-9]"))
_SPACED_NAME = re.compile(_NAME.format("[^\\W_]"))
_PART = re.compile("[^-_.:@°#+/]+")
_HUMP = re.compile("(?<=[a-zß-öø-ÿ])(?=[A-ZÀ-ÖØ-Þ])|(?<=[A-ZÀ-ÖØ-Þ])(?=[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ])")
_DIGITS = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_LONGEST = 64  # characters of a name that is a term as a whole
_KNOWN = 1 << 16  # words whose terms are remembered
_NOTHING = [0xAD, 0x640, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F)]


class Cut(NamedTuple):
    """The terms of a word, of a name, or of a run of letters of a script without spaces.

    Attributes:
        parts: in order.
        whole: of a name with several parts, the term of all of it; "" of others.
        size: of a run, the characters of a part, which begins at each of its characters; else 0.
        inner: the whole of each part between dots that has parts itself.
    """

    parts: tuple[str, ...]
    whole: str = ""
    size: int = 0
    inner: tuple[str, ...] = ()

    @property
    def asked(self) -> tuple[str, ...]:
        """The parts that a question asks for: of a run not the shorter ones at its end."""
        return self.parts[: max(1, len(self.parts) - self.size + 1)] if self.size else self.parts


@dataclass(frozen=True, slots=True)
class Analyzer:
    """A tokenizer; for STEM also the languages to stem, as codes of ISO 639.

    Of several languages in one script, that of the text counts, or the first if the text is in none
    of them or too short to tell. Without one, words stay as they are.
    Raises ValueError for languages beside another tokenizer.
    """

    tokenizer: Tokenizer
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.languages and self.tokenizer is not Tokenizer.STEM:
            raise ValueError(f"only the tokenizer stem takes languages, got {self}")

    @classmethod
    def parse(cls, text: "Analyzer | str") -> "Analyzer":
        """From "unicode", or "stem:de,ru". Raises ValueError for any other text."""
        if isinstance(text, Analyzer):
            return text
        name, _, languages = text.partition(":")
        return cls(Tokenizer(name), tuple(filter(None, languages.split(","))))

    @classmethod
    def chosen(cls, text: "Analyzer | str") -> "Analyzer":
        """As `parse`, by a user, who may name a language that is not known: ValueError as well."""
        analyzer = cls.parse(text)
        unknown = {*analyzer.languages} - {*ALGORITHMS, *_NAMES}
        if unknown and analyzer is not text:
            raise ValueError(f"no language has the code {', '.join(unknown)}")
        return analyzer

    def __str__(self) -> str:
        return ":".join(filter(None, [self.tokenizer, ",".join(self.languages)]))

    @property
    def label(self) -> str:
        """Equal for analyzers with equal terms, which change with the versions that it names."""
        if self.tokenizer is Tokenizer.NONE:
            return str(self)
        versions = f"terms {TERMS}, Unicode {unicodedata.unidata_version}"
        if any(ALGORITHMS.get(language) for language in self.languages):
            from Stemmer import version

            versions += f", Snowball {version()}"
        return f"{self} ({versions})"

    def cuts(self, text: str, order: tuple[str, ...] | None = None) -> list[Cut]:
        """The words and names of a text, in order, by one of the `orders`; None: the present one.

        Nothing is left of a lone accent.
        """
        return [*filter(any, map(cutter(order or self.languages), names(text)))]

    def order_of(self, text: str) -> tuple[str, ...]:
        """The order in which the languages make the terms of a text."""
        if len(self.orders) == 1:
            return self.languages
        return self._order(*identify_languages(["\n".join(prose(normalized(text)))]))

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """The orders of the languages by which the terms of texts may be made.

        First the present one, by which those of short texts are made. Only that one unless there
        are several languages in one script.
        """
        scripts = [_BLOCK.get(name, 0) for name in self.languages if name in ALGORITHMS]
        others = self.languages if len({*scripts}) < len(scripts) else ()
        return tuple(dict.fromkeys([self.languages, *map(self._order, others)]))

    def _order(self, first: str | None) -> tuple[str, ...]:
        """The languages, one of them first."""
        known = (first,) if first in self.languages else ()
        return tuple(dict.fromkeys((*known, *self.languages)))


def language_name(code: str) -> str:
    """The English name of a language, for messages, or else its code."""
    return _NAMES.get(code) or ALGORITHMS.get(code, "").title() or code


DEFAULT = Analyzer(Tokenizer.STEM, ("en",))  # where the documents do not tell another
TERMS = 5  # raised when the rules of this room change, and with them terms


def runs(text: str) -> list[str]:
    """The runs of letters, digits and marks of a text, normalized, in order."""
    return [part for name in names(text) for part in _PART.findall(name)]


def folded(text: str, languages: Sequence[str] = ()) -> str:
    """A text without case, normalized; with Turkish before other Latin ones, its dotless i."""
    if next((code for code in languages if code in _LATIN), "") == "tr":
        text = text.replace("I", "ı").replace("İ", "i")
    return text.lower() if text.isascii() else normalized(text).casefold()


def names(text: str) -> list[str]:
    """The words, the names and the runs of scripts without spaces of a text, in order."""
    if not text.isascii():
        text = normalized(text).translate(plain_signs())
    return name_in(text).findall(text)


def pieces(name: str) -> list[str]:
    """The parts of a name between its signs, capitals, and letters and digits: parse HTTP 2."""
    humps = [hump for part in _PART.findall(name) for hump in _HUMP.split(part)]
    cut = [(hump, _DIGITS.split(hump)) for hump in humps]
    return [run for hump, runs in cut for run in (runs if len(runs) < 4 else [hump])]  # a checksum


@cache
def cutter(languages: tuple[str, ...]) -> Callable[[str], Cut]:
    """What cuts one of the `names` of a text into terms, by the languages. Safe in threads."""
    stem = stems(languages)
    apart = re.compile(f"([{CHINESE_JAPANESE_KOREAN}])|[{OTHER_UNSPACED}]")

    def whole(name: str) -> str:
        joined = re.sub(r"(?<!\d)[-_]|[-_](?!\d)|^v(?=\d+\.)", "", folded(name, languages))
        return stem(joined) if joined.isalpha() else unaccented(joined, languages)

    @lru_cache(_KNOWN)
    def cut(name: str) -> Cut:
        if run := apart.match(name):
            size, text = 2 if run[1] else 3, folded(name)
            return Cut(tuple(text[i : i + size] for i in range(len(text))), "", size)
        words = pieces(name)
        parts = tuple(filter(None, (stem(folded(word, languages)) for word in words)))
        if words == [name] or len(name) > _LONGEST:
            return Cut(parts)
        named, between = whole(name), re.split("[.:@°#+/]+", name)
        inner = dict.fromkeys(
            whole(text) for text in between if pieces(text) not in ([], [text], words)
        )
        return Cut(parts, "" if parts == (named,) else named, 0, (*inner,))

    return cut


def unaccented(word: str, languages: Sequence[str]) -> str:
    if word.isascii() or "vi" in languages:  # whose accents tell words apart
        return word
    return word.translate(_accents())


@cache
def stems(languages: tuple[str, ...]) -> Callable[[str], str]:
    """The stem of a folded word, without accents on Latin letters. Safe to use from threads."""
    known = [code for code in reversed(languages) if code in ALGORITHMS]  # the first of a script
    algorithms = {_BLOCK.get(code, 0): ALGORITHMS[code] for code in known}
    local = threading.local()  # a stemmer serves one thread

    def stem(word: str) -> str:
        letter = 0 if word.isascii() else ord(word[0])
        script = max((first for first in _BLOCKS if first <= letter < 0xD00), default=0)
        if name := algorithms.get(script):
            stemmers = local.__dict__
            if name not in stemmers:
                from Stemmer import Stemmer

                stemmers[name] = Stemmer(name, 0)
            word = stemmers[name].stemWord(word)
        return unaccented(word, languages)

    return stem


def name_in(text: str) -> re.Pattern[str]:
    """The pattern of names that a text needs."""
    if text.isascii():
        return _ASCII_NAME
    words, rare = _patterns()
    return words if rare.search("".join(set(text))) else _SPACED_NAME


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Two patterns: names, and the letters and marks that need it.

    In texts without a match of the second _SPACED_NAME finds the same, four times as fast. Without
    marks a vowel sign would cut Hindi words.
    """
    apart = CHINESE_JAPANESE_KOREAN + OTHER_UNSPACED
    codes = map(chr, range(0x300, 0x20000))
    marks = "".join(c for c in codes if unicodedata.category(c) in ("Mn", "Mc", "Co"))
    letter, spaced = f"(?:[^\\W_]|[{marks}])", re.sub(f"[{apart}]", "", marks)
    words = re.compile(
        _NAME.format(f"(?:[^\\W_{apart}]|[{spaced}])")
        + f"|(?:(?={letter})[{CHINESE_JAPANESE_KOREAN}])+|(?:(?={letter})[{OTHER_UNSPACED}])+"
    )
    return words, re.compile(f"[{apart}{marks}]")


@cache
def plain_signs() -> dict[int, str | None]:
    """Digits of all scripts → those of ASCII; signs that are not shown → None."""
    digits = (code for code in range(0x660, 0x20000) if chr(code).isdecimal())
    plain = {code: str(unicodedata.decimal(chr(code))) for code in digits}
    return plain | dict.fromkeys(_NOTHING) | dict.fromkeys([0x2010, 0x2011, 0x2212], "-")


@cache
def _accents() -> dict[int, str | None]:
    """Accented Latin letters → the letters; accents that follow a letter → None."""
    table: dict[int, str | None] = dict.fromkeys(range(0x300, 0x370))
    table[ord("ı")] = "i"  # of Turkish, which English words in capitals get as well
    letters = map(chr, (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)))
    plain = {ord(letter): unicodedata.normalize("NFD", letter)[0] for letter in letters}
    return table | {code: letter for code, letter in plain.items() if letter.isascii()}


# ------------------------------------------------------------------------------------ normalization
#
# Texts that look the same to a reader as equal texts: Unicode's NFKC, and where its words end.
#
#     normalized("the eﬃciency of 5㎡ of Python™")     # "the efficiency of 5 m2 of Python TM"
#
# PDF readers and many corpora keep ligatures, full-width letters, superscripts and circled digits
# as the characters that they are. Words, phrases and the texts for an encoder are `normalized`
# first, in documents and in questions. The text that is stored and shown does not change.

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
_MARKS = (
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u065f\u06d6-\u06ed\u093c-\u0dff\u1161-\u11ff"
    "\u1b34\u1b35\u1dc0-\u1dff\u20d0-\u20f0\u3099\u309a\uff9e\uff9f\uffc2-\uffdc]"
)
_CLUSTER = re.compile(f"[^\0-\x7f]{_MARKS}*|[\0-\x7f]{_MARKS}+")


def normalized(text: str) -> str:
    """A text in NFKC without soft hyphens; words do not join signs and fractions beside them."""
    text = text.replace("\xad", "")  # it is shown only where a line ends at it
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
    for cluster in _CLUSTER.finditer(text):
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
