"""Merging segments: rows are copied byte for byte, the rest is made from them."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy.typing as npt

from searchengine.indexer.arrays import RowNumbers, unit_rows
from searchengine.indexer.building.build import Progress, silent
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import VectorError
from searchengine.indexer.storage.vectors_file import DTYPES, VectorFile
from searchengine.indexer.storage.words_file import (
    Moved,
    Postings,
    WriteWords,
    moved,
    write_postings,
)


class Part(NamedTuple):
    """The rows of one segment that go into a merged one.

    Attributes:
        file: the stored rows of the segment.
        checksum: of the whole file, from its manifest.
        rows: the rows to take, rising; None for all.
        words: its postings, if it has them.
    """

    file: VectorFile
    checksum: str
    rows: RowNumbers | None
    words: Postings | None

    @property
    def size(self) -> int:
        """Number of rows to take."""
        return self.file.rows if self.rows is None else self.rows.size


def merged_blocks(
    parts: Sequence[Part], storage: Storage, progress: Progress | None
) -> tuple[int, Iterator[npt.NDArray[Any]]]:
    """The dimension of the parts, and their rows in that order as they are stored, verified.

    No part is empty.

    Raises:
        VectorError: no rows, or parts of different dimensions.
    """
    if not parts:
        raise VectorError("a segment needs at least one vector, got none")
    dim, total = parts[0].file.dim, sum(part.size for part in parts)
    for part in parts:
        if part.file.dim != dim:
            raise VectorError(
                f"merged segments must have equal dimensions, got {dim} and {part.file.dim} "
                f"({part.file.path.parent})"
            )
    report = progress or silent

    def blocks() -> Iterator[npt.NDArray[Any]]:
        for file, checksum, only, _ in parts:
            for stored, rows in file.verified(checksum, only):
                same = file.storage is storage
                yield stored if same else unit_rows(rows).astype(DTYPES[storage])
                report("Merging", len(rows), total)

    return dim, blocks()


def merged_words(parts: Sequence[Part], words: WriteWords | None) -> WriteWords | None:
    """Merges the postings of the parts; `words` unless all have them, made as it makes them."""
    pieces: list[Moved] = []
    notes, base = None if words is None else words.notes, 0
    for part in parts:
        if part.words is None or notes not in (None, part.words.notes):
            return words
        pieces.append(moved(part.words, part.rows, base))
        notes, base = part.words.notes, base + part.size
    if notes is None:
        return None
    return WriteWords(partial(write_postings, parts=pieces, notes=notes), notes)
