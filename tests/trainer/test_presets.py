"""Published recipes: every one is a configuration, with the papers' numbers."""

from pathlib import Path

import pytest

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.presets import PRESETS, preset
from searchengine.trainer.training.train_config import TrainConfig

# Batch, peak rate, epochs and temperature, as the papers or their training scripts say.
PUBLISHED = {
    "simcse-unsup": (64, 3e-5, 1, 0.05),
    "simcse-sup": (512, 5e-5, 3, 0.05),
    "supervised-contrastive": (16, 1e-5, 10, 0.05),
    "matryoshka": (128, 5e-5, 1, 0.05),
    "matryoshka-2d": (128, 5e-5, 1, 0.05),
    "cosent": (16, 2e-5, 4, 0.05),
    # Batch and rate are for the starter: the paper trains networks of 7 billion weights.
    "longlora": (16, 2e-4, 1, 0.05),
    # Chosen here: see benchmarks/labels.py.
    "labels": (64, 5e-5, 3, 0.05),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name: str) -> None:
    config = TrainConfig.from_dict({"train": ["x.tsv"], "out": "y", **preset(name)})
    numbers = config.batch_size, config.learning_rate, config.epochs, config.temperature
    assert numbers == PUBLISHED[name]
    assert TrainConfig.from_json(config.to_json()) == config
    assert not Path(config.base).exists()  # a name on the model hub


def test_a_preset_is_a_copy_and_unknown_names_are_refused() -> None:
    preset("matryoshka")["batch_size"] = 1
    assert preset("matryoshka")["batch_size"] == 128
    with pytest.raises(ConfigError, match=r"no preset 'simcse': expected one of simcse-unsup, "):
        preset("simcse")
