"""The encoding of a text: a byte order mark, UTF-8, a declared one, or else the most likely one.

Where several encodings are equally likely, the text is refused and they are named.
"""

import codecs
from pathlib import Path

from searchengine.corpus.encodings import detected, marked, not_utf8
from searchengine.corpus.lines import bad
from searchengine.errors import CorpusError

_JAPANESE_MAIL = b"\x1b$B"  # begins Japanese letters in ISO-2022-JP, whose bytes are all ASCII


def decode(data: bytes, path: Path, declared: str = "") -> tuple[str, str]:
    """The text of a file, and the encoding if it is not UTF-8.

    `declared`: the encoding that the file names, if it does. Raises CorpusError.
    """
    if name := marked(data):
        return _decoded(data, name, path), "" if name == "utf-8-sig" else name
    if _JAPANESE_MAIL in data:
        return _decoded(data, "iso2022_jp", path), "iso2022_jp"
    try:
        return _without_binary(data.decode(), path), ""
    except UnicodeDecodeError as error:
        first = data[error.start]
    name = _known(declared)
    if name in ("", "utf-8"):  # it is not, whatever it declares
        if b"\0" in data:
            raise _binary(path)
        names = detected(data)
        if len(names) != 1:
            raise bad(path, not_utf8(first, names))
        name = names[0]
    return _decoded(data, name, path), name


def _known(name: str) -> str:
    """The name by which Python knows an encoding of text; "" if it does not."""
    try:
        info = codecs.lookup(name.strip())
        # HTML takes these names for their supersets.
        return {"iso8859-1": "cp1252", "euc_kr": "cp949", "shift_jis": "cp932"}.get(
            info.name, info.name if "".encode(info.name) == b"" else ""
        )
    except (LookupError, ValueError, TypeError):
        return ""


def _decoded(data: bytes, name: str, path: Path) -> str:
    try:
        return _without_binary(data.decode(name), path)
    except UnicodeDecodeError as error:
        what = f"not {name} (byte 0x{data[error.start]:02x} at {error.start}); convert it to UTF-8"
        raise bad(path, what) from error


def _without_binary(text: str, path: Path) -> str:
    if "\0" in text:
        raise _binary(path)
    return text


def _binary(path: Path) -> CorpusError:
    return bad(path, "not a text (it holds a zero byte); check the file's name and content")
