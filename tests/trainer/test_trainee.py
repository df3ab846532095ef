"""What a run trains: poolings as sentence-transformers reads them, helpers that are dropped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.modules import Dense
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import TrainingModel
from tests.trainer.test_train_loop import NOUNS, VERBS
from tests.trainer.test_train_loop import config as triplets_config  # noqa: F401  (fixture)

TEXTS = ["the dog sleeps", "a whale", "three birds sing slowly near the sea"]


@pytest.fixture
def config(triplets_config: TrainConfig, tmp_path: Path) -> TrainConfig:  # noqa: F811
    """Nothing judges sentences."""
    lines = [f"the {n} {v}" for n in NOUNS for v in VERBS]
    (tmp_path / "sentences.tsv").write_text("\n".join(["sentence", *lines]) + "\n")
    train = (tmp_path / "sentences.tsv",)
    return replace(triplets_config, train=train, prefixes=(32,), max_steps=4, learning_rate=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "cls-before-pooler"},
        {"queue_size": 12},
        {"mlm_weight": 0.5},
        {"mlm_weight": 0.5, "gradient_cache": True, "accumulation": 2},
        {"augment": "next-sentence", "layers_per_step": 1},
        {"augment": "crop", "augment_share": 0.3},
        {"adapter_rank": 2, "attention_group": 4, "window": 32, "max_tokens": 32},
    ],
    ids=str,
)
def test_helpers_train_are_resumed_to_the_bit_and_dropped(
    config: TrainConfig, base: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = TrainConfig.from_dict({**config.to_dict(), **settings})
    whole = train(replace(config, out=tmp_path / "whole"))
    assert whole.module.dim == 32 and len(list(whole.module.head)) == 1  # Normalize alone

    def stop(line: Any) -> None:
        if line.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, stop)
    resumed = train(config, resume=True)
    theirs = SentenceTransformer(str(config.out), device="cpu").encode(TEXTS)
    saved = Encoder.load(config.out, precision="fp32")
    np.testing.assert_allclose(saved.encode(TEXTS), theirs, atol=1e-5)
    assert resumed.fingerprint == whole.fingerprint != Encoder.load(base).fingerprint
    assert resumed.model.history == whole.model.history and len(whole.model.history["losses"]) == 4
    plain = train(replace(config, out=tmp_path / "plain", **unset(settings)))
    assert plain.fingerprint != whole.fingerprint


def unset(settings: dict[str, Any]) -> dict[str, Any]:
    default = {field: getattr(TrainConfig(train=["x"], out="y"), field) for field in settings}  # type: ignore[arg-type]
    return default


def test_the_momentum_encoder_starts_alike_and_follows(base: Path) -> None:
    config = TrainConfig(train=["x"], out="y", queue_size=4)  # type: ignore[arg-type]
    dense = Dense(32, 32, True, "torch.nn.modules.activation.Tanh")
    training_model = TrainingModel(Encoder.load(base).model, config, dense)
    assert training_model.momentum is not None
    fast = dict(training_model.encoder.named_parameters())
    slow = dict(training_model.momentum.named_parameters())
    assert set(fast) == set(slow) and all(torch.equal(fast[name], slow[name]) for name in fast)
    name = "projection.linear.weight"
    before = fast[name].detach().clone()
    with torch.no_grad():
        fast[name].add_(1.0)
    training_model.follow()
    torch.testing.assert_close(slow[name], before + 0.001)
    assert torch.equal(fast[name], before + 1.0) and not slow[name].requires_grad


def test_the_momentum_encoder_is_rotated_too(config: TrainConfig) -> None:
    """No cosine of the full width changes, unless one of the two vectors is not rotated."""
    pairs = config.train[0].with_name("pairs.tsv")
    rows = [f"the {n} {v}\t{v} the {n}" for n in NOUNS for v in VERBS]
    pairs.write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    settings = {"prefixes": (32, 8), "learning_rate": 1e-12, "max_steps": 2}
    settings |= {"prefix_weights": (1.0, 0.0), "queue_size": 16}
    base = replace(config, train=(pairs,), dropout=0.0, **settings)  # type: ignore[arg-type]
    losses = []
    for rotate in (False, True):
        run = replace(base, out=config.out / str(rotate), rotate=rotate)
        losses.append(train(run).model.history["losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
