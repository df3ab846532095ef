"""The encoder of a collection: loaded, checked that it built it, and held while it is open.

A reindex of the same engine brings another one. From before its commit until the engine shows it,
both are held, and the settings of a state say which one built it. So a thread that searches, adds
or refreshes meanwhile never has the vectors of one and the encoder of the other.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, cast
from weakref import WeakMethod

from searchengine.encoders.functions import Function, FunctionEncoder, SentenceTransformerEncoder
from searchengine.encoders.http import HttpEncoder, is_url
from searchengine.encoders.protocol import (
    MEMBERS,
    NO_ENCODER,
    MinimalEncoder,
    NoEncoder,
    TextEncoder,
    WrappedEncoder,
)
from searchengine.encoders.questions import QuestionEncoder
from searchengine.errors import CollectionError, EncoderMismatch, EncoderMissing
from searchengine.trainer.errors import TrainerError
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.trainer.sources.multilingual import MULTILINGUAL, multilingual_folder
from searchengine.trainer.sources.source import Starter

EncoderArgument = MinimalEncoder | str | Path | Function
"""A model folder, a hub name, "starter", a URL with a model (HttpEncoder.from_source), an encoder,
a SentenceTransformer, or a function."""


def load(source: str | Path, runtime: RuntimeConfig | None = None) -> TextEncoder:
    """Load a trainer.encoder.Encoder; or the encoder of a URL.

    Engines of one process share the model of a folder while any of them is open. Imports the
    trainer, which not every command needs. Raises trainer.errors.ModelError, and EndpointError for
    a URL.
    """
    if is_url(source):
        return HttpEncoder.from_source(str(source))
    from searchengine.trainer.encoder import Encoder

    return Encoder.load(source, **asdict(runtime or RuntimeConfig()), shared=True)


def load_given(encoder: EncoderArgument, runtime: RuntimeConfig | None = None) -> TextEncoder:
    """The encoder that a caller names or passes.

    A SentenceTransformer, a function, and an object with dim, fingerprint and encode are wrapped.
    Raises searchengine.trainer.errors.ModelError, and CollectionError for anything else.
    """
    if isinstance(encoder, str | Path):
        return load(encoder, runtime)
    kind = type(encoder)
    if all(hasattr(kind, member) for member in MEMBERS):
        return cast(TextEncoder, encoder)
    if any(base.__module__.startswith("sentence_transformers.") for base in kind.__mro__):
        return SentenceTransformerEncoder(encoder)
    if all(hasattr(encoder, name) for name in ("dim", "fingerprint", "encode")):
        return WrappedEncoder(cast(MinimalEncoder, encoder))
    return FunctionEncoder(cast(Function, encoder))  # raises unless it is a function


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
        raise CollectionError(
            f"the encoder's vectors are {loaded.dim} wide, got dim={dim!r}; leave dim out"
        )
    return loaded


def load_built_by(
    identity: Mapping[str, Any], path: Path | str, runtime: RuntimeConfig | None = None
) -> TextEncoder:
    """Load the encoder that a collection's settings name. Raises EncoderMissing."""
    if identity["fingerprint"] == NO_ENCODER:
        return NoEncoder(identity["dim"], path)
    source = identity["source"]
    if is_url(source):
        return HttpEncoder.from_source(source, is_named=False)
    if source is None:
        raise EncoderMissing(
            f"{path} was built by {title(identity)}; pass it again: "
            "SearchEngine.open(path, encoder=…)"
        )
    try:
        if source == MULTILINGUAL:
            multilingual_folder()  # else the hub's would be fetched, whose vectors differ
        return load(source, runtime)
    except TrainerError as error:
        exists = source in (*Starter, MULTILINGUAL) or Path(source).is_dir()
        advice = "; if it has moved, name its folder: --encoder PATH or encoder=…"
        raise EncoderMissing(
            f"{path} was built by the encoder {source}, which cannot be loaded ({error})"
            f"{'' if exists else advice}"
        ) from error


def check_built_by(
    encoder: TextEncoder, identity: Mapping[str, Any], path: Path | str, advice: str = ""
) -> None:
    """Raise EncoderMismatch unless a collection's settings name this encoder.

    A collection without an encoder accepts any of the right width: the caller knows whose vectors
    it holds. `advice`: the way out, for the message; "": that of a collection.
    """
    dim, stored, name = identity["dim"], identity["fingerprint"], identity.get("name")
    if stored == NO_ENCODER:
        if encoder.dim != dim:
            raise EncoderMismatch(
                f"{path} holds vectors of {dim} dimensions, got an encoder of {encoder.dim}; open "
                "it with the encoder of its vectors, or without one"
            )
    elif name is not None and isinstance(encoder, FunctionEncoder):
        if not encoder.matches(stored):
            returns = "that name returns other vectors now"
            got = returns if name == encoder.name else f"got {encoder.name!r}"
            message = f"{path} was built by {title(identity)}, but {got}"
            raise EncoderMismatch(f"{message}; {advice or _advice(encoder, path)}")
    elif encoder.dim != dim or stored != encoder.fingerprint:
        raise EncoderMismatch(
            f"{path} was built by the encoder {identity['source'] or name or 'in memory'} "
            f"({dim} wide, fingerprint {stored[:12]}), got one of {encoder.dim} with fingerprint "
            f"{encoder.fingerprint[:12]}; {advice or _advice(encoder, path)}"
        )


