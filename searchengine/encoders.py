"""The encoder: what is required of it, how it is loaded, and checks of what it returns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from searchengine.errors import CollectionError, EncoderMismatch, QueryError, SearchEngineError
from trainer.errors import TrainerError
from trainer.model.source import Starter
from trainer.runtimes.config import RuntimeConfig

Vectors = npt.NDArray[np.float32]
Role = Literal["query", "document"]


class TextEncoder(Protocol):
    """The encoder that SearchEngine needs; trainer.encoder.Encoder is one.

    Several threads may call it at the same time: `add` encodes in a second thread while others
    search. Optional: with the methods of searchengine.ingest.passages.Tokenizes, long documents are
    cut into passages (they are called while `encode` runs in another thread); with those named in
    searchengine.query.request, queries are encoded by the first layers alone; a collection that
    names one of `former_fingerprints` is accepted too.
    """

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Equal for encoders that return equal vectors, different for others."""

    def encode(self, texts: Sequence[str], *, role: Role | None = None) -> Vectors:
        """Float32 (n, dim), rows of length 1, in the order of the texts."""


def load(
    source: str | Path, runtime: RuntimeConfig | None = None, layers: int | None = None
) -> TextEncoder:
    """Load a trainer.encoder.Encoder with its first `layers`, or all.

    Imports the trainer, which not every command needs. Raises trainer.errors.ModelError.
    """
    from trainer.encoder import Encoder

    runtime = RuntimeConfig() if runtime is None else runtime
    return Encoder.load(
        source,
        runtime=runtime.runtime,
        precision=runtime.precision,
        device=runtime.device,
        layers=layers,
        trust_remote_code=runtime.trust_remote_code,
    )


def load_built_by(
    built: Mapping[str, Any], path: Path, runtime: RuntimeConfig | None = None
) -> TextEncoder:
    """Load the encoder that a collection's settings name. Raises CollectionError."""
    source = built["source"]
    if source is None:
        raise CollectionError(
            f"{path} was built by an encoder made in Python; "
            "pass it again: SearchEngine.open(path, encoder=…)"
        )
    try:
        return load(source, runtime, built.get("layers"))
    except TrainerError as error:
        exists = source in list(Starter) or Path(source).is_dir()
        advice = "" if exists else "; if it has moved, name its folder: --encoder PATH or encoder=…"
        raise CollectionError(
            f"{path} was built by the encoder {source}, which cannot be loaded ({error}){advice}"
        ) from error


def renamed(encoder: TextEncoder) -> dict[str, str]:
    """Fingerprint that an older version computed for this encoder → its present fingerprint."""
    former: Sequence[str] = getattr(encoder, "former_fingerprints", ())
    return dict.fromkeys(former, encoder.fingerprint)


def check_built_by(encoder: TextEncoder, built: Mapping[str, Any], path: Path) -> None:
    """Raise EncoderMismatch unless a collection's settings name this encoder."""
    fingerprints = {encoder.fingerprint, *renamed(encoder)}
    if encoder.dim != built["dim"] or built["fingerprint"] not in fingerprints:
        raise EncoderMismatch(
            f"{path} was built by the encoder {built['source'] or 'in memory'} "
            f"({built['dim']} wide, fingerprint {built['fingerprint'][:12]}), got one of "
            f"{encoder.dim} with fingerprint {encoder.fingerprint[:12]}; open it with the "
            "encoder that built it, or index the corpus again"
        )


def check_shape(
    vectors: Vectors, expected: tuple[int, int], what: str, error: type[SearchEngineError]
) -> None:
    """Raise `error` unless an encoder returned an array of the `expected` shape (n, D)."""
    if vectors.shape != expected:
        raise error(
            f"the encoder must return an array of shape {expected} for {expected[0]} {what}, "
            f"got {vectors.shape}"
        )


def unusable(vectors: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Rows with NaN or infinity, or with zeros only: bool (n,)."""
    usable: npt.NDArray[np.bool_] = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    return ~usable


def check_questions(questions: Sequence[str]) -> None:
    """Raise QueryError for a query that is not text, or empty."""
    for position, question in enumerate(questions, start=1):
        name = "the query" if len(questions) == 1 else f"query {position}"
        if not isinstance(question, str):
            raise QueryError(f"{name} must be text, got {type(question).__name__}")
        if not question.strip():
            raise QueryError(f"{name} is empty")


def checked_key(key: object) -> str:
    """The key, if it is valid. Raises QueryError."""
    if not isinstance(key, str) or any("\ud800" <= character <= "\udfff" for character in key):
        raise QueryError(f"a key must be text in UTF-8, got {key!r}")
    return key


def as_array(vectors: object) -> npt.NDArray[Any]:
    """Numbers as an array. Raises QueryError."""
    try:
        return np.asarray(vectors)
    except ValueError as error:
        raise QueryError(f"a query must be text or a vector of numbers ({error})") from error


def check_vectors(vectors: npt.ArrayLike, dim: int) -> Vectors:
    """Query vectors as float32 (q, D). Raises QueryError."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind not in "fiu":
        raise QueryError(
            f"query vectors must be numbers of shape (q, {dim}), "
            f"got {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):  # values beyond float32 become infinity, reported below
        single = array.astype(np.float32)
    wrong = unusable(single)
    if wrong.any():
        raise QueryError(
            f"query vectors must be finite and not all zeros in float32; "
            f"vector {int(wrong.argmax()) + 1} is not"
        )
    return single
