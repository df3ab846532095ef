"""The formats of files, and the process with limits that runs their readers.

No file can stop the others from being read. The process reads one file after another. On one that
takes too long or too much memory, or crashes, it is ended and replaced, and the file is refused.
It runs `main`. Requests come in and answers go out as lines of JSON. A request is [reader, path].
The answers are the fields of a Text, [place, record], or a sentence on what is lost, and at last
{"end": why the file cannot be read, or ""}.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from searchengine.corpus.contents import LONGEST, Text, bad, suffix_of, too_long
from searchengine.corpus.documents import of_json
from searchengine.errors import CorpusError, UnreadableFile
from searchengine.trainer.errors import install_line

_HERE, _CONTENTS = __name__, "searchengine.corpus.contents"


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
    format_ = KINDS.get(suffix_of(path))
    return None if format_ and format_.needs and path.suffix == ".gz" else format_


# ------------------------------------------------------------------------------ the process

# Libraries that start a thread for each core would take the memory that readers need.
_ONE_THREAD = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Parser(AbstractContextManager["Parser"]):
    """A process that runs readers, started when it is first needed. A context manager.

    `memory`: bytes that it may hold. `seconds`: of processor time for an answer.
    """

    def __init__(self, memory: int = 2 << 30, seconds: int = 120) -> None:
        self._limits = memory, seconds
        self._idle: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        """End the process."""
        if self._idle is not None:
            with self._idle as process:
                process.kill()

    def read(self, path: Path, kind: Kind) -> Iterator[Any]:
        """The Parts of a file, or place and record of each object or row. Raises UnreadableFile."""
        if kind.missing:
            what = f"to read {kind.name} files, install the extra formats: {kind.missing}"
            raise UnreadableFile(str(bad(path, what)))
        process, self._idle = self._idle or self._start(), None
        try:
            assert process.stdin and process.stdout
            request = json.dumps([kind.reader, str(path)]) + "\n"
            with suppress(BrokenPipeError):  # it has ended
                os.write(process.stdin.fileno(), request.encode())
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    continue  # it ended meanwhile
                answer = json.loads(line)
                if not isinstance(answer, dict):
                    yield answer
                elif "end" not in answer:
                    yield Text(**answer)
                else:
                    self._idle = process
                    if answer["end"]:
                        raise UnreadableFile(answer["end"])
                    return
            status, (memory, seconds) = process.wait(), self._limits
            ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            limit = f"{memory >> 20} MiB of memory or {seconds} s of processor time"
            what = f"its reader ended ({ended}): the file is damaged, or needs more than {limit}"
            raise UnreadableFile(str(bad(path, what)))
        finally:
            if self._idle is None:  # it has ended, or has more answers than the caller wants
                with process:
                    process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        modules = map(os.path.abspath, sys.path)  # the paths of this process
        return subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import main; main{self._limits}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(modules)},
        )


def main(memory: int, seconds: int) -> None:
    """Answer requests until the other end closes. `memory`: besides mapped files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # a lower one holds
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for request in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        for answer in _answers(*json.loads(request)):
            print(answer, file=answers, flush=True)
            signal.setitimer(signal.ITIMER_PROF, seconds)


def _answers(reader: str, path: str) -> Iterator[str]:
    """The answers to one request, as lines of JSON."""
    why = ""
    try:
        module, function = reader.split(":")
        for part in getattr(import_module(module), function)(Path(path)):
            if isinstance(part, Text):
                part = asdict(part) if len(part.text) <= LONGEST else too_long("text")
            yield json.dumps(part, default=of_json)
    except CorpusError as error:
        why = str(error)
    except MemoryError:
        why = str(bad(path, "needs too much memory to be read"))
    except Exception as error:  # whatever a library raises on a damaged file
        what = " ".join(f"{type(error).__name__}: {error}".split())
        why = str(bad(path, f"cannot be read; is it damaged? ({what})"))
    yield json.dumps({"end": why})
