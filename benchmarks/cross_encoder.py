"""nDCG@10 with a cross-encoder behind the search, by number of candidates, and its time.

    python benchmarks/cross_encoder.py --model MODEL            # a folder or hub name

The collections are the default ones, asked in their mode (by vectors and words). Each question is
scored once with the most candidates; with fewer it orders the first of them, which is what the
search does. p-values are against the search without it.

Times are those of whole questions, asked one by one, and of the cross-encoder's part. torch and
OpenVINO take turns on each question, for every number of candidates; the encoder of the questions
is the same for both.
"""

import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import DATA, record, run_json, spread

from searchengine import SearchEngine
from searchengine.encoders.cross_encoders import CrossEncoders
from searchengine.measure.judgements import judged, ranked, read_beir
from searchengine.trainer.evaluation.ranking import per_question
from searchengine.trainer.evaluation.significance import compare, interval
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

SETS = ("scifact", "nfcorpus")
CANDIDATES = (10, 20, 50)
MEASURE = "ndcg@10"
RUNTIMES = ("torch", "openvino")


def evaluate(folder: Path, collection: Path, model: str) -> dict[str, Any]:
    """nDCG@10 by number of candidates, with intervals."""
    queries, qrels = read_beir(folder)
    queries = judged(queries, qrels)  # SciFact's file has those of training as well
    keys, questions = list(queries), list(queries.values())
    most = max(CANDIDATES)
    with SearchEngine.open(collection) as engine:
        mode = engine.collection.settings["mode"]
        before: dict[str, dict[str, float]] = {}
        after: dict[int, dict[str, dict[str, float]]] = {n: {} for n in CANDIDATES}
        for start in range(0, len(keys), 16):
            part = slice(start, start + 16)
            answers = engine.search_batch(
                questions[part], most, cross_encoder=model, candidates=most
            )
            for key, hits in zip(keys[part], answers, strict=True):
                best = sorted(hits, key=lambda hit: -hit.scores[mode])
                before[key] = ranked((hit.key, hit.scores[mode]) for hit in best)
                for n in CANDIDATES:
                    again = sorted(best[:n], key=lambda hit: -hit.score)
                    after[n][key] = ranked((hit.key, hit.score) for hit in again)
        scores = per_question(before, keys, qrels, [MEASURE])[MEASURE]
        figures: dict[str, Any] = {"without": row(scores)}
        for n in CANDIDATES:
            values = per_question(after[n], keys, qrels, [MEASURE])[MEASURE]
            difference = compare(values, scores)
            figures[str(n)] = row(values) | {
                "difference": difference.difference,
                "p": difference.p,
            }
    return figures


def row(values: Any) -> dict[str, Any]:
    """The mean over questions and its interval."""
    return {MEASURE: float(np.mean(values)), "interval": interval(values)}


def times(folder: Path, collection: Path, model: str, timed: int) -> dict[str, Any]:
    """Milliseconds of questions asked one by one, by number of candidates and runtime."""
    queries, qrels = read_beir(folder)
    questions = list(judged(queries, qrels).values())[: timed + 1]
    milliseconds: dict[str, list[float]] = {}
    with SearchEngine.open(collection) as engine:
        scorers = {name: CrossEncoders(RuntimeConfig(name)) for name in RUNTIMES}
        runs = {name: scorers[name].get(model).runs_on for name in RUNTIMES}
        for position, question in enumerate(questions):
            for n in (0, *CANDIDATES):
                options = {"cross_encoder": model, "candidates": n} if n else {}
                # The one that begins changes from question to question.
                for name in (RUNTIMES[::-1] if position % 2 else RUNTIMES) if n else ("none",):
                    engine.cross_encoders = scorers.get(name, engine.cross_encoders)
                    begin = time.perf_counter()
                    hits = engine.search(question, **options)
                    total = 1e3 * (time.perf_counter() - begin)
                    if position:  # the first prepares
                        setting = f"{n} {name}"
                        milliseconds.setdefault(setting, []).append(total)
                        if n:
                            part = f"{setting}, cross-encoder"
                            milliseconds.setdefault(part, []).append(1e3 * hits.timing.cross_encode)
    spreads = {name: spread(each) for name, each in milliseconds.items()}
    return {"runtimes": runs, "load": os.getloadavg(), "ms": spreads}


@click.command()
@DATA
@click.option("--model", required=True, help="Folder or hub name of a cross-encoder.")
@click.option("--timed", default=40, show_default=True, help="Questions asked one by one.")
@click.option("--times-only", is_flag=True, help="Leave nDCG@10 out.")
@click.option(
    "--set", "sets", type=click.Choice(SETS), multiple=True, default=SETS, show_default=True
)
@click.option("--built", type=click.Path(path_type=Path), help="Folder that keeps the collections.")
def main(
    data: Path,
    model: str,
    timed: int,
    times_only: bool,
    sets: tuple[str, ...],
    built: Path | None,
) -> None:
    """Measure order and time on each set."""
    figures: dict[str, Any] = {}
    with nullcontext(built) if built else tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.mkdir(exist_ok=True)
        for name in sets:
            texts, collection = data / "beir" / name, folder / f"{name}.index"
            if not collection.exists():
                run_json("index", texts, collection)
            figures[name] = {} if times_only else evaluate(texts, collection, model)
            figures[name]["times"] = times(texts, collection, model, timed)
            for setting, each in figures[name].items():
                click.echo(f"{name} {setting}: {each}")
    record("cross-encoder", figures)


if __name__ == "__main__":
    main()
