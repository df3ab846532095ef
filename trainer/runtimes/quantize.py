"""A graph with matrix products in int8: post-training quantization by nncf, outliers split off.

Behind the feed-forward activations one or two channels of some 1,500 are several times as large as
all others, and 8 bits for all of them leave the others too few. So the largest OUTLIERS channels go
through a product of their own, which stays as it was; all others are multiplied in 8 bits. After
Dettmers et al., arXiv 2208.07339, who split at run time; here the split is part of the graph.

all-MiniLM-L6-v2, least cosine of a sample text to float32: 0.995 split, 0.978 unsplit, 0.995 where
these products stay in float32, which takes 1.7 times as long on a processor without bf16.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.model.tokens import Padded
from searchengine.trainer.runtimes.openvino_runtime import core, graph_inputs, import_openvino

Channels = NDArray[np.int64]
# Channels split off; a vector register of float32. At most a MIN_WIDTH-th part of all.
OUTLIERS, MIN_WIDTH = 16, 8
# How much of the range of activations SmoothQuant moves to the weights, 0–1.
SMOOTHING = 0.6
# Every how many samples the largest values are read from: they are the same in all texts.
STRIDE = 3
# Operations whose outputs have a channel of their inputs in each channel.
ELEMENTWISE = frozenset(
    "Abs Add Clamp Divide Elu Erf Exp Gelu HSigmoid HSwish Maximum Minimum Mish Multiply Negative "
    "Power Relu Sigmoid SoftPlus Subtract Swish Tanh".split()
)


def quantize(graph: Path, samples: Sequence[Padded], packed: bool, *, split: bool) -> Any:
    """An openvino.Model of the graph with its matrix products in int8.

    samples: batches of one row. packed: whether the graph takes packed texts. split: split the
    outliers of narrowing products off; those that cannot be split, or all of them without it, stay
    as they are.
    SmoothQuant (Xiao et al., arXiv 2211.10438) and bias correction; activations are scaled by what
    the samples show. Raises ModelError for a graph that nncf does not take.
    """
    model = core().read_model(str(graph))
    import nncf  # searchengine.trainer.runtimes.runtime_config checks that it is installed

    nncf.set_log_level(logging.ERROR)

    def inputs(row: Padded) -> list[Any]:
        return graph_inputs(row, packed)

    try:
        products = narrowing(model)
        unquantized = [product.get_friendly_name() for product in products]
        if split and products:
            maxima = channel_maxima(model, products, map(inputs, samples[::STRIDE]))
            unquantized = [
                name
                for product, largest in zip(products, maxima, strict=True)
                for name in split_outliers(product, largest)
            ]
            model.validate_nodes_and_infer_types()
        with redirect_stdout(StringIO()):  # nncf prints its progress there
            return nncf.quantize(
                model,
                nncf.Dataset(samples, inputs),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(samples),
                ignored_scope=nncf.IgnoredScope(names=unquantized),
                advanced_parameters=nncf.AdvancedQuantizationParameters(
                    smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=SMOOTHING)
                ),
            )
    except Exception as error:  # nncf raises many kinds; the reader needs one sentence
        raise ModelError(f"nncf cannot quantize this model: {first_line(error)}") from error


def narrowing(model: Any) -> list[Any]:
    """The products whose rows get shorter: those behind the feed-forward activations."""
    products = []
    for product in model.get_ops():
        if product.get_type_name() == "MatMul":
            into, out = product.input_value(0), product.output(0)
            widths = into.get_partial_shape()[-1], out.get_partial_shape()[-1]
            if all(w.is_static for w in widths) and widths[0].get_length() > widths[1].get_length():
                products.append(product)
    return products


def channel_maxima(
    model: Any, products: Sequence[Any], inputs: Iterable[list[Any]]
) -> list[NDArray[np.float32]]:
    """The largest absolute value of each channel, (channels,) for the input of each product."""
    inputs_read = [product.input_value(0) for product in products]
    reading = import_openvino().Model(inputs_read, model.get_parameters())
    request = (
        core()
        .compile_model(reading, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        .create_infer_request()
    )
    maxima: list[NDArray[np.float32]] = []
    for sample in inputs:
        outputs = request.infer(sample, share_inputs=True)
        sizes = [np.abs(outputs[i]) for i in range(len(products))]
        rows = [values.reshape(-1, values.shape[-1]).max(axis=0) for values in sizes]
        maxima = [*map(np.maximum, maxima, rows)] if maxima else rows
    return maxima


def split_outliers(product: Any, largest: NDArray[np.float32]) -> list[str]:
    """Replace a product by two that are added: of its OUTLIERS largest channels, and of the others.

    largest: (channels,) of its input. Returns the names of what must stay in floating point: the
    products of the outliers, or the product itself if its input cannot be split.
    """
    count = min(OUTLIERS, len(largest) // MIN_WIDTH)
    order = np.argsort(-largest, kind="stable")
    outliers, others = np.sort(order[:count]), np.sort(order[count:])
    unquantized: list[Any] = []
    few = _product(product, -1, outliers, unquantized) if count else None
    rest = _product(product, -1, others, [])
    if few is None or rest is None:
        return [product.get_friendly_name()]
    product.output(0).replace(_node("Add", [few, rest], {}).output(0))
    return [node.get_friendly_name() for node in unquantized]


def _product(product: Any, side: int, channels: Channels, products: list[Any]) -> Any:
    """A product with constant weights of some channels alone; None if it cannot be.

    side: 0 for channels of its output, -1 for channels of its input, which is restricted to them.
    products: gets those that this makes.
    """
    attributes = product.get_attributes()
    weights = product.input_value(1).get_node()
    if weights.get_type_name() != "Constant" or weights.data.ndim != 2 or attributes["transpose_a"]:
        return None
    into = product.input_value(0)
    if side and (into := _restricted(into, channels, products)) is None:
        return None
    kept = weights.data.take(channels, axis=side if attributes["transpose_b"] else 1 + side)
    products.append(_node("MatMul", [into, _constant(kept)], attributes))
    return products[-1]


def _restricted(values: Any, channels: Channels, products: list[Any]) -> Any:
    """The computation of some channels of these values alone; None if it cannot be restricted.

    products: gets those that this makes.
    """
    node = values.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        is_same = node.data.ndim == 0 or node.data.shape[-1] == 1
        return node if is_same else _constant(node.data.take(channels, axis=-1))
    if kind == "MatMul":
        return _product(node, 0, channels, products)
    if kind not in ELEMENTWISE:
        return None
    inputs = [_restricted(value, channels, products) for value in node.input_values()]
    return None if None in inputs else _node(kind, inputs, node.get_attributes())


def _constant(values: NDArray[Any]) -> Any:
    from openvino import opset13

    return opset13.constant(np.ascontiguousarray(values))


def _node(kind: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Any:
    from openvino.utils.node_factory import NodeFactory

    outputs = [node if hasattr(node, "get_node") else node.output(0) for node in inputs]
    return NodeFactory("opset13").create(kind, outputs, attributes)
