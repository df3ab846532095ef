"""The regression that training on labels must beat, beside scikit-learn's LogisticRegressionCV.

    python benchmarks/label_regression.py

Both on the starter's vectors of the same 5, 10 and 20 texts a class, ten draws; accuracy in % on
others, 60 a class at most. Kinds of questions (TREC, 6 and 50 classes), opinions on films, opinion
or fact, the sources of sentences, topics of papers. No text is of a test set: TREC's are its
training questions, and the topics are other ones than those of labels.py.
"""

import gzip
import itertools
import random
import warnings
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import labels
import numpy as np
import torch
from few_shot import read
from record import DATA, over_seeds, record

from searchengine.trainer.classifier import Classifier
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.head import cross_validated_c

EACH, JUDGED, KEPT, DRAWS = (5, 10, 20), 60, 100, 10
# Classes with fewer than FEWEST texts are left out; LEFT texts of a class are never learnt.
FEWEST, LEFT = 8, 4
TOPICS = 50
Texts = dict[str, list[str]]


def sets(data: Path) -> dict[str, Texts]:
    """Texts by class, KEPT of each."""
    with gzip.open(data / "text" / "sentences_mixed.tsv.gz", "rt", encoding="utf-8") as lines:
        sentences = [
            line.rstrip("\n").split("\t", 1)[::-1] for line in itertools.islice(lines, 1, None)
        ]
    first = labels.by_topic(data)
    topics = labels.by_topic(data, len(first) + TOPICS)
    return {
        "TREC, 6 classes": by_class(labels.trec(data, "train", "label")),
        "TREC, 50 classes": by_class(labels.trec(data, "train", "fine_label")),
        "MR": by_class(read(data / "clf" / "mr.tsv")),
        "SUBJ": by_class(read(data / "clf" / "subj.tsv")),
        "sources of sentences": by_class(sentences),
        "paper topics": by_class(
            (text, name) for name, texts in topics.items() if name not in first for text in texts
        ),
    }


def by_class(rows: Iterable[tuple[str, str] | list[str]]) -> Texts:
    """KEPT texts of each class with FEWEST or more, the same ones each time."""
    found: dict[str, set[str]] = {}
    for text, label in rows:
        found.setdefault(label, set()).add(text)
    draw = random.Random(0)
    return {
        label: draw.sample(sorted(texts), min(KEPT, len(texts)))
        for label, texts in sorted(found.items())
        if len(texts) >= FEWEST
    }


def scores(vectors: dict[str, Any], texts: Texts, each: int, seed: int) -> tuple[float, float]:
    """Accuracy in % of the run's regression and of scikit-learn's."""
    draw, training, test = random.Random(seed), [], []
    for label, of_label in texts.items():
        mixed = draw.sample(of_label, len(of_label))
        count = min(each, len(mixed) - LEFT)
        training += [(text, label) for text in mixed[:count]]
        test += [(text, label) for text in mixed[count : count + JUDGED]]
    x, judged = (np.stack([vectors[text] for text, _ in rows]) for rows in (training, test))
    known, right = (np.array([label for _, label in rows]) for rows in (training, test))
    ours = Classifier((x.shape[1],), list(texts))
    vectors_learnt = torch.from_numpy(x)
    ours.fit(vectors_learnt, known.tolist(), cross_validated_c(vectors_learnt, known.tolist()))
    with torch.inference_mode():
        found = np.array(ours.labels)[ours(torch.from_numpy(judged)).argmax(dim=1).numpy()]
    theirs = labels.unfitted().fit(x, known).score(judged, right)
    return 100 * float(np.mean(found == right)), 100 * float(theirs)


@click.command()
@DATA
@click.option("--draws", default=DRAWS, show_default=True)
def main(data: Path, draws: int) -> None:
    """Fit both on every draw."""
    warnings.filterwarnings("ignore", "The least populated class")
    starter = Encoder.load("starter")
    figures: dict[str, Any] = {}
    for name, texts in sets(data).items():
        every = sorted({text for of_label in texts.values() for text in of_label})
        vectors = dict(zip(every, starter.encode(every), strict=True))
        for each in EACH:
            pairs = [scores(vectors, texts, each, seed) for seed in range(draws)]
            ours, theirs = (
                over_seeds([round(score, 2) for score in row]) for row in zip(*pairs, strict=True)
            )
            difference = round(ours["mean"] - theirs["mean"], 2)
            figures[f"{name}, {each} each"] = {
                "classes": len(texts),
                "of the run": ours,
                "LogisticRegressionCV": theirs,
                "difference": difference,
            }
            click.echo(f"{name}, {each} each: {ours['mean']} · {theirs['mean']}  {difference:+}")
    differences = [row["difference"] for row in figures.values()]
    figures["mean difference"] = round(fmean(differences), 2)
    click.echo(f"mean {figures['mean difference']:+}, {min(differences)} to {max(differences)}")
    record("label regression", figures)


if __name__ == "__main__":
    main()
