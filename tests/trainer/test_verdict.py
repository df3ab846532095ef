"""What judges a run, and what it keeps; labels: against scipy, scikit-learn, by hand."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import normalize

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError, TrainingWarning
from searchengine.trainer.evaluation.sts import StsTask, sts_tasks
from searchengine.trainer.model.modules import Classifier
from searchengine.trainer.training.examples import Row, Split, identity, read_sts
from searchengine.trainer.training.judging import MIN_ITEMS, MIN_LABELS, hold_out
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.result import PRIOR_LABELS
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import CS, C, chosen_c, fit_classifier
from tests.trainer.test_train_loop import LAYER, NOUNS, VERBS, config, rising, scripted, weights

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.trainer.errors.TrainingWarning")
__all__ = ["config"]  # a fixture

TEXTS = [(f"the {n} {v}", f"{v} the {n} near a house") for n in NOUNS for v in VERBS]


# --- what is kept ---


@pytest.mark.parametrize(
    ("scores", "verdict", "kept"),
    [
        # base, steps 0, 4, 8, 12, result
        ([0.5, 0.5, 0.6, 0.7, 0.6, 0.7], "Better", 8),
        ([0.5, 0.5, 0.7, 0.7, 0.6, 0.7], "Better", 4),  # of equal steps the first
        ([0.5, 0.9, 0.7, 0.7, 0.6, 0.9], "Better", 0),
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5], "The same", None),  # a tie keeps the base
        ([0.5, 0.1, 0.2, 0.3, 0.4, 0.4], "Worse", None),
        ([0.5, 0.1, 0.2, 0.9, 0.4, 0.3], "Worse", None),  # as a user loads it
        ([{32: 0.8, 8: 0.2}, *[{32: 0.7, 8: 0.6}] * 5], "Better", 0),
    ],
)
def test_the_result_is_better_than_the_base_or_is_the_base(
    config: TrainConfig, scores: list[Any], verdict: str, kept: int | None
) -> None:
    encoder = train(config, measure=scripted(scores))
    assert encoder.recipe["verdict"].startswith(f"{verdict}: a script ")
    assert encoder.recipe["kept"] == kept
    loaded, shipped = Encoder.load(config.out), Encoder.load(config.base)
    assert (loaded.fingerprint == shipped.fingerprint) == (not kept)
    assert loaded.matryoshka_dims == ((32,) if kept is None else (32, 8))
    assert loaded.recipe["verdict"] == encoder.recipe["verdict"]
    before = scores[0] if isinstance(scores[0], dict) else {32: 0.5, 8: 0.5}
    expected = {str(dim): pytest.approx(score) for dim, score in before.items()}
    assert loaded.model.history["base"] == expected


def test_a_step_is_chosen_by_the_weights_of_prefixes(config: TrainConfig) -> None:
    wide, narrow = {32: 0.9, 8: 0.5}, {32: 0.6, 8: 0.7}  # steps 4 and 8: the former's mean is more
    scores = [0.5, 0.5, wide, narrow, 0.5, narrow]
    encoder = train(replace(config, prefix_weights=(1.0, 3.0)), measure=scripted(scores))
    assert encoder.recipe["kept"] == 8 and "a script 0.6750 against" in encoder.recipe["verdict"]


def test_few_items_prove_nothing(config: TrainConfig) -> None:
    with pytest.warns(TrainingWarning, match="Too few to tell.*: a script 0.9"):
        train(config, measure=scripted([0.1, *[0.9] * 5], n=MIN_ITEMS - 1))


def test_sentences_alone_keep_the_last_step(config: TrainConfig, tmp_path: Path) -> None:
    sentences = tmp_path / "sentences.tsv"
    sentences.write_text("\n".join(["sentence", *(first for first, _ in TEXTS)]) + "\n")
    reports: list[Report] = []
    encoder = train(replace(config, train=(sentences,)), reports.append)
    assert all(report.scores is None for report in reports)
    assert encoder.recipe["verdict"].startswith("Not compared with the base: there are no dev")
    assert encoder.recipe["best_step"] == reports[-1].step == 12
    assert not torch.equal(weights(encoder)[LAYER], weights(Encoder.load(config.base))[LAYER])


def test_the_announced_figures_are_those_of_evaluate(config: TrainConfig, tmp_path: Path) -> None:
    """Of the base and of the result, each loaded by its folder, on scored pairs; and a search."""
    rng = random.Random(0)
    texts = [" ".join(rng.sample([*NOUNS, *VERBS], 4)) for _ in range(120)]
    shared = [len({*a.split()} & {*b.split()}) for a, b in itertools.pairwise(texts)]
    rows = [f"{s}\t{a}\t{b}\n" for s, (a, b) in zip(shared, itertools.pairwise(texts), strict=True)]
    dev = tmp_path / "dev.tsv"
    dev.write_text("score\tsentence1\tsentence2\n" + "".join(rows))
    settings = replace(config, dev=(dev,), max_steps=60, eval_every=20)
    kept = []
    for out, measure in (("a", None), ("b", scripted(itertools.count()))):
        encoder = train(replace(settings, out=tmp_path / out), measure=measure)
        figures = encoder.recipe["measures"][-1]
        assert figures["measure"] == "Spearman's correlation on dev" and figures["n"] == 119
        # The base with the prefixes of the run, cut as its users would cut it.
        for name, folder in (("base", config.base), ("result", tmp_path / out)):
            measured = sts_tasks(Encoder.load(folder), [StsTask("", read_sts([dev]))], (32, 8))
            expected = {str(row.dim): pytest.approx(row.spearman, abs=1e-3) for row in measured}
            if name == "base" or encoder.recipe["kept"] is not None:
                assert figures[name] == expected
        kept.append(encoder.recipe["verdict"])
    assert "scored pairs say little of a search" in kept[0]
    assert kept[1].startswith("Better: a script") and "; Spearman's correlation on dev" in kept[1]


def test_pairs_are_judged_among_the_corpus(config: TrainConfig, tmp_path: Path) -> None:
    """nDCG@10 by hand: the positives of dev and of the examples, without the anchor itself."""
    dev = tmp_path / "dev.tsv"
    judged = [*TEXTS, *((f"{a} far", a) for a, _ in TEXTS)]  # so that their anchors are there too
    dev.write_text("\n".join(["query\tpositive", *map("\t".join, judged)]) + "\n")
    encoder = Encoder.load(config.base)
    trained = [line.split("\t") for line in config.train[0].read_text().splitlines()[1:]]
    corpus = list(dict.fromkeys([*(p for _, p in judged), *(row[1] for row in trained)]))
    queries = encoder.encode([a for a, _ in judged])
    expected = {}
    for dim in (32, 8):
        documents = encoder.encode(corpus)[:, :dim]
        documents /= np.linalg.norm(documents, axis=1, keepdims=True)
        cosines = queries[:, :dim] @ documents.T
        cosines[range(len(TEXTS)), range(len(TEXTS), len(judged))] = -np.inf
        order = np.argsort(-cosines, axis=1)
        places = [order[i].tolist().index(i) for i in range(len(judged))]
        expected[dim] = np.mean([1 / np.log2(2 + at) if at < 10 else 0 for at in places])
    lines: list[Report] = []
    train(replace(config, dev=(dev,)), lines.append)
    assert lines[0].base == pytest.approx(expected, abs=1e-6)
    assert lines[0].examples == 60


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("query\tpositive\na dog\ta cat\n", "20 different positives or more, got 1; fewer"),
        ("sentence\na dog\n", r"dev.tsv: holds single sentences"),
        (None, "is a folder: name the files in it"),
    ],
)
def test_dev_files_that_judge_nothing_are_refused(
    config: TrainConfig, tmp_path: Path, content: str | None, message: str
) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text(content) if content else dev.mkdir()
    with pytest.raises((ConfigError, DataError), match=message):
        train(replace(config, dev=(dev,)))


def test_labels_that_nothing_judges_move_the_weights_by_their_number(
    labelled_config: TrainConfig,
) -> None:
    few = replace(labelled_config, label_weight=1.0, max_steps=4, eval_every=0)
    start = weights(Encoder.load(few.base))[LAYER]
    last = weights(train(replace(few, out=few.out.with_name("last")), measure=rising()))[LAYER]
    mixed = train(few)
    share = 240 / (240 + PRIOR_LABELS)
    expected = (1 - share) * start + share * last
    torch.testing.assert_close(weights(mixed)[LAYER], expected, atol=1e-6, rtol=0)
    assert mixed.recipe["verdict"].endswith(
        "step, 4, is kept, mixed with 8% of the weights before it"
    )


# --- what is held out ---


def pairs(count: int) -> list[Row]:
    return [Row(f"anchor {i}", f"positive {i}") for i in range(count)]


def labelled(count: int, labels: int) -> list[Row]:
    return [Row(f"text {i}", label=f"label {i % labels}") for i in range(count)]


SENTENCES = [Row(f"sentence {i}", f"sentence {i}", one_text=True) for i in range(500)]
CHAIN = [Row(f"text {i // 30}", f"text {i}") for i in range(500)]


@pytest.mark.parametrize(
    ("examples", "rows", "left"),
    [
        (pairs(250), 25, 225),
        (SENTENCES, 0, 500),
        (pairs(9000), 512, 9000 - 512),
        *((pairs(count), 0, count) for count in (2, 20, 10 * MIN_ITEMS - 10)),
        (CHAIN, 0, 500),  # every text is also that of many others
        (labelled(MIN_LABELS - 10, 7), 0, MIN_LABELS - 10),
        (labelled(MIN_LABELS, 7), 200, MIN_LABELS - 200),
    ],
)
def test_a_tenth_is_held_out_or_nothing(examples: list[Row], rows: int, left: int) -> None:
    split = hold_out(Split(examples), seed=3)
    assert (len(split.rows), len(split.train)) == (rows, left)
    assert hold_out(Split(examples), seed=3).rows == split.rows
    assert not rows or hold_out(Split(examples), seed=4).rows != split.rows


@given(st.integers(0, 1000), st.integers(2, 6))
def test_no_text_on_both_sides(seed: int, size: int) -> None:
    """Anchors with several positives; positives that other anchors share, up to capitals."""
    shared = [
        Row(f"question {i // size}", f"{'Answer' if i % 2 else 'answer!'} {i // 3}")
        for i in range(1200)
        if i % 30
    ]
    mined = [Row(f"a {i}", f"b {i}", (f"b {(i * 7 + 2) % 250}",)) for i in range(250)]
    examples = shared + pairs(300) + mined
    split = hold_out(Split(examples), seed)
    trained = {identity(text) for row in split.train for text in row.matching}
    assert len(split.rows) >= MIN_ITEMS and len(split.train) >= 0.9 * len(examples) - 1
    for row in split.rows:
        assert trained.isdisjoint({identity(row.anchor), identity(row.positive)})
    texts = [identity(text) for row in split.rows for text in row[:2]]
    assert len(texts) == len(set(texts))  # nor in two rows: a row has one right answer


# --- labels ---


@pytest.fixture
def few(labelled_config: TrainConfig) -> TrainConfig:
    """Every second text is learnt, and the others judge; one label has a single text."""
    header, *lines = labelled_config.train[0].read_text().splitlines(keepends=True)
    dev = labelled_config.train[0].with_name("dev.tsv")
    dev.write_text("".join([header, *lines[1::2]]))
    labelled_config.train[0].write_text("".join([header, *lines[::2], "rare\tthe only one\n"]))
    return replace(labelled_config, dev=(dev,), max_steps=4, eval_every=0)


def rows_of(file: Path) -> tuple[list[str], list[str]]:
    lines = file.read_text().splitlines()[1:]
    labels, texts = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), list(labels)


@pytest.mark.parametrize(("pooling", "precision"), [("base", ""), ("cls", ""), ("base", "bf16")])
def test_labels_that_win_nothing_give_the_base_with_a_regression(
    few: TrainConfig, pooling: Any, precision: Any
) -> None:
    """Behind pooling cls, an untrained layer is no part of the baseline, nor of the result."""
    few = replace(few, precision=precision or few.precision, pooling=pooling)
    with pytest.warns(TrainingWarning, match="The same: a script"):
        encoder = train(few, measure=scripted(itertools.repeat(0.5)))
    texts, labels = rows_of(few.train[0])
    tested, expected = rows_of(few.dev[0])
    plain, found = Encoder.load(few.base), Encoder.load(few.out)
    assert found.fingerprint == plain.fingerprint
    x = plain.encode(texts)
    whole = LogisticRegression(C=C, max_iter=2000).fit(x, labels)
    score = whole.score(plain.encode(tested), expected)
    _, figures = encoder.recipe["measures"]
    assert figures["measure"] == "accuracy on dev" and figures["n"] == 120
    assert figures["base"]["32"] == pytest.approx(score, abs=0.01)
    right = np.array(found.classify(tested)[0]) == expected
    assert figures["base"]["32"] == pytest.approx(right.mean(), abs=0.001)
    assert np.mean(np.array(found.classify(texts)[0]) == whole.predict(x)) > 0.99


# --- classifiers ----------------------------------------------------------------------------------


@pytest.fixture
def labelled_config(base: Path, tmp_path: Path) -> TrainConfig:
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
def test_labels_are_learnt_and_saved(labelled_config: TrainConfig, share: float) -> None:
    train(replace(labelled_config, label_weight=share))
    again = Encoder.load(labelled_config.out, precision="fp32")
    assert again.model.classifier is not None and again.model.classifier.labels == ("no", "yes")
    assert again.classify(["the cat eats not", "the cat eats"]) == [["no", "yes"]]
    with pytest.raises(ConfigError, match="knows no labels: train it with objective class"):
        Encoder.load(labelled_config.base).classify(["a"])


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
