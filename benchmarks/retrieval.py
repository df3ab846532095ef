"""Retrieval quality on SciFact, NFCorpus and Cranfield: by vectors, by words, and by both.

    python benchmarks/retrieval.py

nDCG@10, recall@100, MRR@10 and MAP of exact search with all-MiniLM-L6-v2, of prefixes with a
shortlist, of the collection as it is configured, of BM25 alone and of both fused, each with its
95 % interval and its p-value against exact search; and of a prefix that is not rotated. Whole
documents, test questions. Ten minutes on two cores, most of them to encode; `--built DIR` keeps
the collections for the next time.

Published nDCG@10 of all-MiniLM-L6-v2: 0.645 and 0.316 (MTEB results repository, commit f4cc6c8). Of
BM25: 0.665 and 0.325 with title and text as fields of their own (BEIR, Thakur et al. 2021), 0.679
and 0.322 as one (Pyserini), both with stems, k1 = 0.9 and b = 0.4. Ours has stems, k1 = 1.2,
b = 0.75, and counts words of titles twice.
"""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from record import DATA, record, run_json

PUBLISHED = {
    "scifact": {"exact": 0.645, "text": 0.679},
    "nfcorpus": {"exact": 0.316, "text": 0.322},
    "cranfield": {},
}
MODES = ("--mode", "vector,text,hybrid", "--prefixes", "256,128,64,32")


@click.command()
@DATA
@click.option(
    "--built",
    "kept",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the collections; those that are there are used [default: a temporary folder].",
)
def main(data: Path, kept: Path | None) -> None:
    """Index each set, and evaluate on its test questions."""
    figures: dict[str, Any] = {}
    for name, published in PUBLISHED.items():
        folder = data / "beir" / name
        with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as place:
            rows = evaluated(folder, Path(place) / f"{name}.index", *MODES)
            bare = Path(place) / f"{name}-bare.index"
            unrotated = evaluated(folder, bare, "--prefixes", "64", rotation="identity")
        figures[name] = {"published ndcg@10": published, "rows": rows, "not rotated": unrotated}
        for row in rows:
            click.echo(f"{name} {shown(row)}")
        for row in unrotated:
            click.echo(f"{name} not rotated {shown(row)}")
    record("retrieval", figures)


def evaluated(folder: Path, collection: Path, *how: str, rotation: str = "pca") -> list[Any]:
    """The rows of a collection, which is made if it is not there."""
    if not collection.exists():
        run_json("index", folder, collection, "--no-passages", "--set", f"rotation={rotation}")
    rows: list[Any] = run_json("evaluate", "retrieval", collection, "--beir", folder, *how)
    return rows


def shown(row: dict[str, Any]) -> str:
    """A row as a line."""
    low, high = row["intervals"]["ndcg@10"]
    line = f"{row['setting']:<10} ndcg@10 {row['ndcg@10']:.4f} ({low:.3f}–{high:.3f})"
    line += "".join(f"  {name} {row[name]:.4f}" for name in ("recall@100", "mrr@10", "map"))
    if row["p"] is None:
        return line
    return f"{line}  {row['difference']:+.4f} p {row['p']:.4f}"


if __name__ == "__main__":
    main()
