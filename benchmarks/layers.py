"""2-D Matryoshka: how good the encoder is with its first layers alone, and how fast.

    python benchmarks/layers.py

The starter on NLI triplets without any sentence of an STS or SICK set, with and without shallower
layers in the loss (arXiv 2402.14776); STS-B dev, Spearman × 100 by number of layers and prefix
length, the last step of each run; and nDCG@10 × 100 on SciFact, exact, of whole documents, when
questions and documents pass these layers, and when only questions do. The speed is that of the
untrained starter. An hour on two cores.
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
from record import DATA, over_seeds, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import ScoredPair, read_sts, sts
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig

ARMS: dict[str, dict[str, Any]] = {
    "without layers": {},
    "with layers": {"layers_per_step": 1},
}
PREFIXES = (384, 64)
LAYERS = (6, 4, 3, 2)


def by_layers(encoder: Encoder, pairs: list[ScoredPair], judged: Judged) -> dict[str, Any]:
    """Quality with the first layers alone: each figure, by number of layers."""
    found: dict[str, Any] = {}
    whole = encoder.encode(judged.texts, role="document")
    for layers in LAYERS:
        shallow = encoder.truncate(layers=layers)
        found[str(layers)] = {
            str(row.dim): round(100 * row.spearman, 2) for row in sts(shallow, pairs, PREFIXES)
        }
        questions = shallow.encode([*judged.questions.values()], role="query")
        own = whole if layers == LAYERS[0] else shallow.encode(judged.texts, role="document")
        for name, documents in (("ndcg@10", own), ("ndcg@10, documents by all layers", whole)):
            found[str(layers)][name] = round(100 * judged.ranked(questions, documents), 2)
        click.echo(f"{layers} layers: {found[str(layers)]}", err=True)
    return found


def speed(encoder: Encoder, judged: Judged) -> dict[str, Any]:
    """Documents per second and milliseconds of a question, by number of layers."""
    found = {}
    for layers in LAYERS:
        shallow = encoder.truncate(layers=layers)
        alone = [timed(shallow, [text]) for text in judged.questions.values()]
        found[str(layers)] = {
            "documents/s": round(len(judged.texts) / timed(shallow, judged.texts), 1),
            "ms a question": round(1000 * median(alone), 2),
        }
    return found


def timed(encoder: Encoder, texts: Sequence[str]) -> float:
    """Seconds for the vectors of these texts."""
    encoder.encode(["warm"] * 4)
    start = time.perf_counter()
    encoder.encode(texts)
    return time.perf_counter() - start


@click.command()
@DATA
@click.option("--steps", default=80, show_default=True, help="Updates of 64 triplets.")
@click.option("--seeds", default=3, show_default=True)
def main(data: Path, steps: int, seeds: int) -> None:
    """Train both ways with each seed, and cut."""
    pairs = read_sts([data / "sts/stsb_dev.tsv"])
    judged = Judged(data)
    starter = Encoder.load("starter")
    figures: dict[str, Any] = {"steps": steps, "speed": speed(starter, judged)}
    figures["untrained"] = by_layers(starter, pairs, judged)
    for name, changes in ARMS.items():
        rows = []
        for seed in range(seeds):
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
                    seed=seed,
                    **changes,
                )
                train(config)
                rows.append(by_layers(Encoder.load(config.out), pairs, judged))
        figures[name] = {
            layers: {key: over_seeds([row[layers][key] for row in rows]) for key in of_layers}
            for layers, of_layers in rows[0].items()
        }
        for layers, row in figures[name].items():
            click.echo(f"{name:15} {layers} layers  {row}")
    record("layers", figures)


if __name__ == "__main__":
    main()
