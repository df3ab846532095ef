"""Retrieval quality of a collection on judged questions, setting by setting.

A setting is a way to search: as users of the collection do, exactly, over one prefix length, at the
collection's operating point, by words, or by both. searchengine.measure.comparison measures its
results.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.engine import Mode, SearchEngine, contract
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building.build import Progress, silent
from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.config import Code
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, rerank
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.rotation import Prefixes
from searchengine.measure import judgements
from searchengine.measure.comparison import DEPTH, EXACT, Setting, per_question
from searchengine.measure.judgements import Qrels, Task, ranked

CONFIGURED = "configured"
"""Name of the setting by vectors at the collection's operating point."""

_BATCH = 256  # questions whose documents are in memory with their texts
_SPARE = 100  # more rows by 16 bits, some of which are equal there


def batches(count: int, step: str, progress: Progress) -> Iterator[slice]:
    """Parts of `count` questions; each is reported when it is done."""
    for start in range(0, count, _BATCH):
        part = slice(start, min(start + _BATCH, count))
        yield part
        progress(step, part.stop - part.start, count)


def task(engine: SearchEngine, queries: Mapping[str, str], qrels: Qrels) -> Task:
    """The questions that have judgements. Raises CorpusError if none has."""
    questions = judgements.judged(queries, qrels)
    judged = {key: qrels[key] for key in questions}
    with engine.collection.reading() as snapshot:
        notes = [*_left_out(snapshot, queries, qrels, judged)]
        documents = _documents_among(snapshot, questions, judged)
    if documents:
        notes.append(
            f"questions that are documents, left out of their own results: {len(documents):,}"
        )
    return Task(questions, judged, documents, tuple(notes))


def default_dims(engine: SearchEngine) -> tuple[int, ...]:
    """The prefix lengths of the encoder's training.

    None of a collection on a server, whose rows cannot be ranked by another prefix.
    """
    return () if "://" in str(engine.collection.path) else engine.encoder.matryoshka_dims


def default_modes(engine: SearchEngine) -> tuple[Mode, ...]:
    """The modes to measure by default: what users get; then by vectors, unless it is by words."""
    return (Mode.AUTO,) if engine.default_mode is Mode.TEXT else (Mode.AUTO, Mode.VECTOR)


def measure(
    engine: SearchEngine,
    task: Task,
    dims: Sequence[int] | None = (),
    shortlist: int = 100,
    modes: Sequence[Mode | str] | None = None,
    progress: Progress = silent,
) -> Iterator[Setting]:
    """Measure the settings of each mode in turn; the questions are encoded once.

    Mode auto has one setting, the search of the collection's users: a search that names no mode. It
    is called "hybrid", "text" or "configured", as the collection stores, and is measured once.

    Mode vector has "exact" at full width, without a shortlist; one setting per prefix length, with
    its number as name; and "configured", at the collection's operating point. The shortlist of a
    prefix length is the exact ranking of the prefix over all segments, independent of the
    collection's structure, so that it measures the encoder and not the index. Modes "text" and
    "hybrid" have one setting each.

    `dims`: None for `default_dims`; `modes`: None for `default_modes`. Raises QueryError for an
    invalid prefix length or mode, and CollectionError if the collection is empty.
    """
    rows, texts = names(engine, dims, modes), list(task.queries.values())
    if not len(engine):
        raise CollectionError(f"{engine.collection.path} is empty; add documents before measuring")
    vectors: Floats | None = None
    for name in rows:
        mode = Mode(name) if name in (Mode.TEXT, Mode.HYBRID) else Mode.VECTOR
        if mode is Mode.VECTOR and vectors is None:
            parts = batches(len(texts), "Encoding", progress)
            vectors = np.concatenate([engine.encode_questions(texts[part]) for part in parts])
        asked: Any = vectors if mode is Mode.VECTOR else texts
        dim = engine.encoder.dim if name == EXACT else int(name) if name.isdecimal() else None
        kept = shortlist if name.isdecimal() else None
        if name == CONFIGURED:
            with engine.collection.reading() as snapshot:
                kept = snapshot.shortlist
        search = _search(engine, name, mode, task, shortlist)
        run: dict[str, Mapping[str, float]] = {}
        for part in batches(len(texts), f"Evaluating {name}", progress):
            for key, results in zip(task.keys[part], search(asked[part]), strict=True):
                best = ranked(pair for pair in results if not task.is_self(key, pair[0]))
                run[key] = dict(islice(best.items(), DEPTH))
        scores, default = per_question(run, task.keys, task.qrels), _name(engine.default_mode)
        yield Setting(name, run, scores, dim, kept, mode, name == default)


