"""The formats of files: the reader of each, what it needs; which file has which."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from searchengine.corpus.contents import Parts, kind
from searchengine.trainer.errors import install_line

_HERE, _CONTENTS = __name__, "searchengine.corpus.contents"


def attempt(name: str, parts: Parts) -> Parts:
    """A page, chapter or the like; a sentence instead of what cannot be read of it."""
    try:
        yield from parts
    except MemoryError:
        raise
    except Exception as error:  # whatever a library raises on a damaged part
        yield f"{name} cannot be read ({' '.join(str(error).split())})"


@dataclass(frozen=True, slots=True)
class Kind:
    """A format.

    Attributes:
        name: for messages.
        reader: "module:function": (path) → Parts, or place ("file:line") and record of each; it
            raises CorpusError. "": read without a process of its own.
        records: whether it holds records, not texts.
        rows: whether all records have all fields, None where a value is missing.
        needs: the module it needs that may not be installed.
    """

    name: str
    reader: str
    records: bool = False
    rows: bool = False
    needs: str = ""

    @property
    def missing(self) -> str:
        """How to install what the reader needs; "" if it is there."""
        return install_line("formats") if self.needs and find_spec(self.needs) is None else ""


LINES = Kind("JSON Lines", "", records=True)
TABLE = Kind("CSV", "", records=True)
TEXT = Kind("text", "")
_MARKDOWN = Kind("Markdown", f"{_HERE}.markup:read_markdown")
_HTML = Kind("HTML", f"{_HERE}.markup:read_html")

_TEXTS = (
    # prose, markup and logs
    ".txt .text .rst .adoc .asciidoc .org .tex .log .srt .vtt "
    # settings
    ".yaml .yml .toml .ini .cfg .conf .properties .xml "
    # source
    ".py .pyi .sh .bash .c .h .cs .cc .cpp .cxx .hh .hpp .hxx .cu .cuh .go .java .js .mjs .cjs "
    ".jsx .kt .kts .lua .php .rb .rs .scala .sc .swift .ts .mts .cts .tsx "
    ".zsh .sql .r .jl .pl .pm .ps1 .bat .vim .el .clj .hs .ml .mli .ex .exs .erl .dart .groovy "
    ".gradle .proto .graphql .cmake .mk .tf .zig .nim .m .mm .vue .svelte .css .scss .less .f90 "
    ".pas .asm .s"
).split()

KINDS = {
    **dict.fromkeys(_TEXTS, TEXT),
    **dict.fromkeys((".md", ".markdown"), _MARKDOWN),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _HTML),
    ".pdf": Kind("PDF", f"{_HERE}.pdf:read_pdf", needs="pypdfium2"),
    ".docx": Kind("Word", f"{_HERE}.office:read_docx", needs="docx"),
    ".pptx": Kind("PowerPoint", f"{_HERE}.office:read_pptx", needs="pptx"),
    ".xlsx": Kind("Excel", f"{_HERE}.office:read_xlsx", needs="openpyxl"),
    ".eml": Kind("email", f"{_HERE}.mail:read_eml"),
    ".ipynb": Kind("Jupyter", f"{_HERE}.markup:read_ipynb"),
    ".epub": Kind("EPUB", f"{_HERE}.markup:read_epub"),
    **dict.fromkeys((".jsonl", ".ndjson"), LINES),
    **dict.fromkeys((".csv", ".tsv"), TABLE),
    ".json": Kind("JSON", f"{_CONTENTS}:read_json", records=True),
    ".parquet": Kind(
        "Parquet", f"{_CONTENTS}:read_parquet", records=True, rows=True, needs="pyarrow"
    ),
}
"""Suffix → format. LINES, TABLE and TEXT need no process of their own."""


def kind_of(path: Path) -> Kind | None:
    """The format of a file by its suffix; None: a format that is not read."""
    format_ = KINDS.get(kind(path))
    return None if format_ and format_.needs and path.suffix == ".gz" else format_
