"""Training steps per second, and memory, beside sentence-transformers.

python benchmarks/train_speed.py --steps 30 --rounds 5

The packaged all-MiniLM-L6-v2 on NLI triplets of at most 64 tokens; the same batches in the same
order, losses, AdamW, rates, warm-up, decay and clipping; no evaluation and no checkpoints between
timed steps. Only dropout differs, so the losses of the arms must be equal.
Each measurement is a process of its own, and those of a round follow one another, so that what
else the machine does affects all equally. Start-up and the first steps are left out. Needs the
packages sentence-transformers and datasets. Half a minute for each loss, arm, batch size and round.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click
from record import DATA, record, spread
from sides import memory_mb, once, run

WARM_UP = 5  # steps before the clock starts
PREFIXES = (384, 256, 128, 64)
MAX_TOKENS = 64
LEARNING_RATE, WARM_SHARE, WEIGHT_DECAY, MAX_NORM = 2e-5, 0.1, 0.01, 1.0  # ours is 1
LAST = 10  # steps whose mean loss is compared
# Ours takes bfloat16 where the processor computes it natively; theirs takes float32 unless told.
ARMS = ("ours", "ours-fp32", "theirs", "theirs-bf16")
LOSSES = ("nested", "plain")
TRIPLETS = "nli/nli_triplets_en.tsv.gz"


class Watch:
    """When steps ended and what they lost, of updates 1, 2, …"""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []
        self.before_mb = 0.0

    def begin(self) -> None:
        """All is loaded; the first step comes."""
        self.before_mb = memory_mb()["now"]

    def end(self, loss: float) -> None:
        self.ends.append(time.perf_counter())
        self.losses.append(loss)

    def figures(self) -> dict[str, Any]:
        """Seconds of each step after the warm-up, without the last, which ends in an evaluation."""
        seconds = [b - a for a, b in itertools.pairwise(self.ends[WARM_UP - 1 : -1])]
        return {
            "seconds": median(seconds),
            "loss": fmean(self.losses[-LAST:]),
            "before_mb": self.before_mb,
            "peak_mb": memory_mb()["peak"],
        }


def updates(steps: int) -> int:
    return WARM_UP + steps + 1


def configure(data: Path, scratch: Path, steps: int, batch: int, nested: bool, **more: Any) -> Any:
    """Settings of this project's run, as a TrainConfig. more: further fields."""
    from searchengine.trainer.training.train_config import TrainConfig

    dev = scratch / "dev.tsv"  # else a tenth of the examples would be held out
    dev.write_text("score\tsentence1\tsentence2\n5\ta dog\tthe dog\n0\ta dog\tthe sea\n")
    return TrainConfig(
        train=(data / TRIPLETS,),
        dev=(dev,),
        out=scratch / "model",
        base="starter",
        prefixes=PREFIXES if nested else PREFIXES[:1],
        rotate=False,  # theirs does not turn either
        batch_size=batch,
        max_steps=updates(steps),
        learning_rate=LEARNING_RATE,
        warmup_ratio=WARM_SHARE,
        max_tokens=MAX_TOKENS,
        eval_every=0,
        **more,
    )


def train_ours(data: Path, steps: int, batch: int, nested: bool, **more: Any) -> dict[str, Any]:
    """A run of ours. more: further fields of TrainConfig."""
    from searchengine.trainer.training.loop import Report, train

    watch = Watch()

    def report(line: Report) -> None:
        if line.step == 0:
            watch.begin()
        elif line.loss is not None:
            watch.end(line.loss)

    with tempfile.TemporaryDirectory() as scratch:
        train(configure(data, Path(scratch), steps, batch, nested, **more), report)
    return watch.figures()


def same_rows(data: Path, steps: int, batch: int) -> list[dict[str, str]]:
    """The triplets that ours trains on, in its order."""
    from searchengine.trainer.training.examples import BatchPlan, read_examples

    with tempfile.TemporaryDirectory() as scratch:
        config = configure(data, Path(scratch), steps, batch, nested=False)
        plan = BatchPlan(config, read_examples(config).train)
    rows = (row for step in range(plan.steps) for row in plan.at(step))
    return [
        {"anchor": row.anchor, "positive": row.positive, "negative": row.negatives[0]}
        for row in rows
    ]


