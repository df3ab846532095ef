"""The encoding of a text in Latin letters, by the letters and the language that it then has.

    latin_encoding("Não se esqueça".encode("cp1252"))     # "cp1252", not "cp1250"

The encodings differ in accented letters only, which are rare in most languages, and each gives a
readable text. So a text must have the letters of a language that is written in the encoding, and
the rest of the text must be in that language. Without evidence for another it is Windows-1252.
"""

import math
import re

from searchengine.corpus.language_traits import language_probabilities

_WESTERN = {
    "ca": "àçèéíïòóúü", "da": "åæéøó", "de": "äöüß", "en": "éèêëïñöçâà", "es": "áéíñóúü",
    "et": "äõöüšž", "fi": "äåöšž", "fr": "àâæçèéêëîïôœùûüÿ", "ga": "áéíóú", "gl": "áéíñóúü",
    "is": "áæéíðóöúýþ", "it": "àèéìíîòóùú", "nl": "áèéêëïóöü", "pt": "àáâãçéêíóôõúü",
    "sq": "çë", "sv": "àäåéöü", **dict.fromkeys(("nb", "nn", "no"), "åæèéêòóôø"),
}  # fmt: skip
_CENTRAL = {
    "bs": "ćčđšž", "cs": "áčďéěíňóřšťúůýž", "hr": "ćčđšž", "hu": "áéíóöőúüű",
    "pl": "ąćęłńóśźż", "ro": "ăâîşţ", "sk": "áäčďéíĺľňóôŕšťúýž", "sl": "čšž", "sr": "ćčđšž",
}  # fmt: skip
_BALTIC = {"et": "äõöüšž", "lt": "ąčęėįšųūž", "lv": "āčēģīķļņšūž"}
_LANGUAGES = {
    "cp1252": _WESTERN,
    "cp1250": _CENTRAL,
    "iso8859_2": _CENTRAL,
    "cp1254": {"tr": "âçğıîöşûü", "az": "çğıöşü"},
    "cp1257": _BALTIC,
    "iso8859_15": _WESTERN,
}
"""Encoding → language → its letters beyond ASCII; the likelier encodings first."""
_SIGNS = r"·'’‘´`.,:;…\-–—/\\()\[\]\"“”„«»!?&+=@#%*_|~<>{}^$"
# Signs that no text has there, such as those of "Za¿ó³æ", "caf‚", "QuŽbec", "c½ur" and "10 ¤".
_ODD = re.compile(
    rf"(?<=[^\W\d_])([^\w\s{_SIGNS}](?=[^\W\d_])|[‚‹„‡‰])|(?<=\w)[ªº](?=\w)"
    r"|(?<=[a-z])[ŠŒŽŸ]|[¦¨¸¼½¾](?=[^\W\d_]{2})|[¤ˆ]"
)
# A letter or sign alone, such as ± and £, and the µ of µm: in another encoding it is a letter.
_ALONE = re.compile(
    rb"(?<![A-Za-z\x80-\xff])([\xa0-\xa3\xa5-\xff](?![A-Za-z\x80-\xff])|\xb5(?=[A-Za-z]\b))"
)
_LETTER = re.compile(rb"[A-Za-z]")
_READ = 20_000  # bytes of lines with other letters that are looked at
_SAMPLE = 2000  # characters of them by which the language is detected
_MIXED = 0.3  # share of other letters that may touch ASCII letters
_OTHERS = 0.1  # share of letters and signs that a language need not have
_FEW, _PAIR = 3, re.compile(rb"[\x80-\xff]{2}")
_LATIN = 0.4  # share of bytes beyond ASCII, among letters, in texts of other scripts
_TOUCHING = re.compile(r"(?<=[A-Za-z])[^\0-\x7f]|[^\0-\x7f](?=[A-Za-z])")
_SURE = 1.0  # how much likelier, as a logarithm, another encoding must be than the first
_STRANGE = 3.0  # how much less likely a language is for each letter that it does not have


def latin_encoding(data: bytes) -> str:
    """The encoding of a text in Latin letters; "" if the text is in none of `_LANGUAGES`."""
    lines = b"\n".join(line for line in data.splitlines() if not line.isascii())[:_READ]
    lines = _ALONE.sub(b" ", lines)  # no evidence
    others = sum(byte > 0x7F for byte in lines)
    few = others <= _FEW and not _PAIR.search(lines)  # such as 25°
    if others > _LATIN * (others + len(_LETTER.findall(lines))) and not few:
        return ""
    texts: dict[str, str] = {}
    languages: dict[str, dict[str, str]] = {}
    for encoding, written in _LANGUAGES.items():
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            continue
        text = lines.decode(encoding)
        if re.search(r"[\x80-\x9f]", text):  # control characters
            continue
        texts.setdefault(text, encoding)
        languages[text] = languages.get(text, {}) | written
    strange = {text: _strange(text, of) for text, of in languages.items()}
    most = 1 + _OTHERS * others
    likely = [text for text, of in strange.items() if min(of.values()) <= most]
    if len(likely) < 2:
        return texts[likely[0]] if likely else ""
    scores = {}
    for text in likely:
        told = language_probabilities(text[:_SAMPLE])
        scores[text] = max(
            math.log(max(told.get(name, 0.0), 1e-9)) - _STRANGE * number
            for name, number in strange[text].items()
        )
    scores[likely[0]] += _SURE
    return texts[max(likely, key=lambda text: scores[text])]


def mixes_letters(text: str) -> bool:
    """Whether other letters and signs stand within words of ASCII letters.

    That is no text in Cyrillic, Greek, Hebrew or Arabic letters, even with English words in it.
    """
    return len(_TOUCHING.findall(text)) > _MIXED * sum(letter > "\x7f" for letter in text)


def _strange(text: str, languages: dict[str, str]) -> dict[str, int]:
    """How many letters and signs of a text each language does not have."""
    odd = len(_ODD.findall(text))
    letters = [c for c in text.lower() if c > "\x7f" and c.isalpha() and c not in "ªºµ"]
    return {name: odd + sum(c not in own for c in letters) for name, own in languages.items()}
