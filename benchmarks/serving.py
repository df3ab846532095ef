"""Processor time of a question over HTTP, and in process: 16 connections against 16 threads.

    python benchmarks/serving.py --work FOLDER               # 200,000 documents
    python benchmarks/serving.py --work FOLDER --overload 60

Real questions (of SciFact, NFCorpus and Cranfield), none asked twice, by the starter encoder, in a
collection of real sentences with synthetic vectors: HNSW over a prefix of 128 of 384 dimensions.
Both ways open the same collection in a process of their own and take turns with other questions
each time. Processor time is that of the serving process alone: the client's is apart. The client
speaks HTTP/1.1 over raw sockets, keeps 16 connections open and asks one question at a time on each.

--overload: open connections four times as many as requests may be under way, all of which ask
again at once, for this many seconds; then the latency afterwards.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
from encoding import mixed
from questions import real
from record import DATA, SEARCHENGINE, record, spread
from sides import SETTLE, Side, in_turn, percentiles, run
from synthetic import Synthetic

from searchengine import SearchEngine

CONNECTIONS = 16
K = 10
INDEX = {"structure": "hnsw", "code": "int8", "prefix": 128, "shortlist": 64}
WAYS = ("http", "threads")
LIMIT = 64


@click.command()
@DATA
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--documents", default=200_000, show_default=True)
@click.option("--questions", default=400, show_default=True, help="In a turn.")
@click.option("--turns", default=6, show_default=True)
@click.option("--overload", default=0.0, help="Seconds of overload instead.")
def main(
    data: Path, work: Path, documents: int, questions: int, turns: int, overload: float
) -> None:
    """Build the collection where that is still to do, ask in turns, and compare."""
    path = work / f"served-{documents}.index"
    if not path.exists():
        build(path, data, documents)
    asked = real(data)
    if overload:
        figures = overloaded(path, asked, overload)
        click.echo(json.dumps(figures, indent=2))
        record("serving overload", figures)
        return
    if len(asked) < questions * (turns + 1):
        raise click.UsageError(f"there are {len(asked)} questions; take fewer in a turn")
    figures = {"documents": documents, **in_turns(path, asked, questions, turns)}
    click.echo(json.dumps(figures, indent=2))
    record("serving", figures)


def build(path: Path, data: Path, documents: int) -> None:
    """A collection of real sentences with synthetic vectors, by the starter encoder's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = mixed(data, documents)
    vectors = np.concatenate([*Synthetic(dim=384).blocks(len(texts))])
    partial = path.with_name(f"partial-{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    with SearchEngine.create(partial, "starter", INDEX, passages=False) as engine:
        engine.add(({"_id": f"{i}", "text": text} for i, text in enumerate(texts)), vectors)
    partial.rename(path)


def in_turns(path: Path, asked: list[str], questions: int, turns: int) -> dict[str, Any]:
    """Milliseconds of processor time a question, latencies and rates, by way."""
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    latencies: dict[str, list[float]] = {way: [] for way in WAYS}
    with serving(path) as server, Side(__file__, path=str(path)) as side:
        ask = {"http": server.ask, "threads": lambda some: side.ask(questions=some)}
        for turn in range(turns + 1):
            some = asked[turn * questions : (turn + 1) * questions]
            for way in in_turn(WAYS, turn):
                seconds, used, took = ask[way](some)
                if turn:  # the first one warms
                    cpu[way].append(1e3 * used / len(some))
                    rates[way].append(len(some) / seconds)
                    latencies[way] += took
    ratios = [ours / theirs for ours, theirs in zip(cpu["http"], cpu["threads"], strict=True)]
    return {
        "processor ms a question": {way: spread(each) for way, each in cpu.items()},
        "http, times threads": spread(ratios),
        "questions/s": {way: spread(each) for way, each in rates.items()},
        "latency": {way: percentiles(each) for way, each in latencies.items()},
    }


class serving:
    """`searchengine serve`, and a client of it."""

    def __init__(self, path: Path, *options: object) -> None:
        command = [SEARCHENGINE, "serve", f"c={path}", "--port", 0, "--log", "none", *options]
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self) -> "serving":
        self.ask(["warm"])
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def ask(self, questions: list[str]) -> tuple[float, float, list[float]]:
        """Seconds, processor seconds of the server, and the latency of each question."""
        time.sleep(SETTLE)
        used, begin = self.used(), time.perf_counter()
        took, statuses = asyncio.run(self._ask(questions))
        assert set(statuses) == {200}, statuses
        return time.perf_counter() - begin, self.used() - used, took

    async def _ask(self, questions: list[str]) -> tuple[list[float], Counter[int]]:
        waiting, took, statuses = iter(questions), [], Counter()

        async def connection() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            for question in waiting:
                begin = time.perf_counter()
                statuses[await post(reader, writer, question)] += 1
                took.append(time.perf_counter() - begin)
            writer.close()

        await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
        return took, statuses

    def used(self) -> float:
        """Processor seconds of the server so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Resident memory of the server, MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: str) -> int:
    """Ask a question; the status."""
    body = json.dumps({"query": question, "k": K}).encode()
    head = (
        "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", answer)
    assert length is not None
    await reader.readexactly(int(length[1]))
    return int(answer[9:12])


def overloaded(path: Path, asked: list[str], seconds: float) -> dict[str, Any]:
    """Statuses and memory under four times as many connections as may be under way."""
    with serving(path, "--max-requests", LIMIT) as server:
        server.ask(asked[:400])
        before, resident = server.ask(asked[:200])[2], server.resident()
        statuses, peak = asyncio.run(_overload(server, asked, seconds))
        end = time.perf_counter()
        while True:
            after = server.ask(asked[:50])[2]
            if np.median(after) < 1.5 * np.median(before) or time.perf_counter() > end + 10:
                break
        return {
            "seconds": seconds,
            "connections": 4 * LIMIT,
            "statuses": dict(statuses),
            "resident MB before": resident,
            "peak MB": peak,
            "p50 ms before": 1e3 * float(np.median(before)),
            "seconds until back to normal": time.perf_counter() - end,
        }


async def _overload(
    server: serving, asked: list[str], seconds: float
) -> tuple[Counter[int], float]:
    end, statuses, peak = time.perf_counter() + seconds, Counter[int](), 0.0

    async def connection(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        turn = number
        while time.perf_counter() < end:
            turn = (turn + 4 * LIMIT) % len(asked)
            statuses[await post(reader, writer, f"{asked[turn]} {turn}")] += 1
        writer.close()

    async def watch() -> None:
        nonlocal peak
        while time.perf_counter() < end:
            peak = max(peak, server.resident())
            await asyncio.sleep(0.2)

    await asyncio.gather(watch(), *(connection(i) for i in range(4 * LIMIT)))
    return statuses, peak


def threads(path: str) -> Any:
    """The other way: 16 threads that ask one engine in this process."""
    engine = SearchEngine.open(path)
    engine.warm()
    pool = ThreadPoolExecutor(CONNECTIONS)

    def timed(question: str) -> float:
        begin = time.perf_counter()
        engine.search(question, K).to_dicts()
        return time.perf_counter() - begin

    def answer(questions: list[str]) -> tuple[float, float, list[float]]:
        used, begin = time.process_time(), time.perf_counter()
        took = [*pool.map(timed, questions)]
        return time.perf_counter() - begin, time.process_time() - used, took

    return answer, None


if __name__ == "__main__":
    run(main, threads)
