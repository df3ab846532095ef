"""Outlying channels split off a graph, and how int8 is accepted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino", reason="the extra `fast` is not installed")

from openvino import opset13 as op

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.tokens import Description, Tokenization
from searchengine.trainer.runtimes import quantize
from searchengine.trainer.runtimes.graph import Accuracy, Graph
from searchengine.trainer.runtimes.openvino_runtime import core, import_openvino
from searchengine.trainer.runtimes.runtime_config import Precision

WIDTH, INNER = 8, 32
LARGE = [3, 17, 21, 30]  # of INNER channels, an eighth: as many as are split off


def feed_forward(kind: str, transposed: bool) -> Any:
    """A model (B, T, WIDTH) to the same by INNER channels, those in LARGE larger than the rest."""
    random = np.random.default_rng(0)

    def weights(rows: int, columns: int) -> Any:
        values = random.normal(size=(rows, columns)).astype(np.float32)
        if rows == INNER:
            values[LARGE] *= 20
        return op.constant(values if transposed else np.ascontiguousarray(values.T))

    rows = op.parameter([-1, -1, WIDTH], np.float32)
    bias = op.constant(random.normal(size=(1, 1, INNER)).astype(np.float32))
    inner = op.add(op.matmul(rows, weights(INNER, WIDTH), False, transposed), bias)
    inner = op.softmax(inner, -1) if kind == "softmax" else op.gelu(inner, "erf")
    if kind == "gated":
        inner = op.multiply(inner, op.matmul(rows, weights(INNER, WIDTH), False, transposed))
    outer = op.matmul(inner, weights(WIDTH, INNER), False, transposed)
    return import_openvino().Model([outer], [rows])


def computed(model: Any, rows: Any) -> Any:
    return core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(rows)[0]


def split(model: Any, rows: Any) -> list[str]:
    (product,) = quantize.narrowing(model)
    (largest,) = quantize.channel_maxima(model, [product], [[rows]])
    assert sorted(np.argsort(-largest)[: len(LARGE)].tolist()) == LARGE
    names = quantize.split_outliers(product, largest)
    model.validate_nodes_and_infer_types()
    return names


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_a_split_graph_computes_the_same(kind: str, transposed: bool) -> None:
    model = feed_forward(kind, transposed)
    rows = np.random.default_rng(1).normal(size=(2, 3, WIDTH)).astype(np.float32)
    before = computed(model, rows)
    names = split(model, rows)
    np.testing.assert_allclose(computed(model, rows), before, rtol=1e-4, atol=1e-3)
    products = {
        each.get_friendly_name(): [value.get_partial_shape()[-1].get_length() for value in ends]
        for each in model.get_ops()
        if each.get_type_name() == "MatMul"
        for ends in [(each.input_value(0), each.output(0))]
    }
    few, many = len(LARGE), INNER - len(LARGE)
    up = 2 if kind == "gated" else 1
    assert sorted(products.pop(name) for name in names) == [[few, WIDTH]] + [[WIDTH, few]] * up
    assert sorted(products.values()) == [[WIDTH, many]] * up + [[many, WIDTH]]


def test_int8_that_ranks_differently_is_refused(description: Description) -> None:
    graph = Graph(Path("graph"), "", {}, None, None, True, True, ("",), description)

    def measured(cosine: float, agreement: float) -> Graph:
        return replace(graph, accuracies={"int8": Accuracy(cosine, agreement=agreement)})

    assert measured(0.995, 0.95).choose_precision(Precision.INT8) is Precision.INT8
    with pytest.raises(ModelError, match=r"at least 0\.9 of the nearest .*got 0\.8900"):
        measured(0.995, 0.89).choose_precision(Precision.INT8)
    with pytest.raises(ModelError, match=r"cosine to float32 must be at least 0\.99, got int8"):
        measured(0.98, 0.95).choose_precision(Precision.INT8)


@pytest.fixture
def description() -> Description:
    tokens = Tokenization("{}", 8, 0, (), "right")
    return Description(WIDTH, 1, (WIDTH,), tokens, {}, None, True, {})
