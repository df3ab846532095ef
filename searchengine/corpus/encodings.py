"""The encoding of a text that is not UTF-8: by its marks, its letters, and its language.

    detected("Não se esqueça".encode("cp1252"))     # ["cp1252"], not cp1250

The encodings of Latin letters differ in accented letters only, which are rare in most languages,
and each gives a readable text. So a text must have the letters of a language that is written in the
encoding, and the rest of the text must be in that language. Without evidence for another it is
Windows-1252. (charset-normalizer alone reads 40 % of short texts in Western languages right.) Of
other scripts charset-normalizer tells them.
"""

import codecs
import math
import re
from importlib.util import find_spec

from searchengine.corpus.language_traits import language_probabilities
from searchengine.trainer.errors import install_line

_MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    b"\x1b$B": "iso2022_jp",  # begins Japanese letters, whose bytes are all ASCII
}
_SAMPLE = 1 << 20  # bytes to detect by
_ZEROS = 0.05  # share of zero bytes in UTF-16: a text in Cyrillic letters has 0.07

_CYRILLIC = ("cp1251", "koi8_r")  # small letters of one are capitals of the other
_ONE_BYTE = (*_CYRILLIC, "cp1253", "cp1255", "cp1256")
# Of scripts other than Latin. Without the many that differ from these in a few signs only: a guess
# among all of them is wrong more often.
_OTHERS = ["cp949", "cp932", "euc_jp", "gb18030", "big5", *_ONE_BYTE]
_TOUCHING = re.compile(r"(?<=[A-Za-z])[^\0-\x7f]|[^\0-\x7f](?=[A-Za-z])")
_MIXED = 0.3  # share of other letters that may touch ASCII letters

_WESTERN = {
    "ca": "àçèéíïòóúü", "da": "åæéøó", "de": "äöüß", "en": "éèêëïñöçâà", "es": "áéíñóúü",
    "et": "äõöüšž", "fi": "äåöšž", "fr": "àâæçèéêëîïôœùûüÿ", "ga": "áéíóú", "gl": "áéíñóúü",
    "is": "áæéíðóöúýþ", "it": "àèéìíîòóùú", "nl": "áéèêëïóöü", "pt": "àáâãçéêíóôõúü",
    "sq": "çë", "sv": "àäåéöü", **dict.fromkeys(("nb", "nn", "no"), "åæèéêòóôø"),
}  # fmt: skip
_CENTRAL = {
    "bs": "ćčđšž", "cs": "áčďéěíňóřšťúůýž", "hr": "ćčđšž", "hu": "áéíóöőúüű",
    "pl": "ąćęłńóśźż", "ro": "ăâîşţ", "sk": "áäčďéíĺľňóôŕšťúýž", "sl": "čšž", "sr": "ćčđšž",
}  # fmt: skip
_LATIN = {
    "cp1252": _WESTERN,
    "cp1250": _CENTRAL,
    "iso8859_2": _CENTRAL,
    "cp1254": {"tr": "âçğıîöşûü", "az": "çğıöşü"},
    "cp1257": {"et": "äõöüšž", "lt": "ąčęėįšųūž", "lv": "āčēģīķļņšūž"},
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
_READ, _TOLD = 20_000, 2000  # bytes of lines with other letters; characters to tell a language by
_STRANGE_SHARE = 0.1  # of letters and signs that a language need not have
_FEW, _PAIR = 3, re.compile(rb"[\x80-\xff]{2}")
_OTHER_SCRIPT = 0.4  # share of bytes beyond ASCII, among letters, in texts of other scripts
_SURE = 1.0  # how much likelier, as a logarithm, another encoding must be than the first
_STRANGE = 3.0  # how much less likely a language is for each letter that it does not have


def marked(data: bytes) -> str:
    """The encoding, by the mark at the start of a text or of its Japanese letters; or ""."""
    name = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")
    return name or ("iso2022_jp" if b"\x1b$B" in data else "")


def known(name: str) -> str:
    """Python's name of a text encoding; "" if it has none. As in HTML, supersets of some."""
    try:
        info = codecs.lookup(name.strip())
        is_text = "".encode(info.name) == b""
    except (LookupError, ValueError, TypeError):
        return ""
    supersets = {"iso8859-1": "cp1252", "euc_kr": "cp949", "shift_jis": "cp932"}
    return supersets.get(info.name, info.name) if is_text else ""


def not_utf8(byte: int, names: list[str]) -> str:
    """The message for a text that is not UTF-8; `names`: the encodings that it may be in."""
    knows = find_spec("charset_normalizer") is not None
    hint = "" if knows else f" ({install_line('formats')} detects encodings)"
    probably = f" but probably {' or '.join(names)}" if names else hint
    name = names[0].replace("_", "-") if names else "ENCODING"
    how = f"convert the file first, for example with: iconv -f {name} -t utf-8"
    return f"not UTF-8 (byte 0x{byte:02x}){probably}; {how}"


def detected(data: bytes) -> list[str]:
    """The encodings that a text in another encoding than UTF-8 may be in; several if they are
    equally likely and give different texts, in the detector's order.
    """
    if (name := marked(data)) not in ("", "utf-8-sig"):
        return [name]
    sample = data[:_SAMPLE]
    if b"\0" in data:
        return _without_mark(sample)
    if find_spec("charset_normalizer") is None:
        return []
    if latin := _latin(sample):
        return [latin]
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample, cp_isolation=_OTHERS))
    matches = [m for m in matches if m.encoding not in _ONE_BYTE or not _mixes_letters(str(m))]
    best = [(m.chaos, m.coherence) for m in matches[:1]]
    texts = {str(m): m.encoding for m in matches if (m.chaos, m.coherence) in best}
    if any(name in _CYRILLIC and text.upper() == text for text, name in texts.items()):
        return list(dict.fromkeys([*texts.values(), *_CYRILLIC]))  # small letters of the other one
    return list(texts.values())


