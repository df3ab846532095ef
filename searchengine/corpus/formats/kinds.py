"""The formats that a parser reads: the reader of each, what it needs, and what readers yield."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from searchengine.corpus.text_files import kind
from searchengine.trainer.errors import install_line

LONGEST_HEADING = 200
"""Characters of a heading that are kept."""
_HERE = __package__


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
class Text:
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
    """The last heading, below the headings of higher levels that contain it."""
    result: list[Heading] = []
    for heading in headings:
        while result and result[-1].level >= heading.level:
            result.pop()
        result.append(heading)
    return result


class FileReader(Protocol):
    """Reads the texts of a file; raises CorpusError."""

    def __call__(self, path: Path) -> Iterator[Text]: ...


class RecordReader(Protocol):
    """Reads records, each with its place ("file:line"), of a file or database table.

    `table` names the table of a database. Raises CorpusError.
    """

    def __call__(self, path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A format.

    Attributes:
        name: for messages.
        reader: "module:function", a FileReader or RecordReader.
        records: whether it holds records, not texts.
        needs: the module it needs that may not be installed.
        packed: whether it may be gzipped.
    """

    name: str
    reader: str
    records: bool = False
    needs: str = ""
    packed: bool = False

    @property
    def missing(self) -> str:
        """How to install what the reader needs; "" if it is there."""
        return install_line("formats") if self.needs and find_spec(self.needs) is None else ""


_TEXT = Kind("text", f"{_HERE}.markdown:read_text", packed=True)
_MARKDOWN = Kind("Markdown", f"{_HERE}.markdown:read_markdown", packed=True)
_HTML = Kind("HTML", f"{_HERE}.markup:read_html", packed=True)
_ARROW = Kind("Arrow", f"{_HERE}.arrow:read_arrow", records=True, needs="pyarrow")

KINDS = {
    ".txt": _TEXT,
    ".text": _TEXT,
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".html": _HTML,
    ".htm": _HTML,
    ".xhtml": _HTML,
    ".pdf": Kind("PDF", f"{_HERE}.pdf:read_pdf", needs="pypdfium2"),
    ".docx": Kind("Word", f"{_HERE}.docx:read_docx", needs="docx"),
    ".epub": Kind("EPUB", f"{_HERE}.epub:read_epub"),
    ".json": Kind("JSON", f"{_HERE}.records:read_json", records=True, packed=True),
    ".parquet": Kind("Parquet", f"{_HERE}.arrow:read_parquet", records=True, needs="pyarrow"),
    ".arrow": _ARROW,
    ".feather": _ARROW,
}
"""Suffix → format, for what a reader in a process of its own reads."""

SQLITE = Kind("SQLite", f"{_HERE}.records:read_sqlite", records=True)
SQLITE_SUFFIXES = {".db", ".sqlite", ".sqlite3"}


def kind_of(path: Path) -> Kind | None:
    """The format of a file by its suffix; None: not one of KINDS."""
    format_ = KINDS.get(kind(path))
    return None if format_ and path.suffix == ".gz" and not format_.packed else format_
