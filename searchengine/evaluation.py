"""Retrieval quality on judged questions (BEIR layout); the metrics come from ir-measures."""

import re
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
from indexer.rerank import SearchResult, merge, rerank
from indexer.segment import Segment
from searchengine.corpus import Document
from searchengine.encoding import Vectors
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError, QueryError
from searchengine.lines import bad, kind, read_jsonl, read_lines, some_fields
from searchengine.snapshot import Snapshot

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
        if not text.strip():
            raise bad(place, "the question is blank")
        if key in queries:
            raise bad(place, f"the question {key!r:.80} occurs twice")
        queries[key] = text
    if not queries:
        raise bad(path, "no questions in it")
    return queries


def _query_records(path: Path) -> Iterator[tuple[str, str, str]]:
    if kind(path) in (".jsonl", ".ndjson"):
        for place, record in read_jsonl(path):
            if "_id" not in record:
                raise bad(place, f"no field '_id' (fields: {some_fields(record)})")
            asked = {"_id": record["_id"], "text": record.get("text")}
            question = Document.from_mapping(asked, origin=place)  # checks them
            yield place, question.key, question.text
    elif kind(path) == ".txt":
        for number, line in read_lines(path):
            if line.strip():
                yield f"{path}:{number}", str(number), line.strip()
    else:
        raise bad(path, "expected questions in a .jsonl or .txt file (.gz too)")


def read_qrels(path: str | Path) -> Qrels:
    """Question → document → grade: TSV with a header (BEIR), or TREC's four columns without."""
    path = Path(path)
    qrels: Qrels = {}
    for number, line in read_lines(path):
        cells = line.rstrip("\r\n").split("\t")
        cells = cells if len(cells) == 3 else line.split()
        if not cells or (number == 1 and not re.search(r"\d", cells[-1])):
            continue
        if len(cells) not in (3, 4) or not re.fullmatch(r"-?[0-9]{1,9}", cells[-1]):
            what = "expected query-id, corpus-id and a whole-number score"
            raise bad(f"{path}:{number}", f"{what}, got {line.strip()[:200]!r}")
        qrels.setdefault(cells[0], {})[cells[-2]] = int(cells[-1])
    if not qrels:
        raise bad(path, "no judgements in it")
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
    with engine.collection.reading() as snapshot:
        depth, exact = _exact(snapshot, vectors)
        exact_metrics = _measure(snapshot, judged, exact.rows, qrels)
        for dim in dims:
            if dim == engine.encoder.dim:
                yield RetrievalRow(dim, None, *exact_metrics, exact_metrics[0], 1.0)
                continue
            found, bare = _by_prefix(snapshot, vectors, dim, shortlist, depth)
            ndcg, recall_100 = _measure(snapshot, judged, found.rows, qrels)
            prefix_ndcg, _ = _measure(snapshot, judged, bare.rows, qrels)
            exact_recall = recall(found.rows[:, :10], exact.rows[:, :10])
            yield RetrievalRow(dim, shortlist, ndcg, recall_100, prefix_ndcg, exact_recall)


def _exact(snapshot: Snapshot, vectors: Vectors) -> tuple[int, SearchResult]:
    """So many passages, and the best of them, that each question has _DEPTH documents."""
    depth = _DEPTH
    while True:
        most = depth
        result = snapshot.merge(lambda _, segment, live: segment.exact(vectors, most, live), most)  # noqa: B023
        if not snapshot.cuts or depth >= snapshot.rows:
            return depth, result
        # A document may come by several of its passages, and counts once.
        found = (snapshot.store.passages(rows[rows >= 0]) for rows in result.rows)
        if all(len({passage.document for passage in some}) >= _DEPTH for some in found):
            return depth, result
        depth *= 4


