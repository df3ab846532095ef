"""Compile → measure → store: from a model to a graph that OpenVINO runs.

A model is traced by torch, or its graph quantized by nncf; the result is measured on sample texts
(`searchengine.trainer.runtimes.measure`) and stored (`searchengine.trainer.runtimes.graph`).
"""

import functools
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import TokenIds
from searchengine.trainer.runtimes import measure
from searchengine.trainer.runtimes.graph import GRAPH, Graph, empty_folder, keep_graph
from searchengine.trainer.runtimes.openvino_runtime import import_openvino
from searchengine.trainer.runtimes.quantize import quantize
from searchengine.trainer.runtimes.runtime import Runtime, Vectors
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeKind, cpu_has_native_bf16

if TYPE_CHECKING:  # which is torch; a graph that is there does without
    from searchengine.trainer.model.model_folder import Model
    from searchengine.trainer.model.pairs import PairModel

# The least cosine of a packed graph's vectors to float32 ones: it computes the same, or the network
# is not one to pack.
MIN_PACKED_COSINE = 0.99999
# A lower cosine of int8 comes from sums that overflow, on processors that cannot add products of 8
# bits (0.2 on AVX2); a graph with fewer products in int8 overflows as well.
MIN_WITHOUT_OVERFLOW = 0.9
# Processors for which OpenVINO's kernels are made: torch was slower on all that were measured, by a
# third or more, and is not timed.
X86 = ("x86_64", "AMD64")
# A graph to build and its openvino.Model, None where the network cannot be traced.
Candidate = tuple[Graph, Any]


def compile_model(source: Source, model: "Model | PairModel", files: Mapping[str, str]) -> Graph:
    """The graph of a model, compiled with torch and stored; or the reason why there is none.

    files: checksums of the source's files from before the model was read, as they may have been
    replaced since. Raises ModelError where it cannot be compiled for now: no memory, no room.
    """
    from searchengine.trainer.model.torch_model import describe, fingerprint
    from searchengine.trainer.runtimes.torch_runtime import TorchRuntime
    from searchengine.trainer.runtimes.tracing import trace

    graph = Graph(
        folder=Path(),
        openvino=version("openvino"),
        files=files,
        starter=source.starter,
        layers=source.layers,
        int8=False,
        packed=False,
        fingerprint=fingerprint(model),
        description=describe(model),
        torch=version("torch"),
        route=source.route,
    )

    @functools.cache
    def exact_vectors() -> Vectors:
        runtime = TorchRuntime(model.module, Precision.FP32, "cpu")
        try:
            return measure.sample_vectors(runtime, TokenIds(graph.description.tokens))
        except (MemoryError, RuntimeError) as error:  # torch raises either for want of memory
            raise _not_now(error) from error

    def candidates() -> Iterator[Candidate]:
        for packed in (False,) if source.pairs else (True, False):
            try:
                network = trace(model.module, packed=packed)
            except (MemoryError, OSError, ImportError) as error:  # of this moment or machine
                raise _not_now(error) from error
            except Exception as error:  # whatever a network does that a graph cannot express
                yield replace(graph, refused=first_line(error)), None
            else:
                yield replace(graph, packed=packed), network

    torch_rivals = functools.partial(rivals, lambda: model)
    return keep_graph(
        source, graph, lambda folder: _build(folder, candidates(), exact_vectors, torch_rivals)
    )


def rivals(model: "Callable[[], Model | PairModel]") -> dict[str, Runtime]:
    """torch, in the precisions that `auto` would choose from; where it could be faster."""
    if platform.machine() in X86:
        return {}
    from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

    native = [Precision.BF16] if cpu_has_native_bf16() else []
    return {
        f"{RuntimeKind.TORCH} {precision}": TorchRuntime(model().module, precision, "cpu")
        for precision in (*native, Precision.FP32)
    }


def quantize_graph(source: Source, exact: Graph) -> Graph:
    """The int8 graph of a compiled model, stored. Raises ModelError."""
    tokens = TokenIds(exact.description.tokens)
    graph = replace(exact, int8=True)

    @functools.cache
    def exact_vectors() -> Vectors:
        return measure.sample_vectors(exact.start(Precision.FP32), tokens)

    def candidates() -> Iterator[Candidate]:
        samples = [tokens.pad([row]) for row in measure.sample_ids(tokens)]
        for split in (True, False):
            yield graph, quantize(exact.folder / GRAPH, samples, exact.packed, split=split)

    return keep_graph(source, graph, lambda folder: _build(folder, candidates(), exact_vectors))


def _build(
    folder: Path,
    candidates: Iterator[Candidate],
    exact_vectors: Callable[[], Vectors],
    rivals: Callable[[], Mapping[str, Runtime]] = dict,
) -> Graph:
    """The first candidate that is accurate, or the last one, written to a folder and measured.

    exact_vectors: of the sample texts, in float32. rivals: what else could run the model.
    Raises OSError where there is no room.
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
        graph = measure.with_measurements(graph, exact_vectors(), rivals())
        if not graph.refused and _suffices(graph):
            break
    assert graph is not None, "there is at least one candidate"
    if graph.refused:
        empty_folder(folder)
    return graph


def _suffices(graph: Graph) -> bool:
    """Whether no other candidate could be better."""
    if graph.int8:
        overflows = _cosine(graph, Precision.INT8) < MIN_WITHOUT_OVERFLOW
        return overflows or graph.is_accurate(Precision.INT8)
    return _cosine(graph, Precision.FP32) >= MIN_PACKED_COSINE


def _cosine(graph: Graph, precision: Precision) -> float:
    """The least cosine to float32; 1 for scores of pairs, which have none."""
    accuracy = graph.accuracies.get(precision)
    return 1.0 if accuracy is None or accuracy.cosine is None else accuracy.cosine


def _not_now(error: Exception) -> ModelError:
    return ModelError(f"openvino cannot run this model now ({error}); torch can")
