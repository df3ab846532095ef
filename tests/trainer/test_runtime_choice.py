"""`auto` takes the fastest of what is accurate, as measured when the graph was compiled."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino", reason="the extra `fast` is not installed")

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.tokens import Description, Padded, Tokenization
from searchengine.trainer.runtimes.graph import Accuracy, Graph
from searchengine.trainer.runtimes.runtime import Runtime, Vectors, speeds
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


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"fp32": 10, "torch fp32": 12}, False),  # faster, but not so much that its start pays off
        ({"fp32": 10, "torch fp32": 13}, True),
        ({"fp32": 10, "bf16": 20, "torch fp32": 13}, False),
        ({"fp32": 10, "bf16": 20, "torch fp32": 13, "torch bf16": 26}, True),
        ({"fp32": 10}, False),
        ({}, False),
    ],
)
def test_torch_must_be_faster_by_far(rates: dict[str, float], expected: bool) -> None:
    assert replace(GRAPH, speeds=rates).torch_is_faster is expected


def test_a_fast_precision_that_is_inaccurate_does_not_count() -> None:
    graph = replace(GRAPH, speeds={"fp32": 10, "bf16": 20, "torch fp32": 13})
    assert replace(graph, accuracies={"fp32": Accuracy(1.0), "bf16": Accuracy(0.9)}).torch_is_faster
    assert not replace(
        graph, accuracies={"fp32": Accuracy(0.9), "bf16": Accuracy(0.9)}
    ).torch_is_faster  # refused instead


class Sleeper:
    """A runtime whose runs take the times that it is given, on a clock of the test."""

    def __init__(self, clock: list[float], runs: list[float]):
        self.clock, self.runs = clock, itertools.cycle(runs)

    def run(self, batch: Padded) -> Vectors:
        self.clock[0] += next(self.runs)
        return np.zeros((len(batch.ids), 1), np.float32)


def test_the_fastest_turn_counts_without_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime.SPEED_ROUNDS", 3)
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    runtimes: dict[str, Runtime] = {
        "a": Sleeper(clock, [0.1, 4.0, 0.1, 2.0, 0.1, 8.0]),  # type: ignore[dict-item]
        "b": Sleeper(clock, [9.0, 1.0]),  # type: ignore[dict-item]
    }
    rates = speeds(runtimes, 128)
    assert rates["a"] == pytest.approx(1024 / 2.0) and rates["b"] == pytest.approx(1024)


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


def test_another_processor_measures_again_and_remembers_it(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: False)
    module = "searchengine.trainer.runtimes"
    for place in ("measure", "graph"):
        monkeypatch.setattr(f"{module}.{place}.cpu_has_native_bf16", lambda: True)
    monkeypatch.setattr(f"{module}.measure.min_cosine", lambda found, exact: 1.0)
    rates = {"fp32": 10.0, "bf16": 20.0}
    timed: list[str] = []

    def speeds(runtimes: Mapping[str, Runtime], width: int) -> dict[str, float]:
        timed.extend(runtimes)
        return {name: rates[name] for name in runtimes}

    monkeypatch.setattr(f"{module}.measure.speeds", speeds)
    model = write_sentence_transformer(tmp_path / "model")

    def run(processor: str) -> tuple[str, bool]:
        """What the model runs on, and whether it was timed."""
        timed.clear()
        monkeypatch.setattr(f"{module}.measure.processor", lambda: processor)
        encoder = Encoder.load(model)
        encoder.encode(["the dog"])
        assert encoder.runs_on.endswith(f" tokens/s on {processor})")
        assert encoder.runs_on == Encoder.load(model).runs_on
        return encoder.runs_on.split(" (")[0], bool(timed)

    assert run("A (2 cores)") == ("openvino bf16", True)
    rates["fp32"] = 30.0
    assert run("B (2 cores)") == ("openvino fp32", True)
    assert run("A (2 cores)") == ("openvino bf16", False)
    assert run("B (2 cores)") == ("openvino fp32", False)
    for damaged in (own_cache / "openvino").iterdir():
        damaged.write_text('{"accuracies": [1]}')
    assert run("B (2 cores)") == ("openvino fp32", True)
    assert Encoder.load(model, precision="fp32").runtime == "openvino"


def test_torch_is_not_timed_where_openvino_is_always_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    encoder = Encoder.load(write_sentence_transformer(tmp_path / "model"))
    assert encoder.encode(["the dog"]).shape == (1, WIDTH) and encoder.runtime == "openvino"
    assert " (measured: " in encoder.runs_on and "torch" not in encoder.runs_on


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


@pytest.mark.parametrize(("rate", "expected"), [(1.04, "bf16"), (1.06, "fp32")])
def test_torch_computes_in_float32_where_bf16_is_slower(
    rate: float, expected: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr("searchengine.trainer.runtimes.runtime_config.gpu_here", lambda: False)
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.cpu_has_native_bf16", lambda: True
    )
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.measure.min_cosine", lambda found, exact: 1.0
    )
    monkeypatch.setattr(
        "searchengine.trainer.runtimes.torch_runtime.speeds",
        lambda *_: {"fast": 1.0, "exact": rate},
    )
    encoder = Encoder.load(write_sentence_transformer(tmp_path / "model"), runtime="torch")
    encoder.encode(["the dog"])
    assert encoder.runs_on.startswith(f"torch {expected}")
