"""What is required of an encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from searchengine.errors import QueryError

Vectors = npt.NDArray[np.float32]
Role = Literal["query", "document"]
NO_ENCODER = "none"
"""The fingerprint in the settings of a collection without an encoder."""


@runtime_checkable
class Starts(Protocol):
    """An encoder that starts a faster runtime than the one for the first texts."""

    def start(self) -> None:
        """Start it now: before many texts, or so that no question waits for it."""


@runtime_checkable
class TextEncoder(Protocol):
    """The encoder that SearchEngine needs; searchengine.trainer.encoder.Encoder is one.

    Several threads may call it at the same time: `add` encodes in a second thread while others
    search. Optional: with the methods of searchengine.ingest.passages.Tokenizes, long documents are
    cut into passages (they are called while `encode` runs in another thread); with those named in
    searchengine.encoders.questions, queries are encoded by the first layers alone; an encoder of
    questions alone names in `aligned_to` the fingerprint of the encoder whose documents it finds.
    """

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Equal for encoders that return equal vectors, different for others."""

    def encode(self, texts: Sequence[str], *, role: Role | None = None) -> Vectors:
        """Float32 (n, dim), rows of length 1, in the order of the texts."""


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
