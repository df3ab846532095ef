"""searchengine train and mine."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import AS_JSON, TRUST, Numbers
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


@click.command()
@click.argument("pairs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="New .tsv or .jsonl.")
@click.option("--encoder", default="starter", show_default=True, help="Model folder or hub name.")
@click.option("--corpus", type=click.Path(path_type=Path), help="More candidates; as for index.")
@click.option("--negatives", default=1, show_default=True, help="How many for each anchor.")
@click.option(
    "--relative-margin", default=0.95, show_default=True, help="Most of the positive's score."
)
@click.option("--margin", type=float, help="Least distance below the positive's score.")
@click.option("--skip", default=0, show_default=True, help="First ranks to leave out.")
@click.option("--depth", default=100, show_default=True, help="Last rank to look at.")
@click.option("--sample", is_flag=True, help="Draw among those that fit; not the best ranked.")
@click.option("--seed", default=0, show_default=True, help="Decides the draw.")
@click.option("--exact", is_flag=True, help="Score every candidate at full width.")
@TRUST
@AS_JSON
def mine(
    pairs: tuple[Path, ...],
    out: Path,
    encoder: str,
    corpus: Path | None,
    trust_remote_code: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Find hard negatives for the PAIRS (TSV or JSONL, .gz too) and write triplets.

    Candidates are all positives, and the documents of --corpus. Those that score
    nearly as high as the positive may be positives too: the margins leave them
    out. The file goes to train as it is; docs/mining.md says more.

    \b
    Example:
        searchengine mine data/pairs.tsv --out triplets.tsv
    """
    from searchengine.cli.console import note, progress, show_json
    from searchengine.corpus.files import read_corpus
    from searchengine.evaluate.mining import Miner, MiningConfig, check_output, read_pairs

    check_output(out)  # before what takes seconds to load
    config = MiningConfig(**settings)
    from trainer.encoder import Encoder

    started = time.monotonic()
    texts = (document.full_text for document in read_corpus(corpus)) if corpus else ()
    loaded = Encoder.load(encoder, trust_remote_code=trust_remote_code)
    miner = Miner(loaded, read_pairs(pairs), texts, config)
    with progress("Mining", miner.work) as advance:
        summary = miner.write(out, advance)
    seconds = round(time.monotonic() - started, 2)
    if as_json:
        show_json({"out": str(out), **asdict(summary), "seconds": seconds})
        return
    note(f"{summary.pairs} pairs and {summary.candidates} candidates in {seconds} s: {out}")
    wanted = "1 negative" if config.negatives == 1 else f"{config.negatives} negatives"
    note(
        f"{summary.complete} pairs with {wanted}, {summary.fewer} with fewer, "
        f"{summary.none} with none; {summary.dropped_by_margin} candidates left out by the margins"
    )
