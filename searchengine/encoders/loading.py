"""The encoder of a collection: loaded, checked that it built it, and held while it is open.

A reindex of the same engine brings another one. From before its commit until the engine shows it,
both are held, and the settings of a state say which one built it. So a thread that searches, adds
or refreshes meanwhile never has the vectors of one and the encoder of the other.
"""

import shlex
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, cast
from weakref import proxy

import numpy as np

from searchengine.encoders.functions import Function, FunctionEncoder
from searchengine.encoders.http import HttpEncoder, is_url
from searchengine.encoders.protocol import NO_ENCODER, NoEncoder, OnBatch, Role, TextEncoder
from searchengine.errors import CollectionError, EncoderMismatch, EncoderMissing, QueryError
from searchengine.indexer.arrays import Floats, unit_rows, unusable
from searchengine.trainer.errors import TrainerError
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.trainer.sources.source import MULTILINGUAL, multilingual_folder

EncoderArgument = TextEncoder | str | Path | Function
"""A model folder, a name such as "starter", a hub name, a URL with a model
(HttpEncoder.from_source), an encoder, or a function."""


def load_given(encoder: EncoderArgument, runtime: RuntimeConfig | None = None) -> TextEncoder:
    """The encoder that a caller names or passes.

    Engines of one process share the model of a folder while any of them is open. Raises
    searchengine.trainer.errors.ModelError, EndpointError for a URL, and CollectionError for
    anything that is neither an encoder nor a function.
    """
    if is_url(encoder):
        return HttpEncoder.from_source(str(encoder))
    if isinstance(encoder, str | Path):
        from searchengine.trainer.encoder import Encoder  # which not every command needs

        config = RuntimeConfig(runtime) if isinstance(runtime, str) else runtime
        return Encoder.load(encoder, **asdict(config or RuntimeConfig()), shared=True)
    if not hasattr(type(encoder), "token_spans"):  # a TextEncoder has them
        return FunctionEncoder(cast(Function, encoder))  # raises unless it is a function
    own = cast(TextEncoder, encoder)
    if isinstance(own, FunctionEncoder) or (type(own.dim), type(own.fingerprint)) == (int, str):
        return own
    raise CollectionError(
        f"{type(own).__name__} must have a dim (a whole number) and a fingerprint (text that names "
        f"it), got {own.dim!r:.40} and {own.fingerprint!r:.40}"
    )


def load_new(
    encoder: EncoderArgument | None, dim: int | None, runtime: RuntimeConfig | None
) -> TextEncoder:
    """The encoder of a new collection; None: vectors of `dim` numbers come with the documents.

    Raises CollectionError for a `dim` that is missing, wrong, or not needed.
    """
    if encoder is None:
        if type(dim) is not int or dim < 1:
            raise CollectionError(
                "a collection without an encoder needs the width of its vectors, for example "
                f"dim=768, got dim={dim!r}"
            )
        return NoEncoder(dim)
    loaded = load_given(encoder, runtime)
    if dim not in (None, loaded.dim):
        raise CollectionError(f"the vectors are {loaded.dim} wide, got dim={dim!r}; leave dim out")
    return loaded


def load_built_by(
    identity: Mapping[str, Any], path: Path | str, runtime: RuntimeConfig | None = None
) -> TextEncoder:
    """Load the encoder that a collection's settings name. Raises EncoderMissing."""
    if identity["fingerprint"] == NO_ENCODER:
        return NoEncoder(identity["dim"], path)
    source = identity["source"]
    if source is None:
        raise EncoderMissing(
            f"{path} was built by {title(identity)}; pass it again: "
            "SearchEngine.open(path, encoder=…)"
        )
    if is_url(source):
        return HttpEncoder.from_source(source, is_named=False)
    try:
        if source == MULTILINGUAL:
            multilingual_folder()  # else the hub's would be fetched, whose vectors differ
        return load_given(source, runtime)
    except TrainerError as error:
        raise EncoderMissing(
            f"{path} was built by the encoder {source}, which cannot be loaded ({error}); if its "
            "folder has moved, name it: --encoder PATH or encoder=…"
        ) from error


def has_built(encoder: TextEncoder, identity: Mapping[str, Any]) -> bool:
    """Whether a collection's settings name this encoder.

    A collection without an encoder accepts any of the right width: the caller knows whose vectors
    it holds.
    """
    dim, stored = identity["dim"], identity["fingerprint"]
    if isinstance(encoder, FunctionEncoder) and stored != NO_ENCODER:
        return encoder.matches(stored)
    return bool(encoder.dim == dim and stored in (NO_ENCODER, encoder.fingerprint))


def check_built_by(encoder: TextEncoder, identity: Mapping[str, Any], path: Path | str) -> None:
    """Raise EncoderMismatch unless a collection's settings name this encoder."""
    if has_built(encoder, identity):
        return
    got = f"got one of {encoder.dim} with fingerprint {encoder.fingerprint:.40}"
    if isinstance(encoder, FunctionEncoder) and encoder.name == identity.get("name"):
        got = "but that name returns other vectors now"
    command = ["searchengine", "reindex", str(path), "--encoder", encoder.source or "MODEL"]
    raise EncoderMismatch(
        f"{path} was built by {title(identity)} ({identity['dim']} wide, fingerprint "
        f"{identity['fingerprint']:.40}), {got}; open it again with the encoder that built it, or "
        f"encode its documents by the other one: {shlex.join(command)}"
    )


def title(identity: Mapping[str, Any]) -> str:
    """Name, in error messages, of the encoder in a collection's settings."""
    name = identity["source"] or identity.get("name")
    return "an encoder made in Python" if name is None else f"the encoder {name}"


CACHE_SIZE = 1024  # questions, with 768 dimensions 3 MB


