"""One question, text to hits with their documents: this engine, txtai and sentence-transformers.

    python benchmarks/questions.py --work FOLDER                  # 200,000 sentences
    python benchmarks/questions.py --documents 5000 --questions 200 --batch 200

The same sentences (text/sentences_mixed, drawn with a fixed seed), model (all-MiniLM-L6-v2) and
real questions (of SciFact, NFCorpus and Cranfield, shuffled with a fixed seed; it is not their
answers that are wanted here), none asked twice but where it says so. Each side is in a process of
its own; they take turns, every hundred questions, and ratios are of the same question. All three
answer the 10 best with their texts:

- searchengine: `search` in a collection that `SearchEngine.add` and `tune` made, with their
  defaults: recall@10 above 0.95.
- txtai: `Embeddings.search` in an index with its defaults and content=True.
- sentence-transformers: `encode` and `util.semantic_search` over a matrix in memory, and a dict.

sentence-transformers searches exactly: the share of its hits that the others find is shown too.
Throughput is of one call with many questions, and for this engine also of 16 threads that ask one
by one. FOLDER keeps what was indexed for the next time; remove it when the indexing has changed.
Vectors for txtai and sentence-transformers are made once, by this project's encoder in float32:
encoding is what benchmarks/encoding.py and benchmarks/indexing.py time.
"""

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np
from encoding import mixed
from record import DATA, record, spread
from sides import Side, in_turn, percentiles, run, running, times

K = 10
THREADS = 16
TOOLS = ("searchengine", "txtai", "sentence-transformers")
BLOCK, LEAD = 100, 25
"""Questions a side answers before the next one's turn, and more before them that do not count."""
AGAIN, PASSES = 100, 5
WARM = 98
"""Questions that come before a batch and do not count: all that three batches leave over."""
WAYS = {
    f"searchengine, {THREADS} threads": (TOOLS[0], "threads"),
    "searchengine, search_batch": (TOOLS[0], "batch"),
    "txtai, batchsearch": (TOOLS[1], "batch"),
    "sentence-transformers, one call": (TOOLS[2], "batch"),
}
Timings = tuple[list[float], list[list[str]]]


@click.command()
@DATA
@click.option("--documents", default=200_000, show_default=True)
@click.option("--questions", default=1000, show_default=True, help="Asked one by one.")
@click.option("--batch", default=1000, show_default=True, help="Questions asked at once.")
@click.option("--repeats", default=3, show_default=True, help="Batches, other questions each time.")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep the indexes in; without it they are built again and removed.",
)
def main(
    data: Path, documents: int, questions: int, batch: int, repeats: int, work: Path | None
) -> None:
    """Index where that is still to do, ask in turns, and compare."""
    blocks = -(-questions // BLOCK)
    alone, at_once = blocks * (BLOCK + LEAD), repeats * (batch + WARM)
    texts, real_questions = mixed(data, documents), real(data)
    if len(real_questions) < alone + at_once:
        raise click.UsageError(
            f"there are {len(real_questions)} questions, of {alone + at_once} wanted"
        )
    with nullcontext(work) if work else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, texts)
        figures = {"documents": documents, **one_by_one(folder, real_questions[:alone])}
        many = real_questions[alone : alone + at_once]
        figures["throughput"] = throughput(folder, many, batch, repeats)
    click.echo(json.dumps(figures, indent=2))
    record("questions", figures)


def real(data: Path) -> list[str]:
    """Distinct questions of three retrieval sets, in a fixed disorder."""
    from searchengine.measure.judgements import read_queries

    sets = [read_queries(path) for path in sorted((data / "beir").glob("*/queries.jsonl*"))]
    # What begins with "select" is a statement to txtai, not a question.
    texts = (text for some in sets for text in some.values() if text.strip())
    found = [*dict.fromkeys(text for text in texts if not text.lower().startswith("select"))]
    random.Random(0).shuffle(found)
    return found


