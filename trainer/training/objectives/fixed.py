"""A model that a run uses and does not change: a teacher, or a guide."""

from collections.abc import Sequence

import torch
from torch import Tensor

from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.encoder import Encoder, Role

# Scores nearer to 0 or 1 are taken as this near, whose logits are -16 and 16.
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
        """Of the encoder."""
        return self.encoder.fingerprint

    def __call__(self, texts: Sequence[str], role: Role) -> Tensor:
        """Unit rows (n, dim) float32, with the encoder's own prompt for this role."""
        return torch.from_numpy(self.encoder.encode(texts, role=role)).to(self._device)


class FixedCrossEncoder:
    """Scores of pairs on the device of the run, before the sigmoid, without gradients."""

    def __init__(self, scorer: CrossEncoder, sigmoid: bool, device: torch.device):
        """sigmoid: whether `score` gives the output after it."""
        self._scorer = scorer
        self._sigmoid = sigmoid
        self._device = device

    @property
    def fingerprint(self) -> str:
        """Of the cross-encoder."""
        return self._scorer.fingerprint

    def __call__(self, questions: Sequence[str], texts: Sequence[str]) -> Tensor:
        """(n,) float32: of each question with its text."""
        scores = torch.from_numpy(self._scorer.score(questions, texts))
        if self._sigmoid:
            scores = torch.logit(scores, _NEAREST)
        return scores.to(self._device)
