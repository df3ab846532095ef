"""The same bench twice on a busy machine: do the fastest points keep their order, or tie?

    python benchmarks/repeatability.py --work FOLDER

SciFact, as benchmarks/reports.py measures it, while another process computes now and then: for a
tenth of a second to a second, at random. What ties is named together. A pair is contradicted if
each bench tells it apart and they disagree; reported are the first three of each bench, and how
many pairs that one of these is in are contradicted. FOLDER keeps the collection.
"""

import multiprocessing
import random
import subprocess
import time
from itertools import product
from pathlib import Path

import click
import numpy as np
from record import DATA, SEARCHENGINE, record
from reports import folder, scifact

from searchengine.measure.recommend import ranked
from searchengine.measure.results import Results

FIRST = 3


@click.command()
@DATA
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Kept for later.")
@click.option("--times", default=2, show_default=True, help="Benches.")
def main(data: Path, work: Path | None, times: int) -> None:
    """Measure again and again, and compare the orders."""
    orders = []
    with folder(work) as place:
        arguments = scifact(data, place)
        for number in range(times):
            out = place / f"report-{number}"
            neighbour = multiprocessing.Process(target=compute, args=(number,), daemon=True)
            neighbour.start()
            command = [
                SEARCHENGINE,
                "bench",
                *arguments,
                "--cold",
                "0",
                "--out",
                out,
            ]
            subprocess.run([*map(str, command)], check=True)
            neighbour.kill()
            orders.append(ranked(Results.read(out)))
            click.echo(f"first {FIRST}: {first(orders[-1])}", err=True)
    places = [{name: i for i, group in enumerate(order) for name in group} for order in orders]
    contradicted = sorted(
        {
            tuple(sorted((one, other)))
            for before, after in product(places, places)
            for one, other in product({n for order in orders for n in first(order)}, before)
            if other in after and one in before and one in after
            if before[one] < before[other] and after[one] > after[other]
        }
    )
    figures = {"first": [first(order) for order in orders], "contradicted pairs": contradicted}
    click.echo(figures)
    record("repeatability", figures)


def first(order: tuple[tuple[str, ...], ...]) -> list[str]:
    """The first three, and all that tie with the third."""
    names: list[str] = []
    for group in order:
        if len(names) >= FIRST:
            break
        names += group
    return names


def compute(seed: int) -> None:
    """Keep the cores busy now and then, until it is killed."""
    chance, matrix = random.Random(seed), np.ones((1500, 1500), np.float32)
    while True:
        end = time.monotonic() + chance.uniform(0.1, 1)
        while time.monotonic() < end:
            matrix @ matrix
        time.sleep(chance.uniform(0.1, 1))


if __name__ == "__main__":
    main()
