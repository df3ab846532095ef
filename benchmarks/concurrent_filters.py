"""Plain searches of K threads, alone and beside one thread that runs a slow filter in a loop.

    python benchmarks/concurrent_filters.py

One process and one engine. The filter reads the metadata of every document: its fields are not
indexed. Both conditions alternate, round by round; the ratios are of a round's two halves. Threads
pause between searches, so that alone they do not wait for each other. Texts and the encoder are
synthetic (benchmarks/words.py), and questions are encoded beforehand, so that searching alone is
timed. 200,000 documents of 64 dimensions take some two minutes on two cores.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record, spread
from words import Words, documents

from searchengine import SearchEngine

FILTER = "date >= '2015-01-01' and heading like '%x%'"
K = 10
Times = list[float]


@click.command()
@click.option("--rows", default=200_000, show_default=True, help="Documents.")
@click.option("--dim", default=64, show_default=True, help="Dimensions of a vector.")
@click.option("--threads", default=4, show_default=True, help="Threads of plain searches.")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1))
@click.option("--pause", default=5.0, show_default=True, help="Milliseconds between searches.")
@click.option("--seconds", default=4.0, show_default=True, help="Seconds for half a round.")
def main(rows: int, dim: int, threads: int, rounds: int, pause: float, seconds: float) -> None:
    """Measure p50 and p99 of plain searches in both conditions, and record them."""
    encoder = Words(dim)
    questions = encoder.encode([document["text"] for document in documents(200, length=4)])
    with (
        tempfile.TemporaryDirectory() as folder,
        SearchEngine.create(Path(folder) / "c", encoder) as engine,
    ):
        engine.add(dated(rows))
        engine.optimize()
        search(engine, questions, threads, pause, 1.0)  # warm
        filter_ms = slow_filter(engine, questions, 3)
        click.echo(f"the filter alone: {np.median(filter_ms):.0f} ms", err=True)
        halves = [one_round(engine, questions, threads, pause, seconds) for _ in range(rounds)]
    figures = {
        "documents": rows,
        "dim": dim,
        "threads": threads,
        "pause of a thread between searches, ms": pause,
        "seconds of half a round": seconds,
        "the filter alone, ms": spread(filter_ms),
        **summary(halves),
    }
    show(figures)
    record("plain searches beside a slow filter", figures)


def dated(rows: int) -> Iterator[dict[str, Any]]:
    """The documents of benchmarks/words.py with a date and a heading, always the same."""
    for i, document in enumerate(documents(rows)):
        date = f"{2000 + i % 25}-{1 + i % 12:02d}-{1 + i % 28:02d}"
        yield {**document, "heading": f"h{i}{'x' if i % 7 == 0 else ''}", "date": date}


def search(
    engine: SearchEngine, questions: Any, threads: int, pause: float, seconds: float
) -> Times:
    """Search from several threads for some seconds; milliseconds of each search."""
    end = time.perf_counter() + seconds
    times: list[Times] = [[] for _ in range(threads)]
    failed: list[BaseException] = []

    def work(thread: int) -> None:
        number = thread
        try:
            while time.perf_counter() < end:
                start = time.perf_counter()
                engine.search(questions[number % len(questions)], K)
                times[thread].append(1000 * (time.perf_counter() - start))
                number += threads
                time.sleep(pause / 1000)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=[thread]) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
    return [milliseconds for thread in times for milliseconds in thread]


def slow_filter(engine: SearchEngine, questions: Any, repeats: int) -> Times:
    """Search by the slow filter, one after another; milliseconds of each."""
    times = []
    for number in range(repeats):
        start = time.perf_counter()
        engine.search(questions[number % len(questions)], K, where=FILTER)
        times.append(1000 * (time.perf_counter() - start))
    return times


def one_round(
    engine: SearchEngine, questions: Any, threads: int, pause: float, seconds: float
) -> dict[str, Times]:
    """Milliseconds of plain searches alone and beside the filter, and of the filter's."""
    alone = search(engine, questions, threads, pause, seconds)
    stop, filtered = threading.Event(), Times()

    def loop() -> None:
        while not stop.is_set():
            filtered.extend(slow_filter(engine, questions, 1))

    beside_them = threading.Thread(target=loop)
    beside_them.start()
    try:
        beside = search(engine, questions, threads, pause, seconds)
    finally:
        stop.set()
        beside_them.join()
    if not filtered:
        raise click.ClickException("the filter failed or never ended; nothing was measured")
    return {"alone": alone, "beside": beside, "filter": filtered}


def summary(halves: list[dict[str, Times]]) -> dict[str, Any]:
    """Percentiles of each round and the ratios within rounds: median and quartiles over rounds."""
    figures: dict[str, Any] = {}
    for name, share in (("p50", 50), ("p99", 99)):
        values = {
            condition: [float(np.percentile(half[condition], share)) for half in halves]
            for condition in ("alone", "beside")
        }
        ratios = [b / a for a, b in zip(values["alone"], values["beside"], strict=True)]
        figures[name] = {
            "alone, ms": spread(values["alone"]),
            "beside the filter, ms": spread(values["beside"]),
            "ratio": spread(ratios),
        }
    figures["searches a round"] = {
        condition: spread([float(len(half[condition])) for half in halves])
        for condition in ("alone", "beside", "filter")
    }
    return figures


def show(figures: dict[str, Any]) -> None:
    """A line for each percentile."""
    click.echo("       alone, ms   beside, ms   ratio (quartiles)")
    for name in ("p50", "p99"):
        row = figures[name]
        alone, beside = row["alone, ms"]["median"], row["beside the filter, ms"]["median"]
        ratio = row["ratio"]
        quartiles = f"({ratio['q1']:.1f}–{ratio['q3']:.1f})"
        click.echo(f"{name}  {alone:11.2f}  {beside:11.2f}  {ratio['median']:6.1f} {quartiles}")


if __name__ == "__main__":
    main()
