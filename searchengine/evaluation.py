"""Retrieval quality on judged questions (BEIR layout); the metrics come from ir-measures."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.bench import BenchRow, recall, sweep
from indexer.coarse import CoarseIndex
from indexer.config import Code, SegmentConfig, Structure
from indexer.prefix import prefix
from indexer.rerank import SearchResult, rerank
from indexer.segment import Segment
from searchengine.corpus import read_jsonl, read_lines
from searchengine.engine import SearchEngine, Vectors
from searchengine.errors import CorpusError, QueryError
from searchengine.store import SegmentRow

try:
    import ir_measures
except ModuleNotFoundError as error:
    raise ImportError(
        "ir-measures is not installed: pip install 'searchengine[eval]' to evaluate retrieval"
    ) from error

Qrels = dict[str, dict[str, int]]
_DEPTH = 100  # ranks kept, for recall@100


@dataclass(frozen=True, slots=True)
class RetrievalRow:
    """Quality with one prefix length for the shortlist and full width for the ranking.

    `shortlist` is None at full width, which is exact search. `prefix_ndcg_10` ranks by the prefix
    alone; `exact_recall_10` is the share of the exact top 10 that the two stages find.
    """

    dim: int
    shortlist: int | None
    ndcg_10: float
    recall_100: float
    prefix_ndcg_10: float
    exact_recall_10: float

    def as_dict(self) -> dict[str, Any]:
        """The row under the metrics' own names."""
        return {
            "dim": self.dim,
            "shortlist": self.shortlist,
            "ndcg@10": self.ndcg_10,
            "recall@100": self.recall_100,
            "prefix_ndcg@10": self.prefix_ndcg_10,
            "exact_recall@10": self.exact_recall_10,
        }


def read_queries(path: str | Path) -> dict[str, str]:
    """Key → question: a .jsonl(.gz) of `_id` and `text`, or a text file of one question a line."""
    path = Path(path)
    queries: dict[str, str] = {}
    for place, key, text in _query_records(path):
        if not isinstance(text, str) or not text.strip():
            raise CorpusError(f"{place}: the question is blank or no text")
        if key in queries:
            raise CorpusError(f"{place}: the question {key!r} occurs twice")
        queries[key] = text
    if not queries:
        raise CorpusError(f"{path}: no questions in it")
    return queries


def _query_records(path: Path) -> Iterator[tuple[str, str, Any]]:
    if ".jsonl" in path.suffixes:
        for place, record in read_jsonl(path):
            if "_id" not in record:
                raise CorpusError(f"{place}: no field '_id' (fields: {', '.join(record)})")
            yield place, str(record["_id"]), record.get("text")
    else:
        for number, line in read_lines(path):
            if line.strip():
                yield f"{path}:{number}", str(number), line.strip()


def read_qrels(path: str | Path) -> Qrels:
    """Question → document → grade: TSV with a header (BEIR), or TREC's four columns without."""
    path = Path(path)
    qrels: Qrels = {}
    for number, line in read_lines(path):
        cells = next(csv.reader([line.rstrip("\r\n")], delimiter="\t", quoting=csv.QUOTE_NONE), [])
        cells = cells if len(cells) == 3 else line.split()
        if not cells or (number == 1 and not cells[-1].lstrip("-").isdigit()):
            continue
        if len(cells) not in (3, 4) or not cells[-1].lstrip("-").isdigit():
            raise CorpusError(
                f"{path}:{number}: expected query-id, corpus-id and a whole-number score, "
                f"got {line.strip()!r}"
            )
        qrels.setdefault(cells[0], {})[cells[-2]] = int(cells[-1])
    if not qrels:
        raise CorpusError(f"{path}: no judgements in it")
    return qrels


def default_dims(engine: SearchEngine) -> tuple[int, ...]:
    """The prefix lengths the encoder was trained for; halves down to 32 where it names none."""
    dim = engine.encoder.dim
    trained: tuple[int, ...] = getattr(engine.encoder, "matryoshka_dims", ())
    if len(trained) > 1:
        return trained
    return (dim, *(width for width in (512, 256, 128, 64, 32) if width < dim))


