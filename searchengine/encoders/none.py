"""In place of an encoder, in a collection whose vectors come with the documents."""

from collections.abc import Sequence
from pathlib import Path

from searchengine.encoders.protocol import Role, Vectors
from searchengine.errors import QueryError

NO_ENCODER = "none"
"""The fingerprint in the settings of a collection without an encoder."""


class NoEncoder:
    """Refuses to encode, and says what to do.

    Attributes:
        dim: width of the collection's vectors.
        fingerprint, runs_on: as of an encoder.
    """

    fingerprint = NO_ENCODER
    runs_on = "no encoder"

    def __init__(self, dim: int, path: str | Path = "this collection") -> None:
        self.dim = dim
        self._path = path

    def encode(self, texts: Sequence[str], *, role: Role | None = None) -> Vectors:
        """Raise QueryError."""
        raise QueryError(
            f"{self._path} has no encoder: search with a vector of {self.dim} numbers, by words "
            "(mode text), or name the encoder of its vectors (encoder=… or --encoder PATH)"
        )
