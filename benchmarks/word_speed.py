"""Time of a question by words, and by vectors and words, beside vectors alone; in turns.

    python benchmarks/word_speed.py                        # 200,000 abstracts and parts of them
    python benchmarks/word_speed.py --sentences --count 1000000

Questions are titles of papers. Vectors are sums of random vectors of words: they cost nothing to
encode, so what is left is the search.
"""

import gzip
import json
import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from record import DATA, record

from searchengine import SearchEngine

DIM, VOCABULARY = 96, 1 << 16


class Hashed:
    """A text is the sum of the vectors of its first words, each drawn once at random."""

    def __init__(self) -> None:
        self.dim, self.fingerprint = DIM, "hashed"
        random = np.random.default_rng(0)
        self._vectors = random.standard_normal((VOCABULARY, DIM)).astype(np.float32)

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        """Float32 (n, DIM)."""
        words = [text.lower().split()[:60] or ["none"] for text in texts]
        numbers = [[zlib.crc32(word.encode()) % VOCABULARY for word in each] for each in words]
        return np.stack([self._vectors[each].sum(axis=0) for each in numbers])


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from file


def documents(data: Path, count: int, sentences: bool) -> Iterator[dict[str, Any]]:
    """Abstracts and their halves; or sentences of abstracts, then other sentences."""
    number = 0
    for line in lines(data / "text" / "papers_title_abstract.jsonl.gz"):
        paper = json.loads(line)
        text = paper["text"]
        half = len(text) // 2
        parts = re.split(r"(?<=[.!?])\s+", text) if sentences else [text, text[:half], text[half:]]
        for i, part in enumerate(parts):
            if part.strip() and number < count:
                title = "" if i or sentences else paper["title"]
                yield {"_id": str(number), "title": title, "text": part}
                number += 1
    if sentences:
        for line in lines(data / "text" / "sentences_mixed.tsv.gz"):
            if number < count:
                yield {"_id": str(number), "text": line.split("\t", 1)[-1].strip() or "none"}
                number += 1


def timed(ways: dict[str, Callable[[str], Any]], questions: Sequence[str]) -> dict[str, Any]:
    """Milliseconds by way: every question in every way, one after the other."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for question in questions:
        for name, search in ways.items():
            begun, begun_cpu = time.perf_counter(), time.process_time()
            search(question)
            passed = time.perf_counter() - begun, time.process_time() - begun_cpu
            spent[name].append((1e3 * passed[0], 1e3 * passed[1]))
    result: dict[str, Any] = {}
    for name, times in spent.items():
        wall = [each for each, _ in times]
        more = [a - b for (a, _), (b, _) in zip(times, spent["vector"], strict=True)]
        result[name] = {
            "p50": round(median(wall), 3),
            "p99": round(float(np.percentile(wall, 99)), 3),
            "cpu": round(median(cpu for _, cpu in times), 3),
            "more than vector": round(median(more), 3),
        }
    return result


@click.command()
@DATA
@click.option("--count", default=200_000, show_default=True, help="Documents.")
@click.option("--sentences", is_flag=True, help="Sentences instead of abstracts.")
@click.option("--questions", default=300, show_default=True, help="Questions.")
def main(data: Path, count: int, sentences: bool, questions: int) -> None:
    """Time questions by vectors, by words and by both."""
    path = data / "text" / "papers_test_queries.jsonl"
    asked = [json.loads(line)["text"] for line in lines(path)]
    config = {"prefix": 48, "structure": "hnsw", "code": "int8", "shortlist": 400}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "c"
        with SearchEngine.create(path, Hashed(), config, passages=False) as engine:
            engine.add(documents(data, count, sentences))
            engine.optimize()
        with SearchEngine.open(path, Hashed()) as engine:
            modes = ("vector", "text", "hybrid")
            ways = {mode: lambda q, mode=mode: engine.search(q, mode=mode) for mode in modes}
            timed(ways, asked[:50])
            figures = timed(ways, asked[50 : 50 + questions])
    for name, figure in figures.items():
        click.echo(f"{name}: {figure}")
    record(f"word speed, {count} {'sentences' if sentences else 'abstracts'}", figures)


if __name__ == "__main__":
    main()
