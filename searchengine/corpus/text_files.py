"""Bytes of files → texts, lines and JSON, and errors about those that cannot be read.

Memory stays bounded: no line or text may be longer than 64 MiB. The encoding of a whole text is a
byte order mark, UTF-8, a declared one, or else the most likely one, as chardet tells. Files that
are read line by line must be UTF-8.
"""

import codecs
import gzip
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Any

from searchengine.errors import FORBIDDEN, CorpusError, UnreadableFile
from searchengine.trainer.errors import install_line

STDIN = Path("-")
"""Stands for standard input."""
LONGEST = 1 << 26
"""Bytes of a line, row or text; as JSON, the worst line takes 27 times as much memory."""
_MESSAGE = 900  # characters of a message


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a file: all of it, a page, or a chapter.

    Attributes:
        text: the text.
        title: the title that the file names; "" for the name of the file.
        metadata: fields of the document.
        fragment: what the key has after the path and "#", such as page=3; "" for a whole file.
    """

    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fragment: str = ""


Parts = Iterator[Text | str]
"""What a reader yields: texts, and sentences on what cannot be read of the text before."""


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


def fail(error: CorpusError) -> None:
    """Raise an error: what the first malformed line does if nobody takes it."""
    raise error


Take = Callable[[CorpusError], None]
"""Takes the error of a malformed line or record, or raises it."""


def too_long(what: str) -> str:
    """The message for a line, row, text or JSON file longer than LONGEST."""
    return f"a {what} must be at most {LONGEST >> 20} MiB long; split it"


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file or standard input, gunzipped where it ends in .gz. Raises CorpusError."""
    try:
        if path == STDIN:
            if sys.stdin is None:
                what = "standard input is closed; pipe JSON Lines to it, or name a file"
                raise UnreadableFile(str(bad(path, what)))
            yield sys.stdin.buffer
        elif "\0" in str(path):
            raise bad(path, "cannot be read (its name holds a NUL)")
        else:
            with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
                yield file  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise bad(path, f"broken gzip file ({error})") from error
    except OSError as error:
        raise unreadable(path, error) from error


def read_lines(path: Path, take: Take = fail) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line of a UTF-8 file, gunzipped where it ends in .gz."""
    number, other_encoding = 0, False
    with _opened(path) as file:
        while raw := file.readline(LONGEST + 1):
            number += 1
            if len(raw) > LONGEST:
                take(bad(f"{path}:{number}", too_long("line")))
                while raw and not raw.endswith(b"\n"):  # to the end of the line
                    raw = file.readline(LONGEST)
                continue
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                name = "" if other_encoding else detected(raw)  # once: it takes milliseconds
                other_encoding = True
                take(bad(f"{path}:{number}", _not_utf8(raw[error.start], name)))
                continue
            yield number, line


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, gunzipped where it ends in .gz. Raises CorpusError beyond 64 MiB."""
    with _opened(path) as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise bad(path, too_long("JSON file" if kind(path) == ".json" else "text"))
    return data


def decode(data: bytes, path: Path, declared: str = "") -> tuple[str, dict[str, str], list[str]]:
    """The text of a file; the field `encoding` unless it is UTF-8; and what is lost of it.

    If it is UTF-8 but for a few bytes, these are read as U+FFFD. `declared`: the encoding that the
    file names, if it does. Raises CorpusError.
    """
    if not (name := _marked(data)) and b"\0" not in data:
        try:
            return data.decode("utf-8-sig"), {}, []
        except UnicodeDecodeError as error:
            place, text = error.start, data.decode("utf-8-sig", "replace")
        broken = text.count("\ufffd")
        if sum(letter > "\x7f" for letter in text) > 2 * broken:  # in no other encoding
            return text, {}, [f"bytes that are not UTF-8 (from byte {place} on, {broken} in all)"]
        if (named := _known(declared)) and not named.startswith("utf"):
            with suppress(UnicodeDecodeError):  # it is not what it declares
                return data.decode(named), {"encoding": named}, []
    name = name or detected(data)
    try:
        text = data.decode(name or ("latin-1" if b"\0" in data else "utf-8"))
    except UnicodeDecodeError as error:
        raise bad(path, _not_utf8(data[error.start], "")) from error  # it is not `name` either
    if "\0" in text:
        raise bad(path, "not a text (it holds a zero byte); check the file's name and content")
    return text, {"encoding": name}, []


