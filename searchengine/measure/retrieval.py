"""Retrieval quality of a collection on judged questions, setting by setting.

A setting is a way to search: as users of the collection do, exactly, over one prefix length, at the
collection's operating point, by words, or by both. searchengine.measure.comparison measures its
results.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.engine import Mode, SearchEngine, Snapshot, contract
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.config import Code
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, rerank
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.rotation import Prefixes
from searchengine.measure import judgements
from searchengine.measure.comparison import DEPTH, EXACT, MAIN, Setting, per_question
from searchengine.measure.judgements import Qrels, Run, Task, ranked

CONFIGURED = "configured"
"""Name of the setting by vectors at the collection's operating point."""
ENCODING = "encoding"
"""Name of the step before the settings by vectors, for progress."""

_FIRST = 10  # documents that a user reads
_PASSAGES = 1000  # passages ranked by a prefix alone: of ten documents or more
_BATCH = 256  # questions whose documents are in memory with their texts
Progress = Callable[[str, int], object]
_Run = dict[str, Mapping[str, float]]


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
    with engine.collection.reading() as snapshot:
        notes = list(_left_out(snapshot, queries, qrels, judged))
        detected = exclude_self is None and _are_documents(snapshot, questions, judged)
        if detected:
            notes.append(
                "the questions are documents of the collection: each is left out of its results "
                "(--no-exclude-self keeps it)"
            )
    return Task(questions, judged, exclude_self or detected, tuple(notes))


def default_dims(engine: SearchEngine) -> tuple[int, ...]:
    """The prefix lengths of the encoder's training; by default powers of 2 from 512 to 32.

    None of a collection on a server, whose rows cannot be ranked by another prefix.
    """
    dim = engine.encoder.dim
    if "://" in str(engine.collection.path):
        return ()  # a server has the index over one prefix
    if len(engine.encoder.matryoshka_dims) > 1:
        return engine.encoder.matryoshka_dims
    return (dim, *(width for width in (512, 256, 128, 64, 32) if width < dim))


def default_modes(engine: SearchEngine) -> tuple[Mode, ...]:
    """The modes to measure by default: what users get; then by vectors, unless it is by words."""
    return (Mode.AUTO,) if engine.default_mode is Mode.TEXT else (Mode.AUTO, Mode.VECTOR)


def measure(
    engine: SearchEngine,
    task: Task,
    dims: Sequence[int] = (),
    shortlist: int = 100,
    modes: Sequence[Mode | str] | None = None,
    progress: Progress | None = None,
) -> Iterator[Setting]:
    """Measure the settings of each mode in turn.

    Mode auto has one setting, the search of the collection's users: a search that names no mode. It
    is called "hybrid", "text" or "configured", as the collection stores, and is measured once.

    Mode vector has "exact" at full width, without a shortlist; one setting per prefix length, with
    its number as name; and "configured", at the collection's operating point. The shortlist of a
    prefix length is the exact ranking of the prefix over all segments, independent of the
    collection's structure, so that it measures the encoder and not the index. Modes "text" and
    "hybrid" have one setting each.

    `modes`: None for `default_modes`. `progress`: called with ENCODING or the name of a setting,
    and the number of questions just done.

    Raises QueryError for an invalid prefix length or mode, and CollectionError if the collection is
    empty.
    """
    rows = names(engine, dims, modes)
    if not len(engine):
        raise CollectionError(f"{engine.collection.path} is empty; add documents before measuring")
    measuring = _Measuring(engine, task, shortlist, EXACT in rows, progress or (lambda *_: None))
    for name in rows:
        default = name == _name(engine.default_mode)
        yield replace(measuring.setting(name), default=default)


def names(
    engine: SearchEngine, dims: Sequence[int] = (), modes: Sequence[Mode | str] | None = None
) -> list[str]:
    """The names of the settings that `measure` yields, in their order. Raises QueryError."""
    shorter = _shorter(engine, dims)
    settings: list[str] = []
    for mode in default_modes(engine) if modes is None else modes:
        if mode not in list(Mode):
            raise QueryError(f"mode must be one of {', '.join(Mode)}, got {mode!r}")
        if mode == Mode.VECTOR:
            settings += [EXACT, *map(str, shorter), CONFIGURED]
        else:
            settings.append(_name(engine.default_mode if mode == Mode.AUTO else Mode(mode)))
    return list(dict.fromkeys(settings))


