"""Documents per second, from documents to something that can be searched.

    python benchmarks/indexing.py
    python benchmarks/indexing.py --documents 200 --repeats 3

The same SciFact texts and model (all-MiniLM-L6-v2), alternately, in fresh processes with the same
threads. Each side is timed from the loaded model to the finished result: for `searchengine index`
that is reading, storing, encoding, rotating, building and committing; for txtai `index` and `save`,
with its defaults and content=True; for sentence-transformers the encoding alone. Peers that are not
installed are left out.

txtai reads 512 tokens of a text, what the tokenizer allows; the model's own limit, which the others
keep, is 256. So txtai is also measured told to read 256.
"""

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import click
from record import DATA, record, spread, times
from sides import in_turn, once, run
from texts import abstracts

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.sources.source import starter_folder

OURS = "searchengine index"


@click.command()
@DATA
@click.option("--repeats", default=5, show_default=True)
@click.option("--documents", default=1000, show_default=True, help="How many; 0 for all.")
def main(data: Path, repeats: int, documents: int) -> None:
    """Compare alternately and report the median ratios."""
    rates: dict[str, list[float]] = {}
    for name, (package, _) in SIDES.items():
        if find_spec(package):
            rates[name] = []
        else:
            click.echo(f"{name} is left out: {package} is not installed", err=True)
    for turn in range(repeats):
        for name in in_turn([*rates], turn):
            rates[name].append(once(__file__, side=name, data=str(data), most=documents or None))
            click.echo(f"{name:34} {rates[name][-1]:6.1f} documents/s", err=True)
    figures = {
        name: {"documents/s": spread(found), "ours over it": times(rates[OURS], found)}
        for name, found in rates.items()
    }
    click.echo(json.dumps(figures, indent=2))
    record("indexing", figures)


def ours(data: Path, most: int | None) -> float:
    """Read, encode, build and commit."""
    encoder = Encoder.load("starter")
    encoder.encode(["warm"])
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        with SearchEngine.create(Path(scratch) / "c", encoder, passages=False) as engine:
            summary = engine.add(islice(read_corpus(data / "beir" / "scifact"), most))
        return summary.added / (time.perf_counter() - start)


def theirs(data: Path, most: int | None) -> float:
    """Encode the same texts with the defaults."""
    from sentence_transformers import SentenceTransformer

    texts = abstracts(data, most)
    model = SentenceTransformer(str(starter_folder()))
    model.encode(["warm"])
    start = time.perf_counter()
    model.encode(texts)
    return len(texts) / (time.perf_counter() - start)


def txtai(data: Path, most: int | None, **settings: Any) -> float:
    """Index and save the same texts with txtai's defaults, but for these settings."""
    from txtai import Embeddings

    texts = abstracts(data, most)
    embeddings = Embeddings(path=str(starter_folder()), content=True, **settings)
    embeddings.batchtransform(["warm"])
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        embeddings.index(texts)
        embeddings.save(str(Path(scratch) / "index"))
        return len(texts) / (time.perf_counter() - start)


# name: its package, and a function that returns documents per second
SIDES: dict[str, tuple[str, Callable[[Path, int | None], float]]] = {
    OURS: ("searchengine", ours),
    "sentence-transformers encode": ("sentence_transformers", theirs),
    "txtai index": ("txtai", txtai),
    "txtai index, 256 tokens": ("txtai", partial(txtai, maxlength=256)),
}


def be(side: str, data: str, most: int | None) -> tuple[Callable[[], float], Any]:
    """A side that is measured once."""
    return lambda: SIDES[side][1](Path(data), most), {}


if __name__ == "__main__":
    run(main, be)
