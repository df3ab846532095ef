"""Choose the mode and the weight of a collection by judged questions.

tune_fusion(engine, queries, qrels)                # stores them if they are not worse on held-out
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from searchengine.engine import Mode, Question, SearchEngine, contract, rank_by_weights
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building.build import Progress, silent
from searchengine.measure.judgements import MAIN, Qrels, Task, ndcg
from searchengine.measure.retrieval import batches, task
from searchengine.measure.significance import Comparison, compare
from searchengine.trainer.evaluation.intervals import Values

MIN_JUDGED = 20
"""Questions with judgements that are needed: half of them choose, half confirm."""
WEIGHTS = tuple(step / 20 for step in range(21))
"""Weights to try: 0 ranks by words only, 1 by vectors only."""

_FIRST = 10  # documents that nDCG@10 counts


@dataclass(frozen=True, slots=True)
class FusionTuning:
    """What judged questions say about mode and weight.

    Attributes:
        mode, weight: the chosen ones; the weight is 0 in the mode text and 1 in the mode vector.
        before_mode, before_weight: those of the collection before; equal to the chosen ones if
            nothing is better.
        stored: whether the collection has the chosen ones now.
        fitted, held_out: numbers of questions that choose, and that confirm.
        curve: weight → nDCG@10 of the questions that choose.
        ndcg_10: nDCG@10 of the held-out questions: "chosen", "default", "vector" and "text".
        comparison: of chosen and default on the held-out questions.
        notes: sentences about questions that were left out, and the like.
    """

    mode: Mode
    weight: float
    before_mode: Mode
    before_weight: float
    stored: bool
    fitted: int
    held_out: int
    curve: Mapping[float, float]
    ndcg_10: Mapping[str, float]
    comparison: Comparison
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        curve = [{"weight": weight, MAIN: ndcg} for weight, ndcg in self.curve.items()]
        return asdict(self) | {"curve": curve}


def tune_fusion(
    engine: SearchEngine,
    queries: Mapping[str, str],
    qrels: Qrels,
    *,
    progress: Progress = silent,
) -> FusionTuning:
    """Choose the mode and the weight with the highest nDCG@10, and use them from now on.

    Every question is encoded once and ranked once by vectors and once by words. Half of the
    questions choose, always the same half; of equal weights, the nearest to the present one. They
    are stored unless the collection's present ones have a higher nDCG@10 on the other half. A
    reindex by another encoder forgets them.

    Args:
        engine: a collection in a folder.
        queries: key → question.
        qrels: question → document → grade.
        progress: progress callback: step, questions just ranked, in all.

    Raises QueryError (no index of words, too few judged questions) and CorpusError (none).
    """
    engine.refresh()
    if not contract.has_words(engine.collection.settings):
        raise QueryError(
            f"{engine.collection.path} has no index of words, so there is nothing to weigh; its "
            "mode is vector"
        )
    judged = task(engine, queries, qrels)
    if len(judged.queries) < MIN_JUDGED:
        raise QueryError(
            f"at least {MIN_JUDGED} questions must have judgements to choose a weight, got "
            f"{len(judged.queries)}; add more, or set it yourself: set_default(weight=…)"
        )
    mode, weight = engine.default_mode, engine.default_weight
    before = {Mode.TEXT: 0.0, Mode.VECTOR: 1.0}.get(mode, weight)
    values = _values(engine, judged, sorted({*WEIGHTS, before}), progress)
    order = np.random.default_rng(0).permutation(np.argsort(judged.keys, kind="stable"))
    fitting, held_out = np.split(order, [(len(order) + 1) // 2])
    curve = {tried: float(ndcg[fitting].mean()) for tried, ndcg in values.items()}
    chosen = min(curve, key=lambda tried: (-round(curve[tried], 9), abs(tried - before)))
    comparison = compare(values[chosen][held_out], values[before][held_out])
    stored = chosen != before and comparison.difference >= 0
    chosen_mode = mode  # of a weight of 0 or 1 that is already stored, too
    if chosen != before:
        chosen_mode = {0.0: Mode.TEXT, 1.0: Mode.VECTOR}.get(chosen, Mode.HYBRID)
    if stored:
        new_weight = chosen if chosen_mode is Mode.HYBRID else None
        engine.set_default(chosen_mode, new_weight, chosen=False)
    named = {"chosen": chosen, "default": before, "vector": 1.0, "text": 0.0}
    return FusionTuning(
        chosen_mode, chosen, mode, before, stored, len(fitting), len(held_out), curve,
        {name: float(values[tried][held_out].mean()) for name, tried in named.items()},
        comparison, judged.notes,
    )  # fmt: skip


def _values(
    engine: SearchEngine, judged: Task, weights: Sequence[float], progress: Progress
) -> dict[float, Values]:
    """Weight → nDCG@10 (q,), in the order of the questions."""
    typed = list(judged.queries.values())
    read = [engine.read(text, mode=Mode.HYBRID) for text in typed]
    texts = engine.to_encode([each.text for each in read], Mode.HYBRID)
    vectors = engine.encode_questions(texts)
    alone = vectors if typed == [*texts] else engine.encode_questions(typed)
    return scores_by_weight(engine, judged, read, vectors, alone, weights, progress)


def scores_by_weight(
    engine: SearchEngine,
    judged: Task,
    read: Sequence[Question],
    vectors: Floats,
    alone: Floats,
    weights: Sequence[float],
    progress: Progress,
) -> dict[float, Values]:
    """Weight of the cosine → nDCG@10 (q,) of questions, in their order.

    0 ranks by words alone; 1 by vectors alone, which reads a question as it is typed: `alone`,
    (q, D). The others take the words that are `read` and `vectors`, (q, D).
    """
    ranked: dict[float, list[list[str]]] = {weight: [] for weight in weights}
    mixed, depth = [each for each in weights if each < 1], _FIRST + bool(judged.documents)
    for part in batches(len(read), "Ranking", progress):
        asked = [q._replace(vector=v) for q, v in zip(read[part], vectors[part], strict=True)]
        with engine.collection.reading() as snapshot:
            for by_weight in rank_by_weights(snapshot, asked, mixed, depth) if mixed else ():
                for weight, names in by_weight.items():
                    ranked[weight].append(names)
            if 1 in weights:
                texts = [each.text for each in asked]
                ranked[1.0] += engine.rank(snapshot, texts, alone[part], depth, mode=Mode.VECTOR)
    return {weight: ndcg(judged, rankings) for weight, rankings in ranked.items()}
