"""Vectors of a .npy file, mapped."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchengine.corpus.lines import bad

if TYPE_CHECKING:
    import numpy.typing as npt

_EXPECTED = "numbers of shape (n, D), one row per document"


def read_vectors(path: Path, *, may_be_empty: bool = False) -> "npt.NDArray[Any]":
    """The array (n, D) of a .npy file, mapped: its rows are read when they are used.

    `may_be_empty`: n may be 0, as in the export of a collection without vectors.

    Raises CorpusError for a missing, malformed or empty file, and for anything but numbers.
    """
    import numpy as np  # not at the top: the command line's help does not wait for it

    if path.is_dir():
        raise bad(path, "is a folder, expected a .npy file of vectors")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise bad(path, f"cannot be read ({error.strerror or error})") from error
    except (ValueError, EOFError) as error:
        raise bad(
            path, f"cannot be read as a .npy file ({error}); write it by numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise bad(path, f"expected {_EXPECTED}, got several arrays (.npz); save one by numpy.save")
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise bad(path, f"expected {_EXPECTED}, got {array.dtype} of shape {array.shape}")
    rows, dim = array.shape
    if not dim or not (rows or may_be_empty):
        raise bad(path, f"holds no vectors (shape {array.shape})")
    return array
