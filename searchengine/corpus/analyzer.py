"""How text becomes terms, for a text index.

    Analyzer.parse("stem:de").terms("Häuser in 東京都")      # ["haus", "in", "東京", "京都", "都"]

SQLite's FTS5 has tokenizers of its own. STEM is ours: Snowball's stems, by the languages of the
collection (https://snowballstem.org), and the parts of words in scripts where words are not
separated: two characters of Chinese, Japanese and Korean, three of Thai, Lao, Burmese and Khmer.
"""

import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from searchengine.corpus.language_traits import (
    CHINESE_JAPANESE_KOREAN,
    DETECTION,
    OTHER_UNSPACED,
    language_of,
)
from searchengine.corpus.normalization import VERSION, normalized


class Tokenizer(StrEnum):
    """How text becomes words. It is chosen when the index is created."""

    PORTER = "porter"
    """Words without their English endings."""
    UNICODE = "unicode"
    """Words, without case and accents."""
    TRIGRAM = "trigram"
    """Every three letters: parts of words, as in names of code."""
    STEM = "stem"
    """Words without their endings, by language; parts of words in languages without spaces."""
    NONE = "none"
    """No index of words."""


# First code points of scripts; Latin is all before, and what none has. Hindi is left out below: its
# words as they are were found better than by others' stems.
_LATIN, _GREEK, _CYRILLIC, _ARMENIAN, _ARABIC = 0, 0x370, 0x400, 0x530, 0x600
_SCRIPTS = (_GREEK, _CYRILLIC, _ARMENIAN, 0x590, _ARABIC, 0x700, 0xB80, 0xC00)
ALGORITHMS = {
    "ar": ("arabic", _ARABIC), "ca": ("catalan", _LATIN), "cs": ("czech", _LATIN),
    "da": ("danish", _LATIN), "de": ("german", _LATIN), "el": ("greek", _GREEK),
    "en": ("english", _LATIN), "es": ("spanish", _LATIN), "et": ("estonian", _LATIN),
    "eu": ("basque", _LATIN), "fa": ("persian", _ARABIC), "fi": ("finnish", _LATIN),
    "fr": ("french", _LATIN), "ga": ("irish", _LATIN), "hu": ("hungarian", _LATIN),
    "hy": ("armenian", _ARMENIAN), "id": ("indonesian", _LATIN), "it": ("italian", _LATIN),
    "lt": ("lithuanian", _LATIN), "nb": ("norwegian", _LATIN), "nl": ("dutch", _LATIN),
    "nn": ("norwegian", _LATIN), "no": ("norwegian", _LATIN), "pl": ("polish", _LATIN),
    "pt": ("portuguese", _LATIN), "ro": ("romanian", _LATIN), "ru": ("russian", _CYRILLIC),
    "sr": ("serbian", _CYRILLIC), "sv": ("swedish", _LATIN), "ta": ("tamil", 0xB80),
    "tr": ("turkish", _LATIN), "vi": ("", _LATIN),
}  # fmt: skip
"""Language → Snowball's algorithm ("": none), and where its script begins."""
_ACCENTED = ("vi",)  # languages whose accents tell words apart
_WORD = re.compile(r"[^\W_]+")
_PARTS = (0, 0, 2, 3)  # characters of a part, by the group of the pattern
_KNOWN = 1 << 16  # words whose stem is remembered


