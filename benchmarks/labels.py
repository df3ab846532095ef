"""Training on few labels beside a tuned logistic regression on the base model's vectors.

    python benchmarks/labels.py

The command's defaults, nothing chosen by a test set: 5, 10 and 20 texts a class of TREC's 6
classes and of its 50 fine ones, judged on its test set; and of 150 topics of papers. A topic is a
phrase of two words that occurs in many titles; its texts are these titles without the phrase, and
ten of each class are judged. Rare classes have as many texts as there are. Five draws. The logistic
regression is scikit-learn's LogisticRegressionCV on the vectors of the untrained base. `doubt`
counts the draws that the trained model wins and loses beyond doubt (randomisation test on the test
texts, p < 0.05). --quick leaves out the cross-validation that would return the base where training
wins nothing.
"""

import collections
import gzip
import itertools
import json
import random
import re
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import click
import numpy as np
from few_shot import Labelled, write
from record import DATA, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.labels import classify
from searchengine.trainer.evaluation.significance import compare
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.presets import preset
from searchengine.trainer.training.train_config import TrainConfig

TOPICS, JUDGED = 150, 10
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


def by_topic(data: Path) -> dict[str, list[str]]:
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
        if used.isdisjoint(phrase.split()) and len(chosen) < TOPICS:
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
@click.option("--seeds", default=5, show_default=True)
@click.option("--each", default="5,10,20", show_default=True, help="Texts a class.")
@click.option("--only", default="", help="Sets whose name begins so.")
@click.option("--base", default="starter", show_default=True)
@click.option("--quick", is_flag=True, help="Keep what was trained, without a cross-validation.")
def main(data: Path, seeds: int, each: str, only: str, base: str, quick: bool) -> None:
    """Train on every draw of every set."""
    topics = by_topic(data)
    sets = {
        "TREC, 6 classes": lambda each, seed: questions(data, "label", each, seed),
        "TREC, 50 classes": lambda each, seed: questions(data, "fine_label", each, seed),
        "paper topics, 150 classes": lambda each, seed: papers(topics, each, seed),
    }
    frozen = Encoder.load(base)
    figures: dict[str, Any] = {}
    for name, make in sets.items():
        for count in map(int, each.split(",") if name.startswith(only) else ()):
            row = measured(frozen, [make(count, seed) for seed in range(seeds)], base, quick)
            figures[f"{name}, {count} each"] = row
            click.echo(f"{name}, {count} each: {row}")
    record("labels", figures)


def measured(
    frozen: Encoder, draws: list[tuple[Labelled, Labelled]], base: str, quick: bool
) -> dict[str, Any]:
    """Accuracy × 100 of both, mean and sd over the draws, and what is beyond doubt."""
    scores: dict[str, list[float]] = {"logistic regression": [], "trained": []}
    wins, losses, seconds, kept = 0, 0, 0.0, 0
    for seed, (training, test) in enumerate(draws):
        started = time.monotonic()
        model = trained(base, training, seed, quick)
        seconds += time.monotonic() - started
        kept += model.recipe["best_step"] > 0
        expected = np.array([label for _, label in test])
        ours = np.array(classify(model, [text for text, _ in test])) == expected
        theirs = regression(frozen, training, test) == expected
        found = compare(ours, theirs)
        wins += found.p < 0.05 and found.difference > 0
        losses += found.p < 0.05 and found.difference < 0
        for how, right in zip(scores, (theirs, ours), strict=True):
            scores[how].append(round(100 * float(right.mean()), 1))
        click.echo(f"  draw {seed}: {scores} {model.recipe['chosen']}", err=True)
    row: dict[str, Any] = {
        how: {
            "mean": round(fmean(points), 1),
            "sd": round(stdev(points) if len(points) > 1 else 0.0, 1),
            "all": points,
        }
        for how, points in scores.items()
    }
    doubt = {"wins": wins, "losses": losses, "draws": len(draws)}
    return row | {"doubt": doubt, "kept": kept, "seconds": round(seconds / len(draws))}


def regression(encoder: Encoder, training: Labelled, test: Labelled) -> Any:
    """The labels that scikit-learn predicts from full-width vectors, (n,)."""
    from sklearn.linear_model import LogisticRegressionCV

    vectors = [encoder.encode([text for text, _ in rows]) for rows in (training, test)]
    settings = {"scoring": "accuracy", "max_iter": 1000, "use_legacy_attributes": False}
    model = LogisticRegressionCV(l1_ratios=(0,), **settings)
    return model.fit(vectors[0], [label for _, label in training]).predict(vectors[1])


def trained(base: str, training: Labelled, seed: int, quick: bool) -> Encoder:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        settings = {**preset("labels"), "nested": False, "seed": seed, "checkpoint_every": 0}
        if quick:
            settings |= {"folds": 0, "keep_last": True, "eval_every": 0}
        files = {"train": [write(training, scratch / "train.tsv")], "out": scratch / "model"}
        return train(TrainConfig.from_dict({**settings, **files, "base": base}))


if __name__ == "__main__":
    main()
