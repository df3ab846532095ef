"""`adapt` on four collections, judged by their own test questions once at the end; and controls.

    python benchmarks/adapt.py

The starter encodes SciFact, NFCorpus, Cranfield (documents whole, as BEIR's figures are) and Korean
documentation in passages. Where the adapted encoder is offered, the collection is encoded by it,
and its own test questions are asked before and after; the Korean passages have none: there, titles
of held-out documents are the questions. The controls assign the questions of Cranfield and of the
Korean passages to documents at random, in each part, with another seed each: whatever is offered
then is offered by chance. An hour on two cores, most of it encoding.
"""

import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import DATA, record

from searchengine import SearchEngine
from searchengine.adapt.adapting import Material, adapt, read_material, train_and_judge
from searchengine.adapt.judging import objection
from searchengine.adapt.questions import Part
from searchengine.corpus.files import read_corpus
from searchengine.evaluate.judgements import read_beir
from searchengine.evaluate.metrics import MAIN
from searchengine.evaluate.retrieval import CONFIGURED, measure, task
from searchengine.evaluate.significance import Values, compare

KOREAN = "ko/k8s_docs_passages_ko.jsonl.gz"
BEIR = ("cranfield", "nfcorpus", "scifact")


def korean(data: Path) -> Iterator[dict[str, str]]:
    with gzip.open(data / KOREAN, "rt", encoding="utf-8") as lines:
        for line in lines:
            read = json.loads(line)
            yield {name: read[name] for name in ("_id", "title", "text")}


def create(data: Path, name: str, folder: Path) -> SearchEngine:
    engine = SearchEngine.create(folder / f"{name}.index", "starter", passages=name == "korean")
    engine.add(korean(data) if name == "korean" else read_corpus(data / "beir" / name))
    return engine


def test_scores(engine: SearchEngine, data: Path, name: str) -> Values:
    """nDCG@10 of each test question of the data set, as its users search it by vectors."""
    *_, configured = measure(engine, task(engine, *read_beir(data / "beir" / name)))
    assert configured.name == CONFIGURED
    return configured.scores[MAIN]


def adapted(engine: SearchEngine, data: Path, name: str, folder: Path, documents: int) -> Any:
    """Adapt one collection, and ask its own test questions before and after."""
    before = None if name == "korean" else test_scores(engine, data, name)
    out = folder / f"{name}.adapted"
    result = adapt(engine, out, documents=documents, apply=before is not None)
    click.echo(f"{name}: {result.sentence}")
    figures: dict[str, Any] = {
        "offered": result.offered,
        "sentence": result.sentence,
        "documents": result.documents,
        "pairs": result.pairs,
        "held out": [asdict(row) for row in result.rows],
    }
    if before is not None:
        after = test_scores(engine, data, name) if result.applied else before
        difference = compare(after, before)
        figures["test questions"] = {
            "number": len(before),
            "before": before.mean(),
            "after": after.mean(),
            **asdict(difference),
        }
        click.echo(f"  test questions {before.mean():.4f} → {after.mean():.4f}: {difference}")
    return figures


def shuffled(material: Material, seed: int) -> Material:
    """The same with the questions of each part in random order, so that none fits its documents."""
    rng, vectors = np.random.default_rng(seed), material.vectors.copy()
    for part in Part:
        places = [i for i, each in enumerate(material.asked) if each.question.part is part]
        vectors[places] = vectors[rng.permutation(places)]
    return replace(material, vectors=vectors)


def controls(engine: SearchEngine, runs: int, documents: int) -> dict[str, int]:
    """Train and judge with shuffled questions, `runs` times."""
    found = {"documents": documents, "runs": runs, "judged": 0, "offered": 0}
    with engine.local.reading() as snapshot:
        config = next(iter(snapshot.segments.values())).config
        encoder = engine.encoder
        material = read_material(snapshot, encoder, {}, documents, 0, lambda *_: None)
        for seed in range(runs):
            outcome = train_and_judge(
                shuffled(material, seed), snapshot, config, (encoder.dim,), seed, lambda *_: None
            )
            reason = objection(outcome.rows) if outcome.rows else "no map was better in validation"
            found["judged"] += bool(outcome.rows)
            found["offered"] += reason is None
            click.echo(f"  control {seed}: {reason or 'offered'}")
    return found


@click.command()
@DATA
@click.option("--documents", default=10_000, help="Documents to make questions of.")
@click.option("--runs", default=20, help="Controls of each of two collections.")
@click.option("--sample", default=600, help="Documents to make questions of in the controls.")
@click.option("--only", multiple=True, type=click.Choice(["korean", *BEIR]))
def main(data: Path, documents: int, runs: int, sample: int, only: tuple[str, ...]) -> None:
    """Adapt every collection, and run the controls."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in only or ("korean", *BEIR):
            with create(data, name, Path(scratch)) as engine:
                if name in ("korean", "cranfield") and runs:
                    record(f"adapt, {name}, controls", controls(engine, runs, sample))
                record(f"adapt, {name}", adapted(engine, data, name, Path(scratch), documents))


if __name__ == "__main__":
    main()
