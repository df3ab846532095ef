"""Documents per second, from documents to something that can be searched.

    python benchmarks/indexing.py
    python benchmarks/indexing.py --documents 200 --repeats 3

The same SciFact texts and model (all-MiniLM-L6-v2), alternately, in fresh processes with the same
threads. Each side is timed from the loaded model to the finished result: for `searchengine index`
that is reading, storing, encoding, rotating, building and committing; for txtai `index` and `save`,
with its defaults and content=True; for sentence-transformers the encoding alone.

txtai reads 512 tokens of a text, what the tokenizer allows; the model's own limit, which the others
keep, is 256. So txtai is also measured told to read 256.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
from record import DATA, record, spread
from sides import in_turn, times

Timed = tuple[float, int]
OURS, THEIRS, TXTAI = "searchengine index", "sentence-transformers encode", "txtai index"


@click.command()
@DATA
@click.option("--repeats", default=5, show_default=True)
@click.option("--documents", default=1000, show_default=True, help="How many; 0 for all.")
@click.option("--side", help="Measure one side once, in this process.")
def main(data: Path, repeats: int, documents: int, side: str | None) -> None:
    """Compare alternately and report the median ratios."""
    if side:
        print(json.dumps(once(side, data, documents or None)))
        return
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    left_out: dict[str, Any] = {}
    for turn in range(repeats):
        for name in in_turn([name for name in SIDES if name not in left_out], turn):
            command = [sys.executable, __file__, "--data", str(data)]
            command += ["--documents", str(documents), "--side", name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            result = json.loads(done.splitlines()[-1])
            if "left out" in result:
                click.echo(f"{name} is left out: {result['left out']}", err=True)
                left_out[name] = result
                continue
            rates[name].append(result["documents"] / result["seconds"])
            click.echo(f"{name:34} {rates[name][-1]:6.1f} documents/s", err=True)
    figures: dict[str, Any] = {
        name: {"documents/s": spread(found)}
        | {f"times {other}": times(found, rates[other]) for other in (THEIRS, TXTAI)}
        for name, found in rates.items()
        if found
    }
    figures |= left_out
    click.echo(json.dumps(figures, indent=2))
    record("indexing", figures)


def once(side: str, data: Path, most: int | None) -> dict[str, Any]:
    """What one side takes; or why it cannot be run here, or is not accurate enough to be."""
    from searchengine.trainer.errors import ModelError

    try:
        seconds, count = SIDES[side](data, most)
    except ModelError as error:
        return {"left out": str(error)}
    return {"seconds": seconds, "documents": count}


def ours(data: Path, most: int | None, **loading: Any) -> Timed:
    """Seconds to read, encode, build and commit, and the number of documents."""
    from searchengine import SearchEngine
    from searchengine.corpus.files import read_corpus
    from searchengine.trainer.encoder import Encoder

    encoder = Encoder.load("starter", **loading)
    encoder.encode(["warm"])
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        with SearchEngine.create(Path(scratch) / "c", encoder, passages=False) as engine:
            summary = engine.add(islice(read_corpus(data / "beir" / "scifact"), most))
        return time.perf_counter() - start, summary.added


def theirs(data: Path, most: int | None) -> Timed:
    """Seconds for encode with its defaults on the same texts."""
    from sentence_transformers import SentenceTransformer

    from searchengine.trainer.sources.source import starter_folder

    texts = read(data, most)
    model = SentenceTransformer(str(starter_folder()))
    model.encode(["warm"])
    start = time.perf_counter()
    model.encode(texts)
    return time.perf_counter() - start, len(texts)


def txtai(data: Path, most: int | None, **settings: Any) -> Timed:
    """Seconds to index and save the same texts with txtai's defaults, but for these settings."""
    from txtai import Embeddings

    from searchengine.trainer.sources.source import starter_folder

    texts = read(data, most)
    embeddings = Embeddings(path=str(starter_folder()), content=True, **settings)
    embeddings.batchtransform(["warm"])
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        embeddings.index(texts)
        embeddings.save(str(Path(scratch) / "index"))
        return time.perf_counter() - start, len(texts)


def read(data: Path, most: int | None) -> list[str]:
    """The texts, titles in front, as this project's reader gives them."""
    from searchengine.corpus.files import read_corpus

    return [d.full_text for d in islice(read_corpus(data / "beir" / "scifact"), most)]


SIDES: dict[str, Callable[[Path, int | None], Timed]] = {
    OURS: ours,
    f"{OURS}, int8": partial(ours, precision="int8"),
    THEIRS: theirs,
    TXTAI: txtai,
    f"{TXTAI}, 256 tokens": partial(txtai, maxlength=256),
}


if __name__ == "__main__":
    main()
