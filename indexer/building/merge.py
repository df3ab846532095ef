"""Several segments written as one: rows are copied as they lie wherever the basis stays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Doubles, Floats, RowNumbers, evenly_in_blocks
from indexer.building.build import (
    ROTATION_SAMPLE,
    Progress,
    finish_segment,
    new_folder,
    silent,
)
from indexer.config import RotationKind, SegmentConfig
from indexer.errors import VectorError
from indexer.storage.basis import Basis, turned
from indexer.storage.manifest import VECTORS, FileEntry, Manifest
from indexer.storage.vectors import VectorFile, VectorWriter, as_floats, check_unit

GROWTH = 4
"""How many times as many rows as a rotation was fitted on make it worth fitting anew.

To fit is to store every row in another basis, rounded once more: with four times as many each time
a row passes through at most nine bases before ROTATION_SAMPLE, from where there is no more to
learn; and while fewer rows than numbers were seen, most of the basis is arbitrary.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """What goes into a merged segment from one of those before it.

    Attributes:
        file: its stored rows.
        checksum: of the whole file, from its manifest.
        rows: which of them, rising; None for all.
        basis: what they are stored in.
        config: its recipe.
    """

    file: VectorFile
    checksum: str
    rows: RowNumbers | None
    basis: Basis
    config: SegmentConfig

    @property
    def size(self) -> int:
        """How many rows it gives."""
        return self.file.rows if self.rows is None else self.rows.size

    def blocks(self) -> Iterator[tuple[npt.NDArray[np.uint8], Floats]]:
        """Its rows, a block at a time: as stored, and as float32. Good only when all were taken.

        The whole file is read, for its checksum is that of all rows.

        Raises:
            SegmentError: a row is no unit vector; at the end, the checksum does not match.
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
        """Some of its rows by their place among them. Raises SegmentError for no unit vectors."""
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
) -> Manifest:
    """Write the rows of the parts, in that order, into a new folder; see Segment.merge."""
    parts = [part for part in parts if part.size]
    if not parts:
        raise VectorError("a segment needs at least one vector, got none")
    dim = parts[0].file.dim
    for part in parts:
        if part.file.dim != dim:
            raise VectorError(
                f"segments of one width can be merged, got {dim} and {part.file.dim} "
                f"({part.file.path.parent})"
            )
    config.check_buildable(dim)
    heard = progress or silent
    kept = _kept(parts, config, refit)
    with new_folder(path) as folder:
        if kept is None:
            rows = sum(part.size for part in parts)
            basis = Basis.fitted(lambda: _sample(parts), rows, config, folder)
        else:
            basis = kept.linked(folder)
        stored, entry = _write(folder, parts, config, basis, heard)
        return finish_segment(
            stored, entry, config, basis, provenance, tuning=tuning, progress=progress
        )


def outgrown(rows: int, fitted_on: int) -> bool:
    """Whether a rotation is fitted on so few of these rows that it is worth fitting it anew.

    Never one that was not fitted on any (`fitted_on` 0): the identity suits all rows alike.
    """
    return 0 < fitted_on < ROTATION_SAMPLE and rows >= GROWTH * fitted_on


def _kept(parts: Sequence[Part], config: SegmentConfig, refit: bool | None) -> Basis | None:
    """The basis that the merged rows can be stored in; None if it shall be fitted on them."""
    if config.rotation is RotationKind.IDENTITY:
        return Basis()
    held: dict[str | None, int] = {}
    for part in parts:
        held[part.basis.key] = held.get(part.basis.key, 0) + part.size
    kind = (config.rotation, config.blocks)
    fitting = [part.basis for part in parts if (part.config.rotation, part.config.blocks) == kind]
    if refit or not fitting:
        return None
    best = max(fitting, key=lambda basis: (basis.fitted_on, held[basis.key]))
    grown = outgrown(sum(held.values()), best.fitted_on)
    return None if grown and refit is None else best


def _sample(parts: Sequence[Part]) -> Iterator[Floats]:
    """At most ROTATION_SAMPLE of all rows, evenly spread, in the encoder's own basis."""
    ends = np.cumsum([part.size for part in parts])
    back = _Turnings(Basis())
    for numbers in evenly_in_blocks(int(ends[-1]), ROTATION_SAMPLE):
        cuts = np.searchsorted(numbers, ends)
        pieces = np.split(numbers, cuts[:-1])
        for part, end, piece in zip(parts, ends, pieces, strict=True):
            if piece.size:
                inside = piece - (end - part.size)
                yield turned(part.take(inside), back.of(part.basis))


def _write(
    path: Path, parts: Sequence[Part], config: SegmentConfig, basis: Basis, progress: Progress
) -> tuple[VectorFile, FileEntry]:
    """Store the rows in the basis: byte for byte those that are stored in it already."""
    total, turnings = sum(part.size for part in parts), _Turnings(basis)
    with VectorWriter(path / VECTORS, parts[0].file.dim, config.storage, total) as writer:
        for part in parts:
            turning = turnings.of(part.basis)
            verbatim = turning is None and part.file.storage is config.storage
            for stored, rows in part.blocks():
                if verbatim:
                    writer.append_stored(stored)
                else:
                    writer.append(turned(rows, turning))
                progress("Merging", len(rows), total)
        entry = writer.seal()
    return VectorFile(path / VECTORS, writer.rows, writer.dim, config.storage), entry


class _Turnings:
    """What turns rows into one basis, by the basis they come from: a D x D product each."""

    def __init__(self, target: Basis) -> None:
        self._target = target
        self._made: dict[str | None, Doubles | None] = {}

    def of(self, basis: Basis) -> Doubles | None:
        if basis.key not in self._made:
            self._made[basis.key] = basis.turning_into(self._target)
        return self._made[basis.key]