def _advice(encoder: TextEncoder, path: Path | str) -> str:
    return (
        "open it with the encoder that built it, or encode its documents by the other one: "
        f"searchengine reindex {path} --encoder {encoder.source or 'MODEL'}"
    )


def title(identity: Mapping[str, Any]) -> str:
    """Name, in error messages, of the encoder in a collection's settings."""
    if identity["source"] is not None:
        return f"the encoder {identity['source']}"
    name = identity.get("name")
    return "an encoder made in Python" if name is None else f"the function {name!r}"


class Encoded(Protocol):
    """What an encoder needs of the collection that it encodes: see backends.contract.Backend."""

    accepts: Callable[[Mapping[str, Any]], None]

    @property
    def path(self) -> Path | str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...


class CollectionEncoder:
    """Safe to use from several threads.

    Attributes:
        argument, runtime: as it was opened, or reindexed.
    """

    def __init__(
        self,
        collection: Encoded,
        encoder: TextEncoder | None = None,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        """Without an encoder, the one that the collection names is loaded by `runtime`.

        Raises EncoderMismatch if `encoder` did not build the collection.
        """
        self.argument, self.runtime = encoder, runtime
        self._collection = collection
        self._loading, self._closed = Lock(), False
        self._present: QuestionEncoder | None = None
        self._expected: tuple[QuestionEncoder, ...] = ()
        if encoder is not None:
            check_built_by(encoder, collection.settings["encoder"], collection.path)
            self._present = QuestionEncoder(encoder, runtime)
        check = WeakMethod(self.check)  # a cycle would keep the model after the engine is gone

        def accepts(settings: Mapping[str, Any]) -> None:
            if (method := check()) is not None:
                method(settings)

        collection.accepts = accepts

    def close(self) -> None:
        """Let go of all encoders. Loading one afterwards raises CollectionError."""
        with self._loading:
            self._closed, self.argument, self._present, self._expected = True, None, None, ()

    def load(self, settings: Mapping[str, Any] | None = None) -> TextEncoder:
        """The encoder that built the state of these settings; None: the state shown.

        Raises EncoderMismatch if it is another one, CollectionError without it.
        """
        return self._loaded_for(settings).encoder

    def questions(self, settings: Mapping[str, Any] | None = None) -> QuestionEncoder:
        """The same, for questions."""
        return self._loaded_for(settings)

    def is_past(self, settings: Mapping[str, Any]) -> bool:
        """Whether the state shown now was built by another encoder, which must then be loaded."""
        return bool(settings["encoder"] != self._collection.settings["encoder"])

    def encodes(self, settings: Mapping[str, Any]) -> bool:
        """Whether there is an encoder; not if the vectors came with the documents, and no other."""
        return self.argument is not None or settings["encoder"]["fingerprint"] != NO_ENCODER

    def counts(self) -> dict[str, int]:
        """How many questions were answered from the cache, and how many were encoded."""
        present = self._present
        return {"cached": 0, "encoded": 0} if present is None else dict(present.counts)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise EncoderMismatch if an encoder that is not held built a state of the collection."""
        if self._present is not None and self._built(settings["encoder"]) is None:
            self._check(self._present, settings["encoder"])

    def expect(self, encoder: TextEncoder, runtime: RuntimeConfig | None) -> object:
        """Hold another encoder too, until `settle` gets what this returns.

        A reindex may commit its vectors from now on.
        """
        with self._loading:
            self._expected += (QuestionEncoder(encoder, runtime),)
            return self._expected[-1]

    def settle(self, expected: object) -> None:
        """Hold the encoder that built the state shown, and those expected after it.

        Another thread may have begun the next reindex meanwhile.
        """
        with self._loading:
            built = self._built(self._collection.settings["encoder"])
            if built is not None and built is not self._present:
                self._present, self.argument, self.runtime = built, built.encoder, built.runtime
            past = [i for i, held in enumerate(self._expected) if held in (built, expected)]
            self._expected = self._expected[max(past, default=-1) + 1 :]

    def _loaded_for(self, settings: Mapping[str, Any] | None) -> QuestionEncoder:
        identity = (self._collection.settings if settings is None else settings)["encoder"]
        path = self._collection.path
        with self._loading:
            if self._closed:
                raise CollectionError(f"{path} is closed; open it again")
            if (built := self._built(identity)) is not None:
                return built
            if (held := self._present) is None:
                held = QuestionEncoder(load_built_by(identity, path, self.runtime), self.runtime)
            self._check(held, identity)
            self._present = held
            return held

    def _check(self, held: QuestionEncoder, identity: Mapping[str, Any]) -> None:
        advice = ""
        if self.argument is None and held is self._present:  # it did build the collection
            advice = "another process has changed the encoder since then; open the collection again"
        check_built_by(held.encoder, identity, self._collection.path, advice)

    def _built(self, identity: Mapping[str, Any]) -> QuestionEncoder | None:
        """The encoder held that built a state."""
        held = [] if self._present is None else [self._present]
        if identity["fingerprint"] != NO_ENCODER:  # which suits any, and is of no reindex
            held += self._expected
        for each in held:
            with suppress(EncoderMismatch):
                check_built_by(each.encoder, identity, self._collection.path)
                return each
        return None
