"""The encoder as the engine uses it: passages and questions in, checked vectors out."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from searchengine.corpus.files import Document
from searchengine.errors import CollectionError, EncoderMismatch, QueryError, SearchEngineError
from searchengine.ingest.passages import PassageConfig, Tokenizes, cut_documents, passage_texts
from searchengine.storage.documents.changes import Span
from trainer.errors import TrainerError
from trainer.model.source import Starter
from trainer.runtimes.config import RuntimeConfig

Vectors = npt.NDArray[np.float32]
Role = Literal["query", "document"]


class TextEncoder(Protocol):
    """What the engine asks of an encoder; trainer.encoder.Encoder is one.

    Several threads may ask at once: `add` encodes in one of its own, while others search. One that
    is a searchengine.ingest.passages.Tokenizes too can have long documents cut into passages; it
    is asked for that while `encode` runs in another thread. One that is a
    searchengine.query.questions.Shallows can encode questions by its first layers alone. One that
    has `former_fingerprints` is known by these too.
    """

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Equal for encoders that give equal vectors, different for others."""

    def encode(self, texts: Sequence[str], *, role: Role | None = None) -> Vectors:
        """Float32 (n, dim) rows of length 1, in the order given."""


def load(
    source: str | Path, runtime: RuntimeConfig | None = None, layers: int | None = None
) -> TextEncoder:
    """The trainer's encoder, run as `runtime` says; of its network the first `layers`, or all.

    Imported here: not every call encodes. Raises trainer.errors.ModelError.
    """
    from trainer.encoder import Encoder

    how = RuntimeConfig() if runtime is None else runtime
    return Encoder.load(
        source,
        runtime=how.runtime,
        precision=how.precision,
        device=how.device,
        layers=layers,
        trust_remote_code=how.trust_remote_code,
    )


def load_built_by(
    built: Mapping[str, Any], path: Path, runtime: RuntimeConfig | None = None
) -> TextEncoder:
    """The encoder that a collection's settings name. Raises CollectionError if it is gone."""
    source = built["source"]
    if source is None:
        raise CollectionError(
            f"{path} was built by an encoder made in Python; "
            "pass it again: SearchEngine.open(path, encoder=…)"
        )
    try:
        return load(source, runtime, built.get("layers"))
    except TrainerError as error:
        there = source in list(Starter) or Path(source).is_dir()
        way = "" if there else "; if it has moved, say where: --encoder PATH, or encoder=…"
        raise CollectionError(
            f"{path} was built by the encoder {source}, which cannot be loaded ({error}){way}"
        ) from error


def renamed(encoder: TextEncoder) -> dict[str, str]:
    """The fingerprints that older versions gave an encoder, each with the one it has now."""
    former: Sequence[str] = getattr(encoder, "former_fingerprints", ())
    return dict.fromkeys(former, encoder.fingerprint)


def check_built_by(encoder: TextEncoder, built: Mapping[str, Any], path: Path) -> None:
    """Raise EncoderMismatch unless this is the encoder that a collection's settings name."""
    known = {encoder.fingerprint, *renamed(encoder)}
    if encoder.dim != built["dim"] or built["fingerprint"] not in known:
        raise EncoderMismatch(
            f"{path} was built by the encoder {built['source'] or 'in memory'} "
            f"({built['dim']} wide, fingerprint {built['fingerprint'][:12]}), got one of "
            f"{encoder.dim} with fingerprint {encoder.fingerprint[:12]}; open it with the "
            "encoder that built it, or index the corpus anew"
        )


def tokenizer_of(encoder: TextEncoder) -> Tokenizes:
    """The encoder as what lets documents be cut. Raises CollectionError if it does not."""
    if not isinstance(encoder, Tokenizes):
        raise CollectionError(
            "the encoder has no token_spans and room, by which documents are cut into "
            "passages; give it both, or keep documents whole: passages=False"
        )
    return encoder


