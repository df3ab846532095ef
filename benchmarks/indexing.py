"""Documents per second: `searchengine index` end to end against sentence-transformers' encode.

    python benchmarks/indexing.py

The same SciFact texts and model (all-MiniLM-L6-v2), alternately, in fresh processes with the same
threads. Each side is timed from the loaded model to the finished result: for index that is reading,
storing, encoding, rotating, building and committing; for sentence-transformers the encoding alone.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from record import DATA, record, spread


@click.command()
@DATA
@click.option("--repeats", default=5, show_default=True)
@click.option("--documents", default=1000, show_default=True, help="How many; 0 for all.")
@click.option("--side", type=click.Choice(["ours", "theirs"]), hidden=True)
def main(data: Path, repeats: int, documents: int, side: str | None) -> None:
    """Compare alternately and report the median ratio."""
    if side:
        seconds, count = {"ours": ours, "theirs": theirs}[side](data, documents or None)
        print(json.dumps({"seconds": seconds, "documents": count}))
        return
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(repeats):
        for name, found in rates.items():
            command = [sys.executable, __file__, "--data", str(data)]
            command += ["--documents", str(documents), "--side", name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            result = json.loads(done.splitlines()[-1])
            found.append(result["documents"] / result["seconds"])
            click.echo(f"{name:7} {found[-1]:6.1f} documents/s", err=True)
    ratios = [a / b for a, b in zip(rates["ours"], rates["theirs"], strict=True)]
    figures = {
        "searchengine index, documents/s": spread(rates["ours"]),
        "sentence-transformers encode, documents/s": spread(rates["theirs"]),
        "ratio": spread(ratios),
    }
    click.echo(json.dumps(figures, indent=2))
    record("indexing", figures)


def ours(data: Path, most: int | None) -> tuple[float, int]:
    """Seconds to read, encode, build and commit, and the number of documents."""
    from itertools import islice

    from searchengine import SearchEngine
    from searchengine.corpus import read_corpus
    from trainer.encoder import Encoder

    encoder = Encoder.load("starter")
    encoder.encode(["warm"])
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        with SearchEngine.create(Path(scratch) / "c", encoder, passages=False) as engine:
            summary = engine.add(islice(read_corpus(data / "beir" / "scifact"), most))
        return time.perf_counter() - start, summary.added


def theirs(data: Path, most: int | None) -> tuple[float, int]:
    """Seconds for encode with its defaults on the same texts."""
    from itertools import islice

    from sentence_transformers import SentenceTransformer

    from searchengine.corpus import read_corpus
    from trainer.starter import starter_folder

    texts = [d.full_text for d in islice(read_corpus(data / "beir" / "scifact"), most)]
    model = SentenceTransformer(str(starter_folder()))
    model.encode(["warm"])
    start = time.perf_counter()
    model.encode(texts)
    return time.perf_counter() - start, len(texts)


if __name__ == "__main__":
    main()
