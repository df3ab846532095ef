"""What training on labels must beat, as scikit-learn has it; and what comes if it does not."""

import os
import random
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError, TrainingWarning
from searchengine.trainer.evaluation.labels import accuracy, classify
from searchengine.trainer.training import label_baseline, loop
from searchengine.trainer.training.examples import Examples
from searchengine.trainer.training.head import CS, best_c, folds_of
from searchengine.trainer.training.label_baseline import AgainstBase
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.rows import Kind
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_classifier import base, config  # noqa: F401  (fixtures)


@pytest.fixture
def few(config: TrainConfig) -> TrainConfig:  # noqa: F811
    """Judged by a cross-validation; one label has a single text."""
    with config.train[0].open("a") as file:
        file.write("rare\tthe only one\n")
    return replace(config, folds=3, max_steps=4, eval_every=0)


def rows_of(config: TrainConfig) -> tuple[list[str], list[str]]:  # noqa: F811
    lines = config.train[0].read_text().splitlines()[1:]
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
    lines: list[Report] = []
    with pytest.warns(TrainingWarning, match="the base model with a logistic regression on its"):
        encoder = train(replace(few, pooling=pooling), lines.append)
    assert [line.fold for line in lines] == [0] * 6 + [1] * 4 + [2] * 4 + [3] * 4
    texts, labels = rows_of(few)
    plain = Encoder.load(few.base, precision="fp32")
    found = Encoder.load(few.out, precision="fp32")
    x, ours = plain.encode(texts), found.encode(texts)
    assert np.allclose(ours @ ours.T, x @ x.T, atol=1e-4)  # rotated for the prefixes
    figures = encoder.recipe["against_base"]
    c, parts, right = figures["c"], folds_of(labels, 3), []
    for fold in range(3):
        learnt, tested = parts != fold, parts == fold
        names = np.array(labels)
        model = LogisticRegression(C=c, max_iter=2000).fit(x[learnt], names[learnt])
        right += (model.predict(x[tested]) == names[tested]).tolist()
    assert figures["n"] == 240 == len(right) and c in CS
    assert figures["base"] == pytest.approx(np.mean(right), abs=0.005)
    assert f"{figures['base']:.4f} for a logistic regression" in encoder.recipe["chosen"]
    c = best_c(plain, Examples((Kind.LABELLED, row) for row in zip(texts, labels, strict=True)))
    whole = LogisticRegression(C=c, max_iter=2000).fit(x, labels)
    agree = np.mean(np.array(classify(found, texts)) == whole.predict(x))
    assert agree > 0.99
    assert [row.dim for row in accuracy(found, list(zip(texts, labels, strict=True)))] == [32, 8]
    assert encoder.recipe["best_step"] == 0


def test_a_training_that_wins_is_kept(few: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "right_of", lambda _, __, labels: np.arange(len(labels)) % 2 == 0)
    encoder = train(few)
    figures = encoder.recipe["against_base"]
    assert figures["trained"] > 0.9 and 0.4 < figures["base"] < 0.6 and figures["p"] < 0.001
    assert "step 4, the last" in encoder.recipe["chosen"]
    assert "in 3-fold cross-validation, n 240; difference +0.4" in encoder.recipe["chosen"]
    card = (few.out / "README.md").read_text()
    assert "- Accuracy in 3-fold cross-validation (240 texts): " in card and "+0.4" in card
    assert encoder.recipe["best_step"] == 4 and encoder.recipe["examples"] == 241


def test_beyond_doubt() -> None:
    before = np.array([True] * 10 + [False] * 10)

    def wins(more: int, fewer: int) -> bool:
        trained = before.copy()
        trained[10 : 10 + more], trained[:fewer] = True, False
        return AgainstBase("here", 1.0, trained, before).wins()

    assert wins(6, 0) and not wins(5, 0)  # 2 / 2⁶ and 2 / 2⁵
    assert not wins(0, 8) and not wins(0, 0) and not wins(8, 2) and wins(9, 1)


def test_a_signal_in_the_cross_validation_loses_no_training(
    few: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(number: int, _: Any) -> None:
        raise Ended

    monkeypatch.setattr(label_baseline.AgainstBase, "wins", lambda _: True)
    whole = train(replace(few, out=few.out.with_name("whole")))
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Ended):
            train(
                few, lambda line: os.kill(os.getpid(), signal.SIGTERM) if line.fold == 2 else None
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    steps: list[Report] = []
    resumed = train(few, steps.append, resume=True)
    assert resumed.fingerprint == whole.fingerprint and steps[0].fold == 1
    assert resumed.recipe["against_base"] == whole.recipe["against_base"]


def test_labels_of_one_text_each_are_refused(few: TrainConfig) -> None:
    """Before training: nothing could be learnt and tested."""
    few.train[0].write_text("text\tlabel\n" + "".join(f"the cat {i}\t{i}\n" for i in range(9)))
    with pytest.raises(DataError, match="each of the 9 labels has one text, which cannot be both"):
        train(few)
    train(replace(few, folds=0))


def test_one_fold_is_refused(config: TrainConfig) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="folds is 1: expected 2 or more, or 0 for none"):
        replace(config, folds=1)
