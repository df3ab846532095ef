"""`adapt` on four collections, judged by their own test questions once at the end; and controls.

    python benchmarks/adapt.py
    python benchmarks/adapt.py --rotation

The starter encodes SciFact, NFCorpus, Cranfield (documents whole, as BEIR's figures are) and Korean
documentation in passages, which is searched by vectors, the others by vectors and words. Where the
adapted encoder is offered, the collection is encoded by it, and its own test questions are asked by
vectors before and after; the Korean passages have none. The controls assign the questions of
Cranfield and of the Korean passages to documents at random, in each part, with another seed each:
whatever is offered then is offered by chance. An hour on two cores, most of it encoding.

--rotation learns which dimensions come first instead, for prefixes of 64 and 128 dimensions: the
share of the 10 nearest passages that a shortlist of 25 holds, of held-out questions and of the own
test questions. Its controls train on random directions.
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
from searchengine.adapt import rotation
from searchengine.adapt.adapting import adapt, train_and_judge
from searchengine.adapt.material import Material, read_material
from searchengine.adapt.sampled_questions import Part
from searchengine.adapt.validation import Corpus
from searchengine.corpus.files import read_corpus
from searchengine.measure.judgements import read_beir
from searchengine.measure.retrieval import CONFIGURED, measure, task
from searchengine.trainer.evaluation.ranking import MAIN
from searchengine.trainer.evaluation.significance import Values, compare
from searchengine.trainer.training.posthoc import unit

KOREAN = "ko/k8s_docs_passages_ko.jsonl.gz"
PREFIXES = (64, 128)
BEIR = ("cranfield", "nfcorpus", "scifact")


def korean(data: Path) -> Iterator[dict[str, str]]:
    with gzip.open(data / KOREAN, "rt", encoding="utf-8") as lines:
        for line in lines:
            read = json.loads(line)
            yield {name: read[name] for name in ("_id", "title", "text")}


def create(data: Path, name: str, folder: Path) -> SearchEngine:
    engine = SearchEngine.create(folder / f"{name}.index", "starter", passages=name == "korean")
    engine.add(korean(data) if name == "korean" else read_corpus(data / "beir" / name))
    if name == "korean":
        engine.set_default("vector")  # by default words alone, which no encoder changes
    return engine


def test_scores(engine: SearchEngine, data: Path, name: str) -> Values:
    """nDCG@10 of each test question of the data set, as its users search it by vectors."""
    judged = task(engine, *read_beir(data / "beir" / name))
    *_, configured = measure(engine, judged, modes=["vector"])
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
        "held out": [asdict(row) for row in (*result.rows, *result.others)],
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
        places = [i for i, each in enumerate(material.examples) if each.question.part is part]
        vectors[places] = vectors[rng.permutation(places)]
    return replace(material, vectors=vectors)


def controls(engine: SearchEngine, runs: int, documents: int) -> dict[str, int]:
    """Train and judge with shuffled questions, `runs` times."""
    found = {"documents": documents, "runs": runs, "judged": 0, "offered": 0}
    with engine.reading() as snapshot:
        config = next(iter(snapshot.segments.values())).config
        encoder = engine.encoder
        material = read_material(engine, snapshot, {}, documents, 0, lambda *_: None)
        for seed in range(runs):
            outcome = train_and_judge(
                shuffled(material, seed), snapshot, config, (encoder.dim,), seed, lambda *_: None
            )
            found["judged"] += bool(outcome.rows)
            found["offered"] += outcome.reason is None
            click.echo(f"  control {seed}: {outcome.reason or 'offered'}")
    return found


def rotated(engine: SearchEngine, data: Path, name: str, runs: int, documents: int) -> Any:
    """Learn and judge a rotation for each prefix; once more for the own test questions."""
    own = None
    if name != "korean":
        queries, qrels = read_beir(data / "beir" / name)
        asked = [text for key, text in queries.items() if key in qrels]
        own = engine.encoder.encode(asked, role="query")
    figures: dict[str, Any] = {"measure": rotation.MEASURE}
    with engine.reading() as snapshot:
        stored = next(iter(snapshot.segments.values())).config
        material = read_material(engine, snapshot, {}, documents, 0, lambda *_: None)
        for prefix in PREFIXES:
            config = replace(stored, prefix=prefix)
            found = rotation.train_and_judge(material, snapshot, config, 0, lambda *_: None)
            figures[str(prefix)] = {
                "reason": found.reason,
                "questions": found.pairs,
                "held out": [asdict(row) for row in found.rows],
            }
            click.echo(f"{name}, {prefix} dimensions: {found.reason or 'offered'}")
            for row in found.rows:
                click.echo(f"  {row.as_cells()}")
            if own is not None and found.change is not None:
                corpus, after = Corpus.of_collection(snapshot), rotation.kept(config)
                before, then = (
                    rotation.agreement(corpus, own, rotation.scanned(index), change)
                    for index, change in ((config, None), (after, found.change))
                )
                figures[str(prefix)]["test questions"] = {
                    "number": len(own),
                    "before": before.mean(),
                    "after": then.mean(),
                    **asdict(compare(then, before)),
                }
                click.echo(f"  {figures[str(prefix)]['test questions']}")
        if runs:
            config = replace(stored, prefix=PREFIXES[0])
            by_chance = figures["controls"] = {"runs": runs, "judged": 0, "offered": 0}
            for seed in range(runs):
                outcome = rotation.train_and_judge(
                    random_training(material, seed), snapshot, config, seed, lambda *_: None
                )
                by_chance["judged"] += bool(outcome.rows)
                by_chance["offered"] += outcome.reason is None
            click.echo(f"  controls {by_chance}")
    return figures


def random_training(material: Material, seed: int) -> Material:
    """The same with training questions of random direction."""
    rng, vectors = np.random.default_rng(seed), material.vectors.copy()
    places = [i for i, each in enumerate(material.examples) if each.question.part is Part.TRAINING]
    vectors[places] = unit(rng.normal(size=(len(places), vectors.shape[1])))
    return replace(material, vectors=vectors)


@click.command()
@DATA
@click.option("--documents", default=10_000, help="Documents to make questions of.")
@click.option("--runs", default=20, help="Controls of each of two collections.")
@click.option("--sample", default=600, help="Documents to make questions of in the controls.")
@click.option("--only", multiple=True, type=click.Choice(["korean", *BEIR]))
@click.option("--rotation", "rotate", is_flag=True, help="Learn which dimensions come first.")
def main(
    data: Path, documents: int, runs: int, sample: int, only: tuple[str, ...], rotate: bool
) -> None:
    """Adapt every collection, and run the controls."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in only or ("korean", *BEIR):
            with create(data, name, Path(scratch)) as engine:
                if rotate:
                    figures = rotated(engine, data, name, runs, documents)
                    record(f"adapt, rotation, {name}", figures)
                    continue
                if name in ("korean", "cranfield") and runs:
                    record(f"adapt, {name}, controls", controls(engine, runs, sample))
                record(f"adapt, {name}", adapted(engine, data, name, Path(scratch), documents))


if __name__ == "__main__":
    main()