def retrieval(
    engine: SearchEngine,
    queries: Mapping[str, str],
    qrels: Qrels,
    dims: Sequence[int],
    shortlist: int = 100,
) -> Iterator[RetrievalRow]:
    """One row for each prefix length, over the questions that have judgements.

    The shortlist is drawn by the exact ranking of the prefix, whatever structure the collection
    has, so that the rows tell of the encoder and not of the index. Raises CorpusError when no
    question is judged.
    """
    judged = [key for key in queries if key in qrels]
    if not judged:
        raise CorpusError("no question has a judgement; are the two files of one data set?")
    for dim in dims:
        if not 1 <= dim <= engine.encoder.dim:
            raise QueryError(f"a prefix must be between 1 and {engine.encoder.dim}, got {dim}")
    vectors = engine.encoder.encode([queries[key] for key in judged], role="query")
    collection = engine.collection
    exact = collection.merge(lambda _, segment: segment.exact(vectors, _DEPTH), _DEPTH)
    exact_metrics = _measure(engine, judged, exact.rows, qrels)
    for dim in dims:
        if dim == engine.encoder.dim:
            yield RetrievalRow(dim, None, *exact_metrics, exact_metrics[0], 1.0)
            continue
        found, bare = _by_prefix(engine, vectors, dim, shortlist)
        ndcg, recall_100 = _measure(engine, judged, found.rows, qrels)
        prefix_ndcg, _ = _measure(engine, judged, bare.rows, qrels)
        exact_recall = recall(found.rows[:, :10], exact.rows[:, :10])
        yield RetrievalRow(dim, shortlist, ndcg, recall_100, prefix_ndcg, exact_recall)


def _by_prefix(
    engine: SearchEngine, vectors: Vectors, dim: int, shortlist: int
) -> tuple[SearchResult, SearchResult]:
    """The ranking of a prefix's shortlist at full width, and the ranking by the prefix alone."""
    config = SegmentConfig(prefix=dim, structure=Structure.FLAT, code=Code.FP32)
    two_stages: list[SearchResult] = []

    def bare(_: SegmentRow, segment: Segment) -> SearchResult:
        rotated = segment.rotate(vectors)
        coarse = CoarseIndex.build(segment.prefix_rows(dim), config)
        candidates = coarse.shortlist(rotated[:, :dim], max(shortlist, _DEPTH))
        two_stages.append(segment.rerank(rotated, candidates[:, :shortlist], _DEPTH))
        return rerank(_Prefixes(segment, dim), prefix(rotated, dim), candidates, _DEPTH)

    alone = engine.collection.merge(bare, _DEPTH)
    ready = iter(two_stages)
    return engine.collection.merge(lambda *_: next(ready), _DEPTH), alone


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of a segment's rows, as the rows that `rerank` scores."""

    segment: Segment
    dim: int

    def take(self, rows: npt.NDArray[np.int64]) -> Vectors:
        full = self.segment.take(rows)
        return prefix(full.reshape(-1, full.shape[-1]), self.dim).reshape(*rows.shape, self.dim)


def _measure(
    engine: SearchEngine, keys: Sequence[str], ids: npt.NDArray[np.int64], qrels: Qrels
) -> tuple[float, float]:
    """Mean nDCG@10 and recall@100 of ranked passage ids (q, depth), padded with −1."""
    documents = iter(engine.collection.store.documents(ids[ids >= 0]))
    # Ranks stand for scores, so that the library cannot break ties its own way.
    run = {
        key: {next(documents).key: float(-rank) for rank in range(int((row >= 0).sum()))}
        for key, row in zip(keys, ids, strict=True)
    }
    ndcg, recall_100 = ir_measures.nDCG @ 10, ir_measures.R @ 100
    judged = {key: qrels[key] for key in keys}
    found = ir_measures.calc_aggregate([ndcg, recall_100], judged, run)
    return float(found[ndcg]), float(found[recall_100])


def bench(
    engine: SearchEngine,
    questions: Sequence[str],
    k: int,
    prefixes: Sequence[int],
    shortlists: Sequence[int],
    on_row: Callable[[BenchRow], None] | None = None,
) -> list[BenchRow]:
    """Recall of the exact top k against latency, for prefix lengths × shortlist sizes.

    The first row is exact search. Latency is that of one question at a time, its encoding left
    out. Raises QueryError when the collection is empty.
    """
    if not engine.collection.segments:
        raise QueryError(f"{engine.collection.path} is empty; index documents before measuring")
    vectors = engine.encoder.encode(questions, role="query")
    segments = list(engine.collection.segments.values())
    return sweep(segments, vectors, k=k, prefixes=prefixes, shortlists=shortlists, on_row=on_row)
