"""Encoding by torch beside other programs: how long its threads spin while they wait.

    python benchmarks/busy.py

Cranfield's first 100 abstracts by the starter, in fresh processes in turn: with OpenMP's default,
and with the limit that `trainer` sets; alone, and beside two processes that keep two cores busy.
Two minutes.
"""

import os
import subprocess
import sys
from pathlib import Path

import click
from record import DATA, REPOSITORY, record, spread

PROGRAM = """
import gzip, itertools, json, sys, time
from searchengine.trainer.encoder import Encoder
with gzip.open(sys.argv[1]) as lines:
    texts = [json.loads(line)["text"] for line in itertools.islice(lines, 100)]
encoder = Encoder.load("starter", runtime="torch")
encoder.encode(texts[:20])
for _ in range(3):
    start = time.perf_counter()
    encoder.encode(texts)
    print(len(texts) / (time.perf_counter() - start))
"""
# None: as libgomp has it, where no thread has less than a core of its own.
SPINS = {"default": "300000", "limited": None}


@click.command()
@DATA
@click.option("--repeats", default=3, show_default=True)
def main(data: Path, repeats: int) -> None:
    """Documents per second, each in turn."""
    corpus = data / "beir" / "cranfield" / "corpus.jsonl.gz"
    figures = {}
    for busy in (0, 2):
        rates: dict[str, list[float]] = {name: [] for name in SPINS}
        hogs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(busy)]
        try:
            for _ in range(repeats):
                for name, count in SPINS.items():
                    rates[name] += encoded(corpus, count)
        finally:
            for hog in hogs:
                hog.kill()
        for name, found in rates.items():
            figures[f"{name}, {busy} busy"] = spread(found)
            click.echo(f"{busy} busy, {name:8} {spread(found)['median']:6.1f} documents/s")
    record("busy", figures)


def encoded(corpus: Path, spins: str | None) -> list[float]:
    """Documents per second of a fresh process."""
    setting = {} if spins is None else {"GOMP_SPINCOUNT": spins}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, corpus],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **setting},
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(line) for line in done.stdout.split()]


if __name__ == "__main__":
    main()
