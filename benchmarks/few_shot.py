"""Training on few labels beside a logistic regression on the vectors of the base as shipped.

    python benchmarks/few_shot.py                 # 5, 10 and 20 texts a class
    python benchmarks/few_shot.py --noise 0.2     # a fifth of them with a wrong label

TREC's 6 classes and its 50 fine ones, judged on its test set; SST-2; SUBJ, CR and MR, of which 500
texts are never drawn; and 150 topics of papers. A topic is a phrase of two words that occurs in
many titles; its texts are these titles without the phrase, and ten of each class are judged. Rare
classes have as many texts as there are. The regression is scikit-learn's LogisticRegressionCV.
Trained is the preset `labels` with its defaults: supervised contrastive and cross-entropy (Gunel et
al., arXiv 2011.01403); beside it cross-entropy alone. `difference` is trained less the regression,
over the test texts of all draws; `wins` and `losses` count the draws in which it is beyond doubt
(randomisation test, p < 0.05). Nothing is chosen on a test set, and nothing on SUBJ and CR.
"""

import collections
import gzip
import itertools
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from record import DATA, over_seeds, record
from texts import papers
from trainings import SEEDS

from searchengine.measure.significance import compare
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig, preset

Labelled = list[tuple[str, str]]
BASE, TOPICS, JUDGED = "starter", 150, 10
HELD_OUT = 500  # texts of a set without a test set
REGRESSION, TRAINED = "logistic regression, base as shipped", "trained"
LOSSES: dict[str, dict[str, Any]] = {TRAINED: {}, "cross-entropy alone": {"label_weight": 0.0}}
# Words that make no topic of a phrase.
FUNCTION = frozenset(
    "a an the of for in on with via to and by from using at as is are its it be or over under into "
    "towards toward through without based approach new novel".split()
)


def read(path: Path, column: str = "label") -> Labelled:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open()
    with opened as lines:
        header, *rows = (line.rstrip("\n").split("\t") for line in lines)
    text, label = header.index("text"), header.index(column)
    return [(row[text], row[label]) for row in rows]


def titles_by_topic(data: Path) -> Labelled:
    """Titles of papers without the phrase that names their class."""
    titles = sorted({" ".join(paper["title"].split()) for paper in papers(data)})
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
    rows = set()
    for phrase in chosen:
        pattern = re.compile(re.escape(phrase).replace(r"\ ", r"\W+"), re.IGNORECASE)
        for place in places[phrase]:
            text = " ".join(pattern.sub(" ", titles[place]).split()).strip(" :-,")
            if owners[place] == 1 and len(text.split()) > 3:
                rows.add((text, phrase))
    return sorted(rows)


def drawn(rows: Labelled, each: int, seed: int) -> Labelled:
    """`each` texts of a class, in an order of the seed's own."""
    by_label: dict[str, list[str]] = {}
    for text, label in sorted(set(rows)):
        by_label.setdefault(label, []).append(text)
    rng = random.Random(seed)
    return [
        (text, label)
        for label, texts in sorted(by_label.items())
        for text in rng.sample(texts, min(each, len(texts)))
    ]


def sets(data: Path) -> dict[str, Callable[[int, int], tuple[Labelled, Labelled]]]:
    """Name → a function from texts a class and seed to training and test texts."""
    clf = data / "clf"
    divided = {
        "TREC, 6 classes": (read(clf / "trec_train.tsv"), read(clf / "trec_test.tsv")),
        "TREC, 50 classes": tuple(
            read(clf / f"trec_{name}.tsv", "fine_label") for name in ("train", "test")
        ),
        "SST-2": (read(clf / "sst2_train.tsv.gz"), read(clf / "sst2_test.tsv")),
    }
    for name in ("SUBJ", "CR", "MR"):
        rows = sorted({*read(clf / f"{name.lower()}.tsv")})
        rows = random.Random(0).sample(rows, len(rows))
        divided[name] = rows[HELD_OUT:], rows[:HELD_OUT]
    titles = titles_by_topic(data)

    def of_set(name: str, each: int, seed: int) -> tuple[Labelled, Labelled]:
        training, test = divided[name]
        seen = {text for text, _ in test}
        return drawn([row for row in training if row[0] not in seen], each, seed), test

    def of_topics(each: int, seed: int) -> tuple[Labelled, Labelled]:
        test = drawn(titles, JUDGED, seed)
        return drawn(sorted({*titles} - {*test}), each, seed), test

    found: dict[str, Any] = {
        name: lambda each, seed, name=name: of_set(name, each, seed) for name in divided
    }
    return found | {"paper topics, 150 classes": of_topics}


