"""Compile → measure → store: from a model to a graph that OpenVINO runs.

A model is traced by torch, or its graph quantized by nncf; the result is measured on sample texts
(`trainer.runtimes.measure`) and stored (`trainer.runtimes.store`).
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.errors import ModelError, first_line
from trainer.model.source import Source
from trainer.model.tokens import Ids, Padded, TokenIds
from trainer.runtimes import measure
from trainer.runtimes.config import Precision
from trainer.runtimes.graph import GRAPH, Graph
from trainer.runtimes.openvino_runtime import core, graph_inputs, import_openvino
from trainer.runtimes.runtime import Vectors
from trainer.runtimes.store import empty_folder, keep

if TYPE_CHECKING:  # which is torch; a graph that is there does without
    from trainer.model.folder import Model

# The least cosine of a packed graph's vectors to float32 ones: it computes the same, or the network
# is not one to pack.
MIN_PACKED_COSINE = 0.99999
# A graph to build and its openvino.Model, None where the network cannot be traced.
Candidate = tuple[Graph, Any]


def compile_model(source: Source, model: "Model", files: Mapping[str, str]) -> Graph:
    """The graph of a model, compiled with torch and stored; or the reason why there is none.

    files: checksums of the source's files from before the model was read, as they may have been
    replaced since. Raises ModelError where it cannot be compiled for now: no memory, no room.
    """
    from trainer.model.fingerprint import fingerprints
    from trainer.model.loading import describe
    from trainer.runtimes.torch_runtime import TorchRuntime
    from trainer.runtimes.tracing import trace

    graph = Graph(
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
    def exact_vectors() -> Vectors:
        runtime = TorchRuntime(model.module, Precision.FP32, "cpu")
        try:
            return measure.sample_vectors(runtime, TokenIds(graph.description.tokens))
        except (MemoryError, RuntimeError) as error:  # torch raises either for want of memory
            raise _not_now(error) from error

    def candidates() -> Iterator[Candidate]:
        for packed in (True, False):
            try:
                network = trace(model.module, packed=packed)
            except (MemoryError, OSError, ImportError) as error:  # of this moment or machine
                raise _not_now(error) from error
            except Exception as error:  # whatever a network does that a graph cannot express
                yield replace(graph, refused=first_line(error)), None
            else:
                yield replace(graph, packed=packed), network

    return keep(source, graph, lambda folder: _build(folder, candidates(), exact_vectors))


def quantize_graph(source: Source, exact: Graph) -> Graph:
    """The int8 graph of a compiled model, stored. Raises ModelError."""
    tokens = TokenIds(exact.description.tokens)
    graph = replace(exact, int8=True)

    @functools.cache
    def exact_vectors() -> Vectors:
        return measure.sample_vectors(exact.start(Precision.FP32), tokens)

    def candidates() -> Iterator[Candidate]:
        yield graph, quantize(exact.folder / GRAPH, measure.sample_ids(tokens), exact.packed)

    return keep(source, graph, lambda folder: _build(folder, candidates(), exact_vectors))


def _build(
    folder: Path, candidates: Iterator[Candidate], exact_vectors: Callable[[], Vectors]
) -> Graph:
    """The first candidate that is accurate, or the last one, written to a folder and measured.

    exact_vectors: of the sample texts, in float32. Raises OSError where there is no room.
    """
    graph = None
    for candidate, network in candidates:
        empty_folder(folder)
        graph = replace(candidate, folder=folder)
        if network is None:
            continue
        try:
            import_openvino().save_model(network, str(folder / GRAPH), compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        graph = measure.with_measurements(graph, exact_vectors())
        if not graph.refused and graph.cosines.get(Precision.FP32, 1.0) >= MIN_PACKED_COSINE:
            break
    assert graph is not None, "there is at least one candidate"
    if graph.refused:
        empty_folder(folder)
    return graph


def _not_now(error: Exception) -> ModelError:
    return ModelError(f"openvino cannot run this model now ({error}); torch can")


def quantize(graph: Path, samples: Sequence[Ids], packed: bool) -> Any:
    """An openvino.Model of the graph with matrix products in int8, but for the narrowing ones.

    packed: whether the graph takes packed texts.
    SmoothQuant (Xiao et al., arXiv 2211.10438) and bias correction; activations are scaled by what
    the samples show. Raises ModelError for a graph that nncf does not take.
    """
    model = core().read_model(str(graph))
    import nncf  # trainer.runtimes.config checks that it is installed

    nncf.set_log_level(logging.ERROR)

    def inputs(row: Ids) -> list[Any]:
        ids = row[None].astype(np.int64)
        return graph_inputs(Padded(ids, np.ones_like(ids)), packed)

    try:
        with redirect_stdout(StringIO()):  # nncf prints its progress there
            return nncf.quantize(
                model,
                nncf.Dataset(samples, inputs),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(samples),
                ignored_scope=nncf.IgnoredScope(names=narrowing(model)),
            )
    except Exception as error:  # nncf raises many kinds; the reader needs one sentence
        raise ModelError(f"nncf cannot quantize this model: {first_line(error)}") from error


def narrowing(model: Any) -> list[str]:
    """Names of the products whose rows get shorter: those behind the feed-forward activations.

    A few of their inputs are far larger than the rest, which 8 bits cannot hold side by side: the
    least cosine to float32 is 0.995 without them, 0.978 with them (all-MiniLM-L6-v2).
    """
    names = []
    for product in model.get_ops():
        if product.get_type_name() == "MatMul":
            into, out = product.input_value(0), product.output(0)
            widths = into.get_partial_shape()[-1], out.get_partial_shape()[-1]
            if all(w.is_static for w in widths) and widths[0].get_length() > widths[1].get_length():
                names.append(product.get_friendly_name())
    return names
