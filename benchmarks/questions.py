"""One question, text to hits with their documents: this engine, txtai and sentence-transformers.

    python benchmarks/questions.py --work FOLDER                  # 200,000 sentences
    python benchmarks/questions.py --documents 5000 --questions 200 --batch 200

The same sentences (text/sentences_mixed, drawn with a fixed seed), model (all-MiniLM-L6-v2) and
real questions (of SciFact, NFCorpus and Cranfield, shuffled with a fixed seed; it is not their
answers that are wanted here), none asked twice but where it says so. Each side is in a process of
its own; they take turns, every hundred questions, and ratios are of the same question. A peer that
is not installed is left out. All answer the 10 best with their texts:

- searchengine: `search` in a collection that `SearchEngine.add` and `tune` made, with their
  defaults: recall@10 above 0.95.
- txtai: `Embeddings.search` in an index with its defaults and content=True.
- sentence-transformers: `encode` and `util.semantic_search` over a matrix in memory, and a dict.

sentence-transformers searches exactly: the share of its hits that the others find is shown too.
Throughput is of one call with many questions. FOLDER keeps what was indexed for the next time;
remove it when the indexing has changed. txtai and sentence-transformers search the vectors of the
collection: encoding.py and indexing.py time encoding.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import DATA, percentiles, record, spread, times
from sides import Side, in_turn, once, run
from texts import questions, sentences

from searchengine import SearchEngine
from searchengine.trainer.sources.source import starter_folder

K = 10
OURS = "searchengine"
BLOCK, LEAD = 100, 25
"""Questions a side answers before the next one's turn, and more before them that do not count."""
PASSES = 5
"""Times that the last block is asked again."""
WARM = 98
"""Questions that come before a batch and do not count: all that three batches leave over."""


