"""Training on few labels beside a tuned logistic regression on the base model's vectors.

    python benchmarks/labels.py

The command's defaults, nothing chosen by a test set: 5, 10 and 20 texts a class of TREC's 6
classes and of its 50 fine ones, judged on its test set; and of 150 topics of papers. A topic is a
phrase of two words that occurs in many titles; its texts are these titles without the phrase, and
ten of each class are judged. Rare classes have as many texts as there are. Five draws. The logistic
regression is scikit-learn's LogisticRegressionCV on the vectors of the untrained base; beside it
the one that a run itself compares with. `wins` and `losses` count the draws where the trained model
is better or worse beyond doubt (randomisation test on the test texts, p < 0.05); `difference` is
that of all draws. --work keeps each draw, so that a run that was stopped goes on.
"""

import collections
import gzip
import itertools
import json
import random
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from few_shot import Labelled, write
from record import DATA, over_seeds, record
from reports import folder

from searchengine.trainer.classifier import Classifier
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.labels import classify
from searchengine.trainer.evaluation.significance import compare
from searchengine.trainer.training.examples import Examples, Kind
from searchengine.trainer.training.head import best_c, fit_classifier
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.presets import preset
from searchengine.trainer.training.step_judging import Measure
from searchengine.trainer.training.train_config import TrainConfig

TOPICS, JUDGED = 150, 10
# What is measured: scikit-learn's regression, the one that a run compares with, and its result.
REGRESSION, BASELINE, TRAINED = "LogisticRegressionCV", "baseline of the run", "trained"
DIFFERENCE = ("difference", "low", "high", "p")
# Words that make no topic of a phrase.
FUNCTION = frozenset(
    "a an the of for in on with via to and by from using at as is are its it be or over under into "
    "towards toward through without based approach new novel".split()
)


def trec(data: Path, name: str, column: str) -> Labelled:
    lines = (data / "clf" / f"trec_{name}.tsv").read_text(encoding="utf-8").splitlines()
    header, *rows = (line.split("\t") for line in lines)
    return [(row[header.index("text")], row[header.index(column)]) for row in rows]


def questions(data: Path, column: str, each: int, seed: int) -> tuple[Labelled, Labelled]:
    """`each` questions of a class of TREC, and its test set."""
    test = trec(data, "test", column)
    seen = {text for text, _ in test}
    by_label: dict[str, set[str]] = {}
    for text, label in trec(data, "train", column):
        if text not in seen:
            by_label.setdefault(label, set()).add(text)
    rng = random.Random(seed)
    return [
        (text, label)
        for label, texts in sorted(by_label.items())
        for text in rng.sample(sorted(texts), min(each, len(texts)))
    ], test


def by_topic(data: Path, count: int = TOPICS) -> dict[str, list[str]]:
    """Titles of papers without the phrase that names their class."""
    with gzip.open(data / "text" / "papers_title_abstract.jsonl.gz", "rt") as lines:
        titles = sorted({" ".join(json.loads(line)["title"].split()) for line in lines})
    places: dict[str, set[int]] = {}
    for place, title in enumerate(titles):
        words = re.findall(r"[a-z][a-z0-9-]+", title.lower())
        for pair in itertools.pairwise(words):
            if FUNCTION.isdisjoint(pair):
                places.setdefault(" ".join(pair), set()).add(place)
    chosen: list[str] = []
    used: set[str] = set()
    for phrase in sorted(places, key=lambda phrase: (-len(places[phrase]), phrase)):
        if used.isdisjoint(phrase.split()) and len(chosen) < count:
            chosen.append(phrase)
            used |= set(phrase.split())
    owners = collections.Counter(place for phrase in chosen for place in places[phrase])
    topics = {}
    for phrase in chosen:
        pattern = re.compile(re.escape(phrase).replace(r"\ ", r"\W+"), re.IGNORECASE)
        rest = [
            " ".join(pattern.sub(" ", titles[place]).split()).strip(" :-,")
            for place in sorted(places[phrase])
            if owners[place] == 1
        ]
        topics[phrase] = sorted({text for text in rest if len(text.split()) > 3})
    return topics


def papers(topics: dict[str, list[str]], each: int, seed: int) -> tuple[Labelled, Labelled]:
    """`each` titles of a topic to learn from, and JUDGED others."""
    rng = random.Random(seed)
    training: Labelled = []
    test: Labelled = []
    for topic, titles in sorted(topics.items()):
        rows = [(title, topic) for title in rng.sample(titles, min(each + JUDGED, len(titles)))]
        training, test = training + rows[JUDGED:], test + rows[:JUDGED]
    return training, test


