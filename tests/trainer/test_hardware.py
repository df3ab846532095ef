"""Compiled layers, TF32, and the same training on a processor and on a CUDA device."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.model.network import layer_list
from searchengine.trainer.training import cross_encoder, hardware
from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.cross_encoder import CrossEncoderConfig, train_cross_encoder
from searchengine.trainer.training.loop import Report, train
from tests.tiny_model import write_plain
from tests.trainer.test_train_loop import base, config  # noqa: F401  (fixtures)

QUESTIONS = {"objective": "distillation", "distillation_loss": "cosine", "teacher_axes": "own"}
Trained = tuple[list[float], dict[str, torch.Tensor]]


def run(config: TrainConfig, name: str, **changes: Any) -> Trained:  # noqa: F811
    """Losses and weights of three updates in float32."""
    fixed = {"max_steps": 3, "checkpoint_every": 0, "keep_last": True}
    out = config.out.with_name(name)
    encoder = train(replace(config, out=out, **(fixed | changes)))
    weights = {key: weight.cpu() for key, weight in encoder.module.state_dict().items()}
    return encoder.model.history["losses"], weights


def assert_equal(found: Trained, expected: Trained, tolerance: float) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found[0], expected[0], **close)
    for name, weight in expected[1].items():
        if name.endswith(
            "key.bias"
        ):  # softmax ignores it: its gradient is rounding, which Adam scales
            continue
        torch.testing.assert_close(found[1][name], weight, **close, msg=name)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The graphs that torch makes, run as they are: inductor takes half a minute for them."""
    found: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(hardware, "BACKEND", kept)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_cache": True, "dropout": 0.1, "encoders": 2, "queue_size": 16},
        {"gradient_checkpointing": True, "adapter_rank": 2, "dropout": 0.0},
    ],
    ids=["cached", "checkpointed"],
)
def test_compiled_layers_train_the_same(
    changes: dict[str, Any],
    config: TrainConfig,  # noqa: F811
    graphs: list[torch.fx.GraphModule],
) -> None:
    expected = run(config, "plain", **changes)
    assert not graphs
    found = run(config, "compiled", compile=True, **changes)
    # One is that of the check. The layers share theirs: one more without gradients, and one each
    # where a network is only read.
    assert 2 <= len(graphs) <= 6
    assert_equal(found, expected, 1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layers_per_step": 1}, "does not return the vectors after each compiled layer"),
        ({"pooling": "first-last"}, "which layers_per_step and the average of several layers need"),
        (
            {"question_encoder": True, "kept_layers": 0, **QUESTIONS},
            "leaves no network for compile",
        ),
        ({"head_only": True}, "head_only trains no layers for compile"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused(
    changes: dict[str, Any],
    message: str,
    config: TrainConfig,  # noqa: F811
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(config, "refused", compile=True, **changes)


def test_layers_are_compiled_only_while_training(
    config: TrainConfig,  # noqa: F811
    graphs: list[torch.fx.GraphModule],
) -> None:
    encoder = train(replace(config, compile=True, max_steps=1, checkpoint_every=0))
    layers: list[Any] = [*layer_list(encoder.module.transformer)]
    assert graphs and all(layer._compiled_call_impl is None for layer in layers)


def test_every_layer_of_every_network_is_compiled(
    config: TrainConfig,  # noqa: F811
    graphs: list[torch.fx.GraphModule],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[tuple[torch.nn.Module, bool]] = []

    def record(module: torch.nn.Module, *, dynamic: bool = False, backend: Any = None) -> None:
        compiled.append((module, dynamic))

    monkeypatch.setattr(torch.nn.Module, "compile", record)
    run(config, "compiled", compile=True, max_steps=1, encoders=2, queue_size=16)
    # Two layers each: of the encoder, that of the positives and the momentum encoder.
    assert len({id(module) for module, _ in compiled}) == 6
    assert all(type(module).__name__ == "BertLayer" and dynamic for module, dynamic in compiled)


def test_without_a_compiler_training_does_not_begin(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no C++ compiler found\nand more")

    monkeypatch.setattr(hardware, "BACKEND", broken)
    torch._dynamo.reset()
    reports: list[Report] = []
    with pytest.raises(
        ConfigError, match=r"for cpu here \(no C\+\+ compiler found\); it needs a C"
    ):
        train(replace(config, compile=True), reports.append)
    assert all(report.step == 0 for report in reports)
    assert not config.out.exists()


def test_tf32_is_set_while_training(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not hardware.has_tf32(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        with pytest.raises(ConfigError, match=r"tf32 needs a CUDA device .* leave it out"):
            run(config, "refused", tf32=True)
    monkeypatch.setattr(hardware, "has_tf32", lambda _: True)
    seen: list[str] = []
    short = replace(config, max_steps=1, checkpoint_every=0, tf32=True)
    train(short, lambda _: seen.append(torch.get_float32_matmul_precision()))
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_precision_is_not_read_without_tf32(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mixed() -> str:  # as torch does where `fp32_precision` was set for one backend
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    with hardware.torch_settings(config):
        pass


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_tf32_ends_with_a_run_that_fails(
    error: type[BaseException],
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "has_tf32", lambda _: True)
    with pytest.raises(error), hardware.torch_settings(replace(config, tf32=True)):
        raise error
    assert torch.get_float32_matmul_precision() == "highest"


def test_tf32_begins_with_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((7, 5), False), ((8, 0), True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert hardware.has_tf32(torch.device("cuda")) is expected
        assert not hardware.has_tf32(torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tf32": True},
        {"compile": True},
        {"gradient_cache": True, "chunk_tokens": 64},
        {"gradient_checkpointing": True, "adapter_rank": 2},
        {"attention_group": 4, "window": 64, "max_tokens": 64},
        {"layers_per_step": 1, "prefixes_per_step": 1},
        {"encoders": 2, "queue_size": 16},
        {"mlm_weight": 0.1},
        {"pooling": "cls", "frozen_embeddings": True},
        {"head_only": True, "rotate": True, "dropout": None},
        {"guide": "BASE", "guide_margin": 0.05},
        {"objective": "distillation", "teacher": "BASE", "distillation_loss": "cosine"},
        {"objective": "distillation", "teacher": "BASE", "distillation_loss": "margin-mse"},
        {"question_encoder": True, "base": "BASE", "kept_layers": 1, **QUESTIONS},
        {"question_encoder": True, "base": "BASE", "kept_layers": 0, **QUESTIONS},
    ],
    ids=str,
)
def test_a_gpu_trains_as_a_processor_does(
    changes: dict[str, Any],
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {key: config.base if value == "BASE" else value for key, value in changes.items()}
    known = {"dropout": 0.0} | known
    found = run(config, "gpu", **known)
    monkeypatch.setattr(hardware, "pick_device", lambda _: torch.device("cpu"))
    alone = {key: value for key, value in known.items() if key not in ("tf32", "compile")}
    expected = run(config, "cpu", **alone)
    assert_equal(found, expected, 1e-2 if "tf32" in changes else 1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_trains_a_cross_encoder_as_a_processor_does(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = write_plain(config.out.with_name("plain"))
    without = json.loads((plain / "config.json").read_text())
    without |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (plain / "config.json").write_text(json.dumps(without))
    losses: dict[str, list[float]] = {"gpu": [], "cpu": []}
    for place, found in losses.items():
        if place == "cpu":
            monkeypatch.setattr(cross_encoder, "pick_device", lambda _: torch.device("cpu"))
        out = config.out.with_name(place)
        settings = CrossEncoderConfig(config.train, out, str(plain), epochs=1, negatives=1)
        train_cross_encoder(settings, lambda update, found=found: found.append(update.loss))
    assert losses["cpu"]
    torch.testing.assert_close(losses["gpu"], losses["cpu"], rtol=0.02, atol=0.02)  # in bf16


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by torch
def test_inductor_trains_the_same(config: TrainConfig) -> None:  # noqa: F811
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler here")
    torch._dynamo.reset()
    plain = run(config, "plain", dropout=0.0)
    assert_equal(run(config, "whole", dropout=0.0, compile=True), plain, 1e-4)
    # Its dropout is its own, but what is computed again must have the masks of the first time.
    whole = run(config, "random", dropout=0.1, compile=True)
    for name in ("gradient_cache", "gradient_checkpointing"):
        again = run(config, name, dropout=0.1, compile=True, **{name: True})
        assert_equal(again, whole, 1e-4)
