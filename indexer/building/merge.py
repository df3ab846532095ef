"""Merging segments: rows are copied byte for byte where the basis stays the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, Floats, RowNumbers, evenly_in_blocks
from searchengine.indexer.building.build import (
    ROTATION_SAMPLE,
    Passages,
    Progress,
    finish_segment,
    new_folder,
    optional_files,
    silent,
)
from searchengine.indexer.building.words_file import Moved, WriteWords, moved, write_postings
from searchengine.indexer.config import RotationKind, SegmentConfig
from searchengine.indexer.errors import VectorError
from searchengine.indexer.storage.basis import Basis, rotate
from searchengine.indexer.storage.manifest import VECTORS, FileEntry, Manifest
from searchengine.indexer.storage.vectors_file import (
    VectorFile,
    VectorWriter,
    as_floats,
    check_unit,
)
from searchengine.indexer.storage.words_format import Postings

GROWTH = 4
"""A rotation is fitted again when the rows have grown by this factor since it was fitted.

Fitting stores every row in another basis and rounds it again. With a factor of four a row passes
through at most nine bases before ROTATION_SAMPLE, beyond which a sample is used anyway. While a
basis was fitted on fewer rows than dimensions, most of it is arbitrary.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one segment that go into a merged one.

    Attributes:
        file: the stored rows of the segment.
        checksum: of the whole file, from its manifest.
        rows: the rows to take, rising; None for all.
        basis: the basis of the stored rows.
        config: the config of the segment.
        words: its postings, if it has them.
    """

    file: VectorFile
    checksum: str
    rows: RowNumbers | None
    basis: Basis
    config: SegmentConfig
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

    def take(self, inside: RowNumbers) -> Floats:
        """Rows by their position among those to take. SegmentError if one is not a unit vector."""
        numbers = inside if self.rows is None else self.rows[inside]
        rows = self.file.take(numbers)
        check_unit(self.file.path, rows, self.file.storage, numbers)
        self.file.release()
        return rows


def write_merged(
    path: Path,
    parts: Sequence[Part],
    config: SegmentConfig,
    *,
    refit: bool | None,
    provenance: Mapping[str, str],
    tuning: Mapping[str, Any] | None,
    progress: Progress | None,
    words: WriteWords | None = None,
    passages: Passages | None = None,
) -> Manifest:
    """Write the rows of the parts, in that order, into a new folder; see Segment.merge."""
    parts = [part for part in parts if part.size]
    if not parts:
        raise VectorError("a segment needs at least one vector, got none")
    dim = parts[0].file.dim
    for part in parts:
        if part.file.dim != dim:
            raise VectorError(
                f"merged segments must have equal dimensions, got {dim} and {part.file.dim} "
                f"({part.file.path.parent})"
            )
    config.check_width(dim)
    report = progress or silent
    basis_kept = _basis_to_keep(parts, config, refit)
    with new_folder(path) as folder:
        if basis_kept is None:
            rows = sum(part.size for part in parts)
            basis = Basis.fitted(lambda: _sample(parts), rows, config, folder)
        else:
            basis = basis_kept.linked(folder)
        stored, entry = _write(folder, parts, config, basis, report)
        return finish_segment(
            stored,
            entry,
            config,
            basis,
            provenance,
            tuning=tuning,
            progress=progress,
            extras=optional_files(stored.rows, _merged_words(parts, words) or words, passages),
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


def outgrown(rows: int, fitted_on: int) -> bool:
    """Whether a rotation should be fitted again, now that there are `rows` rows.

    Never the identity, which was not fitted (`fitted_on` 0).
    """
    return 0 < fitted_on < ROTATION_SAMPLE and rows >= GROWTH * fitted_on


def _basis_to_keep(
    parts: Sequence[Part], config: SegmentConfig, refit: bool | None
) -> Basis | None:
    """The basis to keep for the merged rows; None to fit one on them."""
    if config.rotation is RotationKind.IDENTITY:
        return Basis()
    rows_of: dict[str | None, int] = {}
    for part in parts:
        rows_of[part.basis.key] = rows_of.get(part.basis.key, 0) + part.size
    fitting = [part.basis for part in parts if part.config.rotation is config.rotation]
    if refit or not fitting:
        return None
    best = max(fitting, key=lambda basis: (basis.fitted_on, rows_of[basis.key]))
    grown = outgrown(sum(rows_of.values()), best.fitted_on)
    return None if grown and refit is None else best


def _sample(parts: Sequence[Part]) -> Iterator[Floats]:
    """At most ROTATION_SAMPLE of all rows, evenly spread, in the encoder's basis."""
    ends = np.cumsum([part.size for part in parts])
    rotations = _Rotations(Basis())
    for numbers in evenly_in_blocks(int(ends[-1]), ROTATION_SAMPLE):
        cuts = np.searchsorted(numbers, ends)
        pieces = np.split(numbers, cuts[:-1])
        for part, end, piece in zip(parts, ends, pieces, strict=True):
            if piece.size:
                inside = piece - (end - part.size)
                yield rotate(part.take(inside), rotations.matrix_from(part.basis))


def _write(
    path: Path, parts: Sequence[Part], config: SegmentConfig, basis: Basis, progress: Progress
) -> tuple[VectorFile, FileEntry]:
    """Store the rows in the basis; those already stored in it are copied byte for byte."""
    total, rotations = sum(part.size for part in parts), _Rotations(basis)
    with VectorWriter(path / VECTORS, parts[0].file.dim, config.storage, total) as writer:
        for part in parts:
            matrix = rotations.matrix_from(part.basis)
            verbatim = matrix is None and part.file.storage is config.storage
            for stored, rows in part.blocks():
                if verbatim:
                    writer.append_stored(stored)
                else:
                    writer.append(rotate(rows, matrix))
                progress("Merging", len(rows), total)
        entry = writer.seal()
    return VectorFile(path / VECTORS, writer.rows, writer.dim, config.storage), entry


class _Rotations:
    """Matrices that rotate rows into one basis, by the basis of the rows: a D x D product each."""

    def __init__(self, target: Basis) -> None:
        self._target = target
        self._matrices: dict[str | None, Doubles | None] = {}

    def matrix_from(self, basis: Basis) -> Doubles | None:
        if basis.key not in self._matrices:
            self._matrices[basis.key] = basis.into(self._target)
        return self._matrices[basis.key]
