"""Questions before and after a map of the vectors, and whether the map is offered."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.adapt.material import Material, Sample, of_part
from searchengine.adapt.sampled_questions import Kind, Part, Question
from searchengine.engine import Snapshot
from searchengine.indexer.arrays import BLOCK_ROWS, Floats, RowNumbers
from searchengine.indexer.building.build import Progress
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.trainer.evaluation.ranking import MAIN, per_question
from searchengine.trainer.evaluation.significance import Comparison, Values, compare
from searchengine.trainer.training.posthoc import LinearMap

MAX_P, MIN_GAIN = 0.01, 0.02
"""Beyond doubt: the p-value is below MAX_P, and the interval of the difference in nDCG@10 is above
MIN_GAIN. Questions taken from documents only resemble real ones: on Cranfield a gain of 0.036 (from
0.010) came with a loss."""
LOSS_P = 0.05
"""A kind of question that loses with a p-value below this is a reason not to offer the map."""
ALL = "all"
NO_MAP = "no map was better in validation"
_FIRST = 10  # documents that nDCG@10 sees
_BATCH = 256  # questions searched at a time


@dataclass(frozen=True, slots=True)
class Corpus:
    """The passages that questions are searched among.

    Attributes:
        documents: (n,), the id of each row's document.
        blocks: the rows, in the encoder's basis, in blocks (b, D).
    """

    documents: RowNumbers
    blocks: Callable[[], Iterator[Floats]]

    @classmethod
    def of_sample(cls, sample: Sample) -> "Corpus":
        """The sample alone."""
        return cls(sample.documents, lambda: iter([sample.vectors]))

    @classmethod
    def of_collection(cls, snapshot: Snapshot, sample: Sample | None = None) -> "Corpus":
        """All documents; the sample's as it encodes them, the others as they are stored."""
        columns = snapshot.store.scan("SELECT id, document FROM live_passages ORDER BY id")
        passages, documents = np.array(columns, np.int64).reshape(-1, 2).T
        if sample is not None:
            outside = ~np.isin(documents, sample.documents)
            passages, documents = passages[outside], documents[outside]

        def blocks() -> Iterator[Floats]:
            if sample is not None:
                yield sample.vectors
            for start in range(0, len(passages), BLOCK_ROWS):
                yield snapshot.vectors(passages[start : start + BLOCK_ROWS])

        if sample is not None:
            documents = np.concatenate([sample.documents, documents])
        return cls(documents, blocks)


Score = Callable[[Corpus, Sequence[Question], Floats, LinearMap | None], Values]
"""A number for each question, (q,): corpus, questions, their vectors (q, D), and a map of both."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trained map and its judgement.

    Attributes:
        change: the map; None if no map was better in validation.
        rows: the held-out questions; () without a map.
        pairs: number of pairs of training; of the rotation, of questions.
        reason: why the map is not offered, as a clause; None if it is better beyond doubt.
    """

    change: LinearMap | None
    rows: tuple["Row", ...]
    pairs: int
    reason: str | None


def best(
    material: Material,
    corpus: Corpus,
    maps: Sequence[LinearMap],
    score: Score,
    progress: Progress,
) -> LinearMap | None:
    """The map with the best mean on the validation questions; None if none beats no map.

    corpus: the documents to search, with those of the sample as they are encoded there.
    """
    sampled = set(material.sample.documents.tolist())
    questions, vectors = of_part(material, Part.VALIDATION, sampled)
    choices: list[LinearMap | None] = [None, *maps]
    means = []
    for change in choices:
        means.append(score(corpus, questions, vectors, change).mean())
        progress("Validating", 1, len(choices))
    return choices[int(np.argmax(means))]


def held_out(
    material: Material, snapshot: Snapshot, change: LinearMap, score: Score, progress: Progress
) -> tuple["Row", ...]:
    """The held-out questions before and after a map, among all documents of the collection."""
    questions, vectors = of_part(material, Part.HELD_OUT)
    from_documents = np.array([question.kind is not Kind.CLICK for question in questions])
    before, after = np.zeros((2, len(questions)))
    for of_kind, sample in ((from_documents, material.sample), (~from_documents, None)):
        if not of_kind.any():
            continue
        corpus = Corpus.of_collection(snapshot, sample)
        chosen = [questions[i] for i in np.flatnonzero(of_kind)]
        for scores, applied in ((before, None), (after, change)):
            scores[of_kind] = score(corpus, chosen, vectors[of_kind], applied)
            progress("Judging", len(chosen), 2 * len(questions))
    return rows_of(questions, before, after)


