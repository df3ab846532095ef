"""SQLite's log beside readers that refresh: how large it grows, and what bounding it costs.

    python benchmarks/log.py --seconds 600                  # eight readers, a writer
    python benchmarks/log.py --seconds 60 --pause 0.5       # readers that refresh twice a second

A process adds, replaces and deletes documents as fast as it can; the readers, processes too,
refresh and search. The size of the log is read ten times a second. It must stay below the larger of
64 MB and four times the database; the status is 1 if it does not.
"""

import json
import multiprocessing
import random
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import click
from record import record, spread
from words import Words, documents

from searchengine import SearchEngine

_BOUND = 64 << 20, 4  # bytes, and times the database


def read(path: Path, pause: float, stop: Event) -> None:
    """Refresh and search until it is over."""
    choose = random.Random(0)
    with SearchEngine.open(path, Words()) as engine:
        while not stop.is_set():
            engine.refresh()
            engine.search(f"w{choose.randrange(100)} w{choose.randrange(100)}")
            time.sleep(pause)


def write(path: Path, stop: Event, waits: "multiprocessing.Queue[list[float]]") -> None:
    """Change a few documents at a time; reports the seconds of each change."""
    choose, seconds = random.Random(1), []
    stock = list(documents(2000))
    with SearchEngine.open(path, Words(), wait=60) as engine:
        while not stop.is_set():
            start = time.perf_counter()
            changed = [dict(each, version=len(seconds)) for each in choose.sample(stock, 5)]
            if len(seconds) % 10:
                engine.add(
                    dict(each, text=f"{each['text']} w{len(seconds) % 99}") for each in changed
                )
            else:
                engine.delete([each["_id"] for each in changed])
            seconds.append(time.perf_counter() - start)
    waits.put(seconds)


@click.command()
@click.option("--seconds", default=600, show_default=True)
@click.option("--readers", default=8, show_default=True)
@click.option("--pause", default=0.05, show_default=True, help="Seconds between two refreshes.")
def main(seconds: int, readers: int, pause: float) -> None:
    """See the module's beginning."""
    context = multiprocessing.get_context("spawn")
    stop, waits = context.Event(), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        with SearchEngine.create(path, Words()) as engine:
            engine.add(documents(500))
        processes = [context.Process(target=read, args=(path, pause, stop)) for _ in range(readers)]
        processes.append(context.Process(target=write, args=(path, stop, waits)))
        for process in processes:
            process.start()
        sizes, largest, over = [], 0.0, 0.0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.1)
            log, database = (_size(path / f"documents.db{end}") for end in ("-wal", ""))
            sizes.append(log)
            over = max(over, log / max(_BOUND[0], _BOUND[1] * database))
            if log > largest:
                largest = log
                click.echo(f"log {log / 1e6:.1f} MB, database {database / 1e6:.1f} MB", err=True)
        stop.set()
        changes = waits.get(timeout=120)
        for process in processes:
            process.join()
            over = over if process.exitcode == 0 else float("inf")
        with SearchEngine.open(path, Words()) as engine:
            engine.verify()
    figures = {
        "readers": readers,
        "seconds": seconds,
        "pause between refreshes, s": pause,
        "changes": len(changes),
        "log at most, MB": largest / 1e6,
        "log, MB": spread([size / 1e6 for size in sizes]),
        "of the bound": over,
        "one change, ms": spread([1000 * each for each in changes]),
        "slowest change, s": max(changes),
        "changes above half a second": sum(each > 0.5 for each in changes),
    }
    click.echo(json.dumps(figures, indent=2))
    record("log beside readers", figures)
    sys.exit(over >= 1)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


if __name__ == "__main__":
    main()
