"""What the benchmarks of training share: settings trained with several seeds beside the base.

The base as shipped, with its own pooling and head, and cut plainly, is judged by the same function
as what a user loads after each training.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from record import over_seeds, record
from texts import Judged

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import StsTask, sts_tasks, unit_prefix
from searchengine.trainer.training.examples import read_sts
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig

# SICK whole, because benchmarks/sts.py evaluates on all of its pairs.
SICK = ("sickr_train", "sickr_dev", "sickr_test")
TESTS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb_test", "stsb_dev", *SICK)
Judge = Callable[[Encoder], dict[str, float]]
"""An encoder → figures by their names."""

SEEDS = click.option("--seeds", default=3, show_default=True, help="Trainings of each row.")
TEST = click.option("--test", is_flag=True, help="Judge by STS-B test too; settle all else before.")
RETRIEVAL = click.option("--retrieval", is_flag=True, help="Judge by SciFact too; minutes a row.")
ONLY = click.option("--only", multiple=True, help="Rows by their names [default: all].")


def judge(data: Path, dims: Sequence[int], test: bool, retrieval: bool) -> Judge:
    """Spearman × 100 and geometry on STS-B, and nDCG@10 × 100 of exact search by each prefix."""
    names = ("stsb_dev", "stsb_test") if test else ("stsb_dev",)
    tasks = [StsTask(name, read_sts([data / f"sts/{name}.tsv"])) for name in names]
    judged = Judged(data) if retrieval else None

    def figures(encoder: Encoder) -> dict[str, float]:
        found: dict[str, float] = {}
        for row in sts_tasks(encoder, tasks, dims):
            found[f"{row.task}, {row.dim}"] = round(100 * row.spearman, 2)
            if row.task == "stsb_dev" and row.dim == dims[0]:
                assert row.alignment and row.uniformity and row.effective_rank
                found["alignment"] = round(row.alignment, 3)
                found["uniformity"] = round(row.uniformity, 3)
                found["effective rank"] = round(row.effective_rank, 1)
        if judged is not None:
            questions = encoder.encode(judged.questions, role="query")
            documents = encoder.encode(judged.texts, role="document")
            for dim in dims:
                cut = unit_prefix(questions, dim), unit_prefix(documents, dim)
                found[f"scifact, {dim}"] = round(100 * judged.ndcg(*cut), 2)
        return found

    return figures


def compare(
    section: str,
    rows: Mapping[str, Mapping[str, Any]],
    judge: Judge,
    seeds: int,
    only: Sequence[str] = (),
    base: str = "starter",
) -> dict[str, Any]:
    """Train each row with each seed, judge it and the base as shipped, and record the figures.

    What is judged is what the run leaves: the base, where the best step is not better beyond doubt.
    """
    figures: dict[str, Any] = {"base as shipped": judge(Encoder.load(base))}
    click.echo(f"{'base as shipped':40} {figures['base as shipped']}")
    for name, settings in rows.items():
        if only and name not in only:
            continue
        results, kept = [], []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as scratch:
                out = Path(scratch) / "model"
                fixed = {"base": base, "out": out, "seed": seed}
                recipe = train(TrainConfig.from_dict({**settings, **fixed})).recipe
                kept.append(recipe["kept"])
                results.append(announced(recipe) | judge(Encoder.load(out)))
        by_name = {key: over_seeds([row[key] for row in results]) for key in results[0]}
        shown = {key: f"{row['mean']} ± {row['sd']}" for key, row in by_name.items()}
        click.echo(f"{name:40} {shown}, kept steps {kept}")
        figures[name] = {"kept steps": kept, **by_name}
    record(section, figures)
    return figures


def announced(recipe: Mapping[str, Any]) -> dict[str, float]:
    """Scores × 100 of the best step by prefix, kept or not, by what chose it."""
    scores: Mapping[str, float] = recipe["measures"][0]["result"] if recipe["measures"] else {}
    return {f"best step, {dim}": round(100 * score, 2) for dim, score in scores.items()}


def sts_files(data: Path, names: Sequence[str] = TESTS) -> list[Path]:
    """Files whose sentences are never trained on."""
    return [data / f"sts/{name}.tsv" for name in names]
