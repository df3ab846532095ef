"""Tuning a collection, and how it ranks questions that name no mode."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Backend
from searchengine.backends.folder.collection import Collection
from searchengine.backends.mode import CHOSEN, Mode
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.encoders.questions import QUESTIONS, milliseconds_alone
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import Structure
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.tune import (
    MIN_QUERIES,
    Goal,
    Objective,
    Tuning,
    check_queries,
    queries_needed,
    tune,
)
from searchengine.trainer.errors import TrainerError
from searchengine.upkeep.stats import Guarantee, Stats

MAX_QUERIES = 2000
"""Maximum documents taken as queries, unless the goal needs more."""
RESERVE = 3
"""Factor on the queries needed: an index config is accepted if it misses at most half of what it
may."""


def check_enough(path: Path, rows: int, goal: Goal, questions: Sequence[str] | None) -> None:
    """Raise if there are too few rows or queries for the goal, before measuring.

    Raises QueryError (too few passages) or TuneError (too few questions).
    """
    needed = queries_needed(goal)
    if rows < MIN_QUERIES:
        raise QueryError(
            f"tuning needs {MIN_QUERIES} passages, {path} has {rows}; a search scores so few anyway"
        )
    if questions is not None:
        check_queries(len(questions), goal)
    elif rows < 4 * needed:
        raise QueryError(
            f"to show recall@{goal.k} above {goal.recall:g} with confidence {goal.confidence:g} by "
            f"its documents, {path} needs {4 * needed} passages, got {rows}: give {needed} "
            "queries, index more, or lower the target"
        )


def documents_as_queries(rows: int, goal: Goal) -> int:
    """How many of `rows` passages are taken as queries; they are left out of the search.

    A twentieth; more if the goal needs more, up to a tenth, unless even that is too few.
    """
    needed = queries_needed(goal)
    wanted = max(needed, rows // 20, min(RESERVE * needed, rows // 10))
    return min(wanted, max(MAX_QUERIES, needed))


def queries_of(
    segments: Sequence[Segment], live: Sequence[Allowed | None], goal: Goal
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Documents taken as queries, always the same ones for the same segments.

    Returns:
        Vectors (q, D) in the encoder's own basis, and their rows (q,), ascending, numbered
        through all segments.
    """
    rows = [
        np.arange(segment.rows) if allowed is None else allowed.rows
        for segment, allowed in zip(segments, live, strict=True)
    ]
    bases = np.cumsum([0, *(segment.rows for segment in segments)])[:-1]
    # Queries are left out of the search, so a row of every segment stays.
    candidates = np.concatenate([ids[1:] + base for ids, base in zip(rows, bases, strict=True)])
    count = min(documents_as_queries(sum(map(len, rows)), goal), candidates.size)
    sample = np.random.default_rng(0).choice(candidates, count, replace=False)
    self_queries = np.sort(sample).astype(np.int64)
    vectors = [
        segment.vectors(
            self_queries[(self_queries >= base) & (self_queries < base + segment.rows)] - base
        )
        for segment, base in zip(segments, bases, strict=True)
    ]
    return np.concatenate(vectors), self_queries


def tune_collection(
    collection: Collection,
    encoder: CollectionEncoder,
    queries: Sequence[str] | None,
    goal: Goal | None,
    on_step: Callable[[str], None] | None,
    building: Progress | None,
) -> Tuning:
    """Find an index config and rebuild the collection with it; see SearchEngine.tune.

    Nothing is written before the goal is shown to hold. Deleted rows are not measured, and are left
    out of the new segments.
    """
    goal = goal or Goal()
    with collection.reading() as snapshot:
        check_enough(collection.path, snapshot.rows, goal, queries)
        measured = {
            row: (segment, snapshot.live[row]) for row, segment in snapshot.segments.items()
        }
        settings = snapshot.settings
    searched = [pair for pair in measured.values() if pair[1] is None or pair[1].size]
    segments, live = [segment for segment, _ in searched], [allowed for _, allowed in searched]
    self_queries = None
    if queries is None:
        vectors, self_queries = queries_of(segments, live, goal)
    else:
        vectors = encoder.load(settings).encode(queries, role="query")
    tuning = tune(
        segments,
        vectors,
        goal,
        live=live,
        self_queries=self_queries,
        on_step=on_step,
        question_ms=_encoding_ms(collection, encoder, queries, goal, on_step),
    )
    collection.rebuild(measured, tuning.config, tuning.as_dict(), building)
    return tuning


