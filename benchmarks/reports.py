"""The reports in docs/reports: adaptive retrieval measured on three collections.

    python benchmarks/reports.py scifact                    # 5,183 abstracts, 300 judged questions
    python benchmarks/reports.py papers --work FOLDER       # 87,324 abstracts, titles as questions
    python benchmarks/reports.py synthetic --work FOLDER    # a million synthetic rows, 768 wide

Each writes docs/reports/<name>: report.html, which git ignores, its pictures and
results.json; and its section of benchmarks/results/<commit>.json. FOLDER keeps what was indexed
for the next time: the papers take a quarter of an hour to encode. Their titles are known-item
questions, and are not indexed. The synthetic rows are those of benchmarks/synthetic.py; exact
search over them takes a fifth of a second, so the grid is smaller.
"""

import gzip
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from record import DATA, REPOSITORY, SEARCHENGINE, record
from synthetic import Synthetic

ROWS, QUERIES = 1_000_000, 500
REPORTS = REPOSITORY / "docs" / "reports"
GRID = {
    "scifact": (),
    "papers": (),
    "synthetic": (
        *("--prefixes", "128,192", "--structures", "hnsw,ivf", "--shortlists", "20,50,100,200"),
        *("--no-baselines", "--repeats", "3"),
    ),
}


@click.command()
@click.argument("name", type=click.Choice(list(GRID)))
@DATA
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Kept for later.")
def main(name: str, data: Path, work: Path | None) -> None:
    """Index where that is still to do, measure, and write the report."""
    with folder(work) as place:
        arguments = {"scifact": scifact, "papers": papers, "synthetic": synthetic}[name](
            data, place
        )
        searchengine("bench", *arguments, *GRID[name], "--out", REPORTS / name)
    results = json.loads((REPORTS / name / "results.json").read_text())
    record(f"bench {name}", results)


@contextmanager
def folder(work: Path | None) -> Iterator[Path]:
    """Where to index: what is named, or a folder that is removed afterwards."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def searchengine(*arguments: str | Path) -> None:
    """Run a command, which shows its own progress."""
    subprocess.run([SEARCHENGINE, *map(str, arguments)], check=True)


def scifact(data: Path, place: Path) -> tuple[str | Path, ...]:
    """The collection and its test questions."""
    source, collection = data / "beir" / "scifact", place / "scifact.index"
    searchengine("index", source, collection, "--no-passages")
    return (
        *(collection, "--queries", source / "queries.jsonl.gz"),
        *("--qrels", source / "qrels" / "test.tsv"),
    )


def papers(data: Path, place: Path) -> tuple[str | Path, ...]:
    """The abstracts without their titles (some keys come twice), and 2,059 titles to ask for."""
    source, collection = data / "text", place / "papers.index"
    untitled = place / "papers.jsonl"
    with (
        gzip.open(source / "papers_title_abstract.jsonl.gz", "rt", encoding="utf-8") as lines,
        untitled.open("w", encoding="utf-8") as file,
    ):
        for line in lines:
            document = json.loads(line)
            del document["title"]
            file.write(json.dumps(document) + "\n")
    searchengine("index", untitled, collection, "--no-passages", "--skip-bad")
    return (
        *(collection, "--queries", source / "papers_test_queries.jsonl"),
        *("--qrels", source / "papers_test_qrels.tsv"),
    )


def synthetic(_: Path, place: Path) -> tuple[str | Path, ...]:
    """A file of rows, and one of queries."""
    rows, queries = place / "synthetic.npy", place / "queries.npy"
    source = Synthetic()
    if not queries.exists():
        file = np.lib.format.open_memmap(rows, "w+", np.float32, (ROWS, source.dim))
        start = 0
        for block in source.blocks(ROWS):
            file[start : start + len(block)] = block
            start += len(block)
        del file
        np.save(queries, source.queries(QUERIES))
    return "--vectors", rows, "--query-vectors", queries


if __name__ == "__main__":
    main()
