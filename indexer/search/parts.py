"""The files of an open segment, checked and read."""

from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats
from indexer.config import Device, RotationKind, SegmentConfig, Structure
from indexer.errors import SegmentError
from indexer.search import gpu
from indexer.search.allowed import Allowed, restriction
from indexer.search.cascade import Cascade
from indexer.search.coarse import CoarseIndex
from indexer.search.exact import Bounds
from indexer.storage.manifest import BOUNDS, COARSE, MANIFEST, ROTATION, Manifest
from indexer.storage.rotation import Turn
from indexer.storage.vectors import Prefixes, VectorFile

_LONGEST_HEADER = 1024  # of rotation.npy, in bytes; numpy writes 128


class Parts(NamedTuple):
    """What an open segment holds on to."""

    file: VectorFile
    full: CoarseIndex  # the same rows, mapped by faiss
    coarse: CoarseIndex
    cascade: Cascade
    bounds: Bounds | None
    turn: Turn | None  # None is the identity
    gpu_full: CoarseIndex | None = None  # copies on a GPU, which stand in for scans without filter
    gpu_coarse: CoarseIndex | None = None
    kept: Allowed | None = None  # the rows of a trial, which are all that it may find; None for all

    @classmethod
    def open(
        cls, folder: Path, manifest: Manifest, device: Device, shared: Turn | None = None
    ) -> Self:
        """Check every file's size, and the contents of all but the vectors; then map them.

        A turn that is shared is that of another open segment, of the same rotation: it takes the
        place of this one's file, which is then not read.

        Raises:
            SegmentError: naming the file that is missing, truncated, altered or unknown; there is
                no GPU.
        """
        needed = {manifest.vectors_file, COARSE}
        if manifest.config.rotation is not RotationKind.IDENTITY:
            needed.add(ROTATION)
        if manifest.config.bounds:
            needed.add(BOUNDS)
        unread = {manifest.vectors_file} if shared is None else {manifest.vectors_file, ROTATION}
        for name in sorted(needed):
            check_file(folder, manifest, name, contents=name not in unread)
        coarse = CoarseIndex.open(folder / COARSE, mapped=True)
        if (coarse.rows, coarse.width) != (manifest.rows, manifest.config.prefix):
            raise SegmentError(
                f"{folder / COARSE} holds {coarse.rows} x {coarse.width} prefixes, the manifest "
                f"says {manifest.rows} x {manifest.config.prefix}; index again"
            )
        file = VectorFile(
            folder / manifest.vectors_file, manifest.rows, manifest.dim, manifest.config.storage
        )
        full = CoarseIndex.open(file.path, mapped=True)
        bounds = Bounds.open(folder / BOUNDS, manifest.dim) if manifest.config.bounds else None
        turn = load_rotation(folder, manifest) if shared is None else shared
        parts = cls(file, full, coarse, Cascade(coarse, full), bounds, turn)
        return parts.on_gpu() if device is Device.GPU else parts

    def remapped(self, path: Path) -> Self:
        """The same over a copy of the rows' file, mapped anew."""
        file = VectorFile(path, self.file.rows, self.file.dim, self.file.storage)
        full = CoarseIndex.open(path, mapped=True)
        return self._replace(file=file, full=full, cascade=Cascade(self.coarse, full))

    def with_coarse(self, config: SegmentConfig, kept: Allowed | None) -> Self:
        """The same with another coarse stage, built of the rows `kept`; it is scanned on the CPU.

        A GPU's copy of the old coarse stage holds other prefixes, so it is left out.
        """
        rows = None if kept is None else kept.rows
        coarse = CoarseIndex.build(Prefixes(self.file, config.prefix), config, kept=rows)
        cascade = Cascade(coarse, self.full)
        return self._replace(coarse=coarse, cascade=cascade, gpu_coarse=None, kept=kept)

    def restricted(self, allowed: Allowed | npt.ArrayLike | None) -> Allowed | None:
        """The rows that a caller allows, of a trial those that it holds; None for no filter.

        Raises:
            VectorError: as indexer.search.allowed.restriction.
        """
        only = restriction(allowed, self.file.rows)
        if only is None or self.kept is None:
            return only
        return Allowed.of(np.flatnonzero(only.mask & self.kept.mask), self.file.rows)

    def searched(self, only: Allowed | None) -> Allowed | None:
        """The rows that a search may find under this filter; None for all."""
        return self.kept if only is None else only

    def on_gpu(self) -> Self:
        """The same with copies of what is scanned in the memory of a GPU."""
        full = gpu.flat(Prefixes(self.file, self.file.dim))
        if self.coarse.structure is not Structure.FLAT:
            return self._replace(gpu_full=full)
        coarse = gpu.flat(Prefixes(self.file, self.coarse.width))
        return self._replace(gpu_full=full, gpu_coarse=coarse)

    def scanner(self, of: Literal["full", "coarse"], size: int, filtered: bool) -> CoarseIndex:
        """What scans these rows for the best `size` of them: a GPU where it can."""
        copies = {"full": self.gpu_full, "coarse": self.gpu_coarse}
        copy = copies[of]
        if copy is None or filtered or size >= gpu.LONGEST:
            return self.full if of == "full" else self.coarse
        return copy


def check_file(folder: Path, manifest: Manifest, name: str, *, contents: bool) -> None:
    """Compare one file with its entry: its size always, its checksum on request."""
    entry = manifest.files.get(name)
    if entry is None:
        raise SegmentError(f"{folder / MANIFEST} lists no {name}; index again")
    entry.check(folder / name, contents=contents)


def load_rotation(path: Path, manifest: Manifest) -> Turn | None:
    """The verified turn, or None for the identity."""
    if manifest.config.rotation is RotationKind.IDENTITY:
        return None
    return Turn(_square(path / ROTATION, manifest.dim))


def _square(path: Path, dim: int) -> Floats:
    """The float32 matrix (dim, dim) of a .npy file that holds it and nothing else.

    The size and the header are compared, not followed: a header can ask for any amount of memory,
    and numpy hands it to Python's parser. All that differs between versions of numpy is how many
    spaces it ends with.

    Raises:
        SegmentError: the file is anything else.
    """
    start = path.stat().st_size - 4 * dim * dim
    with path.open("rb") as file:
        head = file.read(start) if 10 < start <= _LONGEST_HEADER else b""
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (dim, dim)
        length = (start - 10).to_bytes(2, "little") if head else b""
        if head[:10] != b"\x93NUMPY\x01\x00" + length or head[10:].rstrip(b" \n") != text:
            raise SegmentError(
                f"{path} holds no float32 matrix of ({dim}, {dim}); restore it or index again"
            )
    matrix: Floats = np.fromfile(path, "<f4", dim * dim, offset=start).reshape(dim, dim)
    if not np.isfinite(matrix).all():
        raise SegmentError(f"{path} holds NaN or infinity; restore it or index again")
    return matrix
