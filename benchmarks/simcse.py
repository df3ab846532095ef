"""Unsupervised SimCSE on two cores: what makes a positive, dropout, poolers, temperature, MLM.

    python benchmarks/simcse.py

The comparisons of SimCSE (arXiv 2104.08821, tables 1, 2, 3, 6 and D.1–D.2) with the network of the
starter, from its CLS vector, on sentences of which none is in an STS or SICK set. STS-B dev chooses
the step, as in the paper, and is what is reported: Spearman × 100, alignment and uniformity. The
first row is the paper's own setting at a size that two cores manage. A minute a row.
"""

import gzip
import random
import tempfile
from pathlib import Path
from typing import Any

import click
from matryoshka_finetune import TESTS
from record import DATA, over_seeds, record

from searchengine.trainer.training.loop import train
from searchengine.trainer.training.presets import preset
from searchengine.trainer.training.train_config import TrainConfig

# The preset's settings that a minute allows; name: what a row changes of them.
ROWS: dict[str, dict[str, Any]] = {
    "dropout 0.1, CLS before the MLP, temperature 0.05": {},
    "delete one word": {"augment": "delete-word"},
    "delete 10 % of the words": {"augment": "delete", "augment_share": 0.1},
    "crop 10 %": {"augment": "crop", "augment_share": 0.1},
    "crop 30 %": {"augment": "crop", "augment_share": 0.3},
    "next sentence": {"augment": "next-sentence"},
    "delete one word, no dropout": {"augment": "delete-word", "dropout": 0.0},
    "no dropout": {"dropout": 0.0},
    "dropout 0.01": {"dropout": 0.01},
    "dropout 0.05": {"dropout": 0.05},
    "dropout 0.2": {"dropout": 0.2},
    "CLS with the MLP": {"pooling": "cls"},
    "mean": {"pooling": "mean"},
    "temperature 0.01": {"temperature": 0.01},
    "temperature 0.1": {"temperature": 0.1},
    "temperature 1": {"temperature": 1.0},
    "MLM, weight 0.1": {"mlm_weight": 0.1},
    "MLM, weight 1": {"mlm_weight": 1.0},
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


@click.command()
@DATA
@click.option("--steps", default=60, show_default=True, help="Updates of 64 sentences.")
@click.option("--seeds", default=1, show_default=True)
@click.option("--only", multiple=True, help="Rows by their names [default: all].")
def main(data: Path, steps: int, seeds: int, only: tuple[str, ...]) -> None:
    """Train every row from the same start."""
    figures: dict[str, Any] = {"steps": steps}
    chosen = {name: changes for name, changes in ROWS.items() if not only or name in only}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        mixed = sentences(data, scratch, 40_000, "sentences_mixed")
        wikipedia = sentences(data, scratch, 40_000, "sentences_wikipedia")
        for name, changes in chosen.items():
            following = changes.get("augment") == "next-sentence"
            trained: list[dict[str, float]] = []
            for seed in range(seeds):
                settings = {
                    **preset("simcse-unsup"),
                    "base": "starter",
                    "train": [wikipedia if following else mixed],
                    "exclude": [data / f"sts/{test}.tsv" for test in TESTS],
                    "dev": [data / "sts/stsb_dev.tsv"],
                    "out": scratch / f"{name}{seed}",
                    "max_steps": steps,
                    "eval_every": max(1, steps // 4),
                    "seed": seed,
                    **changes,
                }
                model = train(TrainConfig.from_dict(settings)).model
                judged = model.history["judged"]
                best = next(j for j in reversed(judged) if j["step"] == model.recipe["best_step"])
                trained.append(rounded(best))
            of_seeds = {key: over_seeds([row[key] for row in trained]) for key in trained[0]}
            figures[name] = {"untrained": rounded(judged[0]), "trained": of_seeds}
            click.echo(f"{name:50} {figures[name]}")
    record("simcse", figures)


def rounded(judged: dict[str, Any]) -> dict[str, float]:
    (score,) = judged["scores"].values()
    return {
        "step": judged["step"],
        "spearman": round(100 * score, 2),
        "alignment": round(judged["alignment"], 3),
        "uniformity": round(judged["uniformity"], 3),
    }


if __name__ == "__main__":
    main()