def train_theirs(data: Path, steps: int, batch: int, nested: bool, bf16: bool) -> dict[str, Any]:
    """A run of SentenceTransformerTrainer."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import (
        MatryoshkaLoss,
        MultipleNegativesRankingLoss,
    )
    from torch.utils.data import Dataset as Rows
    from torch.utils.data import SequentialSampler
    from transformers import TrainerCallback

    from searchengine.trainer.sources.source import starter_folder

    watch = Watch()
    found: list[torch.Tensor] = []

    class Callback(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.end(found.pop().item())

    def in_order(rows: Rows[Any], **options: Any) -> DefaultBatchSampler:
        return DefaultBatchSampler(SequentialSampler(rows), **options)  # type: ignore[arg-type]

    model = SentenceTransformer(str(starter_folder()), device="cpu")
    model.max_seq_length = MAX_TOKENS
    loss: torch.nn.Module = MultipleNegativesRankingLoss(model, scale=20)
    if nested:
        loss = MatryoshkaLoss(model, loss, PREFIXES)
    loss.register_forward_hook(lambda module, _inputs, value: found.append(value.detach()))
    with tempfile.TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=scratch,
            max_steps=updates(steps),
            per_device_train_batch_size=batch,
            batch_sampler=in_order,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="linear",
            warmup_steps=round(WARM_SHARE * updates(steps)),
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=MAX_NORM,
            bf16=bf16,
            use_cpu=True,
            dataloader_pin_memory=False,
            eval_strategy="no",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(same_rows(data, steps, batch)),
            loss=loss,
            callbacks=[Callback()],
        ).train()
    return watch.figures()


def be(arm: str, data: str, **what: Any) -> tuple[Callable[[], dict[str, Any]], Any]:
    """A side that trains once."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "ours": lambda: train_ours(Path(data), **what),
        "ours-fp32": lambda: train_ours(Path(data), precision="fp32", **what),
        "theirs": lambda: train_theirs(Path(data), bf16=False, **what),
        "theirs-bf16": lambda: train_theirs(Path(data), bf16=True, **what),
    }
    return runs[arm], {}


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Figures of each arm; and how much faster ours is than each, by the rounds they shared."""
    arms = {
        arm: {
            "steps_per_second": spread([1 / one[arm]["seconds"] for one in rounds]),
            "loss": spread([one[arm]["loss"] for one in rounds]),
            "peak_mb": spread([one[arm]["peak_mb"] for one in rounds]),
            "training_mb": spread([one[arm]["peak_mb"] - one[arm]["before_mb"] for one in rounds]),
        }
        for arm in rounds[0]
    }
    pairs = [(a, b) for a in arms for b in arms if a.startswith("ours") and b.startswith("theirs")]
    faster = {
        f"{a} / {b}": spread([one[b]["seconds"] / one[a]["seconds"] for one in rounds])
        for a, b in pairs
    }
    return {"arms": arms, "times as fast": faster}


def show(figures: dict[str, Any]) -> None:
    for arm, found in figures["arms"].items():
        click.echo(
            f"{arm:12} {found['steps_per_second']['median']:6.2f} steps/s"
            f"  loss {found['loss']['median']:.3f}  peak {found['peak_mb']['median']:.0f} MB"
        )
    for pair, found in figures["times as fast"].items():
        click.echo(f"{pair}: {found['median']:.2f} ({found['q1']:.2f} to {found['q3']:.2f})")


@click.command()
@DATA
@click.option("--steps", default=30, show_default=True, help="Timed steps of a run.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each arm.")
@click.option("--batch", "batches", default=(64,), show_default=True, multiple=True, type=int)
@click.option("--arm", "arms", default=ARMS, multiple=True, type=click.Choice(ARMS))
@click.option("--loss", "losses", default=LOSSES, multiple=True, type=click.Choice(LOSSES))
def main(
    data: Path,
    steps: int,
    rounds: int,
    batches: tuple[int, ...],
    arms: tuple[str, ...],
    losses: tuple[str, ...],
) -> None:
    """Time both trainers in turn."""
    results = []
    for batch, loss in itertools.product(batches, losses):
        found: list[dict[str, dict[str, Any]]] = []
        for number in range(rounds):
            # Back and forth: what changes with time affects all arms equally.
            order = arms if number % 2 == 0 else arms[::-1]
            what = {"data": str(data), "steps": steps, "batch": batch, "nested": loss == "nested"}
            timed = {arm: once(__file__, arm=arm, **what) for arm in order}
            found.append({arm: timed[arm] for arm in arms})
        click.echo(f"{loss} loss, batches of {batch} triplets")
        figures = summary(found)
        show(figures)
        results.append({"loss": loss, "batch": batch, **figures})
    versions = {name: version(name) for name in ("datasets", "accelerate")}
    record("train_speed", {"steps": steps, "versions": versions, "results": results})


if __name__ == "__main__":
    run(main, be)
