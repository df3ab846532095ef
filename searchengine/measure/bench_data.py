"""The data of a bench: rows of a collection or of a file, and queries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from searchengine.corpus.tabular import read_vectors
from searchengine.engine import Mode, SearchEngine, tuning
from searchengine.errors import QueryError
from searchengine.indexer.arrays import BLOCK_ROWS, Doubles, Floats, RowNumbers, evenly, unit_rows
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import VectorError
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import Segment
from searchengine.measure.judgements import Qrels, ndcg
from searchengine.measure.retrieval import task

SELF_QUERIES = 500
"""Maximum number of rows used as queries if there are none; at most a tenth of the rows."""
_FIRST = 10  # documents that nDCG@10 counts


@dataclass(frozen=True, slots=True)
class Dataset:
    """Segments that are searched together, and the queries.

    Attributes:
        name: name of the collection or file.
        segments: the segments to search.
        live: per segment the rows that may be returned; None: all.
        queries: float32 (q, D).
        path: the collection, as it was opened; None for bare vectors.
        encoding_ms: milliseconds to encode a question; None for bare vectors.
        judge: function from views of the segments to the nDCG@10 of every query, by documents, in
            the mode `mode`. None without judgements.
        notes: sentences about questions that were left out, and the like.
        mode: the mode of nDCG: that of a search of the collection that names none, but vector where
            that is text, which no operating point matters to. None for bare vectors.
    """

    name: str
    segments: tuple[Segment, ...]
    live: tuple[Allowed | None, ...]
    queries: Floats
    path: str | None = None
    encoding_ms: float | None = None
    judge: Callable[[Sequence[Segment]], Doubles] | None = None
    notes: tuple[str, ...] = ()
    mode: Mode | None = None

    @property
    def config(self) -> SegmentConfig:
        """The config of the largest segment."""
        return max(self.segments, key=lambda segment: segment.rows).config

    @property
    def sizes(self) -> list[int]:
        """Number of rows of each segment that may be returned."""
        pairs = zip(self.segments, self.live, strict=True)
        return [segment.rows if live is None else live.size for segment, live in pairs]

    @property
    def rows(self) -> int:
        """Number of rows that may be returned."""
        return sum(self.sizes)


@contextmanager
def collection_dataset(
    engine: SearchEngine, questions: Mapping[str, str], qrels: Qrels | None = None
) -> Iterator[Dataset]:
    """The rows of a collection, open for a block. With `qrels`, only judged questions are queries.

    Raises QueryError if the collection is empty, CorpusError if no question is judged.
    """
    judged = None if qrels is None else task(engine, questions, qrels)
    typed = [*(questions if judged is None else judged.queries).values()]
    mode = Mode.VECTOR if engine.default_mode is Mode.TEXT else engine.default_mode
    read, texts = engine.read(typed, mode)
    with engine.folder.reading() as snapshot:
        if not snapshot.rows:
            raise QueryError(f"{engine.collection.path} is empty; add documents before measuring")
        vectors = engine.encode_questions(texts)
        _ = snapshot.words, snapshot.unrelated  # computed here once, for all views

        def judge(segments: Sequence[Segment]) -> Doubles:
            assert judged is not None
            view, depth = copy(snapshot), _FIRST + bool(judged.documents)
            view.segments = dict(zip(snapshot.segments, segments, strict=True))
            names = [each.text for each in read]
            return ndcg(judged, engine.rank(view, names, vectors, depth, mode=mode))

        yield Dataset(
            engine.folder.path.name,
            tuple(snapshot.segments.values()),
            tuple(snapshot.live[row] for row in snapshot.segments),
            vectors,
            str(engine.folder.path),
            tuning.encoding_ms(engine.encoder, typed),
            None if judged is None else judge,
            () if judged is None else judged.notes,
            mode,
        )


@contextmanager
def vectors_dataset(
    vectors: Path, queries: Path | None, config: SegmentConfig, scratch: Path
) -> Iterator[Dataset]:
    """Vectors (n, D) of a .npy file, built into a segment in `scratch`, open for a block.

    Without queries (q, D), a sample of the rows is used as queries and not indexed. A prefix wider
    than the vectors is shortened. Raises QueryError.
    """
    rows = read_vectors(vectors)
    source, array = (vectors, rows) if queries is None else (queries, read_vectors(queries))
    taken = evenly(len(array), len(array) if queries else min(SELF_QUERIES, len(rows) // 10))
    if not taken.size:
        raise QueryError(
            f"rows can be queries if there are 10 or more, but {vectors} has {len(rows)}; "
            "name a file of queries: --query-vectors"
        )
    indexed = np.setdiff1d(np.arange(len(rows)), [] if queries else taken)
    dim = rows.shape[1]

    def blocks() -> Iterator[Floats]:
        for start in range(0, len(indexed), BLOCK_ROWS):
            yield _checked(vectors, rows, indexed[start : start + BLOCK_ROWS], dim)

    query_rows = _checked(source, array, taken, dim)
    config = replace(config, prefix=min(config.prefix, dim))
    with Segment.build(scratch / "rows", blocks(), config) as segment:
        yield Dataset(vectors.name, (segment,), (None,), query_rows)


def _checked(path: Path, array: Floats, numbers: RowNumbers, dim: int) -> Floats:
    """Read rows of a file as float32. Raises QueryError for another width, or no direction."""
    rows = np.asarray(array[numbers], np.float32)
    try:
        unit_rows(rows, dim=dim, numbers=numbers)
    except VectorError as error:
        raise QueryError(f"{path}: {error}") from error
    return rows
