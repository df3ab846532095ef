"""A map of the question's vector, learnt from judged questions: a matrix W (D, D) near identity.

The loss of a question is the mean, over its relevant documents, of −log softmax of their cosine
against those of all documents that are not relevant. Each step moves W by the ridge regression, on
the questions, of the directions in which their losses fall. It begins at the identity; how many
steps are taken is chosen by cross-validation. To stop early keeps W near the identity, as a ridge
would (Bühlmann and Yu, "Boosting With the L2 Loss", JASA 2003).
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import erfc, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from searchengine.errors import QueryError
from searchengine.trainer.evaluation.intervals import Values, bootstrap

Floats = NDArray[np.float32]
QUERY_MAP = "query_map"
"""The setting of the map that was learnt: its `matrix`, the `dim` and the `fingerprint` of the
encoder, and the `questions`, `mode` and `figures` that judged it."""
Places = NDArray[np.int64]
Encode = Callable[[Sequence[str]], Floats]
Rank = Callable[[slice, Floats, str, int], list[list[str]]]
"""A part of the questions, their vectors, a mode and k → the first k documents of each."""
TEMPERATURE, STEP, RIDGE = 0.05, 0.15, 4.0
"""Of the softmax; share of a Newton step for documents that are spread evenly over the dimensions;
the ridge, in mean eigenvalues of the covariance of the questions.
Chosen on NFCorpus, from its training to its development questions."""
STEPS = (1, 2, 4, 8)
"""Numbers of steps to choose from."""
FEW = 10
"""Questions that a paired test needs."""
TOO_FEW, MAX_QUESTIONS = 100, 5_000
"""Judged questions from which nothing was gained on any collection measured; those learnt from."""
FIRST = 10
"""Documents of a question that count."""
_FOLDS, _MAX_P = 3, 0.01
_BATCH = 256  # questions compared at a time


def with_map(encode: Encode, settings: Mapping[str, Any], fingerprint: str, dim: int) -> Encode:
    """What encodes questions by an encoder, and maps them if a map was learnt for it."""
    learnt = settings.get(QUERY_MAP)
    if learnt is None or (learnt["fingerprint"], learnt["dim"]) != (fingerprint, dim):
        return encode

    def mapped(questions: Sequence[str]) -> Floats:
        rows = encode(questions) @ _matrix(learnt["matrix"], dim).T
        unit: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit

    return mapped


def setting(
    learning: "Learning", matrix: Floats, fingerprint: str, dim: int
) -> dict[str, dict[str, Any]]:
    """The setting that stores a map for an encoder."""
    stored = b64encode(matrix.astype("<f4").tobytes()).decode()
    described = {"questions": learning.questions, "mode": learning.mode}
    learnt_for = {"fingerprint": fingerprint, "dim": dim, "matrix": stored}
    return {QUERY_MAP: described | {"figures": learning.figures} | learnt_for}


def description(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the settings say of a map: its `questions`, `mode` and `figures`; None without one."""
    names = ("questions", "mode", "figures")
    return {name: settings[QUERY_MAP][name] for name in names} if QUERY_MAP in settings else None


def describe(described: Mapping[str, Any]) -> str:
    """A description in words, for a line of statistics."""
    held = described["figures"][described["mode"]]
    return (
        f"pass a map learnt from {described['questions']:,} judged questions (nDCG@10 of held-out "
        f"ones {held['before']:.3f} → {held['after']:.3f})"
    )


@lru_cache(maxsize=2)
def _matrix(stored: str, dim: int) -> Floats:
    return np.frombuffer(b64decode(stored), "<f4").reshape(dim, dim)


def judged(
    queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]], force: bool
) -> list[str]:
    """The keys of the questions to learn from, always the same. Raises QueryError for too few."""
    keys = sorted(key for key in queries if relevant(qrels.get(key, {})))
    if len(keys) < (FEW if force else TOO_FEW + 1):
        raise QueryError(
            f"{len(keys)} questions are judged, and maps learnt from up to {TOO_FEW} gained "
            "nothing on any collection measured; gather more, about 1,000, or learn all the same: "
            f"--force (force=True, from {FEW} on)"
        )
    if len(keys) > MAX_QUESTIONS:
        keys = sorted(np.random.default_rng(0).choice(keys, MAX_QUESTIONS, replace=False).tolist())
    return keys


