"""Models that a run uses and does not change: a teacher, or a guide that finds false negatives."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.encoder import Encoder, Role
from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.model import pairs
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.source import Source
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig, RuntimeKind
from searchengine.trainer.training.attention import use_plain
from searchengine.trainer.training.head import principal_axes
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import TrainingModel

# Scores are kept at least this far from 0 and 1: logits from -16 to 16.
_NEAREST = 1e-7


class FixedEncoder:
    """Vectors of texts on the device of the run, without gradients.

    Nothing is remembered for the next epoch: rounding depends on the texts that are encoded
    together, and a resumed run must get the vectors of one without interruption.
    """

    def __init__(self, encoder: Encoder, device: torch.device):
        self.encoder = encoder
        self.dim = encoder.dim
        self._device = device

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the encoder."""
        return self.encoder.fingerprint

    def __call__(self, texts: Sequence[str], role: Role) -> Tensor:
        """Unit rows (n, dim) float32, with the encoder's own prompt for this role."""
        return torch.from_numpy(self.encoder.encode(texts, role=role)).to(self._device)


class FixedCrossEncoder:
    """Scores of pairs on the device of the run, before the sigmoid, without gradients."""

    def __init__(self, scorer: CrossEncoder, sigmoid: bool, device: torch.device):
        """sigmoid: whether the scores of `scorer` are outputs behind a sigmoid."""
        self._scorer = scorer
        self._sigmoid = sigmoid
        self._device = device

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the cross-encoder."""
        return self._scorer.fingerprint

    def __call__(self, questions: Sequence[str], texts: Sequence[str]) -> Tensor:
        """(n,) float32: the score of each question with its text."""
        scores = torch.from_numpy(self._scorer.score(questions, texts))
        if self._sigmoid:
            scores = torch.logit(scores, _NEAREST)
        return scores.to(self._device)


Fixed = FixedEncoder | FixedCrossEncoder | None


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


def check_widths(config: TrainConfig, teacher: Fixed, model: Model, axes: bool) -> None:
    """Refuse a teacher whose vectors this model cannot learn. Raises ConfigError.

    axes: whether they are learnt along their principal axes. Then a wider teacher is projected to
    its strongest; a narrower one has no target for the last dimensions. From any teacher cosines
    can be learnt.
    """
    if not config.learns_vectors or not isinstance(teacher, FixedEncoder):
        return
    dim, width = model.module.dim, teacher.dim
    if width < dim or (not axes and width != dim):
        raise ConfigError(
            f"teacher {config.teacher} has {width} dimensions, expected "
            f"{'at least' if axes else 'as many as'} the {dim} of {config.base} to learn its "
            "vectors: learn its cosines, which need no common width (distillation_loss=kl), or "
            "choose another `base`"
        )


def teacher_title(config: TrainConfig, teacher: Fixed, dim: int, axes: bool) -> str:
    """What is learnt from the teacher, in words, for the model card; "" without one."""
    if teacher is None or not config.teacher:
        return ""
    if isinstance(teacher, FixedCrossEncoder):
        return f"Teacher {config.teacher}, a cross-encoder: its scores were learnt"
    learnt = "its cosines were learnt"
    if config.learns_vectors:
        learnt = "its vectors were learnt"
        if axes:
            learnt = f"its vectors along their {dim} strongest principal axes were learnt"
    return f"Teacher {config.teacher}, {teacher.dim} dimensions: {learnt}"


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
    strongest = principal_axes(vectors.astype(np.float64))[: axes.shape[1]]
    weight = strongest.T.astype(np.float32)  # (teacher's dim, D)
    axes.copy_(torch.from_numpy(weight))
    projected: np.ndarray = vectors @ weight
    return projected
