"""Labels: learnt, judged, saved, and refused where they teach nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import normalize

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.model.modules import Classifier
from searchengine.trainer.training.examples import Row
from searchengine.trainer.training.head import CS, C, chosen_c, fit_classifier
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WORDS

NOUNS, VERBS = WORDS[2:8], WORDS[8:13]


@pytest.fixture
def config(base: Path, tmp_path: Path) -> TrainConfig:
    """A text with "not" is a no; 240 texts: too few to hold some out."""
    texts = [f"{a} {n} {v}" for a in ("the", "a", "big", "small") for n in NOUNS for v in VERBS]
    rows = [(text, "yes") for text in texts] + [(f"{text} not", "no") for text in texts]
    path = tmp_path / "labelled.tsv"
    path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows))
    return TrainConfig(
        train=(path,),
        out=tmp_path / "out",
        base=str(base),
        objective="classification",  # type: ignore[arg-type]
        prefixes=(32, 8),
        batch_size=8,
        max_steps=40,
        learning_rate=2e-3,
        eval_every=10,
        precision="fp32",  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("share", [0.0, pytest.param(0.5, marks=pytest.mark.long), 0.9])
def test_labels_are_learnt_and_saved(config: TrainConfig, share: float) -> None:
    train(replace(config, label_weight=share))
    again = Encoder.load(config.out, precision="fp32")
    assert again.model.classifier is not None and again.model.classifier.labels == ("no", "yes")
    assert again.classify(["the cat eats not", "the cat eats"]) == [["no", "yes"]]


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_a_fit_is_the_logistic_regression_of_scikit_learn(base: Path, names: Sequence[str]) -> None:
    """Two labels have one row of coefficients there; the last label has a single text."""
    texts = [f"the {n} {v}" for n in NOUNS for v in VERBS]
    labels = [names[i % (len(names) - 1)] for i, _ in enumerate(texts[1:])] + [names[-1]]
    encoder, classifier = Encoder.load(base), Classifier((32, 8), names)
    rows = [Row(text, label=label) for text, label in zip(texts, labels, strict=True)]
    fit_classifier(encoder, classifier, rows)
    x = encoder.encode(texts)
    for dim in (32, 8):  # each prefix has a regression of its own
        short = x[:, :dim] / np.linalg.norm(x[:, :dim], axis=1, keepdims=True)
        model = LogisticRegression(C=C, max_iter=2000, tol=1e-8)
        expected = model.fit(short.astype(np.float64), labels).predict_proba(short)
        logits = classifier(torch.from_numpy(x), dim)
        np.testing.assert_allclose(logits.softmax(dim=1).detach(), expected, atol=2e-3)
    with pytest.raises(ConfigError, match="labels of 4 dimensions: the classifier was trained for"):
        classifier(torch.from_numpy(x), 4)


def test_many_texts_choose_the_penalty() -> None:
    """A third of the labels are wrong; one label has a single text."""
    rng = np.random.default_rng(0)
    x = normalize(rng.normal(size=(600, 50)))
    labels = ["rare", *np.where((x[1:, 0] > 0) ^ (rng.random(599) < 0.3), "yes", "no")]
    scores = {
        c: cross_val_score(LogisticRegression(C=c), x[1:], labels[1:], cv=5).mean() for c in CS
    }
    assert chosen_c(x, labels) == max(CS, key=lambda c: scores[c]) != C
    assert chosen_c(x[:400], labels[:400]) == C


def test_what_teaches_nothing_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / "one.tsv"
    path.write_text("text\tlabel\na dog\tyes\nthe dog\tyes\n")
    with pytest.raises(DataError, match="all 2 examples have the label"):
        train(replace(config, train=(path,)))
    path.write_text("text\tlabel\na dog\t\n")
    with pytest.raises(DataError, match=r"one.tsv:2: label is '', expected text"):
        train(replace(config, train=(path,)))
    with pytest.raises(ConfigError, match="knows no labels: train it with objective class"):
        Encoder.load(config.base).classify(["a"])
