"""Retrieval quality of a collection on judged questions, setting by setting.

A setting is a way to search: exactly, over one prefix length, as the collection is configured, by
words, or by both. searchengine.evaluate.metrics measures what each of them finds.
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
from indexer.search.search import SearchResult, rerank
from indexer.segment import Segment
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError, QueryError
from searchengine.evaluate import judgements
from searchengine.evaluate.judgements import Qrels
from searchengine.evaluate.metrics import DEPTH, EXACT, MAIN, Setting, per_question
from searchengine.evaluate.runs import Run, ranked
from searchengine.ingest.encoding import Vectors
from searchengine.query.request import Mode
from searchengine.storage.documents.store import SegmentRow
from searchengine.storage.snapshot import Snapshot

CONFIGURED = "configured"
"""What the collection's own operating point is called."""

_FIRST = 10  # documents that a user looks at
_AT_ONCE = 256  # questions whose documents are in memory with their texts


@dataclass(frozen=True, slots=True)
class Task:
    """The questions that count, and what their answers are judged by.

    Attributes:
        queries: key → question; at least one, all of them judged.
        qrels: their judgements.
        exclude_self: whether the document of a question's own key is no answer, as in ArguAna.
        notes: what was left out, and what else one should know; a sentence each.
    """

    queries: Mapping[str, str]
    qrels: Qrels
    exclude_self: bool = False
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The questions' keys."""
        return list(self.queries)


def task(
    engine: SearchEngine,
    queries: Mapping[str, str],
    qrels: Qrels,
    exclude_self: bool | None = None,
) -> Task:
    """The questions that have judgements.

    `exclude_self` None: where at least half of the questions are documents themselves (the same
    key, and the question is part of the document) and none is judged relevant to itself. Raises
    CorpusError when no question is judged.
    """
    asked = judgements.judged(queries, qrels)
    judged = {key: qrels[key] for key in asked}
    with engine.collection.reading() as snapshot:
        notes = list(_left_out(snapshot, queries, qrels, judged))
        seem = exclude_self is None and _are_documents(snapshot, asked, judged)
        if seem:
            notes.append(
                "the questions are documents of the collection: each is left out of its own answer "
                "(--no-exclude-self keeps it)"
            )
    return Task(asked, judged, exclude_self or seem, tuple(notes))


def default_dims(engine: SearchEngine) -> tuple[int, ...]:
    """The prefix lengths the encoder was trained for; halves down to 32 where it names none."""
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
    """The settings of each mode, one after the other.

    By vectors: "exact" at full width, without a shortlist; one for each prefix length, called like
    it; and "configured", what users of this collection get. The shortlist of a prefix length is
    drawn by the exact ranking of the prefix over all segments together, whatever structure the
    collection has, so that those tell of the encoder and not of the index. The modes "text" and
    "hybrid" are one each.

    Raises QueryError on a prefix length or mode that cannot be, and CollectionError where nothing
    is indexed.
    """
    shorter = _shorter(engine, dims)
    for mode in dict.fromkeys(modes):
        if mode == Mode.VECTOR:
            yield from _by_vector(engine, task, shorter, shortlist)
        else:
            run = _by_engine(engine, task, list(task.queries.values()), mode=mode)
            yield Setting.of(str(mode), run, task.keys, task.qrels)


def names(
    engine: SearchEngine, dims: Sequence[int] = (), modes: Sequence[Mode | str] = (Mode.VECTOR,)
) -> list[str]:
    """What the settings that `measure` yields are called, in their order. Raises QueryError."""
    by_vector = [EXACT, *map(str, _shorter(engine, dims)), CONFIGURED]
    each = [by_vector if mode == Mode.VECTOR else [str(mode)] for mode in dict.fromkeys(modes)]
    return [name for some in each for name in some]


def ndcg_10(
    snapshot: Snapshot, keys: Sequence[str], ids: npt.NDArray[np.int64], qrels: Qrels
) -> npt.NDArray[np.float64]:
    """nDCG@10 of every question: keys (q,), ranked passage ids (q, depth) padded with −1, to (q,).

    Several passages of a document count as one, at the first one's rank. Raises CorpusError on a
    question without a judgement.
    """
    for key in keys:
        if key not in qrels:
            raise CorpusError(f"the question {key!r:.80} has no judgement; leave it out")
    found = zip(keys, _documents(snapshot, ids), strict=True)
    run = {key: dict.fromkeys(documents, 0.0) for key, documents in found}
    return per_question(run, keys, qrels, [MAIN])[MAIN]


def _shorter(engine: SearchEngine, dims: Sequence[int]) -> list[int]:
    """The prefix lengths below the full width, each once."""
    full = engine.collection.settings["encoder"]["dim"]
    for dim in dims:
        if not 1 <= dim <= full:
            raise QueryError(f"a prefix must be between 1 and {full}, got {dim}")
    return [dim for dim in dict.fromkeys(dims) if dim != full]


def _by_vector(
    engine: SearchEngine, task: Task, dims: Sequence[int], shortlist: int
) -> Iterator[Setting]:
    vectors = engine.encoder.encode(list(task.queries.values()), role="query")
    candidates = shortlist + task.exclude_self

    def setting(name: str, run: Run, **told: Any) -> Setting:
        return Setting.of(name, run, task.keys, task.qrels, **told)

    with engine.collection.reading() as snapshot:
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
        own = snapshot.settings["index"]["shortlist"]
    # To ask for more widens the shortlist, which would flatter the first ten.
    run = _by_engine(engine, task, vectors, (_FIRST, DEPTH))
    yield setting(CONFIGURED, run, shortlist=own, exact_recall_10=_share(run, exact))


