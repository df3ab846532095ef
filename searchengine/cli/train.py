"""searchengine train and mine."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.console import note
from searchengine.cli.options import AS_JSON, MODEL, Assignment, runs
from searchengine.trainer.errors import TRAINING, require
from searchengine.trainer.files import read_object
from searchengine.trainer.training.presets import PRESETS, preset

if TYPE_CHECKING:
    from searchengine.trainer.training.train_config import TrainConfig

FILES = click.Path(path_type=Path)


class WithPresets(click.Command):
    """A command whose help ends with the presets."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        with formatter.section("Presets"):
            formatter.write_dl(
                [
                    (name, "; ".join(filter(None, (p.summary, p.harm))))
                    for name, p in PRESETS.items()
                ]
            )


@click.command(cls=WithPresets)
@click.argument("files", nargs=-1, type=FILES)
@click.option("--out", required=True, type=FILES, help="Folder to write the model to.")
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), help="Settings to start from: see below."
)
@click.option("--base", help="Model to start from [default: starter].")
@click.option(
    "--dev",
    multiple=True,
    type=FILES,
    help="File to choose the best step by (repeatable), or a BEIR folder.",
)
@click.option(
    "--exclude",
    multiple=True,
    type=FILES,
    help="File of texts to leave out of training; repeatable.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file of training settings.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    type=Assignment("temperature=0.1"),
    help="Setting, the value in JSON: epochs=1, prefixes=[384,64]; repeatable.",
)
@click.option("--resume", is_flag=True, help="Resume from the last checkpoint in --out.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Choice(["wandb", "mlflow", "tensorboard"]),
    help="Where to log loss and scores; tensorboard: to runs/ in --out; repeatable.",
)
def train(
    files: tuple[Path, ...],
    preset: str | None,
    config: Path | None,
    assignments: tuple[tuple[str, Any], ...],
    resume: bool,
    logs: tuple[str, ...],
    **options: Any,
) -> None:
    """Fine-tune an encoder on sentences, pairs, triplets, scores or labelled texts.

    FILES are CSV, TSV or JSONL, .gz too, or Parquet. The --dev files (pairs, scored or not;
    labelled texts for a classification), search on a BEIR folder, or held-out examples choose
    the best step. Training texts that occur in an --exclude file are left out, so that a later
    evaluation uses unseen texts. --config, --set
    and the other options override a --preset, in that order.
    docs/training-reference.md lists all settings.

    \b
    Example:
        searchengine train data/pairs.tsv --out my-model
    """
    from searchengine.trainer.sources.source import Source

    require("train", "training", *TRAINING)  # before the seconds that torch takes to start
    overrides = {name: value for name, value in options.items() if value not in (None, ())}
    if files:
        overrides["train"] = files
    elif config is None:
        raise click.UsageError("Missing argument 'FILES...': name them, or a --config with them.")
    settings = read_config(config, overrides, preset, assignments)
    if not resume:  # before torch is loaded
        base = Source.find(settings.base)
        tuned = (base.folder / "modules.json").exists()  # it has a head for sentences
        if tuned and preset and (harm := PRESETS[preset].harm):
            note(f"Preset {preset} {harm}; take `pairs`, or a base without a head for sentences")
    from searchengine.cli.train_display import train_with_progress

    train_with_progress(settings, resume=resume, logs=logs)


def read_config(
    path: Path | None,
    overrides: Mapping[str, Any],
    preset_name: str | None = None,
    assignments: Iterable[tuple[str, Any]] = (),
) -> "TrainConfig":
    """A preset, overridden by a JSON file, then by NAME=VALUE, then by options.

    Labels have the preset of their name, if none is given.
    """
    from searchengine.trainer.training.train_config import Objective, TrainConfig

    settings = {} if path is None else read_object(path)
    settings |= {**dict(assignments), **overrides}
    if preset_name is None and settings.get("objective") == Objective.CLASSIFICATION:
        preset_name = "labels"
    return TrainConfig.from_dict({**(preset(preset_name) if preset_name else {}), **settings})


@click.command()
@click.argument("pairs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="New .jsonl file.")
@MODEL
@click.option(
    "--corpus", type=click.Path(path_type=Path), help="Corpus of further candidates, as for index."
)
@click.option(
    "--text-field", metavar="NAME", help="Name of the text field of the corpus [default: text]."
)
@click.option("--negatives", default=1, help="Number of negatives per anchor.")
@click.option(
    "--relative-margin",
    default=0.95,
    help="Maximum score of a negative, as a fraction of the positive's.",
)
@runs
@AS_JSON
def mine(
    pairs: tuple[Path, ...],
    out: Path,
    encoder: str,
    corpus: Path | None,
    text_field: str | None,
    runtime: Any,
    as_json: bool,
    **settings: Any,
) -> None:
    """Find hard negatives for the PAIRS (CSV, TSV or JSONL) and write triplets.

    Candidates are all positives and the documents of --corpus. A candidate that
    scores nearly as high as the positive may be a positive too: the margins leave
    it out. `train` reads the file; docs/training.md has the details.

    \b
    Example:
        searchengine mine data/pairs.tsv --out triplets.jsonl
    """
    from searchengine.cli.console import counted, progress, show_json
    from searchengine.corpus.files import read_corpus
    from searchengine.corpus.tabular import Columns
    from searchengine.measure.mining import (
        MiningConfig,
        candidates,
        check_output,
        read_pairs,
        write_negatives,
    )

    check_output(out)  # before seconds of loading
    config = MiningConfig(**settings)
    from searchengine.trainer.encoder import Encoder

    started = time.monotonic()
    columns = Columns(text=text_field)
    documents = read_corpus(corpus, columns=columns) if corpus else ()
    loaded = Encoder.load(encoder, **asdict(runtime))
    examples = read_pairs(pairs)
    texts = candidates(examples, (document.full_text for document in documents))
    with progress("Mining", len(examples) + len(texts)) as advance:
        summary = write_negatives(out, loaded, examples, texts, config, advance)
    seconds = round(time.monotonic() - started, 2)
    if as_json:
        show_json({"out": str(out), **asdict(summary), "seconds": seconds})
        return
    note(f"{summary.pairs} pairs and {summary.candidates} candidates in {seconds} s: {out}")
    full = counted(config.negatives, "negative")
    note(
        f"{summary.complete} pairs with {full}, {summary.fewer} with fewer, "
        f"{summary.none} with none; {summary.dropped_by_margin} candidates left out by the margins"
    )
