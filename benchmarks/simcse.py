"""SimCSE on two cores: what makes a positive, dropout, poolers, MLM, a queue, hard negatives.

    python benchmarks/simcse.py

The comparisons of SimCSE (arXiv 2104.08821, tables 1, 2, 3, 5, 6 and D.1–D.2) with the network of
the starter, on sentences of which none is in an STS or SICK set: unsupervised, from NLI with and
without contradictions as hard negatives, and from scored pairs (CoSENT) without a sentence of
STS-B's dev or test set. The first row is the paper's own setting at a size that two cores manage.
STS-B dev chooses the step, as in the paper; --test adds STS-B test, and --retrieval SciFact. Two
minutes a training.
"""

import gzip
import random
import tempfile
from pathlib import Path
from typing import Any

import click
from record import DATA
from trainings import ONLY, RETRIEVAL, SEEDS, TEST, compare, judge, sts_files

from searchengine.trainer.training.train_config import preset

# What a row changes of the preset simcse-unsup, at a size that a minute allows.
UNSUPERVISED: dict[str, dict[str, Any]] = {
    "dropout 0.1, CLS before the MLP": {},
    "delete one word": {"augment": "delete-word"},
    "delete 10 % of the words": {"augment": "delete", "augment_share": 0.1},
    "crop 10 %": {"augment": "crop", "augment_share": 0.1},
    "next sentence": {"augment": "next-sentence"},
    "no dropout": {"dropout": 0.0},
    "dropout 0.2": {"dropout": 0.2},
    "CLS with the MLP": {"pooling": "cls"},
    "mean": {"pooling": "mean"},
    "temperature 0.01": {"temperature": 0.01},
    "temperature 1": {"temperature": 1.0},
    "MLM, weight 0.1": {"mlm_weight": 0.1},
    "momentum queue of 256": {"queue_size": 256},
}


def sentences(data: Path, scratch: Path, count: int, name: str) -> Path:
    """Sentences of several sources, shuffled; or of one in their order, for the next sentence."""
    with gzip.open(data / f"text/{name}.tsv.gz", "rt", encoding="utf-8") as lines:
        texts = [line.rstrip("\n").split("\t", 1)[1] for line in lines][1:]
    if name == "sentences_mixed":
        random.Random(0).shuffle(texts)
    path = scratch / f"{name}.tsv"
    path.write_text("\n".join(["sentence", *texts[:count]]) + "\n", encoding="utf-8")
    return path


def triplets(data: Path, scratch: Path) -> Path:
    """Rows with all three texts, so that both rows of NLI have the same pairs in the same order."""
    with gzip.open(data / "nli/nli_triplets_en.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t")[:3] for line in lines]
    path = scratch / "triplets.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows if all(row)), encoding="utf-8")
    return path


@click.command()
@DATA
@click.option("--steps", default=60, show_default=True, help="Updates of 64 examples.")
@SEEDS
@ONLY
@TEST
@RETRIEVAL
def main(
    data: Path, steps: int, seeds: int, only: tuple[str, ...], test: bool, retrieval: bool
) -> None:
    """Train every row from the same start."""
    few = {"batch_size": 64, "max_steps": steps, "eval_every": max(1, steps // 4)}
    dev = {"dev": sts_files(data, ["stsb_dev"])}
    clean = dev | {"exclude": sts_files(data)}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        mixed = sentences(data, scratch, 40_000, "sentences_mixed")
        in_order = sentences(data, scratch, 40_000, "sentences_wikipedia")
        nli = {**preset("simcse-sup"), **clean, **few, "train": [triplets(data, scratch)]}
        rows = {
            name: {
                **preset("simcse-unsup"),
                **clean,
                **few,
                "train": [in_order if name == "next sentence" else mixed],
                **changes,
            }
            for name, changes in UNSUPERVISED.items()
        }
        rows |= {
            "NLI pairs": nli | {"columns": ["premise", "entailment"]},
            "NLI pairs with hard negatives": nli,
            "scored pairs, all of STS-B": {
                **preset("scored-pairs"),
                **dev,
                "train": sts_files(data, ["stsb_train"]),
                "exclude": sts_files(data, ["stsb_dev", "stsb_test"]),
            },
        }
        compare("simcse", rows, judge(data, (384, 64), test, retrieval), seeds, only)


if __name__ == "__main__":
    main()
