"""What each stage of a search gives and costs: nDCG@10 and milliseconds, stage by stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from searchengine.engine import Mode, SearchEngine
from searchengine.errors import QueryError
from searchengine.measure.judgements import Task, ranked
from searchengine.trainer.evaluation.ranking import MAIN, per_question
from searchengine.trainer.evaluation.significance import (
    MIN_QUESTIONS,
    Comparison,
    Values,
    compare,
    holm,
    interval,
    significant,
)

WORDS, VECTORS, BOTH = "words", "vectors", "words and vectors"
TYPOS, BOOST, CROSS_ENCODER = "typing errors", "boost", "cross-encoder"
_SHOWN = 10
_FIRST = "a question that comes before the others"  # and is not timed

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StageRow:
    """A search with the stages up to this one, measured.

    Attributes:
        stage: its last stage.
        options: the options of the search.
        scores: nDCG@10 of each question, (q,).
        milliseconds: wall time of each question, asked alone, (q,); with its encoding.
        before: stage of the row that it is compared with; None: it is the first of its kind.
        comparison: the difference in nDCG@10 to that row.
        p: its p-value, corrected for the number of comparisons (Holm).
    """

    stage: str
    options: Options
    scores: Values
    milliseconds: Values
    before: str | None = None
    comparison: Comparison | None = None
    p: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, with six significant digits."""
        enough, comparison = len(self.scores) >= MIN_QUESTIONS, self.comparison
        low, median, high = np.percentile(self.milliseconds, [25, 50, 75]).tolist()
        values = {
            "stage": self.stage,
            "options": dict(self.options),
            "questions": len(self.scores),
            MAIN: float(self.scores.mean()),
            "interval": list(interval(self.scores)) if enough else None,
            "milliseconds": median,
            "milliseconds_quartiles": [low, high],
            "before": self.before,
            "difference": None if comparison is None else comparison.difference,
            "difference_interval": None
            if comparison is None or not enough
            else [comparison.low, comparison.high],
            "p": self.p,
        }
        return {name: significant(value) for name, value in values.items()}

    def as_cells(self) -> dict[str, Any]:
        """The row as text."""
        row = self.as_dict()

        def ends(name: str, form: str, to: str) -> str:
            return "" if row[name] is None else f" [{to.join(form.format(e) for e in row[name])}]"

        difference = row["difference"]
        low, high = row["milliseconds_quartiles"]
        return {
            "stage": self.stage,
            MAIN: f"{row[MAIN]:.3f}{ends('interval', '{:.3f}', '–')}",
            "ms": f"{row['milliseconds']:.2f} ({low:.2f}–{high:.2f})",
            "difference": None
            if difference is None
            else f"{difference:+.3f}{ends('difference_interval', '{:+.3f}', ' to ')}",
            "p": None if self.p is None else "<0.001" if self.p < 0.001 else f"{self.p:.3f}",
        }


def ladder(
    engine: SearchEngine,
    boost: str | None = None,
    cross_encoder: str | None = None,
    candidates: int | None = None,
) -> dict[str, Options]:
    """The stages of a collection's search in order, each with the options of a search up to it.

    Words and vectors alone come first; then both, if the collection has both; then each further
    stage on top of all before. Raises QueryError for candidates without a cross-encoder, and for
    one beside a boost.
    """
    if candidates is not None and cross_encoder is None:
        raise QueryError("candidates are those of a cross-encoder; name one")
    if boost is not None and cross_encoder is not None:
        raise QueryError(
            "a cross-encoder orders by its own score, which no boost multiplies; measure them in "
            "two runs"
        )
    has_words, encodes = engine.collection.words is not None, engine.encodes
    stages: dict[str, dict[str, Any]] = {}
    if has_words:
        stages[WORDS] = {"mode": str(Mode.TEXT), "typo_tolerance": False}
    if encodes:
        stages[VECTORS] = {"mode": str(Mode.VECTOR)}
    if not stages:
        raise QueryError(
            f"{engine.collection.path} has neither words nor an encoder, so no question in words "
            "finds anything in it"
        )
    if has_words and encodes:
        stages[BOTH] = {"mode": str(Mode.HYBRID), "typo_tolerance": False}
    options = dict(list(stages.values())[-1])
    if engine.collection.replaces_words:
        options = stages[TYPOS] = options | {"typo_tolerance": True}
    if boost is not None:
        options = stages[BOOST] = options | {"boost": boost}
    if cross_encoder is not None:
        read = {} if candidates is None else {"candidates": candidates}
        stages[CROSS_ENCODER] = options | {"cross_encoder": cross_encoder} | read
    return dict(stages)


def measure(
    engine: SearchEngine,
    task: Task,
    stages: Mapping[str, Options],
    progress: Callable[[int], object] = lambda done: None,
) -> list[StageRow]:
    """Ask each question once for each stage, one at a time, in turns; a row for each stage.

    Both words and vectors are compared with the better of the two, every further stage with the one
    before. A question is encoded once, before its searches; each search that takes this vector from
    the cache is as slow as if it had encoded it. `progress`: called with the number of questions
    just done.
    """
    names, keys = list(stages), task.keys
    runs: dict[str, dict[str, Mapping[str, float]]] = {name: {} for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        engine.search(_FIRST, _SHOWN, **stages[name])
    for turn, (key, question) in enumerate(task.queries.items()):
        encoding = 0.0
        if any(stages[name]["mode"] != Mode.TEXT for name in names):
            begin = perf_counter()
            engine.encode_questions(SearchEngine.to_encode([question], Mode.HYBRID))
            encoding = perf_counter() - begin
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            before, begin = engine.question_vectors()["encoded"], perf_counter()
            hits = engine.search(question, _SHOWN + task.exclude_self, **stages[name])
            taken = perf_counter() - begin
            if stages[name]["mode"] != Mode.TEXT and engine.question_vectors()["encoded"] == before:
                taken += encoding
            seconds[name].append(taken)
            found = ((h.key, h.score) for h in hits if not (task.exclude_self and h.key == key))
            runs[name][key] = ranked(islice(found, _SHOWN))
        progress(1)
    rows = [
        StageRow(
            name,
            stages[name],
            per_question(runs[name], keys, task.qrels, [MAIN])[MAIN],
            1e3 * np.array(seconds[name]),
        )
        for name in names
    ]
    return _compared(rows)


def _compared(rows: Sequence[StageRow]) -> list[StageRow]:
    """The rows with their comparisons."""
    by_name = {row.stage: row for row in rows}
    result = list(rows)
    for i, row in enumerate(rows):
        before = rows[i - 1] if i else None
        if row.stage == VECTORS:
            before = None
        elif row.stage == BOTH:
            before = max(by_name[VECTORS], by_name[WORDS], key=lambda each: each.scores.mean())
        if before is not None:
            comparison = compare(row.scores, before.scores)
            result[i] = replace(row, before=before.stage, comparison=comparison)
    compared = [i for i, row in enumerate(result) if row.comparison is not None]
    ps = holm([row.comparison.p for row in result if row.comparison is not None])
    for i, p in zip(compared, ps, strict=True):
        result[i] = replace(result[i], p=p)
    return result
