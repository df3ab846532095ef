"""The rotation that packs the most energy into the first dimensions of every vector.

An orthogonal matrix does not change full-width cosines, so the rotation costs no accuracy. The
p-dimensional prefix that keeps the most energy is spanned by the leading eigenvectors of X^T X
(Eckart and Young 1936; uncentred principal components, because cosine does not subtract the mean).
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, Floats
from searchengine.indexer.config import RotationKind, SegmentConfig
from searchengine.indexer.errors import VectorError
from searchengine.indexer.storage.manifest import ROTATION, FileEntry, link_verified

Blocks = Iterable[npt.NDArray[np.floating]]

SPAN = 256
"""Dimensions of the widest prefix for which `completed` keeps the energy."""

MIN_FACTORED = 640
"""Width D from which a query is rotated faster by factors of R than by R."""

_ROUNDING = 1e-6


def pca(blocks: Blocks) -> Floats:
    """Fit the rotation on rows that arrive in blocks; memory is one block and two D x D matrices.

    Fewer rows than D is fine: the basis is completed orthogonally, and up to D / 2 rows take a
    fraction of the time. The sign of each column is chosen so that its largest entry is positive,
    so equal input gives an equal matrix.

    Args:
        blocks: arrays (n_i, D) of finite rows.

    Returns:
        (D, D) float32, orthogonal to 1e-5; `x @ R` has its energy in descending order.

    Raises:
        VectorError: no rows at all, or blocks of different widths.
    """
    return _leading(_energy(blocks)).astype(np.float32)


def completed(rotation: Floats) -> Floats:
    """The same first SPAN dimensions, and behind them a basis that is quick to apply.

    Full-width scores do not depend on the basis of the rest. It is chosen such that R, with signs
    of its first SPAN columns changed so that its diagonal is not positive there, is a block
    reflector I - U S^-1 U^T (Schreiber and Parlett 1988): U are the first SPAN columns of I - R,
    and S their first SPAN rows, transposed. A single query then reads U and S^-1 only, which takes
    half the time. Prefixes wider than SPAN keep less energy than those of `pca`.

    Args:
        rotation: (D, D) float32, orthogonal. Returned as it is where D is below MIN_FACTORED.
    """
    dim = len(rotation)
    if dim < MIN_FACTORED:
        return rotation
    head = rotation[:, :SPAN].astype(np.float64)
    head *= _signs(head)
    head = head @ (1.5 * np.eye(SPAN) - 0.5 * (head.T @ head))  # removes the rounding of float32
    columns = np.eye(dim, SPAN) - head
    whole = np.eye(dim) - columns @ np.linalg.solve(columns[:SPAN].T, columns.T)
    if np.abs(whole.T @ whole - np.eye(dim)).max() > _ROUNDING:
        return rotation
    return np.concatenate([rotation[:, :SPAN], whole[:, SPAN:].astype(np.float32)], axis=1)


def _signs(head: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """The signs (SPAN,), 1 or -1, of the leading columns that keep S far from singular."""
    return np.where(np.diag(head) > 0, -1, 1).astype(head.dtype)


def factored(rows: Floats) -> tuple[Floats, Floats, Floats] | None:
    """The factors of a rotation R from `completed`; None for any other rotation.

    Args:
        rows: R transposed, (D, D) float32.

    Returns:
        U transposed (SPAN, D), S^-1 transposed (SPAN, SPAN), and the signs (SPAN,) of the columns.
    """
    dim = len(rows)
    if dim < MIN_FACTORED:
        return None
    signs = _signs(rows[:SPAN])
    columns = (np.eye(SPAN, dim) - signs[:, None] * rows[:SPAN]).astype(np.float32)
    try:
        inverse = np.linalg.inv(columns[:, :SPAN].astype(np.float64)).T.astype(np.float32)
    except np.linalg.LinAlgError:
        return None
    # Two probe vectors detect a rotation that has the same first columns and others behind them.
    probe = np.random.default_rng(0).standard_normal((dim, 2)).astype(np.float32)
    probe /= np.linalg.norm(probe, axis=0)
    rotated = probe - columns.T @ (inverse @ (columns @ probe))
    rotated[:SPAN] *= signs[:, None]
    if not np.abs(rotated - rows @ probe).max() <= _ROUNDING:
        return None
    return columns, np.ascontiguousarray(inverse), signs


def _energy(blocks: Blocks) -> npt.NDArray[np.floating]:
    """All rows X (n, D) where n <= D / 2, as they are, else X^T X (D, D) in float64.

    Within a block of float32 rows the products are summed in float32, in a third of the time: the
    energy of each prefix stays the same to five digits (100,000 real rows).
    """
    gram: Doubles | None = None
    pending: list[npt.NDArray[np.floating]] = []
    rows, dim = 0, 0
    for block in blocks:
        wide = np.asarray(block)
        wide = wide.astype(np.result_type(wide, np.float32), copy=False)
        if wide.ndim != 2 or dim not in (0, wide.shape[1]):
            expected = f"(n, {dim or 'D'})"
            raise VectorError(f"rotation blocks must be {expected}, got shape {wide.shape}")
        rows, dim = rows + len(wide), wide.shape[1]
        pending.append(wide)
        if 2 * rows <= dim:
            continue
        for rows_held in pending:
            product = (rows_held.T @ rows_held).astype(np.float64)
            gram = product if gram is None else gram + product
        pending.clear()
    if gram is not None:
        return gram
    if rows == 0:
        raise VectorError("a rotation needs at least one row to be fitted on, got none")
    return np.concatenate(pending)


def _leading(energy: npt.NDArray[np.floating]) -> Doubles:
    """Eigenvectors of X^T X as columns, in descending order of energy, largest entries positive.

    If X itself is given, having few rows, only eigenvectors in the span of its rows are computed:
    X^T = Q R, and an eigenvector w of R R^T, which is n x n, gives one, Q w. The rest of Q
    completes them. (768 dimensions, one thread: 11 ms instead of 64 for 12 rows, 26 for 100, 42
    instead of 74 for 300.)
    """
    energy = energy.astype(np.float64, copy=False)
    rows = len(energy)
    if rows < energy.shape[1]:
        vectors, inner = np.linalg.qr(energy.T, mode="complete")
        _, within = np.linalg.eigh(inner[:rows] @ inner[:rows].T)
        vectors[:, :rows] = vectors[:, :rows] @ within[:, ::-1]
    else:
        _, vectors = np.linalg.eigh(energy)
        vectors = vectors[:, ::-1]  # eigh gives ascending energy
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.ascontiguousarray(vectors * signs)


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
    def fitted(
        cls,
        sample: Callable[[], Iterable[Floats]],
        rows: int,
        config: SegmentConfig,
        folder: Path,
    ) -> Self:
        """Fit the rotation of a config and save it in a segment's folder, synced.

        Args:
            sample: returns blocks (n_i, D) of unit rows in the encoder's basis.
            rows: number of rows that the sample was taken from.
            config: the index config.
            folder: the folder for rotation.npy.
        """
        if config.rotation is RotationKind.IDENTITY:
            return cls()
        matrix = pca(sample())
        widths = (config.prefix, *(width for width, _ in config.stages))
        if max(widths) <= SPAN:
            matrix = completed(matrix)
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
        from_this, from_other = self.from_encoder(), other.from_encoder()
        if from_this is None or from_other is None:
            return from_other if from_this is None else from_this.T
        return from_this.T @ from_other


def rotate(block: Floats, matrix: Doubles | None) -> Floats:
    """Rows (n, D) rotated by a matrix of Basis, None for the identity; not re-normalised."""
    if matrix is None:
        return block
    wide = block.astype(np.float64)
    # BLAS wakes a thread per core, and a few rows then wait for the slowest: 14 ms instead of 0.1.
    single = len(block) <= SINGLE_THREAD_ROWS
    product = np.einsum("nd,de->ne", wide, matrix) if single else wide @ matrix
    return np.asarray(product, np.float32)
