"""How a collection is searched: its index config, the map of questions, modes and synonyms."""

import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from searchengine.backends.contract import Backend, has_words
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.backends.folder.writer import Measured
from searchengine.backends.lexical import stored_synonyms
from searchengine.backends.mode import CHOSEN, Mode
from searchengine.encoders.loading import QUERY_MAP as QUERY_MAP
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import NO_ENCODER, TextEncoder
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building import Progress
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.tune import Goal, Tuning, check_queries, queries_needed, tune

DESCRIBED = ("questions", "mode", "figures")
"""What the setting of a map says of it, beside the matrix."""
MAX_QUERIES = 2000
"""Maximum documents taken as queries, unless the goal needs more."""
RESERVE = 3
"""Factor on the queries needed: an index config is accepted if it misses at most half of what it
may."""
USUAL_MS = 2.0
"""Milliseconds to encode a question where none was given to time it with."""
_TIMED = 100  # questions encoded one by one


def queries_of(
    segments: Sequence[Segment], live: Sequence[Allowed | None], goal: Goal
) -> tuple[Floats, list[Allowed]]:
    """Documents taken as queries, always the same ones for the same segments.

    A twentieth; more if the goal needs more, up to a tenth, unless even that is too few.

    Returns:
        Unit vectors (q, D) as the encoder gave them, and the other rows of each segment.

    Raises QueryError if there are too few.
    """
    pairs = zip(segments, live, strict=True)
    rows = [np.arange(each.rows) if only is None else only.rows for each, only in pairs]
    total, needed = sum(map(len, rows)), queries_needed(goal)
    if total < 4 * needed:
        raise QueryError(
            f"to show recall@{goal.k} above {goal.recall:g} with confidence {goal.confidence:g} by "
            f"its documents, a collection needs {4 * needed} passages, got {total}: give {needed} "
            "queries, index more, or lower the target"
        )
    bases = np.cumsum([0, *(segment.rows for segment in segments)])[:-1]
    # Queries are left out of the search, so a row of every segment stays.
    candidates = np.concatenate([ids[1:] + base for ids, base in zip(rows, bases, strict=True)])
    wanted = max(needed, total // 20, min(RESERVE * needed, total // 10))
    count = min(wanted, max(MAX_QUERIES, needed), candidates.size)
    sample = np.sort(np.random.default_rng(0).choice(candidates, count, replace=False))
    vectors, others = [], []
    for segment, ids, base in zip(segments, rows, bases, strict=True):
        taken = sample[(sample >= base) & (sample < base + segment.rows)] - base
        vectors.append(segment.vectors(taken))
        others.append(Allowed.from_rows(np.setdiff1d(ids, taken), segment.rows))
    return np.concatenate(vectors), others


def tune_collection(
    collection: Collection,
    encoder: CollectionEncoder,
    queries: Sequence[str] | Floats | None,
    goal: Goal | None,
    on_step: Callable[[str], None] | None,
    building: Progress | None,
) -> Tuning:
    """Find an index config and rebuild the collection with it; see SearchEngine.tune.

    Nothing is written before the goal is shown to hold. Deleted rows are not measured, and are left
    out of the new segments.
    """
    goal = goal or Goal()
    if queries is not None:
        check_queries(len(queries), goal)  # before they are encoded
    with collection.reading(newest=True) as snapshot:
        measured, settings = _measured(snapshot), snapshot.settings
    searched = [pair for pair in measured.values() if pair[1] is None or pair[1].size]
    segments, live = [segment for segment, _ in searched], [allowed for _, allowed in searched]
    others, ms = None, 0.0
    if queries is None:
        vectors, others = queries_of(segments, live, goal)
        if settings["encoder"]["fingerprint"] != NO_ENCODER:  # else questions are vectors
            ms = USUAL_MS
    elif isinstance(queries, np.ndarray):
        vectors = queries
    else:
        vectors = encoder.encode(queries, settings)
        ms = encoding_ms(encoder.load(settings), queries)
    tuning = tune(
        segments, vectors, goal, live=live, searched=others, on_step=on_step, question_ms=ms
    )
    with collection.writing() as writer:
        writer.rebuild(measured, tuning.config, tuning.as_dict(), building)
    return tuning


def apply(collection: Collection, config: SegmentConfig, building: Progress | None) -> None:
    """Rebuild the collection with an index config and operating point; see SearchEngine.apply."""
    with collection.reading(newest=True) as snapshot:
        storage = SegmentConfig.from_dict(snapshot.settings["index"]).storage
        config.check_width(snapshot.settings["encoder"]["dim"])
        measured = _measured(snapshot)
    with collection.writing() as writer:
        writer.rebuild(measured, replace(config, storage=storage), building=building)


def _measured(snapshot: Snapshot) -> Measured:
    return {row: (segment, snapshot.live[row]) for row, segment in snapshot.segments.items()}


def encoding_ms(encoder: TextEncoder, questions: Sequence[str]) -> float:
    """Median milliseconds to encode a question, which decide what differences of searches count."""
    texts, seconds = questions[:_TIMED], list[float]()
    for text in (*texts, *texts):  # each is encoded once before it is timed
        begin = time.perf_counter()
        encoder.encode([text], role="query")
        seconds.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(seconds[len(texts) :]))


def set_default(
    collection: Backend, mode: Mode | str | None, weight: float | None, *, chosen: bool = True
) -> None:
    """Store the mode and the weight of the cosine, in one commit; None leaves one as it is.

    `chosen`: whether a user chose it; then neither languages nor another encoder change the mode.
    Raises QueryError.
    """
    values: dict[str, Any] = {CHOSEN: True if chosen else None}
    if mode is None and weight is None:
        raise QueryError("set_default takes a mode, a weight or both, got neither")
    if mode is not None:
        modes = [choice for choice in Mode if choice is not Mode.AUTO]
        if mode not in modes:
            raise QueryError(f"the default mode must be one of {', '.join(modes)}, got {mode!r}")
        if mode != Mode.VECTOR:
            _check_words(collection, f"the mode {mode}")
        values["mode"] = Mode(mode)
    if weight is not None:
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= weight <= 1:
            raise QueryError(f"weight must be a number from 0 to 1, got {weight!r}")
        _check_words(collection, f"the weight {weight:g}")
        values["weight"] = float(weight)
    collection.configure(values)


def set_synonyms(collection: Backend, groups: Iterable[Iterable[str]]) -> None:
    """Store the synonyms of a collection in place of those before. Raises QueryError."""
    if text := stored_synonyms(groups):
        _check_words(collection, "a group of synonyms")
    collection.configure({"synonyms": text or None})


def _check_words(collection: Backend, what: str) -> None:
    if not has_words(collection.settings):
        raise QueryError(
            f"{collection.path} has no index of words, which {what} needs; its mode is vector"
        )


def map_setting(
    described: Mapping[str, Any], matrix: Floats, encoder: TextEncoder
) -> dict[str, dict[str, Any]]:
    """The setting that stores a matrix (D, D) for an encoder; `described` has what is DESCRIBED."""
    stored = b64encode(matrix.astype("<f4").tobytes()).decode()
    learnt_for = {"fingerprint": encoder.fingerprint, "dim": encoder.dim, "matrix": stored}
    return {QUERY_MAP: {name: described[name] for name in DESCRIBED} | learnt_for}
