"""Supervised SimCSE with and without hard negatives: STS-B dev, three seeds.

    python benchmarks/hard_negatives.py

NLI triplets without any sentence of an STS or SICK set, from the CLS vector of the starter's
network (the preset simcse-sup at a size that two cores manage). The arms of a seed see the same
pairs in the same order; one also has the contradictions as hard negatives, alone or weighted. STS-B
dev chooses the step and is what is reported. A minute and a half a run.
"""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import click
from matryoshka_finetune import TESTS
from record import DATA, over_seeds, record

from searchengine.trainer.training.loop import train
from searchengine.trainer.training.presets import preset
from searchengine.trainer.training.train_config import TrainConfig

ARMS: dict[str, dict[str, Any]] = {
    "pairs": {"columns": ["premise", "entailment"]},
    "hard negatives": {},
}


@click.command()
@DATA
@click.option("--steps", default=60, show_default=True, help="Updates of 64 examples.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--weight", type=float, multiple=True, help="Further arms: α of a hard negative.")
def main(data: Path, steps: int, seeds: int, weight: tuple[float, ...]) -> None:
    """Train every arm with every seed."""
    arms = ARMS | {f"hard negatives, weight {w:g}": {"hard_negative_weight": w} for w in weight}
    found: dict[str, list[float]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as scratch:
        triplets = whole_triplets(data, Path(scratch) / "triplets.tsv")
        for seed in range(seeds):
            for name, changes in arms.items():
                settings = {
                    **preset("simcse-sup"),
                    "base": "starter",
                    "train": [triplets],
                    "exclude": [data / f"sts/{test}.tsv" for test in TESTS],
                    "dev": [data / "sts/stsb_dev.tsv"],
                    "out": Path(scratch) / f"{name}{seed}",
                    "batch_size": 64,
                    "max_steps": steps,
                    "eval_every": max(1, steps // 4),
                    "seed": seed,
                    **changes,
                }
                recipe = train(TrainConfig.from_dict(settings)).recipe
                (score,) = recipe["best"].values()
                found[name].append(round(100 * score, 2))
                click.echo(f"seed {seed} {name:30} {100 * score:.2f} {recipe['best_step']}")
    figures: dict[str, Any] = {"steps": steps}
    for name, scores in found.items():
        figures[name] = over_seeds(scores)
        click.echo(f"{name:30} {figures[name]}")
    record("hard_negatives", figures)


def whole_triplets(data: Path, out: Path) -> Path:
    """Rows with all three texts, so that both arms have the same pairs in the same order."""
    with gzip.open(data / "nli/nli_triplets_en.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t")[:3] for line in lines]
    out.write_text("".join("\t".join(row) + "\n" for row in rows if all(row)), encoding="utf-8")
    return out


if __name__ == "__main__":
    main()
