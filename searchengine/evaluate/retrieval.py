"""Retrieval quality of a collection on judged questions, setting by setting.

A setting is a way to search: exactly, over one prefix length, at the collection's operating point,
by words, or by both. searchengine.evaluate.metrics measures its results.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import prefix
from indexer.building.coarse import build_coarse
from indexer.config import Code, SegmentConfig, Structure
from indexer.search.allowed import Allowed
from indexer.search.cascade import SearchResult, rerank
from indexer.segment import Segment
from searchengine.encoders.protocol import Vectors
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError, QueryError
from searchengine.evaluate import judgements
from searchengine.evaluate.judgements import Qrels
from searchengine.evaluate.metrics import DEPTH, EXACT, MAIN, Setting, per_question
from searchengine.evaluate.runs import Run, ranked
from searchengine.storage.documents.store import SegmentRow
from searchengine.storage.mode import Mode
from searchengine.storage.snapshot import Snapshot

CONFIGURED = "configured"
"""Name of the setting at the collection's operating point."""

_FIRST = 10  # documents that a user reads
_BATCH = 256  # questions whose documents are in memory with their texts


@dataclass(frozen=True, slots=True)
class Task:
    """Questions with their judgements.

    Attributes:
        queries: key → question; at least one, all of them judged.
        qrels: their judgements.
        exclude_self: leave out the document with the question's key, as in ArguAna.
        notes: sentences about questions that were left out, and the like.
    """

    queries: Mapping[str, str]
    qrels: Qrels
    exclude_self: bool = False
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys of the questions."""
        return list(self.queries)


def task(
    engine: SearchEngine,
    queries: Mapping[str, str],
    qrels: Qrels,
    exclude_self: bool | None = None,
) -> Task:
    """The questions that have judgements.

    `exclude_self` None: True if at least half of the questions are documents (with the same key,
    and the question is part of the document) and none is judged relevant to itself. Raises
    CorpusError if no question is judged.
    """
    questions = judgements.judged(queries, qrels)
    judged = {key: qrels[key] for key in questions}
    with engine.local.reading() as snapshot:
        notes = list(_left_out(snapshot, queries, qrels, judged))
        detected = exclude_self is None and _are_documents(snapshot, questions, judged)
        if detected:
            notes.append(
                "the questions are documents of the collection: each is left out of its results "
                "(--no-exclude-self keeps it)"
            )
    return Task(questions, judged, exclude_self or detected, tuple(notes))


def default_dims(engine: SearchEngine) -> tuple[int, ...]:
    """The prefix lengths of the encoder's training; by default powers of 2 from 512 to 32."""
    dim = engine.encoder.dim
    trained: tuple[int, ...] = getattr(engine.encoder, "matryoshka_dims", ())
    if len(trained) > 1:
        return trained
    return (dim, *(width for width in (512, 256, 128, 64, 32) if width < dim))


def measure(
    engine: SearchEngine,
    task: Task,
    dims: Sequence[int] = (),
    shortlist: int = 100,
    modes: Sequence[Mode | str] = (Mode.VECTOR,),
) -> Iterator[Setting]:
    """Measure the settings of each mode in turn.

    Mode vector has "exact" at full width, without a shortlist; one setting per prefix length, with
    its number as name; and "configured", the search of the collection's users. The shortlist of a
    prefix length is the exact ranking of the prefix over all segments, independent of the
    collection's structure, so that it measures the encoder and not the index. Modes "text" and
    "hybrid" have one setting each.

    Raises QueryError for an invalid prefix length or mode, and CollectionError if the collection is
    empty.
    """
    shorter = _shorter(engine, dims)
    for mode in dict.fromkeys(modes):
        if mode == Mode.VECTOR:
            yield from _by_vector(engine, task, shorter, shortlist)
        else:
            run = _by_engine(engine, task, list(task.queries.values()), mode=mode)
            yield Setting.of(str(mode), run, task.keys, task.qrels)


def exact(engine: SearchEngine, task: Task, name: str = EXACT) -> Setting:
    """Measure exact search at full width alone. Raises CollectionError if nothing is stored."""
    vectors = engine.encoder.encode(list(task.queries.values()), role="query")
    with engine.local.reading() as snapshot:
        _, result = _exact(snapshot, vectors, DEPTH + task.exclude_self)
        run = _run(snapshot, task, result)
    return Setting.of(name, run, task.keys, task.qrels, dim=engine.encoder.dim)


