"""The basis that stored rows lie in: a rotation, how well founded it is, and its file."""

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
"""Rows that are turned by one thread."""


@dataclass(frozen=True, slots=True)
class Basis:
    """A rotation R (D, D), with stored = vector @ R; or the identity, which has no file.

    Attributes:
        matrix: R, float32; None is the identity.
        fitted_on: rows that R was fitted on, all or a sample of them; 0 for the identity.
        file, entry: where R lies, and the file's size and checksum.
    """

    matrix: Floats | None = None
    fitted_on: int = 0
    file: Path | None = None
    entry: FileEntry | None = None

    @classmethod
    def of(cls, folder: Path, manifest: Manifest, matrix: Floats | None) -> Self:
        """The basis of a segment's rows."""
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
        """Fit the rotation that a recipe names and save it in a segment's folder, synced.

        Args:
            sample: gives blocks (n_i, D) of unit rows in the encoder's own basis; may be asked
                twice.
            rows: how many there are, or the sample was taken from.
            config: the recipe.
            folder: where rotation.npy goes.

        Raises:
            SegmentConfigError: a block of the recipe ends beyond D.
        """
        if config.rotation is RotationKind.IDENTITY:
            return cls()
        if config.rotation is RotationKind.BLOCKS:
            matrix = rotation.blockwise(sample(), config.blocks)
        else:
            matrix = rotation.pca(sample())
        if config.rotation is RotationKind.ITQ:
            matrix = rotation.itq(matrix, sample(), config.prefix)
        file = io.BytesIO()
        np.save(file, matrix, allow_pickle=False)
        entry = FileEntry.written(folder / ROTATION, file.getvalue())
        return cls(matrix, rows, folder / ROTATION, entry)

    def linked(self, folder: Path) -> Self:
        """The same basis with its file in another folder too.

        Raises:
            SegmentError: the file was altered. Its checksum goes into the new manifest as it is.
        """
        if self.file is None or self.entry is None:
            return self
        link_verified(self.file, folder / ROTATION, self.entry)
        return replace(self, file=folder / ROTATION)

    @property
    def key(self) -> str | None:
        """Equal for equal rotations: the checksum of the file."""
        return None if self.entry is None else self.entry.sha256

    def turning(self) -> Doubles | None:
        """What turns rows of the encoder's own basis into this one; None leaves them as they are.

        In float64, so that a product is rounded once: BLAS sums a row in an order that depends on
        its place in the block, and in float32 equal rows would be stored as different ones.
        """
        return None if self.matrix is None else self.matrix.astype(np.float64)

    def turning_into(self, other: "Basis") -> Doubles | None:
        """What turns rows of this basis into another one; None leaves them as they are."""
        if self.key == other.key:
            return None
        back, turn = self.turning(), other.turning()
        if back is None or turn is None:
            return turn if back is None else back.T
        return back.T @ turn


def turned(block: Floats, turning: Doubles | None) -> Floats:
    """Rows (n, D) in another basis, see Basis.turning; not re-normalised."""
    if turning is None:
        return block
    wide = block.astype(np.float64)
    # BLAS wakes a thread for every core, and a few rows then wait for the slowest: 14 ms, not 0.1.
    few = len(block) <= SINGLE_THREAD_ROWS
    product = np.einsum("nd,de->ne", wide, turning) if few else wide @ turning
    return np.asarray(product, np.float32)
