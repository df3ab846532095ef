"""searchengine train."""

from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import Numbers
from trainer.training.presets import PRESETS

FILES = click.Path(path_type=Path)


@click.command()
@click.argument("files", nargs=-1, required=True, type=FILES)
@click.option("--out", required=True, type=FILES, help="Folder to write.")
@click.option("--preset", type=click.Choice(list(PRESETS)), help="A published recipe.")
@click.option("--base", help="Model to start from [default: starter-768].")
@click.option("--prefixes", type=Numbers(repeats=True), help="Prefix lengths, full width first.")
@click.option("--dev", multiple=True, type=FILES, help="File to judge by; repeatable.")
@click.option("--exclude", multiple=True, type=FILES, help="Not to train on; repeatable.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the examples [default: 3].")
@click.option("--config", type=FILES, help="JSON file of settings.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting, as JSON; repeatable.",
)
@click.option(
    "--trust-remote-code",
    is_flag=True,
    default=None,
    help="Run Python code that comes with the base model.",
)
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out.")
@click.option("--tensorboard", type=FILES, metavar="DIR", help="Folder for logs.")
@click.option("--plots", type=FILES, metavar="DIR", help="Folder for pictures.")
def train(
    files: tuple[Path, ...],
    preset: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    resume: bool,
    tensorboard: Path | None,
    plots: Path | None,
    **options: Any,
) -> None:
    """Fine-tune an encoder on sentences, pairs, triplets or labelled texts.

    FILES are TSV or JSONL, .gz too. The best step is chosen by the --dev files (scored
    pairs; labelled texts for a classification), or by examples held out. Training
    texts that occur in an --exclude file are left out, so that what is evaluated
    later was never seen. A --preset sets what its paper sets; --config, --set and the
    other options override it, in that order. docs/training.md lists all settings.

    \b
    Example:
        searchengine train data/pairs.tsv --out my-model
    """
    from searchengine.cli.training_display import read_config, train_with_progress

    given = {name: value for name, value in options.items() if value not in (None, ())}
    settings = read_config(config, {"train": files, **given}, preset, assignments)
    train_with_progress(settings, resume=resume, tensorboard=tensorboard, plots=plots)
