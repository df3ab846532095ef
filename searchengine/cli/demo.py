"""The whole line on the sample data: train, index, ask, measure. What exists already is kept."""

from pathlib import Path

from searchengine.bench.grid import Grid
from searchengine.bench.run import Bench, Settings
from searchengine.bench.subject import of_collection
from searchengine.cli.console import note, progress, say, show_rows, steps
from searchengine.cli.training_display import train_with_progress
from searchengine.corpus.files import read_corpus
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError
from searchengine.evaluate.judgements import read_queries
from searchengine.report.table import table
from trainer.training.config import TrainConfig

QUESTIONS = (
    "do dolphins ever lose consciousness completely when they rest?",
    "why is my loaf dense and gummy in the middle",
    "what keeps a table small when rows are updated all day",
)
PREFIXES = (64, 128)
SHORTLISTS = (10, 20, 50, 100)


def sample_folder() -> Path:
    """The sample data: beside the package in an installation, beside the checkout in a clone."""
    package = Path(__file__).parents[1]
    for folder in (package / "sample", package.parent / "data"):
        if (folder / "corpus.jsonl").is_file():
            return folder
    raise CorpusError(
        f"the sample data is in neither {package / 'sample'} nor {package.parent / 'data'}; "
        "install searchengine again, or run the demo in a clone"
    )


def run_demo(folder: Path) -> None:
    """Leave a fine-tuned model and a collection in `folder`, and print hits and a small table."""
    sample = sample_folder()
    model, collection = folder / "model", folder / "demo.index"
    if (model / "modules.json").is_file():
        note(f"The encoder in {model} is there already; remove {folder} to start over")
    else:
        note(f"Fine-tuning the starter encoder, widened to 768, on {sample / 'pairs.tsv'}")
        train_with_progress(TrainConfig(train=(sample / "pairs.tsv",), out=model))
    with SearchEngine.open_or_create(collection, model, {}) as engine:
        if not engine.collection.segments:
            documents = list(read_corpus(sample))
            with progress("Indexing", len(documents)) as advance:
                engine.add(documents, progress=lambda done, _: advance(done))
        for question in QUESTIONS:
            say(f"\n{question}", bold=True)
            for hit in engine.search(question, k=3):
                say(str(hit))
        say()
        questions = read_queries(sample / "queries.jsonl")
        with of_collection(engine, questions) as subject, steps() as heard:
            grid = Grid.fitting(
                subject.rows, engine.encoder.dim, prefixes=PREFIXES, shortlists=SHORTLISTS
            )
            settings = Settings(grid, cold=0, growth=False)
            results = Bench(subject, settings, folder, heard).run()
    show_rows(table(results), "Two stages against exact search (the first row)")
    say(f'Go on asking: searchengine search {collection} "why do volcanoes erupt"')
