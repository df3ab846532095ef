"""Fine-tune the widened starter so that its first 64 numbers carry its meaning (STS-B dev).

    python benchmarks/matryoshka_finetune.py

Trains on English NLI triplets and picture captions, without any sentence of an STS or SICK test
set or of STS-B dev; STS-B dev chooses the step. Targets: Spearman at 64 dims at least 97 % of that
at full width after training, and full width at most 0.5 points below the untrained model. Some
five minutes on two cores.
"""

import tempfile
from pathlib import Path
from typing import Any

import click
from record import DATA, over_seeds, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import StsRow, read_sts, sts
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.train_config import TrainConfig

# SICK whole, because benchmarks/sts.py evaluates on all of its pairs.
SICK = ("sickr_train", "sickr_dev", "sickr_test")
TESTS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb_test", "stsb_dev", *SICK)
KEPT, LOST = 0.97, 0.5  # a share; points


def configure(data: Path, out: Path, steps: int, seed: int) -> TrainConfig:
    return TrainConfig(
        train=(data / "nli/nli_triplets_en.tsv.gz", data / "text/multi30k_captions_train.jsonl.gz"),
        exclude=tuple(data / f"sts/{name}.tsv" for name in TESTS),
        dev=(data / "sts/stsb_dev.tsv",),
        out=out,
        base="starter-768",
        prefixes=(768, 512, 256, 128, 64),
        # The starter saw billions of pairs: only its short prefix has much to learn, so that one
        # counts most, and small steps on large batches keep what the full width knows.
        prefix_weights=(1, 1, 1, 1, 8),
        learning_rate=3e-5,
        batch_size=128,
        max_steps=steps,
        max_tokens=64,
        eval_every=25,
        seed=seed,
    )


def show(report: Report) -> None:
    if report.scores is not None:
        scores = "  ".join(f"{dim}: {100 * s:.2f}" for dim, s in report.scores.items())
        click.echo(f"step {report.step:4}/{report.steps}  {scores}", err=True)


@click.command()
@DATA
@click.option("--steps", default=100, show_default=True, help="Updates of 128 examples.")
@click.option("--seeds", default=1, show_default=True)
@click.option("--test", is_flag=True, help="Look at the test set too; settle all else before.")
def main(data: Path, steps: int, seeds: int, test: bool) -> None:
    """Train with each seed, and compare each prefix before and after."""
    names = {"dev": "stsb_dev", **({"test": "stsb_test"} if test else {})}
    pairs = {name: read_sts([data / f"sts/{file}.tsv"]) for name, file in names.items()}
    untrained = Encoder.load("starter-768")
    before = {name: rounded(sts(untrained, rows)) for name, rows in pairs.items()}
    after: dict[str, list[dict[int, float]]] = {name: [] for name in pairs}
    steps_kept = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as scratch:
            trained = train(configure(data, Path(scratch) / "m", steps, seed), show)
        steps_kept.append(trained.recipe["best_step"])
        for name, rows in pairs.items():
            after[name].append(rounded(sts(trained, rows)))
    figures: dict[str, Any] = {
        "steps": steps,
        "best steps": steps_kept,
        "untrained": before,
    }
    for name, rows_of in after.items():
        figures[name] = {dim: over_seeds([row[dim] for row in rows_of]) for dim in rows_of[0]}
        for dim, scores in figures[name].items():
            click.echo(f"{name} {dim:4}  untrained {before[name][dim]:5.2f}  trained {scores}")
    record("matryoshka_finetune", figures)
    full, short = (figures["dev"][dim]["mean"] for dim in (768, 64))
    if short < KEPT * full:
        raise SystemExit(f"64 dims keep less than {KEPT:.0%} of the full width")
    if full < before["dev"][768] - LOST:
        raise SystemExit(f"the full width lost more than {LOST} points")


def rounded(rows: list[StsRow]) -> dict[int, float]:
    """Spearman × 100 by prefix length."""
    return {row.dim: round(100 * row.spearman, 2) for row in rows}


if __name__ == "__main__":
    main()
