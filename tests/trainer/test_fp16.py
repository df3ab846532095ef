"""Training in fp16, whose loss is scaled: it is for GPUs, and a processor does the same here."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer

from searchengine.trainer.errors import ConfigError, TrainingError
from searchengine.trainer.training import loop
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_train_loop import base, config, interrupt_at, weights  # noqa: F401

SCALE = 2.0**10


class Half:
    """What accelerate gives for fp16 on a GPU."""

    device = torch.device("cpu")

    def __init__(self, scale: float) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast("cpu", torch.float16)

    def prepare(self, optimizer: Any) -> AcceleratedOptimizer:
        return AcceleratedOptimizer(optimizer, scaler=self.scaler)


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch, config: TrainConfig) -> Iterator[Any]:  # noqa: F811
    """Runs train in fp16; the function sets the first scale."""
    loop.make_accelerator(config)  # which gives accelerate its state

    def begin(scale: float) -> None:
        monkeypatch.setattr(loop, "make_accelerator", lambda _: (Half(scale), Processes()))

    begin(SCALE)
    yield begin


@pytest.mark.parametrize("settings", ({}, {"gradient_cache": True}, {"mlm_weight": 0.1}))
def test_a_scaled_loss_gives_the_same_gradients(
    config: TrainConfig,  # noqa: F811
    half: Any,
    settings: dict[str, Any],
) -> None:
    lines: list[Report] = []
    for scale in (SCALE, 1.0):
        half(scale)
        out = config.out.parent / str(scale)
        train(replace(config, dropout=0.0, out=out, max_steps=3, **settings), lines.append)
    losses = [line.loss for line in lines if line.loss is not None]
    assert len(losses) == 6
    assert losses[:3] == pytest.approx(losses[3:], rel=0.02)


def test_an_update_that_overflows_is_left_out(config: TrainConfig, half: Any) -> None:  # noqa: F811
    half(2.0**30)
    short = replace(config, max_steps=2)
    before = weights(train(replace(short, max_steps=1)))
    for name, weight in weights(loop.Encoder.load(config.base, precision="fp32")).items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    half(SCALE)
    after = weights(train(replace(short, out=config.out.parent / "b", max_steps=1)))
    assert any(not torch.equal(weight, after[name]) for name, weight in before.items())


def test_a_resumed_run_has_the_scale(config: TrainConfig, half: Any, tmp_path: Path) -> None:  # noqa: F811
    whole = weights(train(replace(config, out=tmp_path / "whole")))
    with pytest.raises(KeyboardInterrupt):
        train(config, interrupt_at(7))
    half(1.0)  # which the checkpoint overrules
    resumed = train(config, resume=True)
    for name, weight in weights(resumed).items():
        assert torch.equal(weight, whole[name])


def test_gradients_that_are_no_numbers_at_any_scale_stop_the_run(
    config: TrainConfig,  # noqa: F811
    half: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half(0.75)
    backward = loop.add_gradients

    def spoilt(run: Any, *others: Any) -> float:
        total = backward(run, *others)
        next(run.training_model.parameters()).grad.fill_(torch.nan)
        return total

    monkeypatch.setattr(loop, "add_gradients", spoilt)
    with pytest.raises(TrainingError, match="the norm of the gradient of update 1 is nan"):
        train(config)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_trains_as_in_fp32(config: TrainConfig) -> None:  # noqa: F811
    losses: dict[str, list[float]] = {"fp16": [], "fp32": []}
    for precision, found in losses.items():
        changed: dict[str, Any] = {"precision": precision, "out": config.out.parent / precision}
        run = replace(config, dropout=0.0, max_steps=4, **changed)
        train(run, lambda line, found=found: line.loss is not None and found.append(line.loss))
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.02)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_processor_is_refused(config: TrainConfig) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="precision fp16: fp16 is slow on a processor"):
        train(replace(config, precision="fp16"))  # type: ignore[arg-type]