def with_noise(rows: Labelled, share: float, seed: int) -> Labelled:
    """The texts, this share of them with another label."""
    draw, labels = random.Random(f"noise {seed}"), sorted({label for _, label in rows})
    wrong = set(draw.sample(range(len(rows)), round(share * len(rows))))
    return [
        (text, draw.choice([each for each in labels if each != label]) if i in wrong else label)
        for i, (text, label) in enumerate(rows)
    ]


def regression(encoder: Encoder, training: Labelled, texts: Sequence[str]) -> list[str]:
    """The labels that a regression predicts, which chooses C by a cross-validation of its own."""
    from sklearn.linear_model import LogisticRegressionCV

    settings = {"scoring": "accuracy", "max_iter": 1000, "use_legacy_attributes": False}
    model = LogisticRegressionCV(l1_ratios=(0,), **settings)
    known, labels = zip(*training, strict=True)
    model.fit(encoder.encode(known), labels)
    return [str(label) for label in model.predict(encoder.encode(texts))]


def trained(
    training: Labelled, seed: int, changes: dict[str, Any], texts: Sequence[str]
) -> list[str]:
    """The labels by the model that a user of the preset loads."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "train.tsv"
        path.write_text("".join("\t".join(row) + "\n" for row in [("text", "label"), *training]))
        files = {"train": [path], "out": f"{scratch}/model", "base": BASE, "seed": seed}
        train(TrainConfig.from_dict({**preset("labels"), **changes, **files}))
        return Encoder.load(f"{scratch}/model").classify(texts)[0]


def summary(draws: Sequence[tuple[Labelled, dict[str, list[int]]]]) -> dict[str, Any]:
    """Accuracy × 100 of each model over the draws, and what of the difference is beyond doubt."""
    row: dict[str, Any] = {
        name: over_seeds([round(100 * fmean(right[name]), 2) for _, right in draws])
        for name in draws[0][1]
    }
    found = [compare(right[TRAINED], right[REGRESSION]) for _, right in draws]
    # A text that several draws test counts once, with its mean.
    of_text: dict[str, list[tuple[int, int]]] = {}
    for test, right in draws:
        for (text, _), *pair in zip(test, right[TRAINED], right[REGRESSION], strict=True):
            of_text.setdefault(text, []).append((pair[0], pair[1]))
    all_texts = compare(*np.array([np.mean(pairs, axis=0) for pairs in of_text.values()]).T)
    return row | {
        "difference": [
            round(100 * x, 2) for x in (all_texts.difference, all_texts.low, all_texts.high)
        ],
        "wins": sum(each.p < 0.05 and each.difference > 0 for each in found),
        "losses": sum(each.p < 0.05 and each.difference < 0 for each in found),
        "test texts": len(of_text),
    }


@click.command()
@DATA
@SEEDS
@click.option("--each", default="5,10,20", show_default=True, help="Texts a class.")
@click.option("--only", default="", help="Sets whose name begins so.")
@click.option("--noise", default=0.0, show_default=True, help="Share of wrong training labels.")
def main(data: Path, seeds: int, each: str, only: str, noise: float) -> None:
    """Train every loss on every draw of every set."""
    base = Encoder.load(BASE)
    figures: dict[str, Any] = {}
    for (name, draw), count in itertools.product(sets(data).items(), map(int, each.split(","))):
        if not name.startswith(only):
            continue
        draws = []
        for seed in range(seeds):
            training, test = draw(count, seed)
            training = with_noise(training, noise, seed)
            texts = [text for text, _ in test]
            predicted = {REGRESSION: regression(base, training, texts)} | {
                loss: trained(training, seed, changes, texts) for loss, changes in LOSSES.items()
            }
            right = {
                how: [int(a == b) for a, (_, b) in zip(labels, test, strict=True)]
                for how, labels in predicted.items()
            }
            draws.append((test, right))
        figures[f"{name}, {count} each"] = summary(draws)
        click.echo(f"{name}, {count} each: {figures[f'{name}, {count} each']}")
    record("few_shot" + (f", noise {noise:g}" if noise else ""), figures)


if __name__ == "__main__":
    main()