def stored_goal(collection: Collection) -> Goal | None:
    """The goal of the last tuning; None if there was none."""
    tunings = (segment.manifest.tuning for segment in collection.segments.values())
    stored = next((tuning for tuning in tunings if tuning is not None), None)
    return None if stored is None else Goal(**stored["goal"])


def _encoding_ms(
    collection: Collection,
    encoder: CollectionEncoder,
    queries: Sequence[str] | None,
    goal: Goal,
    on_step: Callable[[str], None] | None,
) -> float:
    """Milliseconds to encode a question; 0 where vectors are asked for, or the encoder is missing.

    Reported, because it decides which differences of the search count.
    """
    if collection.settings["encoder"]["fingerprint"] == NO_ENCODER:
        return 0.0
    questions = queries or QUESTIONS
    report = on_step or (lambda _: None)
    try:
        encode = partial(encoder.load().encode, role="query")
        if goal.objective is Objective.THROUGHPUT:
            encode(questions)
            begin = time.perf_counter()
            encode(questions)
            milliseconds = 1e3 * (time.perf_counter() - begin) / len(questions)
        else:
            milliseconds = float(np.median(milliseconds_alone(encode, questions)))
    except (CollectionError, TrainerError) as error:
        if queries is not None:
            raise
        report(f"only the search is timed, because questions cannot be encoded: {error}")
        return 0.0
    report(f"encoding a question takes {milliseconds:.2g} ms, whatever the index config")
    return milliseconds


def in_words(config: Mapping[str, Any], dim: int) -> str:
    """An index config (SegmentConfig.as_dict) as a line, without the fields it does not use."""
    stages = "".join(f", then {keep} by {width}" for width, keep in config["stages"])
    parts = [f"shortlist {config['shortlist'] or 'measured'}{stages}"]
    structure = config["structure"]
    if structure == Structure.HNSW:
        parts.append(f"links {config['hnsw_m']}")
    if structure == Structure.IVF:
        parts.append(f"lists {config['lists'] or 'by the rows'}")
    if structure in (Structure.IVF, Structure.HNSW):
        parts.append(f"effort {config['effort'] or 'by the shortlist'}")
    if config["bounds"]:
        parts.append(f"bounds {config['bounds']}")
    over = f"over {config['prefix']} of {dim} dimensions"
    return f"{structure} {config['code']} {over}, {', '.join(parts)}"


def ladder(tuning: Tuning) -> list[dict[str, Any]]:
    """The operating points of the chosen index config and shortlist, cheapest first."""
    return [
        {
            "effort": point.config.effort,
            f"recall@{tuning.goal.k}": point.recall,
            "ms": point.ms,
            "chosen": "yes" if point.config == tuning.config else "",
        }
        for point in tuning.curve
        if replace(point.config, effort=0) == replace(tuning.config, effort=0)
    ]


def summary(tuning: Tuning, dim: int) -> str:
    """The result of a tuning in one sentence: the recall that was shown, and the index config."""
    goal = tuning.goal
    chosen = next(point for point in tuning.curve if point.config == tuning.config)
    encoding = ""
    if tuning.question_ms:
        encoding = (
            f"; encoding a question takes {tuning.question_ms:.2g} ms more, and of the points "
            "whose whole time is within 5 % of the fastest it is the one that finds most"
        )
    return (
        f"recall@{goal.k} above {goal.recall:g} with {100 * goal.confidence:g} % confidence on "
        f"{tuning.held_out} held-out {_query_source(tuning.source)} (mean {tuning.recall:.4f}): "
        f"{in_words(tuning.config.as_dict(), dim)}; "
        f"{tuning.ms:.2g} ms per query, {chosen.hot_row:.0f} hot bytes per row{encoding}"
    )


def founded_on(tuning: Mapping[str, Any], guarantee: Guarantee) -> str:
    """A stored tuning (Tuning.as_dict), and the guarantee that remains, in one sentence."""
    goal = tuning["goal"]
    shown = (
        f"recall@{goal['k']} above {goal['recall']:g} with {100 * goal['confidence']:g} % "
        f"confidence on {tuning['held_out']} held-out {_query_source(tuning['source'])} "
        f"(mean {tuning['recall']:.4f}); tuned on {tuning['rows']} rows"
    )
    if guarantee.recall is None:
        return f"guarantee withdrawn: {guarantee.reason}; tune again (it was {shown})"
    now = f"; now above {guarantee.recall:.4f}: {guarantee.reason}" if guarantee.reason else ""
    return shown + now