def judge(
    corpus: Corpus,
    questions: Sequence[Question],
    vectors: Floats,
    config: SegmentConfig,
    change: LinearMap | None = None,
) -> Values:
    """nDCG@10 of each question (q,), by an index of the corpus: a prefix first, then full width.

    vectors: (q, D), the questions. change: applied to questions and corpus.
    """
    run, qrels = {}, {}
    with indexed(corpus, vectors, config, change) as (segment, batches):
        rankings = (_ranked(segment, batch, corpus.documents) for batch in batches)
        for i, ranking in enumerate(chain.from_iterable(rankings)):
            run[str(i)] = {str(document): 0.0 for document in ranking}
            qrels[str(i)] = {str(document): 1 for document in questions[i].documents}
    return per_question(run, list(run), qrels, [MAIN])[MAIN]


@contextmanager
def indexed(
    corpus: Corpus, vectors: Floats, config: SegmentConfig, change: LinearMap | None
) -> Iterator[tuple[Segment, Iterator[Floats]]]:
    """An index of the corpus, and the questions (q, D) in batches; the map is applied to both."""
    apply = (lambda rows: rows) if change is None else change
    batches = (apply(vectors[i : i + _BATCH]) for i in range(0, len(vectors), _BATCH))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Segment.build(Path(folder) / "judged", map(apply, corpus.blocks()), config) as segment,
    ):
        yield segment, batches


def _ranked(segment: Segment, vectors: Floats, documents: RowNumbers) -> list[list[int]]:
    """The first documents of each question, by their best passages."""
    depth = _FIRST
    while True:
        rows = segment.search(vectors, min(depth, segment.rows)).rows
        ranked = [list(dict.fromkeys(documents[row[row >= 0]].tolist())) for row in rows]
        if depth >= segment.rows or all(len(ranking) >= _FIRST for ranking in ranked):
            return [ranking[:_FIRST] for ranking in ranked]
        depth *= 4


@dataclass(frozen=True, slots=True)
class Row:
    """The held-out questions of a kind, or of all.

    Attributes:
        kind: title, sentence, click or all.
        questions: their number.
        before, after: mean nDCG@10, or of the rotation the mean share of the nearest.
        comparison: of the paired differences.
    """

    kind: str
    questions: int
    before: float
    after: float
    comparison: Comparison

    def as_cells(self) -> dict[str, Any]:
        """The row as text."""
        difference = self.comparison
        return {
            "questions": self.kind,
            "number": self.questions,
            "before": f"{self.before:.3f}",
            "after": f"{self.after:.3f}",
            "difference": f"{difference.difference:+.3f}",
            "95 % interval": f"{difference.low:+.3f} to {difference.high:+.3f}",
            "p": f"{difference.p:.4f}",
        }


def rows_of(questions: Sequence[Question], before: Values, after: Values) -> tuple[Row, ...]:
    """A row for each kind of question, and one for all."""
    kinds = np.array([question.kind.value for question in questions])
    chosen = {kind: kinds == kind for kind in dict.fromkeys(kinds.tolist())}
    return tuple(
        Row(
            kind,
            int(of_kind.sum()),
            float(before[of_kind].mean()),
            float(after[of_kind].mean()),
            compare(after[of_kind], before[of_kind]),
        )
        for kind, of_kind in {**chosen, ALL: np.ones(len(kinds), bool)}.items()
    )


def objection(rows: Sequence[Row], min_gain: float = MIN_GAIN) -> str | None:
    """Why a map is not offered, as a clause; None if it is better beyond doubt.

    min_gain: the 95 % interval of the mean difference has to be above.
    """
    if not rows:
        return NO_MAP
    *kinds, total = rows
    for row in kinds:
        if row.comparison.difference < 0 and row.comparison.p < LOSS_P:
            return f"questions of the kind {row.kind} lost"
    if total.comparison.p >= MAX_P or total.comparison.low <= min_gain:
        return "the gain is not beyond doubt"
    return None
