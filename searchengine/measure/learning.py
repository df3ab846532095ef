"""What judged questions teach a collection: a map of the question's vector, or mode and weight.

learn(engine, queries, qrels)          # a matrix W (D, D), stored if held-out questions gain
tune_fusion(engine, queries, qrels)    # mode and weight, unless they are worse on held-out ones

The loss of a question is the mean, over its relevant documents, of −log softmax of their cosine
against those of the documents that are relevant to other questions: against all documents, W would
lead away from those that nobody judged. Each step moves W by the ridge regression, on the
questions, of the directions in which their losses fall. It begins at the identity; how many steps
are taken is chosen by cross-validation. To stop early keeps W near the identity, as a ridge would
(Bühlmann and Yu, "Boosting With the L2 Loss", JASA 2003).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from searchengine.corpus.analyzer import normalized
from searchengine.engine import (
    Mode,
    Question,
    SearchEngine,
    contract,
    rank_by_weights,
    rank_keys,
    tuning,
)
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building import Progress, silent
from searchengine.measure.judgements import Qrels, Task, default_mode, read_questions
from searchengine.measure.metrics import ndcg
from searchengine.measure.retrieval import batches, task
from searchengine.measure.significance import Comparison, compare
from searchengine.trainer.evaluation.intervals import Values

TEMPERATURE, STEP, RIDGE = 0.05, 0.15, 4.0
"""Of the softmax; share of a Newton step for documents that are spread evenly over the dimensions;
the ridge, in mean eigenvalues of the covariance of the questions.
Chosen on NFCorpus, from its training to its development questions."""
STEPS = (1, 2, 4, 8)
"""Numbers of steps to choose from."""
TOO_FEW, MAX_QUESTIONS = 100, 5_000
"""Questions from which nothing was gained on any collection measured; that are learnt from."""
FOLDS, MAX_P = 3, 0.01
MIN_JUDGED = 20
"""Questions with judgements that mode and weight need: half of them choose, half confirm."""
ALL_WEIGHTS = tuple(step / 20 for step in range(21))
"""Weights to try: 0 ranks by words only, 1 by vectors only."""
_BATCH = 256  # questions compared at a time
Places = NDArray[np.int64]
Table = dict[int, dict[float, Values]]
"""Steps → weight of the cosine → nDCG@10 of each question, (q,)."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What judged questions say about a map.

    stored: whether searches use the map from now on. questions: number of judged ones. mode: the
    collection's default. steps: 0: the questions stay as they are. figures: nDCG@10 of held-out
    questions, "before" and "after", by vectors and in the default mode; comparison: of the latter.
    """

    stored: bool
    questions: int
    mode: str
    steps: int
    figures: Mapping[str, Mapping[str, float]]
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class FusionTuning:
    """What judged questions say about mode and weight.

    mode, weight: the chosen ones; the weight is 0 in the mode text and 1 in the mode vector.
    stored: whether the collection has them now. held_out: number of questions that confirm.
    ndcg_10: of these, "chosen", "default", "vector" and "text"; comparison: of chosen and default.
    notes: sentences about questions that were left out.
    """

    mode: Mode
    weight: float
    before_mode: Mode
    before_weight: float
    stored: bool
    held_out: int
    ndcg_10: Mapping[str, float]
    comparison: Comparison
    notes: tuple[str, ...]


def tune_fusion(
    engine: SearchEngine,
    queries: Mapping[str, str],
    qrels: Qrels,
    *,
    progress: Progress = silent,
) -> FusionTuning:
    """Choose the mode and the weight with the highest nDCG@10, and use them from now on.

    Half of the questions choose, always the same half; of equal weights, the nearest to the present
    one. They are stored unless the collection's present ones have a higher nDCG@10 on the other
    half. A reindex by another encoder forgets them. progress: called with the step, the questions
    just ranked, and all.

    Raises QueryError (no index of words, too few judged questions) and CorpusError (none).
    """
    engine.refresh()
    if not contract.has_words(engine.collection.settings):
        raise QueryError(
            f"{engine.collection.path} has no index of words, so there is nothing to weigh; its "
            "mode is vector"
        )
    judged = task(engine, queries, qrels)
    if len(judged.keys) < MIN_JUDGED:
        raise QueryError(
            f"at least {MIN_JUDGED} questions must have judgements to choose a weight, got "
            f"{len(judged.keys)}; judge more, or set it: engine.set_default(weight=…)"
        )
    mode, weight = default_mode(engine), engine.stats().weight
    before = {Mode.TEXT: 0.0, Mode.VECTOR: 1.0}.get(mode, weight)
    values = _values(engine, judged, sorted({*ALL_WEIGHTS, before}), progress)
    order = np.random.default_rng(0).permutation(np.argsort(judged.keys, kind="stable"))
    fitting, held_out = np.split(order, [(len(order) + 1) // 2])
    curve = {tried: float(ndcg[fitting].mean()) for tried, ndcg in values.items()}
    chosen = min(curve, key=lambda tried: (-round(curve[tried], 9), abs(tried - before)))
    comparison = compare(values[chosen][held_out], values[before][held_out])
    stored = chosen != before and comparison.difference >= 0
    # A weight of 0 or 1 may be stored in the mode hybrid, and then stays.
    changed = {0.0: Mode.TEXT, 1.0: Mode.VECTOR}.get(chosen, Mode.HYBRID)
    chosen_mode = mode if chosen == before else changed
    if stored:
        new_weight = chosen if changed is Mode.HYBRID else None
        tuning.set_default(engine.collection, changed, new_weight, chosen=False)
    named = {"chosen": chosen, "default": before, "vector": 1.0, "text": 0.0}
    means = {name: float(values[tried][held_out].mean()) for name, tried in named.items()}
    choice = chosen_mode, chosen, mode, before, stored, len(held_out)
    return FusionTuning(*choice, means, comparison, judged.notes)


def _values(
    engine: SearchEngine, judged: Task, weights: Sequence[float], progress: Progress
) -> dict[float, Values]:
    """Weight → nDCG@10 (q,), in the order of the questions. 1 reads a question as it is typed."""
    typed = [*judged.queries.values()]
    read, texts = read_questions(engine, typed, Mode.HYBRID)
    vectors = engine.encode(texts)
    alone = vectors if typed == [*texts] else engine.encode(typed)
    return _scores(engine, judged, read, vectors, alone, weights, progress)


def _scores(
    engine: SearchEngine,
    judged: Task,
    read: Sequence[Question],
    vectors: Floats,
    alone: Floats,
    weights: Sequence[float],
    progress: Progress,
) -> dict[float, Values]:
    """Weight of the cosine → nDCG@10 (q,) of questions, in their order.

    Each is ranked once by vectors and once by words. 0 ranks by words alone; 1 by the vectors
    `alone`, (q, D). The others take the words that are `read` and `vectors`, (q, D).
    """
    ranked: dict[float, list[list[str]]] = {weight: [] for weight in weights}
    mixed, depth = [each for each in weights if each < 1], judged.depth
    for part in batches(len(read), "Ranking", progress):
        asked = [q._replace(vector=v) for q, v in zip(read[part], vectors[part], strict=True)]
        with engine.collection.reading() as snapshot:
            for by_weight in rank_by_weights(snapshot, asked, mixed, depth) if mixed else ():
                for weight, names in by_weight.items():
                    ranked[weight].append(names)
            if 1 in weights:
                texts = [each.text for each in asked]
                ranked[1.0] += rank_keys(snapshot, texts, alone[part], depth, Mode.VECTOR)
    return {weight: ndcg(judged, rankings) for weight, rankings in ranked.items()}


def learn(
    engine: SearchEngine,
    queries: Mapping[str, str],
    qrels: Qrels,
    *,
    progress: Progress = silent,
) -> Learning:
    """Learn a map of the question's vector, and search by it if held-out questions gain.

    In the modes vector and hybrid; no document is encoded again. Other processes follow at their
    next refresh; a reindex drops it. queries: more than 100, better 1,000. Raises QueryError (too
    few questions; the mode is text; no relevant document is stored).
    """
    engine.refresh()
    mode = default_mode(engine)
    identity = engine.collection.settings["encoder"]
    if mode is Mode.TEXT:
        raise QueryError(f"{engine.collection.path} is searched by words (mode text)")
    keys = _judged(queries, qrels)
    read, encoded = read_questions(engine, [queries[key] for key in keys], mode)
    texts, parts = [*map(normalized, encoded)], batches(len(keys), "Encoding", progress)
    blocks = [engine.encoder.load().encode(texts[part], role="query") for part in parts]
    vectors = np.concatenate(blocks, dtype=np.float32)
    documents = [[name for name, grade in qrels[key].items() if grade > 0] for key in keys]
    lessons = _Lessons(vectors, *_passages(engine, documents), progress)
    fold = folds(documents, FOLDS)
    weights = {"vector": 1.0, str(mode): engine.stats().weight if mode is Mode.HYBRID else 1.0}
    questions = Task({key: queries[key] for key in keys}, {key: qrels[key] for key in keys})
    table = {
        steps: _scores(engine, questions, read, mapped, mapped, [*{*weights.values()}], progress)
        for steps, mapped in lessons.held_out(fold).items()
    }
    learning = _verdict(table, weights, fold)
    if learning.stored:
        *_, matrix = lessons.maps(np.arange(len(keys)), learning.steps)
        if engine.collection.settings["encoder"] != identity:
            raise CollectionError(f"{engine.collection.path} was reindexed meanwhile; learn again")
        stored = tuning.map_setting(asdict(learning), matrix, engine.encoder.load())
        engine.collection.configure(stored)
    return learning


def forget(engine: SearchEngine) -> bool:
    """Remove a map; False if there is none."""
    engine.refresh()
    is_stored = tuning.QUERY_MAP in engine.collection.settings
    engine.collection.configure({tuning.QUERY_MAP: None})
    return is_stored


def _judged(queries: Mapping[str, str], qrels: Qrels) -> list[str]:
    """The keys of the questions to learn from, always the same. Raises QueryError for too few."""
    keys = sorted(key for key in queries if any(grade > 0 for grade in qrels.get(key, {}).values()))
    if len(keys) <= TOO_FEW:
        raise QueryError(
            f"{len(keys)} judged questions are too few: maps learnt from up to {TOO_FEW} gained "
            "nothing on any collection measured; gather about 1,000"
        )
    if len(keys) > MAX_QUESTIONS:
        keys = sorted(np.random.default_rng(0).choice(keys, MAX_QUESTIONS, replace=False).tolist())
    return keys


def _passages(
    engine: SearchEngine, documents: Sequence[Sequence[str]]
) -> tuple[Floats, list[list[Places]]]:
    """The vectors of the passages of relevant documents, (n, D), and which are of which."""
    with engine.collection.reading() as snapshot:
        known = snapshot.known({name for names in documents for name in names})
        passages = snapshot.passages(of=sorted(state.id for state in known.values()))
        if not passages.ids.size:
            raise QueryError("no relevant document is stored: index them, or judge stored ones")
        rows = snapshot.vectors(passages.ids)
    owners = passages.documents
    stored = {name: np.flatnonzero(owners == state.id) for name, state in known.items()}
    return rows, [[stored[name] for name in names if name in stored] for names in documents]


def folds(documents: Sequence[Collection[str]], count: int) -> Places:
    """The fold of each question, (q,), so that questions of one document are in one fold.

    `documents`: of each question, its relevant documents. Questions that share documents with more
    than half of all, over others, are dealt one by one: some of them do share documents then.
    """
    group, first = np.arange(len(documents)), dict[str, int]()
    for i, names in enumerate(documents):
        for name in names:
            group[group == group[first.setdefault(name, i)]] = group[i]
    sizes = np.bincount(group, minlength=len(group))
    group = np.where(sizes[group] * 2 > len(group), np.arange(len(group)) + len(group), group)
    groups, unit = np.unique(group, return_inverse=True)
    return np.random.default_rng(0).permutation(len(groups))[unit] % count


class _Lessons(NamedTuple):
    """Vectors of questions (q, D) and of relevant passages (n, D): what maps are learnt from.

    `relevant`: of each question, the rows of each of its documents.
    """

    vectors: Floats
    rows: Floats
    relevant: Sequence[Sequence[Places]]
    progress: Progress

    def held_out(self, fold: Places) -> dict[int, Floats]:
        """Number of steps → vectors of the questions, mapped by what the other folds teach."""
        tried = {steps: self.vectors.copy() for steps in (0, *STEPS)}
        for i in range(FOLDS):
            held_out = np.flatnonzero(fold == i)
            for steps, matrix in enumerate(self.maps(np.flatnonzero(fold != i), max(STEPS)), 1):
                if steps in tried:
                    mapped = self.vectors[held_out] @ matrix.T
                    tried[steps][held_out] = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
        return tried

    def maps(self, places: Places, count: int) -> Iterator[Floats]:
        """The map (D, D) after each of `count` steps, learnt from the questions at some places."""
        vectors, rows, relevant, progress = self
        kept = [int(i) for i in places if relevant[i]]
        questions = vectors[kept].astype(np.float64)
        own = [np.concatenate(relevant[i]) for i in kept]
        best = [np.array([r[(rows[r] @ vectors[i]).argmax()] for r in relevant[i]]) for i in kept]
        used = np.unique(np.concatenate(own)) if own else np.array([], np.int64)
        best, own = ([np.searchsorted(used, each) for each in lists] for lists in (best, own))
        covariance = questions.T @ questions / max(1, len(questions))
        inverse = np.linalg.inv(covariance + RIDGE / len(covariance) * np.eye(len(covariance)))
        matrix, step = np.eye(len(covariance)), STEP * TEMPERATURE * len(covariance)
        for _ in range(count):
            mapped = (questions @ matrix.T).astype(np.float32)
            moves, _ = directions(mapped, rows[used], best, own)
            matrix += step * (moves.T @ questions / max(1, len(questions))) @ inverse
            yield matrix.astype(np.float32)
            progress("Learning", 1, (FOLDS + 1) * max(STEPS))


def directions(
    questions: Floats, rows: Floats, best: Sequence[Places], own: Sequence[Places]
) -> tuple[Floats, Values]:
    """Where each mapped question (q, D) should move, (q, D), and its loss, (q,).

    The move is the negative gradient of the loss, times TEMPERATURE. `best`: of each question, the
    row of the best passage of each relevant document; `own`: all rows of these documents.
    """
    moves, losses = np.empty_like(questions), np.empty(len(questions))
    for start in range(0, len(questions), _BATCH):
        part = slice(start, start + _BATCH)
        scores = questions[part] @ rows.T / TEMPERATURE
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores, out=scores)
        for i, weight in enumerate(weights, start):
            relevant = weight[best[i]]
            weight[own[i]] = 0
            others = weight.sum()
            losses[i] = -np.log(relevant / (relevant + others)).mean()
            weight *= -(1 / (relevant + others)).mean()
            weight[best[i]] = others / (relevant + others) / len(relevant)
        moves[part] = weights @ rows
    return moves, losses


def _verdict(table: Table, weights: Mapping[str, float], fold: Places) -> Learning:
    """What the held-out scores say. weights: "vector" → 1, then the default mode → its weight."""
    every, (mode, weight) = np.arange(len(fold)), [*weights.items()][-1]

    def best(kept: NDArray[np.bool_]) -> int:
        """The steps with the highest mean over some questions; of equal ones the fewest."""
        return max(table, key=lambda steps: table[steps][weight][kept].mean().round(9))

    # For a fold the others choose: its questions have no say in the figure that they give.
    chosen = [best(fold != i) for i in range(FOLDS)]
    pairs = {
        name: (table[0][each], np.stack([table[steps][each] for steps in chosen])[fold, every])
        for name, each in weights.items()
    }
    figures = {
        name: {"before": float(old.mean()), "after": float(new.mean())}
        for name, (old, new) in pairs.items()
    }
    old, new = pairs[mode]
    gain, steps = compare(new, old), best(every >= 0)
    is_better = steps > 0 and gain.difference > 0 and gain.p < MAX_P
    return Learning(is_better, len(fold), mode, steps, figures, gain)