def relevant(grades: Mapping[str, int]) -> list[str]:
    """The documents of grade 1 and above."""
    return [name for name, grade in grades.items() if grade > 0]


def ndcg(documents: Sequence[str], grades: Mapping[str, int]) -> float:
    """nDCG@10 as trec_eval computes it: the gains are the grades."""
    gains = [max(grades.get(name, 0), 0) for name in documents]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:FIRST]
    discounts = 1 / np.log2(np.arange(2, FIRST + 2))
    return float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)]))


@dataclass(frozen=True, slots=True)
class Learning:
    """What judged questions say about a map.

    Attributes:
        stored: whether searches use the map from now on.
        questions: number of judged questions.
        mode: the collection's default mode.
        steps: the number of steps chosen; 0: the questions stay as they are.
        figures: the score of held-out questions, "before" and "after", and their number: in the
            mode "vector" and the default mode; in that one also of questions with documents that
            were learnt from ("seen"), and of the others ("unseen"), if there are any.
        gain: mean difference in the default mode, and the ends of its 95 % interval.
        p: the two-sided p-value of a paired t-test.
    """

    stored: bool
    questions: int
    mode: str
    steps: int
    figures: Mapping[str, Mapping[str, float]]
    gain: tuple[float, float, float]
    p: float

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        mean, low, high = self.gain
        ends = f"95 % interval {low:+.4f} to {high:+.4f}, p {self.p:.2g}"
        return f"nDCG@10 in mode {self.mode} {mean:+.4f}, {ends}"


class Examples(NamedTuple):
    """What a map is learnt from.

    Attributes:
        questions: vectors as the encoder gives them, (q, D).
        rows: vectors of passages, (n, D).
        relevant: of each question, the rows of each relevant document. Its best passage counts.
    """

    questions: Floats
    rows: Floats
    relevant: Sequence[Sequence[Places]]

    @classmethod
    def of(
        cls,
        questions: Floats,
        rows: Floats,
        names: Sequence[str],
        documents: Sequence[Sequence[str]],
    ) -> "Examples":
        """names: of each row, its document. documents: of each question, its relevant ones."""
        stored: dict[str, list[int]] = {}
        for row, name in enumerate(names):
            stored.setdefault(name, []).append(row)
        found = [[np.array(stored[name]) for name in each if name in stored] for each in documents]
        if not any(found):
            raise QueryError("none of the relevant documents is stored, to learn from")
        return cls(questions, rows, found)

    def maps(self, places: Places, count: int) -> Iterator[Floats]:
        """The map (D, D) after each of `count` steps, learnt from some of the questions."""
        kept = [int(i) for i in places if self.relevant[i]]
        questions = self.questions[kept].astype(np.float64)
        own = [np.concatenate(self.relevant[i]) for i in kept]
        best = [
            np.array([rows[(self.rows[rows] @ self.questions[i]).argmax()] for rows in documents])
            for i, documents in ((i, self.relevant[i]) for i in kept)
        ]
        covariance = questions.T @ questions / max(1, len(questions))
        inverse = np.linalg.inv(covariance + RIDGE / len(covariance) * np.eye(len(covariance)))
        matrix, step = np.eye(len(covariance)), STEP * TEMPERATURE * len(covariance)
        for _ in range(count):
            mapped = (questions @ matrix.T).astype(np.float32)
            moves, _ = directions(mapped, self.rows, best, own)
            matrix += step * (moves.T @ questions / max(1, len(questions))) @ inverse
            yield matrix.astype(np.float32)


def directions(
    questions: Floats, rows: Floats, best: Sequence[Places], own: Sequence[Places]
) -> tuple[Floats, NDArray[np.float64]]:
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


def folds(documents: Sequence[Collection[str]], count: int) -> Places:
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


def parts(count: int, step: str, report: Callable[[str, int, int], object]) -> Iterator[slice]:
    """Parts of `count` questions; each is reported when it is done."""
    for start in range(0, count, _BATCH):
        part = slice(start, min(start + _BATCH, count))
        yield part
        report(step, part.stop - start, count)


