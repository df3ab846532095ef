"""searchengine demo: train, index, search and measure the sample data."""

import shlex
from pathlib import Path

import click

from searchengine.cli.console import note, progress, say, show_rows, steps
from searchengine.cli.options import FILE, command
from searchengine.errors import CorpusError
from searchengine.trainer.errors import TRAINING, require

QUESTIONS = (
    "do dolphins ever lose consciousness completely when they rest?",
    "why is my loaf dense and gummy in the middle",
    "what keeps a table small when rows are updated all day",
)


def sample_folder() -> Path:
    """The folder of the sample data: in the package if installed, at the root of a clone."""
    package = Path(__file__).parents[1]
    for folder in (package / "sample", package.parent / "data"):
        if (folder / "corpus.jsonl").is_file():
            return folder
    raise CorpusError(f"{package} has no sample data; install searchengine again")


@command(
    click.argument("folder", default="demo", type=FILE),
    example="demo",
    collection=False,
    json=False,
)
def demo(folder: Path) -> None:
    """Train, index, search and measure on the sample data, and keep the result in a new FOLDER."""
    from searchengine.trainer.sources.source import starter_folder

    sample = sample_folder()
    model, collection = folder / "model", folder / "demo.index"
    if folder.exists():
        raise CorpusError(f"{folder} exists; remove it, or name a new folder: demo FOLDER")
    # Refused before the seconds that torch takes to start.
    require("starter,train", "the demo trains a model, which", *TRAINING)
    starter_folder()
    from searchengine.cli.train import train_with_progress
    from searchengine.corpus.files import read_corpus
    from searchengine.engine import SearchEngine
    from searchengine.indexer.tuning.goal import Goal
    from searchengine.measure.bench import bench, collection_dataset
    from searchengine.measure.judgements import read_queries
    from searchengine.trainer.training.train_config import TrainConfig

    note(f"Fine-tuning the starter encoder, widened to 768, on {sample / 'pairs.tsv'}")
    train_with_progress(TrainConfig(train=(sample / "pairs.tsv",), out=model))
    with SearchEngine.create(collection, model) as engine:
        documents = list(read_corpus(sample))
        with progress("Indexing", len(documents)) as advance:
            engine.add(documents, progress=lambda done, _: advance(done))
        for question in QUESTIONS:
            say(f"\n{question}", bold=True)
            for hit in engine.search(question, k=3):
                say(str(hit))
        say()
        questions = read_queries(sample / "queries.jsonl")
        with collection_dataset(engine, questions) as dataset, steps() as report:
            *_, results = bench(dataset, Goal(), report)
    show_rows(results.table(), "Operating points, compared with exact search")
    say(f'Next: searchengine search {shlex.quote(str(collection))} "why do volcanoes erupt"')
