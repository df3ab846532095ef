"""Scored pairs: what judges them, and that their order is learnt."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.examples import Row, Split
from searchengine.trainer.training.judging import make_measures
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_train_loop import base, config  # noqa: F401

WORDS = "dog cat whale bird".split()


def settings_of(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"train": ("a.tsv",), "out": "m", **settings})


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"objective": "similarity", "queue_size": 8}, "queue_size needs objective contrastive"),
    ],
)
def test_settings_without_effect_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(**settings)


def pairs(count: int, score: Callable[[int], float]) -> Split:
    return Split([Row(f"left {i}", f"right {i}", score=score(i)) for i in range(count)])


def test_held_out_scored_pairs_judge_by_rank() -> None:
    run = settings_of(objective="similarity")
    (measure,), split = make_measures(run, pairs(300, lambda i: i % 6))
    assert measure.gold is not None and len(measure.gold) == len(split.rows) == 30
    assert {row.score for row in split.rows} <= {float(i) for i in range(6)}


def test_held_out_pairs_of_one_score_judge_nothing() -> None:
    examples = pairs(300, lambda i: 1.0 if i else 2.0)
    run = settings_of(objective="similarity", seed=1)
    measures, split = make_measures(run, examples)
    assert not measures and split is examples


@pytest.fixture
def scored_run(config: TrainConfig, tmp_path: Path) -> TrainConfig:  # noqa: F811
    """Texts are as similar as the animals they name, whatever else they say."""
    path, dev = tmp_path / "scored.tsv", tmp_path / "dev.tsv"
    for file, first in ((path, "the"), (dev, "a")):
        rows = [
            f"{5 * (a == b)}\t{first} {a} sleeps {c}\ta {b} sings {d}"
            for a, b in [*zip(WORDS, WORDS, strict=True), *itertools.permutations(WORDS, 2)]
            for c, d in (("near", "fast"), ("slowly", "over"))
        ]
        file.write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n")
    return replace(
        config, train=(path,), dev=(dev,), objective="similarity", max_steps=40, eval_every=40
    )


@pytest.mark.filterwarnings("ignore::searchengine.trainer.errors.TrainingWarning")
def test_scores_are_learnt(scored_run: TrainConfig) -> None:
    scored_run = replace(
        scored_run, max_steps=120
    )  # after 40 a fifth of the seeds has gained little
    recipe = train(scored_run).recipe
    (figures,) = recipe["measures"]
    assert sum(figures["result"].values()) > sum(figures["base"].values()) + 0.1
    assert figures["measure"] == "Spearman's correlation on dev"