QUERY_MAP = "query_map"
"""The setting of a map that questions pass: its `matrix`, and what tells of it (measure.learning).
It is that of the `fingerprint` and `dim` of an encoder."""


class QuestionEncoder:
    """Encodes questions with one encoder and caches them. Safe to use from several threads."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder
        self._cache: dict[str, Floats] = {}

    def encode(self, questions: Sequence[str]) -> Floats:
        """Float32 (q, D). Raises QueryError for vectors that are zero or not finite."""
        cache = self._cache
        known = {text: cache[text] for text in questions if text in cache}
        if missing := [text for text in dict.fromkeys(questions) if text not in known]:
            rows = encoded(self.encoder, missing, "query")
            # Copies: a view would keep its whole batch.
            known |= zip(missing, map(np.copy, rows), strict=True)
            # Another thread may read the former one.
            self._cache = dict(islice((known | cache).items(), CACHE_SIZE))
        return np.stack([known[text] for text in questions])


def encoded(
    encoder: TextEncoder, texts: Sequence[str], role: Role, on_batch: OnBatch | None = None
) -> Floats:
    """Float32 (n, D). Raises QueryError for questions, CollectionError for documents."""
    what, error = ("question", QueryError) if role == "query" else ("text", CollectionError)
    vectors = np.asarray(encoder.encode(texts, role=role, on_batch=on_batch), dtype=np.float32)
    if vectors.shape != (expected := (len(texts), encoder.dim)):
        raise error(f"the encoder must return an array of shape {expected}, got {vectors.shape}")
    if (wrong := unusable(vectors)).any():
        raise error(
            f"the encoder returned NaN, infinity or zero for the {what} "
            f"{texts[int(wrong.argmax())]!r:.80}; leave it out or fix the encoder"
        )
    return vectors


@lru_cache(maxsize=2)
def _matrix(stored: str, dim: int) -> Floats:
    """The matrix (D, D) of a map, transposed."""
    return np.ascontiguousarray(np.frombuffer(b64decode(stored), "<f4").reshape(dim, dim).T)


class CollectionEncoder:
    """Safe to use from several threads.

    Attributes:
        runtime: runs the encoder that the collection names.
    """

    def __init__(
        self, collection: Any, encoder: TextEncoder | None, runtime: RuntimeConfig | None
    ) -> None:
        """Without an encoder, the one that `collection`, a Backend, names is loaded by `runtime`.

        Raises EncoderMismatch if `encoder` did not build the collection.
        """
        self.runtime, self._is_given = runtime, encoder is not None
        # Weak: a cycle would keep the model after the engine is gone.
        self._collection = proxy(collection)
        self._loading, self._closed = Lock(), False
        self._present: QuestionEncoder | None = None
        self._expected: QuestionEncoder | None = None
        if encoder is not None:
            check_built_by(encoder, collection.settings["encoder"], collection.path)
            self._present = QuestionEncoder(encoder)
        collection.accepts = self.check

    def close(self) -> None:
        """Let go of all encoders. Loading one afterwards raises CollectionError."""
        with self._loading:
            self._closed, self._present, self._expected = True, None, None

    def load(self, settings: Mapping[str, Any] | None = None) -> TextEncoder:
        """The encoder that built the state of these settings; None: the state shown.

        Raises EncoderMismatch if it is another one, CollectionError without it.
        """
        return self._held(self._collection.settings if settings is None else settings).encoder

    def encode(self, questions: Sequence[str], settings: Mapping[str, Any]) -> Floats:
        """Float32 (q, D), in the state of these settings: mapped if a map was learnt."""
        held, learnt = self._held(settings), settings.get(QUERY_MAP)
        rows = held.encode(questions)
        if learnt is None or learnt["fingerprint"] != held.encoder.fingerprint:
            return rows
        return unit_rows(rows @ _matrix(learnt["matrix"], learnt["dim"]))

    def _held(self, settings: Mapping[str, Any]) -> QuestionEncoder:
        identity, path = settings["encoder"], self._collection.path
        with self._loading:
            if self._closed:
                raise CollectionError(f"{path} is closed; open it again")
            if (held := self._built(identity)) is None:
                self.check(settings)
                held = QuestionEncoder(load_built_by(identity, path, self.runtime))
                check_built_by(held.encoder, identity, path)
                self._present = held
            return held

    def encodes(self, settings: Mapping[str, Any] | None = None) -> bool:
        """Whether there is an encoder; not if the vectors came with the documents, and no other."""
        identity = (settings or self._collection.settings)["encoder"]
        return self._is_given or identity["fingerprint"] != NO_ENCODER

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise EncoderMismatch if an encoder that is not held built a state of the collection."""
        if (present := self._present) is not None and self._built(settings["encoder"]) is None:
            check_built_by(present.encoder, settings["encoder"], self._collection.path)

    def expect(self, encoder: TextEncoder) -> None:
        """Hold another encoder too, until `settle`: a reindex may commit its vectors."""
        self.settle()  # after one that was interrupted
        with self._loading:
            self._expected = QuestionEncoder(encoder)

    def settle(self) -> None:
        """Hold the encoder that built the state shown, and not the other."""
        with self._loading:
            built = self._built(self._collection.settings["encoder"])
            self._present, self._expected = built or self._present, None

    def _built(self, identity: Mapping[str, Any]) -> QuestionEncoder | None:
        """The encoder held that built a state."""
        # The expected one first: `settle` moves it from there. Vectors that came with their
        # documents are of no reindex.
        expected = None if identity["fingerprint"] == NO_ENCODER else self._expected
        held = [each for each in (self._present, expected) if each is not None]
        return next((each for each in held if has_built(each.encoder, identity)), None)
