"""Detection of the encoding of a text that is not UTF-8, by charset-normalizer."""

import codecs
from importlib.util import find_spec

from searchengine.trainer.errors import install_line

# Without the many that differ from these in a few signs only: a guess among all of them is wrong
# more often.
_LIKELY = [
    "cp949", "cp932", "euc_jp", "gb18030", "big5", "cp1250", "cp1251", "cp1252", "cp1253",
    "cp1254", "cp1255", "cp1256", "koi8_r",
]  # fmt: skip
_SAMPLE = 1 << 20  # bytes to detect by
_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def marked(data: bytes) -> str:
    """The encoding whose byte order mark begins a text; "" without a mark."""
    return next((name for mark, name in _MARKS if data.startswith(mark)), "")


def detected(data: bytes) -> list[str]:
    """The encodings that a text in another encoding than UTF-8 may be in; several if they are
    equally likely and give different texts.
    """
    name = marked(data)
    if name and name != "utf-8-sig":
        return [name]
    if b"\0" in data or find_spec("charset_normalizer") is None:
        return []
    from charset_normalizer import from_bytes

    matches = list(from_bytes(data[:_SAMPLE], cp_isolation=_LIKELY))
    best = [
        m for m in matches if (m.chaos, m.coherence) == (matches[0].chaos, matches[0].coherence)
    ]
    texts = {str(match): match.encoding for match in best}
    return sorted(texts.values())


def not_utf8(byte: int, names: list[str]) -> str:
    """The message for a text that is not UTF-8; `names`: the encodings that it may be in."""
    knows = find_spec("charset_normalizer") is not None
    hint = "" if knows else f" ({install_line('formats')} detects encodings)"
    probably = f" but probably {' or '.join(names)}" if names else hint
    return (
        f"not UTF-8 (byte 0x{byte:02x}){probably}; convert the file first, for example with: "
        f"iconv -f {names[-1] if names else 'latin1'} -t utf-8"
    )
