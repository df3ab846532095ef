"""2-D Matryoshka: how good the encoder is with its first layers alone, and how fast.

    python benchmarks/layers.py

The starter on NLI triplets without any sentence of an STS or SICK set, with and without shallower
layers in the loss (arXiv 2402.14776); STS-B dev, Spearman × 100 by number of layers and prefix
length, the last step of each run; and sentences per second. Five minutes on two cores.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import click
from matryoshka_finetune import TESTS
from record import DATA, record

from trainer.config import TrainConfig
from trainer.encoder import Encoder
from trainer.evaluation import ScoredPair, StsTask, read_sts, sentences, sts
from trainer.loop import train

ARMS: dict[str, dict[str, Any]] = {
    "without layers": {},
    "with layers": {"layers_per_step": 1},
}
PREFIXES = (384, 64)


def by_layers(encoder: Encoder, pairs: list[ScoredPair]) -> dict[str, Any]:
    texts = sentences([StsTask("", pairs)])
    found: dict[str, Any] = {}
    for layers in (6, 5, 4, 3, 2, 1):
        shallow = encoder.truncate(layers=layers)
        scores = {row.dim: round(100 * row.spearman, 2) for row in sts(shallow, pairs, PREFIXES)}
        start = time.perf_counter()
        shallow.encode(texts)
        found[str(layers)] = scores | {"texts/s": round(len(texts) / (time.perf_counter() - start))}
    return found


@click.command()
@DATA
@click.option("--steps", default=80, show_default=True, help="Updates of 64 triplets.")
def main(data: Path, steps: int) -> None:
    """Train both ways, and cut."""
    pairs = read_sts([data / "sts/stsb_dev.tsv"])
    figures: dict[str, Any] = {"untrained": by_layers(Encoder.load("starter"), pairs)}
    for name, changes in ARMS.items():
        with tempfile.TemporaryDirectory() as scratch:
            config = TrainConfig(
                train=(data / "nli/nli_triplets_en.tsv.gz",),
                exclude=tuple(data / f"sts/{test}.tsv" for test in TESTS),
                out=Path(scratch) / "model",
                base="starter",
                prefixes=(384, 256, 128, 64),
                batch_size=64,
                max_steps=steps,
                max_tokens=64,
                eval_every=0,
                checkpoint_every=0,
                keep_last=True,
                **changes,
            )
            figures[name] = by_layers(train(config), pairs)
    for name, rows in figures.items():
        for layers, row in rows.items():
            click.echo(f"{name:15} {layers} layers  {row}")
    record("layers", {"steps": steps, **figures})


if __name__ == "__main__":
    main()