@click.command()
@DATA
@click.option("--documents", default=200_000, show_default=True)
@click.option("--questions", "alone", default=1000, show_default=True, help="Asked one by one.")
@click.option("--batch", default=1000, show_default=True, help="Questions asked at once.")
@click.option("--repeats", default=3, show_default=True, help="Batches, other questions each time.")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep the indexes in; without it they are built again and removed.",
)
def main(
    data: Path, documents: int, alone: int, batch: int, repeats: int, work: Path | None
) -> None:
    """Index where that is still to do, ask in turns, and compare."""
    count = -(-alone // BLOCK) * (BLOCK + LEAD)
    asked, needed = questions(data), count + repeats * (batch + WARM)
    if len(asked) < needed:
        raise click.UsageError(f"there are {len(asked)} questions, of {needed} wanted")
    with (
        nullcontext(work) if work else tempfile.TemporaryDirectory() as name,
        ExitStack() as stack,
    ):
        folder = Path(name)
        tools = prepare(folder, sentences(data, documents))
        sides = {
            tool: stack.enter_context(Side(__file__, tool=tool, work=str(folder))) for tool in tools
        }
        figures = {"documents": documents, **one_by_one(sides, asked[:count])}
        figures["throughput"] = throughput(sides, asked[count:needed], batch)
    click.echo(json.dumps(figures, indent=2))
    record("questions", figures)


def one_by_one(sides: dict[str, Side], asked: list[str]) -> dict[str, Any]:
    """Milliseconds of distinct questions and of repeated ones, and the hits in common."""
    keys: dict[str, list[list[str]]] = {tool: [] for tool in sides}
    seconds: dict[str, list[float]] = {tool: [] for tool in sides}
    again: dict[str, list[float]] = {tool: [] for tool in sides}
    size = BLOCK + LEAD
    for turn in range(len(asked) // size):
        for tool in in_turn([*sides], turn):
            took, hits = sides[tool].ask(questions=asked[turn * size : (turn + 1) * size])
            seconds[tool] += took[LEAD:]
            keys[tool] += hits[LEAD:]
    for turn in range(PASSES):
        for tool in in_turn([*sides], turn):
            again[tool] += sides[tool].ask(questions=asked[-size:])[0][LEAD:]
    exact = [*keys.values()][-1]  # of sentence-transformers, where it is installed
    return {
        "distinct questions": latencies(seconds),
        "repeated questions": latencies(again),
        f"share of the exact {K} best": {tool: shared(hits, exact) for tool, hits in keys.items()},
    }


def latencies(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """By tool, and how many times as long as this engine the others take for a question."""
    return {
        tool: percentiles(took) | {"times searchengine": times(took, seconds[OURS])}
        for tool, took in seconds.items()
    }


def shared(hits: list[list[str]], exact: list[list[str]]) -> float:
    """Mean share of the exact best that are among the hits."""
    pairs = zip(hits, exact, strict=True)
    return float(np.mean([len({*some} & {*best}) / len(best) for some, best in pairs]))


def throughput(sides: dict[str, Side], asked: list[str], batch: int) -> dict[str, Any]:
    """Questions per second, other questions each turn, and how many times theirs ours is."""
    rates: dict[str, list[float]] = {tool: [] for tool in sides}
    size = WARM + batch
    for turn in range(len(asked) // size):
        some = asked[turn * size : (turn + 1) * size]
        for tool in in_turn([*sides], turn):
            sides[tool].ask(questions=some[:WARM], at_once=True)
            rates[tool].append(batch / sides[tool].ask(questions=some[WARM:], at_once=True))
    return {
        tool: {"questions/s": spread(rate), "ours over it": times(rates[OURS], rate)}
        for tool, rate in rates.items()
    }


def prepare(work: Path, texts: list[str]) -> list[str]:
    """Index the texts into a folder once for every tool that is here; returns these."""
    work.mkdir(parents=True, exist_ok=True)
    listed = work / "texts.json"
    if not listed.exists():
        listed.write_text(json.dumps(texts))
    elif json.loads(listed.read_text()) != texts:
        raise click.UsageError(f"{work} has other sentences: name another folder, or remove it")
    packages = {tool: find_spec(tool.replace("-", "_")) for tool in TOOLS}
    for tool, (name, _, _) in TOOLS.items():
        if not packages[tool]:
            click.echo(f"{tool} is left out: it is not installed", err=True)
        elif not (work / name).exists():
            click.echo(f"making {name} for {len(texts)} sentences", err=True)
            click.echo(f"took {once(__file__, tool=tool, work=str(work), built=False):.0f} s")
    return [tool for tool in TOOLS if packages[tool]]


@contextmanager
def finished(path: Path) -> Iterator[Path]:
    """Where to build: becomes `path` when the block ends well, so that half a thing is not kept."""
    partial = path.with_name(f"partial-{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    partial.rename(path)


def build_ours(path: Path, texts: list[str]) -> None:
    """A collection with the defaults of the library, tuned."""
    with SearchEngine.create(path) as engine:
        engine.add({"_id": str(i), "text": text} for i, text in enumerate(texts))
        engine.tune()


def build_txtai(path: Path, texts: list[str]) -> None:
    """An index with txtai's defaults, from the vectors of the collection.

    They are handed over as what an interrupted `index` left behind for the next (its checkpoint):
    all else is what `index` would do.
    """
    from txtai import Embeddings

    embeddings = Embeddings(path=str(starter_folder()), content=True)
    vectors = collected(path.parent, len(texts))
    with tempfile.TemporaryDirectory() as checkpoint:
        with (Path(checkpoint) / embeddings.model.vectorsid()).open("wb") as file:
            for start in range(0, len(texts), 1024):  # txtai's own batches
                np.save(file, vectors[start : start + 1024])
        rows = ((str(i), text, None) for i, text in enumerate(texts))
        embeddings.index(rows, checkpoint=checkpoint)
        embeddings.save(str(path))


def build_matrix(path: Path, texts: list[str]) -> None:
    """What sentence-transformers searches: float32 (n, 384)."""
    with path.open("wb") as file:
        np.save(file, collected(path.parent, len(texts)))


def collected(work: Path, count: int) -> Any:
    """The vectors of the first passages, float32 (count, 384)."""
    with SearchEngine.open(work / TOOLS[OURS][0]) as engine:
        vectors = engine.vectors(str(i) for i in range(count))
    return np.stack([rows[0] for rows in vectors if rows is not None])


def searchengine(path: Path) -> Callable[[list[str]], Any]:
    """A function from questions to keys and texts of their hits."""
    engine = SearchEngine.open(path)
    engine.encode(["warm"])  # the others hold all in memory

    def ask(asked: list[str]) -> Any:
        found = engine.search_batch(asked, K, mode="vector")
        return [[(hit.key, hit.text) for hit in hits] for hits in found]

    return ask


def txtai(path: Path) -> Callable[[list[str]], Any]:
    """The same of txtai."""
    from txtai import Embeddings

    embeddings = Embeddings()
    embeddings.load(str(path))

    def ask(asked: list[str]) -> Any:
        found = embeddings.batchsearch(asked, K)
        return [[(hit["id"], hit["text"]) for hit in hits] for hits in found]

    return ask


def sentence_transformers(path: Path) -> Callable[[list[str]], Any]:
    """The same of sentence-transformers, with documents in a dict."""
    import torch
    from sentence_transformers import SentenceTransformer, util

    model = SentenceTransformer(str(starter_folder()))
    matrix = torch.from_numpy(np.load(path))
    documents = dict(enumerate(json.loads(path.with_name("texts.json").read_text())))

    def ask(asked: list[str]) -> Any:
        vectors = model.encode(asked, convert_to_tensor=True)
        found = util.semantic_search(vectors, matrix, top_k=K)
        rows = ([hit["corpus_id"] for hit in hits] for hits in found)
        return [[(str(row), documents[row]) for row in some] for some in rows]

    return ask


# name: what it is kept in, what builds that, and what opens it. The exact one comes last.
TOOLS: dict[str, tuple[str, Callable[[Path, list[str]], None], Callable[[Path], Any]]] = {
    OURS: ("collection", build_ours, searchengine),
    "txtai": ("txtai", build_txtai, txtai),
    "sentence-transformers": ("vectors.npy", build_matrix, sentence_transformers),
}


def be(tool: str, work: str, built: bool = True) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A side that answers questions; or one that builds its index and says how long it took."""
    name, build, open_index = TOOLS[tool]
    path = Path(work) / name

    def make() -> float:
        start = time.perf_counter()
        with finished(path) as place:
            build(place, json.loads((Path(work) / "texts.json").read_text()))
        return time.perf_counter() - start

    if not built:
        return make, {}
    ask = open_index(path)
    ask(["A question that comes before the others."])

    def answer(questions: list[str], at_once: bool = False) -> Any:
        seconds, keys = [], []
        for asked in [questions] if at_once else [[question] for question in questions]:
            start = time.perf_counter()
            found = ask(asked)
            seconds.append(time.perf_counter() - start)
            assert all(len(hits) == K and all(text for _, text in hits) for hits in found)
            keys += [[key for key, _ in hits] for hits in found]
        return seconds[0] if at_once else (seconds, keys)

    return answer, {}


if __name__ == "__main__":
    run(main, be)