class PassageReader:
    """Cuts documents into passages and encodes them; adding.Reading is its use."""

    def __init__(self, encoder: TextEncoder, passages: PassageConfig | None) -> None:
        """Without `passages` documents stay whole. Raises CollectionError: no tokenizer."""
        self._encoder = encoder
        self._passages = passages
        self._tells = "on_batch" in inspect.signature(encoder.encode).parameters
        self._tokenizer: Tokenizes | None = None
        if passages is not None:
            self._tokenizer = tokenizer_of(encoder)

    def cut(self, documents: Sequence[Document]) -> tuple[list[list[Span]], int]:
        """The passages of each document as character offsets, and how many tokens they hold."""
        if self._passages is None or self._tokenizer is None:
            return [[(0, len(document.text))] for document in documents], 0
        return cut_documents(documents, self._tokenizer, self._passages)

    def texts(self, passages: Sequence[tuple[Document, Span]]) -> list[str]:
        """What is encoded for each passage: its text with its document's title."""
        if self._tokenizer is None:
            return [document.full_text for document, _ in passages]
        return passage_texts(passages, self._tokenizer)

    def encode(
        self,
        passages: Sequence[tuple[Document, Span]],
        texts: Sequence[str],
        on_batch: Callable[[int], None],
    ) -> Vectors:
        """Float32 (n, D) unit rows of the passages' `texts`.

        `on_batch` is handed to an encoder that takes it, as trainer.encoder.Encoder does. Raises
        CollectionError, naming a document that has no usable vector.
        """
        heard: dict[str, Any] = {"on_batch": on_batch} if self._tells else {}
        vectors = self._encoder.encode(texts, role="document", **heard)
        check_shape(vectors, (len(texts), self._encoder.dim), "passages", CollectionError)
        wrong = unusable(vectors)
        if wrong.any():
            document, _ = passages[int(wrong.argmax())]
            raise CollectionError(
                f"{document.origin or 'add'}: the encoder gave NaN, infinity or zero for the "
                f"document {document.key!r}; leave it out or mend the encoder"
            )
        return vectors


def check_shape(
    vectors: Vectors, expected: tuple[int, int], what: str, error: type[SearchEngineError]
) -> None:
    """Raise `error` where an encoder gave something else than a row of (n, D) for each text."""
    if vectors.shape != expected:
        raise error(
            f"the encoder gave an array of {vectors.shape} for {expected[0]} {what}; "
            f"expected {expected}"
        )


def unusable(vectors: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows hold NaN or infinity, or nothing but zeros: bool (n,)."""
    usable: npt.NDArray[np.bool_] = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    return ~usable


def check_questions(questions: Sequence[str]) -> None:
    """Raise QueryError for what is no text, or a blank one."""
    for position, question in enumerate(questions, start=1):
        if not isinstance(question, str):
            raise QueryError(f"question {position} is a {type(question).__name__}, not a text")
        if not question.strip():
            raise QueryError(f"question {position} is blank; ask for something")


def checked_key(key: object) -> str:
    """A document's key, if it can be one. Raises QueryError."""
    if not isinstance(key, str) or any("\ud800" <= character <= "\udfff" for character in key):
        raise QueryError(f"a key is a text, got {key!r}")
    return key


def as_array(vectors: object) -> npt.NDArray[Any]:
    """Numbers, however they are given, as an array. Raises QueryError."""
    try:
        return np.asarray(vectors)
    except ValueError as error:
        raise QueryError(f"expected a question or a vector of numbers ({error})") from error


def check_vectors(vectors: npt.ArrayLike, dim: int) -> Vectors:
    """Questions given as vectors, float32 (q, D). Raises QueryError."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] != dim or array.dtype.kind not in "fiu":
        raise QueryError(
            f"vectors to search by must be numbers of shape (q, {dim}), "
            f"got {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinity, named below
        single = array.astype(np.float32)
    wrong = unusable(single)
    if wrong.any():
        raise QueryError(
            f"vector {int(wrong.argmax()) + 1} holds NaN or infinity, or nothing but zeros, "
            "in float32"
        )
    return single
