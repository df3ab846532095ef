"""Processor time of a question over HTTP, and in process: 16 connections against 16 threads.

    python benchmarks/serving.py --work FOLDER               # 200,000 documents
    python benchmarks/serving.py --work FOLDER --set scifact --mode text --connections 1
    python benchmarks/serving.py --work FOLDER --set scifact --mode text --scale 2
    python benchmarks/serving.py --work FOLDER --overload 60

Real questions (of SciFact, NFCorpus and Cranfield), none asked twice, by the starter encoder, in a
collection of real sentences with synthetic vectors: HNSW over a prefix of 128 of 384 dimensions.
Both ways open the same collection in a process of their own and take turns with other questions
each time. Processor time is that of the serving process alone: the client's is apart. The client
speaks HTTP/1.1 over raw sockets, keeps 16 connections open and asks one question at a time on each.

--set: the documents of a retrieval set with the starter encoder's vectors instead.

--scale: questions a second of one worker and of several, which take turns. Here the client sends
all questions of a connection at once and reads until it has all answers, so that it takes little
of the processor from the server.

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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
from encoding import mixed
from questions import real
from record import DATA, SEARCHENGINE, record, run_json, spread
from sides import SETTLE, Side, in_turn, percentiles, run
from synthetic import Synthetic

from searchengine import SearchEngine

CONNECTIONS = 16
K = 10
INDEX = {"structure": "hnsw", "code": "int8", "prefix": 128, "shortlist": 64}
WAYS = ("http", "threads")
LIMIT = 64
OK = b"HTTP/1.1 200 OK"


@click.command()
@DATA
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--documents", default=200_000, show_default=True)
@click.option("--set", "name", help="Retrieval set to take documents from.")
@click.option("--mode", default="auto", show_default=True)
@click.option("--connections", default=CONNECTIONS, show_default=True, help="And threads.")
@click.option("--questions", default=400, show_default=True, help="In a turn.")
@click.option("--turns", default=6, show_default=True)
@click.option("--scale", default=0, help="Compare this number of workers with one instead.")
@click.option("--overload", default=0.0, help="Seconds of overload instead.")
def main(
    data: Path,
    work: Path,
    documents: int,
    name: str | None,
    mode: str,
    connections: int,
    questions: int,
    turns: int,
    scale: int,
    overload: float,
) -> None:
    """Build the collection where that is still to do, ask in turns, and compare."""
    path = work / f"served-{name or documents}.index"
    if not path.exists():
        if name is None:
            build(path, data, documents)
        else:
            run_json(
                "index", data / "beir" / name / "corpus.jsonl.gz", path, "--encoder", "starter"
            )
    asked = real(data)
    about = {"documents": name or documents, "mode": mode, "connections": connections}
    if overload:
        figures = overloaded(path, asked, overload)
        click.echo(json.dumps(figures, indent=2))
        record("serving overload", figures)
        return
    if len(asked) < questions * (turns + 1):
        raise click.UsageError(f"there are {len(asked)} questions; take fewer in a turn")
    bodies = [{"query": question, "k": K, "mode": mode} for question in asked]
    if scale:
        figures = about | scaled(path, bodies, connections, scale, questions, turns)
    else:
        figures = about | in_turns(path, bodies, connections, questions, turns)
    click.echo(json.dumps(figures, indent=2))
    record(f"serving {mode}{f' by {scale}' if scale else ''}", figures)


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


def in_turns(
    path: Path, bodies: list[dict[str, Any]], connections: int, questions: int, turns: int
) -> dict[str, Any]:
    """Milliseconds of processor time a question, latencies and rates, by way."""
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    latencies: dict[str, list[float]] = {way: [] for way in WAYS}
    side = Side(__file__, path=str(path), connections=connections)
    with serving(path, connections=connections) as server, side:
        ask = {"http": server.ask, "threads": lambda some: side.ask(bodies=some)}
        for turn in range(turns + 1):
            some = bodies[turn * questions : (turn + 1) * questions]
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


def scaled(
    path: Path,
    bodies: list[dict[str, Any]],
    connections: int,
    workers: int,
    questions: int,
    turns: int,
) -> dict[str, Any]:
    """Questions a second by number of workers, and the ratio."""
    numbers = (1, workers)
    rates: dict[int, list[float]] = {number: [] for number in numbers}
    with ExitStack() as stack:
        servers = {
            number: stack.enter_context(serving(path, "--workers", number)) for number in numbers
        }
        for turn in range(turns + 1):
            some = bodies[turn * questions : (turn + 1) * questions]
            for number in numbers if turn % 2 else reversed(numbers):
                seconds = asyncio.run(flood(servers[number].port, some, connections))
                if turn:  # the first one warms
                    rates[number].append(len(some) / seconds)
    return {
        "questions/s": {number: spread(each) for number, each in rates.items()},
        "times one worker": spread([b / a for a, b in zip(*rates.values(), strict=True)]),
    }


async def flood(port: int, bodies: list[dict[str, Any]], connections: int) -> float:
    """Seconds until all are answered, where each connection sends its share at once."""

    async def connection(share: list[dict[str, Any]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines(map(request, share))
        answered, rest = 0, b""
        while answered < len(share):
            received = await reader.read(1 << 20)
            assert received, "the server has closed a connection"
            rest += received
            answered += rest.count(OK)
            rest = rest[1 - len(OK) :].replace(OK, b"")
        writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(connection(bodies[i::connections]) for i in range(connections)))
    return time.perf_counter() - begin


class serving:
    """`searchengine serve`, and a client of it."""

    def __init__(self, path: Path, *options: object, connections: int = CONNECTIONS) -> None:
        self.connections = connections
        command = [SEARCHENGINE, "serve", f"c={path}", "--port", 0, "--log", "none", *options]
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self) -> "serving":
        self.ask([{"query": "warm"}])
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def ask(self, bodies: list[dict[str, Any]]) -> tuple[float, float, list[float]]:
        """Seconds, processor seconds of the server, and the latency of each question."""
        time.sleep(SETTLE)
        used, begin = self.used(), time.perf_counter()
        took, statuses = asyncio.run(self._ask(bodies))
        assert set(statuses) == {200}, statuses
        return time.perf_counter() - begin, self.used() - used, took

    async def _ask(self, bodies: list[dict[str, Any]]) -> tuple[list[float], Counter[int]]:
        waiting, took, statuses = iter(bodies), [], Counter()

        async def connection() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            for body in waiting:
                begin = time.perf_counter()
                statuses[await post(reader, writer, body)] += 1
                took.append(time.perf_counter() - begin)
            writer.close()

        await asyncio.gather(*(connection() for _ in range(self.connections)))
        return took, statuses

    def used(self) -> float:
        """Processor seconds of the server so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Resident memory of the server, MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def request(body: dict[str, Any]) -> bytes:
    """The bytes of a question."""
    content = json.dumps(body).encode()
    return (
        b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
    )


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]
) -> int:
    """Ask a question; the status."""
    writer.write(request(body))
    answer = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", answer)
    assert length is not None
    await reader.readexactly(int(length[1]))
    return int(answer[9:12])


