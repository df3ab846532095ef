"""searchengine evaluate mteb: an encoder measured by the Massive Text Embedding Benchmark."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.measuring.evaluate import MODEL, PREFIXES, NamedFile
from searchengine.cli.options import AS_JSON, runs

if TYPE_CHECKING:
    from searchengine.measure.judgements import Qrels

Named = tuple[str, Path]


@click.command()
@click.option(
    "--retrieval",
    multiple=True,
    type=NamedFile(),
    metavar="[NAME=]FOLDER",
    help="Folder with corpus.jsonl, queries.jsonl (.gz too) and qrels/test.tsv; repeatable.",
)
@click.option(
    "--sts",
    multiple=True,
    type=NamedFile(),
    metavar="[NAME=]FILE",
    help="TSV file of score, sentence1, sentence2; repeatable.",
)
@click.option(
    "--task", "names", multiple=True, metavar="NAME", help="Task of mteb to download; repeatable."
)
@MODEL
@PREFIXES
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for mteb's result files.",
)
@runs
@AS_JSON
def mteb(
    retrieval: tuple[Named, ...],
    sts: tuple[Named, ...],
    names: tuple[str, ...],
    encoder: str,
    prefixes: tuple[int, ...] | None,
    out: Path | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Measure an encoder with mteb, one row per task and prefix length.

    The tasks are local files, which need no network, or tasks of mteb, which it
    downloads. Prefixes are scaled to length one; every text is encoded once.

    \b
    Example:
        searchengine evaluate mteb --retrieval beir/scifact --sts stsb_test.tsv --prefixes 384,64
    """
    local_names = _task_names((*retrieval, *sts))
    if not local_names and not names:
        raise click.UsageError("no task is named; name one with --retrieval, --sts or --task")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # datasets reads it on import
    if not names:
        os.environ["HF_HUB_OFFLINE"] = "1"

    from searchengine.cli.console import progress, show_json, show_rows
    from searchengine.encoders.loading import load
    from searchengine.trainer.evaluation.mteb import evaluate, own_task, retrieval_task, sts_task
    from searchengine.trainer.evaluation.sts import read_task

    # Read all before measuring any, which takes minutes.
    folders, files = local_names[: len(retrieval)], local_names[len(retrieval) :]
    tasks = [
        *(
            retrieval_task(name, *_read(at))
            for name, (_, at) in zip(folders, retrieval, strict=True)
        ),
        *(sts_task(read_task(name, [at])) for name, (_, at) in zip(files, sts, strict=True)),
        *(own_task(name) for name in names),
    ]
    model: Any = load(encoder, runtime)
    with progress("Encoding") as advance:
        rows = [asdict(row) for row in evaluate(model, tasks, prefixes, out, advance)]
    show_json(rows) if as_json else show_rows(rows, encoder)


def _task_names(files: tuple[Named, ...]) -> list[str]:
    """Names of the tasks; by default the name of the file or folder up to its first dot."""
    names = [name or path.resolve().name.split(".")[0] for name, path in files]
    for name, (_, path) in zip(names, files, strict=True):
        if names.count(name) > 1:
            raise click.UsageError(
                f"two tasks are called {name}: give one another name, NAME={path}"
            )
    return names


def _read(folder: Path) -> tuple[Iterator[tuple[str, str, str]], dict[str, str], "Qrels"]:
    """Read the documents, questions and judgements of a folder in BEIR's layout."""
    from searchengine.corpus.files import read_corpus
    from searchengine.corpus.text_files import bad
    from searchengine.measure.judgements import plain_or_gzipped, read_beir

    corpus = plain_or_gzipped(folder / "corpus.jsonl")
    if corpus is None:
        raise bad(
            folder, "no corpus.jsonl or corpus.jsonl.gz in it; name a folder in BEIR's layout"
        )
    documents = ((doc.key, doc.title, doc.text) for doc in read_corpus(corpus))
    return documents, *read_beir(folder)
