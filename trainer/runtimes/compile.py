"""Graphs compiled from models: traced by torch, or quantized by nncf, then measured and stored."""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.errors import ModelError
from trainer.model.source import Source
from trainer.model.tokens import Ids, Padded, TokenIds
from trainer.runtimes import measure
from trainer.runtimes.config import Precision
from trainer.runtimes.graph import GRAPH, Graph
from trainer.runtimes.openvino_runtime import core, given
from trainer.runtimes.runtime import Vectors
from trainer.runtimes.store import Made, kept

if TYPE_CHECKING:  # which is torch; a graph that is there does without
    from trainer.model.folder import Model


def compiled(source: Source, model: "Model", files: Mapping[str, str]) -> Graph:
    """Make and keep the graph of a model, with torch; or the reason why it cannot be made.

    files: as they were before the model was read: it may have been replaced since.
    Raises ModelError where it cannot be made for now: no memory, no room on any disk.
    """
    from trainer.model.fingerprint import fingerprints
    from trainer.model.loading import describe
    from trainer.runtimes.torch_runtime import TorchRuntime
    from trainer.runtimes.tracing import traced

    made = Graph(
        folder=Path(),
        openvino=version("openvino"),
        files=files,
        starter=source.starter,
        layers=source.layers,
        int8=False,
        packed=False,
        fingerprints=fingerprints(model),
        description=describe(model),
        torch=version("torch"),
    )

    @functools.cache
    def exact() -> Vectors:
        runtime = TorchRuntime(model.module, Precision.FP32, "cpu")
        try:
            return measure.vectors(runtime, TokenIds(made.description.tokens))
        except (MemoryError, RuntimeError) as error:  # torch says so where there is no memory
            raise _not_now(error) from error

    def make() -> Iterator[Made]:
        for packed in (True, False):
            try:
                graph = traced(model.module, packed=packed)
            except (MemoryError, OSError, ImportError) as error:  # of this moment or machine
                raise _not_now(error) from error
            except Exception as error:  # whatever a network does that a graph cannot say
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                yield replace(made, refused=reason), None, exact
            else:
                yield replace(made, packed=packed), graph, exact

    return kept(source, made, make)


def quantized(source: Source, exact: Graph) -> Graph:
    """Make and keep the int8 graph of a compiled model. Raises ModelError."""
    tokens = TokenIds(exact.description.tokens)

    @functools.cache
    def found() -> Vectors:
        return measure.vectors(exact.runtime(Precision.FP32), tokens)

    def make() -> Iterator[Made]:
        graph = quantized_model(exact.folder / GRAPH, measure.samples(tokens), exact.packed)
        yield replace(exact, int8=True), graph, found

    return kept(source, replace(exact, int8=True), make)


def _not_now(error: Exception) -> ModelError:
    return ModelError(f"openvino cannot take this model now ({error}); torch does")


def quantized_model(graph: Path, samples: Sequence[Ids], packed: bool) -> Any:
    """An openvino.Model of the graph with matrix products in int8, but for the narrowing ones.

    packed: whether the graph takes packed texts.
    SmoothQuant (Xiao et al., arXiv 2211.10438) and bias correction; activations are scaled by what
    the samples show. Raises ModelError for a graph that nncf does not take.
    """
    model = core().read_model(str(graph))
    import nncf  # whose absence trainer.runtimes.config has told

    nncf.set_log_level(logging.ERROR)

    def inputs(row: Ids) -> list[Any]:
        ids = row[None].astype(np.int64)
        return given(Padded(ids, np.ones_like(ids)), packed)

    try:
        with redirect_stdout(StringIO()):  # where nncf draws its progress
            return nncf.quantize(
                model,
                nncf.Dataset(samples, inputs),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(samples),
                ignored_scope=nncf.IgnoredScope(names=narrowing(model)),
            )
    except Exception as error:  # nncf raises many kinds; the reader needs one sentence
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"nncf cannot quantize this model: {reason}") from error


def narrowing(model: Any) -> list[str]:
    """Names of the products whose rows get shorter: those behind the feed-forward activations.

    A few of what they are given are far larger than the rest, which 8 bits cannot hold side by
    side: without them the least cosine to float32 is 0.995, with them 0.978 (all-MiniLM-L6-v2).
    """
    found = []
    for product in model.get_ops():
        if product.get_type_name() == "MatMul":
            into, out = product.input_value(0), product.output(0)
            widths = into.get_partial_shape()[-1], out.get_partial_shape()[-1]
            if all(w.is_static for w in widths) and widths[0].get_length() > widths[1].get_length():
                found.append(product.get_friendly_name())
    return found