def _shorter(engine: SearchEngine, dims: Sequence[int]) -> list[int]:
    """The prefix lengths below the full width, without repeats."""
    full = engine.collection.settings["encoder"]["dim"]
    for dim in dims:
        if not 1 <= dim <= full:
            raise QueryError(f"a prefix must be between 1 and {full}, got {dim}")
    return [dim for dim in dict.fromkeys(dims) if dim != full]


def _name(mode: Mode) -> str:
    """The name of the setting that searches as users do, in this mode."""
    return CONFIGURED if mode is Mode.VECTOR else str(mode)


class _Measuring:
    """Measures settings by their names; the questions are encoded once, and ranked exactly once."""

    def __init__(
        self, engine: SearchEngine, task: Task, shortlist: int, compares: bool, progress: Progress
    ) -> None:
        """`compares`: measure how much of exact search a setting finds."""
        self._engine, self._task, self._shortlist = engine, task, shortlist
        self._compares, self._progress = compares, progress
        self._texts = list(task.queries.values())

    def setting(self, name: str) -> Setting:
        """Measure the setting with a name of `names`."""
        if name == EXACT:
            full = self._setting(EXACT, self._exact, dim=self._engine.encoder.dim)
            return replace(full, prefix_ndcg_10=full.ndcg_10)
        if name == CONFIGURED:
            with self._engine.collection.reading() as snapshot:
                size = snapshot.shortlist
            run = self._by_engine(name, self._vectors, Mode.VECTOR)
            return self._setting(name, run, shortlist=size)
        if name in (Mode.TEXT, Mode.HYBRID):
            run = self._by_engine(name, self._texts, Mode(name))
            return Setting.from_run(name, run, self._task.keys, self._task.qrels, mode=name)
        return self._by_prefix(int(name))

    def _setting(self, name: str, run: Run, **fields: Any) -> Setting:
        """A setting by vectors."""
        share = _share(run, self._exact) if self._compares else None
        fields |= {"mode": str(Mode.VECTOR), "exact_recall_10": share}
        return Setting.from_run(name, run, self._task.keys, self._task.qrels, **fields)

    @cached_property
    def _vectors(self) -> Floats:
        encode = self._engine.encode_questions
        return np.concatenate([encode(self._texts[part]) for part in self._batches(ENCODING)])

    @cached_property
    def _exact(self) -> Run:
        return self._by_engine(EXACT, self._vectors, Mode.VECTOR, exact=True)

    def _by_prefix(self, dim: int) -> Setting:
        candidates = self._shortlist + self._task.exclude_self
        run: _Run = {}
        alone: _Run = {}
        with self._engine.reading() as snapshot:
            search = PrefixSearch(snapshot, dim)
            for part in self._batches(str(dim)):
                results = search.rank(self._vectors[part], candidates)
                for ranking, result in zip((run, alone), results, strict=True):
                    ranking |= _run(snapshot, self._task, self._task.keys[part], result)
        scores = per_question(alone, self._task.keys, self._task.qrels, [MAIN])[MAIN]
        bare = float(scores.mean())
        return self._setting(str(dim), run, dim=dim, shortlist=self._shortlist, prefix_ndcg_10=bare)

    def _by_engine(
        self, name: str, questions: Sequence[str] | Floats, mode: Mode, exact: bool = False
    ) -> Run:
        """Search like users of the collection."""
        run: _Run = {}
        depth = DEPTH + self._task.exclude_self
        for part in self._batches(name):
            results = self._engine.search_batch(questions[part], depth, mode=mode, exact=exact)
            for key, hits in zip(self._task.keys[part], results, strict=True):
                run[key] = _ranking(self._task, key, ((hit.key, hit.score) for hit in hits))
        return run

    def _batches(self, step: str) -> Iterator[slice]:
        """Parts of the questions; each is reported when it is done."""
        for start in range(0, len(self._texts), _BATCH):
            part = slice(start, min(start + _BATCH, len(self._texts)))
            yield part
            self._progress(step, part.stop - part.start)


def _run(
    snapshot: contract.Snapshot, task: Task, keys: Sequence[str], result: SearchResult
) -> _Run:
    """A ranking of passages (q, depth), for questions, as one of documents by the best passage."""
    documents = documents_of(snapshot, result.rows)
    return {
        key: _ranking(task, key, zip(ranked, scores.tolist(), strict=False))
        for key, ranked, scores in zip(keys, documents, result.scores, strict=True)
    }


