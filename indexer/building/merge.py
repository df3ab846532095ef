"""Merging segments: rows are copied byte for byte, the rest is made anew."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.building.build import (
    Passages,
    Progress,
    finish_segment,
    new_folder,
    optional_files,
    silent,
)
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import VectorError
from searchengine.indexer.storage.manifest import VECTORS
from searchengine.indexer.storage.vectors_file import (
    VectorFile,
    VectorWriter,
    as_floats,
    check_unit,
)
from searchengine.indexer.storage.words_file import (
    Moved,
    Postings,
    WriteWords,
    moved,
    write_postings,
)


@dataclass(frozen=True, slots=True)
class Part:
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
    words: Postings | None = None

    @property
    def size(self) -> int:
        """Number of rows to take."""
        return self.file.rows if self.rows is None else self.rows.size

    def blocks(self) -> Iterator[tuple[npt.NDArray[np.uint8], Floats]]:
        """The rows in blocks, as stored and as float32, verified when the iterator has ended.

        The whole file is read, because its checksum covers all rows.

        Raises:
            SegmentError: a row is not a unit vector; at the end, the checksum does not match.
        """
        for first, stored in self.file.verified(self.checksum):
            numbers = np.arange(first, first + len(stored))
            if self.rows is not None:
                low, high = np.searchsorted(self.rows, [first, first + len(stored)])
                numbers = self.rows[low:high]
                stored = stored[numbers - first]
            if numbers.size:
                rows = as_floats(stored, self.file.storage)
                check_unit(self.file.path, rows, self.file.storage, numbers)
                yield stored, rows


def write_merged(
    path: Path,
    parts: Sequence[Part],
    config: SegmentConfig,
    *,
    provenance: Mapping[str, str],
    tuning: Mapping[str, Any] | None,
    progress: Progress | None,
    words: WriteWords | None = None,
    passages: Passages | None = None,
) -> None:
    """Write the rows of the parts, in that order, into a new folder; see Segment.merge."""
    parts = [part for part in parts if part.size]
    if not parts:
        raise VectorError("a segment needs at least one vector, got none")
    dim, total = parts[0].file.dim, sum(part.size for part in parts)
    for part in parts:
        if part.file.dim != dim:
            raise VectorError(
                f"merged segments must have equal dimensions, got {dim} and {part.file.dim} "
                f"({part.file.path.parent})"
            )
    config.check_width(dim)
    report = progress or silent
    with new_folder(path) as folder:
        with VectorWriter(folder / VECTORS, dim, config.storage, total) as writer:
            for part in parts:
                for stored, rows in part.blocks():
                    if part.file.storage is config.storage:
                        writer.append_stored(stored)
                    else:
                        writer.append(rows)
                    report("Merging", len(rows), total)
            entry = writer.seal()
        merged = VectorFile(folder / VECTORS, total, dim, config.storage)
        extras = optional_files(total, _merged_words(parts, words) or words, passages)
        finish_segment(
            merged, entry, config, provenance, tuning=tuning, progress=progress, extras=extras
        )


def _merged_words(parts: Sequence[Part], words: WriteWords | None) -> WriteWords | None:
    """Merges the postings of the parts; None unless all have them, made as `words` makes them."""
    pieces: list[Moved] = []
    notes, base = None if words is None else words.notes, 0
    for part in parts:
        if part.words is None or notes not in (None, part.words.notes):
            return None
        pieces.append(moved(part.words, part.rows, base))
        notes, base = part.words.notes, base + part.size
    if notes is None:
        return None
    return WriteWords(partial(write_postings, parts=pieces, notes=notes), notes)
