"""Wall-clock seconds of a cold start: the command's answer, its help, and what it is compared with.

    python benchmarks/startup.py

`searchengine search` answers one question from a collection of SciFact's first 1,000 documents,
encoded by the starter; with --mode text it does all of that but load the encoder and encode.
sentence-transformers and txtai are timed for their import alone: that is the least they take before
they can load a model, let alone answer. All in turn, each in a fresh process; files that were read
once are in the system's cache. A minute for the collection, and three for 15 repeats on two cores.
"""

import gzip
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import click
from record import DATA, SEARCHENGINE, record, run_json, spread

QUESTION = "do statins lower cholesterol in old patients"
SEARCH = "searchengine search"
ANSWER = """
import sys
from searchengine import SearchEngine
with SearchEngine.open(sys.argv[1]) as engine:
    engine.search(sys.argv[2], 1)
"""
PEAK = 'print(next(line.split()[1] for line in open("/proc/self/status") if "VmHWM" in line))'
PEERS = ("sentence_transformers", "txtai")


@click.command()
@DATA
@click.option("--repeats", default=15, show_default=True)
@click.option("--documents", default=1000, show_default=True, help="How many to search in.")
def main(data: Path, repeats: int, documents: int) -> None:
    """Run each in turn, in fresh processes."""
    with tempfile.TemporaryDirectory() as scratch:
        collection = index_scifact(data, Path(scratch), documents)
        timed = commands(collection)
        times = measure(timed, repeats)
        peak = subprocess.check_output([*_python(ANSWER + PEAK), collection, QUESTION], text=True)
    figures = {}
    for name, found in times.items():
        ratios = [seconds / ours for seconds, ours in zip(found, times[SEARCH], strict=True)]
        figures[name] = {"seconds": spread(found), f"ratio to {SEARCH}": spread(ratios)}
        middle, ratio = spread(found)["median"], spread(ratios)["median"]
        click.echo(f"{name:32} {middle:7.3f} s {ratio:6.2f} × {SEARCH}")
    click.echo(f"{int(peak) / 1024:.0f} MiB at most, from the import to the first answer")
    record("startup", {**figures, "peak MiB": round(int(peak) / 1024)})


def index_scifact(data: Path, scratch: Path, documents: int) -> Path:
    """A collection of the first documents, with the default settings."""
    corpus, collection = scratch / "corpus.jsonl", scratch / "scifact.index"
    with gzip.open(data / "beir" / "scifact" / "corpus.jsonl.gz", "rb") as lines:
        corpus.write_bytes(b"".join(islice(lines, documents)))
    run_json("index", corpus, collection, "--encoder", "starter")
    return collection


def commands(collection: Path) -> dict[str, list[str]]:
    """What is timed, by name."""
    search = [SEARCHENGINE, "search", str(collection), QUESTION]
    timed = {
        SEARCH: search,
        f"{SEARCH} --mode text": [*search, "--mode", "text"],
        "import to first answer": [*_python(ANSWER), str(collection), QUESTION],
        "searchengine --help": [SEARCHENGINE, "--help"],
        "import searchengine": _python("import searchengine"),
        "import searchengine.engine": _python("import searchengine.engine"),
        "python -c pass": _python("pass"),
    }
    for peer in PEERS:
        if find_spec(peer):
            timed[f"import {peer}"] = _python(f"import {peer}")
        else:
            click.echo(f"{peer} is not installed; left out", err=True)
    return timed


def measure(timed: dict[str, list[str]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, in turn; the first round fills the system's cache and does not count."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for repeat in range(repeats + 1):
        for name, command in timed.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if repeat:
                times[name].append(time.perf_counter() - start)
    return times


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


if __name__ == "__main__":
    main()
