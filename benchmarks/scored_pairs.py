"""Scored pairs: STS-B's training pairs with CoSENT over the prefixes; the test set once at the end.

    python benchmarks/scored_pairs.py --seeds 3 --test

Spearman × 100 by prefix length, before and after. Training pairs that hold a sentence of the dev
or the test set are left out. STS-B dev chooses the step; with --test the test set is then scored
once for each seed.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import click
from record import DATA, over_seeds, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import read_sts, sts
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig


@click.command()
@DATA
@click.option("--seeds", default=3, show_default=True)
@click.option("--steps", default=360, show_default=True, help="Updates; 4 epochs of 64 pairs.")
@click.option("--batch-size", default=64, show_default=True)
@click.option("--learning-rate", default=5e-5, show_default=True)
@click.option("--evaluations", default=4, show_default=True, help="Of dev, during training.")
@click.option("--test", is_flag=True, help="Score the test set at the end.")
def main(data: Path, seeds: int, evaluations: int, test: bool, **settings: Any) -> None:
    """Train with each seed."""
    dev, test_set = data / "sts/stsb_dev.tsv", data / "sts/stsb_test.tsv"
    figures: dict[str, Any] = {name: str(value) for name, value in settings.items()}
    tested: list[dict[int, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(seeds):
            started = time.monotonic()
            config = TrainConfig(
                train=(data / "sts/stsb_train.tsv",),
                out=Path(scratch) / str(seed),
                objective="similarity",
                exclude=(dev, test_set),
                dev=(dev,),
                batch_size=settings["batch_size"],
                learning_rate=settings["learning_rate"],
                max_steps=settings["steps"],
                eval_every=max(1, settings["steps"] // evaluations),
                seed=seed,
            )
            encoder = train(config, lambda r: click.echo(f"{r.step} {r.loss} {r.scores}", err=True))
            dev_scores = {k: round(100 * v, 2) for k, v in encoder.recipe["best"].items()}
            figures[f"seed {seed}"] = {
                "examples": encoder.recipe["examples"],
                "excluded": encoder.recipe["excluded"],
                "best_step": encoder.recipe["best_step"],
                "dev": dev_scores,
                "minutes": round((time.monotonic() - started) / 60, 1),
            }
            if test:
                tested.append(scores(encoder, test_set))
                figures[f"seed {seed}"]["test"] = tested[-1]
            click.echo(f"seed {seed} {figures[f'seed {seed}']}")
    if test:
        figures["untrained"] = scores(Encoder.load("starter-768"), test_set)
        for dim in tested[0]:
            figures[f"test {dim}"] = over_seeds([row[dim] for row in tested])
            click.echo(f"{dim:5} {figures['untrained'].get(dim)} {figures[f'test {dim}']}")
    record("scored_pairs", figures)


def scores(encoder: Encoder, path: Path) -> dict[int, float]:
    """Spearman × 100 by prefix length."""
    return {row.dim: round(100 * row.spearman, 2) for row in sts(encoder, read_sts([path]))}


if __name__ == "__main__":
    main()
