"""The values that readers yield, and the positions of headings in a text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from searchengine.corpus.lines import LONGEST, bad, kind, too_long

LONGEST_HEADING = 200
"""Characters of a heading that are kept."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a text.

    Attributes:
        start: its offset in the text, in characters.
        level: 1 for the highest.
        title: its text.
    """

    start: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Part:
    """A text of a file: all of it, a page, or a chapter.

    Attributes:
        text: the text.
        title: the title that the file names; "" for the name of the file.
        metadata: fields of the document.
        headings: those of the text, in order.
        fragment: what the key has after the path and "#", such as page=3; "" for a whole file.
    """

    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    headings: tuple[Heading, ...] = ()
    fragment: str = ""


def enclosing(headings: Sequence[Heading]) -> list[Heading]:
    """The last heading, and those of higher levels that it is under."""
    result: list[Heading] = []
    for heading in headings:
        while result and result[-1].level >= heading.level:
            result.pop()
        result.append(heading)
    return result


class FileReader(Protocol):
    """Reads the texts of a file; raises CorpusError."""

    def __call__(self, path: Path) -> Iterator[Part]: ...


class RecordReader(Protocol):
    """Reads records, each with its place ("file:line"), of a file or database table.

    `table` names the table of a database. Raises CorpusError.
    """

    def __call__(self, path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]: ...


def whole(path: Path) -> bytes:
    """The bytes of a file, gunzipped where it ends in .gz. Raises CorpusError beyond 64 MiB."""
    import gzip
    import zlib

    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read(LONGEST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise bad(path, f"broken gzip file ({error})") from error
    except OSError as error:
        raise bad(path, f"cannot be read ({error.strerror or error})") from error
    if len(data) > LONGEST:
        raise bad(path, too_long("JSON file" if kind(path) == ".json" else "text"))
    return data
