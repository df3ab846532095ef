"""Weights between two models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.training.averaging import average
from searchengine.trainer.training.lengthening import lengthened
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import write_sentence_transformer

TEXTS = ["a dog", "the dog sleeps near the sea", "a house"]


def vectors(encoder: Encoder) -> Any:
    return Encoder(encoder.model, "", precision="fp32").encode(TEXTS)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_sentence_transformer(tmp_path / "base")


@pytest.fixture
def trained(base: Path, tmp_path: Path) -> Encoder:
    """A few updates with a longer window."""
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\na dog\tthe dog\nthe sea\ta sea\n")
    return train(
        TrainConfig(
            train=(tmp_path / "pairs.tsv",),
            out=tmp_path / "trained",
            base=str(base),
            nested=False,
            window=128,
            max_tokens=128,
            batch_size=2,
            max_steps=3,
            learning_rate=0.01,
            precision="fp32",
        )
    )


def test_weights_are_between_both(base: Path, trained: Encoder, tmp_path: Path) -> None:
    start = lengthened(Encoder.load(base, precision="fp32").model, 128)
    before = {name: value.clone() for name, value in trained.module.state_dict().items()}
    mean = average(trained, start, 0.25)
    first = start.module.state_dict()
    for name, value in mean.module.state_dict().items():
        expected = 0.25 * before[name] + 0.75 * first[name]
        torch.testing.assert_close(value, expected, msg=name)
        assert torch.equal(trained.module.state_dict()[name], before[name])
    assert any(not torch.equal(first[name], before[name]) for name in before)
    mean.save(tmp_path / "mean")
    again = Encoder.load(tmp_path / "mean", precision="fp32")
    assert again.max_tokens == 128
    np.testing.assert_allclose(again.encode(TEXTS), vectors(mean), atol=1e-6)
    card = (tmp_path / "mean" / "README.md").read_text()
    assert "Weights: 0.25 × trained + 0.75 × base" in card and "## Scores" not in card


def test_the_ends_are_the_models_themselves(base: Path, trained: Encoder) -> None:
    start = lengthened(Encoder.load(base, precision="fp32").model, 128)
    for share, model in ((0.0, start), (1.0, trained.model)):
        expected = Encoder(model, "", precision="fp32").encode(TEXTS)
        np.testing.assert_allclose(vectors(average(trained, start, share)), expected, atol=1e-6)


def test_what_has_no_mean_is_refused(base: Path, trained: Encoder) -> None:
    short = Encoder.load(base, precision="fp32").model
    with pytest.raises(ModelError, match=r"position_embeddings.* differ in shape"):
        average(trained, short, 0.5)
    with pytest.raises(ModelError, match=r"share must be between 0 and 1, got 1\.5"):
        average(trained, short, 1.5)