def described(stats: Stats) -> dict[str, str]:
    """The statistics of a collection: name → value, as text."""
    config = stats.index_config
    blocks = f" within {config['blocks']}" if config["blocks"] else ""
    scanned = f" ({stats.scanned} too small for the structure and scanned)" if stats.scanned else ""
    cut = "whole documents"
    if stats.cut is not None and stats.fingerprint == NO_ENCODER:
        cut = "as they come with the vectors"
    elif stats.cut is not None:
        size, overlap = stats.cut["tokens"], stats.cut["overlap"]
        overlapping = "an eighth" if overlap is None else overlap
        cut = f"of {size or 'as many tokens as fit'}, overlapping by {overlapping}"
    advice = "; searchengine optimize removes them" if stats.tombstones else ""
    lines = {
        "path": stats.path,
        "documents": str(stats.documents),
        "passages": f"{stats.passages} ({cut})",
        "segments": f"{stats.segments}{scanned}",
        "tombstones": f"{stats.tombstones}{advice}",
        "commit": str(stats.commit),
        "index config": in_words(config, stats.dim),
        "search": _search(stats),
        "rotation": f"{config['rotation']}{blocks}",
        "storage": config["storage"],
        "mode": _mode(stats),
        "words": stats.tokenizer + (f", ranked by {stats.words}" if stats.words else ""),
        "fields": ", ".join(stats.fields) or "none indexed",
    }
    if stats.hot_row is not None and stats.cold_row is not None:
        lines["hot"] = f"{stats.hot_row:.0f} bytes per row, should stay in memory"
        lines["cold"] = f"{stats.cold_row:.0f} bytes per row, may stay on the disk"
    if stats.pending:
        lines["pending"] = "; ".join(stats.pending)
    layers = "" if stats.layers is None else f", its first {stats.layers} layers"
    tuning = "none; searchengine tune finds the best index config for a recall target"
    if stats.tuning is not None and stats.guarantee is not None:
        tuning = founded_on(stats.tuning, stats.guarantee)
    return lines | {
        "tuning": tuning,
        "encoder": _encoder(stats) + layers,
        "fingerprint": stats.fingerprint,
        "bytes": str(stats.bytes),
    }


def _mode(stats: Stats) -> str:
    if stats.mode != Mode.HYBRID:
        return stats.mode
    return f"{stats.mode} ({stats.weight:g} of vectors, {1 - stats.weight:.2g} of words)"


def _search(stats: Stats) -> str:
    if stats.exact:
        return "exact: few enough rows to score each at full width"
    return f"by prefix, a shortlist of up to {stats.shortlist} rows a segment at full width"


def _encoder(stats: Stats) -> str:
    if stats.fingerprint == NO_ENCODER:
        return "none; documents come with their vectors"
    return stats.encoder or "made in Python"


def _query_source(source: str) -> str:
    return "queries" if source == "given" else "documents taken as queries"


def set_default(
    collection: Backend, mode: Mode | str | None, weight: float | None, *, chosen: bool = True
) -> None:
    """Store the mode and the weight of the cosine, in one commit; None leaves one as it is.

    `chosen`: whether a user chose it; then neither languages nor another encoder change the mode.
    Raises QueryError.
    """
    values: dict[str, Any] = {}
    if mode is not None:
        values["mode"] = _checked_mode(collection, mode)
    if weight is not None:
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= weight <= 1:
            raise QueryError(f"weight must be a number from 0 to 1, got {weight!r}")
        if collection.words is None:
            raise _no_words(collection, f"the weight {weight:g}")
        values["weight"] = float(weight)
    if not values:
        raise QueryError("set_default takes a mode, a weight or both, got neither")
    collection.configure(values | {CHOSEN: True if chosen else None})


def _checked_mode(collection: Backend, mode: Mode | str) -> Mode:
    modes = [choice for choice in Mode if choice is not Mode.AUTO]
    if mode not in modes:
        raise QueryError(f"the default mode must be one of {', '.join(modes)}, got {mode!r}")
    if mode != Mode.VECTOR and collection.words is None:
        raise _no_words(collection, f"the mode {mode}")
    return Mode(mode)


def _no_words(collection: Backend, what: str) -> QueryError:
    return QueryError(
        f"{collection.path} has no index of words, which {what} needs; its mode is vector"
    )
