"""What an encoder is: TextEncoder. A user's own one extends it, unless it is a function."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from searchengine.errors import QueryError

Vectors = npt.NDArray[np.float32]
Spans = npt.NDArray[np.integer[Any]]
Role = Literal["query", "document"]
OnBatch = Callable[[int], None]
NO_ENCODER = "none"
"""The fingerprint in the settings of a collection without an encoder."""


class TextEncoder(Protocol):
    """The encoder of a collection; searchengine.trainer.encoder.Encoder is one.

    A class that extends this needs `dim`, `fingerprint` and `encode`; the others have defaults: no
    source, no trained prefixes, no tokenizer. Several threads may call an encoder at the same time:
    `add` encodes in a second thread while others search, and while documents are cut.
    """

    if TYPE_CHECKING:  # a property here would keep an __init__ from setting them

        @property
        def dim(self) -> int:
            """Width of the vectors."""

        @property
        def fingerprint(self) -> str:
            """Equal for encoders that return equal vectors, different for others."""

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: OnBatch | None = None
    ) -> Vectors:
        """Float32 (n, dim), rows of length 1, in the order of the texts.

        `on_batch`: may be called with the number of texts that were just encoded.
        """

    @property
    def source(self) -> str | None:
        """The name by which it is loaded again; None: it must be passed again."""
        return None

    @property
    def runs_on(self) -> str:
        """Where it is computed, such as "native int8"."""
        return "made in Python"

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """The prefix lengths it was trained for, descending; the first is `dim`."""
        return (self.dim,)

    def token_spans(self, texts: Sequence[str]) -> Sequence[Spans]:
        """The offsets [start, end) of all tokens of each text, (n, 2), in order.

        Empty for every text if there is no tokenizer; then documents are kept whole.
        """
        return [np.empty((0, 2), np.int64) for _ in texts]

    def room(self, role: Role) -> int | None:
        """The number of tokens that `encode` reads of a text of this role; None: any number."""
        return None


class NoEncoder(TextEncoder):
    """Replaces the encoder of a collection where vectors come with the documents.

    It refuses to encode, and says what to do.
    """

    dim, fingerprint, runs_on = 0, NO_ENCODER, "no encoder"

    def __init__(self, dim: int, path: str | Path = "this collection") -> None:
        self.dim, self._path = dim, path

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: OnBatch | None = None
    ) -> Vectors:
        """Raise QueryError."""
        raise QueryError(
            f"{self._path} has no encoder: search with a vector of {self.dim} numbers, by words "
            "(mode text), or name the encoder of its vectors (encoder=… or --encoder PATH)"
        )
