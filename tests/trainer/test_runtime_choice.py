"""`auto` takes the fastest of what is accurate, as measured when the graph was compiled."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("openvino", reason="the extra `fast` is not installed")

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.tokens import Description, Tokenization
from searchengine.trainer.runtimes.graph import Accuracy, Graph
from searchengine.trainer.runtimes.runtime import Runtime
from searchengine.trainer.runtimes.runtime_config import Precision
from tests.tiny_model import WIDTH, write_sentence_transformer

pytestmark = pytest.mark.usefixtures("traced_once")

GRAPH = Graph(
    Path("graph"),
    "",
    {},
    None,
    None,
    int8=False,
    packed=True,
    fingerprint="",
    description=Description(
        WIDTH, 1, (WIDTH,), Tokenization("{}", 8, 0, (), "right"), {}, None, True, {}
    ),
    accuracies={"fp32": Accuracy(1.0), "bf16": Accuracy(0.9999)},
)


@pytest.mark.parametrize(
    ("native", "rates", "accuracies", "expected"),
    [
        (True, {"fp32": 10, "bf16": 20}, {}, "bf16"),
        (True, {"fp32": 11, "bf16": 10}, {}, "fp32"),
        (True, {"fp32": 10.4, "bf16": 10}, {}, "bf16"),  # as fast, but for chance
        (
            True,
            {"fp32": 10, "bf16": 20},
            {"bf16": Accuracy(0.99)},
            "fp32",
        ),  # the fastest is not accurate
        (False, {"fp32": 10, "bf16": 20}, {}, "fp32"),  # measured on another processor
        (True, {"fp32": 10}, {}, "fp32"),
    ],
)
def test_auto_is_the_fastest_accurate_precision(
    native: bool,
    rates: dict[str, float],
    accuracies: dict[str, Accuracy],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("searchengine.trainer.runtimes.graph.cpu_has_native_bf16", lambda: native)
    graph = replace(GRAPH, speeds=rates, accuracies={**GRAPH.accuracies, **accuracies})
    assert graph.choose_precision(Precision.AUTO) == expected
    assert graph.choose_precision(Precision.FP32) is Precision.FP32


def test_torch_is_taken_and_remembered_where_it_is_faster(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    timed: list[str] = []

    def arm(runtimes: Mapping[str, Runtime], width: int) -> dict[str, float]:
        timed.extend(runtimes)
        return {name: 5000.0 if name.startswith("torch") else 2000.0 for name in runtimes}

    monkeypatch.setattr("searchengine.trainer.runtimes.measure.speeds", arm)
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.speeds", lambda *_: {"fast": 1.0, "exact": 1.0}
    )
    model = write_sentence_transformer(tmp_path / "model")
    first = Encoder.load(model)
    assert first.encode(["the dog"]).shape == (1, WIDTH) and first.runtime == "torch"
    assert {"fp32", "torch fp32"} <= {*timed}
    timed.clear()
    again = Encoder.load(model)
    assert again.runs_on.startswith("torch (measured: torch ")
    assert again.runtime == "torch" and not timed
    chosen = Encoder.load(model, runtime="openvino")
    assert chosen.runtime == "openvino" and "measured" not in chosen.runs_on


def test_an_arm_processor_without_openvino_runs_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = write_sentence_transformer(tmp_path / "model")
    assert Encoder.load(model).runtime == "torch"
    with pytest.raises(ModelError, match="openvino is not installed"):
        Encoder.load(model, runtime="openvino")
