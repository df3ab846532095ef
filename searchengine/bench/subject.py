"""What a bench searches: the rows of a collection, or vectors from a file, and questions."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from indexer.arrays import Doubles, Floats, RowNumbers, evenly, unit_rows
from indexer.config import SegmentConfig
from indexer.errors import VectorError
from indexer.search.allowed import Allowed
from indexer.segment import Segment
from searchengine.bench.results import Spread
from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.evaluate.judgements import Qrels, judged
from searchengine.storage.snapshot import Snapshot

MOST = 1000
"""Questions that are searched, evenly drawn where there are more."""
HELD_OUT = 500
"""Rows made into queries where there are none, or a tenth of all."""
_ENCODED = 100  # questions encoded one by one, to time it
_BLOCK = 1 << 14  # rows of a file read at a time


@dataclass(frozen=True, slots=True)
class Subject:
    """Segments that are searched together, and what is asked of them.

    Attributes:
        name: what to call it.
        segments, live: and the rows of each that may be found (None: all).
        queries: float32 (q, D).
        encoder: which made them; None for bare vectors.
        encode_ms: of one question.
        judge: nDCG@10 of the judged questions, from rows (q, k >= 10) numbered through the
            segments; None without judgements.
        judged: how many of the questions have judgements.
    """

    name: str
    segments: tuple[Segment, ...]
    live: tuple[Allowed | None, ...]
    queries: Floats
    encoder: str | None = None
    encode_ms: Spread | None = None
    judge: Callable[[RowNumbers], Doubles] | None = None
    judged: int = 0

    @property
    def rows(self) -> int:
        """How many may be found."""
        pairs = zip(self.segments, self.live, strict=True)
        return sum(each.rows if live is None else live.size for each, live in pairs)


@contextmanager
def of_collection(
    engine: SearchEngine, questions: Mapping[str, str], qrels: Qrels | None = None
) -> Iterator[Subject]:
    """What a collection holds, for a block; asked are the judged questions, where any are given.

    Raises QueryError where the collection is empty, CorpusError where no question is judged.
    """
    if qrels is not None:
        questions = judged(questions, qrels)
    listed = list(questions)
    keys = [listed[i] for i in evenly(len(listed), MOST)]
    with engine.collection.reading() as snapshot:
        if not snapshot.rows:
            raise QueryError(f"{engine.collection.path} is empty; index documents before measuring")
        texts = [questions[key] for key in keys]
        yield Subject(
            engine.collection.path.name,
            tuple(snapshot.segments.values()),
            tuple(snapshot.live[row] for row in snapshot.segments),
            np.asarray(engine.encoder.encode(texts, role="query"), np.float32),
            str(snapshot.settings["encoder"]["source"]),
            _encode_ms(engine, texts),
            None if qrels is None else _judge(snapshot, keys, qrels),
            0 if qrels is None else len(keys),
        )


@contextmanager
def of_vectors(
    vectors: Path, queries: Path | None, config: SegmentConfig, scratch: Path
) -> Iterator[Subject]:
    """Vectors (n, D) of a .npy file, built into a segment in `scratch`, for a block.

    Without queries (q, D), rows are taken for them and not indexed. A prefix that is too wide is
    cut. Raises QueryError.
    """
    rows = _loaded(vectors)
    if queries is None:
        own = evenly(len(rows), min(HELD_OUT, len(rows) // 10))
        if not own.size:
            raise QueryError(
                f"{vectors} holds {len(rows)} rows, too few to take some for queries; name a file "
                "of queries: --query-vectors"
            )
        kept = np.setdiff1d(np.arange(len(rows)), own)
        asked = _checked(vectors, rows, own)
    else:
        kept, given = np.arange(len(rows)), _loaded(queries)
        if given.shape[1] != rows.shape[1]:
            raise QueryError(
                f"{queries} is {given.shape[1]} numbers wide and {vectors} {rows.shape[1]}; "
                "queries and rows must come from the same encoder"
            )
        asked = _checked(queries, given, evenly(len(given), MOST))

    def blocks() -> Iterator[Floats]:
        for start in range(0, len(kept), _BLOCK):
            yield _checked(vectors, rows, kept[start : start + _BLOCK])

    config = replace(config, prefix=min(config.prefix, rows.shape[1]))
    with Segment.build(scratch / "rows", blocks(), config) as one:
        yield Subject(vectors.name, (one,), (None,), asked)


def _loaded(path: Path) -> Floats:
    """Rows of a .npy file, mapped."""
    try:
        array: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise QueryError(f"there is no {path}") from None
    except (OSError, ValueError, EOFError) as error:
        raise QueryError(f"{path} cannot be read as a .npy file ({error})") from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        shape = getattr(array, "shape", None)
        raise QueryError(f"{path} must hold floating-point rows (n, D), got shape {shape}")
    if not len(array):
        raise QueryError(f"{path} holds no rows")
    return array


def _checked(path: Path, array: Floats, numbers: RowNumbers) -> Floats:
    """Those rows of a file, as float32. Raises QueryError on one without a direction."""
    rows = array[numbers]
    try:
        unit_rows(rows, numbers=numbers)
    except VectorError as error:
        raise QueryError(f"{path}: {error}") from error
    return np.asarray(rows, np.float32)


def _encode_ms(engine: SearchEngine, texts: list[str]) -> Spread:
    """Milliseconds that one question takes the encoder."""
    seconds = []
    for text in texts[:_ENCODED] * 2:  # the first ones make it ready
        begin = time.perf_counter()
        engine.encoder.encode([text], role="query")
        seconds.append(time.perf_counter() - begin)
    return Spread.of([1e3 * each for each in seconds[len(seconds) // 2 :]])


def _judge(snapshot: Snapshot, keys: list[str], qrels: Qrels) -> Callable[[RowNumbers], Doubles]:
    """nDCG@10 of every question, of rows numbered through the segments."""
    from searchengine.evaluate.retrieval import ndcg_10

    ends = np.cumsum([row.rows for row in snapshot.segments])
    starts = np.concatenate([[0], ends[:-1]])
    shift = np.array([row.base for row in snapshot.segments]) - starts

    def judge(rows: RowNumbers) -> Doubles:
        segment = np.searchsorted(ends, np.maximum(rows, 0), side="right")
        ids = np.where(rows < 0, -1, rows + shift[segment])
        found: Doubles = ndcg_10(snapshot, keys, ids, qrels)
        return found

    return judge
