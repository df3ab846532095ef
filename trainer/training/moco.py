"""The queue of MoCo (He et al., arXiv 1911.05722): vectors of earlier batches as candidates.

They are the momentum encoder's, which follows the encoder slowly (`TrainingModel.follow`).
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

QUEUE_MOMENTUM = 0.999


class Queue(nn.Module):
    """The newest vectors of earlier batches and the ids of their texts."""

    vectors: Tensor
    texts: Tensor  # ids, by `text_ids`

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.size = size
        self.register_buffer("vectors", torch.zeros(0, dim))  # (n, dim), the newest first
        self.register_buffer("texts", torch.zeros(0, dtype=torch.int64))  # (n,)

    def push(self, vectors: Tensor, texts: Tensor) -> None:
        """vectors: (B, dim). texts: (B,) from `text_ids`."""
        self.vectors = torch.cat([vectors.detach(), self.vectors])[: self.size]
        self.texts = torch.cat([texts.to(self.texts.device), self.texts])[: self.size]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # A checkpoint holds as many rows as the queue had: make room for them.
        for name in ("vectors", "texts"):
            setattr(self, name, state_dict[prefix + name].to(getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def text_ids(texts: Iterable[str]) -> Tensor:
    """(n,) int64: equal for equal texts; for others equal with negligible probability."""
    hashes = (hashlib.blake2b(t.encode(errors="surrogatepass"), digest_size=8) for t in texts)
    return torch.from_numpy(np.frombuffer(b"".join(h.digest() for h in hashes), "<i8").copy())