def read_text(path: Path) -> Parts:
    """The text of a file, which is no markup. Raises CorpusError."""
    text, encoding, lost = decode(read_bytes(path), path)
    yield Text(text, metadata=encoding)
    yield from lost


def read_jsonl(path: Path, take: Take = fail) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and object of every line that is not blank."""
    for number, line in read_lines(path, take):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            yield place, json_object(line, place)
        except CorpusError as error:
            take(error)


def json_object(text: str, place: str) -> dict[str, Any]:
    """The object that a text in JSON holds. Raises CorpusError."""
    value = parse_json(text, place)
    if not isinstance(value, dict):
        raise bad(place, f"expected a JSON object, got {type(value).__name__}")
    return value


def parse_json(text: str, place: str) -> Any:
    """The value of a text in JSON; NaN is read as Python does. Raises CorpusError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad(place, f"not JSON ({error})") from error


# ---------------------------------------------------------------------------------------- encodings

_SAMPLE = 1 << 20  # bytes to detect by
# Without the many that differ from these in a few signs only; UTF-8 stands for none of them.
_LATIN = (
    "cp1252 cp1250 iso8859_2 cp1254 cp1257 iso8859_15 mac-roman cp850 cp437 utf-8 utf-16-le "
    "utf-16-be"
).split()
_OTHERS = "cp949 cp932 euc_jis_2004 gb18030 big5 cp1251 koi8-r cp1253 cp1255 cp1256".split()
# A byte beyond ASCII that has a letter beside it, but for the signs of 25 °C and 5 µm.
_IN_A_WORD = re.compile(
    rb"[A-Za-z\x80-\xff][\x80-\xff]|(?![\xb0\xb5][A-Za-z]\b)[\x80-\xff][A-Za-z]"
)
_LETTER = re.compile(rb"[A-Za-z]")


def _marked(data: bytes) -> str:
    """UTF-16 by its byte order mark, ISO-2022-JP by what begins Japanese letters in it; or ""."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "iso2022_jp" if b"\x1b$B" in data else ""


def _known(name: str) -> str:
    """Python's name of a text encoding; "" if it has none. As in HTML, supersets of some."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):
        return ""
    name = codecs.lookup(name).name
    return {"iso8859-1": "cp1252", "euc_kr": "cp949", "shift_jis": "cp932"}.get(name, name)


def _not_utf8(byte: int, name: str) -> str:
    """The message for a text that is not UTF-8; `name`: the encoding that it may be in, or ""."""
    knows = find_spec("chardet") is not None
    hint = "" if knows else f" ({install_line('formats')} detects encodings)"
    probably = f" but probably {name}" if name else hint
    how = f"iconv -f {name or 'ENCODING'} -t utf-8"
    return (
        f"not UTF-8 (byte 0x{byte:02x}){probably}; convert the file first, for example with: {how}"
    )


def detected(data: bytes) -> str:
    """The likeliest encoding of a text in another encoding than UTF-8; "" if none is likely.

    A text whose only other characters are signs, as in 25° or £5, is Windows-1252. With more ASCII
    letters than others it is in Latin letters: so Italian is not read as Macedonian.
    """
    if name := _marked(data):
        return name
    if find_spec("chardet") is None:
        return ""
    from chardet import detect

    sample = data[:_SAMPLE]
    if b"\0" not in data and not _IN_A_WORD.search(sample):
        return "cp1252"
    lines = b"\n".join(line for line in sample.splitlines() if not line.isascii())
    is_latin = sum(byte > 0x7F for byte in lines) < len(_LETTER.findall(lines))
    candidates = _LATIN if is_latin else _LATIN + _OTHERS
    found = detect(sample, include_encodings=candidates, no_match_encoding="utf-8")["encoding"]
    return "" if found in (None, "utf-8") else _known(found)
