"""searchengine train."""

from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import Numbers


@click.command()
@click.argument("pairs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--base", help="Model to start from [default: starter-768].")
@click.option("--prefixes", type=Numbers(), help="Prefix lengths, full width first.")
@click.option("--dev", multiple=True, type=click.Path(path_type=Path), help="STS file; see below.")
@click.option("--exclude", multiple=True, type=click.Path(path_type=Path), help="See below.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the pairs [default: 3].")
@click.option("--config", type=click.Path(path_type=Path), help="JSON file of other settings.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out.")
def train(pairs: tuple[Path, ...], config: Path | None, resume: bool, **options: Any) -> None:
    """Fine-tune an encoder on sentences, pairs or triplets (TSV or JSONL, .gz too).

    The best step is chosen by the --dev files, or by pairs held out. Training texts
    that occur in an --exclude file are left out, so that what is evaluated later
    was never seen. Prefixes are those of the base model, 768,512,256,128,64 for
    starter-768. docs/training.md lists the formats and the other settings.

    \b
    Example:
        searchengine train data/pairs.tsv --out my-model
    """
    from searchengine.training import read_config, train_with_progress

    given = {name: value for name, value in options.items() if value not in (None, ())}
    train_with_progress(read_config(config, {"train": pairs, **given}), resume=resume)
