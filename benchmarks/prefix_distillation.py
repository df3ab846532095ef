"""What prefix distillation does to a 64-number shortlist of 50: SciFact, rotation on.

    python benchmarks/prefix_distillation.py

Trains a linear adapter (head_only) on titles and abstracts of papers, those of SciFact excluded;
the last step is kept. Reported for the base model, for training without distillation and with it:
the share of the true top 10 (exact search at full width with the same encoder) that a shortlist
finds, and nDCG@10 at full width and of the two stages, so that a gain is not bought with quality.
The rate and the weight were chosen on other papers. Ten minutes a seed on two cores.
"""

import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import click
from matryoshka_finetune import show
from record import DATA, over_seeds, record, run_json

from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig

POINTS = ((64, 50), (64, 100), (128, 50))


def measure(encoder: str | Path, data: Path) -> dict[str, float]:
    """Recall@10 of shortlists and nDCG@10 of both searches, × 100, of SciFact's test questions."""
    folder = data / "beir" / "scifact"
    with tempfile.TemporaryDirectory() as scratch:
        collection = Path(scratch) / "scifact"
        run_json("index", folder, collection, "--encoder", encoder, "--no-passages")
        rows = [
            row
            for size in ("50", "100")
            for row in run_json(
                *("evaluate", "retrieval", collection, "--beir", folder),
                *("--prefixes", "128,64", "--shortlist", size),
            )
        ]
    points = {(row["dim"], row["shortlist"]): row for row in rows}
    exact = next(row for row in rows if row["setting"] == "exact")
    figures = {f"recall@10 {p}/{s}": points[p, s]["exact_recall@10"] for p, s in POINTS}
    figures |= {"nDCG@10 768": exact["ndcg@10"], "nDCG@10 64": points[64, 50]["ndcg@10"]}
    return {name: round(100 * value, 2) for name, value in figures.items()}


def papers(data: Path, out: Path, count: int, seed: int) -> Path:
    """So many papers drawn from the file: titles and abstracts."""
    with gzip.open(data / "text/papers_title_abstract.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = map(json.loads, random.Random(seed).sample(list(lines), count))
        pairs = [{"query": row["title"], "positive": row["text"]} for row in rows]
    out.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return out


@click.command()
@DATA
@click.option("--steps", default=100, show_default=True)
@click.option("--batch", default=64, show_default=True)
@click.option("--weights", default="0,5", show_default=True, help="Of the distillation.")
@click.option("--learning-rate", default=3e-4, show_default=True)
@click.option("--short", default=1.0, show_default=True, help="Weight of the 64 prefix.")
@click.option("--seeds", default=1, show_default=True)
@click.option("--head-only/--network", default=True, help="The last layer, or all.")
def main(
    data: Path,
    steps: int,
    batch: int,
    weights: str,
    learning_rate: float,
    short: float,
    seeds: int,
    head_only: bool,
) -> None:
    """Measure the base model, train with each weight, and measure again."""
    settings = {k: v for k, v in locals().items() if k != "data"}
    found: dict[str, Any] = {"untrained": measure("starter-768", data)}
    click.echo(f"untrained {found['untrained']}")
    for weight in map(float, weights.split(",")):
        rows = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as scratch:
                config = TrainConfig(
                    train=(papers(data, Path(scratch) / "papers.jsonl", steps * batch, seed),),
                    out=Path(scratch) / "model",
                    exclude=(data / "beir/scifact/corpus.jsonl.gz",),
                    prefixes=(768, 512, 256, 128, 64),
                    prefix_weights=(1, 1, 1, 1, short),
                    prefix_distillation=weight,
                    batch_size=batch,
                    max_steps=steps,
                    learning_rate=learning_rate,
                    max_tokens=128,
                    eval_every=0,
                    keep_last=True,
                    checkpoint_every=0,
                    head_only=head_only,
                    seed=seed,
                )
                train(config, show)
                rows.append(measure(config.out, data))
        name = f"distillation {weight:g}"
        found[name] = {key: over_seeds([row[key] for row in rows]) for key in rows[0]}
        click.echo(f"{name} {found[name]}")
    record("prefix_distillation", {"settings": settings, **found})


if __name__ == "__main__":
    main()