def _by_prefix(
    snapshot: Snapshot, vectors: Vectors, dim: int, shortlist: int, depth: int
) -> tuple[SearchResult, SearchResult]:
    """The ranking of a prefix's shortlist at full width, and the ranking by the prefix alone."""
    config = SegmentConfig(prefix=dim, structure=Structure.FLAT, code=Code.FP32)
    two_stages, alone = [], []
    for row, segment in snapshot.segments.items():
        rotated = segment.rotate(vectors)
        coarse = CoarseIndex.build(segment.prefix_rows(dim), config)
        size = min(max(shortlist, depth), segment.rows)
        candidates = coarse.shortlist(rotated[:, :dim], size, snapshot.live[row])
        two_stages.append(segment.rerank(rotated, candidates[:, :shortlist], depth))
        by_prefix = rerank(_Prefixes(segment, dim), prefix(rotated, dim), candidates, depth)
        alone.append(by_prefix)
    bases = [row.base for row in snapshot.segments]
    return merge(two_stages, bases, depth), merge(alone, bases, depth)


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of a segment's rows, as the rows that `rerank` scores."""

    segment: Segment
    dim: int

    def take(self, rows: npt.NDArray[np.int64]) -> Vectors:
        full = self.segment.take(rows)
        return prefix(full.reshape(-1, full.shape[-1]), self.dim).reshape(*rows.shape, self.dim)


def _measure(
    snapshot: Snapshot, keys: Sequence[str], ids: npt.NDArray[np.int64], qrels: Qrels
) -> tuple[float, float]:
    """Mean nDCG@10 and recall@100 of ranked passage ids (q, depth), padded with −1."""
    found_keys = iter(snapshot.store.keys(ids[ids >= 0]))
    run: dict[str, dict[str, float]] = {}
    for key, row in zip(keys, ids, strict=True):
        ranked = dict.fromkeys(next(found_keys) for _ in range(int((row >= 0).sum())))
        # Ranks stand for scores, so that the library cannot break ties its own way.
        run[key] = {found: float(-rank) for rank, found in enumerate([*ranked][:_DEPTH])}
    ndcg, recall_100 = ir_measures.nDCG @ 10, ir_measures.R @ 100
    judged = {key: qrels[key] for key in keys}
    found = ir_measures.calc_aggregate([ndcg, recall_100], judged, run)
    return float(found[ndcg]), float(found[recall_100])


@dataclass(frozen=True, slots=True)
class Grid:
    """The operating points of a bench: every prefix with every shortlist, for the top k."""

    k: int
    prefixes: tuple[int, ...]
    shortlists: tuple[int, ...]

    def __len__(self) -> int:
        return 1 + len(self.prefixes) * len(self.shortlists)  # exact search comes first


def bench_grid(
    engine: SearchEngine,
    k: int = 10,
    prefixes: Sequence[int] = (),
    shortlists: Sequence[int] = (),
) -> Grid:
    """A grid that fits a collection; without prefixes or shortlists, the usual ones that do.

    k is cut to the number of passages. Raises QueryError when the collection is empty, a prefix
    is wider than the vectors, or a shortlist is below k or above the number of passages.
    """
    rows, dim = engine.stats().passages, engine.encoder.dim
    if not rows:
        raise QueryError(f"{engine.collection.path} is empty; index documents before measuring")
    k = min(k, rows)
    grid = Grid(
        k,
        tuple(prefixes) or tuple(p for p in (32, 64, 128, 256) if p < dim) or (dim,),
        tuple(shortlists) or tuple(s for s in (20, 50, 100, 200, 500) if k <= s <= rows) or (rows,),
    )
    for name, values, low, high in (
        ("k", [k], 1, rows),
        ("a prefix", grid.prefixes, 1, dim),
        ("a shortlist", grid.shortlists, k, rows),
    ):
        for value in values:
            if not low <= value <= high:
                raise QueryError(f"{name} must be between {low} and {high} here, got {value}")
    return grid


def bench(
    engine: SearchEngine,
    questions: Sequence[str],
    grid: Grid,
    on_row: Callable[[BenchRow], None] | None = None,
) -> list[BenchRow]:
    """Recall of the exact top k against latency, exact search first.

    Latency is that of one question at a time, its encoding left out.
    """
    vectors = engine.encoder.encode(questions, role="query")
    return sweep(
        list(engine.collection.segments.values()),
        vectors,
        k=grid.k,
        prefixes=grid.prefixes,
        shortlists=grid.shortlists,
        on_row=on_row,
    )


def bench_table(rows: Sequence[BenchRow]) -> list[dict[str, Any]]:
    """What a person compares: operating point, recall and latency."""
    columns = ("prefix", "shortlist", f"recall@{rows[0].k}", "p50_ms", "p95_ms")
    return [{name: row.as_dict()[name] for name in columns} for row in rows]
