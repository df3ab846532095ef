"""nDCG@10 once a relevant document is named, against the same question without it.

    python benchmarks/feedback.py

Of each question with at least two relevant documents, each in turn, or five drawn at random, is
named (`like`) and taken out of what is judged, and out of the ranking that it is compared with; a
question counts as the mean of these. With `--irrelevant`
the first document that is not relevant is named too (`unlike`), and left out of both. The
collections are the default ones, by the starter. The weights in searchengine.query.feedback were
chosen on other questions (`--training`): of Cranfield, which has one set, on every other one.
"""

import random
import tempfile
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import DATA, record

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.measure.judgements import judged, ranked, read_beir
from searchengine.trainer.evaluation.ranking import MAIN, Qrels, per_question
from searchengine.trainer.evaluation.significance import compare, interval

SPLITS = {"scifact": ("train", "test"), "nfcorpus": ("dev", "test"), "cranfield": ("test", "test")}
SHOWN, NAMED = 10, 5


@click.command()
@DATA
@click.option("--training", is_flag=True, help="The questions that the weights were chosen on.")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the collections, which are kept [default: a new one].",
)
@click.option("--irrelevant", is_flag=True, help="Name an irrelevant document too.")
def main(data: Path, training: bool, work: Path | None, irrelevant: bool) -> None:
    """Ask each question with and without an example."""
    figures: dict[str, Any] = {}
    for name, splits in SPLITS.items():
        folder = data / "beir" / name
        queries, qrels = read_beir(folder, splits[0 if training else 1])
        queries = judged(queries, qrels)
        if splits[0] == splits[1]:
            queries = dict(islice(queries.items(), int(not training), None, 2))
        with tempfile.TemporaryDirectory() as scratch:
            with SearchEngine.open_or_create((work or Path(scratch)) / name, "starter") as engine:
                if not len(engine):
                    engine.add(read_corpus(folder, on_bad=lambda _: None))
                for mode in ("vector", "hybrid"):
                    row = measure(engine, mode, queries, qrels, irrelevant)
                    figures[f"{name} {mode}"] = row
                    click.echo(f"{name} {mode}: {row}")
    title = f"feedback{' training' if training else ''}{' irrelevant' if irrelevant else ''}"
    record(title, figures)


def measure(
    engine: SearchEngine, mode: str, queries: dict[str, str], qrels: Qrels, irrelevant: bool
) -> dict[str, Any]:
    """nDCG@10 with and without, and the paired difference."""
    draw = random.Random(1)
    before, after, rest, cases = {}, {}, {}, {}
    for key, question in queries.items():
        relevant = {name: grade for name, grade in qrels[key].items() if grade > 0}
        stored = [name for name in sorted(relevant) if name in engine]
        if len(stored) < 2:
            continue
        hits = engine.search(question, SHOWN + 30, mode=mode)
        others = [hit.key for hit in hits if hit.key not in relevant][: int(irrelevant)]
        for named in draw.sample(stored, min(NAMED, len(stored))):
            left = [hit for hit in hits if hit.key not in (named, *others)]
            moved = engine.search(question, SHOWN, mode=mode, like=[named], unlike=others)
            case = f"{key} {named}"
            cases[case] = key
            before[case] = ranked((hit.key, hit.score) for hit in left[:SHOWN])
            after[case] = ranked((hit.key, hit.score) for hit in moved)
            rest[case] = {name: grade for name, grade in relevant.items() if name != named}
    plain, fed = (
        by_question(per_question(run, [*rest], rest, [MAIN])[MAIN], cases)
        for run in (before, after)
    )
    return {
        "questions": len(plain),
        "without": [plain.mean(), *interval(plain)],
        "with": [fed.mean(), *interval(fed)],
        **asdict(compare(fed, plain)),
    }


def by_question(values: Any, cases: dict[str, str]) -> Any:
    """The mean of the values of each question's cases."""
    groups: dict[str, list[float]] = {}
    for value, key in zip(values, cases.values(), strict=True):
        groups.setdefault(key, []).append(value)
    return np.array([np.mean(group) for group in groups.values()])


if __name__ == "__main__":
    main()
