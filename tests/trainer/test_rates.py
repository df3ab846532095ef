"""Learning rates by part of the model."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from searchengine.trainer.classifier import Classifier
from searchengine.trainer.model.model_folder import read
from searchengine.trainer.sources.source import Source
from searchengine.trainer.training.head import with_linear_head
from searchengine.trainer.training.run import make_optimizer
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import TrainingModel
from tests.trainer.test_train_loop import base, config  # noqa: F401


def rates(config: TrainConfig, model: Any) -> dict[str, tuple[float, float]]:  # noqa: F811
    """The rate of each weight relative to the run's, and its weight decay, by name."""
    trained = TrainingModel(model, config, None)
    groups = make_optimizer(trained, config, torch.device("cpu")).param_groups
    of = {w: (g["rate_factor"], g["weight_decay"]) for g in groups for w in g["params"]}
    assert len(of) == sum(len(group["params"]) for group in groups)
    return {name: of[weight] for name, weight in trained.named_parameters()}


def test_rates_by_part(config: TrainConfig) -> None:  # noqa: F811
    model = with_linear_head(read(Source.find(config.base)))
    model = replace(model, classifier=Classifier((32,), ["a", "b"]))
    found = rates(replace(config, learning_rate=1e-4), model)
    place = "encoder.sentence.transformer."
    assert found[f"{place}encoder.layer.1.output.dense.weight"] == (1.0, 0.01)
    assert found[f"{place}encoder.layer.1.output.dense.bias"] == (1.0, 0.0)
    assert found[f"{place}embeddings.word_embeddings.weight"] == (1.0, 0.01)
    assert found[f"{place}embeddings.LayerNorm.weight"] == (1.0, 0.0)
    classifier = {name: value for name, value in found.items() if "classifier" in name}
    assert classifier and {decay for _, decay in classifier.values()} == {0.0}
    assert [rate for rate, _ in classifier.values()] == pytest.approx([10.0] * len(classifier))
