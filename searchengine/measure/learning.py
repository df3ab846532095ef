"""Learn a map of the question's vector from judged questions: a matrix W (D, D) near the identity.

learning = learn(engine, queries, qrels)          # stores it if held-out questions are found better

The loss of a question is the mean, over its relevant documents, of −log softmax of their cosine
against those of all documents that are not relevant. Each step moves W by the ridge regression, on
the questions, of the directions in which their losses fall. It begins at the identity; how many
steps are taken is chosen by cross-validation. To stop early keeps W near the identity, as a ridge
would (Bühlmann and Yu, "Boosting With the L2 Loss", JASA 2003).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from searchengine.engine import Mode, SearchEngine
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.arrays import Floats, RowNumbers, unit_rows
from searchengine.measure.comparison import MAIN, per_question
from searchengine.measure.judgements import Qrels, Task
from searchengine.measure.retrieval import task
from searchengine.measure.significance import MIN_QUESTIONS, Comparison, compare, significant
from searchengine.trainer.evaluation.intervals import Values

TOO_FEW = 100
"""Judged questions from which nothing was gained on any collection that was measured."""
STEPS = (1, 2, 4, 8)
"""Numbers of steps to choose from."""
TEMPERATURE, STEP, RIDGE = 0.05, 0.15, 4.0
"""Of the softmax; share of a Newton step for documents that are spread evenly over the dimensions;
the ridge, in mean eigenvalues of the covariance of the questions.
Chosen on NFCorpus, from its training to its development questions."""
SAMPLE = 10_000
"""Passages compared with, of a larger collection, beside those judged and the NEAREST ones."""
MAX_QUESTIONS = 5_000
_FOLDS, _NEAREST, _BATCH, _FIRST, _MAX_P = 3, 20, 256, 10, 0.01
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class Learning:
    """What judged questions say about a map. Figures are nDCG@10 of held-out questions.

    Attributes:
        stored: whether searches use the map from now on.
        questions: number of judged questions.
        mode: the collection's default mode.
        steps: the number of steps chosen; 0: the questions stay as they are.
        figures: "hybrid", "vector" → "before" and "after".
        comparison: of after and before, in the default mode.
        parts: the same for "seen" questions, some of whose relevant documents were among those
            learnt from, and "unseen" ones: "questions", "before" and "after"; those with none left
            out.
        notes: sentences about questions that were left out, and the like.
    """

    stored: bool
    questions: int
    mode: Mode
    steps: int
    figures: Mapping[str, Mapping[str, float]]
    comparison: Comparison
    parts: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        values: dict[str, Any] = significant(asdict(self))
        return values


class Examples(NamedTuple):
    """What a map is learnt from.

    Attributes:
        questions: vectors as the encoder gives them, (q, D).
        rows: vectors of passages, (n, D).
        relevant: of each question, the row of the best passage of each relevant document.
        own: of each question, all rows of its relevant documents.
    """

    questions: Floats
    rows: Floats
    relevant: Sequence[RowNumbers]
    own: Sequence[RowNumbers]

    def of(self, places: RowNumbers) -> "Examples":
        """Those of some of the questions that have relevant documents."""
        kept = [int(i) for i in places if len(self.relevant[i])]
        relevant, own = ([each[i] for i in kept] for each in (self.relevant, self.own))
        return Examples(self.questions[kept], self.rows, relevant, own)


def learn(
    engine: SearchEngine,
    queries: Mapping[str, str],
    qrels: Qrels,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Learning:
    """Learn a map of the questions' vectors, and store it if held-out ones are found better.

    Beyond doubt, in the default mode. Args:
        engine: a collection.
        queries: key → question; more than TOO_FEW, better 1,000, must be judged.
        qrels: question → document → grade.
        force: store it in any case, from 10 questions on.
        progress: progress callback: step, questions or steps just done, in all.

    Raises QueryError (too few questions; the mode is text), CorpusError (none is judged).
    """
    engine.refresh()
    path, encoder = engine.collection.path, engine.collection.settings["encoder"]
    if engine.default_mode is Mode.TEXT:
        raise QueryError(f"{path} is searched by words (mode text), where no vector counts")
    judged = _bounded(task(engine, queries, qrels))
    if len(judged.queries) < (MIN_QUESTIONS if force else TOO_FEW + 1):
        raise QueryError(
            f"{len(judged.queries)} questions are judged, and maps learnt from up to {TOO_FEW} "
            "gained nothing on any collection measured; gather more, about 1,000, or learn all the "
            f"same: --force (force=True, from {MIN_QUESTIONS} on)"
        )
    work = _Work(engine, judged, progress or (lambda *_: None))
    examples = _examples(engine, judged, work.vectors)
    if not sum(map(len, examples.relevant)):
        raise QueryError(f"{path} has none of the relevant documents, so nothing can be learnt")
    learning = work.held_out(examples, force)
    if learning.stored:
        *_, matrix = work.maps(examples, learning.steps)
        if engine.collection.settings["encoder"] != encoder:
            raise CollectionError(f"{path} was reindexed meanwhile; learn again")
        values = learning.as_dict()
        engine.store_map(matrix, {name: values[name] for name in ("questions", "mode", "figures")})
    return learning


class _Work:
    """The work on judged questions of a collection.

    Attributes:
        vectors: of the questions, as the encoder gives them, (q, D).
    """

    def __init__(self, engine: SearchEngine, judged: Task, report: Progress) -> None:
        self._engine, self._judged, self._report = engine, judged, report
        self._mode = engine.default_mode
        read = [engine.searched(text, mode=self._mode) for text in judged.queries.values()]
        self._read = [each.question for each in read]
        texts = engine.to_encode([each.to_encode for each in read], self._mode)
        self.vectors = np.concatenate(
            [
                engine.encode_questions(texts[part], mapped=False)
                for part in self._batches("Encoding")
            ]
        )

    def maps(self, examples: Examples, count: int) -> Iterator[Floats]:
        """As the function `maps`, with progress."""
        for matrix in maps(examples, count):
            yield matrix
            self._report("Learning", 1, (_FOLDS + 1) * max(STEPS))

    def held_out(self, examples: Examples, force: bool) -> Learning:
        """Choose the number of steps, and judge it by questions that it was not learnt from."""
        judged, mode, count = self._judged, self._mode, len(self._read)
        fold = folds([set(_relevant(judged, key)) for key in judged.keys], _FOLDS)
        tried = {0: self.vectors} | {steps: np.empty_like(self.vectors) for steps in STEPS}
        for i in range(_FOLDS):
            held_out = np.flatnonzero(fold == i)
            learnt_from = examples.of(np.flatnonzero(fold != i))
            for steps, matrix in enumerate(self.maps(learnt_from, max(STEPS)), 1):
                if steps in tried:
                    tried[steps][held_out] = unit_rows(self.vectors[held_out] @ matrix.T)
        # The choice is made by vectors alone: words would cost most of the time.
        scores = np.stack([self._ndcg(Mode.VECTOR, vectors) for vectors in tried.values()])
        # For a fold the others choose: its questions have no say in the figure that they give.
        chosen = np.array([_best(scores[:, fold != i]) for i in range(_FOLDS)])[fold]
        before, after = scores[0], scores[chosen, np.arange(count)]
        figures = {str(Mode.VECTOR): _means(before, after)}
        if mode is not Mode.VECTOR:
            held = np.stack([*tried.values()])[chosen, np.arange(count)]
            before, after = self._ndcg(mode, self.vectors), self._ndcg(mode, held)
            figures[str(mode)] = _means(before, after)
        seen = _seen(judged, fold)
        parts = {
            name: {"questions": int(places.sum())} | _means(before[places], after[places])
            for name, places in (("seen", seen), ("unseen", ~seen))
            if places.any()
        }
        best, comparison = _best(scores), compare(after, before)
        is_better = bool(best) and comparison.difference > 0 and comparison.p < _MAX_P
        if (~seen).sum() >= MIN_QUESTIONS:  # beside many that are seen, a few are noise
            unseen = compare(after[~seen], before[~seen])
            is_better &= unseen.difference > 0 or unseen.p >= _MAX_P
        if force:
            best = 1 + _best(scores[1:])
        steps = [*tried][best]
        return Learning(
            force or is_better, count, mode, steps, figures, comparison, parts, judged.notes
        )

    def _ndcg(self, mode: Mode, vectors: Floats) -> Values:
        """nDCG@10 of each question, as a search in this mode ranks, with these vectors."""
        judged, run = self._judged, dict[str, dict[str, float]]()
        for part in self._batches("Searching"):
            depth = _FIRST + judged.exclude_self
            with self._engine.collection.reading() as snapshot:
                read = self._read[part]
                ranked = self._engine.rank(snapshot, read, vectors[part], depth, mode=mode)
            for key, names in zip(judged.keys[part], ranked, strict=True):
                others = [name for name in names if not (judged.exclude_self and name == key)]
                run[key] = dict.fromkeys(others[:_FIRST], 0.0)
        return per_question(run, judged.keys, judged.qrels, [MAIN])[MAIN]

    def _batches(self, step: str) -> Iterator[slice]:
        """Parts of the questions; each is reported when it is done."""
        count = len(self._judged.queries)
        for start in range(0, count, _BATCH):
            part = slice(start, min(start + _BATCH, count))
            yield part
            self._report(step, part.stop - start, count)


def _best(scores: Values) -> int:
    """The row of scores (m, q) with the highest mean; of equal ones the first."""
    return int(scores.mean(axis=1).round(9).argmax())


def maps(examples: Examples, count: int) -> Iterator[Floats]:
    """The map (D, D) after each of `count` steps from the identity."""
    questions = examples.questions.astype(np.float64)
    covariance = questions.T @ questions / max(1, len(questions))
    inverse = np.linalg.inv(covariance + RIDGE / len(covariance) * np.eye(len(covariance)))
    matrix, step = np.eye(len(covariance)), STEP * TEMPERATURE * len(covariance)
    for _ in range(count):
        moves, _ = directions((questions @ matrix.T).astype(np.float32), examples)
        matrix += step * (moves.T @ questions / max(1, len(questions))) @ inverse
        yield matrix.astype(np.float32)


def directions(questions: Floats, examples: Examples) -> tuple[Floats, Values]:
    """Where each mapped question (q, D) should move, (q, D), and its loss, (q,).

    The move is the negative gradient of the loss, times TEMPERATURE. The `questions` are those of
    the examples, mapped; their length counts.
    """
    moves, losses = np.empty_like(questions), np.empty(len(questions))
    for start in range(0, len(questions), _BATCH):
        part = slice(start, start + _BATCH)
        scores = questions[part] @ examples.rows.T / TEMPERATURE
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores, out=scores)
        for i, weight in enumerate(weights, start):
            relevant = weight[examples.relevant[i]]
            weight[examples.own[i]] = 0
            others = weight.sum()
            losses[i] = -np.log(relevant / (relevant + others)).mean()
            weight *= -(1 / (relevant + others)).mean()
            weight[examples.relevant[i]] = others / (relevant + others) / len(relevant)
        moves[part] = weights @ examples.rows
    return moves, losses


def folds(documents: Sequence[set[str]], count: int) -> RowNumbers:
    """The fold of each question, (q,), so that questions of one document are in one fold.

    `documents`: of each question, its relevant documents. Questions that share documents with more
    than half of all, over others, are dealt one by one: some of them do share documents then.
    """
    group, first = list(range(len(documents))), dict[str, int]()

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = i = group[group[i]]
        return i

    for i, names in enumerate(documents):
        for name in names:
            group[root(i)] = root(first.setdefault(name, i))
    roots = np.array([root(i) for i in range(len(documents))])
    sizes = np.bincount(roots, minlength=len(roots))
    units = np.where(sizes[roots] * 2 > len(roots), np.arange(len(roots)) + len(roots), roots)
    places, loads = np.empty(len(roots), np.int64), np.zeros(count, np.int64)
    for unit in np.random.default_rng(0).permutation(np.unique(units)):
        places[units == unit] = loads.argmin()
        loads[loads.argmin()] += (units == unit).sum()
    return places


def _examples(engine: SearchEngine, judged: Task, vectors: Floats) -> Examples:
    """What is learnt from: of a larger collection, a sample of the passages to compare with."""
    with engine.collection.reading() as snapshot:
        ids = snapshot.store.ids_of({name for key in judged.keys for name in judged.qrels[key]})
        documents = snapshot.store.ids_after(-1, None, snapshot.store.count())
        if snapshot.rows > SAMPLE:
            every = -(-snapshot.rows // SAMPLE)
            chosen = [documents[::every], np.array([*ids.values()], np.int64)]
            for start in range(0, len(vectors), _BATCH):
                near = snapshot.search(vectors[start : start + _BATCH], _NEAREST).rows
                chosen.append(np.unique(snapshot.documents_of(near[near >= 0])))
            documents = np.unique(np.concatenate(chosen))
        passages = snapshot.store.passages_of(documents.tolist())
        rows = snapshot.vectors(np.array([passage.id for passage in passages]))
    by_document: dict[int, list[int]] = {}
    for row, passage in enumerate(passages):
        by_document.setdefault(passage.document, []).append(row)
    relevant, own = [], []
    for key, vector in zip(judged.keys, vectors, strict=True):
        stored = [by_document.get(ids.get(name, -1), []) for name in _relevant(judged, key)]
        best = [group[int((rows[group] @ vector).argmax())] for group in stored if group]
        relevant.append(np.array(best, np.int64))
        own.append(np.array([row for group in stored for row in group], np.int64))
    return Examples(vectors, rows, relevant, own)


def _bounded(judged: Task) -> Task:
    """At most MAX_QUESTIONS of the questions, always the same ones, in the order of their keys."""
    keys = sorted(judged.keys)
    notes = judged.notes
    if len(keys) > MAX_QUESTIONS:
        notes += (f"of {len(keys):,} judged questions, {MAX_QUESTIONS:,} were drawn at random",)
        drawn = np.random.default_rng(0).choice(len(keys), MAX_QUESTIONS, replace=False)
        keys = [keys[i] for i in sorted(drawn.tolist())]
    queries = {key: judged.queries[key] for key in keys}
    return Task(queries, judged.qrels, judged.exclude_self, notes)


def _relevant(judged: Task, key: str) -> list[str]:
    return [name for name, grade in judged.qrels[key].items() if grade > 0]


def _seen(judged: Task, fold: RowNumbers) -> npt.NDArray[np.bool_]:
    """Whether questions of other folds have one of a question's relevant documents, (q,)."""
    having: dict[str, set[int]] = {}
    for key, number in zip(judged.keys, fold.tolist(), strict=True):
        for name in _relevant(judged, key):
            having.setdefault(name, set()).add(number)
    return np.array([
        any(having[name] - {number} for name in _relevant(judged, key))
        for key, number in zip(judged.keys, fold.tolist(), strict=True)
    ])  # fmt: skip


def _means(before: Values, after: Values) -> dict[str, float]:
    return {"before": float(before.mean()), "after": float(after.mean())}
