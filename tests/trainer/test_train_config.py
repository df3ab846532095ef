"""The training configuration checks itself and survives JSON."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.setting_kinds import (
    Range,
    kinds,
    limits,
    settings_table,
)
from searchengine.trainer.training.train_config import DEFAULTS, GROUPS, TrainConfig
from tests.conftest import REPOSITORY

DIMS = st.lists(st.integers(1, 2048), unique=True, max_size=5).map(
    lambda dims: tuple(sorted(dims, reverse=True))
)


@given(
    prefixes=DIMS,
    temperature=st.floats(1e-6, 10),
    seed=st.integers(0, 2**31),
    max_steps=st.none() | st.integers(1, 10**6),
    dev=st.lists(st.sampled_from(["a.tsv", "b/ü.tsv"]), max_size=2).map(tuple),
)
def test_json_both_ways(**values: Any) -> None:
    config = TrainConfig(train=(Path("pairs.tsv"),), out=Path("out"), **values)
    assert TrainConfig.from_json(config.to_json()) == config


def test_integers_of_numpy_become_plain_ones() -> None:
    values: dict[str, Any] = {"epochs": np.int64(2), "temperature": np.float64(0.1)}
    values |= {"train": ["pairs.tsv"], "out": "m", "prefixes": [np.int64(64), np.int32(32)]}
    config = TrainConfig(**values)
    assert type(config.epochs) is int and type(config.temperature) is float
    assert config.train == (Path("pairs.tsv"),) and config.out == Path("m")
    assert config.prefixes == (64, 32)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"train": ()}, "train names no file"),
        ({"train": ["a.tsv"], "dev": ["./a.tsv"]}, "dev is a.tsv, which is a file of train"),
        ({"train": "pairs.tsv"}, "train is 'pairs.tsv': expected a list"),
        ({"batch_size": 1}, "batch_size is 1: expected a whole number of at least 2"),
        ({"epochs": np.bool_(True)}, "epochs is True: expected a whole number of at least 1"),
        ({"epochs": 0.5}, "epochs is 0.5: expected a whole number of at least 1"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"temperature": 0}, "temperature is 0: expected a number more than 0"),
        ({"warmup_ratio": 1.0}, r"warmup_ratio is 1.0: expected 0 or more and less than 1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"prefixes": (64, 128)}, "prefixes is 64, 128: expected different lengths, descending"),
        ({"prefixes": (64, 64)}, "prefixes is 64, 64"),
        ({"prefixes": (64, 0)}, "prefixes is 0: expected a whole number of at least 1"),
        ({"prefixes": (64, 32), "prefix_weights": (1,)}, "1 numbers for 2 prefixes: give"),
        ({"prefixes": (64,), "prefix_weights": (0,)}, "not all 0"),
        ({"precision": "fp8"}, "precision is 'fp8': expected one of auto, fp32, bf16"),
        ({"columns": ("a", "b", "a")}, "columns is a, b, a: expected different names"),
        ({"objective": "ranking"}, "objective is 'ranking': expected one of contrastive, class"),
        ({"dropout": 1.0}, "dropout is 1.0: expected 0 or more and less than 1"),
        ({"label_weight": 1.1}, "label_weight is 1.1: expected 0 to 1"),
        ({"hard_negative_weight": 0}, "hard_negative_weight is 0: expected a number more than 0"),
        ({"queue_size": -1}, "queue_size is -1: expected a whole number of at least 0"),
        ({"objective": "classification", "queue_size": 8}, "has no pairs for queue_size"),
        ({"queue_size": 8, "layers_per_step": 1}, "queue_size has no layers_per_step"),
        ({"rotate": "False"}, "rotate is 'False': expected true or false"),
        ({"seed": 2**40}, "seed is .* and less than 4294967296"),
        ({"objective": "classification", "queue_size": 9}, "has no pairs for queue_size"),
        ({"objective": "classification", "pooling": "cls-before-pooler"}, "would read the layer"),
        ({"pooling": "cls-before-pooler", "prefixes": (64, 32)}, "behind the layer that pooling"),
        ({"objective": "classification", "prompts": {"query": "q: "}}, "no query prompt would be"),
        ({"prompts": {"question": "q: "}}, 'prompts is .*: expected {"query"'),
        ({"prompts": "q: "}, "prompts is 'q: ': expected"),
    ],
)
def test_contradictions_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**{"train": ("a.tsv",), "out": Path("m"), **values})


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"train": ["a"], "out": "m", "lr": 1}', "unknown in a training configuration: lr; "),
        ('{"train": ["a"]}', "lacks out"),
        (
            '{"train": ["a"], "out": "m", "temperature": "hot"}',
            "temperature is hot: expected a number",
        ),
    ],
)
def test_json_that_is_no_configuration(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_json(text)


def test_every_setting_is_documented() -> None:
    docs = (REPOSITORY / "docs" / "training-reference.md").read_text(encoding="utf-8")
    table = settings_table(TrainConfig, GROUPS, DEFAULTS)
    assert table in docs, "run `make docs`"
    names = re.findall(r"^\| `([a-z0-9_]+)` \|", table, re.MULTILINE)
    assert names == [field.name for field in fields(TrainConfig)]


def test_every_number_has_a_range() -> None:
    hints = get_type_hints(TrainConfig)
    ranges = {name: limits(kind) for name, kind in kinds(TrainConfig).items()}
    ranges = {name: range for name, range in ranges.items() if isinstance(range, Range)}
    numbers = {name for name, hint in hints.items() if re.search(r"\b(int|float)\b", str(hint))}
    assert numbers == ranges.keys()
    whole = {name for name in numbers if "int" in str(hints[name])}
    assert whole == {name for name, range in ranges.items() if range.whole}


@pytest.mark.parametrize("field", fields(TrainConfig), ids=lambda field: field.name)
def test_nothing_outside_a_range_is_taken(field: Any) -> None:
    range = limits(kinds(TrainConfig)[field.name])
    if not isinstance(range, Range):
        return
    for wrong in (range.low - 1, range.high * 10, float("nan"), "1", True):
        value = (wrong,) if isinstance(field.default, tuple) else wrong
        with pytest.raises(ConfigError, match=f"^{field.name} is .*: expected "):
            TrainConfig(**{"train": ("a.tsv",), "out": Path("m"), field.name: value})
