"""Time of a question by words, and by vectors and words, beside vectors alone; in turns.

    python benchmarks/word_speed.py                        # 200,000 abstracts and parts of them
    python benchmarks/word_speed.py --sentences --count 300000

Questions are titles of papers. Vectors are sums of random vectors of words: they cost nothing to
encode, so what is left is the search.
"""

import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from record import DATA, percentiles, record
from texts import papers, records, sentences

from searchengine import SearchEngine
from searchengine.encoders.protocol import TextEncoder

DIM, VOCABULARY = 96, 1 << 16


class Hashed(TextEncoder):
    """A text is the sum of the vectors of its first words, each drawn once at random."""

    dim, fingerprint = DIM, "hashed"
    _vectors = np.random.default_rng(0).standard_normal((VOCABULARY, DIM), np.float32)

    def encode(self, texts: Sequence[str], *, role: Any = None, **_: Any) -> Any:
        """Float32 (n, DIM)."""
        words = [text.lower().split()[:60] or ["none"] for text in texts]
        numbers = [[zlib.crc32(word.encode()) % VOCABULARY for word in each] for each in words]
        return np.stack([self._vectors[each].sum(axis=0) for each in numbers])


def abstracts(data: Path) -> Iterator[dict[str, str]]:
    """Abstracts with their titles, and their halves."""
    for paper in papers(data):
        text, half = paper["text"], len(paper["text"]) // 2
        yield {"title": paper["title"], "text": text}
        yield {"text": text[:half]}
        yield {"text": text[half:]}


def timed(ways: dict[str, Callable[[str], Any]], questions: Sequence[str]) -> dict[str, Any]:
    """Milliseconds by way: every question in every way, one after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    for question in questions:
        for name, search in ways.items():
            start, start_busy = time.perf_counter(), time.process_time()
            search(question)
            busy[name].append(time.process_time() - start_busy)
            seconds[name].append(time.perf_counter() - start)
    return {
        name: percentiles(took) | {"processor_ms": 1e3 * median(busy[name])}
        for name, took in seconds.items()
    }


@click.command()
@DATA
@click.option("--count", default=200_000, show_default=True, help="Documents.")
@click.option("--sentences", "short", is_flag=True, help="Sentences instead of abstracts.")
@click.option("--questions", default=300, show_default=True, help="Questions.")
def main(data: Path, count: int, short: bool, questions: int) -> None:
    """Time questions by vectors, by words and by both."""
    path = data / "text" / "papers_test_queries.jsonl"
    asked = [row["text"] for row in records(path)]
    config = {"prefix": 48, "structure": "hnsw", "code": "int8", "shortlist": 400}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "c"
        with SearchEngine.create(path, Hashed(), config, passages=False) as engine:
            rows = ({"text": text} for text in sentences(data, count))
            documents = islice(rows if short else abstracts(data), count)
            engine.add(row | {"_id": str(number)} for number, row in enumerate(documents))
            engine.optimize()
        with SearchEngine.open(path, Hashed()) as engine:
            modes = ("vector", "text", "hybrid")
            ways = {mode: lambda q, mode=mode: engine.search(q, mode=mode) for mode in modes}
            timed(ways, asked[:50])
            figures = timed(ways, asked[50 : 50 + questions])
    for name, figure in figures.items():
        click.echo(f"{name}: {figure}")
    record(f"word speed, {count} {'sentences' if short else 'abstracts'}", figures)


if __name__ == "__main__":
    main()