def _scores(
    grades: Sequence[Mapping[str, int]],
    rank: Rank,
    mode: str,
    vectors: Floats,
    report: Callable[[str, int, int], object],
) -> Values:
    """The nDCG@10 of each question, (q,), ranked by these vectors (q, D)."""
    blocks = parts(len(vectors), "Searching", report)
    ranked = (rank(part, vectors[part], mode, FIRST) for part in blocks)
    return np.array([*map(ndcg, (names for block in ranked for names in block), grades)])


def learn(
    examples: Examples,
    grades: Sequence[Mapping[str, int]],
    mode: str,
    rank: Rank,
    force: bool,
    report: Callable[[str, int, int], object],
) -> tuple[Learning, Floats]:
    """Judge a map by questions that it was not learnt from; and the map that all of them give.

    Args:
        grades: of each question, by document.
        mode: how questions are ranked.
        rank: ranks questions.
        force: choose a map even if the questions are better as they are.
    """
    documents = [*map(relevant, grades)]

    def score(by: str, vectors: Floats) -> Values:
        return _scores(grades, rank, by, vectors, report)

    def maps(places: Places, count: int) -> Iterator[tuple[int, Floats]]:
        for each in enumerate(examples.maps(places, count), start=1):
            yield each
            report("Learning", 1, (_FOLDS + 1) * max(STEPS))

    vectors, fold = examples.questions, folds(documents, _FOLDS)
    every = np.arange(len(vectors))
    tried = {steps: vectors.copy() for steps in (0, *STEPS)}
    for i in range(_FOLDS):
        held_out = np.flatnonzero(fold == i)
        for steps, matrix in maps(np.flatnonzero(fold != i), max(STEPS)):
            if steps in tried:
                mapped = vectors[held_out] @ matrix.T
                tried[steps][held_out] = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
    # The choice is made by vectors alone: words would cost most of the time.
    scores = np.stack([score("vector", mapped) for mapped in tried.values()])
    # For a fold the others choose: its questions have no say in the figure that they give.
    first = 1 if force else 0  # a forced map is stored, so it is what is judged
    chosen = np.array([_best(scores[:, fold != i], first) for i in range(_FOLDS)])[fold]
    before, after = scores[0], scores[chosen, every]
    figures = {"vector": _figures(before, after)}
    if mode != "vector":
        mapped = np.stack([*tried.values()])[chosen, every]
        before, after = score(mode, vectors), score(mode, mapped)
        figures[mode] = _figures(before, after)
    gain, seen = after - before, _seen(documents, fold)
    parts_seen = {"seen": seen, "unseen": ~seen}
    figures |= {n: _figures(before[at], after[at]) for n, at in parts_seen.items() if at.any()}
    best, p = _best(scores, first), _p(gain)
    is_better = best > 0 and gain.mean() > 0 and p < _MAX_P
    if (~seen).sum() >= FEW:  # beside many that are seen, a few are noise
        is_better &= gain[~seen].mean() > 0 or _p(gain[~seen]) >= _MAX_P
    steps = [*tried][best]
    low, high = bootstrap(len(gain), lambda places: gain[places].mean(axis=-1)).tolist()
    *_, matrix = (np.eye(vectors.shape[1]), *(matrix for _, matrix in maps(every, steps)))
    mean = float(gain.mean())
    stored = bool(force or is_better)
    return Learning(stored, len(gain), mode, steps, figures, (mean, low, high), p), matrix


def _seen(documents: Sequence[Sequence[str]], fold: Places) -> NDArray[np.bool_]:
    """Whether questions of other folds have one of a question's relevant documents, (q,)."""
    having: dict[str, set[int]] = {}
    for names, number in zip(documents, fold.tolist(), strict=True):
        for name in names:
            having.setdefault(name, set()).add(number)
    return np.array([any(len(having[name]) > 1 for name in names) for names in documents])


def _p(gain: Values) -> float:
    """The two-sided p-value of a paired t-test; of 10 differences on, t is nearly normal."""
    error = float(gain.std(ddof=1)) / sqrt(len(gain))
    return erfc(abs(float(gain.mean())) / error / sqrt(2)) if error else 1.0


def _best(scores: Values, first: int) -> int:
    """The row of scores (m, q), from `first` on, with the highest mean; of equal ones the first."""
    return first + int(scores[first:].mean(axis=1).round(9).argmax())


def _figures(before: Values, after: Values) -> dict[str, float]:
    means = {"before": float(before.mean()), "after": float(after.mean())}
    return {"questions": len(before), **means}
