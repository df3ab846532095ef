"""The map of questions that `learn` stores: a matrix (D, D), and the setting that describes it."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats

QUERY_MAP = "query_map"
"""The setting: sha256 of the file, fingerprint of the encoder, questions, figures. It decides which
matrix is in use; a file that it does not name is garbage."""
MAP_FILE = "query_map.npy"


def file_of(matrix: Floats) -> bytes:
    """A matrix (D, D) as an .npy file, float32."""
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(matrix, np.float32))
    return file.getvalue()


def checksum_of(file: bytes) -> str:
    """The hexadecimal SHA-256 of a file."""
    return hashlib.sha256(file).hexdigest()


def matrix_of(file: bytes | None, settings: Mapping[str, Any], path: Path | str) -> Floats | None:
    """The matrix (D, D) that the settings name; None if they name none.

    `file`: its bytes. Raises CollectionError if they are missing or have another checksum.
    """
    stored = settings.get(QUERY_MAP)
    if stored is None:
        return None
    if file is None or checksum_of(file) != stored["sha256"]:
        raise CollectionError(
            f"{path}: the map of questions ({MAP_FILE}) is missing or damaged; restore it from a "
            f"backup, or search without it: searchengine learn {path} --forget"
        )
    matrix: Floats = np.load(io.BytesIO(file), allow_pickle=False)
    return matrix
