"""Whole runs with scores, with a guide and with a teacher."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, TrainingError
from searchengine.trainer.model.modules import Dense, SentenceModule
from searchengine.trainer.model.torch_model import keep_layers
from searchengine.trainer.training.head import IDENTITY, rotate_head, with_linear_head
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.teachers import FixedEncoder, load_fixed
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import write_json, write_model2vec, write_sentence_transformer
from tests.trainer.test_train_loop import base, config, interrupt_at  # noqa: F401

WORDS = "dog cat whale bird man woman child tree car sea house music".split()


@pytest.fixture
def scored(config: TrainConfig, tmp_path: Path) -> TrainConfig:  # noqa: F811
    """Texts are as similar as the animals they name, whatever else they say."""
    rows = [
        f"{5 * (a == b)}\tthe {a} sleeps {c}\ta {b} sings {d}"
        for a, b in [*zip(WORDS[:4], WORDS[:4], strict=True), *itertools.permutations(WORDS[:4], 2)]
        for c, d in (("near", "fast"), ("slowly", "over"))
    ]
    path, dev = tmp_path / "scored.tsv", tmp_path / "dev.tsv"
    for file in (path, dev):
        file.write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n")
    return replace(
        config, train=(path,), dev=(dev,), objective="similarity", max_steps=40, eval_every=40
    )


def sentences_of(config: TrainConfig, tmp_path: Path) -> Path:  # noqa: F811
    path = tmp_path / "sentences.tsv"
    lines = [f"the {a} sleeps near the {b}" for a in WORDS for b in WORDS if a != b]
    path.write_text("\n".join(["sentence", *lines]) + "\n")
    return path


@pytest.mark.parametrize("kind", ("static", "Router", "subfolder"))
def test_a_teacher_may_be_any_encoder(
    config: TrainConfig,  # noqa: F811
    kind: str,
    tmp_path: Path,
) -> None:
    folder = tmp_path / kind
    if kind == "static":
        write_model2vec(folder)
    elif kind == "Router":
        model = Encoder.load(config.base, runtime="torch", precision="fp32").model
        both = replace(model, questions=keep_layers(model, 0))
        Encoder(both, "", precision="fp32").save(folder)
    else:  # as older sentence-transformers wrote it
        write_sentence_transformer(folder)
        (folder / "0_Transformer").mkdir()
        for path in [path for path in folder.iterdir() if path.is_file()]:
            if path.name not in ("modules.json", "config_sentence_transformers.json"):
                path.rename(folder / "0_Transformer" / path.name)
        listed = json.loads((folder / "modules.json").read_text())
        listed[0]["path"] = "0_Transformer"
        write_json(folder / "modules.json", listed)
    run = replace(config, objective="distillation", distillation_loss="kl", teacher=str(folder))
    teacher = load_fixed(run, torch.device("cpu"))
    assert isinstance(teacher, FixedEncoder)
    assert teacher(["the dog"], "query").shape == (1, teacher.dim)


@pytest.mark.parametrize("loss", ("cosent", "angle"))
def test_scores_are_learnt(scored: TrainConfig, loss: str) -> None:
    scored = replace(scored, max_steps=120)  # after 40 a fifth of the seeds has gained little
    recipe = train(replace(scored, similarity_loss=loss)).recipe  # type: ignore[arg-type]
    assert sum(recipe["best"].values()) > sum(recipe["untrained"].values()) + 0.1
    title = {"cosent": "CoSENT", "angle": "AnglE"}[loss]
    assert recipe["summary"][0].startswith(f"Loss: [{title}](https://")
    assert recipe["judged_by"] == "spearman on dev"


def wider(folder: str, out: Path, width: int) -> Path:
    """The model with vectors of this width, and a head of its own."""
    model = Encoder.load(folder, precision="fp32").model
    dense = Dense(model.module.dim, width, False, IDENTITY)
    torch.nn.init.orthogonal_(dense.linear.weight, generator=torch.Generator().manual_seed(1))
    old = model.module
    module = SentenceModule(old.transformer, old.pooling, [dense])
    Encoder(replace(model, module=module, matryoshka_dims=()), "").save(out)
    return out


@pytest.mark.parametrize("width", (32, 48), ids=("same width", "wider teacher"))
def test_a_turned_teacher_is_reached_by_the_first_rotation(
    config: TrainConfig,  # noqa: F811
    tmp_path: Path,
    width: int,
) -> None:
    """Its vectors are the student's, turned: the best rotation finds them without training."""
    teacher = wider(config.base, tmp_path / "teacher", width)
    lines: list[Any] = []
    settings = replace(
        config,
        train=(sentences_of(config, tmp_path),),
        objective="distillation",  # type: ignore[arg-type]
        distillation_loss="cosine",  # type: ignore[arg-type]
        teacher=str(teacher),
        rotate=True,
        dropout=0.0,
        max_steps=2,
        learning_rate=1e-6,
    )
    encoder = train(settings, lines.append)
    assert lines[-1].loss < 1e-4  # over 32 and over 8 dimensions
    assert (
        f"{width} dimensions: its vectors along their 32 strongest" in encoder.recipe["summary"][-1]
    )
    assert "rotated towards the teacher's" in " ".join(encoder.recipe["summary"])


