"""Questions by a smaller encoder, documents by the starter: what is kept, and what it takes.

    python benchmarks/question_encoder.py --work FOLDER

Trains the presets question-encoder (two of the starter's six layers) and static-question-encoder
(a table of token vectors) on titles of papers, sentences of their abstracts, and other sentences,
without any text of the sets below, on one thread. Then, with documents by the starter:

- nDCG@10 of exact search on SciFact, NFCorpus and Cranfield, whole documents, and the mean of the
  three as a share of the starter's.
- titles of papers that were not trained on, which must find their abstracts among others: MRR.
  This, and with --no-tests the questions of SciFact's training and of NFCorpus's development split,
  chose the settings; the test questions did not.
- milliseconds to encode a question, and, with --sentences N, to search a collection of N sentences
  with it. Each encoder has a process of its own. They take turns of some questions each, asked
  without pause, and a ratio compares their times for one question.

FOLDER stores the vectors of documents, the trained encoders and the collection. Remove it to start
again. --seeds trains that many of each kind.
"""

import gzip
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from encoding import Judged, Vectors, mixed
from record import DATA, record
from sides import in_turn, percentiles, run, running, times

from searchengine import SearchEngine
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.presets import preset
from searchengine.trainer.training.train_config import TrainConfig

FULL, STARTER = "all layers", "starter"
PRESETS = {"two layers": "question-encoder", "static": "static-question-encoder"}
TESTS = {"scifact": "test", "nfcorpus": "test", "cranfield": "test"}
CHOOSING = {"scifact": "train", "nfcorpus": "dev"}
SHORT = 24
"""Most words of a training text."""
HELD_OUT = 4000
"""Papers whose titles are not trained on."""
QUESTIONS, WARM_UP = 700, 100
"""Questions that are asked, and how many of them come before any is timed."""
TURN, AWAKE = 25, 5
"""Questions that an encoder is asked in turn, and how many of them are not timed: they find the
processor's caches full of the encoder before, as no service does."""
SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


@click.command()
@DATA
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--texts", default=300_000, show_default=True, help="Texts to train on.")
@click.option("--seeds", default=1, show_default=True)
@click.option("--set", "changes", multiple=True, metavar="KIND:NAME=VALUE", help="Other settings.")
@click.option("--only", multiple=True, type=click.Choice([*PRESETS]), help="Kinds to train.")
@click.option("--sentences", default=0, show_default=True, help="Size of a collection to search.")
@click.option("--tests/--no-tests", default=True, help="Test questions, or those for choosing.")
def main(
    data: Path,
    work: Path,
    texts: int,
    seeds: int,
    changes: tuple[str, ...],
    only: tuple[str, ...],
    sentences: int,
    tests: bool,
) -> None:
    """Train, measure and record."""
    import torch

    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    titles, abstracts = prepare(data, work, texts)
    full = Encoder.load(STARTER)
    splits = TESTS if tests else CHOOSING
    sets = {name: Judged(data, name, split) for name, split in splits.items()}
    held_out = kept(work / "papers.npy", lambda: full.encode(abstracts, role="document"))
    documents = {
        name: kept(work / f"{name}.npy", lambda j=judged: full.encode(j.texts, role="document"))
        for name, judged in sets.items()
    }

    def measured(encoder: Encoder) -> dict[str, float]:
        row = {"mrr": reciprocal(encoder.encode(titles, role="query"), held_out)}
        for name, judged in sets.items():
            questions = encoder.encode([*judged.questions.values()], role="query")
            row[name] = round(judged.ranked(questions, documents[name]), 4)
        return row | {"mean": round(float(np.mean([row[name] for name in sets])), 4)}

    figures: dict[str, Any] = {FULL: measured(full)}
    click.echo(f"{FULL} {figures[FULL]}", err=True)
    sides = {FULL: STARTER}
    for kind in only or PRESETS:
        own = [change.split(":", 1)[1] for change in changes if change.startswith(f"{kind}:")]
        rows = []
        for seed in range(seeds):
            folder = work / " ".join([PRESETS[kind], *own, str(seed)])
            seconds = trained(folder, kind, work / "texts.tsv", seed, own)
            sides[kind] = str(folder)
            row: dict[str, Any] = measured(Encoder.load(folder, route="query"))
            row["share"] = round(row["mean"] / figures[FULL]["mean"], 4)
            rows.append(row | seconds)
            click.echo(f"{kind} {own} {rows[-1]}", err=True)
        figures[kind] = {"settings": own, "seeds": rows}
    if tests:
        questions = [text for judged in sets.values() for text in judged.questions.values()]
        questions = random.Random(0).sample(questions, QUESTIONS)
        figures["one question"] = latencies(sides, questions)
        if sentences:
            collection = collected(data, work, sentences)
            figures[f"among {sentences} sentences"] = latencies(sides, questions, collection)
        click.echo(json.dumps(figures, indent=2), err=True)
        record("question encoder", figures)


