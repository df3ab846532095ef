"""Which step of a run is best: a score per prefix length, higher is better."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.evaluation.geometry import alignment, uniformity
from searchengine.trainer.evaluation.labels import LabelledText, accuracy
from searchengine.trainer.evaluation.sts import Remembered, ScoredPair, read_sts, sts
from searchengine.trainer.training.config import Objective, TrainConfig
from searchengine.trainer.training.data.examples import Examples
from searchengine.trainer.training.data.files import read_labelled
from searchengine.trainer.training.data.holdout import Split, hold_out
from searchengine.trainer.training.data.positives import Drawn
from searchengine.trainer.training.data_sets import DataSet
from searchengine.trainer.training.objectives.fixed import FixedEncoder
from searchengine.trainer.training.teachers import Fixed

Scores = Mapping[int, float]
# People's score, of 5, from which a pair means the same (SimCSE, arXiv 2104.08821, section 5).
SAME_MEANING_SCORE = 4.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """scores: by prefix length. alignment, uniformity: of the full width; None without STS
    files, and alignment where no pair is scored 4 or more.

    Scores are Spearman's correlation on STS files and on held-out scored pairs, the accuracy on
    labelled files, and without dev files the share of held-out anchors whose own positive is
    nearest.
    """

    scores: Scores = field(default_factory=dict)
    alignment: float | None = None
    uniformity: float | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of an encoder that comes with the call of `train`.

    name: in words, such as "nDCG@10 on scifact". scores: an encoder to scores by prefix length,
    higher is better.
    """

    name: str
    scores: Callable[[Encoder], Scores]


Judge = Callable[[Encoder], Judgement]


def make_judge(
    config: TrainConfig, data: Sequence[DataSet], measure: Measure | None = None
) -> tuple[Judge | None, list[Split]]:
    """The judge of a run, and what is held out from the training of each data set.

    Without `dev` files and `measure` some examples are held out of every data set, and the scores
    are the mean over them. None for sentences alone, or too few examples to hold enough out. Raises
    ConfigError for `dev` files beside a measure.
    """
    if measure is not None or config.dev:
        judge, _ = _make_judge(config, data[0].examples, measure, data[0].fixed)
        return judge, [Split(each.examples) for each in data]
    found = [_make_judge(each.config, each.examples, None, each.fixed) for each in data]
    judges = [judge for judge, _ in found if judge is not None]
    splits = [split for _, split in found]
    if len(judges) < 2:
        return (judges[0] if judges else None), splits
    return lambda encoder: _mean([judge(encoder) for judge in judges]), splits


def _mean(judgements: Sequence[Judgement]) -> Judgement:
    """The mean scores over several data sets, without dev files."""
    scores = [judgement.scores for judgement in judgements]
    return Judgement({dim: sum(s[dim] for s in scores) / len(scores) for dim in scores[0]})


def _make_judge(
    config: TrainConfig,
    examples: Examples,
    measure: Measure | None,
    fixed: Fixed,
) -> tuple[Judge | None, Split]:
    """As `make_judge`, of one data set; fixed encodes the documents of a question encoder."""
    teacher = _of_documents(config, fixed)
    if measure is not None:
        if config.dev:
            raise ConfigError(f"dev files beside {measure.name}: choose one to judge the steps")
        scores = measure.scores
        return lambda encoder: Judgement(scores(_beside(teacher, encoder))), Split(examples)
    for folder in filter(Path.is_dir, config.dev):
        raise ConfigError(
            f"dev is {folder}, a folder: expected files; to judge by search quality, pass "
            "measure=searchengine.measure.encoder_comparison.retrieval(folder)"
        )
    labels = config.objective is Objective.CLASSIFICATION
    if config.dev and labels:
        labelled = read_labelled(config.dev, config.columns)
        return lambda encoder: _judge_labels(encoder, labelled), Split(examples)
    if config.dev:
        pairs = read_sts(config.dev)
        return lambda encoder: judge_pairs(encoder, pairs), Split(examples)
    split = hold_out(examples, config.seed)
    if not split.rows:
        return None, split
    if labels:
        held_out = [(row.anchor, row.label) for row in split.rows]
        return lambda encoder: _judge_labels(encoder, held_out), split
    if config.objective is Objective.SIMILARITY:
        if len({row.scores for row in split.rows}) == 1:  # no order to agree with
            return None, Split(examples)
        held_pairs = [(row.scores[0], row.anchor, row.positive) for row in split.rows]
        return lambda encoder: Judgement(spearmans(encoder, held_pairs)), split
    known = None if teacher is None else Remembered(teacher)
    return lambda encoder: Judgement(top1_accuracy(encoder, split.rows, known)), split


