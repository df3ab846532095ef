"""The network run by OpenVINO on the processor, from a graph compiled from it once.

Measured on a 2-core Zen 5: bf16 is about 1.7 times as fast as torch's bf16 and closer to float32
(cosine 0.99997), because all that follows the last matrix product, such as pooling, is float32.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.tokens import Padded
from searchengine.trainer.runtimes.runtime import Vectors
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeKind, cpu_has_native_bf16

# Tokens of a padded batch; the fastest is chosen.
BUDGETS = (512, 1024, 2048, 4096)
# Kernels are compiled for each shape, in some 5 ms: fewer widths need fewer of them.
MULTIPLE = 8
# Single questions: a graph for each of these widths, compiled after this many questions of it. One
# for a fixed shape takes 1.2 ms for 16 tokens and 2.1 ms for 32; one for any shape takes 0.6 and
# 0.4 ms more, because it prepares itself again each time the width changes.
SINGLE_WIDTHS, SINGLE_AFTER = (16, 32), 16
LOCK = "lock"  # of a folder of kernels


def import_openvino() -> Any:
    """The module openvino, without telemetry.

    It reports its import and each conversion to its makers through the package openvino_telemetry,
    and works where that is missing. So the package is marked as missing. Raises ModelError.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise ModelError(f"openvino cannot be imported ({error}): install it again") from error
    return openvino


def core() -> Any:
    """The openvino.Core of this process, which is never freed.

    Each Core gives the signals of its thread a stack. One that is freed while another is in use, or
    by another thread, leaves signals without a stack: the next Ctrl-C is a segmentation fault
    (openvino 2026.4). A forked process does not have its parent's threads and would wait for them
    for ever, also with a Core of its own: ModelError is raised there.
    """
    process = os.getpid()
    if _CORES and process not in _CORES:
        raise ModelError(
            "openvino has run in the process that this one was forked from, and its threads are "
            "not here; start workers by multiprocessing's spawn, or choose torch"
        )
    # The processor's plug-in, which sets the stack, is loaded later: if two threads create a Core
    # at once, the one that is freed has not set a stack.
    return _CORES.get(process) or _CORES.setdefault(process, import_openvino().Core())


_CORES: dict[int, Any] = {}


def graph_inputs(batch: Padded, packed: bool) -> list[NDArray[np.int64]]:
    """The inputs of a graph of searchengine.trainer.runtimes.graph, in their order."""
    third = np.array(batch.prompt_tokens, np.int64) if batch.types is None else batch.types
    plain = [batch.ids, batch.mask, third]
    return [*plain, *batch.packing()] if packed else plain


# From the inputs of a graph to its output, which the next call overwrites.
Infer = Callable[[Sequence[NDArray[np.int64]]], Vectors]


def one_shape(request: Any) -> Infer:
    """Runs a request on batches of its only shape, by way of arrays that are bound to it once.

    openvino takes 0.2 ms or more to look at inputs that it is given with each call.
    """
    bound = [np.zeros(tuple(port.shape), np.int64) for port in request.model_inputs]
    for i, array in enumerate(bound):
        request.set_input_tensor(i, import_openvino().Tensor(array, shared_memory=True))

    def infer(inputs: Sequence[NDArray[np.int64]]) -> Vectors:
        for array, values in zip(bound, inputs, strict=True):
            array[...] = values
        request.infer()
        return request.get_output_tensor(0).data  # type: ignore[no-any-return]

    return infer