def names(
    engine: SearchEngine, dims: Sequence[int] = (), modes: Sequence[Mode | str] = (Mode.VECTOR,)
) -> list[str]:
    """The names of the settings that `measure` yields, in their order. Raises QueryError."""
    by_vector = [EXACT, *map(str, _shorter(engine, dims)), CONFIGURED]
    by_mode = [by_vector if mode == Mode.VECTOR else [str(mode)] for mode in dict.fromkeys(modes)]
    return [name for settings in by_mode for name in settings]


def ndcg_10(
    snapshot: Snapshot, keys: Sequence[str], ids: npt.NDArray[np.int64], qrels: Qrels
) -> npt.NDArray[np.float64]:
    """nDCG@10 of every question: keys (q,), ranked passage ids (q, depth) padded with −1, to (q,).

    Several passages of a document count as one, at the rank of the first. Raises CorpusError for a
    question without a judgement.
    """
    for key in keys:
        if key not in qrels:
            raise CorpusError(f"the question {key!r:.80} has no judgement; leave it out")
    results = zip(keys, _documents(snapshot, ids), strict=True)
    run = {key: dict.fromkeys(documents, 0.0) for key, documents in results}
    return per_question(run, keys, qrels, [MAIN])[MAIN]


def _shorter(engine: SearchEngine, dims: Sequence[int]) -> list[int]:
    """The prefix lengths below the full width, without repeats."""
    full = engine.local.settings["encoder"]["dim"]
    for dim in dims:
        if not 1 <= dim <= full:
            raise QueryError(f"a prefix must be between 1 and {full}, got {dim}")
    return [dim for dim in dict.fromkeys(dims) if dim != full]


def _by_vector(
    engine: SearchEngine, task: Task, dims: Sequence[int], shortlist: int
) -> Iterator[Setting]:
    vectors = engine.encode_questions(list(task.queries.values()))
    candidates = shortlist + task.exclude_self

    def setting(name: str, run: Run, **fields: Any) -> Setting:
        return Setting.of(name, run, task.keys, task.qrels, **fields)

    with engine.local.reading() as snapshot:
        depth, result = _exact(snapshot, vectors, DEPTH + task.exclude_self)
        exact = _run(snapshot, task, result)
        full = setting(EXACT, exact, dim=engine.encoder.dim, exact_recall_10=1.0)
        full = replace(full, prefix_ndcg_10=full.ndcg_10)
        yield full
        for dim in dims:
            two_stages, bare = _by_prefix(snapshot, vectors, dim, candidates, depth)
            run, alone = _run(snapshot, task, two_stages), _run(snapshot, task, bare)
            by_prefix = per_question(alone, task.keys, task.qrels, [MAIN])[MAIN]
            yield setting(
                str(dim),
                run,
                dim=dim,
                shortlist=shortlist,
                prefix_ndcg_10=float(by_prefix.mean()),
                exact_recall_10=_share(run, exact),
            )
        configured = snapshot.shortlist
    run = _by_engine(engine, task, vectors, mode=Mode.VECTOR)
    yield setting(CONFIGURED, run, shortlist=configured, exact_recall_10=_share(run, exact))


def _by_engine(
    engine: SearchEngine,
    task: Task,
    questions: Sequence[str] | Vectors,
    **options: Any,
) -> Run:
    """Search like users of the collection."""
    run = {}
    for start in range(0, len(questions), _BATCH):
        batch = slice(start, start + _BATCH)
        results = engine.search_batch(questions[batch], DEPTH + task.exclude_self, **options)
        for key, hits in zip(task.keys[batch], results, strict=True):
            run[key] = _ranking(task, key, ((hit.key, hit.score) for hit in hits))
    return run


def _run(snapshot: Snapshot, task: Task, result: SearchResult) -> Run:
    """Convert a ranking of passages (q, depth) to one of documents, each by its best passage."""
    documents = _documents(snapshot, result.rows)
    return {
        key: _ranking(task, key, zip(keys, scores.tolist(), strict=False))
        for key, keys, scores in zip(task.queries, documents, result.scores, strict=True)
    }