def _of_documents(config: TrainConfig, fixed: Fixed) -> Encoder | None:
    """The encoder of the documents, if the run trains a question encoder."""
    if config.question_encoder and isinstance(fixed, FixedEncoder):
        return fixed.encoder
    return None


def _beside(teacher: Encoder | None, encoder: Encoder) -> Encoder:
    """The encoder; of questions alone, where a teacher encodes the documents."""
    if teacher is None:
        return encoder
    dims = encoder.matryoshka_dims
    return Encoder(replace(teacher.model, questions=encoder.model, matryoshka_dims=dims), "")


def measured_by(
    config: TrainConfig, data: Sequence[DataSet], measure: Measure | None = None
) -> str:
    """What `make_judge` judges by, in words."""
    if measure is not None:
        return measure.name
    if config.data_sets and not config.dev:
        names = " and ".join(dict.fromkeys(measured_by(each.config, [each]) for each in data))
        return f"{names}, mean over the data sets" if len(data) > 1 else names
    name = "spearman" if config.dev else "top-1 accuracy"
    if config.objective is Objective.CLASSIFICATION:
        name = "accuracy"
    elif config.objective is Objective.SIMILARITY:
        name = "spearman"
    return f"{name} on {'dev' if config.dev else 'held-out examples'}"


def spearmans(encoder: Encoder | Remembered, pairs: Sequence[ScoredPair]) -> dict[int, float]:
    """Spearman's correlation of cosines and scores, by prefix length."""
    return {row.dim: row.spearman for row in sts(encoder, pairs)}


def judge_pairs(encoder: Encoder, pairs: Sequence[ScoredPair]) -> Judgement:
    """Spearman's correlation, and the geometry of the same vectors (arXiv 2005.10242)."""
    known = Remembered(encoder)
    scores = spearmans(known, pairs)
    same = [(a, b) for score, a, b in pairs if score >= SAME_MEANING_SCORE]
    distance = None
    if same:
        distance = alignment(known.encode([a for a, _ in same]), known.encode([b for _, b in same]))
    return Judgement(scores, distance, uniformity(known.rows))


def _judge_labels(encoder: Encoder, labelled: Sequence[LabelledText]) -> Judgement:
    return Judgement({row.dim: row.accuracy for row in accuracy(encoder, labelled)})


def top1_accuracy(
    encoder: Encoder, rows: Sequence[Drawn], documents: Remembered | None = None
) -> dict[int, float]:
    """Share of anchors whose nearest positive is their own, by prefix length.

    Equal positives count once, so a positive with the same text is no mistake. documents: encodes
    the positives, if that is another encoder.
    """
    positives = list(dict.fromkeys(row.positive for row in rows))
    place = {text: i for i, text in enumerate(positives)}
    expected = np.array([place[row.positive] for row in rows])
    queries = encoder.encode([row.anchor for row in rows], role="query")
    vectors = (documents or encoder).encode(positives, role="document")
    scores = {}
    for dim in encoder.matryoshka_dims:
        a, b = queries[:, :dim], vectors[:, :dim]
        lengths = np.linalg.norm(b, axis=1)
        cosines = (a @ b.T) / np.maximum(lengths, 1e-12)  # the anchor's length changes no ranking
        scores[dim] = float(np.mean(cosines.argmax(axis=1) == expected))
    return scores
