"""nDCG@10 of search by meaning, by words, and by both, on SciFact, NFCorpus and Cranfield.

    python benchmarks/hybrid.py

The starter encoder reads a document whole, nearest by exact cosine; words are SQLite's BM25. What
`searchengine.lexical` and docs/hybrid.md take as defaults was chosen on the training questions of
SciFact and the development questions of NFCorpus (`--training`), not on those that are shown.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import ir_measures
import numpy as np
from record import DATA, record

from searchengine.corpus import read_corpus
from searchengine.evaluation import Qrels, read_qrels, read_queries
from searchengine.lexical import Scored, Tokenizer, create, reciprocal_rank, search, weighted
from trainer.encoder import Encoder

DEPTH = 100  # documents of each ranking that are fused
SPLITS = {"scifact": ("train", "test"), "nfcorpus": ("dev", "test"), "cranfield": (None, "test")}
FUSIONS: Mapping[str, Callable[[Scored, Scored], Scored]] = {
    "vector": lambda vector, _: vector,
    "text": lambda _, text: text,
    "reciprocal rank": lambda vector, text: reciprocal_rank([_ids(vector), _ids(text)]),
    "weighted": lambda vector, text: weighted([vector, text], [0.5, 0.5]),
}


@click.command()
@DATA
@click.option("--training", is_flag=True, help="The questions that the defaults were chosen on.")
def main(data: Path, training: bool) -> None:
    """Rank each set's questions in four ways and measure them."""
    encoder = Encoder.load("starter")
    figures: dict[str, dict[str, float]] = {}
    for name, splits in SPLITS.items():
        split = splits[0 if training else 1]
        if split is None:
            continue
        figures[f"{name} {split}"] = row = measure(encoder, data / "beir" / name, split)
        click.echo(f"{name} {split} " + "  ".join(f"{way} {ndcg:.4f}" for way, ndcg in row.items()))
    record("hybrid training" if training else "hybrid", figures)


def measure(encoder: Encoder, folder: Path, split: str) -> dict[str, float]:
    """nDCG@10 by the way of ranking."""
    documents = list(read_corpus(folder, on_bad=lambda _: None))  # Cranfield has two empty ones
    keys = [document.key for document in documents]
    qrels = read_qrels(folder / "qrels" / f"{split}.tsv")
    queries = {key: text for key, text in read_queries(_queries(folder)).items() if key in qrels}
    rows = encoder.encode([document.full_text for document in documents], role="document")
    questions = encoder.encode(list(queries.values()), role="query")
    near = [_nearest(cosines) for cosines in questions @ rows.T]

    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, title TEXT, text TEXT)")
    texts = ((i, document.title, document.text) for i, document in enumerate(documents))
    connection.executemany("INSERT INTO documents VALUES (?, ?, ?)", texts)
    create(connection, Tokenizer.PORTER)
    worded = [
        search(lambda sql, values: connection.execute(sql, values).fetchall(), question, DEPTH)
        for question in queries.values()
    ]
    connection.close()
    figures = {}
    for way, fuse in FUSIONS.items():
        ranked = [_ids(fuse(*pair))[:10] for pair in zip(near, worded, strict=True)]
        figures[way] = ndcg(list(queries), [[keys[i] for i in ids] for ids in ranked], qrels)
    return figures


def ndcg(asked: Sequence[str], ranked: Sequence[Sequence[str]], qrels: Qrels) -> float:
    """Mean nDCG@10 over the questions, of documents best first."""
    run = {
        key: {document: -float(rank) for rank, document in enumerate(found)}
        for key, found in zip(asked, ranked, strict=True)
    }
    measured = ir_measures.nDCG @ 10
    judged = {key: qrels[key] for key in asked}
    return float(ir_measures.calc_aggregate([measured], judged, run)[measured])


def _nearest(cosines: np.ndarray) -> Scored:
    best = np.argsort(-cosines, kind="stable")[:DEPTH]
    return [(int(i), float(cosines[i])) for i in best]


def _ids(scored: Scored) -> list[int]:
    return [i for i, _ in scored]


def _queries(folder: Path) -> Path:
    return folder / "queries.jsonl.gz"


if __name__ == "__main__":
    main()
