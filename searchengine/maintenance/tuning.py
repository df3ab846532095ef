"""What surrounds tuning: questions made of documents, and what was found in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.building.build import Progress
from indexer.config import Structure
from indexer.search.allowed import Allowed
from indexer.segment import Segment
from indexer.tuning.tune import MIN_QUERIES, Goal, Tuning, check_queries, queries_needed, tune
from searchengine.errors import QueryError
from searchengine.ingest.encoding import check_questions
from searchengine.maintenance.guarantee import Guarantee
from searchengine.maintenance.stats import Stats
from searchengine.storage.collection import Collection

MOST = 2000
"""No more documents are taken for questions, unless the goal cannot be shown with fewer."""
AMPLE = 3
"""Times the questions needed, so that a recipe that misses half of what it may is not refused."""


def check_enough(path: Path, rows: int, goal: Goal, questions: Sequence[str] | None) -> None:
    """Raise where the goal cannot be shown with what there is, before anything is measured.

    Raises QueryError (too few passages) or TuneError (too few questions).
    """
    needed = queries_needed(goal)
    if rows < MIN_QUERIES:
        raise QueryError(
            f"{path} holds {rows} passages, and tuning needs {MIN_QUERIES}; so few are scored one "
            "and all"
        )
    if questions is not None:
        check_queries(len(questions), goal)
    elif rows < 4 * needed:
        raise QueryError(
            f"{path} holds {rows} passages, of which {needed} would be taken for questions to show "
            f"recall@{goal.k} above {goal.recall:g} with confidence {goal.confidence:g}: give "
            f"{needed} questions, index {4 * needed} passages, or lower the target"
        )


def documents_taken(rows: int, goal: Goal) -> int:
    """How many of `rows` passages stand in for questions: what is left out is not measured.

    A twentieth; more where the goal takes more to show, but then no more than a tenth, unless
    even that is too few to show it at all.
    """
    needed = queries_needed(goal)
    wanted = max(needed, rows // 20, min(AMPLE * needed, rows // 10))
    return min(wanted, max(MOST, needed))


def questions_of(
    segments: Sequence[Segment], live: Sequence[Allowed | None], goal: Goal
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Documents in place of questions, always the same ones for the same segments.

    Returns:
        Vectors (q, D) in the encoder's own basis, and their rows (q,), rising, numbered through
        all segments.
    """
    rows = [
        np.arange(segment.rows) if only is None else only.rows
        for segment, only in zip(segments, live, strict=True)
    ]
    bases = np.cumsum([0, *(segment.rows for segment in segments)])[:-1]
    # What is made into a question is left out of the search: a row of every segment stays.
    others = np.concatenate([each[1:] + base for each, base in zip(rows, bases, strict=True)])
    count = min(documents_taken(sum(map(len, rows)), goal), others.size)
    chosen = np.random.default_rng(0).choice(others, count, replace=False)
    own = np.sort(chosen).astype(np.int64)
    vectors = [
        segment.vectors(own[(own >= base) & (own < base + segment.rows)] - base)
        for segment, base in zip(segments, bases, strict=True)
    ]
    return np.concatenate(vectors), own


def tune_collection(
    collection: Collection,
    encode: Callable[[Sequence[str]], npt.NDArray[np.float32]],
    queries: Sequence[str] | None,
    goal: Goal | None,
    on_step: Callable[[str], None] | None,
    building: Progress | None,
) -> Tuning:
    """Find a recipe and rebuild the collection by it; see SearchEngine.tune.

    Nothing is written before the goal was shown to hold. What was deleted is not measured, and is
    left out of what is built then.
    """
    goal = goal or Goal()
    if queries is not None:
        check_questions(queries)
    with collection.reading() as snapshot:
        check_enough(collection.path, snapshot.rows, goal, queries)
        measured = {row: (each, snapshot.live[row]) for row, each in snapshot.segments.items()}
    there = [(each, live) for each, live in measured.values() if live is None or live.size]
    segments, live = [each for each, _ in there], [only for _, only in there]
    own = None
    if queries is None:
        vectors, own = questions_of(segments, live, goal)
    else:
        vectors = encode(queries)
    tuning = tune(segments, vectors, goal, live=live, own=own, on_step=on_step)
    collection.rebuild(measured, tuning.config, tuning.as_dict(), building)
    return tuning


