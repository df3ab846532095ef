"""Loads the encoder of a collection, and checks that it is the one that built it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from searchengine.encoders.functions import Function, FunctionEncoder, SentenceTransformerEncoder
from searchengine.encoders.http import HttpEncoder, is_url
from searchengine.encoders.protocol import (
    NO_ENCODER,
    MinimalEncoder,
    NoEncoder,
    Role,
    TextEncoder,
    WrappedEncoder,
)
from searchengine.errors import CollectionError, EncoderMismatch, EncoderMissing, EndpointError
from searchengine.trainer.errors import TrainerError
from searchengine.trainer.model.source import Starter
from searchengine.trainer.runtimes.config import RuntimeConfig

EncoderArgument = MinimalEncoder | str | Path | Function
"""A model folder, a hub name, "starter", a URL with a model (HttpEncoder.from_source), an encoder,
a SentenceTransformer, or a function."""


def load(
    source: str | Path,
    runtime: RuntimeConfig | None = None,
    layers: int | None = None,
    route: Role | None = None,
) -> TextEncoder:
    """Load a trainer.encoder.Encoder with its first `layers`, or all; or the encoder of a URL.

    `route`: of a Router, load the network for these texts alone.

    Imports the trainer, which not every command needs. Raises trainer.errors.ModelError, and
    EndpointError for a URL.
    """
    if is_url(source):
        if layers is not None:
            raise EndpointError(f"{source} has no layers to choose from; leave layers out")
        return HttpEncoder.from_source(str(source))
    from searchengine.trainer.encoder import Encoder

    runtime = RuntimeConfig() if runtime is None else runtime
    return Encoder.load(
        source,
        runtime=runtime.runtime,
        precision=runtime.precision,
        device=runtime.device,
        layers=layers,
        trust_remote_code=runtime.trust_remote_code,
        route=route,
    )


def load_given(
    encoder: EncoderArgument, runtime: RuntimeConfig | None = None, layers: int | None = None
) -> TextEncoder:
    """The encoder that a caller names or passes.

    A SentenceTransformer, a function, and an object with dim, fingerprint and encode are wrapped.
    Raises searchengine.trainer.errors.ModelError, and CollectionError for anything else.
    """
    if isinstance(encoder, str | Path):
        return load(encoder, runtime, layers)
    if any(base.__module__.startswith("sentence_transformers.") for base in type(encoder).__mro__):
        return SentenceTransformerEncoder(encoder)
    if isinstance(encoder, WrappedEncoder) or TextEncoder in type(encoder).__mro__:
        return cast(TextEncoder, encoder)
    if not all(hasattr(encoder, name) for name in ("dim", "fingerprint", "encode")):
        return FunctionEncoder(cast(Function, encoder))  # raises for what is no function
    from searchengine.trainer.encoder import Encoder

    own = cast(MinimalEncoder, encoder)
    return own if isinstance(own, Encoder) else cast(TextEncoder, WrappedEncoder(own))


def load_questions(encoder: EncoderArgument, runtime: RuntimeConfig | None = None) -> TextEncoder:
    """The question encoder that a caller names or passes. Raises as `load_given`."""
    if isinstance(encoder, str | Path):
        return load(encoder, runtime, route="query")
    return load_given(encoder, runtime)


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
        return HttpEncoder.from_source(source, identity)
    if source is None:
        raise EncoderMissing(
            f"{path} was built by {title(identity)}; pass it again: "
            "SearchEngine.open(path, encoder=…)"
        )
    try:
        return load(source, runtime, identity.get("layers"))
    except TrainerError as error:
        exists = source in list(Starter) or Path(source).is_dir()
        advice = (
            "; if it has moved, name its folder: --encoder PATH (serve: --query-encoder PATH) or "
            "encoder=…"
        )
        raise EncoderMissing(
            f"{path} was built by the encoder {source}, which cannot be loaded ({error})"
            f"{'' if exists else advice}"
        ) from error


def check_built_by(
    encoder: TextEncoder,
    identity: Mapping[str, Any],
    path: Path | str,
    advice: str = "open it with the encoder that built it, or index the corpus again",
) -> None:
    """Raise EncoderMismatch unless a collection's settings name this encoder.

    A collection without an encoder accepts any of the right width: the caller knows whose vectors
    it holds. `advice`: the way out, for the message.
    """
    if identity["fingerprint"] == NO_ENCODER:
        if encoder.dim != identity["dim"]:
            raise EncoderMismatch(
                f"{path} holds vectors of {identity['dim']} dimensions, got an encoder of "
                f"{encoder.dim}; open it with the encoder of its vectors, or without one"
            )
        return
    stored, name = identity["fingerprint"], identity.get("name")
    if isinstance(encoder, FunctionEncoder) and name is not None:
        if not encoder.matches(stored):
            returns = "that name returns other vectors now"
            got = returns if name == encoder.name else f"got {encoder.name!r}"
            raise EncoderMismatch(f"{path} was built by {title(identity)}, but {got}; {advice}")
        return
    if encoder.dim != identity["dim"] or stored != encoder.fingerprint:
        raise EncoderMismatch(
            f"{path} was built by the encoder {identity['source'] or name or 'in memory'} "
            f"({identity['dim']} wide, fingerprint {stored[:12]}), got one of "
            f"{encoder.dim} with fingerprint {encoder.fingerprint[:12]}; {advice}"
        )


def check_aligned(questions: TextEncoder, identity: Mapping[str, Any], path: Path | str) -> None:
    """Raise EncoderMismatch unless a question encoder belongs to the encoder of a collection.

    Of a collection without an encoder only the width is compared, as in `check_built_by`.
    """
    stored = identity["fingerprint"]
    encoder = f"the question encoder {questions.source or 'made in Python'}"
    if questions.dim != identity["dim"]:
        raise EncoderMismatch(
            f"{path} holds vectors of {identity['dim']} dimensions, and {encoder} gives "
            f"{questions.dim}; name one that was trained for its documents, or leave "
            "query_encoder out"
        )
    aligned = questions.aligned_to
    if stored not in (NO_ENCODER, aligned):
        raise EncoderMismatch(
            f"{path} was built by {title(identity)} (fingerprint {stored[:12]}), but {encoder} "
            f"belongs to the documents of another one ({aligned[:12]}); train one for it "
            "(train --preset question-encoder), or leave query_encoder out"
        )


def title(identity: Mapping[str, Any]) -> str:
    """What errors call the encoder that a collection's settings name."""
    if identity["source"] is not None:
        return f"the encoder {identity['source']}"
    if "name" in identity:
        return f"the function {identity['name']!r}"
    return "an encoder made in Python"
