"""nDCG@10 of exact search, and what a 64-dim shortlist of 100 finds of it, on SciFact and NFCorpus.

    python benchmarks/retrieval.py

Published nDCG@10 of all-MiniLM-L6-v2: 0.645 and 0.316 (MTEB results repository, commit f4cc6c8).
"""

import json
import tempfile
from pathlib import Path

import click
from record import DATA, record, run_json

from searchengine.evaluation import read_qrels, read_queries

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
                run_json("index", folder, collection, "--rotation", rotation, "--no-passages")
                rows = run_json(
                    *("evaluate", "retrieval", collection, "--prefixes", "384,256,128,64"),
                    *("--queries", folder / "queries.jsonl.gz"),
                    *("--qrels", folder / "qrels" / "test.tsv"),
                )
                points = run_json(
                    *("bench", collection, "--queries", test_questions(folder, Path(scratch))),
                    *("--prefixes", "32,64,128,256", "--shortlists", "10,20,50,100,200,500"),
                )
                figures[name][f"rotation {rotation}"] = {"evaluate": rows, "bench": points}
                for row in rows:
                    click.echo(f"{name} {rotation} {row}")
                point = next(p for p in points if (p["prefix"], p["shortlist"]) == (64, 100))
                click.echo(f"{name} {rotation} 64-dim shortlist of 100: {point}")
    record("retrieval", figures)


def test_questions(folder: Path, scratch: Path) -> Path:
    """The questions that the test judgements are about; the file of a set holds others too."""
    judged = read_qrels(folder / "qrels" / "test.tsv")
    queries = read_queries(folder / "queries.jsonl.gz")
    path = scratch / "questions.jsonl"
    lines = (json.dumps({"_id": key, "text": queries[key]}) for key in judged)
    path.write_text("\n".join(lines))
    return path


if __name__ == "__main__":
    main()
