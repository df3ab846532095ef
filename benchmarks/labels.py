"""The trained classifier beside logistic regression on the base model's vectors, from few labels.

    python benchmarks/labels.py

The command's defaults, nothing chosen by a test set: 20 and 100 labels of TREC's 6 classes, 270 of
its fine classes, judged on its test set; and 270 captions of 77 pictures, judged on the other
captions of those pictures. Five draws. The logistic regression is scikit-learn's at C 10, the
vectors are those of the untrained base. Ten minutes on two cores.
"""

import gzip
import json
import random
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import click
from few_shot import Labelled, sample, write
from record import DATA, record
from sklearn.linear_model import LogisticRegression

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.labels import accuracy
from searchengine.trainer.model.modules import C
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig

PICTURES, CAPTIONS = 77, 270


def trec(data: Path, name: str, column: str) -> Labelled:
    lines = (data / "clf" / f"trec_{name}.tsv").read_text(encoding="utf-8").splitlines()
    header, *rows = (line.split("\t") for line in lines)
    return [(row[header.index("text")], row[header.index(column)]) for row in rows]


def questions(data: Path, column: str, count: int, seed: int) -> tuple[Labelled, Labelled]:
    """`count` questions of TREC, the classes as even as they allow, and its test set."""
    test = trec(data, "test", column)
    seen = {text for text, _ in test}
    fresh = [row for row in trec(data, "train", column) if row[0] not in seen]
    return sample(fresh, count, seed)[0], test


def captions(data: Path, seed: int) -> tuple[Labelled, Labelled]:
    """Of 77 pictures 3 or 4 captions to learn from, and the rest of the five."""
    with gzip.open(data / "text" / "multi30k_captions_train.jsonl.gz", "rt") as lines:
        pictures = [json.loads(line)["captions"] for line in lines]
    rng = random.Random(seed)
    training: Labelled = []
    test: Labelled = []
    for number, texts in enumerate(rng.sample(pictures, PICTURES)):
        taken = CAPTIONS // PICTURES + (number < CAPTIONS % PICTURES)
        rows = [(text, f"picture {number}") for text in rng.sample(texts, len(texts))]
        training, test = training + rows[:taken], test + rows[taken:]
    return training, test


@click.command()
@DATA
@click.option("--seeds", default=5, show_default=True)
@click.option("--only", default="", help="Sets whose name begins so.")
@click.option("--base", default="starter-768", show_default=True)
def main(data: Path, seeds: int, only: str, base: str) -> None:
    """Train on every draw of every set."""
    sets = {
        "TREC, 20 labels": lambda seed: questions(data, "label", 20, seed),
        "TREC, 100 labels": lambda seed: questions(data, "label", 100, seed),
        "TREC fine, 270 labels": lambda seed: questions(data, "fine_label", 270, seed),
        "captions, 270 of 77 classes": lambda seed: captions(data, seed),
    }
    frozen = Encoder.load(base)
    figures: dict[str, Any] = {}
    for name, make in sets.items():
        if not name.startswith(only):
            continue
        found: dict[str, list[float]] = {}
        for seed in range(seeds):
            training, test = make(seed)
            found.setdefault("logistic regression", []).append(regression(frozen, training, test))
            model = trained(base, training, seed)
            for row in accuracy(model, test):
                found.setdefault(f"trained, {row.dim}", []).append(row.accuracy)
            click.echo(f"{name}, draw {seed}: {model.recipe['chosen']}")
        for how, scores in found.items():
            points = [round(100 * score, 1) for score in scores]
            spread = stdev(points) if seeds > 1 else 0.0
            row = {"mean": round(fmean(points), 1), "sd": round(spread, 1), "all": points}
            figures.setdefault(name, {})[how] = row
            click.echo(f"{name:28} {how:20} {row}")
    record("labels", figures)


def regression(encoder: Encoder, training: Labelled, test: Labelled) -> float:
    """Accuracy of scikit-learn's on full-width vectors."""
    vectors = [encoder.encode([text for text, _ in rows]) for rows in (training, test)]
    labels = [[label for _, label in rows] for rows in (training, test)]
    model = LogisticRegression(C=C, max_iter=2000).fit(vectors[0], labels[0])
    return float(model.score(vectors[1], labels[1]))


def trained(base: str, training: Labelled, seed: int) -> Encoder:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        settings = {"objective": "classification", "seed": seed, "checkpoint_every": 0}
        files = {"train": [write(training, scratch / "train.tsv")], "out": scratch / "model"}
        return train(TrainConfig.from_dict({**settings, **files, "base": base}))


if __name__ == "__main__":
    main()
