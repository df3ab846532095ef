"""Bytes of files → texts, lines and JSON, and errors about those that cannot be read.

Memory stays bounded: no line or text may be longer than 64 MiB. The encoding of a whole text is a
byte order mark, UTF-8, a declared one, or else the most likely one: of Latin letters as
latin_encodings.py says, of other scripts by charset-normalizer. Where several are equally likely,
the text is refused and they are named. Files that are read line by line must be UTF-8.
"""

import codecs
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from searchengine.corpus.latin_encodings import latin_encoding, mixes_letters
from searchengine.errors import FORBIDDEN, CorpusError, UnreadableFile
from searchengine.trainer.errors import install_line

OnBad = Callable[[CorpusError], None]

STDIN = Path("-")
"""Stands for standard input."""
LONGEST = 1 << 26
"""Bytes of a line, row or text; as JSON, the worst line takes 27 times as much memory."""

_MESSAGE = 900  # characters of a message
_CYRILLIC = ("cp1251", "koi8_r")  # small letters of one are capitals of the other
_ONE_BYTE = (*_CYRILLIC, "cp1253", "cp1255", "cp1256")
# Of scripts other than Latin. Without the many that differ from these in a few signs only: a guess
# among all of them is wrong more often.
_LIKELY = ["cp949", "cp932", "euc_jp", "gb18030", "big5", *_ONE_BYTE]
_SAMPLE = 1 << 20  # bytes to detect by
_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_JAPANESE_MAIL = b"\x1b$B"  # begins Japanese letters in ISO-2022-JP, whose bytes are all ASCII


def bad(where: object, message: str) -> CorpusError:
    """A CorpusError with a printable message of limited length, whatever it quotes."""
    text = f"{where}: {message}"
    if len(text) > _MESSAGE:
        text = f"{text[: _MESSAGE - 200]} … {text[-200:]}"
    return CorpusError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def unreadable(path: object, error: OSError) -> UnreadableFile:
    """The error for a file or folder that the system does not let us read."""
    denied = isinstance(error, PermissionError)
    what = FORBIDDEN if denied else f"cannot be read ({error.strerror or error})"
    return UnreadableFile(str(bad(error.filename or path, what)))


def some_fields(fields: Iterable[str]) -> str:
    """The first names of a record or header, for a message."""
    names = [f"{name!r:.40}" for name in islice(fields, 11)]
    return ", ".join([*names[:10], "…"][: len(names)]) or "none"


def kind(path: Path) -> str:
    """The suffix that names the format, without a final .gz."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def read_lines(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line of a UTF-8 file, gunzipped where it ends in .gz."""
    number = 0
    converted = False  # whether a line was not UTF-8
    try:
        with _open(path) as file:
            while raw := file.readline(LONGEST + 1):
                number += 1
                if len(raw) > LONGEST:
                    report(bad(f"{path}:{number}", too_long("line")), on_bad)
                    while raw and not raw.endswith(b"\n"):  # to the end of the line
                        raw = file.readline(LONGEST)
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    names = [] if converted else detected(raw)  # once: it takes milliseconds
                    converted = True
                    what = not_utf8(raw[error.start], names)
                    report(bad(f"{path}:{number}", what), on_bad)
                    continue
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise bad(f"{path}:{number + 1}", f"broken gzip file ({error})") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _open(path: Path) -> AbstractContextManager[BinaryIO | gzip.GzipFile]:
    if path == STDIN:
        if sys.stdin is None:
            raise bad(path, "standard input is closed; pipe JSON Lines to it, or name a file")
        return nullcontext(sys.stdin.buffer)
    try:
        return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    except ValueError as error:  # the name holds a NUL
        raise bad(path, f"cannot be read ({error})") from error


