"""What training on labels must beat, as scikit-learn has it; and what comes if it does not."""

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingWarning
from searchengine.trainer.evaluation.labels import LabelledText, accuracy, classify
from searchengine.trainer.training import label_baseline, outcome
from searchengine.trainer.training.examples import Examples, Kind
from searchengine.trainer.training.head import CS, best_c, folds_of
from searchengine.trainer.training.label_baseline import AgainstBase
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_classifier import base, config  # noqa: F401  (fixtures)


@pytest.fixture
def few(config: TrainConfig) -> TrainConfig:  # noqa: F811
    """Every second text is learnt, and the others judge; one label has a single text."""
    header, *lines = config.train[0].read_text().splitlines(keepends=True)
    dev = config.train[0].with_name("dev.tsv")
    dev.write_text("".join([header, *lines[1::2]]))
    config.train[0].write_text("".join([header, *lines[::2], "rare\tthe only one\n"]))
    return replace(config, dev=(dev,), max_steps=4, eval_every=0)


def rows_of(file: Path) -> tuple[list[str], list[str]]:
    lines = file.read_text().splitlines()[1:]
    labels, texts = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), list(labels)


def test_folds_are_stratified() -> None:
    labels = ["a"] * 10 + ["b"] * 5 + ["c"] * 2 + ["d"]
    parts = folds_of(labels, 3, seed=1)
    assert parts[-1] == -1 and set(parts[:-1]) == {0, 1, 2}
    for first, last in ((0, 10), (10, 15), (15, 17)):
        counts = np.bincount(parts[first:last], minlength=3)
        assert np.ptp(counts) <= 1
    assert (folds_of(labels, 3, seed=1) == parts).all() != (folds_of(labels, 3, 2) == parts).all()


@pytest.mark.filterwarnings("ignore:The least populated class:UserWarning")
def test_the_penalty_is_chosen_as_scikit_learn_does(shared_data: Any) -> None:
    """Question types, by the packaged encoder: within half a point of LogisticRegressionCV."""
    files = [shared_data / "clf" / f"trec_{part}.tsv" for part in ("train", "test")]
    pool, judged = ([line.split("\t") for line in f.read_text().splitlines()[1:]] for f in files)
    pool = random.Random(0).sample(pool, 150)
    encoder = Encoder.load("starter", precision="fp32")
    x, test = (encoder.encode([row[2] for row in rows]) for rows in (pool, judged))
    ours, theirs = [], []
    for column, count in ((0, 60), (0, 150), (1, 60), (1, 150)):
        rows = [(row[2], row[column]) for row in pool[:count]]
        c = best_c(encoder, Examples((Kind.LABELLED, row) for row in rows))
        labels, expected = [label for _, label in rows], [row[column] for row in judged]
        peer = LogisticRegressionCV(
            l1_ratios=(0,), max_iter=2000, scoring="accuracy", use_legacy_attributes=False
        )
        theirs.append(peer.fit(x[:count], labels).score(test, expected))
        model = LogisticRegression(C=c, max_iter=2000).fit(x[:count], labels)
        ours.append(model.score(test, expected))
    assert np.mean(ours) >= np.mean(theirs) - 0.005, (ours, theirs)


@pytest.mark.parametrize(("pooling", "precision"), [("base", ""), ("cls", ""), ("base", "bf16")])
def test_a_training_that_wins_nothing_gives_the_base(
    few: TrainConfig, pooling: str, precision: str
) -> None:
    """Behind pooling cls, an untrained layer is no part of the baseline, nor of the result.

    In bf16 an encoder has its own copy of the weights, which the rotation does not reach.
    """
    few = replace(few, precision=precision or few.precision)
    with pytest.warns(TrainingWarning, match="the base model with a logistic regression on its"):
        encoder = train(replace(few, pooling=pooling))
    texts, labels = rows_of(few.train[0])
    tested, expected = rows_of(few.dev[0])
    plain = Encoder.load(few.base, precision="fp32")
    found = Encoder.load(few.out, precision="fp32")
    x, ours = plain.encode(texts), found.encode(texts)
    assert np.allclose(ours @ ours.T, x @ x.T, atol=1e-4)  # rotated for the prefixes
    figures = encoder.recipe["against_base"]
    c = best_c(plain, Examples((Kind.LABELLED, row) for row in zip(texts, labels, strict=True)))
    whole = LogisticRegression(C=c, max_iter=2000).fit(x, labels)
    assert figures["c"] == c in CS and figures["n"] == 120
    score = whole.score(plain.encode(tested), expected)
    assert figures["base"] == pytest.approx(score, abs=0.01)
    assert f"{figures['base']:.4f} for a logistic regression" in encoder.recipe["chosen"]
    agree = np.mean(np.array(classify(found, texts)) == whole.predict(x))
    assert agree > 0.99
    assert [row.dim for row in accuracy(found, list(zip(texts, labels, strict=True)))] == [32, 8]
    assert encoder.recipe["best_step"] == 0


def half_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the regression; the trained model answers first."""
    counted = itertools.count()

    def right_at(encoder: Encoder, rows: list[LabelledText]) -> Any:
        wrong = next(counted) % 2 and np.arange(len(rows)) % 2
        return label_baseline.right_at(encoder, rows) & (True ^ np.asarray(wrong, dtype=bool))

    monkeypatch.setattr(outcome, "right_at", right_at)


@pytest.mark.filterwarnings("ignore:step 0, before training:UserWarning")
def test_a_training_that_wins_is_kept(few: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    half_right(monkeypatch)
    encoder = train(few)
    figures = encoder.recipe["against_base"]
    assert figures["trained"] > 0.9 and 0.4 < figures["base"] < 0.6 and figures["p"] < 0.001
    assert "(accuracy on dev, n 120; difference +0." in encoder.recipe["chosen"]
    card = (few.out / "README.md").read_text()
    assert "Accuracy on dev (120 texts): " in card
    assert encoder.recipe["chosen"].startswith("step ") and encoder.recipe["examples"] == 121


def test_too_few_labels_to_tell_keep_what_was_trained(config: TrainConfig) -> None:  # noqa: F811
    """A tenth of 240 is held out, and compared all the same."""
    encoder = train(replace(config, max_steps=4, eval_every=0))
    assert encoder.recipe["best_step"] == 4 and encoder.recipe["against_base"]["n"] == 24
    assert encoder.recipe["against_base"]["p"] > 0.05


def test_beyond_doubt() -> None:
    before = np.array([True] * 10 + [False] * 10)

    def wins(more: int, fewer: int) -> bool:
        trained = before.copy()
        trained[10 : 10 + more], trained[:fewer] = True, False
        return AgainstBase("here", 1.0, trained, before).wins()

    assert wins(6, 0) and not wins(5, 0)  # 2 / 2⁶ and 2 / 2⁵
    assert not wins(0, 8) and not wins(0, 0) and not wins(8, 2) and wins(9, 1)
