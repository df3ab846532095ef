"""searchengine evaluate mteb: an encoder on the Massive Text Embedding Benchmark's terms."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.evaluate import MODEL, PREFIXES, NamedFile
from searchengine.cli.options import AS_JSON, runs

if TYPE_CHECKING:
    from searchengine.evaluate.judgements import Qrels

Named = tuple[str, Path]


@click.command()
@click.option(
    "--retrieval",
    multiple=True,
    type=NamedFile(),
    metavar="[NAME=]FOLDER",
    help="A folder of corpus.jsonl, queries.jsonl (.gz too) and qrels/test.tsv; repeatable.",
)
@click.option(
    "--sts",
    multiple=True,
    type=NamedFile(),
    metavar="[NAME=]FILE",
    help="A TSV of score, sentence1, sentence2; repeatable.",
)
@click.option(
    "--task", "own", multiple=True, metavar="NAME", help="One of mteb's, fetched; repeatable."
)
@MODEL
@PREFIXES
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for mteb's own result files.",
)
@runs
@AS_JSON
def mteb(
    retrieval: tuple[Named, ...],
    sts: tuple[Named, ...],
    own: tuple[str, ...],
    encoder: str,
    prefixes: tuple[int, ...] | None,
    out: Path | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Scores by mteb, one row a task and prefix length.

    On data that lies here, without a network, or on mteb's own tasks, which it fetches.
    Prefixes are cut and scaled to length one; every text is encoded once.

    \b
    Example:
        searchengine evaluate mteb --retrieval beir/scifact --sts stsb_test.tsv --prefixes 384,64
    """
    named = _named((*retrieval, *sts))
    if not named and not own:
        raise click.UsageError("no task: name one by --retrieval, --sts or --task")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # read when they are imported
    if not own:
        os.environ["HF_HUB_OFFLINE"] = "1"

    from searchengine.cli.console import progress, show_json, show_rows
    from searchengine.ingest.encoding import load
    from trainer.evaluation.mteb import evaluate, own_task, retrieval_task, sts_task
    from trainer.evaluation.sts import read_task

    # All are read before the first is measured, which takes minutes.
    folders, files = named[: len(retrieval)], named[len(retrieval) :]
    tasks = [
        *(
            retrieval_task(name, *_read(at))
            for name, (_, at) in zip(folders, retrieval, strict=True)
        ),
        *(sts_task(read_task(name, [at])) for name, (_, at) in zip(files, sts, strict=True)),
        *(own_task(name) for name in own),
    ]
    model: Any = load(encoder, runtime)
    with progress("Encoding") as advance:
        rows = [asdict(row) for row in evaluate(model, tasks, prefixes, out, advance)]
    show_json(rows) if as_json else show_rows(rows, encoder)


def _named(files: tuple[Named, ...]) -> list[str]:
    """What the tasks are called; a file's or folder's own name, up to its first dot, by default."""
    names = [name or path.resolve().name.split(".")[0] for name, path in files]
    for name, (_, path) in zip(names, files, strict=True):
        if names.count(name) > 1:
            raise click.UsageError(f"two tasks are called {name}: name one otherwise, NAME={path}")
    return names


def _read(folder: Path) -> tuple[Iterator[tuple[str, str, str]], dict[str, str], "Qrels"]:
    """The documents, questions and judgements of a folder in BEIR's layout."""
    from searchengine.corpus.files import read_corpus
    from searchengine.corpus.lines import bad
    from searchengine.evaluate.judgements import plain_or_gzipped, read_beir

    corpus = plain_or_gzipped(folder / "corpus.jsonl")
    if corpus is None:
        raise bad(folder, "no corpus.jsonl in it (.gz too); is it a folder of BEIR's layout?")
    documents = ((one.key, one.title, one.text) for one in read_corpus(corpus))
    return documents, *read_beir(folder)
