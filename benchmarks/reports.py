"""The report in docs/reports: adaptive retrieval measured on SciFact.

    python benchmarks/reports.py    # 5,183 abstracts, 300 judged questions; some minutes

Writes docs/reports/scifact: report.html, which git ignores, its pictures and results.json; and its
section of benchmarks/results/<commit>.json.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import click
from record import DATA, REPOSITORY, SEARCHENGINE, record

REPORT = REPOSITORY / "docs" / "reports" / "scifact"


@click.command()
@DATA
def main(data: Path) -> None:
    """Index, measure, and write the report."""
    source = data / "beir" / "scifact"
    with tempfile.TemporaryDirectory() as place:
        collection = Path(place) / "scifact.index"
        searchengine("index", source, collection, "--no-passages")
        judged = "--queries", source / "queries.jsonl.gz", "--qrels", source / "qrels" / "test.tsv"
        searchengine("bench", collection, *judged, "--out", REPORT)
    record("bench scifact", json.loads((REPORT / "results.json").read_text()))


def searchengine(*arguments: str | Path) -> None:
    """Run a command, which shows its own progress."""
    subprocess.run([SEARCHENGINE, *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