def _by_engine(
    engine: SearchEngine,
    task: Task,
    questions: Sequence[str] | Vectors,
    counts: Sequence[int] = (DEPTH,),
    **options: Any,
) -> Run:
    """What users get who ask for so many documents, one count after the other."""
    run = {}
    for start in range(0, len(questions), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        answers = [
            engine.search_batch(questions[some], count + task.exclude_self, **options)
            for count in counts
        ]
        for key, *found in zip(task.keys[some], *answers, strict=True):
            run[key] = _answer(task, key, ((hit.key, hit.score) for hits in found for hit in hits))
    return run


def _run(snapshot: Snapshot, task: Task, result: SearchResult) -> Run:
    """A ranking of passages (q, depth) as one of documents, each by its best passage."""
    documents = _documents(snapshot, result.rows)
    return {
        key: _answer(task, key, zip(found, scores.tolist(), strict=False))
        for key, found, scores in zip(task.queries, documents, result.scores, strict=True)
    }


def _answer(task: Task, key: str, found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The first DEPTH documents that count."""
    own = key if task.exclude_self else None
    best = ranked(pair for pair in found if pair[0] != own)
    return dict(islice(best.items(), DEPTH))


def _documents(snapshot: Snapshot, ids: npt.NDArray[np.int64]) -> Iterator[list[str]]:
    """The documents of passages (q, depth), −1 for none: a list of keys for every question."""
    found = iter(snapshot.store.keys(ids[ids >= 0]))
    return (list(islice(found, int((row >= 0).sum()))) for row in ids)


def _share(run: Run, exact: Run) -> float:
    """The mean share of the first ten of `exact` that are among the first ten of `run`."""
    shares = [
        len(best & set(islice(run[key], _FIRST))) / len(best)
        for key, found in exact.items()
        if (best := set(islice(found, _FIRST)))
    ]
    return float(np.mean(shares)) if shares else 1.0


def _exact(snapshot: Snapshot, vectors: Vectors, documents: int) -> tuple[int, SearchResult]:
    """So many passages, and the best of them, that each question has so many documents."""
    depth = documents
    while True:
        most = depth
        result = snapshot.merge(lambda _, segment, live: segment.exact(vectors, most, live), most)  # noqa: B023
        if not snapshot.cuts or depth >= snapshot.rows:
            return depth, result
        # A document may come by several of its passages, and counts once.
        if all(len(set(found)) >= documents for found in _documents(snapshot, result.rows)):
            return depth, result
        depth *= 4


def _by_prefix(
    snapshot: Snapshot, vectors: Vectors, dim: int, shortlist: int, depth: int
) -> tuple[SearchResult, SearchResult]:
    """The ranking of a prefix's shortlist at full width, and the ranking by the prefix alone."""
    config = SegmentConfig(prefix=dim, structure=Structure.FLAT, code=Code.FP32)
    size = max(shortlist, depth)
    turned = {row: segment.rotate(vectors) for row, segment in snapshot.segments.items()}

    def by_prefix(row: SegmentRow, segment: Segment, live: Allowed | None) -> SearchResult:
        rotated = turned[row]
        coarse = build_coarse(segment.prefix_rows(dim), config)
        candidates = coarse.shortlist(rotated[:, :dim], min(size, segment.rows), live)
        return rerank(_Prefixes(segment, dim), prefix(rotated, dim), candidates, size)

    alone = snapshot.merge(by_prefix, size)
    # Cut once, for all segments: each one's own shortlist would tell how many of them there are.
    chosen = alone.rows[:, :shortlist]

    def at_full_width(row: SegmentRow, segment: Segment, _: Allowed | None) -> SearchResult:
        first, last = row.ends
        inside = np.where((first <= chosen) & (chosen <= last), chosen - first, -1)
        return segment.rerank(turned[row], inside, depth)

    bare = SearchResult(alone.rows[:, :depth], alone.scores[:, :depth])
    return snapshot.merge(at_full_width, depth), bare


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of a segment's rows, as the rows that `rerank` scores."""

    segment: Segment
    dim: int

    def take(self, rows: npt.NDArray[np.int64]) -> Vectors:
        full = self.segment.take(rows)
        return prefix(full.reshape(-1, full.shape[-1]), self.dim).reshape(*rows.shape, self.dim)


def _left_out(
    snapshot: Snapshot, queries: Mapping[str, str], qrels: Qrels, judged: Qrels
) -> Iterator[str]:
    """What of questions and judgements does not count, or cannot be found."""
    if unjudged := len(queries) - len(judged):
        yield f"questions without a judgement, left out: {unjudged:,}"
    if unasked := len(qrels) - len(judged):
        yield f"judged questions that are not among the questions, left out: {unasked:,}"
    grades = [pair for found in judged.values() for pair in found.items()]
    there = snapshot.store.ids_of(document for document, _ in grades)
    absent = [grade for document, grade in grades if document not in there]
    if absent:
        relevant = sum(grade > 0 for grade in absent)
        yield (
            "judgements of documents that the collection does not have: "
            f"{len(absent):,} of {len(grades):,}; {relevant:,} are of relevant ones, which count "
            "as not found"
        )


def _words(text: str) -> str:
    return f" {' '.join(text.split())} "


def _are_documents(snapshot: Snapshot, asked: Mapping[str, str], judged: Qrels) -> bool:
    """Whether the questions seem to be documents that are no answers to themselves.

    A key alone says little: two files that number their lines have many in common.
    """
    there = snapshot.store.ids_of(asked)
    if 2 * len(there) < len(asked) or any(judged[key].get(key, 0) > 0 for key in there):
        return False
    same = 0
    for document in snapshot.store.documents(there.values()):
        same += _words(asked[document.key]) in _words(document.full_text)
    return 2 * same >= len(asked)
