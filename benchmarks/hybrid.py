"""nDCG@10 of search by meaning, by words, and by both, on SciFact, NFCorpus and Cranfield.

    python benchmarks/hybrid.py

Documents read whole, and cut into passages, by the starter encoder; meaning is exact search. What
`folder.lexical` and docs/searching.md take as defaults was chosen on the training questions of
SciFact and the development questions of NFCorpus (`--training`), not on those that are shown.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import click
import ir_measures
from record import DATA, record

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.measure.judgements import Qrels, read_qrels, read_queries
from searchengine.query.ranking import WINDOW
from searchengine.trainer.encoder import Encoder

SPLITS = {"scifact": ("train", "test"), "nfcorpus": ("dev", "test"), "cranfield": (None, "test")}


@click.command()
@DATA
@click.option("--training", is_flag=True, help="The questions that the defaults were chosen on.")
def main(data: Path, training: bool) -> None:
    """Rank each set's questions in four ways, of whole documents and of passages."""
    encoder = Encoder.load("starter")
    figures: dict[str, dict[str, float]] = {}
    for name, splits in SPLITS.items():
        split = splits[0 if training else 1]
        if split is None:
            continue
        for passages in (False, True):
            row = measure(encoder, data / "beir" / name, split, passages)
            title = f"{name} {split}, {'passages' if passages else 'whole'}"
            figures[title] = row
            click.echo(f"{title}: " + "  ".join(f"{way} {ndcg:.4f}" for way, ndcg in row.items()))
    record("hybrid training" if training else "hybrid", figures)


def measure(encoder: Encoder, folder: Path, split: str, passages: bool) -> dict[str, float]:
    """nDCG@10 by the way of ranking."""
    qrels = read_qrels(folder / "qrels" / f"{split}.tsv")
    judged = {
        key: text for key, text in read_queries(folder / "queries.jsonl.gz").items() if key in qrels
    }
    questions = list(judged.values())
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "c"
        with SearchEngine.create(path, encoder, passages=passages) as engine:
            # Cranfield has two empty documents.
            engine.add(read_corpus(folder, on_bad=lambda _: None))
            near = _keys(engine.search_batch(questions, WINDOW, exact=True))
            worded = _keys(engine.search_batch(questions, WINDOW, mode="text"))
            both = _keys(engine.search_batch(questions, 10, mode="hybrid"))
    fused = [_by_rank(*pair) for pair in zip(near, worded, strict=True)]
    ways = {"vector": near, "text": worded, "reciprocal rank": fused, "hybrid": both}
    return {way: ndcg(list(judged), ranked, qrels) for way, ranked in ways.items()}


def _keys(hits: Sequence[Sequence[object]]) -> list[list[str]]:
    return [[hit.key for hit in some] for some in hits]  # type: ignore[attr-defined]


def _by_rank(*rankings: Sequence[str]) -> list[str]:
    """Reciprocal rank fusion of keys (Cormack, Clarke and Büttcher 2009), ties by key."""
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            scores[key] += 1 / (60 + rank)
    return sorted(scores, key=lambda key: (-scores[key], key))


def ndcg(keys: Sequence[str], ranked: Sequence[Sequence[str]], qrels: Qrels) -> float:
    """Mean nDCG@10 over the questions, of documents best first."""
    run = {
        key: {document: -float(rank) for rank, document in enumerate(found[:10])}
        for key, found in zip(keys, ranked, strict=True)
    }
    measured = ir_measures.nDCG @ 10
    judged = {key: qrels[key] for key in keys}
    return float(ir_measures.calc_aggregate([measured], judged, run)[measured])


if __name__ == "__main__":
    main()
