"""Which reader reads which file, and what it needs installed."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from searchengine.corpus.lines import kind
from searchengine.trainer.errors import install_line

_HERE = __package__


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
    ".json": Kind("JSON", f"{_HERE}.json_file:read_json", records=True, packed=True),
    ".parquet": Kind("Parquet", f"{_HERE}.arrow:read_parquet", records=True, needs="pyarrow"),
    ".arrow": _ARROW,
    ".feather": _ARROW,
}
"""Suffix → format, for what a reader in a process of its own reads."""

SQLITE = Kind("SQLite", f"{_HERE}.sqlite:read_sqlite", records=True)
SQLITE_SUFFIXES = {".db", ".sqlite", ".sqlite3"}


def kind_of(path: Path) -> Kind | None:
    """The format of a file by its suffix; None: not one of KINDS."""
    found = KINDS.get(kind(path))
    return None if found is None or (path.suffix == ".gz" and not found.packed) else found
