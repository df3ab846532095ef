"""Transfer: what a plain classifier reads from frozen vectors (SentEval, Conneau & Kiela 2018).

Seven tasks of arXiv 1803.05449, each a logistic regression on the vectors of its texts. The
classifier and the choice of its C are ours, and fixed for every encoder and prefix length:

* Features: a prefix of the vector scaled to length √dim, so that its values have mean square 1 and
  a C means the same at every width. For pairs of sentences |a − b| and a·b side by side.
* Classifier: scikit-learn's LogisticRegression, L2 penalty, solver lbfgs, float32, multinomial for
  more than two classes; C is one of `CS`, the one with most right answers on texts that are neither
  trained on nor reported; of equals, the smallest.
* One file (MR, CR, SUBJ, MPQA): ten stratified folds. A fold is judged by a model of the other
  nine, whose C those nine choose by leaving out each in turn. Accuracy over all folds together.
* Train and test (TREC, MRPC): ten stratified folds of train choose C; a model of all of train.
* Train, dev and test (SST2): dev chooses C; the model of train.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ConfigError, DataError
from trainer.evaluation.sts import (
    AVERAGE,
    Encoded,
    OnBatch,
    TextEncoder,
    encode_once,
    prefix_lengths,
    unit_prefix,
)
from trainer.evaluation.tables import read_table

CS = (0.0001, 0.001, 0.01, 0.1, 1.0)
FOLDS = 10
SEED = 0  # of the folds
MAX_ITERATIONS = 2000
Features = NDArray[np.float32]
Labels = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class TransferTask:
    """A task and its files: NAME.tsv or NAME.tsv.gz with the columns label and `columns`.

    positive: the label whose F1 is reported beside the accuracy; "" for none.
    """

    name: str
    train: str
    dev: str = ""
    test: str = ""
    columns: tuple[str, ...] = ("text",)
    positive: str = ""


TASKS: Mapping[str, TransferTask] = MappingProxyType(
    {
        task.name: task
        for task in (
            TransferTask("MR", "mr"),
            TransferTask("CR", "cr"),
            TransferTask("SUBJ", "subj"),
            TransferTask("MPQA", "mpqa"),
            TransferTask("SST2", "sst2_train", "sst2_dev", "sst2_test"),
            TransferTask("TREC", "trec_train", test="trec_test"),
            TransferTask(
                "MRPC",
                "mrpc_train",
                test="mrpc_test",
                columns=("sentence1", "sentence2"),
                positive="1",
            ),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Split:
    """Labelled examples. texts: one or two texts each; labels: (n,) str."""

    texts: tuple[tuple[str, ...], ...]
    labels: Labels


@dataclass(frozen=True, slots=True)
class TransferData:
    """A task as read: its splits, None where it has no such file.

    Raises DataError for labels that cannot be learnt: one alone, or too few for the folds.
    """

    task: TransferTask
    train: Split
    dev: Split | None = None
    test: Split | None = None

    def __post_init__(self) -> None:
        _check_labels(self)

    def texts(self) -> list[str]:
        """The distinct texts of all splits, in order of their first occurrence."""
        splits = [split for split in (self.train, self.dev, self.test) if split is not None]
        return list(dict.fromkeys(t for split in splits for texts in split.texts for t in texts))


@dataclass(frozen=True, slots=True)
class TransferRow:
    """A task at one prefix length. accuracy, f1: fractions; n: examples judged.

    f1: of the positive class, for MRPC alone. c: the C chosen; of ten folds the median, rounded
    down the grid; None for an average.
    """

    task: str
    dim: int
    accuracy: float
    f1: float | None
    c: float | None
    n: int


def read_transfer(folder: str | Path, name: str) -> TransferData:
    """The task of that name (a key of `TASKS`) from its files in the folder.

    Raises ConfigError for a name that is no task, DataError with file and line for bad files.
    """
    if name not in TASKS:
        raise ConfigError(f"no transfer task {name!r}: expected one of {', '.join(TASKS)}")
    task = TASKS[name]
    train, dev, test = (
        _read_split(_file(Path(folder), stem, task), task) if stem else None
        for stem in (task.train, task.dev, task.test)
    )
    assert train is not None  # every task has one
    return TransferData(task, train, dev, test)


def _file(folder: Path, stem: str, task: TransferTask) -> Path:
    for path in (folder / f"{stem}.tsv", folder / f"{stem}.tsv.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{folder}: no {stem}.tsv or {stem}.tsv.gz, which {task.name} needs: put it there, or name "
        "other tasks"
    )


def _read_split(path: Path, task: TransferTask) -> Split:
    cells = [row for _, row in read_table(path, ("label", *task.columns))]
    return Split(tuple(tuple(row[1:]) for row in cells), np.array([row[0] for row in cells]))


def transfer(
    encoder: TextEncoder,
    data: TransferData,
    dims: Sequence[int] | None = None,
    on_batch: OnBatch | None = None,
) -> Iterator[TransferRow]:
    """One row per prefix length, yielded as soon as it is known.

    dims: by default the encoder's `matryoshka_dims`, or else its full width. Each distinct text is
    encoded once, before the first row; on_batch gets their counts. Raises ConfigError for a
    length the vectors do not have.
    """
    encoded = encode_once(encoder, data.texts(), on_batch)
    for dim in prefix_lengths(encoder, encoded.width, dims):
        yield _row(data, encoded, dim)


def averages(rows: Iterable[TransferRow]) -> list[TransferRow]:
    """The plain mean of the tasks' accuracies, one row named "average" per prefix length."""
    by_dim: dict[int, list[TransferRow]] = {}
    for row in rows:
        by_dim.setdefault(row.dim, []).append(row)
    return [
        TransferRow(
            AVERAGE,
            dim,
            float(np.mean([row.accuracy for row in group])),
            None,
            None,
            sum(row.n for row in group),
        )
        for dim, group in by_dim.items()
    ]


