"""The basis of stored rows: a rotation, the number of rows it was fitted on, and its file."""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from indexer.arrays import Doubles, Floats
from indexer.config import RotationKind, SegmentConfig
from indexer.storage import rotation
from indexer.storage.manifest import ROTATION, FileEntry, Manifest, link_verified

SINGLE_THREAD_ROWS = 8
"""Maximum number of rows that one thread rotates alone."""


@dataclass(frozen=True, slots=True)
class Basis:
    """A rotation R (D, D), with stored = vector @ R; or the identity, which has no file.

    Attributes:
        matrix: R, float32; None is the identity.
        fitted_on: rows that R was fitted on, all or a sample of them; 0 for the identity.
        file, entry: the file of R, and its size and checksum.
    """

    matrix: Floats | None = None
    fitted_on: int = 0
    file: Path | None = None
    entry: FileEntry | None = None

    @classmethod
    def of(cls, folder: Path, manifest: Manifest, matrix: Floats | None) -> Self:
        """The basis of a segment."""
        if matrix is None:
            return cls()
        return cls(matrix, manifest.fitted_on, folder / ROTATION, manifest.files[ROTATION])

    @classmethod
    def fitted(
        cls,
        sample: Callable[[], Iterable[Floats]],
        rows: int,
        config: SegmentConfig,
        folder: Path,
    ) -> Self:
        """Fit the rotation of a config and save it in a segment's folder, synced.

        Args:
            sample: returns blocks (n_i, D) of unit rows in the encoder's basis; may be called
                twice.
            rows: number of rows that the sample was taken from.
            config: the index config.
            folder: the folder for rotation.npy.

        Raises:
            SegmentConfigError: a block of the config ends beyond D.
        """
        if config.rotation is RotationKind.IDENTITY:
            return cls()
        if config.rotation is RotationKind.BLOCKS:
            matrix = rotation.blockwise(sample(), config.blocks)
        else:
            matrix = rotation.pca(sample())
        if config.rotation is RotationKind.ITQ:
            matrix = rotation.itq(matrix, sample(), config.prefix)
        widths = (config.prefix, config.bounds, *(width for width, _ in config.stages))
        if config.rotation is not RotationKind.BLOCKS and max(widths) <= rotation.SPAN:
            matrix = rotation.completed(matrix)
        file = io.BytesIO()
        np.save(file, matrix, allow_pickle=False)
        entry = FileEntry.written(folder / ROTATION, file.getvalue())
        return cls(matrix, rows, folder / ROTATION, entry)

    def linked(self, folder: Path) -> Self:
        """The same basis, its file linked into another folder.

        Raises:
            SegmentError: the file was altered. The new manifest takes over its checksum.
        """
        if self.file is None or self.entry is None:
            return self
        link_verified(self.file, folder / ROTATION, self.entry)
        return replace(self, file=folder / ROTATION)

    @property
    def key(self) -> str | None:
        """The checksum of the file: equal for equal rotations."""
        return None if self.entry is None else self.entry.sha256

    def from_encoder(self) -> Doubles | None:
        """The matrix that rotates rows of the encoder's basis into this one; None: the identity.

        In float64, so that a product is rounded once: BLAS sums a row in an order that depends on
        its place in the block, and in float32 equal rows would be stored as different ones.
        """
        return None if self.matrix is None else self.matrix.astype(np.float64)

    def into(self, other: "Basis") -> Doubles | None:
        """The matrix that rotates rows of this basis into another; None: the identity."""
        if self.key == other.key:
            return None
        mine, theirs = self.from_encoder(), other.from_encoder()
        if mine is None or theirs is None:
            return theirs if mine is None else mine.T
        return mine.T @ theirs


def rotate(block: Floats, matrix: Doubles | None) -> Floats:
    """Rows (n, D) rotated by a matrix of Basis, None for the identity; not re-normalised."""
    if matrix is None:
        return block
    wide = block.astype(np.float64)
    # BLAS wakes a thread per core, and a few rows then wait for the slowest: 14 ms instead of 0.1.
    single = len(block) <= SINGLE_THREAD_ROWS
    product = np.einsum("nd,de->ne", wide, matrix) if single else wide @ matrix
    return np.asarray(product, np.float32)
