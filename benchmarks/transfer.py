"""Accuracy × 100 on SentEval's seven transfer tasks, by prefix length: starter and starter-768.

    python benchmarks/transfer.py

Conneau & Kiela, arXiv 1803.05449: a logistic regression on frozen vectors. Features are a prefix
scaled to length √dim, so that a C means the same at every width; for pairs |a − b| and a · b side
by side. C is chosen on examples that are neither trained on nor reported: by nested folds where a
task is one file, by folds of train beside a test file, or on a dev file. Some forty minutes on two
cores, most of them for the 67,000 phrases of SST2 and the folds at full width.
"""

import csv
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from record import DATA, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.reading import open_text

ENCODERS = {"starter": (384, 256, 128, 64), "starter-768": (768, 512, 256, 128, 64)}
# Stems of the files of train, dev and test; "" where a task has none.
TASKS = {
    "MR": ("mr", "", ""),
    "CR": ("cr", "", ""),
    "SUBJ": ("subj", "", ""),
    "MPQA": ("mpqa", "", ""),
    "SST2": ("sst2_train", "sst2_dev", "sst2_test"),
    "TREC": ("trec_train", "", "trec_test"),
    "MRPC": ("mrpc_train", "", "mrpc_test"),
}
CS = (0.0001, 0.001, 0.01, 0.1, 1.0)
FOLDS, SEED = 10, 0
Features = NDArray[np.float32]
Labels = NDArray[np.str_]
Split = tuple[list[list[str]], Labels]
"""Texts, one or two columns of them, and a label for each row."""


def read_split(folder: Path, stem: str) -> Split:
    """STEM.tsv or STEM.tsv.gz: a label, then text, or sentence1 and sentence2."""
    path = next(p for p in (folder / f"{stem}.tsv", folder / f"{stem}.tsv.gz") if p.is_file())
    with open_text(path) as lines:
        header, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    names = ("sentence1", "sentence2") if "sentence1" in header else ("text",)
    columns = [[row[header.index(name)] for row in rows] for name in names]
    return columns, np.array([row[header.index("label")] for row in rows])


def features(vectors: dict[str, NDArray[np.float32]], split: Split, dim: int) -> Features:
    """(n, dim), or (n, 2 dim) for pairs of sentences."""
    sides = []
    for texts in split[0]:
        rows = np.stack([vectors[text][:dim] for text in texts])
        sides.append(rows / np.linalg.norm(rows, axis=1, keepdims=True) * np.float32(dim**0.5))
    if len(sides) == 1:
        return sides[0]
    a, b = sides
    return np.concatenate([np.abs(a - b), a * b], axis=1)


def fitted(x: Features, y: Labels, c: float) -> Any:
    """A logistic regression of scikit-learn."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, solver="lbfgs", max_iter=2000).fit(x, y)


def best_c(x: Features, y: Labels, dev_x: Features, dev_y: Labels) -> float:
    """The C whose model of x has most right answers on the dev rows."""
    right = [int((fitted(x, y, c).predict(dev_x) == dev_y).sum()) for c in CS]
    return CS[int(np.argmax(right))]


def folds_of(x: Features, y: Labels) -> NDArray[np.int64]:
    """The fold of every row: stratified by label, shuffled by SEED."""
    from sklearn.model_selection import StratifiedKFold

    fold = np.empty(len(y), dtype=np.int64)
    splitter = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    for number, (_, rows) in enumerate(splitter.split(x, y)):
        fold[rows] = number
    return fold


def nested_folds(x: Features, y: Labels) -> tuple[Labels, float]:
    """A prediction for every row by a model that saw nothing of its fold, and the median C.

    For each fold t, C is chosen by models of the others but one, v, on v. The model that saw
    neither t nor v serves t's choice and v's.
    """
    fold = folds_of(x, y)
    right = np.zeros((FOLDS, FOLDS, len(CS)), dtype=int)  # [t, v, c]: right answers on v without t
    for t, v in combinations(range(FOLDS), 2):
        seen = (fold != t) & (fold != v)
        for i, c in enumerate(CS):
            model = fitted(x[seen], y[seen], c)
            right[t, v, i] = (model.predict(x[fold == v]) == y[fold == v]).sum()
            right[v, t, i] = (model.predict(x[fold == t]) == y[fold == t]).sum()
    chosen = right.sum(axis=1).argmax(axis=1)  # (FOLDS,) places in CS
    predicted = np.empty_like(y)
    for t in range(FOLDS):
        model = fitted(x[fold != t], y[fold != t], CS[chosen[t]])
        predicted[fold == t] = model.predict(x[fold == t])
    return predicted, CS[sorted(chosen)[(FOLDS - 1) // 2]]


def best_c_by_folds(x: Features, y: Labels) -> float:
    """The C with most right answers when each fold is judged by a model of the others."""
    fold = folds_of(x, y)
    right = np.zeros(len(CS), dtype=int)
    for v in range(FOLDS):
        for i, c in enumerate(CS):
            model = fitted(x[fold != v], y[fold != v], c)
            right[i] += (model.predict(x[fold == v]) == y[fold == v]).sum()
    return CS[int(right.argmax())]


def measure(encoder: Encoder, folder: Path, task: str, dims: tuple[int, ...]) -> dict[int, Any]:
    """Accuracy, and F1 of MRPC's label 1, by prefix length."""
    train, dev, test = (read_split(folder, stem) if stem else None for stem in TASKS[task])
    assert train is not None
    splits = [split for split in (train, dev, test) if split is not None]
    texts = list(dict.fromkeys(t for columns, _ in splits for column in columns for t in column))
    vectors = dict(zip(texts, encoder.encode(texts), strict=True))
    results = {}
    for dim in dims:
        x, labels = features(vectors, train, dim), train[1]
        if test is None:
            predicted, c = nested_folds(x, labels)
        else:
            if dev is None:
                c = best_c_by_folds(x, labels)
            else:
                c = best_c(x, labels, features(vectors, dev, dim), dev[1])
            predicted = fitted(x, labels, c).predict(features(vectors, test, dim))
            labels = test[1]
        f1 = None
        if task == "MRPC":
            yes, true = predicted == "1", labels == "1"
            f1 = round(100 * 2 * (yes & true).sum() / max(yes.sum() + true.sum(), 1), 2)
        results[dim] = {
            "accuracy": round(100 * float(np.mean(predicted == labels)), 2),
            "f1": f1,
            "c": c,
        }
    return results


@click.command()
@DATA
@click.option("--encoder", help="Another encoder, with the prefix lengths it names itself.")
@click.option("--tasks", default=",".join(TASKS), help="Tasks to run: MR,TREC.")
def main(data: Path, encoder: str | None, tasks: str) -> None:
    """Evaluate, show and record."""
    figures: dict[str, Any] = {}
    for name in [encoder] if encoder else ENCODERS:
        start = time.monotonic()
        model = Encoder.load(name)
        dims = ENCODERS.get(name, model.matryoshka_dims)
        rows = {task: measure(model, data / "clf", task, dims) for task in tasks.split(",")}
        figures[Path(name).name] = rows | {"seconds": round(time.monotonic() - start, 1)}
        for task, row in rows.items():
            shown = "  ".join(f"{dim}: {figure['accuracy']:.2f}" for dim, figure in row.items())
            click.echo(f"{name:12} {task:8} {shown}")
    record("transfer", figures)


if __name__ == "__main__":
    main()
