"""What an encoder is: TextEncoder, whose members are all declared.

A user's own object needs only those of MinimalEncoder: it is wrapped where it is passed in
(searchengine.encoders.loading.load_given), and nothing below looks an ability up by its name.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from searchengine.errors import CollectionError, QueryError

Vectors = npt.NDArray[np.float32]
Spans = npt.NDArray[np.integer[Any]]
Role = Literal["query", "document"]
OnBatch = Callable[[int], None]
MEMBERS = ("dim", "fingerprint", "encode", "source", "runs_on", "matryoshka_dims", "token_spans",
           "room")  # fmt: skip
NO_ENCODER = "none"
"""The fingerprint in the settings of a collection without an encoder."""


class MinimalEncoder(Protocol):
    """What a user's own encoder needs. It may have any other member of TextEncoder as well."""

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Equal for encoders that return equal vectors, different for others."""

    def encode(self, texts: Sequence[str], *, role: Role | None = None) -> Vectors:
        """Float32 (n, dim), rows of length 1, in the order of the texts."""


class TextEncoder(MinimalEncoder, Protocol):
    """The encoder of a collection; searchengine.trainer.encoder.Encoder is one.

    A class that extends this needs `dim`, `fingerprint` and `encode`; the others have defaults: no
    source, no trained prefixes, no tokenizer. Several threads may call an encoder at the same time:
    `add` encodes in a second thread while others search, and while documents are cut.
    """

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


class WrappedEncoder(TextEncoder):
    """A user's object as an encoder; the defaults of TextEncoder replace what it lacks.

    Attributes:
        wrapped: the object.
    """

    dim, fingerprint, runs_on = 0, "", "made in Python"
    source: str | None = None
    matryoshka_dims: tuple[int, ...] = ()

    def __init__(self, wrapped: MinimalEncoder) -> None:
        parameters = inspect.signature(wrapped.encode).parameters
        dim, fingerprint = wrapped.dim, wrapped.fingerprint
        if type(dim) is not int or not isinstance(fingerprint, str) or "role" not in parameters:
            raise CollectionError(
                f"{type(wrapped).__name__} must have dim (a whole number), fingerprint (text that "
                "names the encoder) and encode with the keyword role ('document', 'query' or "
                f"None), got dim={dim!r}, fingerprint={fingerprint!r}, encode{[*parameters]}; or "
                "pass a function from texts to vectors"
            )
        self.wrapped, self._reports = wrapped, "on_batch" in parameters
        self.matryoshka_dims = (dim,)
        for member in set(MEMBERS) - {"encode"}:
            if hasattr(wrapped, member):
                setattr(self, member, getattr(wrapped, member))

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: OnBatch | None = None
    ) -> Vectors:
        """The object's own; `on_batch` is passed if it accepts that."""
        options: dict[str, Any] = {"on_batch": on_batch} if self._reports else {}
        return np.asarray(self.wrapped.encode(texts, role=role, **options))


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