class Piece(NamedTuple):
    """A run of letters, digits and marks.

    Attributes:
        text: the run, folded.
        part: how many characters are a term; 0 for a word.
    """

    text: str
    part: int

    def parts(self, *, ended: bool) -> list[str]:
        """Its terms, if it is not a word: one begins at each character.

        Those at the end are shorter. They are left out unless the run is known to have `ended`.
        """
        last = len(self.text) if ended else max(1, len(self.text) - self.part + 1)
        return [self.text[i : i + self.part] for i in range(last)]


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
        for language in self.languages:
            if not re.fullmatch("[a-z]{2,3}", language):
                raise ValueError(
                    f"languages must be codes of ISO 639, such as stem:de,ru, got {language!r}"
                )

    @classmethod
    def parse(cls, text: "Analyzer | str") -> "Analyzer":
        """From "porter", or "stem:de,ru". Raises ValueError for any other text."""
        if isinstance(text, Analyzer):
            return text
        name, _, languages = text.partition(":")
        return cls(Tokenizer(name), tuple(filter(None, languages.split(","))))

    def __str__(self) -> str:
        return ":".join(filter(None, [self.tokenizer, ",".join(self.languages)]))

    @property
    def label(self) -> str:
        """Equal for analyzers with equal terms, which change with the versions that it names."""
        if self.tokenizer is Tokenizer.NONE:
            return str(self)
        versions = f"Unicode {unicodedata.unidata_version}, normalization {VERSION}"
        if any(ALGORITHMS.get(language, ("",))[0] for language in self.languages):
            from Stemmer import version

            versions += f", Snowball {version()}"
        if self._is_mixed:
            versions += f", by text {DETECTION}"
        return f"{self} ({versions})"

    def text(self, text: str) -> str:
        """The text for FTS5 to index: with STEM the terms, else the text, normalized."""
        return " ".join(self.terms(text)) if self.tokenizer is Tokenizer.STEM else normalized(text)

    def terms(self, text: str) -> list[str]:
        """The terms of a text, in order. Only with STEM."""
        text = normalized(text)
        return self.terms_by(self._order(language_of(text) if self._is_mixed else None), text)

    def terms_by(self, order: Sequence[str], text: str) -> list[str]:
        """As `terms`, by one of the `orders`."""
        stem = _stems(tuple(order))
        terms: list[str] = []
        for piece in self.pieces(text):
            terms += piece.parts(ended=True) if piece.part else [stem(piece.text)]
        return [term for term in terms if term]  # nothing is left of a lone accent

    def orders(self, question: str) -> list[tuple[str, ...]]:
        """The orders of the languages by which the terms of a question may be found.

        First the present one, by which the terms of short texts are made. Only that one unless
        there are several languages in one script.
        """
        if not self._is_mixed:
            return [self.languages]
        told = language_of(normalized(question))
        languages = [told] if told in self.languages else self.languages
        return list(dict.fromkeys([self.languages, *map(self._order, languages)]))

    def _order(self, first: str | None) -> tuple[str, ...]:
        """The languages, one of them first."""
        if first is None or first not in self.languages:
            return self.languages
        return (first, *(language for language in self.languages if language != first))

    @property
    def _is_mixed(self) -> bool:
        """Whether there are several languages in one script."""
        scripts = [ALGORITHMS[name][1] for name in self.languages if name in ALGORITHMS]
        return len(set(scripts)) < len(scripts)

    def folded(self, text: str) -> str:
        """A text in lower case, normalized."""
        text = normalized(text)
        if "tr" in self.languages:
            text = text.replace("I", "ı").replace("İ", "i")
        return text.lower()

    def pieces(self, text: str) -> list[Piece]:
        """The runs of a text, folded."""
        text = self.folded(text)
        if text.isascii():
            return [Piece(word, 0) for word in _WORD.findall(text)]
        words, rare = _patterns()
        if not rare.search(text):
            return [Piece(word, 0) for word in _WORD.findall(text)]
        return [Piece(match[0], _PARTS[match.lastindex or 1]) for match in words.finditer(text)]

    def word(
        self, word: str, order: Sequence[str] | None = None, *, unfinished: bool = False
    ) -> str:
        """The term of a folded word, by one of the `orders`; of an unfinished one, its start."""
        if unfinished:
            return _unaccented(word, self.languages)
        return _stems(self.languages if order is None else tuple(order))(word)


def is_letter(character: str) -> bool:
    """Whether a character belongs to words: letters, digits, marks, and those for private use."""
    category = unicodedata.category(character)
    return category[0] in "LNM" or category == "Co"


def runs(text: str) -> list[str]:
    """The runs of letters, digits and marks of a text, normalized, in order."""
    if text.isascii():  # the same, ten times as fast
        return _WORD.findall(text)
    return "".join(c if is_letter(c) else " " for c in normalized(text)).split()


def _unaccented(word: str, languages: Sequence[str]) -> str:
    if word.isascii() or not set(languages).isdisjoint(_ACCENTED):
        return word
    return word.translate(_accents())


@cache
def _stems(languages: tuple[str, ...]) -> Callable[[str], str]:
    """The stem of a folded word, without accents on Latin letters. Safe to use from threads."""
    algorithms: dict[int, str] = {}
    for language in languages:
        name, script = ALGORITHMS.get(language, ("", -1))
        algorithms.setdefault(script, name)
    local = threading.local()  # a stemmer serves one thread
    known: dict[str, str] = {}

    def stem(word: str) -> str:
        result = known.get(word)
        if result is None:
            if len(known) >= _KNOWN:
                known.clear()
            result = known[word] = _unaccented(stemmed(word), languages)
        return result

    def stemmed(word: str) -> str:
        letter = ord(word[0])
        script = max((first for first in _SCRIPTS if first <= letter < 0xD00), default=_LATIN)
        name = algorithms.get(script)
        if not name:
            return word
        stemmers = local.__dict__
        if name not in stemmers:
            from Stemmer import Stemmer

            stemmers[name] = Stemmer(name, 0)
        stem: str = stemmers[name].stemWord(word)
        return stem

    return stem


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Two patterns: runs of letters, digits and marks; and the letters and marks that need it.

    Groups of the first: words, pairs of characters, threes. In texts without a match of the second
    _WORD finds the same, four times as fast. Without marks a vowel sign would cut Hindi words.
    """
    apart = CHINESE_JAPANESE_KOREAN + OTHER_UNSPACED
    marks = _ranges(lambda letter: unicodedata.category(letter) in ("Mn", "Mc", "Co"))
    letter = f"(?:[^\\W_]|[{marks}])"
    words = re.compile(
        f"((?:(?![{apart}]){letter})+)"
        f"|((?:(?={letter})[{CHINESE_JAPANESE_KOREAN}])+)"
        f"|((?:(?={letter})[{OTHER_UNSPACED}])+)"
    )
    return words, re.compile(f"[{apart}{marks}]")


def _ranges(belongs: Callable[[str], bool]) -> str:
    """Characters of the first two planes, for a class of `re`."""
    ranges: list[list[int]] = []
    for code in filter(lambda code: belongs(chr(code)), range(0x300, 0x20000)):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@cache
def _accents() -> dict[int, str | None]:
    """Accented Latin letters → the letters; accents that follow a letter → None."""
    table: dict[int, str | None] = dict.fromkeys(range(0x300, 0x370))
    table[ord("ı")] = "i"  # of Turkish, which English words in capitals get as well
    for code in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)):
        decomposed = unicodedata.normalize("NFD", chr(code))
        if len(decomposed) > 1 and decomposed[0].isascii():
            table[code] = decomposed[0]
    return table