def names(
    engine: SearchEngine,
    dims: Sequence[int] | None = (),
    modes: Sequence[Mode | str] | None = None,
) -> list[str]:
    """The names of the settings that `measure` yields, in their order. Raises QueryError."""
    full = engine.collection.settings["encoder"]["dim"]
    if modes is None:
        modes = (Mode.AUTO, Mode.VECTOR) if dims else default_modes(engine)
    if dims is None:
        dims = default_dims(engine) if Mode.VECTOR in modes else ()
    for dim in dims:
        if not 1 <= dim <= full:
            raise QueryError(f"a prefix must be between 1 and {full}, got {dim}")
    settings: list[str] = []
    for mode in modes:
        if mode not in list(Mode):
            raise QueryError(f"mode must be one of {', '.join(Mode)}, got {mode!r}")
        if mode == Mode.VECTOR:
            settings += [EXACT, *(str(dim) for dim in dims if dim != full), CONFIGURED]
        else:
            settings.append(_name(engine.default_mode if mode == Mode.AUTO else Mode(mode)))
    return list(dict.fromkeys(settings))


def _name(mode: Mode) -> str:
    """The name of the setting that searches as users do, in this mode."""
    return CONFIGURED if mode is Mode.VECTOR else str(mode)


def _search(
    engine: SearchEngine, name: str, mode: Mode, task: Task, shortlist: int
) -> Callable[[Any], Iterable[Iterable[tuple[str, float]]]]:
    """The search of a setting: questions → for each its documents and their scores."""
    more = bool(task.documents)  # for the one that is left out
    if name.isdecimal():
        return PrefixSearch(engine, int(name), shortlist + more).rank

    def search_as_users(questions: Any) -> Iterator[list[tuple[str, float]]]:
        depth, exact = DEPTH + more, name == EXACT
        for hits in engine.search_batch(questions, depth, mode=mode, exact=exact):
            yield [(hit.key, hit.score) for hit in hits]

    return search_as_users


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


def _documents_among(
    snapshot: contract.Snapshot, questions: Mapping[str, str], judged: Qrels
) -> frozenset[str]:
    """The questions that are a document of the same key, and are not judged relevant to it.

    Equal keys do not suffice: two files with line numbers as keys share many.
    """

    def words(text: str) -> str:
        return f" {' '.join(text.split())} "

    ids = (state.id for state in snapshot.known(questions).values())
    return frozenset(
        document.key
        for document in snapshot.documents(ids)
        if words(questions[document.key]) in words(document.full_text)
        and judged[document.key].get(document.key, 0) <= 0
    )


class PrefixSearch:
    """Searches by the `size` passages that are nearest by a prefix, scored at full width."""

    def __init__(self, engine: SearchEngine, dim: int, size: int) -> None:
        self._engine, self._size, self._indexes = engine, size, {}
        with engine.reading() as snapshot:
            for row, segment in snapshot.segments.items():
                config = replace(segment.config.scanned(), prefix=dim, code=Code.FP16, stages=())
                prefixes = segment.prefixes(config)
                self._indexes[row] = _Prefixes(prefixes), build_coarse(prefixes, config)

    def rank(self, vectors: Floats) -> Iterator[Iterable[tuple[str, float]]]:
        """The documents of questions (q, D), each with the score of its best passage."""

        def nearest(row: Any, segment: Segment, live: Allowed | None) -> SearchResult:
            store, index = self._indexes[row]
            queries = store.prefixes.of(vectors)
            candidates = index.shortlist(queries, min(self._size + _SPARE, segment.rows), live)
            return rerank(store, queries, candidates, self._size)

        def reranked(row: Any, segment: Segment, _: Allowed | None) -> SearchResult:
            first, last = row.ends
            inside = np.where((first <= chosen) & (chosen <= last), chosen - first, -1)
            return segment.rerank(vectors, inside, self._size)

        with self._engine.reading() as snapshot:
            # One shortlist over all segments: separate ones would depend on their number.
            chosen = snapshot.search_segments(nearest, self._size).rows
            result = snapshot.search_segments(reranked, self._size)
            ids = snapshot.passages(result.rows[result.rows >= 0]).documents
            documents = iter(snapshot.documents(ids, texts=False))
            for rows, scores in zip(result.rows, result.scores.tolist(), strict=True):
                keys = [each.key for each in islice(documents, int((rows >= 0).sum()))]
                yield zip(keys, scores, strict=False)


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The prefixes of a segment's rows, in the form that `rerank` takes."""

    prefixes: Prefixes

    @property
    def dim(self) -> int:
        return self.prefixes.width

    def take(self, rows: npt.NDArray[np.int64]) -> Floats:
        return self.prefixes.take(rows.ravel()).reshape(*rows.shape, self.dim)