@click.command()
@DATA
@click.option("--seeds", default=5, show_default=True, help="Draws.")
@click.option("--each", default="5,10,20", show_default=True, help="Texts a class.")
@click.option("--only", default="", help="Sets whose name begins so.")
@click.option("--base", default="starter", show_default=True)
@click.option("--no-training", is_flag=True, help="Report the draws in --work, without others.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Kept for later.")
def main(
    data: Path,
    seeds: int,
    each: str,
    only: str,
    base: str,
    no_training: bool,
    work: Path | None,
) -> None:
    """Train on every draw of every set."""
    topics = by_topic(data)
    sets = {
        "TREC, 6 classes": lambda each, seed: questions(data, "label", each, seed),
        "TREC, 50 classes": lambda each, seed: questions(data, "fine_label", each, seed),
        "paper topics, 150 classes": lambda each, seed: papers(topics, each, seed),
    }
    frozen = Encoder.load(base)
    draws: dict[str, list[dict[str, Any]]] = {}
    with folder(work) as place:
        # Draw by draw, so that a run that is stopped has as many of each set.
        for seed, name, count in itertools.product(range(seeds), sets, map(int, each.split(","))):
            file = place / f"{name}, {count}, {seed}.json"
            if not name.startswith(only) or (no_training and not file.exists()):
                continue
            if not file.exists():
                draw = measured(frozen, *sets[name](count, seed), base, seed)
                file.write_text(json.dumps(draw) + "\n")
            draw = json.loads(file.read_text())
            draws.setdefault(f"{name}, {count} each", []).append(draw)
            click.echo(f"{file.stem}: {points(draw)}", err=True)
    figures = {name: summary(of_set) for name, of_set in draws.items()}
    for name, row in figures.items():
        click.echo(f"{name}: {row}")
    record("labels", {"base": base, **figures})


def measured(
    frozen: Encoder, training: Labelled, test: Labelled, base: str, seed: int
) -> dict[str, Any]:
    """A draw: the texts of the test set, and which of them each model labels correctly."""
    started = time.monotonic()
    model = trained(base, training, seed)
    seconds = round(time.monotonic() - started)
    right = {
        REGRESSION: regression(frozen, training, test),
        BASELINE: baseline(frozen, training, test),
        TRAINED: classify(model, [text for text, _ in test]),
    }
    return {
        "training": len(training),
        "texts": [text for text, _ in test],
        "right": {
            how: [int(a == b) for a, (_, b) in zip(labels, test, strict=True)]
            for how, labels in right.items()
        },
        "seconds": seconds,
    }


def points(draw: dict[str, Any]) -> dict[str, float]:
    """Accuracy × 100 of each model."""
    return {how: round(100 * fmean(right), 2) for how, right in draw["right"].items()}


def summary(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sd over the draws, and what is beyond doubt in each, and in all of them."""
    row: dict[str, Any] = {}
    for how in draws[0]["right"]:
        row[how] = over_seeds([points(draw)[how] for draw in draws])
    found = [compare(draw["right"][TRAINED], draw["right"][REGRESSION]) for draw in draws]
    # A text that several draws test counts once, with its mean.
    of_text: dict[str, list[tuple[int, int]]] = {}
    for draw in draws:
        pairs = zip(draw["right"][TRAINED], draw["right"][REGRESSION], strict=True)
        for text, pair in zip(draw["texts"], pairs, strict=True):
            of_text.setdefault(text, []).append(pair)
    together = compare(*np.array([np.mean(pairs, axis=0) for pairs in of_text.values()]).T)
    return row | {
        "difference": {name: round(getattr(together, name), 4) for name in DIFFERENCE},
        "wins": sum(each.p < 0.05 and each.difference > 0 for each in found),
        "losses": sum(each.p < 0.05 and each.difference < 0 for each in found),
        "draws": len(draws),
        "training texts": draws[0]["training"],
        "test texts": len(of_text),
        "seconds": round(fmean(draw["seconds"] for draw in draws)),
    }


def regression(encoder: Encoder, training: Labelled, test: Labelled) -> list[str]:
    """The labels that scikit-learn predicts from full-width vectors, (n,)."""
    vectors = [encoder.encode([text for text, _ in rows]) for rows in (training, test)]
    predicted = unfitted().fit(vectors[0], [label for _, label in training]).predict(vectors[1])
    return [str(label) for label in predicted]


def unfitted() -> Any:
    """scikit-learn's regression, which chooses C by a cross-validation of its own."""
    from sklearn.linear_model import LogisticRegressionCV

    settings = {"scoring": "accuracy", "max_iter": 1000, "use_legacy_attributes": False}
    return LogisticRegressionCV(l1_ratios=(0,), **settings)


def baseline(encoder: Encoder, training: Labelled, test: Labelled) -> list[str]:
    """The labels of the regression that a run compares with."""
    classifier = Classifier((encoder.dim,), sorted({label for _, label in training}))
    ours = Encoder(replace(encoder.model, classifier=classifier), "")
    examples = Examples((Kind.LABELLED, row) for row in training)
    fit_classifier(ours, examples, best_c(ours, examples))
    return classify(ours, [text for text, _ in test], encoder.dim)


def trained(base: str, training: Labelled, seed: int) -> Encoder:
    """The last step of a run, whatever the base with a regression is worth."""
    with tempfile.TemporaryDirectory() as scratch:
        files = {"train": [write(training, Path(scratch) / "train.tsv")], "out": f"{scratch}/model"}
        settings = {**preset("labels"), "prefixes": [384], "seed": seed}
        config = TrainConfig.from_dict({**settings, **files, "base": base})
        # So that no text is held out: as many are trained on as the regression learns from.
        nothing = Measure("nothing", lambda encoder: {encoder.dim: 0.0})
        return train(config, measure=nothing)


if __name__ == "__main__":
    main()
