"""The heaviest request of each kind, alone beside GET /healthz: latency, end, memory.

    python benchmarks/worst_request.py --work FOLDER [--documents 200000]

Real sentences with synthetic vectors under the starter encoder's name, and among them 20 documents
of 1 MB and one of 7 MB. One worker, with a time limit of 30 s. While a request runs, another client
asks /healthz every 10 ms. The memory is the server's peak minus what it had before the request.
"""

import http.client
import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import numpy as np
from encoding import mixed
from record import DATA, record
from serving import INDEX, serving
from synthetic import Synthetic

from searchengine import SearchEngine

LARGE = 20
LIMIT = 30


@click.command()
@DATA
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--documents", default=5_000, show_default=True)
@click.option("--only", help="The kinds with this text in their name.")
def main(data: Path, work: Path, documents: int, only: str | None) -> None:
    """Build the collection where that is still to do, and send each kind of request."""
    path = work / f"worst-{documents}.index"
    if not path.exists():
        build(path, data, documents)
    figures = {}
    with serving(path, "--timeout", LIMIT) as server:
        for name, target, body in kinds(data):
            if only is None or only in name:
                figures[name] = beside(server, target, body)
                click.echo(f"{name:28} {json.dumps(figures[name])}")
    record(f"worst request of {documents}", figures)


def build(path: Path, data: Path, documents: int) -> None:
    """The collection: sentences with metadata, and long documents among them."""
    texts = mixed(data, documents)
    draw = random.Random(0)
    long = [" ".join(draw.choices(texts, k=9_000))[:1_000_000] for _ in range(LARGE)]
    texts[: LARGE + 1] = [*long, "".join(long[:7])]
    vectors = np.concatenate([*Synthetic(dim=384).blocks(len(texts))])
    partial = path.with_name(f"partial-{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with SearchEngine.create(partial, "starter", INDEX, passages=False) as engine:
        rows = (
            {"_id": f"{i}", "title": text[:80], "text": text, "year": 1900 + i % 120}
            | {"tags": draw.sample("abcdefghijklmnopqrstuvwxyz", 8), "group": i % 1000}
            | ({"notes": long[i]} if i < LARGE else {})
            for i, text in enumerate(texts)
        )
        engine.add(rows, vectors)
    partial.rename(path)


def kinds(data: Path) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Name, path and body of each request: as heavy as the limits of the API allow."""
    words = [word for text in mixed(data, 3_000) for word in text.split()]
    question = " ".join(words[:10_000])[:9_900]
    several = [" ".join(words[i * 40 : i * 40 + 40]) for i in range(256)]
    collection = "/v1/collections/c"
    heavy = " or ".join(f"text like '%q{i}%z%'" for i in range(120))
    short = " or ".join(heavy.split(" or ")[:80])  # what an address may hold
    notes = heavy.replace("text", "notes")
    search, batch, similar = "/v1/search", "/v1/search/batch", "/v1/search/similar"
    yield "k 1000", search, {"query": "whales", "k": 1000}
    yield "k 1000, large", search, {"query": "the of and", "k": 1000, "mode": "text"}
    yield "offset", search, {"query": "whales", "k": 1000, "offset": 4000}
    yield "long question", search, {"query": question, "k": 1000}
    yield "long question, text", search, {"query": question, "k": 1000, "mode": "text"}
    yield "exact", search, {"query": "whales", "k": 1000, "exact": True}
    yield "facets", search, {"query": "whales", "k": 10, "facets": ["tags", "group", "year"]}
    yield "group_by", search, {"query": "whales", "k": 1000, "group_by": "group"}
    for mode in ("vector", "text", "hybrid"):
        body = {"queries": several[:100], "k": 10, "mode": mode}
        yield f"batch of 100, {mode}", batch, body
    yield "batch of 256", batch, {"queries": several, "k": 3}
    yield "batch of 256, k 100", batch, {"queries": several, "k": 100, "texts": False}
    yield "batch of 256, filter", batch, {"queries": several, "k": 3, "where": heavy}
    yield "heavy filter", search, {"query": "whales", "k": 10, "where": heavy}
    yield "heavy filter, metadata", search, {"query": "whales", "k": 10, "where": notes}
    yield "heavy filter, not", search, {"query": "whales", "k": 1000, "where": f"not ({heavy})"}
    yield "similar", similar, {"key": "20", "k": 1000}
    yield "count heavy", f"{collection}/count", {"query": "whales", "where": heavy}
    yield "count, metadata", f"{collection}/count", {"where": notes}
    yield "map", f"{collection}/map", {"query": "whales", "keys": [f"{i}" for i in range(100)]}
    for count, length in ((2048, 3000), (256, len(question))):
        texts = [f"{i} {question[:length]}" for i in range(count)]
        yield f"embeddings of {count} texts", "/v1/embeddings", {"model": "c", "input": texts}
    yield "get", f"{collection}/documents:get", {"keys": [f"{i}" for i in range(1000)]}
    yield "list", f"{collection}/documents?limit=1000", None
    yield "list, heavy", f"{collection}/documents?limit=1000&where={quote(short)}", None
    fields = dict.fromkeys(("tags", "group", "year"))
    yield "facets of all", f"{collection}/count", {"fields": fields}
    yield "stats", f"{collection}/stats", None
    yield "fields", f"{collection}/fields", None


def beside(server: serving, target: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """Send it; its status, seconds and bytes, /healthz beside it in ms, and memory in MB."""
    time.sleep(0.5)
    before, peak, ended = server.resident(), 0.0, threading.Event()
    took: list[float] = []

    def probe() -> None:
        nonlocal peak
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        while not ended.is_set() or len(took) < 20:
            begin = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            took.append(time.perf_counter() - begin)
            peak = max(peak, server.resident())
            time.sleep(0.01)

    thread = threading.Thread(target=probe)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    begin, size = time.perf_counter(), 0
    content = {"Content-Type": "application/json"}
    method = "GET" if body is None else "POST"
    connection.request(method, target, None if body is None else json.dumps(body), content)
    response = connection.getresponse()
    start = response.read(200)
    while block := response.read(1 << 20):
        size += len(block)
    seconds = time.perf_counter() - begin
    ended.set()
    thread.join()
    figures = {"status": response.status, "seconds": round(seconds, 2), "bytes": size + len(start)}
    if response.status != 200:
        figures["error"] = start.decode()[:100]
    latency = 1e3 * np.percentile(took, (99, 100))
    figures |= {"p99 ms": round(latency[0], 1), "max ms": round(latency[1], 1)}
    return figures | {"probes": len(took), "+ MB": round(peak - before)}


if __name__ == "__main__":
    main()