def _ranking(task: Task, key: str, results: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The first DEPTH documents, without the question's own if it is excluded."""
    excluded = key if task.exclude_self else None
    best = ranked(pair for pair in results if pair[0] != excluded)
    return dict(islice(best.items(), DEPTH))


def _share(run: Run, exact: Run) -> float:
    """The mean share of the first ten of `exact` that are among the first ten of `run`."""
    shares = [
        len(best & set(islice(run[key], _FIRST))) / len(best)
        for key, documents in exact.items()
        if (best := set(islice(documents, _FIRST)))
    ]
    return float(np.mean(shares)) if shares else 1.0


def _left_out(
    snapshot: contract.Snapshot, queries: Mapping[str, str], qrels: Qrels, judged: Qrels
) -> Iterator[str]:
    """Describe ignored questions and judgements, and judged documents that are missing."""
    if unjudged := len(queries) - len(judged):
        yield f"questions without a judgement, left out: {unjudged:,}"
    if unasked := len(qrels) - len(judged):
        yield f"judged questions that are not among the questions, left out: {unasked:,}"
    grades = [pair for documents in judged.values() for pair in documents.items()]
    stored = snapshot.known(document for document, _ in grades)
    missing = [grade for document, grade in grades if document not in stored]
    if missing:
        relevant = sum(grade > 0 for grade in missing)
        yield (
            "judgements of documents that the collection does not have: "
            f"{len(missing):,} of {len(grades):,}; relevant ones, which count as not found: "
            f"{relevant:,}"
        )


def _words(text: str) -> str:
    return f" {' '.join(text.split())} "


def _are_documents(
    snapshot: contract.Snapshot, questions: Mapping[str, str], judged: Qrels
) -> bool:
    """True if the questions seem to be documents that are not relevant to themselves.

    Equal keys do not suffice: two files with line numbers as keys share many.
    """
    stored = snapshot.known(questions)
    if 2 * len(stored) < len(questions) or any(judged[key].get(key, 0) > 0 for key in stored):
        return False
    contained = 0
    for document in snapshot.documents(state.id for state in stored.values()):
        contained += _words(questions[document.key]) in _words(document.full_text)
    return 2 * contained >= len(questions)


def documents_of(snapshot: contract.Snapshot, ids: npt.NDArray[np.int64]) -> Iterator[list[str]]:
    """The documents of passages (q, depth), padded with −1: a list of keys per question."""
    documents = iter(snapshot.documents(snapshot.passages(ids[ids >= 0]).documents, texts=False))
    return ([each.key for each in islice(documents, int((row >= 0).sum()))] for row in ids)


class PrefixSearch:
    """Rankings by a prefix of all passages; each index is built once."""

    def __init__(self, snapshot: Snapshot, dim: int) -> None:
        self._snapshot, self._indexes = snapshot, {}
        for row, segment in snapshot.segments.items():
            config = replace(segment.config.scanned(), prefix=dim, code=Code.FP16, stages=())
            prefixes = segment.prefixes(config)
            self._indexes[row] = prefixes, build_coarse(prefixes, config)

    def rank(self, vectors: Floats, shortlist: int) -> tuple[SearchResult, SearchResult]:
        """The ranking of the shortlist at full width, and the ranking by the prefix alone."""
        size = max(shortlist, _PASSAGES)

        def nearest(row: Any, segment: Segment, live: Allowed | None) -> SearchResult:
            prefixes, index = self._indexes[row]
            queries = prefixes.of(vectors)
            candidates = index.shortlist(queries, min(size, segment.rows), live)
            return rerank(_Prefixes(prefixes), queries, candidates, size)

        alone = self._snapshot.search_segments(nearest, size)
        # One shortlist over all segments: separate ones would depend on the number of segments.
        chosen = alone.rows[:, :shortlist]

        def reranked(row: Any, segment: Segment, _: Allowed | None) -> SearchResult:
            first, last = row.ends
            inside = np.where((first <= chosen) & (chosen <= last), chosen - first, -1)
            return segment.rerank(vectors, inside, shortlist)

        return self._snapshot.search_segments(reranked, shortlist), alone


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of a segment's rows, in the form that `rerank` takes."""

    prefixes: Prefixes

    @property
    def dim(self) -> int:
        return self.prefixes.width

    def take(self, rows: npt.NDArray[np.int64]) -> Floats:
        return self.prefixes.take(rows.ravel()).reshape(*rows.shape, self.dim)
