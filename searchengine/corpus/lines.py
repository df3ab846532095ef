"""The lines of a UTF-8 file, and what is said of those that cannot be read.

Memory stays bounded whatever a file holds: no line may be longer than 64 MiB.
"""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from searchengine.errors import CorpusError

OnBad = Callable[[CorpusError], None]

LONGEST = 1 << 26
"""Bytes of a line, row or text; as JSON, the worst line takes 27 times as much memory."""

_SENTENCE = 900  # characters of a message


def bad(where: object, what: str) -> CorpusError:
    """An error in one printable sentence, whatever the names and values that it quotes."""
    text = f"{where}: {what}"
    if len(text) > _SENTENCE:
        text = f"{text[: _SENTENCE - 200]} … {text[-200:]}"
    return CorpusError("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def some_fields(fields: Iterable[str]) -> str:
    """The first names of a record or header, for a message."""
    names = [f"{name!r:.40}" for name in islice(fields, 11)]
    return ", ".join([*names[:10], "…"][: len(names)]) or "none"


def kind(path: Path) -> str:
    """The suffix that tells the format, without a closing .gz."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def read_lines(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line of a UTF-8 file, gunzipped where it ends in .gz."""
    number = 0
    try:
        with _open(path) as file:
            while raw := file.readline(LONGEST + 1):
                number += 1
                if len(raw) > LONGEST:
                    report(bad(f"{path}:{number}", too_long("line")), on_bad)
                    while raw and not raw.endswith(b"\n"):  # on to the next
                        raw = file.readline(LONGEST)
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    what = (
                        f"not UTF-8 (byte 0x{raw[error.start]:02x}); convert the "
                        "file first, for example with: iconv -f latin1 -t utf-8"
                    )
                    report(bad(f"{path}:{number}", what), on_bad)
                    continue
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise bad(f"{path}:{number + 1}", f"broken gzip file ({error})") from error
    except OSError as error:
        raise bad(path, f"cannot be read ({error.strerror or error})") from error


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    try:
        return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    except ValueError as error:  # the name holds what no file's name can
        raise bad(path, f"cannot be read ({error})") from error


def too_long(what: str) -> str:
    """What is wrong with a line or text that passes LONGEST, and the way out."""
    return (
        f"a {what} of more than {LONGEST >> 20} MiB, which is no one document; split it "
        "(JSON Lines has an object a line: jq -c '.[]' makes them of an array)"
    )


def read_jsonl(path: Path, on_bad: OnBad | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file:line") and object of every line that is not blank."""
    for number, line in read_lines(path, on_bad):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            report(bad(place, f"not JSON ({error})"), on_bad)
            continue
        if isinstance(record, dict):
            yield place, record
        else:
            what = type(record).__name__
            report(bad(place, f"expected a JSON object, got {what}"), on_bad)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def report(error: CorpusError, on_bad: OnBad | None) -> None:
    """Raise the error, or hand it over where somebody listens."""
    if on_bad is None:
        raise error
    on_bad(error)
