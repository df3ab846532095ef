"""Questions before and after a map of the vectors, and whether the map is offered."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
FIRST = 10  # documents that nDCG@10 sees
BATCH = 256  # questions searched at a time


@dataclass(frozen=True, slots=True)
class Corpus:
    """The passages that questions are searched among.

    Attributes:
        documents: (n,), the id of each row's document; the rows of a document are together.
        blocks: the rows, in the encoder's basis, in blocks (b, D).
        spans: (n, 2), the passage of each row, in the text of its document.
    """

    documents: RowNumbers
    blocks: Callable[[], Iterator[Floats]]
    spans: NDArray[np.int64]

    @classmethod
    def of_sample(cls, sample: Sample) -> "Corpus":
        """The sample alone."""
        return cls(sample.documents, lambda: iter([sample.vectors]), _spans(sample))

    @classmethod
    def of_collection(cls, snapshot: Snapshot, sample: Sample | None = None) -> "Corpus":
        """All documents; the sample's as it encodes them, the others as they are stored."""
        sql = "SELECT id, document, start, end FROM live_passages ORDER BY document, id"
        read = np.array(snapshot.store.scan(sql), np.int64).reshape(-1, 4)
        if sample is not None:
            read = read[~np.isin(read[:, 1], sample.documents)]
        passages, documents = read[:, 0], read[:, 1]
        spans = read[:, 2:]

        def blocks() -> Iterator[Floats]:
            if sample is not None:
                yield sample.vectors
            for start in range(0, len(passages), BLOCK_ROWS):
                yield snapshot.vectors(passages[start : start + BLOCK_ROWS])

        if sample is not None:
            documents = np.concatenate([sample.documents, documents])
            spans = np.concatenate([_spans(sample), spans])
        return cls(documents, blocks, spans)


def _spans(sample: Sample) -> NDArray[np.int64]:
    return np.array([span for _, spans in sample.texts for span in spans], np.int64).reshape(-1, 2)


Score = Callable[[Corpus, Sequence[Question], Floats, LinearMap | None], Values]
"""A number for each question, (q,): corpus, questions, their vectors (q, D), and a map of both."""

Measure = Callable[
    [Sample | None, Sequence[Question], Floats, LinearMap | None], Mapping[str, Values]
]
"""Measures of each question by name, (q,), among all documents of a collection: a sample that takes
the place of its documents, questions, their vectors (q, D), and a map of both."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trained map and its judgement.

    Attributes:
        change: the map; None if no map was better in validation.
        rows: the held-out questions by kind, then all; () without a map.
        pairs: number of pairs of training; of the rotation, of questions.
        reason: why the map is not offered, as a clause; None if it is better beyond doubt.
        others: what else was measured of all held-out questions.
        advice: what may find more, as a sentence; "" for nothing.
    """

    change: LinearMap | None
    rows: tuple["Row", ...]
    pairs: int
    reason: str | None
    others: tuple["Row", ...] = ()
    advice: str = ""


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
    material: Material, change: LinearMap, measure: Measure, progress: Progress
) -> tuple[list[Question], dict[str, Values], dict[str, Values]]:
    """The held-out questions, and the measures of each before and after a map, by name, (q,).

    Questions from documents are measured without themselves in the documents.
    """
    questions, vectors = of_part(material, Part.HELD_OUT)
    from_documents = np.array([question.kind is not Kind.CLICK for question in questions])
    before, after = dict[str, Values](), dict[str, Values]()
    for of_kind, sample in ((from_documents, material.sample), (~from_documents, None)):
        if not of_kind.any():
            continue
        chosen = [questions[i] for i in np.flatnonzero(of_kind)]
        for measures, applied in ((before, None), (after, change)):
            for name, values in measure(sample, chosen, vectors[of_kind], applied).items():
                measures.setdefault(name, np.zeros(len(questions)))[of_kind] = values
            progress("Judging", len(chosen), 2 * len(questions))
    return questions, before, after


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
    with indexed(corpus, vectors, config, change) as (segment, batches):
        rankings = (_ranked(segment, batch, corpus.documents) for batch in batches)
        return ndcg(questions, chain.from_iterable(rankings))


def ndcg(questions: Sequence[Question], rankings: Iterable[Sequence[int]]) -> Values:
    """nDCG@10 of each question (q,). rankings: the first documents of each, best first."""
    run, qrels = {}, {}
    for i, (question, ranking) in enumerate(zip(questions, rankings, strict=True)):
        run[str(i)] = {str(document): 0.0 for document in ranking}
        qrels[str(i)] = {str(document): 1 for document in question.documents}
    return per_question(run, list(run), qrels, [MAIN])[MAIN]


@contextmanager
def indexed(
    corpus: Corpus, vectors: Floats, config: SegmentConfig, change: LinearMap | None
) -> Iterator[tuple[Segment, Iterator[Floats]]]:
    """An index of the corpus, and the questions (q, D) in batches; the map is applied to both."""
    apply = (lambda rows: rows) if change is None else change
    batches = (apply(vectors[i : i + BATCH]) for i in range(0, len(vectors), BATCH))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Segment.build(Path(folder) / "judged", map(apply, corpus.blocks()), config) as segment,
    ):
        yield segment, batches


def _ranked(segment: Segment, vectors: Floats, documents: RowNumbers) -> list[list[int]]:
    """The first documents of each question, by their best passages."""
    depth = FIRST
    while True:
        rows = segment.search(vectors, min(depth, segment.rows)).rows
        ranked = [list(dict.fromkeys(documents[row[row >= 0]].tolist())) for row in rows]
        if depth >= segment.rows or all(len(ranking) >= FIRST for ranking in ranked):
            return [ranking[:FIRST] for ranking in ranked]
        depth *= 4


@dataclass(frozen=True, slots=True)
class Row:
    """The held-out questions of a kind, or of all.

    Attributes:
        kind: title, sentence, click or all; in `Outcome.others` the name of the comparison.
        questions: their number.
        before, after: mean nDCG@10, or mean share of the nearest.
        comparison: of the paired differences.
    """

    kind: str
    questions: int
    before: float
    after: float
    comparison: Comparison

    @property
    def lost(self) -> bool:
        """Whether the questions lost, as far as can be told."""
        return self.comparison.difference < 0 and self.comparison.p < LOSS_P

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
    rows = (row_of(kind, before[at], after[at]) for kind, at in chosen.items())
    return *rows, row_of(ALL, before, after)


def row_of(kind: str, before: Values, after: Values) -> Row:
    """The row of some questions: their values (q,) before and after."""
    means = float(before.mean()), float(after.mean())
    return Row(kind, len(before), *means, compare(after, before))


def objection(rows: Sequence[Row], min_gain: float = MIN_GAIN) -> str | None:
    """Why a map is not offered, as a clause; None if it is better beyond doubt.

    min_gain: the 95 % interval of the mean difference has to be above.
    """
    if not rows:
        return NO_MAP
    *kinds, total = rows
    for row in kinds:
        if row.lost:
            return f"questions of the kind {row.kind} lost"
    if total.comparison.p >= MAX_P or total.comparison.low <= min_gain:
        return "the gain is not beyond doubt"
    return None