def in_words(recipe: Mapping[str, Any], dim: int) -> str:
    """A recipe (SegmentConfig.as_dict) as a line: what plays no part in it is left out."""
    stages = "".join(f", then {keep} by {width}" for width, keep in recipe["stages"])
    parts = [f"shortlist {recipe['shortlist']}{stages}"]
    structure = recipe["structure"]
    if structure in (Structure.HNSW, Structure.NSG):
        parts.append(f"links {recipe['hnsw_m']}")
    if structure == Structure.IVF:
        parts.append(f"lists {recipe['lists'] or 'by the rows'}")
    if structure in (Structure.IVF, Structure.HNSW):
        parts.append(f"effort {recipe['effort'] or 'by the shortlist'}")
    if recipe["bounds"]:
        parts.append(f"bounds {recipe['bounds']}")
    over = f"over {recipe['prefix']} of {dim} numbers"
    return f"{structure} {recipe['code']} {over}, {', '.join(parts)}"


def ladder(tuning: Tuning) -> list[dict[str, Any]]:
    """The operating points of the recipe and shortlist that were chosen, cheapest first."""
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
    """What was shown, and the recipe it was shown for, in one sentence."""
    goal = tuning.goal
    chosen = next(point for point in tuning.curve if point.config == tuning.config)
    return (
        f"recall@{goal.k} above {goal.recall:g} with {100 * goal.confidence:g} % confidence on "
        f"{tuning.held_out} held-out {_asked(tuning.source)} (mean {tuning.recall:.4f}): "
        f"{in_words(tuning.config.as_dict(), dim)}; "
        f"{tuning.ms:.2g} ms a question, {chosen.hot_row:.0f} hot bytes a row"
    )


def founded_on(tuning: Mapping[str, Any], guarantee: Guarantee) -> str:
    """A stored tuning (Tuning.as_dict), and what is left of its guarantee."""
    goal = tuning["goal"]
    shown = (
        f"recall@{goal['k']} above {goal['recall']:g} with {100 * goal['confidence']:g} % "
        f"confidence on {tuning['held_out']} held-out {_asked(tuning['source'])} "
        f"(mean {tuning['recall']:.4f}); tuned on {tuning['rows']} rows"
    )
    if guarantee.recall is None:
        return f"guarantee withdrawn: {guarantee.reason}; tune again (it was {shown})"
    now = f"; now above {guarantee.recall:.4f}: {guarantee.reason}" if guarantee.reason else ""
    return shown + now


def described(stats: Stats) -> dict[str, str]:
    """What a collection holds and how it is searched, a line each."""
    recipe = stats.recipe
    turned = f" within {recipe['blocks']}" if recipe["blocks"] else ""
    scanned = f" ({stats.scanned} too small for it and scanned)" if stats.scanned else ""
    cut = "documents are whole"
    if stats.cut is not None:
        size, overlap = stats.cut["tokens"], stats.cut["overlap"]
        overlapping = "an eighth" if overlap is None else overlap
        cut = f"of {size or 'as many tokens as fit'}, overlapping by {overlapping}"
    lighten = "; searchengine optimize drops them" if stats.tombstones else ""
    lines = {
        "path": stats.path,
        "documents": str(stats.documents),
        "passages": f"{stats.passages} ({cut})",
        "segments": f"{stats.segments}{scanned}",
        "tombstones": f"{stats.tombstones}{lighten}",
        "commit": str(stats.commit),
        "recipe": in_words(recipe, stats.dim),
        "rotation": f"{recipe['rotation']}{turned}",
        "storage": recipe["storage"],
        "words": stats.tokenizer,
        "fields": ", ".join(stats.fields) or "none indexed",
    }
    if stats.hot_row is not None and stats.cold_row is not None:
        lines["hot"] = f"{stats.hot_row:.0f} bytes a row, to stay in memory"
        lines["cold"] = f"{stats.cold_row:.0f} bytes a row, may stay on the disk"
    layers = "" if stats.layers is None else f", its first {stats.layers} layers"
    untuned = "none; searchengine tune finds the cheapest recipe for a recall target"
    tuning = untuned
    if stats.tuning is not None and stats.guarantee is not None:
        tuning = founded_on(stats.tuning, stats.guarantee)
    return lines | {
        "tuning": tuning,
        "encoder": (stats.encoder or "made in Python") + layers,
        "fingerprint": stats.fingerprint,
        "bytes": str(stats.bytes),
    }


def _asked(source: str) -> str:
    return "questions" if source == "given" else "documents taken for questions"
