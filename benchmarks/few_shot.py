"""Supervised contrastive fine-tuning against cross-entropy, from few labels.

    python benchmarks/few_shot.py

20, 100 and 1000 labels of TREC, SST-2 and MR (Gunel et al., arXiv 2011.01403), the starter's
network, the same labels for all losses of a seed. Labels are drawn class by class; another hundred
choose the step. Accuracy on the test set: SST-2's and TREC's own, of MR a fixed fifth that is never
drawn from. Models learnt on SST-2 are also asked about MR and CR. The baseline beside both losses
is a logistic regression on the starter's frozen vectors, its C chosen by the same hundred. --noise
gives a share of the labels that are trained on another class. Half an hour on two cores.
"""

import functools
import gzip
import random
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import DATA, over_seeds, record
from transfer import best_c, fitted

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.labels import accuracy
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.step_judging import Measure
from searchengine.trainer.training.train_config import TrainConfig

LOSSES: dict[str, dict[str, Any]] = {
    "cross-entropy": {"label_weight": 0.0},
    "supervised contrastive": {"label_weight": 0.9, "label_temperature": 0.3},
}
FROZEN = "frozen vectors"
STEPS = {20: 60, 100: 100, 1000: 200}
DEV, TEST = 100, 1000  # texts that choose the step; test texts at most, for the time it takes
Labelled = list[tuple[str, str]]


def read(path: Path) -> Labelled:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open()
    with opened as lines:
        header, *rows = (line.rstrip("\n").split("\t") for line in lines)
    text, label = header.index("text"), header.index("label")
    return [(row[text], row[label]) for row in rows]


def parted(rows: Labelled, seed: int) -> tuple[Labelled, Labelled]:
    """Four fifths and one fifth, for sets without a test set of their own."""
    rows = random.Random(seed).sample(rows, len(rows))
    return rows[len(rows) // 5 :], rows[: len(rows) // 5]


def sets(data: Path) -> dict[str, tuple[Labelled, Labelled]]:
    """Training and test texts; no test text is trained on."""
    clf = data / "clf"
    cut = random.Random(0)
    found = {
        "TREC": (read(clf / "trec_train.tsv"), read(clf / "trec_test.tsv")),
        "SST-2": (read(clf / "sst2_train.tsv.gz"), read(clf / "sst2_test.tsv")),
        "MR": parted(read(clf / "mr.tsv"), 0),
    }
    chosen = {}
    for name, (training, test) in found.items():
        seen = {text for text, _ in test}
        test = cut.sample(test, min(TEST, len(test)))
        chosen[name] = ([row for row in training if row[0] not in seen], test)
    return chosen


def sample(rows: Labelled, count: int, seed: int) -> tuple[Labelled, Labelled]:
    """`count` texts, the classes as even as they allow, and DEV others."""
    rows = random.Random(seed).sample(rows, len(rows))
    by_label: dict[str, Labelled] = {}
    for row in rows:
        by_label.setdefault(row[1], []).append(row)
    queues = [by_label[label] for label in sorted(by_label)]
    chosen: Labelled = []
    while len(chosen) < count:
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    out = set(chosen)
    return chosen, [row for row in rows if row not in out][:DEV]


def with_noise(rows: Labelled, share: float, labels: list[str], seed: int) -> Labelled:
    """The texts, this share of them with another label."""
    draw = random.Random(f"noise {seed}")
    wrong = set(draw.sample(range(len(rows)), round(share * len(rows))))
    return [
        (text, draw.choice([each for each in labels if each != label]) if i in wrong else label)
        for i, (text, label) in enumerate(rows)
    ]


def features(encoder: Encoder, rows: Labelled) -> tuple[Any, Any]:
    """The vectors (n, D) and the labels (n,)."""
    return encoder.encode([text for text, _ in rows]), np.array([label for _, label in rows])


def frozen(encoder: Encoder, chosen: Labelled, dev: Labelled, tests: dict[str, Any]) -> Any:
    """Accuracy × 100 of a logistic regression on frozen vectors. tests: features by test set."""
    x, y = features(encoder, chosen)
    model = fitted(x, y, best_c(x, y, *features(encoder, dev)))
    return {name: 100 * float(model.score(*rows)) for name, rows in tests.items()}


def write(rows: Labelled, path: Path) -> Path:
    lines = ["text\tlabel", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@click.command()
@DATA
@click.option("--labels", default="20,100,1000", show_default=True)
@click.option("--seeds", default="5,3,2", show_default=True, help="For each number of labels.")
@click.option("--only", multiple=True, help="Sets [default: all three].")
@click.option("--noise", default=0.0, show_default=True, help="Share of wrong training labels.")
def main(data: Path, labels: str, seeds: str, only: tuple[str, ...], noise: float) -> None:
    """Train every loss on every draw."""
    starter = Encoder.load("starter")
    elsewhere = {
        "MR": sets(data)["MR"][1],
        "CR": random.Random(0).sample(read(data / "clf/cr.tsv"), TEST),
    }
    figures: dict[str, Any] = {}
    for count, draws in zip(map(int, labels.split(",")), map(int, seeds.split(",")), strict=True):
        for name, (training, test) in sets(data).items():
            if only and name not in only:
                continue
            found: dict[str, list[float]] = {}
            classes = sorted({label for _, label in training})
            others = elsewhere if name == "SST-2" else {}
            tests = {"": test} | {f" → {other}": rows for other, rows in others.items()}
            encoded = {place: features(starter, rows) for place, rows in tests.items()}
            for seed in range(draws):
                chosen, dev = sample(training, count, seed)
                chosen = with_noise(chosen, noise, classes, seed)
                for place, right in frozen(starter, chosen, dev, encoded).items():
                    found.setdefault(FROZEN + place, []).append(round(right, 2))
                for loss, settings in LOSSES.items():
                    model = run(chosen, dev, {**settings, "seed": seed, "max_steps": STEPS[count]})
                    for place, rows in tests.items():
                        if place and loss not in LOSSES:
                            continue
                        right = 100 * accuracy(model, rows)[0].accuracy
                        found.setdefault(loss + place, []).append(round(right, 2))
            for place, scores in found.items():
                row = over_seeds(scores)
                figures.setdefault(f"{count} labels", {}).setdefault(name, {})[place] = row
                click.echo(f"{count:5} {name:6} {place:35} {row}")
    record("few_shot" + (f", noise {noise:g}" if noise else ""), figures)


def run(chosen: Labelled, dev: Labelled, settings: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        config = TrainConfig.from_dict(
            {
                "train": [write(chosen, scratch / "train.tsv")],
                "out": scratch / "model",
                "base": "starter",
                "objective": "classification",
                "prefixes": [384],
                "batch_size": 16,
                "learning_rate": 5e-5,
                "warmup_ratio": 0.06,
                "max_tokens": 64,
                "eval_every": settings["max_steps"] // 4,
                **settings,
            }
        )
        # A measure and not files: a loss is compared, so what it trained is kept.
        return train(config, measure=Measure("accuracy on dev", functools.partial(judged, dev)))


def judged(dev: Labelled, encoder: Any) -> dict[int, float]:
    """The accuracy on the dev set by prefix length."""
    return {row.dim: row.accuracy for row in accuracy(encoder, dev)}


if __name__ == "__main__":
    main()
