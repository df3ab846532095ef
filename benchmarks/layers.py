"""2-D Matryoshka: how good the encoder is with its first layers alone, and how fast.

    python benchmarks/layers.py

The starter on NLI triplets without any sentence of an STS or SICK set, with and without shallower
layers in the loss (arXiv 2402.14776); STS-B dev, Spearman × 100 by number of layers and prefix
length, the last step of each run; and nDCG@10 on SciFact, exact, of whole documents, when both
sides pass so many layers, and when only the question does, with documents and questions per
second. Fifteen minutes on two cores.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
from encoding import Judged
from matryoshka_finetune import TESTS
from record import DATA, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import ScoredPair, read_sts, sts
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig

ARMS: dict[str, dict[str, Any]] = {
    "without layers": {},
    "with layers": {"layers_per_step": 1},
}
PREFIXES = (384, 64)


LAYERS = (6, 5, 4, 3, 2, 1)


def by_layers(encoder: Encoder, pairs: list[ScoredPair], judged: Judged) -> dict[str, Any]:
    """Quality and speed with the first layers alone."""
    found: dict[str, Any] = {}
    whole = encoder.encode(judged.texts, role="document")
    for layers in LAYERS:
        shallow = encoder.truncate(layers=layers)
        scores = {row.dim: round(100 * row.spearman, 2) for row in sts(shallow, pairs, PREFIXES)}
        documents, seconds = timed(shallow, judged.texts)
        questions, _ = timed(shallow, [*judged.questions.values()])
        alone = [timed(shallow, [text])[1] for text in judged.questions.values()]
        found[str(layers)] = scores | {
            "ndcg@10": round(judged.ranked(questions, documents), 4),
            "ndcg@10, documents by all layers": round(judged.ranked(questions, whole), 4),
            "documents/s": round(len(judged.texts) / seconds, 1),
            "ms a question": round(1000 * median(alone), 2),
        }
        click.echo(f"{layers} layers: {found[str(layers)]}", err=True)
    return found


def timed(encoder: Encoder, texts: Sequence[str]) -> tuple[Any, float]:
    """Vectors of questions or documents, and the seconds they took."""
    encoder.encode(["warm"] * 4)
    start = time.perf_counter()
    vectors = encoder.encode(texts)
    return vectors, time.perf_counter() - start


@click.command()
@DATA
@click.option("--steps", default=80, show_default=True, help="Updates of 64 triplets.")
def main(data: Path, steps: int) -> None:
    """Train both ways, and cut."""
    pairs = read_sts([data / "sts/stsb_dev.tsv"])
    judged = Judged(data)
    figures: dict[str, Any] = {"untrained": by_layers(Encoder.load("starter"), pairs, judged)}
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
            train(config)
            figures[name] = by_layers(Encoder.load(config.out), pairs, judged)
    for name, rows in figures.items():
        for layers, row in rows.items():
            click.echo(f"{name:15} {layers} layers  {row}")
    record("layers", {"steps": steps, **figures})


if __name__ == "__main__":
    main()
