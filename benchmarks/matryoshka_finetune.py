"""Fine-tune the widened starter so that its first 64 numbers carry its meaning (STS-B dev).

    python benchmarks/matryoshka_finetune.py

Trains on English NLI triplets and picture captions, without any sentence of an STS or SICK test
set or of STS-B dev; STS-B dev chooses the step. Targets: Spearman at 64 dims at least 97 % of that
at full width after training, and full width at most 0.5 points below the untrained model. Some
five minutes on two cores.
"""

import tempfile
import time
from pathlib import Path

import click
from record import DATA, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import StsRow, read_sts, sts
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.train_config import TrainConfig

# SICK whole, because benchmarks/sts.py evaluates on all of its pairs.
SICK = ("sickr_train", "sickr_dev", "sickr_test")
TESTS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb_test", "stsb_dev", *SICK)
KEPT, LOST = 0.97, 0.005


def configure(data: Path, out: Path, steps: int, distillation: float) -> TrainConfig:
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
        prefix_distillation=distillation,
        learning_rate=3e-5,
        batch_size=128,
        max_steps=steps,
        max_tokens=64,
        eval_every=25,
        checkpoint_every=0,
    )


def show(report: Report) -> None:
    if report.scores is not None:
        scores = "  ".join(f"{dim}: {100 * s:.2f}" for dim, s in report.scores.items())
        click.echo(f"step {report.step:4}/{report.steps}  {scores}", err=True)


@click.command()
@DATA
@click.option("--out", type=click.Path(path_type=Path), help="Keep the model in this folder.")
@click.option("--steps", default=100, show_default=True, help="Updates of 128 examples.")
@click.option("--distillation", default=1.0, show_default=True, help="Weight, of each prefix.")
@click.option("--test", is_flag=True, help="Look at the test set too; settle all else before.")
def main(data: Path, out: Path | None, steps: int, distillation: float, test: bool) -> None:
    """Train, and compare each prefix before and after."""
    pairs = read_sts([data / "sts/stsb_dev.tsv"])
    before = sts(Encoder.load("starter-768"), pairs)
    with tempfile.TemporaryDirectory() as scratch:
        config = configure(data, out or Path(scratch) / "model", steps, distillation)
        start = time.monotonic()
        trained = train(config, show)
        seconds = time.monotonic() - start
        after = sts(trained, pairs)
    click.echo("prefix  untrained  trained  share of full width")
    for old, new in zip(before, after, strict=True):
        share = new.spearman / after[0].spearman
        click.echo(
            f"{new.dim:6}  {100 * old.spearman:9.2f}  {100 * new.spearman:7.2f}  {share:19.1%}"
        )
    figures = {
        "seconds": round(seconds, 1),
        "steps": steps,
        "distillation": distillation,
        "recipe": {k: v for k, v in trained.recipe.items() if k != "config"},
        "untrained": rounded(before),
        "trained": rounded(after),
    }
    if test:
        unseen = read_sts([data / "sts/stsb_test.tsv"])
        figures["test"] = {
            name: rounded(sts(encoder, unseen))
            for name, encoder in (("untrained", Encoder.load("starter-768")), ("trained", trained))
        }
        click.echo(f"STS-B test {figures['test']}")
    record("matryoshka_finetune", figures)
    if after[-1].spearman < KEPT * after[0].spearman:
        raise SystemExit(f"64 dims keep less than {KEPT:.0%} of the full width")
    if after[0].spearman < before[0].spearman - LOST:
        raise SystemExit(f"the full width lost more than {100 * LOST} points")


def rounded(rows: list[StsRow]) -> dict[int, float]:
    """Spearman × 100 by prefix length."""
    return {row.dim: round(100 * row.spearman, 2) for row in rows}


if __name__ == "__main__":
    main()
