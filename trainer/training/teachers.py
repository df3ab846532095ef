"""The encoder beside the one that is trained, a teacher or a guide; and the run's objective."""

import numpy as np
import torch

from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.model import pairs
from searchengine.trainer.model.folder import Model
from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes.config import Precision, RuntimeConfig, RuntimeKind
from searchengine.trainer.training.attention import use as use_plain
from searchengine.trainer.training.config import Objective, TrainConfig
from searchengine.trainer.training.objectives.classification import Classification
from searchengine.trainer.training.objectives.contrastive import Contrastive
from searchengine.trainer.training.objectives.distillation import Distillation
from searchengine.trainer.training.objectives.fixed import FixedCrossEncoder, FixedEncoder
from searchengine.trainer.training.objectives.similarity import Similarity
from searchengine.trainer.training.posthoc import pca
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.settings.objective import TeacherAxes
from searchengine.trainer.training.training_model import TrainingModel

Fixed = FixedEncoder | FixedCrossEncoder | None
AnyObjective = Contrastive | Classification | Similarity | Distillation


def load_fixed(config: TrainConfig, device: torch.device) -> Fixed:
    """The teacher or the guide that the configuration names. Raises ConfigError."""
    role, name = ("teacher", config.teacher) if config.teacher else ("guide", config.guide)
    if not name:
        return None
    # Torch cuts batches by a fixed rule, not by a measured one: a resumed run gets the same.
    precision = Precision.FP32 if config.precision == Precision.FP32 else Precision.AUTO
    trust = config.trust_remote_code
    runtime = RuntimeConfig(RuntimeKind.TORCH, precision, trust_remote_code=trust)
    try:
        place = Source.find(name, trust_remote_code=trust)
        if config.teacher and pairs.is_classifier(place):
            if config.learns_vectors:
                raise ConfigError(
                    f"teacher {name} is a cross-encoder, which has no vectors: learn its scores "
                    "(distillation_loss kl or margin-mse)"
                )
            scorer = CrossEncoder.load(name, runtime)
            return FixedCrossEncoder(scorer, pairs.has_sigmoid(place), device)
        encoder = Encoder.load(
            name, runtime=RuntimeKind.TORCH, precision=precision, trust_remote_code=trust
        )
    except ModelError as error:
        raise ConfigError(f"{role} {name} cannot be loaded: {error}") from error
    use_plain(encoder.module.transformer)
    return FixedEncoder(encoder, device)


def check_widths(config: TrainConfig, teacher: Fixed, model: Model) -> None:
    """Refuse a teacher whose vectors this model cannot learn. Raises ConfigError.

    A wider teacher is projected to its strongest axes. One that is narrower has no target for the
    last dimensions; only cosines, of which the width is free, can be learnt from it.
    """
    if not config.learns_vectors or not isinstance(teacher, FixedEncoder):
        return
    dim, width = model.module.dim, teacher.dim
    if width < dim or (config.teacher_axes is TeacherAxes.OWN and width != dim):
        own = "as many as" if config.teacher_axes is TeacherAxes.OWN else "at least"
        raise ConfigError(
            f"teacher {config.teacher} has {width} dimensions, expected {own} the {dim} of "
            f"{config.base} to learn its vectors: learn its cosines, which need no common width "
            "(distillation_loss=kl), or choose another `base`"
        )


def teacher_title(config: TrainConfig, teacher: Fixed, dim: int) -> str:
    """What is learnt from the teacher, in words, for the model card; "" without one."""
    if teacher is None or not config.teacher:
        return ""
    if isinstance(teacher, FixedCrossEncoder):
        return f"Teacher {config.teacher}, a cross-encoder: its scores were learnt"
    if not config.learns_vectors:
        return f"Teacher {config.teacher}, {teacher.dim} dimensions: its cosines were learnt"
    if config.teacher_axes is TeacherAxes.OWN:
        return f"Teacher {config.teacher}, {teacher.dim} dimensions: its vectors were learnt"
    return (
        f"Teacher {config.teacher}, {teacher.dim} dimensions: its vectors along their {dim} "
        "strongest principal axes were learnt"
    )


def teacher_targets(
    training_model: TrainingModel, teacher: FixedEncoder, texts: list[str]
) -> np.ndarray:
    """The teacher's vectors of these texts as they are learnt: (n, D).

    Fits the axes, where principal ones are learnt.
    """
    vectors = teacher.encoder.encode(texts)
    axes = training_model.axes
    if axes is None:
        return vectors
    weight = pca(vectors, axes.shape[1]).weight.T  # (teacher's dim, D)
    axes.copy_(torch.from_numpy(weight))
    projected: np.ndarray = vectors @ weight
    return projected


def make_objective(
    config: TrainConfig,
    training_model: TrainingModel,
    model: Model,
    processes: Processes,
    fixed: Fixed,
) -> AnyObjective:
    """The objective that the configuration names."""
    dims = model.matryoshka_dims
    match config.objective:
        case Objective.CLASSIFICATION:
            return Classification(training_model, config, dims, processes)
        case Objective.SIMILARITY:
            return Similarity(config, dims, processes)
        case Objective.DISTILLATION:
            return Distillation(config, dims, processes, fixed, training_model.axes)
        case _:
            guide = fixed if isinstance(fixed, FixedEncoder) else None
            return Contrastive(training_model, config, dims, processes, guide)
