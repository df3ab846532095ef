"""The encoding of a text that is not UTF-8: by its marks, or as chardet tells.

detected("Não se esqueça".encode("cp1252"))     # "cp1252", not cp1250
"""

import codecs
import re
from importlib.util import find_spec

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

# Without the many that differ from these in a few signs only; UTF-8 stands for none of them.
_LATIN = "cp1252 cp1250 iso8859_2 cp1254 cp1257 iso8859_15 mac-roman cp850 cp437 utf-8".split()
_ALL = [
    *_LATIN,
    *"cp949 cp932 euc_jis_2004 gb18030 big5 cp1251 koi8-r cp1253 cp1255 cp1256".split(),
]
_WIDE = ["utf-16-le", "utf-16-be", "utf-8"]
# A byte beyond ASCII that has a letter beside it, but for the signs of 25 °C and 5 µm.
_IN_A_WORD = re.compile(
    rb"[A-Za-z\x80-\xff][\x80-\xff]|(?![\xb0\xb5][A-Za-z]\b)[\x80-\xff][A-Za-z]"
)
_LETTER = re.compile(rb"[A-Za-z]")


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


def broken_places(text: str, error: UnicodeDecodeError) -> int:
    """How many places of a text, decoded as UTF-8, are broken; 0: it is in another encoding.

    `error`: of the first. A text that is cut in its last letter has no other.
    """
    broken, others = text.count("\ufffd"), sum(letter > "\x7f" for letter in text)
    is_cut = error.reason == "unexpected end of data" and (
        others > 1 or error.end > error.start + 1
    )
    return broken if is_cut or others > _WHOLE * broken else 0


def detected(data: bytes) -> str:
    """The likeliest encoding of a text in another encoding than UTF-8; "" if none is likely.

    Signs alone, as of 25° and £5, are Windows-1252. A text with more ASCII letters than others is
    in Latin letters: that takes Italian for no Macedonian.
    """
    if (name := marked(data)) not in ("", "utf-8-sig"):
        return name
    if find_spec("chardet") is None:
        return ""
    from chardet import detect

    sample, candidates = data[:_SAMPLE], _ALL
    if b"\0" in data:
        candidates = _WIDE
    elif not _IN_A_WORD.search(sample):
        return "cp1252"
    else:
        lines = b"\n".join(line for line in sample.splitlines() if not line.isascii())
        if sum(byte > 0x7F for byte in lines) < len(_LETTER.findall(lines)):
            candidates = _LATIN
    found = detect(sample, include_encodings=candidates, no_match_encoding="utf-8")["encoding"]
    return "" if found in (None, "utf-8") else known(found)
