"""The data of a bench: rows of a collection or of a file, and queries."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from searchengine.engine import SearchEngine, Snapshot
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Doubles, Floats, RowNumbers, evenly, unit_rows
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.points import milliseconds_alone
from searchengine.measure.judgements import Task
from searchengine.measure.results import Spread
from searchengine.measure.retrieval import ndcg_10, task
from searchengine.trainer.evaluation.ranking import Qrels

MAX_QUERIES = 1000
"""Maximum number of queries; of more, an even sample is searched."""
SELF_QUERIES = 500
"""Maximum number of rows used as queries if there are none; at most a tenth of the rows."""
_BLOCK = 1 << 14  # rows read at a time

Judge = Callable[[Iterable[RowNumbers]], Doubles]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Segments that are searched together, and the queries.

    Attributes:
        name: name of the collection or file.
        segments: the segments to search.
        live: per segment the rows that may be returned; None: all.
        queries: float32 (q, D).
        encoder: source of the encoder of the queries; None for bare vectors.
        encode_ms: milliseconds to encode one question.
        judge: function from rankings, deeper and deeper, of rows (q, k) numbered through the
            segments, to the nDCG@10 of every query, by documents. None without judgements.
        judged: number of queries with judgements.
        notes: sentences about questions that were left out, and the like.
        mode: the mode of a search of the collection that names none; None for bare vectors.
    """

    name: str
    segments: tuple[Segment, ...]
    live: tuple[Allowed | None, ...]
    queries: Floats
    encoder: str | None = None
    encode_ms: Spread | None = None
    judge: Judge | None = None
    judged: int = 0
    notes: tuple[str, ...] = ()
    mode: str | None = None

    @property
    def rows(self) -> int:
        """Number of rows that may be returned."""
        pairs = zip(self.segments, self.live, strict=True)
        return sum(segment.rows if live is None else live.size for segment, live in pairs)

    def live_numbers(self) -> RowNumbers:
        """The rows that may be returned, numbered through the segments, ascending."""
        parts, start = [], 0
        for segment, live in zip(self.segments, self.live, strict=True):
            parts.append(start + (np.arange(segment.rows) if live is None else live.rows))
            start += segment.rows
        return np.concatenate(parts)

    def unrotated(self) -> Iterator[Floats]:
        """The same rows without rotation, as the encoder gave them, in blocks (n, D) float32."""
        for segment, live in zip(self.segments, self.live, strict=True):
            rows = np.arange(segment.rows) if live is None else live.rows
            for start in range(0, len(rows), _BLOCK):
                yield segment.vectors(rows[start : start + _BLOCK])


@contextmanager
def collection_dataset(
    engine: SearchEngine, questions: Mapping[str, str], qrels: Qrels | None = None
) -> Iterator[Dataset]:
    """The rows of a collection, open for a block. With `qrels`, only judged questions are queries.

    Raises QueryError if the collection is empty, CorpusError if no question is judged.
    """
    judged = None if qrels is None else task(engine, questions, qrels)
    if judged is not None:
        questions = judged.queries
    keys = list(questions)
    keys = [keys[i] for i in evenly(len(keys), MAX_QUERIES)]
    if judged is not None:
        judged = replace(judged, queries={key: questions[key] for key in keys})
    with engine.reading() as snapshot:
        if not snapshot.rows:
            raise QueryError(f"{engine.collection.path} is empty; add documents before measuring")
        texts = [questions[key] for key in keys]
        yield Dataset(
            engine.folder.path.name,
            tuple(snapshot.segments.values()),
            tuple(snapshot.live[row] for row in snapshot.segments),
            np.asarray(engine.encoder.encode(texts, role="query"), np.float32),
            str(snapshot.settings["encoder"]["source"]),
            Spread.from_values(
                milliseconds_alone(partial(engine.encoder.encode, role="query"), texts)
            ),
            None if judged is None else _judge(snapshot, judged),
            0 if judged is None else len(keys),
            () if judged is None else judged.notes,
            str(engine.default_mode),
        )


@contextmanager
def vectors_dataset(
    vectors: Path, queries: Path | None, config: SegmentConfig, scratch: Path
) -> Iterator[Dataset]:
    """Vectors (n, D) of a .npy file, built into a segment in `scratch`, open for a block.

    Without queries (q, D), a sample of the rows is used as queries and not indexed. A prefix wider
    than the vectors is shortened. Raises QueryError.
    """
    rows = _loaded(vectors)
    if queries is None:
        self_queries = evenly(len(rows), min(SELF_QUERIES, len(rows) // 10))
        if not self_queries.size:
            raise QueryError(
                f"rows can be queries if there are 10 or more, but {vectors} has {len(rows)}; "
                "name a file of queries: --query-vectors"
            )
        indexed = np.setdiff1d(np.arange(len(rows)), self_queries)
        query_rows = _checked(vectors, rows, self_queries)
    else:
        indexed, array = np.arange(len(rows)), _loaded(queries)
        if array.shape[1] != rows.shape[1]:
            raise QueryError(
                "queries and rows must have the same number of dimensions, got "
                f"{array.shape[1]} in {queries} and {rows.shape[1]} in {vectors}; encode both with "
                "the same encoder"
            )
        query_rows = _checked(queries, array, evenly(len(array), MAX_QUERIES))

    def blocks() -> Iterator[Floats]:
        for start in range(0, len(indexed), _BLOCK):
            yield _checked(vectors, rows, indexed[start : start + _BLOCK])

    config = replace(config, prefix=min(config.prefix, rows.shape[1]))
    with Segment.build(scratch / "rows", blocks(), config) as segment:
        yield Dataset(vectors.name, (segment,), (None,), query_rows)


def _loaded(path: Path) -> Floats:
    """Map the rows of a .npy file. Raises QueryError."""
    try:
        array: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise QueryError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise QueryError(f"{path} cannot be read as a .npy file ({error})") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        shape = getattr(array, "shape", None)
        raise QueryError(f"{path} must contain floating-point rows (n, D), got shape {shape}")
    if not len(array):
        raise QueryError(f"{path} contains no rows")
    return array


def _checked(path: Path, array: Floats, numbers: RowNumbers) -> Floats:
    """Read rows of a file as float32. Raises QueryError for one without a direction."""
    rows = array[numbers]
    try:
        unit_rows(rows, numbers=numbers)
    except VectorError as error:
        raise QueryError(f"{path}: {error}") from error
    return np.asarray(rows, np.float32)


def _judge(snapshot: Snapshot, task: Task) -> Judge:
    """A function from rankings of rows, numbered through the segments, to nDCG@10."""
    ends = np.cumsum([row.rows for row in snapshot.segments])
    starts = np.concatenate([[0], ends[:-1]])
    shift = np.array([row.base for row in snapshot.segments]) - starts

    def ids(rows: RowNumbers) -> RowNumbers:
        segment = np.searchsorted(ends, np.maximum(rows, 0), side="right")
        return np.where(rows < 0, -1, rows + shift[segment])

    def judge(rankings: Iterable[RowNumbers]) -> Doubles:
        return ndcg_10(snapshot, task, map(ids, rankings))

    return judge
