"""The seven STS sets and SentEval's seven transfer tasks, by prefix length.

    python benchmarks/sts.py
    python benchmarks/sts.py --transfer

Spearman × 100 of all-MiniLM-L6-v2 beside the published figures (the MTEB results repository, commit
f4cc6c8; each must come within 0.15), some five minutes on two cores. Transfer (Conneau & Kiela,
arXiv 1803.05449): accuracy × 100 of a logistic regression on frozen vectors, for pairs of sentences
on |a − b| and a · b side by side. C is chosen by folds of what is learnt from; a task in one file
is judged by ten folds. Half an hour more. --encoder measures a model of your own.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from record import DATA, record
from trainings import SICK, sts_files

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import (
    StsTask,
    averages,
    prefix_lengths,
    sts_tasks,
    unit_prefix,
)
from searchengine.trainer.reading import read_rows
from searchengine.trainer.training.examples import read_sts

PUBLISHED = {
    "sts12": 72.37,
    "sts13": 80.60,
    "sts14": 75.59,
    "sts15": 85.39,
    "sts16": 78.99,
    "stsb_test": 82.03,
    "sickr": 77.58,
}
WITHIN = 0.15
# Files of train and test, by their beginnings; "" where a task has no test set.
TRANSFER = {
    "MR": ("mr.", ""),
    "CR": ("cr.", ""),
    "SUBJ": ("subj.", ""),
    "MPQA": ("mpqa.", ""),
    "SST2": ("sst2_train", "sst2_test"),
    "TREC": ("trec_train", "trec_test"),
    "MRPC": ("mrpc_train", "mrpc_test"),
}
CS = (0.01, 0.1, 1.0, 10.0, 100.0)
Split = tuple[list[list[str]], NDArray[np.str_]]
"""Texts, one or two columns of them, and a label for each row."""


def read_split(folder: Path, beginning: str) -> Split:
    """TSV: a label, then text, or sentence1 and sentence2."""
    path = next(path for path in sorted(folder.iterdir()) if path.name.startswith(beginning))
    rows = [row for _, row in read_rows(path)]
    names = ("sentence1", "sentence2") if "sentence1" in rows[0] else ("text",)
    return [[row[name] for row in rows] for name in names], np.array([row["label"] for row in rows])


def transfer(encoder: Encoder, folder: Path, task: str, dims: tuple[int, ...]) -> dict[int, float]:
    """Accuracy × 100 by prefix length."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.model_selection import cross_val_predict

    splits = [read_split(folder, beginning) for beginning in TRANSFER[task] if beginning]
    vectors = [[encoder.encode(texts) for texts in columns] for columns, _ in splits]
    labels = [labels for _, labels in splits]
    model = LogisticRegressionCV(
        Cs=CS, l1_ratios=(0,), scoring="accuracy", max_iter=2000, use_legacy_attributes=False
    )
    found = {}
    for dim in dims:
        cut = [[unit_prefix(rows, dim) for rows in sides] for sides in vectors]
        x = [
            sides[0]
            if len(sides) == 1
            else np.concatenate([np.abs(sides[0] - sides[1]), sides[0] * sides[1]], axis=1)
            for sides in cut
        ]
        if len(x) == 1:
            predicted = cross_val_predict(model, x[0], labels[0], cv=10)
        else:
            predicted = model.fit(x[0], labels[0]).predict(x[1])
        found[dim] = round(100 * float(np.mean(predicted == labels[-1])), 2)
    return found


@click.command()
@DATA
@click.option("--encoder", default="starter", show_default=True, help="Published figures: starter.")
@click.option("--transfer", "transfers", is_flag=True, help="The transfer tasks, too.")
def main(data: Path, encoder: str, transfers: bool) -> None:
    """Evaluate an encoder; the starter must come out as published."""
    model = Encoder.load(encoder)
    dims = prefix_lengths(model, model.dim) if encoder != "starter" else (384, 256, 128, 64)
    files = {name: [name] if name != "sickr" else SICK for name in PUBLISHED}
    tasks = [StsTask(name, read_sts(sts_files(data, names))) for name, names in files.items()]
    rows = sts_tasks(model, tasks, dims)
    figures: dict[str, Any] = {"encoder": encoder}
    for row in [*rows, *averages(rows)]:
        figures.setdefault(row.task, {})[row.dim] = round(100 * row.spearman, 2)
    for task in TRANSFER if transfers else ():
        figures[task] = transfer(model, data / "clf", task, dims)
    for name, row_of in figures.items():
        click.echo(f"{name:10} {row_of}")
    record("sts" if encoder == "starter" else f"sts {Path(encoder).name}", figures)
    far = [
        name for name, value in PUBLISHED.items() if abs(figures[name][dims[0]] - value) > WITHIN
    ]
    if far and encoder == "starter":
        raise SystemExit(f"more than {WITHIN} from the published figure: {', '.join(far)}")


if __name__ == "__main__":
    main()
