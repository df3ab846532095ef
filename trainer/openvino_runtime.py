"""The network run by OpenVINO on the processor, from a graph that was made of it once.

Measured on a 2-core Zen 5: bf16 some 1.7 times as fast as torch's bf16, and nearer to float32
(cosine 0.99997): what follows the last matrix product, pooling and all, stays in float32.
"""

import sys
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from trainer.engines import Engine, cpu_has_native_bf16
from trainer.errors import ModelError
from trainer.precision import Precision
from trainer.runtime import Vectors
from trainer.tokens import Padded

# Tokens of a padded batch that are tried out.
BUDGETS = (512, 1024, 2048, 4096)
# Kernels are made for each shape they meet, in some 5 ms: fewer widths make fewer of them.
MULTIPLE = 8


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


class OpenVINORuntime:
    """Runs a graph of trainer.graph. Raises ModelError for one that does not compile."""

    engine = Engine.OPENVINO
    multiple = MULTIPLE

    def __init__(self, graph: Path, precision: Precision, token_budget: int = BUDGETS[0]):
        """graph: the .xml file, its weights beside it; kernels are kept there as well."""
        self.precision = precision
        self.token_budget = token_budget
        half = precision is not Precision.FP32 and cpu_has_native_bf16()
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        kept = {"CACHE_DIR": str(graph.parent / "kernels"), "CACHE_MODE": "OPTIMIZE_SIZE"}
        core = import_openvino().Core()
        try:
            try:
                compiled = core.compile_model(str(graph), "CPU", settings | kept)
            except RuntimeError:  # a folder that cannot be written to: compile every time
                compiled = core.compile_model(str(graph), "CPU", settings)
        except RuntimeError as error:
            raise ModelError(
                f"openvino does not run {graph}: {_last_line(error)}; remove {graph.parent}, and "
                "it is made anew"
            ) from error
        self._request = compiled.create_infer_request()
        self._lock = Lock()

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32."""
        given = [batch.ids, batch.mask, np.array(batch.prompt_tokens, np.int64)]
        try:
            with self._lock:
                found = self._request.infer(given, share_inputs=True)[0]
                return np.array(found, dtype=np.float32)
        except RuntimeError as error:
            rows, width = batch.ids.shape
            raise ModelError(
                f"openvino does not run {rows} texts of {width} tokens: {_last_line(error)}"
            ) from error


def _last_line(error: Exception) -> str:
    """The cause, which openvino writes last."""
    return str(error).strip().splitlines()[-1]
