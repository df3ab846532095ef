"""A training that is short of memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from searchengine.trainer.errors import MemoryWarning, TrainingError
from searchengine.trainer.training import passes
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.passes import Pass, Passes
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_train_loop import base, config  # noqa: F401  (fixtures)


def limit(monkeypatch: pytest.MonkeyPatch, tokens: int, kept: int) -> None:
    """A device with memory for `tokens` in a pass, and for `kept` in passes with gradients."""
    run, plan = Passes._run, Passes._plan
    held = 0

    def planned(self: Passes, *arguments: Any) -> list[Pass]:
        nonlocal held
        held = 0
        return plan(self, *arguments)

    def limited(self: Passes, item: Pass, *others: Any) -> torch.Tensor:
        nonlocal held
        size = item.batch.ids.numel()
        if torch.is_grad_enabled() and not self._caches:
            held += size
        if size > tokens or held > kept:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, item, *others)

    monkeypatch.setattr(Passes, "_plan", planned)
    monkeypatch.setattr(Passes, "_run", limited)
    monkeypatch.setattr(passes, "MIN_PASS_TOKENS", 16)


def test_a_run_goes_on_with_less_memory(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(config, max_steps=3)
    monkeypatch.setattr(passes, "token_budget", lambda device: 40)
    spared = train(replace(short, gradient_cache=True))
    monkeypatch.setattr(passes, "token_budget", lambda device: 160)
    limit(monkeypatch, 48, 96)
    with pytest.warns(MemoryWarning) as warned:
        found = train(replace(short, out=config.out.with_name("limited")))
    assert [str(warning.message) for warning in warned] == [
        "memory ran out in update 1: gradients are cached, which takes a second forward pass",
        "memory ran out in update 1: a pass has 80 tokens, padding included",
        "memory ran out in update 1: a pass has 40 tokens, padding included",
    ]
    assert found.model.history["losses"] == spared.model.history["losses"]
    for name, weight in found.module.state_dict().items():
        assert torch.equal(weight, spared.module.state_dict()[name]), name


def test_what_never_fits_names_the_settings(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, 2, 2)
    with (
        pytest.warns(MemoryWarning),
        pytest.raises(TrainingError, match=r"lower max_tokens \(128\) or batch_size \(8\)"),
    ):
        train(config)