@pytest.mark.parametrize(
    "width, questions, message",
    [
        (
            16,
            False,
            r"^teacher \S+ has 16 dimensions, expected at least the 32 of .*\(distillation_loss=kl",
        ),
        (48, True, r"^teacher \S+ has 48 dimensions, expected as many as the 32 of"),
    ],
)
def test_a_teacher_of_another_width_is_refused(
    config: TrainConfig,  # noqa: F811
    tmp_path: Path,
    width: int,
    questions: bool,
    message: str,
) -> None:
    settings = replace(
        config,
        objective="distillation",  # type: ignore[arg-type]
        distillation_loss="cosine",  # type: ignore[arg-type]
        teacher=str(wider(config.base, tmp_path / "teacher", width)),
        question_encoder=questions,
    )
    with pytest.raises(ConfigError, match=message):
        train(settings)


def test_a_narrow_teachers_cosines_are_learnt(config: TrainConfig, tmp_path: Path) -> None:  # noqa: F811
    teacher = wider(config.base, tmp_path / "teacher", 16)
    lines: list[Any] = []
    encoder = train(
        replace(config, objective="distillation", teacher=str(teacher), max_steps=15),  # type: ignore[arg-type]
        lines.append,
    )
    losses = [line.loss for line in lines if line.loss is not None]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    assert "16 dimensions: its cosines were learnt" in encoder.recipe["summary"][-1]


@pytest.mark.parametrize("loss", ("kl", "cosine"))
def test_a_contrastive_loss_beside_a_teacher(
    config: TrainConfig,  # noqa: F811
    loss: str,
    tmp_path: Path,
) -> None:
    """The loss of an update is the sum of both, on the same batch."""

    def first_loss(name: str, **settings: Any) -> float:
        losses: list[float] = []
        run = replace(config, out=tmp_path / name, max_steps=1, dropout=0.0, **settings)
        train(run, lambda line: line.loss is not None and losses.append(line.loss))
        return losses[0]

    taught = {"objective": "distillation", "distillation_loss": loss}
    taught["teacher"] = str(wider(config.base, tmp_path / "teacher", 32))
    alone = first_loss("alone", **taught), first_loss("contrastive")
    both = first_loss("both", **taught, contrastive_weight=0.5)
    assert both == pytest.approx(alone[0] + 0.5 * alone[1], rel=1e-5)
    summary = Encoder.load(tmp_path / "both").recipe["summary"]
    assert "Beside the teacher, InfoNCE with in-batch negatives, weight 0.5" in summary


def test_a_contrastive_loss_beside_a_teacher_sees_two_views_of_a_sentence(
    config: TrainConfig,  # noqa: F811
    tmp_path: Path,
) -> None:
    taught = replace(
        config,
        train=(sentences_of(config, tmp_path),),
        objective="distillation",
        distillation_loss="cosine",
        teacher=config.base,
        contrastive_weight=1.0,
        max_steps=2,
    )
    losses: list[float] = []
    train(
        replace(taught, dropout=0.1),
        lambda line: line.loss is not None and losses.append(line.loss),
    )
    assert len(losses) == 2 and losses[0] > 0.05


def test_a_missing_teacher_is_named(config: TrainConfig) -> None:  # noqa: F811
    settings = replace(config, objective="distillation", teacher="/no/such/model")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^teacher /no/such/model cannot be loaded: no model at"):
        train(settings)
    with pytest.raises(ConfigError, match=r"^guide /no/such/model cannot be loaded"):
        train(replace(config, guide="/no/such/model"))


def vectors_run(config: TrainConfig, tmp_path: Path) -> TrainConfig:  # noqa: F811
    teacher = wider(config.base, tmp_path / "teacher", 48)
    return replace(
        config,
        train=(sentences_of(config, tmp_path),),
        objective="distillation",  # type: ignore[arg-type]
        distillation_loss="cosine",  # type: ignore[arg-type]
        teacher=str(teacher),
        rotate=True,
        max_steps=8,
    )


def test_a_resumed_run_keeps_the_teachers_axes(config: TrainConfig, tmp_path: Path) -> None:  # noqa: F811
    settings = vectors_run(config, tmp_path)
    whole = train(settings)
    other = replace(settings, out=tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        train(other, interrupt_at(6))
    resumed = train(other, resume=True)
    # Both runs find the axes again, but for rounding; the last updates are the resumed run's own.
    losses = [encoder.model.history["losses"] for encoder in (whole, resumed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3) and len(losses[0]) == 8


def test_a_resumed_run_refuses_another_teacher(config: TrainConfig, tmp_path: Path) -> None:  # noqa: F811
    settings = vectors_run(config, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(settings, interrupt_at(6))
    wider(config.base, tmp_path / "narrow", 40)
    (tmp_path / "teacher").rename(tmp_path / "old")
    (tmp_path / "narrow").rename(tmp_path / "teacher")
    with pytest.raises((ConfigError, TrainingError), match=r"base|teacher"):
        train(settings, resume=True)


def test_a_rotation_towards_targets_keeps_full_width_cosines(config: TrainConfig) -> None:  # noqa: F811
    model = with_linear_head(Encoder.load(config.base, precision="fp32").model)
    encoder = Encoder(model, "", precision="fp32")
    texts = [f"the {a} {b}" for a in WORDS for b in WORDS]
    before = encoder.encode(texts)
    targets = np.random.default_rng(0).normal(size=before.shape).astype(np.float32)
    rotate_head(encoder, texts, targets)
    after = Encoder(model, "", precision="fp32").encode(texts)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)
    assert np.trace(after.T @ targets) > np.trace(before.T @ targets)