def _ranking(task: Task, key: str, results: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The first DEPTH documents, without the question's own if it is excluded."""
    excluded = key if task.exclude_self else None
    best = ranked(pair for pair in results if pair[0] != excluded)
    return dict(islice(best.items(), DEPTH))


def _documents(snapshot: Snapshot, ids: npt.NDArray[np.int64]) -> Iterator[list[str]]:
    """The documents of passages (q, depth), padded with −1: a list of keys per question."""
    keys = iter(snapshot.store.keys(ids[ids >= 0]))
    return (list(islice(keys, int((row >= 0).sum()))) for row in ids)


def _share(run: Run, exact: Run) -> float:
    """The mean share of the first ten of `exact` that are among the first ten of `run`."""
    shares = [
        len(best & set(islice(run[key], _FIRST))) / len(best)
        for key, documents in exact.items()
        if (best := set(islice(documents, _FIRST)))
    ]
    return float(np.mean(shares)) if shares else 1.0


def _exact(snapshot: Snapshot, vectors: Vectors, documents: int) -> tuple[int, SearchResult]:
    """Search until every question has `documents` documents; return (depth, result)."""
    depth = documents
    while True:
        k = depth
        result = snapshot.merge(lambda _, segment, live: segment.exact(vectors, k, live), k)  # noqa: B023
        if not snapshot.cuts or depth >= snapshot.rows:
            return depth, result
        # Several passages of a document count once.
        if all(len(set(keys)) >= documents for keys in _documents(snapshot, result.rows)):
            return depth, result
        depth *= 4


def _by_prefix(
    snapshot: Snapshot, vectors: Vectors, dim: int, shortlist: int, depth: int
) -> tuple[SearchResult, SearchResult]:
    """The ranking of a prefix's shortlist at full width, and the ranking by the prefix alone."""
    config = SegmentConfig(prefix=dim, structure=Structure.FLAT, code=Code.FP32)
    size = max(shortlist, depth)
    rotations = {row: segment.rotate(vectors) for row, segment in snapshot.segments.items()}

    def by_prefix(row: SegmentRow, segment: Segment, live: Allowed | None) -> SearchResult:
        rotated = rotations[row]
        coarse = build_coarse(segment.prefix_rows(dim), config)
        candidates = coarse.shortlist(rotated[:, :dim], min(size, segment.rows), live)
        return rerank(_Prefixes(segment, dim), prefix(rotated, dim), candidates, size)

    alone = snapshot.merge(by_prefix, size)
    # One shortlist over all segments: separate ones would depend on the number of segments.
    chosen = alone.rows[:, :shortlist]

    def at_full_width(row: SegmentRow, segment: Segment, _: Allowed | None) -> SearchResult:
        first, last = row.ends
        inside = np.where((first <= chosen) & (chosen <= last), chosen - first, -1)
        return segment.rerank(rotations[row], inside, depth)

    bare = SearchResult(alone.rows[:, :depth], alone.scores[:, :depth])
    return snapshot.merge(at_full_width, depth), bare


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of a segment's rows, in the form that `rerank` takes."""

    segment: Segment
    dim: int

    def take(self, rows: npt.NDArray[np.int64]) -> Vectors:
        full = self.segment.take(rows)
        return prefix(full.reshape(-1, full.shape[-1]), self.dim).reshape(*rows.shape, self.dim)


def _left_out(
    snapshot: Snapshot, queries: Mapping[str, str], qrels: Qrels, judged: Qrels
) -> Iterator[str]:
    """Describe questions and judgements that are ignored, or whose documents are missing."""
    if unjudged := len(queries) - len(judged):
        yield f"questions without a judgement, left out: {unjudged:,}"
    if unasked := len(qrels) - len(judged):
        yield f"judged questions that are not among the questions, left out: {unasked:,}"
    grades = [pair for documents in judged.values() for pair in documents.items()]
    stored = snapshot.store.ids_of(document for document, _ in grades)
    missing = [grade for document, grade in grades if document not in stored]
    if missing:
        relevant = sum(grade > 0 for grade in missing)
        yield (
            "judgements of documents that the collection does not have: "
            f"{len(missing):,} of {len(grades):,}; {relevant:,} of them are relevant and count as "
            "not found"
        )


def _words(text: str) -> str:
    return f" {' '.join(text.split())} "


def _are_documents(snapshot: Snapshot, questions: Mapping[str, str], judged: Qrels) -> bool:
    """True if the questions seem to be documents that are not relevant to themselves.

    Equal keys do not suffice: two files with line numbers as keys share many.
    """
    stored = snapshot.store.ids_of(questions)
    if 2 * len(stored) < len(questions) or any(judged[key].get(key, 0) > 0 for key in stored):
        return False
    contained = 0
    for document in snapshot.store.documents(stored.values()):
        contained += _words(questions[document.key]) in _words(document.full_text)
    return 2 * contained >= len(questions)
