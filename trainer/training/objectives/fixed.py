"""An encoder that a run uses and does not change: a teacher, or a guide."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.encoder import Encoder, Role


class FixedEncoder:
    """Vectors of texts on the device of the run, without gradients.

    Nothing is remembered for the next epoch: rounding depends on the texts that are encoded
    together, and a resumed run must get the vectors of one without interruption.
    """

    def __init__(self, encoder: Encoder, device: torch.device):
        self.encoder = encoder
        self.dim = encoder.dim
        self._device = device

    def __call__(self, texts: Sequence[str], role: Role) -> Tensor:
        """Unit rows (n, dim) float32, with the encoder's own prompt for this role."""
        return torch.from_numpy(self.encoder.encode(texts, role=role)).to(self._device)
