"""How long asearch blocks the event loop: 200 questions at once, a third of them cancelled.

    python benchmarks/event_loop.py

SciFact's first 1,000 abstracts, the starter encoder. A task sleeps for a millisecond, again and
again; what it sleeps longer is the lag. Each runtime is in a process of its own, once as it comes
and once after `gc.freeze()`, which takes what is loaded out of the garbage collector's full passes.
Every answer that is not cancelled must be that of `search`. On a busy machine the lag is that of
the other programs: give the process real-time priority (`chrt -r 1 python …`).
"""

import asyncio
import gc
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import DATA, record

from searchengine import SearchEngine
from searchengine.query.hits import Hits

AT_ONCE = 200


@click.command()
@DATA
@click.option("--rounds", default=20, show_default=True)
@click.option("--collection", type=click.Path(path_type=Path), help="Measure in this process.")
@click.option("--freeze", is_flag=True, help="For --collection: call gc.freeze first.")
def main(data: Path, rounds: int, collection: Path | None, freeze: bool) -> None:
    """Measure each side and report milliseconds."""
    if collection is not None:
        print(json.dumps(asyncio.run(measure(collection, questions(data, rounds), freeze))))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "scifact.index"
        with (
            gzip.open(data / "beir" / "scifact" / "corpus.jsonl.gz", "rt", encoding="utf-8") as f,
            SearchEngine.create(path) as engine,
        ):
            engine.add(map(json.loads, islice(f, 1000)))
        for runtime in ("native", "torch"):
            for options in ([], ["--freeze"]):
                command = [sys.executable, __file__, "--data", str(data), "--rounds", str(rounds)]
                command += ["--collection", str(path), *options]
                # One thread: at real-time priority torch's two would keep the loop off both cores.
                environment = {**os.environ, "SEARCHENGINE_RUNTIME": runtime}
                environment["OMP_NUM_THREADS"] = "1"
                done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
                name = " ".join([runtime, *options])
                figures[name] = json.loads(done.stdout)
                click.echo(f"{name:20} {figures[name]}", err=True)
    record("event loop", {"at once": AT_ONCE, "rounds": rounds, **figures})


def questions(data: Path, rounds: int) -> list[list[str]]:
    """Questions of each round, none of them twice."""
    with gzip.open(data / "beir" / "scifact" / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    every = (f"{text} {i}" if i else text for i in range(rounds) for text in texts)
    return [list(islice(every, AT_ONCE)) for _ in range(rounds)]


def check(text: str, hits: Any, expected: Hits) -> None:
    """The scores of a batch and of one question differ by the rounding of bfloat16."""
    scores, others = ([hit.score for hit in each] for each in (hits, expected))
    assert len(scores) == 3 and np.allclose(scores, others, rtol=0, atol=0.01), (text, scores)
    assert all(hit.question == text for hit in hits)


async def measure(path: Path, batches: list[list[str]], freeze: bool) -> dict[str, Any]:
    """The largest lag while the engine warms up and while it answers, in ms; answers and calls."""
    lags: list[float] = []

    async def beat() -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(1e3 * (time.perf_counter() - begin) - 1)

    with SearchEngine.open(path) as engine:
        pulse = asyncio.create_task(beat())
        await asyncio.to_thread(engine.warm)
        warming, answered = max(lags), 0
        if freeze:
            gc.collect()
            gc.freeze()
        worst: list[float] = []
        for batch in batches:
            await asyncio.sleep(0.5)  # the system takes 50 ms from who computes for a second
            lags.clear()
            tasks = [asyncio.create_task(engine.asearch(text, 3)) for text in batch]
            await asyncio.sleep(0.005)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            worst.append(max(lags))
            for text, hits in zip(batch, results, strict=True):
                if not isinstance(hits, asyncio.CancelledError):
                    answered += 1
                    check(text, hits, engine.search_batch([text], 3)[0])
        pulse.cancel()
    return {
        "worst lag, ms": round(max(worst), 1),
        "median of the rounds' worst, ms": round(sorted(worst)[len(worst) // 2], 1),
        "worst while warming up, ms": round(warming, 1),
        "answers compared": answered,
    }


if __name__ == "__main__":
    main()
