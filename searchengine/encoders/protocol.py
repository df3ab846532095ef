"""What an encoder is: TextEncoder, whose members are all declared.

A user's own object needs only those of MinimalEncoder. It is wrapped once, where it is passed in
(searchengine.encoders.loading.load_given), and nothing below looks an ability up by its name.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from searchengine.errors import CollectionError, QueryError

Vectors = npt.NDArray[np.float32]
Spans = npt.NDArray[np.integer[Any]]
Role = Literal["query", "document"]
OnBatch = Callable[[int], None]
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


class TextEncoder(Protocol):
    """The encoder of a collection; searchengine.trainer.encoder.Encoder is one.

    A class that extends this needs `dim`, `fingerprint` and `encode`; the others have defaults: no
    source, no tokenizer. Several threads may call an encoder at the same
    time: `add` encodes in a second thread while others search, and while documents are cut.
    """

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
    def name(self) -> str:
        """What messages call it; "" for an encoder without a name."""
        return ""

    @property
    def runs_on(self) -> str:
        """Where it is computed, such as "openvino bf16"."""
        return "made in Python"

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts that it puts in front of texts, by name, as far as it tells them."""
        return {}

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """The prefix lengths it was trained for, descending; the first is `dim`."""
        return (self.dim,)

    @property
    def tokenizes(self) -> bool:
        """Whether `token_spans` and `room` work, which cutting documents into passages needs."""
        return False

    def token_spans(self, texts: Sequence[str]) -> Sequence[Spans]:
        """The offsets [start, end) of all tokens of each text, (n, 2), in order."""
        raise CollectionError("this encoder has no tokenizer: keep documents whole: passages=False")

    def room(self, role: Role) -> int:
        """The number of tokens that `encode` reads of a text of this role."""
        raise CollectionError("this encoder has no tokenizer: keep documents whole: passages=False")

    @property
    def limited(self) -> bool:
        """Whether `encode` leaves out what is beyond the `room` for a text."""
        return self.tokenizes

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the tokenizer knows; 0: not known."""
        return 0

    def unknown_tokens(self, texts: Sequence[str]) -> float:
        """Share of the tokens of these texts that the vocabulary does not have, 0–1."""
        return 0.0

    def start(self) -> None:
        """Start the fastest runtime: before many texts, or so that no question waits for it."""
        return None


class WrappedEncoder:
    """A user's object as an encoder; defaults replace the members that it lacks.

    Attributes:
        wrapped: the object.
    """

    def __init__(self, wrapped: MinimalEncoder) -> None:
        self.wrapped = wrapped
        parameters = inspect.signature(wrapped.encode).parameters
        self._reports = "on_batch" in parameters
        name = type(wrapped).__name__
        if "role" not in parameters and not any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        ):
            raise CollectionError(
                f"{name}.encode must take the keyword role ('document', 'query' or None); pass a "
                "function from texts to vectors if it has no use for it"
            )
        if type(wrapped.dim) is not int or wrapped.dim < 1:
            raise CollectionError(f"{name}.dim must be a whole number, got {wrapped.dim!r}")
        if not isinstance(wrapped.fingerprint, str):
            raise CollectionError(
                f"{name}.fingerprint must be text that names the encoder, got "
                f"{wrapped.fingerprint!r}"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "wrapped":  # asked for while it is unpickled
            raise AttributeError(name)
        if hasattr(self.wrapped, name) or name not in vars(TextEncoder):
            return getattr(self.wrapped, name)
        default = vars(TextEncoder)[name]
        return default.__get__(self) if hasattr(default, "__get__") else default

    @property
    def tokenizes(self) -> bool:
        """Whether the object has `token_spans` and `room`."""
        return all(hasattr(self.wrapped, name) for name in ("token_spans", "room"))

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: OnBatch | None = None
    ) -> Vectors:
        """The object's own; `on_batch` is passed if it accepts that."""
        options: dict[str, Any] = {"on_batch": on_batch} if self._reports else {}
        vectors = np.asarray(self.wrapped.encode(texts, role=role, **options))
        if vectors.dtype.kind not in "fiu":
            raise CollectionError(
                f"{type(self.wrapped).__name__}.encode must return an array of numbers, got "
                f"{vectors.dtype}"
            )
        return vectors


class NoEncoder(TextEncoder):
    """Replaces the encoder of a collection where vectors come with the documents.

    It refuses to encode, and says what to do.
    """

    fingerprint = NO_ENCODER
    runs_on = "no encoder"

    def __init__(self, dim: int, path: str | Path = "this collection") -> None:
        self._dim, self._path = dim, path

    @property
    def dim(self) -> int:
        """Width of the collection's vectors."""
        return self._dim

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: OnBatch | None = None
    ) -> Vectors:
        """Raise QueryError."""
        raise QueryError(
            f"{self._path} has no encoder: search with a vector of {self.dim} numbers, by words "
            "(mode text), or name the encoder of its vectors (encoder=… or --encoder PATH)"
        )
