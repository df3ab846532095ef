"""Graphs in 8 bits: post-training quantization by nncf, scaled on sample texts."""

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ModelError
from trainer.model.tokens import Ids, Padded
from trainer.runtimes.openvino_runtime import core, given


def quantized(graph: Path, samples: Sequence[Ids], packed: bool) -> Any:
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