class OpenVINORuntime:
    """Runs a graph of trainer.runtimes.graph. Raises ModelError for one that does not compile."""

    kind = RuntimeKind.OPENVINO
    multiple = MULTIPLE

    def __init__(
        self,
        graph: Path,
        precision: Precision,
        max_tokens: int,
        *,
        packs: bool,
        pairs: bool = False,
        token_budget: int = BUDGETS[0],
        kernels: Path | None = None,
    ):
        """graph: the .xml file, its weights beside it. kernels: a folder to keep kernels in.

        max_tokens: the widest batch it takes. packs: whether it was traced for packed texts. pairs:
        whether it takes the types of a batch.
        """
        self.precision = precision
        self.packs, self._pairs = packs, pairs
        self.token_budget = token_budget
        self._widths = [width for width in SINGLE_WIDTHS if width <= max_tokens]
        self._graph, self._kernels = graph, kernels
        self._infer = self._compiled()
        self._singles_asked = dict.fromkeys(self._widths, 0)
        self._single: dict[int, Infer] = {}
        self._lock = Lock()

    def _compiled(self, width: int | None = None) -> Infer:
        """The compiled graph, one batch at a time: of any shape, or one row of this width."""
        half = self.precision is not Precision.FP32 and cpu_has_native_bf16()
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        openvino = core()
        try:
            model: Any = str(self._graph)
            if width is not None:
                model = openvino.read_model(model)
                rows = [port for port in model.inputs if len(port.partial_shape)]
                model.reshape({port: [1, width] for port in rows})
            with self._kernel_cache() as cache:
                try:
                    compiled = openvino.compile_model(model, "CPU", settings | cache)
                except RuntimeError:  # a folder that cannot be written to: compile every time
                    compiled = openvino.compile_model(model, "CPU", settings)
            request = compiled.create_infer_request()
            if width is not None:
                return one_shape(request)
            return lambda inputs: request.infer(inputs, share_inputs=True)[0]
        except RuntimeError as error:
            raise ModelError(
                f"openvino does not run {self._graph}: {_last_line(error)}; remove "
                f"{self._graph.parent}, and it is compiled again"
            ) from error

    @contextmanager
    def _kernel_cache(self) -> Iterator[dict[str, str]]:
        """Settings to keep kernels, for one process at a time; none where that cannot be ensured.

        OpenVINO maps the file of kernels that it finds into memory. A process that does not see it
        yet writes it in place, under those who have mapped it: their constants are zeros for a
        moment, which gives wrong vectors, or their process is ended by a bus error.
        """
        with ExitStack() as stack:
            cache = {}
            if self._kernels is not None:
                with suppress(OSError, NotImplementedError):  # read-only, or without locks
                    self._kernels.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(FileLock(self._kernels / LOCK))
                    cache = {"CACHE_DIR": str(self._kernels), "CACHE_MODE": "OPTIMIZE_SIZE"}
            yield cache

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32; of pairs, scores (B, 1)."""
        rows, width = batch.ids.shape
        if self._pairs and batch.types is None:  # to measure its speed
            batch = replace(batch, types=np.zeros_like(batch.ids))
        try:
            with self._lock:
                infer, batch = self._infer_for(batch)
            inputs = graph_inputs(batch, self.packs)  # packs, which others need not wait for
            with self._lock:
                return np.array(infer(inputs), dtype=np.float32)
        except RuntimeError as error:
            raise ModelError(
                f"openvino does not run {rows} texts of {width} tokens: {_last_line(error)}"
            ) from error

    def _infer_for(self, batch: Padded) -> tuple[Infer, Padded]:
        """The compiled graph for a batch, and the batch as wide as it must be."""
        rows, width = batch.ids.shape
        fitting = next((fixed for fixed in self._widths if width <= fixed), None)
        if rows > 1 or fitting is None:
            return self._infer, batch
        self._singles_asked[fitting] += 1
        if self._singles_asked[fitting] == SINGLE_AFTER:
            # In a thread: it takes 0.3 s or more, for which no question has to wait.
            Thread(target=self._compile_single, args=(fitting,), name="compile").start()
        if fitting not in self._single:
            return self._infer, batch
        return self._single[fitting], batch.widened(fitting)

    def _compile_single(self, width: int) -> None:
        """Compile the graph for single questions of a width, and use it from now on."""
        with suppress(ModelError):  # it is faster, not needed
            self._single[width] = self._compiled(width)


def _last_line(error: Exception) -> str:
    """The cause, which openvino writes last."""
    return str(error).strip().splitlines()[-1]
