"""Retrieval quality on judged questions (BEIR layout); the metrics come from ir-measures."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.bench import recall
from searchengine.collection import best
from searchengine.corpus import read_jsonl, read_lines
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError

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
    vectors = engine.encoder.encode([queries[key] for key in judged], role="query")
    segments = engine.collection.segments
    full = engine.encoder.dim

    def rank(dim: int, width: int | None) -> npt.NDArray[np.int64]:
        """Passage ids (q, 100): the shortlist of a prefix, re-scored when `width` is given."""
        ids, scores = [], []
        for row, segment in segments.items():
            if dim == full:
                found = segment.exact(vectors, _DEPTH)
            else:
                with segment.with_prefix(dim) as view:
                    found = view.search(vectors, _DEPTH, shortlist=width)
            ids.append(np.where(found.rows < 0, -1, found.rows + row.base))
            scores.append(found.scores)
        return best(np.concatenate(ids, axis=1), np.concatenate(scores, axis=1), _DEPTH)[0]

    exact = rank(full, None)
    for dim in dims:
        found = exact if dim == full else rank(dim, shortlist)
        yield RetrievalRow(dim, None, 0, 0, 0, recall(found[:, :10], exact[:, :10]))


def _measure(qrels: Qrels, run: Mapping[str, Iterable[str]]) -> dict[str, float]:
    raise NotImplementedError
