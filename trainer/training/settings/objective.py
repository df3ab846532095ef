# ruff: noqa: RUF009  (the calls return dataclass fields)
"""The settings of a training run that concern the loss, by objective."""

from dataclasses import dataclass
from enum import StrEnum

from searchengine.trainer.training.settings.fields import (
    BELOW_ONE,
    COSINE,
    NO_LINE,
    NOT_NEGATIVE,
    POSITIVE,
    WEIGHT,
    Objective,
    at_least,
    choice,
    number,
    switch,
    text,
)


class SimilarityLoss(StrEnum):
    """How the similarity of a pair follows its score."""

    COSENT = "cosent"
    ANGLE = "angle"
    MSE = "mse"


class DistillationLoss(StrEnum):
    """What is compared with the teacher: rankings, margins, or vectors."""

    KL = "kl"
    MARGIN_MSE = "margin-mse"
    MSE = "mse"
    COSINE = "cosine"


class Margin(StrEnum):
    """How the guide's margin is counted: as a cosine, or as a share of the positive's."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"


class TeacherAxes(StrEnum):
    """The axes of the teacher's vectors that are learnt: principal ones, or as they are."""

    PCA = "pca"
    OWN = "own"


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """What is learnt, and settings of several objectives."""

    objective: Objective = choice(
        Objective.CONTRASTIVE,
        tuple(Objective),
        help="Task: tell pairs from other texts, predict the labels of texts, order pairs by their "
        "scores, or follow a teacher",
        card=NO_LINE,
    )
    temperature: float = number(
        0.05, POSITIVE, help="Temperature, by which cosines are divided", card=NO_LINE
    )
    similarity_loss: SimilarityLoss = choice(
        SimilarityLoss.COSENT,
        tuple(SimilarityLoss),
        help="Loss of objective `similarity`: `cosent` and `angle` learn the order of the scores, "
        "`mse` their values, which must be cosines",
        card=NO_LINE,
        objective=Objective.SIMILARITY,
    )
    mlm_weight: float = number(
        0.0,
        NOT_NEGATIVE,
        help="Weight of a masked-language-model loss on the anchors, the mean over all masked "
        "tokens of a batch",
        card="Masked-language-model loss, weight {}",
    )
    mlm_probability: float = number(
        0.15,
        BELOW_ONE,
        help="Share of the tokens that this loss masks",
        card="Share of tokens masked: {}",
    )


@dataclass(frozen=True, kw_only=True)
class ContrastiveSettings:
    """What a pair is told from."""

    hard_negative_weight: float = number(
        1.0,
        POSITIVE,
        help="α, the weight of an anchor's hard negatives",
        card="An anchor's own negatives weigh {}",
        objective=Objective.CONTRASTIVE,
    )
    mask_above: float | None = number(
        None,
        COSINE,
        optional=True,
        help="Cosine to the anchor above which a candidate is left out as a false negative; "
        "repeated texts always are",
        card="Candidates with a cosine above {} are not used as negatives",
        objective=Objective.CONTRASTIVE,
    )
    guide: str = text(
        "",
        help="Model that finds false negatives ([GISTEmbed](https://arxiv.org/abs/2402.16829)): a "
        "candidate that it scores above the positive, less `guide_margin`, is left out",
        default_in_words="none",
        card="Guide that leaves out false negatives: {}",
        objective=Objective.CONTRASTIVE,
    )
    guide_margin: float = number(
        0.0,
        NOT_NEGATIVE,
        help="Distance below the guide's score of the positive from which candidates are left out",
        card="Margin of the guide: {}",
        objective=Objective.CONTRASTIVE,
    )
    guide_margin_kind: Margin = choice(
        Margin.ABSOLUTE,
        tuple(Margin),
        help="`absolute`: the margin is a cosine; `relative`: a share of the positive's",
        card="Kind of the guide's margin: {}",
        objective=Objective.CONTRASTIVE,
    )
    contrast_anchors: bool = switch(
        False,
        help="Other anchors are candidates too",
        card="Other anchors were candidates too",
        objective=Objective.CONTRASTIVE,
    )
    contrast_positives: bool = switch(
        False,
        help="Other positives are compared with the positive too",
        card="Other positives were compared with the positive too",
        objective=Objective.CONTRASTIVE,
    )
    queue_size: int = number(
        0,
        at_least(0),
        help="Positives of earlier batches as further negatives, encoded by a momentum encoder "
        "([MoCo](https://arxiv.org/abs/1911.05722))",
        card="A queue of {} earlier vectors as further negatives",
        objective=Objective.CONTRASTIVE,
    )
    queue_momentum: float = number(
        0.999,
        BELOW_ONE,
        help="Momentum of the momentum encoder",
        card="Momentum of the queue's encoder: {}",
    )


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """How labels are learnt."""

    label_weight: float = number(
        0.9, WEIGHT, help="λ in (1−λ) · cross-entropy + λ · supervised contrastive", card=NO_LINE
    )
    label_temperature: float = number(
        0.3, POSITIVE, help="Temperature of the supervised contrastive loss", card=NO_LINE
    )
    label_smoothing: float = number(
        0.0,
        BELOW_ONE,
        help="[Smoothing](https://arxiv.org/abs/1512.00567) of the labels in the cross-entropy",
        card="Label smoothing {}",
        objective=Objective.CLASSIFICATION,
    )
    mixup: float = number(
        0.0,
        NOT_NEGATIVE,
        help="α of the Beta distribution that [mixes vectors]"
        "(https://arxiv.org/abs/1905.08941) in the cross-entropy; 0 for none",
        card="Mixup, α {}",
        objective=Objective.CLASSIFICATION,
    )


@dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """The teacher, and what is learnt from it."""

    teacher: str = text(
        "",
        help="Model whose vectors or cosines are learnt, or a "
        "[cross-encoder](special-encoders.md#cross-encoders): "
        "its scores of a row's candidates; without one the files have scores",
        default_in_words="none",
        card=NO_LINE,
        objective=Objective.DISTILLATION,
    )
    distillation_loss: DistillationLoss = choice(
        DistillationLoss.KL,
        tuple(DistillationLoss),
        help="`kl`: the teacher's ranking of the candidates; `margin-mse`: its margins between "
        "positive and negatives; `cosine`, `mse`: its vectors",
        card=NO_LINE,
        objective=Objective.DISTILLATION,
    )
    teacher_temperature: float | None = number(
        None,
        POSITIVE,
        optional=True,
        help="Temperature, by which the teacher's scores are divided",
        default_in_words="`temperature` with a `teacher`, 1 for scores of the files",
        card="Temperature of the teacher: {}",
        objective=Objective.DISTILLATION,
    )
    teacher_axes: TeacherAxes = choice(
        TeacherAxes.PCA,
        tuple(TeacherAxes),
        help="Axes of the teacher's vectors that are learnt: `pca` its principal axes, the "
        "strongest first; `own` as they are, so that both models' vectors can be compared",
        card="The vectors can be compared with the teacher's",
        objective=Objective.DISTILLATION,
    )
    question_encoder: bool = switch(
        False,
        help="Train a [question encoder](special-encoders.md#question-encoders): what is trained "
        "learns the teacher's vectors of questions, and is saved beside the teacher, which encodes "
        "the documents. Without a `teacher`, that is the `base`",
        card="It encodes questions only; the teacher beside it encodes the documents",
        objective=Objective.DISTILLATION,
    )