def overloaded(path: Path, asked: list[str], seconds: float) -> dict[str, Any]:
    """Statuses and memory under four times as many connections as may be under way."""
    bodies = [{"query": question, "k": K} for question in asked]
    with serving(path, "--max-requests", LIMIT) as server:
        server.ask(bodies[:400])
        before, resident = server.ask(bodies[:200])[2], server.resident()
        statuses, peak = asyncio.run(_overload(server, asked, seconds))
        end = time.perf_counter()
        while True:
            after = server.ask(bodies[:50])[2]
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
            statuses[await post(reader, writer, {"query": f"{asked[turn]} {turn}", "k": K})] += 1
        writer.close()

    async def watch() -> None:
        nonlocal peak
        while time.perf_counter() < end:
            peak = max(peak, server.resident())
            await asyncio.sleep(0.2)

    await asyncio.gather(watch(), *(connection(i) for i in range(4 * LIMIT)))
    return statuses, peak


def threads(path: str, connections: int) -> Any:
    """The other way: as many threads as connections that ask one engine in this process."""
    engine = SearchEngine.open(path)
    engine.warm()
    pool = ThreadPoolExecutor(connections)

    def timed(body: dict[str, Any]) -> float:
        begin = time.perf_counter()
        engine.search(**body).to_dicts()
        return time.perf_counter() - begin

    def answer(bodies: list[dict[str, Any]]) -> tuple[float, float, list[float]]:
        used, begin = time.process_time(), time.perf_counter()
        took = [*pool.map(timed, bodies)]
        return time.perf_counter() - begin, time.process_time() - used, took

    return answer, None


if __name__ == "__main__":
    run(main, threads)
