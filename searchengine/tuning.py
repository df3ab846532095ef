"""What surrounds tuning: questions made of documents, and what was found in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.build import Progress
from indexer.config import Structure
from indexer.segment import Segment
from indexer.tune import FEWEST, Goal, Tuning, tune
from searchengine.collection import Collection
from searchengine.encoding import check_questions
from searchengine.errors import QueryError
from searchengine.results import Stats

MOST = 2000
"""So many documents at most are taken for questions, and at most a twentieth of all, or 100."""


def check_enough(path: Path, rows: int, *, asked: bool) -> None:
    """QueryError where a collection is too small to be tuned; `asked`: by questions given."""
    if rows < FEWEST:
        raise QueryError(
            f"{path} holds {rows} passages, and tuning needs {FEWEST}; so few are scored one and "
            "all"
        )
    if not asked and rows < 4 * FEWEST:
        raise QueryError(
            f"{path} holds {rows} passages, of which {FEWEST} would be taken for questions: give "
            f"questions, or index {4 * FEWEST}"
        )


def questions_of(
    segments: Sequence[Segment],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Documents in place of questions, always the same ones for the same segments.

    Returns:
        Vectors (q, D) in the encoder's own basis, and their rows (q,), rising, numbered through
        all segments.
    """
    ends = np.cumsum([segment.rows for segment in segments])
    # What is made into a question is left out of the search: a row of every segment stays.
    others = np.delete(np.arange(ends[-1]), [0, *ends[:-1]])
    most = min(MOST, max(FEWEST, int(ends[-1]) // 20), others.size)
    chosen = np.random.default_rng(0).choice(others, most, replace=False)
    own = np.sort(chosen).astype(np.int64)
    vectors = [
        segment.vectors(own[(own >= end - segment.rows) & (own < end)] - (end - segment.rows))
        for segment, end in zip(segments, ends, strict=True)
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
    """Find a recipe and rebuild the collection by it; see SearchEngine.tune."""
    with collection.reading() as snapshot:
        deleted = any(live is not None for live in snapshot.live.values())
    if deleted:  # what was deleted must not be measured
        collection.optimize(building)
    measured = collection.segments
    rows = sum(row.rows for row in measured)
    check_enough(collection.path, rows, asked=queries is not None)
    segments = list(measured.values())
    own = None
    if queries is None:
        vectors, own = questions_of(segments)
    else:
        check_questions(queries)
        vectors = encode(queries)
    tuning = tune(segments, vectors, goal, own=own, on_step=on_step)
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


def founded_on(tuning: Mapping[str, Any], rows: int) -> str:
    """The same of a stored tuning (Tuning.as_dict), with a word on rows that came since."""
    goal = tuning["goal"]
    since = "" if rows == tuning["rows"] else f", now {rows}: tune again"
    return (
        f"recall@{goal['k']} above {goal['recall']:g} with {100 * goal['confidence']:g} % "
        f"confidence on {tuning['held_out']} held-out {_asked(tuning['source'])} "
        f"(mean {tuning['recall']:.4f}); tuned on {tuning['rows']} rows{since}"
    )


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
    return lines | {
        "tuning": founded_on(stats.tuning, stats.passages) if stats.tuning else untuned,
        "encoder": (stats.encoder or "made in Python") + layers,
        "fingerprint": stats.fingerprint,
        "bytes": str(stats.bytes),
    }


def _asked(source: str) -> str:
    return "questions" if source == "given" else "documents taken for questions"