def too_long(what: str) -> str:
    """The message for a line, text or JSON file longer than LONGEST."""
    how = "" if what == "text" else " (jq -c '.[]' turns a JSON array into lines of an object each)"
    return f"a {what} must be at most {LONGEST >> 20} MiB long; split it{how}"


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, gunzipped where it ends in .gz. Raises CorpusError beyond 64 MiB."""
    try:
        with _open(path) as file:
            data = file.read(LONGEST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise bad(path, f"broken gzip file ({error})") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > LONGEST:
        raise bad(path, too_long("JSON file" if kind(path) == ".json" else "text"))
    return data


def read_jsonl(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and object of every line that is not blank."""
    for number, line in read_lines(path, on_bad):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            yield place, json_object(line, place)
        except CorpusError as error:
            report(error, on_bad)


def json_object(text: str | bytes, place: str) -> dict[str, Any]:
    """The object that a text in JSON holds. Raises CorpusError."""
    record = parse_json(text, place)
    if not isinstance(record, dict):
        raise bad(place, f"expected a JSON object, got {type(record).__name__}")
    return record


def parse_json(text: str | bytes, place: str) -> Any:
    """The value of a text in JSON. Raises CorpusError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise bad(place, f"not JSON ({error})") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def report(error: CorpusError, on_bad: OnBad | None) -> None:
    """Raise the error, or pass it to `on_bad`."""
    if on_bad is None:
        raise error
    on_bad(error)


# -------------------------------------------------------------------------------------- encodings


def decode(data: bytes, path: Path, declared: str = "") -> tuple[str, str]:
    """The text of a file, and the encoding if it is not UTF-8.

    `declared`: the encoding that the file names, if it does. Raises CorpusError.
    """
    name = marked(data) or ("iso2022_jp" if _JAPANESE_MAIL in data else "utf-8")
    text = None
    try:
        text = data.decode(name)
    except UnicodeDecodeError as error:
        first = data[error.start]
        if name == "utf-8" and (name := _known(declared)) in ("", "utf-8") and b"\0" not in data:
            names = detected(data)  # it is not what it declares
            if len(names) != 1:
                raise bad(path, not_utf8(first, names)) from error
            name = names[0]
    if text is None and name:
        text = _decoded(data, name, path)
    if text is None or "\0" in text:
        raise bad(path, "not a text (it holds a zero byte); check the file's name and content")
    return text, "" if name.startswith("utf-8") else name


def _known(name: str) -> str:
    """Python's name of a text encoding; "" if it has none."""
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
        return data.decode(name)
    except UnicodeDecodeError as error:
        what = f"not {name} (byte 0x{data[error.start]:02x} at {error.start}); convert it to UTF-8"
        raise bad(path, what) from error


def marked(data: bytes) -> str:
    """The encoding, by the byte order mark at the start of a text; "" without one."""
    return next((name for mark, name in _MARKS if data.startswith(mark)), "")


def detected(data: bytes) -> list[str]:
    """The encodings that a text in another encoding than UTF-8 may be in; several if they are
    equally likely and give different texts, in the detector's order.
    """
    name = marked(data)
    if name and name != "utf-8-sig":
        return [name]
    if b"\0" in data or find_spec("charset_normalizer") is None:
        return []
    sample = data[:_SAMPLE]
    if latin := latin_encoding(sample):
        return [latin]
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample, cp_isolation=_LIKELY))
    matches = [m for m in matches if m.encoding not in _ONE_BYTE or not mixes_letters(str(m))]
    best = [
        m for m in matches if (m.chaos, m.coherence) == (matches[0].chaos, matches[0].coherence)
    ]
    texts = {str(match): match.encoding for match in best}
    if any(name in _CYRILLIC and text.upper() == text for text, name in texts.items()):
        return list(dict.fromkeys([*texts.values(), *_CYRILLIC]))  # small letters of the other one
    return list(texts.values())


def not_utf8(byte: int, names: list[str]) -> str:
    """The message for a text that is not UTF-8; `names`: the encodings that it may be in."""
    knows = find_spec("charset_normalizer") is not None
    hint = "" if knows else f" ({install_line('formats')} detects encodings)"
    probably = f" but probably {' or '.join(names)}" if names else hint
    return (
        f"not UTF-8 (byte 0x{byte:02x}){probably}; convert the file first, for example with: "
        f"iconv -f {names[0].replace('_', '-') if names else 'ENCODING'} -t utf-8"
    )
