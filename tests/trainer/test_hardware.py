"""The same training on a processor and on a CUDA device."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from searchengine.trainer.training import processes
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_train_loop import config  # noqa: F401  (fixtures)

Trained = tuple[list[float], dict[str, torch.Tensor]]


def run(config: TrainConfig, name: str, **changes: Any) -> Trained:  # noqa: F811
    """Losses and weights of three updates in float32."""
    out = config.out.with_name(name)
    encoder = train(replace(config, out=out, **({"max_steps": 3} | changes)))
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_cache": True},
        {"adapter_rank": 2},
        {"attention_group": 4, "window": 64, "max_tokens": 64},
        {"layers_per_step": 1},
        {"queue_size": 16},
        {"mlm_weight": 0.1},
        {"pooling": "cls"},
    ],
    ids=str,
)
def test_a_gpu_trains_as_a_processor_does(
    changes: dict[str, Any],
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"dropout": 0.0} | changes
    on_gpu = run(config, "gpu", **known)
    monkeypatch.setattr(processes, "pick_device", lambda _: torch.device("cpu"))
    assert_equal(on_gpu, run(config, "cpu", **known), 1e-3)