def one_by_one(work: Path, questions: list[str]) -> dict[str, Any]:
    """Milliseconds of distinct questions and of repeated ones, and the hits in common."""
    seconds: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    again: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    keys: dict[str, list[list[str]]] = {tool: [] for tool in TOOLS}
    size = BLOCK + LEAD
    with running(__file__, {tool: {"tool": tool, "work": str(work)} for tool in TOOLS}) as found:
        for turn in range(len(questions) // size):
            some = questions[turn * size : (turn + 1) * size]
            for tool in in_turn(TOOLS, turn):
                took, hits = found[tool].ask(questions=some)
                seconds[tool] += took[LEAD:]
                keys[tool] += hits[LEAD:]
        for turn in range(PASSES):
            for tool in in_turn(TOOLS, turn):
                again[tool] += found[tool].ask(questions=questions[-AGAIN:])[0][LEAD:]
    exact = keys[TOOLS[2]]
    common = {tool: shared(hits, exact) for tool, hits in keys.items()}
    click.echo(f"hits in common with exact search: {common}", err=True)
    return {
        "distinct questions": latencies(seconds),
        "repeated questions": latencies(again),
        f"share of the exact {K} best": common,
    }


def latencies(seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    """By tool, and how many times as long as this engine the others take for a question."""
    ours = seconds[TOOLS[0]]
    shown: dict[str, Any] = {}
    for tool, took in seconds.items():
        shown[tool] = percentiles(took) | {"times searchengine": times(took, ours)}
        click.echo(f"{tool:22} {shown[tool]}", err=True)
    return shown


def shared(hits: list[list[str]], exact: list[list[str]]) -> float:
    """Mean share of the exact best that are among the hits."""
    pairs = zip(hits, exact, strict=True)
    return float(np.mean([len({*some} & {*best}) / len(best) for some, best in pairs]))


def throughput(work: Path, questions: list[str], batch: int, repeats: int) -> dict[str, Any]:
    """Questions per second, other questions each turn, and how many times txtai's.

    Each way has a process of its own: this engine's two ways get the same questions, and neither
    must find in memory what the other asked.
    """
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    size = WARM + batch
    sides = {name: {"tool": tool, "work": str(work)} for name, (tool, _) in WAYS.items()}
    with running(__file__, sides) as found:
        for turn in range(repeats):
            some = questions[turn * size : (turn + 1) * size]
            lead, some = some[:WARM], some[WARM:]
            for name in in_turn([*WAYS], turn):
                found[name].ask(questions=lead, how=WAYS[name][1])
                rates[name].append(len(some) / found[name].ask(questions=some, how=WAYS[name][1]))
                click.echo(f"{name:34} {rates[name][-1]:8.1f} questions/s", err=True)
    theirs = rates["txtai, batchsearch"]
    return {
        name: {"questions/s": spread(each), "times txtai": times(each, theirs)}
        for name, each in rates.items()
    }


def prepare(work: Path, texts: list[str]) -> None:
    """Index the texts into a folder once for every side, each in a process of its own."""
    work.mkdir(parents=True, exist_ok=True)
    listed = work / "texts.json"
    if not listed.exists():
        listed.write_text(json.dumps(texts))
    elif json.loads(listed.read_text()) != texts:
        raise click.UsageError(f"{work} has other sentences: name another folder, or remove it")
    for name in BUILDERS:
        if not (work / name).exists():
            click.echo(f"making {name} for {len(texts)} sentences", err=True)
            with Side(__file__, tool="build", work=str(work), name=name) as builder:
                click.echo(f"took {builder.ask():.0f} s", err=True)


@contextmanager
def finished(path: Path) -> Iterator[Path]:
    """Where to build: becomes `path` when the block ends well, so that half a thing is not kept."""
    partial = path.with_name(f"partial-{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    partial.rename(path)


def build_vectors(work: Path, texts: list[str]) -> None:
    """What txtai and sentence-transformers search: float32 (n, 384)."""
    from searchengine.trainer.encoder import Encoder

    encoder = Encoder.load("starter", precision="fp32")
    with finished(work / "vectors.npy") as path, path.open("wb") as file:
        np.save(file, encoder.encode(texts, role="document"))


def build_ours(work: Path, texts: list[str]) -> None:
    """A collection with the defaults of the library, tuned."""
    from searchengine import SearchEngine

    with finished(work / "searchengine") as path, SearchEngine.create(path) as engine:
        engine.add({"_id": str(i), "text": text} for i, text in enumerate(texts))
        engine.tune()


def build_txtai(work: Path, texts: list[str]) -> None:
    """An index with txtai's defaults, from the vectors there are.

    They are handed over as what an interrupted `index` left behind for the next (its checkpoint):
    all else is what `index` would do.
    """
    from txtai import Embeddings

    from searchengine.trainer.sources.source import starter_folder

    embeddings = Embeddings(path=str(starter_folder()), content=True)
    vectors = np.load(work / "vectors.npy")
    with finished(work / "txtai") as path, tempfile.TemporaryDirectory() as checkpoint:
        with (Path(checkpoint) / embeddings.model.vectorsid()).open("wb") as file:
            for start in range(0, len(texts), 1024):  # txtai's own batches
                np.save(file, vectors[start : start + 1024])
        rows = ((str(i), text, None) for i, text in enumerate(texts))
        embeddings.index(rows, checkpoint=checkpoint)
        embeddings.save(str(path))


BUILDERS = {"vectors.npy": build_vectors, "searchengine": build_ours, "txtai": build_txtai}
"""What makes each thing in the folder of work."""


def be(tool: str, work: str, **rest: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that answers a side's requests, and a description of the side."""
    folder = Path(work)
    if tool == "build":
        return building(folder, **rest), {}
    ask_one, ask_many = {
        "searchengine": searchengine,
        "txtai": txtai,
        "sentence-transformers": sentence_transformers,
    }[tool](folder)
    ask_one("A question that comes before the others.")

    def answer(questions: list[str], how: str = "one by one") -> Any:
        if how == "one by one":
            return timed(ask_one, questions)
        start = time.perf_counter()
        if how == "threads":
            with ThreadPoolExecutor(THREADS) as pool:
                found = list(pool.map(ask_one, questions))
        else:
            found = ask_many(questions)
        seconds = time.perf_counter() - start
        assert len(found) == len(questions)
        return seconds

    return answer, {}


def timed(ask: Callable[[str], list[tuple[str, str]]], questions: list[str]) -> Timings:
    """Seconds of every question, and the keys of its hits."""
    seconds, keys = [], []
    for question in questions:
        start = time.perf_counter()
        hits = ask(question)
        seconds.append(time.perf_counter() - start)
        assert len(hits) == K and all(text for _, text in hits)
        keys.append([key for key, _ in hits])
    return seconds, keys


def building(work: Path, name: str) -> Callable[[], float]:
    """A function that builds, and says how many seconds it took."""

    def answer() -> float:
        start = time.perf_counter()
        BUILDERS[name](work, json.loads((work / "texts.json").read_text()))
        return time.perf_counter() - start

    return answer


def searchengine(work: Path) -> Any:
    """Functions that answer one question and many, with keys and texts."""
    from searchengine import SearchEngine

    engine = SearchEngine.open(work / "searchengine")
    engine.warm()  # the others hold all in memory

    def one(question: str) -> list[tuple[str, str]]:
        return [(hit.key, hit.text) for hit in engine.search(question, K, mode="vector")]

    def many(questions: list[str]) -> list[list[tuple[str, str]]]:
        found = engine.search_batch(questions, K, mode="vector")
        return [[(hit.key, hit.text) for hit in hits] for hits in found]

    return one, many


def txtai(work: Path) -> Any:
    """The same of txtai."""
    from txtai import Embeddings

    embeddings = Embeddings()
    embeddings.load(str(work / "txtai"))

    def one(question: str) -> list[tuple[str, str]]:
        return [(hit["id"], hit["text"]) for hit in embeddings.search(question, K)]

    def many(questions: list[str]) -> list[list[tuple[str, str]]]:
        found = embeddings.batchsearch(questions, K)
        return [[(hit["id"], hit["text"]) for hit in hits] for hits in found]

    return one, many


def sentence_transformers(work: Path) -> Any:
    """The same of sentence-transformers, with documents in a dict."""
    import torch
    from sentence_transformers import SentenceTransformer, util

    from searchengine.trainer.sources.source import starter_folder

    model = SentenceTransformer(str(starter_folder()))
    matrix = torch.from_numpy(np.load(work / "vectors.npy"))
    documents = dict(enumerate(json.loads((work / "texts.json").read_text())))

    def many(questions: list[str]) -> list[list[tuple[str, str]]]:
        vectors = model.encode(questions, convert_to_tensor=True)
        found = util.semantic_search(vectors, matrix, top_k=K)
        rows = ([hit["corpus_id"] for hit in hits] for hits in found)
        return [[(str(row), documents[row]) for row in some] for some in rows]

    return lambda question: many([question])[0], many


if __name__ == "__main__":
    run(main, be)
