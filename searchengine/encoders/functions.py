"""A plain function as an encoder, identified by its name and its vectors of a few texts."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.encoders.protocol import OnBatch, Role, TextEncoder, Vectors
from searchengine.errors import CollectionError, SearchEngineError

Function = Callable[[list[str]], npt.ArrayLike]
"""Texts (n,) to vectors (n, D) of any length but 0."""

PROBE = (
    "A whale rests one half of its brain at a time.",
    "Dough rises while yeast turns sugar into gas.",
    "고래는 어떻게 잠을 자나요?",
    "42",
)
"""Texts that identify a function by their vectors."""
TOLERANCE = 0.03
"""Maximum difference of two fingerprints' numbers. Rounding in bfloat16 changes a unit vector by
0.01 to 0.02 and each number by less; another function changes most numbers by about 1."""
_NUMBERS = 4  # numbers a text


class FunctionEncoder(TextEncoder):
    """An encoder made of a function; several threads may call it at the same time.

    Attributes:
        name: identifies the function, together with its vectors.
        title: name in error messages.
        tolerance: maximum difference of two fingerprints' numbers.
        error: raised for what it returns.
    """

    tolerance = TOLERANCE
    error: type[SearchEngineError] = CollectionError

    def __init__(self, function: Function, name: str | None = None, dim: int | None = None) -> None:
        """Use a function for documents and questions; a model that reads them in two ways extends
        TextEncoder. `name`: by default the function's own. `dim`: width of the vectors; None: as
        the function returns them. Raises CollectionError unless it is callable and has a name."""
        if not callable(function):
            raise CollectionError(
                "an encoder must be a model folder, a hub name, a function from texts to vectors, "
                f"or an object whose class extends TextEncoder, got {function!r:.80}"
            )
        name = getattr(function, "__name__", None) if name is None else name
        if not isinstance(name, str) or not name.strip() or name == "<lambda>":
            raise CollectionError(
                "a function needs a name, by which a collection knows it again: "
                "FunctionEncoder(function, 'name')"
            )
        self.name, self._function, self._dim = name, function, dim
        self.title = f"the function {name!r}"

    @property
    def dim(self) -> int:
        """Width of the vectors. Calls the function, once, unless it was named."""
        return self._probed.shape[1] if self._dim is None else self._dim

    @cached_property
    def fingerprint(self) -> str:
        """The name, the width, and numbers that the vectors of PROBE give."""
        directions = np.arange(1, self.dim + 1)[:, None] * np.arange(1, _NUMBERS + 1)
        numbers = self._probed.astype(np.float64) @ np.cos(np.sqrt(2) * directions)
        return f"{self.name}/{self.dim}/{' '.join(f'{number:.2f}' for number in numbers.flat)}"

    def matches(self, fingerprint: str) -> bool:
        """Whether a fingerprint is this function's, up to rounding on another machine."""
        name, _, stored = fingerprint.rpartition("/")
        own_name, _, own = self.fingerprint.rpartition("/")
        if name != own_name:
            return False
        numbers, expected = (np.array(text.split(), np.float64) for text in (stored, own))
        return numbers.shape == expected.shape and bool(
            np.allclose(numbers, expected, rtol=0, atol=self.tolerance)
        )

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: OnBatch | None = None
    ) -> Vectors:
        """Float32 (n, dim) unit rows, in the order of the texts; one without length stays so.

        Raises CollectionError if the function returns another shape, or no numbers.
        """
        if not len(texts):
            return np.empty((0, self.dim), np.float32)
        return self._checked(self._call(list(texts), role, on_batch), len(texts), self.dim)

    def _call(self, texts: list[str], role: Role | None, on_batch: OnBatch | None = None) -> Any:
        return self._function(texts)

    def _checked(self, vectors: Any, count: int, dim: int | None) -> Vectors:
        """Unit rows (count, dim); None: of any width."""
        try:
            array = np.asarray(vectors)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self.error(f"{self.title} must return an array of numbers ({error})") from error
        fits = array.ndim == 2 and len(array) == count and dim in (None, array.shape[1])
        if not fits or array.dtype.kind not in "fiu":
            raise self.error(
                f"{self.title} must return an array of numbers of shape ({count}, {dim or 'D'}) "
                f"for {count} texts, got {array.dtype} of shape {array.shape}"
            )
        lengths = np.linalg.norm(array.astype(np.float64), axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        return np.asarray(array.astype(np.float32) / lengths, np.float32)

    @cached_property
    def _probed(self) -> Vectors:
        """The vectors of PROBE, as documents."""
        return self._checked(self._call([*PROBE], "document"), len(PROBE), self._dim)
