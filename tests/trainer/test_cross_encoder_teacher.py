"""A cross-encoder as the teacher: its scores of a row's candidates are learnt."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import DistillationLoss, Objective, TrainConfig
from tests.tiny_model import WORDS, write_cross_encoder
from tests.trainer.test_train_loop import base, config  # noqa: F401

ROWS = [
    (f"the {noun}", f"a {noun} {verb}", [f"the {verb} sea", f"{noun} not {verb}"][: 1 + i % 2])
    for i, (noun, verb) in enumerate(zip(WORDS[2:8] * 2, WORDS[8:14] * 2, strict=True))
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("teacher") / "model")


def distilled(config: TrainConfig, rows: Any, loss: str, **more: Any) -> TrainConfig:  # noqa: F811
    path = config.out.parent / f"{len(more)}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    settings = {"objective": Objective.DISTILLATION, "distillation_loss": DistillationLoss(loss)}
    # All rows are one batch, without dropout: their order depends on what else a row has.
    return replace(
        config, train=(path,), max_steps=3, batch_size=12, dropout=0.0, **settings, **more
    )


@pytest.mark.parametrize("loss", ["kl", "margin-mse"])
@pytest.mark.parametrize("teacher_temperature", [None, 0.5])
def test_as_if_the_files_had_its_scores(
    config: TrainConfig,  # noqa: F811
    teacher: Path,
    tmp_path: Path,
    loss: str,
    teacher_temperature: float | None,
) -> None:
    """Its output before the sigmoid, given as a column, is the same run."""
    triplets = [{"anchor": a, "positive": p, "negatives": n} for a, p, n in ROWS]
    scorer = CrossEncoder.load(teacher, RuntimeConfig("torch", "fp32"))
    scored = []
    for row in triplets:
        texts = [row["positive"], *row["negatives"]]
        odds = scorer.score([row["anchor"]] * len(texts), texts).astype(np.float64)
        scored.append(row | {"scores": np.log(odds / (1 - odds)).tolist()})
    temperature = {"teacher_temperature": teacher_temperature}
    by_file = train(distilled(config, scored, loss, **temperature))
    run = distilled(config, triplets, loss, **temperature, teacher=str(teacher))
    by_teacher = train(replace(run, out=tmp_path / "other"))
    losses = by_file.model.history["losses"]
    assert by_teacher.model.history["losses"] == pytest.approx(losses, rel=1e-3)
    assert max(losses) > 0
    title = f"Teacher {teacher}, a cross-encoder: its scores were learnt"
    assert title in by_teacher.recipe["summary"]


def test_what_it_cannot_teach_is_refused(
    config: TrainConfig,  # noqa: F811
    teacher: Path,
    tmp_path: Path,
) -> None:
    pairs = [{"anchor": a, "positive": p} for a, p, _ in ROWS]
    with pytest.raises(DataError, match=r"'the .*' has no negative: distillation_loss kl compares"):
        train(distilled(config, pairs, "kl", teacher=str(teacher)))
    with pytest.raises(ConfigError, match="is a cross-encoder, which has no vectors: learn its sc"):
        train(distilled(config, pairs, "cosine", teacher=str(teacher)))
    two = write_cross_encoder(tmp_path / "two", labels=2)
    with pytest.raises(ConfigError, match=r"teacher .*two cannot be loaded: .* has 2 outputs"):
        train(distilled(config, pairs, "kl", teacher=str(two)))
