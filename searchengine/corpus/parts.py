"""A corpus divided into parts that can be read apart, each on a machine of its own.

A part is a file, a slice of a large file of JSON Lines, or several small files. Which parts there
are depends on the files alone, so that a second run finds those of the first. Where files are added
or removed, only the parts near them change.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from searchengine.corpus.documents import Document
from searchengine.corpus.files import (
    Unread,
    beir_corpus,
    check_corpus,
    files_below,
    read_corpus,
    read_slice,
    source_of,
)
from searchengine.corpus.formats.kinds import AS_THEY_ARE, FileChoice
from searchengine.corpus.tabular import Columns
from searchengine.corpus.text_files import LONGEST, STDIN, OnBad, bad, unreadable
from searchengine.errors import CorpusError

SLICE = 16 << 20
"""Bytes of a slice, and from which a file is a part of its own: some 15,000 abstracts."""
_SMALL = 1 << 20  # bytes below which files are read together
_TOGETHER = 64  # small files of a part, on average
_SLICED = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Part:
    """Files, or a slice of one.

    Attributes:
        root: folder of the corpus, absolute.
        files: paths below it, sorted.
        span: bytes [start, end) of the only file, in which the lines begin; None: all.
        whole: whether the corpus is a file, so that a malformed record stops the run.
        choice: files to read in another way than their suffix says.
    """

    root: Path
    files: tuple[str, ...]
    span: tuple[int, int] | None = None
    whole: bool = False
    choice: FileChoice = AS_THEY_ARE

    def __str__(self) -> str:
        """The files, for messages."""
        first = str(self.root / self.files[0])
        if self.span is not None:
            return f"{first} (bytes {self.span[0]} to {self.span[1]})"
        more = len(self.files) - 1
        return first if not more else f"{first} and {more} more files"

    def fingerprint(self, columns: Columns) -> str:
        """A hexadecimal digest of the texts: of file names, contents and field names.

        A file that cannot be read has a fingerprint too.
        """
        hashed = hashlib.sha256(json.dumps([columns.text, columns.title, columns.id]).encode())
        for name in self.files:
            start = b"" if self.span is None else b"%d" % self.span[0]
            hashed.update(b"\0".join((b"", os.fsencode(name), start, b"")))
            try:
                hashed.update(_digest(self.root / name, self.span))
            except OSError:
                hashed.update(b"unreadable")
        return hashed.hexdigest()[:32]

    def documents(
        self, columns: Columns, on_bad: OnBad | None, unread: Unread
    ) -> Iterator[Document]:
        """The documents in order. Raises CorpusError, or adds its message to `unread.failed`.

        As `read_corpus` reads them, but for keys that are generated for records of slices.
        """
        path = self.root / self.files[0]
        if self.span is None:
            if self.whole:
                return read_corpus(path, on_bad, columns=columns, choice=self.choice)
            files = [self.root / name for name in self.files]
            return read_corpus(
                self.root,
                on_bad,
                columns=columns,
                unread=unread,
                files=files,
                choice=self.choice,
            )
        return self._sliced(self.span, columns, on_bad, unread)

    def _sliced(
        self, span: tuple[int, int], columns: Columns, on_bad: OnBad | None, unread: Unread
    ) -> Iterator[Document]:
        try:
            yield from read_slice(self.root / self.files[0], span, on_bad, columns)
        except CorpusError as error:
            if self.whole:
                raise
            unread.failed.add(str(error))


def parts_of(corpus: str | Path, unread: Unread, choice: FileChoice = AS_THEY_ARE) -> list[Part]:
    """The parts of a file or folder; `unread` counts the files that are not read.

    Raises CorpusError if nothing can be read, and for standard input and databases.
    """
    path = check_corpus(corpus)
    if path == STDIN or source_of(corpus).table is not None:
        raise bad(corpus, "is read once, by one process; write it to a file of JSON Lines first")
    path = path.resolve()
    if path.is_dir() and (beir := beir_corpus(path)):
        path = beir
    if not path.is_dir():
        if not path.is_file():
            raise bad(path, "expected a file or folder")
        return [
            replace(part, choice=choice) for part in _parts_of_file(path.parent, path, whole=True)
        ]
    try:
        files = files_below(path, unread, choice)
    except OSError as error:
        raise unreadable(path, error) from error
    if not files:
        raise bad(path, f"no files to read in this folder. {unread.sentence()}".strip())
    return [replace(part, choice=choice) for part in _parts_of_folder(path, files)]


def _parts_of_folder(root: Path, files: Sequence[Path]) -> Iterator[Part]:
    together: list[str] = []
    for file in files:
        try:
            small = file.stat().st_size < _SMALL
        except OSError:  # gone since it was listed: reading it reports that
            small = True
        name = file.relative_to(root).as_posix()
        if not small:
            yield from _parts_of_file(root, file, whole=False)
            continue
        together.append(name)
        # The names say where a part ends, so that a new file moves no others to another part.
        if hashlib.sha256(os.fsencode(name)).digest()[0] % _TOGETHER == 0:
            yield Part(root, tuple(together))
            together = []
    if together:
        yield Part(root, tuple(together))


def _parts_of_file(root: Path, file: Path, *, whole: bool) -> list[Part]:
    names = (file.relative_to(root).as_posix(),)
    size = file.stat().st_size
    if file.suffix.lower() not in _SLICED or size <= SLICE:
        return [Part(root, names, None, whole)]
    starts = range(0, size, SLICE)
    return [Part(root, names, (start, start + SLICE), whole) for start in starts]


def _digest(path: Path, span: tuple[int, int] | None) -> bytes:
    """SHA-256 of a file, or of a slice, to the end of its last line."""
    with path.open("rb") as file:
        if span is None:
            return hashlib.file_digest(file, "sha256").digest()
        start, end = span
        file.seek(max(start - 1, 0))  # the byte before says whether a line begins at the start
        hashed = hashlib.sha256(file.read(end - file.tell()))
        while piece := file.readline(LONGEST):
            hashed.update(piece)
            if piece.endswith(b"\n"):
                break
        return hashed.digest()
