"""A configuration checks itself, survives JSON, and is documented; presets are configurations."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.train_config import PRESETS, TrainConfig, preset, settings_table
from tests.conftest import REPOSITORY

DIMS = st.lists(st.integers(1, 2048), unique=True, max_size=5).map(
    lambda dims: tuple(sorted(dims, reverse=True))
)
NAN = float("nan")
# Preset → batch, peak rate, epochs and temperature, as the papers or their training scripts say.
PUBLISHED = {
    "simcse-unsup": (64, 3e-5, 1, 0.05),
    "simcse-sup": (512, 5e-5, 3, 0.05),
    "matryoshka": (128, 5e-5, 1, 0.05),
    "matryoshka-2d": (128, 5e-5, 1, 0.05),
    "scored-pairs": (16, 2e-5, 4, 0.05),
    # Chosen here: for the starter, and on questions of TREC's training set.
    "labels": (64, 5e-5, 3, 0.05),
    "pairs": (64, 2e-5, 3, 0.05),
    "longlora": (16, 2e-4, 1, 0.05),
}
# Settings beside `train` and `out` → what the error says.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"train": ()}, "train names no file"),
    ({"train": ["a.tsv"], "dev": ["./a.tsv"]}, "dev names a file of train"),
    ({"train": "pairs.tsv"}, "train is 'pairs.tsv': expected list; path"),
    ({"lr": 1}, "unknown in a training configuration: lr; known are adapter_rank, "),
    ({"temprature": 1}, "temprature; did you mean temperature"),
    *(({"batch_size": v}, "batch_size is .*: expected whole number ≥ 2") for v in (1, 2.5, "8")),
    *(({"epochs": v}, "epochs is .*: expected whole number ≥ 1") for v in (0.5, np.bool_(1), None)),
    *(({"temperature": v}, "temperature is .*: expected number > 0") for v in (0, NAN, "hot")),
    *(({"warmup_ratio": v}, "warmup_ratio is .*: expected number ≥ 0, < 1") for v in (1.0, -0.1)),
    *(({"seed": v}, "seed is .*: expected whole number ≥ 0, < 2³²") for v in (-1, 2**40)),
    ({"max_steps": 0}, "max_steps is 0"),
    ({"learning_rate": NAN}, "learning_rate is nan"),
    ({"dropout": 1.0}, "dropout is 1.0"),
    ({"label_weight": 1.1}, "label_weight is 1.1: expected 0 to 1"),
    ({"mlm_weight": -1}, "mlm_weight is -1: expected number ≥ 0"),
    ({"queue_size": -1}, "queue_size is -1: expected whole number ≥ 0"),
    ({"window": 2}, "window is 2: expected whole number ≥ 3"),
    ({"window": 512}, "max_tokens is 128 with window 512: expected 512 or more"),
    *(({"prefixes": v}, "expected different lengths, descending") for v in ((64, 128), (64, 64))),
    ({"prefixes": (64, 0)}, "prefixes is .*: expected list; whole number ≥ 1"),
    ({"prefixes": (64, 32), "prefix_weights": (1,)}, "1 numbers for 2 prefixes: give"),
    ({"prefixes": (64,), "prefix_weights": (0,)}, "not all 0"),
    *(({"precision": v}, "expected `auto`, `fp32`, `bf16`") for v in ("fp16", "int8")),
    ({"objective": "ranking"}, "objective is 'ranking': expected `contrastive`, `classification`"),
    ({"rotate": "False"}, "rotate is 'False': expected true, false"),
    *(({"objective": "classification", **v}, "needs objective contrastive")
      for v in ({"queue_size": 8}, {"hard_negative_weight": 2}, {"augment": "crop"})),
    *(({"pooling": "cls-before-pooler", **v}, "drops its layer in the end")
      for v in ({"objective": "classification"}, {"prefixes": (64, 32)})),
    ({"queue_size": 8, "layers_per_step": 1}, "queue_size has no layers_per_step"),
]  # fmt: skip


@given(
    prefixes=DIMS,
    temperature=st.floats(1e-6, 10),
    seed=st.integers(0, 2**31),
    max_steps=st.none() | st.integers(1, 10**6),
    dev=st.lists(st.sampled_from(["a.tsv", "b/ü.tsv"]), max_size=2).map(tuple),
)
def test_json_both_ways(**values: Any) -> None:
    config = TrainConfig(train=(Path("pairs.tsv"),), out=Path("out"), **values)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("values, message", WRONG, ids=str)
def test_what_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict({"train": ("a.tsv",), "out": Path("m"), **values})


def test_train_and_out_are_required() -> None:
    with pytest.raises(ConfigError, match="must set out"):
        TrainConfig.from_dict({"train": ["a"]})


def test_every_setting_is_documented() -> None:
    docs = (REPOSITORY / "docs" / "training-reference.md").read_text(encoding="utf-8")
    table = settings_table()
    assert table in docs, "run `make docs`"
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert [name for name, _, _ in rows] == [field.name for field in fields(TrainConfig)]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name: str) -> None:
    config = TrainConfig.from_dict({"train": ["x.tsv"], "out": "y", **preset(name)})
    numbers = config.batch_size, config.learning_rate, config.epochs, config.temperature
    assert numbers == PUBLISHED[name] and re.search(r"\((.+, )?(arXiv|doi) ", PRESETS[name].summary)
    assert not Path(config.base).exists()  # a name
    with pytest.raises(ConfigError, match=r"no preset 'simcse': expected one of simcse-unsup, "):
        preset("simcse")
