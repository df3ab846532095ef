"""Seconds from `searchengine index` of 30 short documents to the hit, with empty caches.

    python benchmarks/first_hit.py

Fresh processes and an empty cache of this user's for each repeat, in turn: the default, which
leaves the choice of the runtime open, and torch. Half a minute a repeat.
"""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import click
from record import SEARCHENGINE, record, spread

WORDS = "whale ocean bread yeast table lock star planet guitar chord river bridge paint".split()
RUNTIMES = {"default": (), "torch": ("--runtime", "torch")}


@click.command()
@click.option("--repeats", default=5, show_default=True)
@click.option("--busy", default=0, show_default=True, help="Processes that keep a core busy.")
def main(repeats: int, busy: int) -> None:
    """Run each in turn, in fresh processes."""
    hogs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(busy)]
    times: dict[str, list[float]] = {name: [] for name in RUNTIMES}
    try:
        for _ in range(repeats):
            for name, options in RUNTIMES.items():
                times[name].append(first_hit(options))
    finally:
        for hog in hogs:
            hog.kill()
    for name, seconds in times.items():
        click.echo(f"{name:10} {spread(seconds)['median']:6.2f} s")
    figures = {name: spread(seconds) for name, seconds in times.items()}
    record(f"first hit, {busy} busy", figures)


def first_hit(options: tuple[str, ...]) -> float:
    """Seconds of both commands."""
    with tempfile.TemporaryDirectory() as scratch:
        notes = Path(scratch) / "notes"
        notes.mkdir()
        for i in range(30):
            first, second = WORDS[i % len(WORDS)], WORDS[i * 5 % len(WORDS)]
            (notes / f"{i}.txt").write_text(f"Note {i}: a {first} was seen beside a {second}.")
        environment = {**os.environ, "XDG_CACHE_HOME": f"{scratch}/cache"}
        started = time.perf_counter()
        for command in (("index", "notes", "n.index"), ("search", "n.index", "a whale", "--json")):
            done = subprocess.run(
                [SEARCHENGINE, *command, *options],
                cwd=scratch,
                env=environment,
                check=True,
                capture_output=True,
            )
        seconds = time.perf_counter() - started
        assert "whale" in json.loads(done.stdout)[0]["text"]
        return seconds


if __name__ == "__main__":
    main()
