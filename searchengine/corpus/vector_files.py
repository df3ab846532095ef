"""Vectors of documents or questions in a .npy file."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.corpus.text_files import bad, unreadable

_EXPECTED = "numbers of shape (n, D), one row per document"


def read_vectors(path: Path, *, may_be_empty: bool = False) -> npt.NDArray[Any]:
    """The array (n, D) of a file, mapped: its rows are read when they are used.

    Raises CorpusError for a missing, malformed or empty file, and for anything but numbers.
    """
    if path.is_dir():
        raise bad(path, "is a folder, expected a .npy file of vectors")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        why = f"cannot be read as a .npy file ({error}); write it by numpy.save"
        raise bad(path, why) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise bad(path, f"expected {_EXPECTED}, got several arrays (.npz); save one by numpy.save")
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise bad(path, f"expected {_EXPECTED}, got {array.dtype} of shape {array.shape}")
    rows, dim = array.shape
    if not dim or not (rows or may_be_empty):
        raise bad(path, f"holds no vectors (shape {array.shape})")
    return array
