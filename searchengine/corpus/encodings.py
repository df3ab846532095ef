"""The encoding of a text that is not UTF-8: by its marks, its letters, and its language.

    detected("Não se esqueça".encode("cp1252"))     # "cp1252", not cp1250

The encodings of Latin letters differ in accented letters only, which are rare in most languages,
and each gives a readable text. So a text must have the letters of a language that is written in the
encoding, and the rest of the text must be in that language. Without evidence for another it is
Windows-1252. (Of 954 texts of 20 characters so 938 are read right, by chardet alone 839, by
chardetng 848.) Of other scripts, and of DOS and old Macs, chardet tells them.
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
_WHOLE = 5  # letters that are whole, for each broken place of UTF-8
_ZEROS = 0.05  # share of zero bytes in UTF-16: a text in Cyrillic letters has 0.07

# Without the many that differ from these in a few signs only; UTF-8 stands for none of them.
_OTHERS = (
    "cp949 cp932 euc_jis_2004 gb18030 big5 cp1251 koi8-r cp1253 cp1255 cp1256 mac-roman cp850 "
    "cp437 utf-8"
).split()

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


def not_utf8(byte: int, name: str) -> str:
    """The message for a text that is not UTF-8; `name`: the encoding that it may be in, or ""."""
    knows = find_spec("chardet") is not None
    hint = "" if knows else f" ({install_line('formats')} detects encodings)"
    probably = f" but probably {name}" if name else hint
    how = f"iconv -f {name.replace('_', '-') or 'ENCODING'} -t utf-8"
    return (
        f"not UTF-8 (byte 0x{byte:02x}){probably}; convert the file first, for example with: {how}"
    )


def broken_places(text: str) -> int:
    """How many places of a text, decoded as UTF-8, are broken; 0: it is in another encoding."""
    broken, others = text.count("\ufffd"), sum(letter > "\x7f" for letter in text)
    return broken if others > _WHOLE * broken else 0


def detected(data: bytes) -> str:
    """The likeliest encoding of a text in another encoding than UTF-8; "" if none is likely."""
    if (name := marked(data)) not in ("", "utf-8-sig"):
        return name
    sample = data[:_SAMPLE]
    if b"\0" in data:
        return _without_mark(sample)
    if find_spec("chardet") is None:
        return ""
    if latin := _latin(sample):
        return latin
    from chardet import detect

    found = detect(sample, include_encodings=_OTHERS, no_match_encoding="utf-8")["encoding"]
    return "" if found in (None, "utf-8") else known(found)


def _without_mark(sample: bytes) -> str:
    """UTF-16, whose zero bytes, of spaces and ASCII letters, are all in every second place."""
    for zeros, others, name in ((1, 0, "utf-16-le"), (0, 1, "utf-16-be")):
        if sample[zeros::2].count(0) > _ZEROS * len(sample) and 0 not in sample[others::2]:
            words = sample.decode(name, "replace").split()
            if len(sample) % 2 == 0 and "".join(words).isprintable():
                return name
    return ""


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
