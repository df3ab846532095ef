"""Lines and JSON objects of UTF-8 files, and errors about those that cannot be read.

Memory stays bounded: no line may be longer than 64 MiB.
"""

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from searchengine.corpus.encodings import detected, not_utf8
from searchengine.errors import CorpusError

OnBad = Callable[[CorpusError], None]

STDIN = Path("-")
"""Stands for standard input."""
LONGEST = 1 << 26
"""Bytes of a line, row or text; as JSON, the worst line takes 27 times as much memory."""

_MESSAGE = 900  # characters of a message


def bad(where: object, message: str) -> CorpusError:
    """A CorpusError with a printable message of limited length, whatever it quotes."""
    text = f"{where}: {message}"
    if len(text) > _MESSAGE:
        text = f"{text[: _MESSAGE - 200]} … {text[-200:]}"
    return CorpusError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def some_fields(fields: Iterable[str]) -> str:
    """The first names of a record or header, for a message."""
    names = [f"{name!r:.40}" for name in islice(fields, 11)]
    return ", ".join([*names[:10], "…"][: len(names)]) or "none"


def kind(path: Path) -> str:
    """The suffix that names the format, without a final .gz."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def read_lines(
    path: Path, on_bad: OnBad | None = None, span: tuple[int, int] | None = None
) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line of a UTF-8 file, gunzipped where it ends in .gz.

    `span`: only the lines that begin in these bytes [start, end), counted from the first of them.
    """
    number = 0
    others = False  # whether a line was not UTF-8
    start, end = (0, None) if span is None else span
    try:
        with _open(path) as file:
            if start:
                file.seek(start - 1)
                _skip_line(file, file.readline(LONGEST))
            while (end is None or file.tell() < end) and (raw := file.readline(LONGEST + 1)):
                number += 1
                if len(raw) > LONGEST:
                    report(bad(f"{path}:{number}", too_long("line")), on_bad)
                    _skip_line(file, raw)
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    names = [] if others else detected(raw)  # once: it takes milliseconds
                    others = True
                    what = not_utf8(raw[error.start], names)
                    report(bad(f"{path}:{number}", what), on_bad)
                    continue
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise bad(f"{path}:{number + 1}", f"broken gzip file ({error})") from error
    except OSError as error:
        raise bad(path, f"cannot be read ({error.strerror or error})") from error


def _skip_line(file: BinaryIO | gzip.GzipFile, raw: bytes) -> None:
    """Read to the end of the line that `raw` is the last piece read of."""
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(LONGEST)


def _open(path: Path) -> AbstractContextManager[BinaryIO | gzip.GzipFile]:
    if path == STDIN:
        return nullcontext(sys.stdin.buffer)
    try:
        return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    except ValueError as error:  # the name holds a NUL
        raise bad(path, f"cannot be read ({error})") from error


def too_long(what: str) -> str:
    """The message for a line, text or JSON file longer than LONGEST."""
    how = "" if what == "text" else " (jq -c '.[]' turns a JSON array into lines of an object each)"
    return f"a {what} must be at most {LONGEST >> 20} MiB long; split it{how}"


def read_jsonl(
    path: Path, on_bad: OnBad | None = None, span: tuple[int, int] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and object of every line that is not blank; `span` as in read_lines."""
    name = f"{path} from byte {span[0]}" if span is not None and span[0] else f"{path}"
    for number, line in read_lines(path, on_bad, span):
        if not line.strip():
            continue
        place = f"{name}:{number}"
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
    """What a text in JSON holds. Raises CorpusError."""
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