def prepare(data: Path, work: Path, count: int) -> tuple[list[str], list[str]]:
    """Write texts.tsv to train on; returns titles and abstracts that are not in it."""
    known = set(evaluated(data))
    with gzip.open(data / "text/papers_title_abstract.jsonl.gz", "rt", encoding="utf-8") as lines:
        papers = [(row["title"], row["text"]) for row in map(json.loads, lines)]
    papers = [pair for pair in papers if all(pair) and not known & {*map(letters, pair)}]
    random.Random(0).shuffle(papers)
    with gzip.open(data / "text/sentences_mixed.tsv.gz", "rt", encoding="utf-8") as lines:
        sentences = [line.rstrip("\n").split("\t")[1] for line in lines][1:]
    texts = [title for title, _ in papers[HELD_OUT:]] + sentences
    known |= {letters(title) for title, _ in papers[:HELD_OUT]}
    for _, abstract in papers[HELD_OUT:]:
        texts += SENTENCE_END.split(abstract)
    texts = [" ".join(text.split()) for text in texts if letters(text) not in known]
    texts = [text for text in texts if 1 < len(text.split()) <= SHORT]
    random.Random(1).shuffle(texts)
    (work / "texts.tsv").write_text("\n".join(["sentence", *texts[:count]]) + "\n")
    return [title for title, _ in papers[:HELD_OUT]], [text for _, text in papers[:HELD_OUT]]


def evaluated(data: Path) -> Iterator[str]:
    """Texts of the three sets and of the papers' test questions, by letters and digits."""
    paths = [*(data / "beir").glob("*/*.jsonl.gz"), data / "text/papers_test_queries.jsonl"]
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                yield letters(row["text"])
                yield letters(row.get("title") or "")


def letters(text: str) -> str:
    """A text by which copies of it are found."""
    return re.sub("[^a-z0-9]", "", text.lower())


def trained(folder: Path, kind: str, texts: Path, seed: int, changes: list[str]) -> dict[str, Any]:
    """Train one, unless it is there; returns what it took."""
    log = folder.with_suffix(".json")
    if not log.exists():
        values = preset(PRESETS[kind]) | {"base": STARTER, "seed": seed, "checkpoint_every": 0}
        values |= {name: json.loads(v) for name, v in (each.split("=") for each in changes)}
        losses: list[float] = []

        def report(line: Report) -> None:
            if line.loss is not None:
                losses.append(line.loss)
                if line.step % 100 == 0:
                    click.echo(f"{line.step} of {line.steps}: {recent(losses)}", err=True)

        start = time.process_time()
        train(TrainConfig.from_dict({"train": [texts], "out": folder, **values}), report)
        seconds = round(time.process_time() - start, 1)
        count = texts.read_text().count("\n") - 1
        about = {"texts": count, "cpu seconds": seconds, "loss": recent(losses)}
        log.write_text(json.dumps(about))
    return dict(json.loads(log.read_text()))


def recent(losses: list[float]) -> float:
    """The mean of the last losses."""
    return round(float(np.mean(losses[-100:])), 4)


def kept(path: Path, encode: Callable[[], Vectors]) -> Vectors:
    """The vectors in a file, or those that are then written to it."""
    if not path.exists():
        np.save(path, encode())
    return np.load(path)


def reciprocal(questions: Vectors, documents: Vectors) -> float:
    """Mean reciprocal rank of each question's own document, that of the same row."""
    scores = questions @ documents.T
    ranks = (scores > scores.diagonal()[:, None]).sum(axis=1) + 1
    return round(float((1 / ranks).mean()), 4)


def be(encoder: str, collection: str | None) -> tuple[Callable[..., Any], Any]:
    """A side that encodes questions one by one, or with a collection searches in it by vectors."""
    folder = None if encoder == STARTER else encoder
    if collection:
        engine = SearchEngine.open(collection, query_encoder=folder)
        return timing(lambda question: engine.search(question, mode="vector")), None
    loaded = Encoder.load(encoder, route="query" if folder else None)
    return timing(lambda question: loaded.encode([question], role="query")), None


def timing(ask: Callable[[str], Any]) -> Callable[..., Any]:
    """Seconds of each question."""

    def answer(questions: list[str]) -> list[float]:
        seconds = []
        for question in questions:
            start = time.perf_counter()
            ask(question)
            seconds.append(time.perf_counter() - start)
        return seconds

    return answer


def latencies(
    sides: dict[str, str], questions: list[str], collection: Path | None = None
) -> dict[str, Any]:
    """Milliseconds of one question, and each side's share of the full encoder's."""
    asked = {
        name: {"encoder": encoder, "collection": collection and str(collection)}
        for name, encoder in sides.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with running(__file__, asked) as found:
        for side in found.values():
            side.ask(questions=questions[:WARM_UP])
        for turn, start in enumerate(range(WARM_UP, len(questions), TURN)):
            for name in in_turn([*sides], turn):
                taken = found[name].ask(questions=questions[start : start + TURN])
                seconds[name] += taken[AWAKE:]
    return {
        name: percentiles(each) | {"share": times(each, seconds[FULL])}
        for name, each in seconds.items()
    }


def collected(data: Path, work: Path, count: int) -> Path:
    """The path of a tuned collection of `count` sentences, encoded by the starter."""
    path = work / f"{count}-sentences.index"
    with SearchEngine.open_or_create(path, STARTER) as engine:
        if engine.stats().tuning is None:  # new, or interrupted
            texts = enumerate(mixed(data, count))
            engine.add({"_id": str(i), "text": text} for i, text in texts)
            engine.tune()
    return path


if __name__ == "__main__":
    run(main, be)