def features(encoded: Encoded, split: Split, dim: int) -> Features:
    """The features of each example: (n, dim), or (n, 2 dim) for pairs; float32."""
    sides = [
        unit_prefix(encoded.rows(column), dim) * np.float32(dim**0.5)
        for column in zip(*split.texts, strict=True)
    ]
    if len(sides) == 1:
        return sides[0]
    a, b = sides
    return np.concatenate([np.abs(a - b), a * b], axis=1)


def _check_labels(data: TransferData) -> None:
    names, counts = np.unique(data.train.labels, return_counts=True)
    if len(names) < 2:
        raise DataError(f"{data.task.name}: every label is {str(names[0])!r}, expected two or more")
    if data.dev is None and counts.min() < FOLDS:
        rare = int(counts.argmin())
        raise DataError(
            f"{data.task.name}: {counts[rare]} training examples with the label "
            f"{str(names[rare])!r}, expected at least {FOLDS}, one for each fold"
        )


def _row(data: TransferData, encoded: Encoded, dim: int) -> TransferRow:
    x, y = features(encoded, data.train, dim), data.train.labels
    if data.test is None:
        predicted, chosen = nested_folds(x, y)
        return _scored(data.task, dim, predicted, y, chosen)
    if data.dev is None:
        chosen = best_c_by_folds(x, y)
    else:
        chosen = best_c(x, y, features(encoded, data.dev, dim), data.dev.labels)
    predicted = fitted(x, y, chosen).predict(features(encoded, data.test, dim))
    return _scored(data.task, dim, predicted, data.test.labels, chosen)


def _scored(
    task: TransferTask, dim: int, predicted: Labels, labels: Labels, c: float
) -> TransferRow:
    f1 = None
    if task.positive:
        yes, right = predicted == task.positive, labels == task.positive
        f1 = float(2 * (yes & right).sum() / max(yes.sum() + right.sum(), 1))
    return TransferRow(task.name, dim, float(np.mean(predicted == labels)), f1, c, len(labels))


def nested_folds(
    x: Features, y: Labels, cs: Sequence[float] = CS, folds: int = FOLDS
) -> tuple[Labels, float]:
    """A prediction for every row by a model that saw nothing of its fold, and the median C chosen.

    For each fold t, C is chosen by models of the others but one, v, on v. The model that saw
    neither t nor v serves t's choice and v's, so each pair of folds is fitted once for each C:
    half the work of two loops, and the same result.
    """
    fold = _folds(x, y, folds)
    right = np.zeros((folds, folds, len(cs)), dtype=int)  # [t, v, c]: right answers on v without t
    for t, v in combinations(range(folds), 2):
        seen = (fold != t) & (fold != v)
        for i, c in enumerate(cs):
            model = fitted(x[seen], y[seen], c)
            right[t, v, i] = (model.predict(x[fold == v]) == y[fold == v]).sum()
            right[v, t, i] = (model.predict(x[fold == t]) == y[fold == t]).sum()
    chosen = right.sum(axis=1).argmax(axis=1)  # (folds,) places in cs
    predicted = np.empty_like(y)
    for t in range(folds):
        model = fitted(x[fold != t], y[fold != t], cs[chosen[t]])
        predicted[fold == t] = model.predict(x[fold == t])
    return predicted, cs[sorted(chosen)[(folds - 1) // 2]]


def best_c_by_folds(x: Features, y: Labels, cs: Sequence[float] = CS, folds: int = FOLDS) -> float:
    """The C with most right answers when each fold is judged by a model of the others."""
    fold = _folds(x, y, folds)
    right = np.zeros(len(cs), dtype=int)
    for v in range(folds):
        for i, c in enumerate(cs):
            model = fitted(x[fold != v], y[fold != v], c)
            right[i] += (model.predict(x[fold == v]) == y[fold == v]).sum()
    return cs[int(right.argmax())]


def best_c(
    x: Features, y: Labels, dev_x: Features, dev_y: Labels, cs: Sequence[float] = CS
) -> float:
    """The C whose model of x has most right answers on the dev rows."""
    right = [int((fitted(x, y, c).predict(dev_x) == dev_y).sum()) for c in cs]
    return cs[int(np.argmax(right))]


def _folds(x: Features, y: Labels, folds: int) -> NDArray[np.int64]:
    """The fold of every row, 0 to folds − 1: stratified by label, shuffled by SEED."""
    from sklearn.model_selection import StratifiedKFold

    fold = np.empty(len(y), dtype=np.int64)
    splitter = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    for number, (_, rows) in enumerate(splitter.split(x, y)):
        fold[rows] = number
    return fold


def fitted(x: Features, y: Labels, c: float) -> Any:
    """A logistic regression of scikit-learn."""
    from sklearn.linear_model import LogisticRegression  # slow to import

    return LogisticRegression(C=c, solver="lbfgs", max_iter=MAX_ITERATIONS).fit(x, y)
