"""Languages of texts: by their script where it suffices, else by py3langid or function words.

    traits(["고래는 잔다.", "Wale schlafen mit einer Hälfte des Gehirns."])
    # [Traits(language="ko", parts=True), Traits(language="de", …)]
    language_of("Wale schlafen mit einer Hälfte des Gehirns.")  # "de"

py3langid (https://github.com/adbar/py3langid) takes 0.4 s to load, so texts in a script of one
language are not shown to it, and a question does not wait for it: the text of a hit is judged by
its function words.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from searchengine.corpus.function_words import CHECKSUM, languages_by_word
from searchengine.errors import CorpusError

CHINESE_JAPANESE_KOREAN = (  # Hangul letters, kana, Chinese, Hangul, Chinese again
    "\u1100-\u11ff\u3005-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
OTHER_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
UNSPACED_LANGUAGES = frozenset({"ja", "km", "ko", "lo", "my", "th", "wuu", "yue", "zh"})
"""Languages of these, by their code."""
UNSPACED_OR_KOREAN = CHINESE_JAPANESE_KOREAN + OTHER_UNSPACED
"""Letters, for a class of `re`, of scripts without spaces, and of Korean, which attaches particles
to words: in these, words are found by their parts."""

EXCERPT, _PIECES = 1000, 5
"""Characters of a text that are looked at, and the pieces from all over it that have them."""

# Patterns, compiled when they are needed: that takes milliseconds, and this is imported early.
# The first script that has a fifth of these letters names the language: Japanese has kana among
# Chinese characters, and Chinese has no others.
_SCRIPTS = {
    "ko": "[\u1100-\u11ff\uac00-\ud7af]",
    "ja": "[\u3041-\u30ff]",
    "th": "[\u0e00-\u0e7f]",
    "lo": "[\u0e80-\u0eff]",
    "my": "[\u1000-\u109f]",
    "km": "[\u1780-\u17ff]",
    "zh": "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]",
}
_SHARE = 0.2  # of a text's letters: texts in these languages quote names in Latin letters
_PUNCTUATION = r"[][{}();=<>_]"
# Share of code's punctuation: of 3,007 Python functions 92 % have more, of 5,000 abstracts and
# sentences 0.1 %, of manual pages 2–10 %.
_CODE = 0.06
_MARKUP = re.compile(r"(?ms)^(```|~~~)[^\n]*\n.*?^\1|</?\w[^<>]*>|\]\([^()]*\)")
_ENOUGH = 60  # letters to tell a language by: shorter texts are joined
_MIN_LETTERS = 40  # letters, below which no language is named
_SURE = 0.8  # probability of a language that is named
# Function words that name a language: how many, their share of all words, and times as many as of
# any other language. Of 4,092 paragraphs in eleven languages one is named otherwise than by
# py3langid, and 1 % are not named; of their first 100 characters 0.2 % and 8.5 %.
_FUNCTION_WORDS, _FUNCTION_SHARE, _LEAD = 2, 0.05, 1.2
_LETTERS = re.compile(r"[^\W\d_]+")
DETECTION = f"2-{CHECKSUM}"
"""Version of `language_of`, on which the terms of an index of words depend: a change of its rules
raises the number."""

NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "be": "Belarusian", "bg": "Bulgarian", "bn": "Bengali",
    "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish",
    "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati", "he": "Hebrew",
    "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh",
    "km": "Khmer", "kn": "Kannada", "ko": "Korean", "lo": "Lao", "lt": "Lithuanian",
    "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi",
    "ms": "Malay", "my": "Burmese", "ne": "Nepali", "nl": "Dutch", "nn": "Norwegian",
    "no": "Norwegian", "pa": "Punjabi", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog",
    "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese",
    "wuu": "Chinese", "yue": "Chinese", "zh": "Chinese",
}  # fmt: skip
"""Language → its English name, for messages; others are named by their code."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Language and script of a text.

    Attributes:
        language: its code, as ISO 639 has it; None where it is not clear, and for code.
        parts: it has letters of UNSPACED_OR_KOREAN.
    """

    language: str | None = None
    parts: bool = False


def traits(texts: Sequence[str]) -> list[Traits]:
    """Language and script of each text, such as a piece of `prose`.

    Short texts are judged together with the next ones, so titles in one language are recognised.
    """
    result = [*map(_by_script, texts)]
    unclear = [position for position, found in enumerate(result) if found == Traits()]
    pending: list[int] = []  # positions of texts that py3langid is shown together
    for position in unclear:
        pending.append(position)
        joined = "".join(f"{texts[i]}\n" for i in pending)
        enough = _MIN_LETTERS if position == unclear[-1] else _ENOUGH
        if _letters(joined) >= enough:
            language, probability = _identifier().classify(joined)
            if probability >= _SURE and language != "zxx":  # zxx: no language
                for i in pending:
                    result[i] = Traits(language)
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


@lru_cache(8)
def language_of(text: str) -> str | None:
    """The language of a text, by its `prose`; None where it is not clear.

    By script, else by the function words of function_words.py, in some 70 µs. The last ones are
    remembered: the snippet of a hit needs it of the same text three times.
    """
    excerpt = "\n".join(prose(text))
    if language := _by_script(excerpt).language:
        return language
    languages, counts = languages_by_word(), defaultdict[str, float](float)
    words = _LETTERS.findall(excerpt.lower())
    for word in words:
        named = languages.get(word, ())
        for language in named:
            counts[language] += 1 / len(named)  # a word of several counts in part
    ranked = sorted(((count, language) for language, count in counts.items()), reverse=True)
    (most, first), (second, _) = [*ranked, (0, ""), (0, "")][:2]
    clear = most >= max(_FUNCTION_WORDS, _FUNCTION_SHARE * len(words)) and most > _LEAD * second
    return first if clear else None


def _by_script(text: str) -> Traits:
    """Language and script as far as the characters tell."""
    parts = len(re.findall(f"[{UNSPACED_OR_KOREAN}]", text))
    if parts and parts >= _SHARE * _letters(text):
        scripts = ((name, len(re.findall(script, text))) for name, script in _SCRIPTS.items())
        language = next((name for name, count in scripts if count >= _SHARE * parts), None)
        return Traits(language, parts=True)
    return Traits()


def language_probabilities(text: str) -> dict[str, float]:
    """How likely a text is in each of the languages that py3langid knows."""
    return dict(_identifier().rank(text))


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
