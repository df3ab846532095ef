"""What a run trains: poolings as sentence-transformers reads them, helpers that are dropped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.model.modules import Dense
from searchengine.trainer.training import loop
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import Pooler, TrainConfig
from searchengine.trainer.training.training_model import (
    TrainingModel,
    with_pooling,
)
from tests.tiny_model import WORDS, write_sentence_transformer

TEXTS = ["the dog sleeps", "a whale", "three birds sing slowly near the sea"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture
def config(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """A checkpoint is written after every update; nothing judges sentences."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    lines = [f"the {n} {v}" for n in WORDS[2:8] for v in WORDS[8:13]]
    (tmp_path / "sentences.tsv").write_text("\n".join(["sentence", *lines]) + "\n")
    return TrainConfig(
        train=(tmp_path / "sentences.tsv",),
        out=tmp_path / "out",
        base=str(base),
        prefixes=(32,),
        batch_size=8,
        max_steps=4,
        learning_rate=1e-3,
        precision="fp32",  # type: ignore[arg-type]
    )


def hidden_states(base: Path) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    encoder = Encoder.load(base, precision="fp32")
    tokens = encoder.model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found = encoder.module.transformer(**tokens, output_hidden_states=True).hidden_states
    return [h.numpy() for h in found], tokens["attention_mask"].numpy()


def mean(hidden: Any, mask: Any) -> Any:
    return (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)


def expected(base: Path, pooler: Pooler, model: Any) -> Any:
    states, mask = hidden_states(base)
    match pooler:
        case Pooler.MEAN:
            rows = mean(states[2], mask)
        case Pooler.CLS_BEFORE_POOLER:
            rows = states[2][:, 0]
        case Pooler.CLS:
            dense = model.module.head[0].linear
            weight, bias = dense.weight.detach().numpy(), dense.bias.detach().numpy()
            rows = np.tanh(states[2][:, 0] @ weight.T + bias)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("pooler", [p for p in Pooler if p is not Pooler.BASE])
def test_poolings_by_hand_and_in_sentence_transformers(
    base: Path, tmp_path: Path, pooler: Pooler
) -> None:
    loaded = Encoder.load(base, precision="fp32")
    model, projection = with_pooling(loaded.model, pooler, seed=3)
    assert (projection is not None) == (pooler is Pooler.CLS_BEFORE_POOLER)
    encoder = Encoder(model, "", precision="fp32")
    rows = expected(base, pooler, model)
    np.testing.assert_allclose(encoder.encode(TEXTS), rows, atol=1e-5)
    encoder.save(tmp_path / "out")
    again = Encoder.load(tmp_path / "out", precision="fp32")
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(again.encode(TEXTS), rows, atol=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), rows, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "cls-before-pooler"},
        {"queue_size": 12},
        {"mlm_weight": 0.5},
        {"mlm_weight": 0.5, "gradient_cache": True, "accumulation": 2},
        {"augment": "next-sentence", "layers_per_step": 1},
        {"augment": "crop", "augment_share": 0.3},
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


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"prefixes": [64, 32]}, "prefixes begins with 64: expected 32"),
        ({"objective": "classification"}, "expected text, label or sentence, label"),
    ],
)
def test_what_makes_no_sense_is_refused(
    config: TrainConfig, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        train(TrainConfig.from_dict({**config.to_dict(), **settings}))
    assert type(caught.value).__module__ == "searchengine.trainer.errors"
    assert not config.out.exists()


def test_a_mask_token_is_needed_for_the_language_loss(config: TrainConfig, tmp_path: Path) -> None:
    folder = write_sentence_transformer(tmp_path / "base")
    import json

    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            settings = json.loads((folder / name).read_text())
            settings["mask_token"] = None
            (folder / name).write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="mlm_weight: this bert network cannot name"):
        train(replace(config, base=str(folder), mlm_weight=0.1))


def test_the_momentum_encoder_is_rotated_too(config: TrainConfig) -> None:
    """No cosine of the full width changes, unless one of the two vectors is not rotated."""
    pairs = config.train[0].with_name("pairs.tsv")
    rows = [f"the {n} {v}\t{v} the {n}" for n in WORDS[2:8] for v in WORDS[8:13]]
    pairs.write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    settings = {"prefixes": (32, 8), "learning_rate": 1e-12, "max_steps": 2}
    settings |= {"prefix_weights": (1.0, 0.0), "queue_size": 16}
    base = replace(config, train=(pairs,), dropout=0.0, **settings)  # type: ignore[arg-type]
    losses = []
    for rotate in (False, True):
        run = replace(base, out=config.out / str(rotate), rotate=rotate)
        losses.append(train(run).model.history["losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_no_dropout_is_an_ablation_that_runs(config: TrainConfig) -> None:
    """Both views are then one vector: what is left of the loss spreads the sentences."""
    encoder = train(replace(config, dropout=0.0))
    assert len(encoder.model.history["losses"]) == 4
