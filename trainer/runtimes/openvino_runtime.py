"""The network run by OpenVINO on the processor, from a graph that was made of it once.

Measured on a 2-core Zen 5: bf16 some 1.7 times as fast as torch's bf16, and nearer to float32
(cosine 0.99997): what follows the last matrix product, pooling and all, stays in float32.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ModelError
from trainer.model.tokens import Padded
from trainer.runtimes.config import Engine, Precision, cpu_has_native_bf16
from trainer.runtimes.runtime import Vectors

# Tokens of a padded batch that are tried out.
BUDGETS = (512, 1024, 2048, 4096)
# Kernels are made for each shape they meet, in some 5 ms: fewer widths make fewer of them.
MULTIPLE = 8
# Single questions: to each of these widths a graph of its own, once so many of it were asked. One
# made for its shape takes 1.2 ms for 16 tokens and 2.1 ms for 32, where one for any shape takes 0.6
# and 0.4 ms more, for it prepares itself anew each time the width changes.
WIDTHS, OFTEN = (16, 32), 16


def import_openvino() -> Any:
    """The module openvino.

    It reports its import and each conversion to its makers through a package of its own, and does
    without where that is missing. Nothing here reports to anyone: it is made to be missing.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise ModelError(f"openvino cannot be imported ({error}): install it anew") from error
    return openvino


def core() -> Any:
    """The openvino.Core of this process, which is never let go.

    Each gives the signals of its thread a stack of their own. One that is let go while another
    lives, or by another thread, leaves a stack that is gone: the next Ctrl-C is a segmentation
    fault (openvino 2026.4).
    """
    ours = os.getpid()  # a forked process has none of the threads of its parent's
    # The processor's plug-in, which sets the stack, is loaded later: of two that are made at the
    # same time, the one that is let go has set none.
    return _CORES.get(ours) or _CORES.setdefault(ours, import_openvino().Core())


_CORES: dict[int, Any] = {}


def given(batch: Padded, packed: bool) -> list[NDArray[np.int64]]:
    """What a graph of trainer.runtimes.graph takes, in the order of its inputs."""
    plain = [batch.ids, batch.mask, np.array(batch.prompt_tokens, np.int64)]
    return [*plain, *batch.packing()] if packed else plain


class OpenVINORuntime:
    """Runs a graph of trainer.runtimes.graph. Raises ModelError for one that does not compile."""

    engine = Engine.OPENVINO
    multiple = MULTIPLE

    def __init__(
        self,
        graph: Path,
        precision: Precision,
        max_tokens: int,
        *,
        packs: bool,
        token_budget: int = BUDGETS[0],
        kernels: Path | None = None,
    ):
        """graph: the .xml file, its weights beside it. kernels: a folder to keep kernels in.

        max_tokens: the widest that it takes. packs: whether it was traced for packed texts.
        """
        self.precision = precision
        self.packs = packs
        self.token_budget = token_budget
        self._widths = [width for width in WIDTHS if width <= max_tokens]
        self._graph, self._kernels = graph, kernels
        self._request = self._compiled()
        self._asked = dict.fromkeys(self._widths, 0)
        self._single: dict[int, Any] = {}
        self._lock = Lock()

    def _compiled(self, width: int | None = None) -> Any:
        """What answers one batch at a time: of any shape, or one row of this width."""
        half = self.precision is not Precision.FP32 and cpu_has_native_bf16()
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        kept = {}
        if self._kernels is not None:
            kept = {"CACHE_DIR": str(self._kernels), "CACHE_MODE": "OPTIMIZE_SIZE"}
        ours = core()
        try:
            model: Any = str(self._graph)
            if width is not None:
                model = ours.read_model(model)
                one = [1, width]
                shapes = [one, one, [], *([one, one] if self.packs else [])]
                model.reshape(dict(zip(model.inputs, shapes, strict=True)))
            try:
                compiled = ours.compile_model(model, "CPU", settings | kept)
            except RuntimeError:  # a folder that cannot be written to: compile every time
                compiled = ours.compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise ModelError(
                f"openvino does not run {self._graph}: {_last_line(error)}; remove "
                f"{self._graph.parent}, and it is made anew"
            ) from error
        return compiled.create_infer_request()

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32."""
        rows, width = batch.ids.shape
        try:
            with self._lock:
                request, batch = self._suited(batch)
                found = request.infer(given(batch, self.packs), share_inputs=True)[0]
                return np.array(found, dtype=np.float32)
        except RuntimeError as error:
            raise ModelError(
                f"openvino does not run {rows} texts of {width} tokens: {_last_line(error)}"
            ) from error

    def _suited(self, batch: Padded) -> tuple[Any, Padded]:
        """The graph for a batch, and the batch as it takes it."""
        rows, width = batch.ids.shape
        fitting = next((each for each in self._widths if width <= each), None)
        if rows > 1 or fitting is None:
            return self._request, batch
        self._asked[fitting] += 1
        if self._asked[fitting] == OFTEN:
            with suppress(ModelError):  # it is faster, not needed
                self._single[fitting] = self._compiled(fitting)
        if fitting not in self._single:
            return self._request, batch
        return self._single[fitting], batch.widened(fitting)


def _last_line(error: Exception) -> str:
    """The cause, which openvino writes last."""
    return str(error).strip().splitlines()[-1]