def _without_mark(sample: bytes) -> list[str]:
    """UTF-16, whose zero bytes, of spaces and ASCII letters, are all in every second place."""
    for zeros, others, name in ((1, 0, "utf-16-le"), (0, 1, "utf-16-be")):
        if sample[zeros::2].count(0) > _ZEROS * len(sample) and 0 not in sample[others::2]:
            words = sample.decode(name, "replace").split()
            if len(sample) % 2 == 0 and "".join(words).isprintable():
                return [name]
    return []


def _mixes_letters(text: str) -> bool:
    """Whether other letters and signs stand within words of ASCII letters.

    That is no text in Cyrillic, Greek, Hebrew or Arabic letters, even with English words in it.
    """
    return len(_TOUCHING.findall(text)) > _MIXED * sum(letter > "\x7f" for letter in text)


def _latin(data: bytes) -> str:
    """The encoding of a text in Latin letters; "" if the text is in none of `_LATIN`."""
    lines = b"\n".join(line for line in data.splitlines() if not line.isascii())[:_READ]
    lines = _ALONE.sub(b" ", lines)  # no evidence
    others = sum(byte > 0x7F for byte in lines)
    few = others <= _FEW and not _PAIR.search(lines)  # such as 25°
    if others > _OTHER_SCRIPT * (others + len(_LETTER.findall(lines))) and not few:
        return ""
    encodings: dict[str, str] = {}
    strange: dict[str, dict[str, int]] = {}
    for encoding, languages in _LATIN.items():
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            continue
        text = lines.decode(encoding)
        if not re.search(r"[\x80-\x9f]", text):  # control characters
            encodings.setdefault(text, encoding)
            strange[text] = strange.get(text, {}) | _strange(text, languages)
    likely = [t for t, of in strange.items() if min(of.values()) <= 1 + _STRANGE_SHARE * others]
    if len(likely) < 2:
        return encodings[likely[0]] if likely else ""

    def score(text: str) -> float:
        told = language_probabilities(text[:_TOLD])
        logs = ((n, math.log(max(told.get(name, 0), 1e-9))) for name, n in strange[text].items())
        return max(log - _STRANGE * n for n, log in logs) + _SURE * (text == likely[0])

    return encodings[max(likely, key=score)]


def _strange(text: str, languages: dict[str, str]) -> dict[str, int]:
    """How many letters and signs of a text each language does not have."""
    odd = len(_ODD.findall(text))
    letters = [c for c in text.lower() if c > "\x7f" and c.isalpha() and c not in "ªºµ"]
    return {name: odd + sum(c not in own for c in letters) for name, own in languages.items()}
