"""nDCG@10 of exact search, and what a 64-dim shortlist of 100 finds of it, on SciFact and NFCorpus.

    python benchmarks/retrieval.py

Published nDCG@10 of all-MiniLM-L6-v2: 0.645 and 0.316 (MTEB results repository, commit f4cc6c8).
"""

import tempfile
from pathlib import Path

import click
from record import DATA, record, run_json

SETS = {"scifact": 0.645, "nfcorpus": 0.316}


@click.command()
@DATA
def main(data: Path) -> None:
    """Index each set twice, with and without rotation, and evaluate on its test questions."""
    figures = {}
    for name, published in SETS.items():
        folder = data / "beir" / name
        with tempfile.TemporaryDirectory() as scratch:
            figures[name] = {"published ndcg@10": published}
            for rotation in ("pca", "identity"):
                collection = Path(scratch) / f"{name}.{rotation}"
                run_json("index", folder, collection, "--rotation", rotation)
                rows = run_json(
                    *("evaluate", "retrieval", collection, "--prefixes", "384,256,128,64"),
                    *("--queries", folder / "queries.jsonl.gz"),
                    *("--qrels", folder / "qrels" / "test.tsv"),
                )
                figures[name][f"rotation {rotation}"] = rows
                for row in rows:
                    click.echo(f"{name} {rotation} {row}")
    record("retrieval", figures)


if __name__ == "__main__":
    main()
