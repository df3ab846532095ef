"""Contrastive losses, plain and nested: pure functions of tensors.

InfoNCE: van den Oord et al., arXiv 1807.03748; with in-batch and hard negatives as in SimCSE,
arXiv 2104.08821. Nested (Matryoshka) training: Kusupati et al., arXiv 2205.13147.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from trainer.errors import ConfigError


class ContrastiveLoss(Protocol):
    """Anchors, positives and perhaps negatives to a scalar."""

    def __call__(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        *,
        same: Tensor | None = None,
    ) -> Tensor: ...


def prefix(x: Tensor, dim: int) -> Tensor:
    """The first `dim` numbers of each row, scaled to unit length; zero rows stay zero. (n, dim)"""
    if not 1 <= dim <= x.shape[-1]:
        raise ConfigError(f"prefix length {dim}: expected 1 to {x.shape[-1]}, the vectors' width")
    return torch.nn.functional.normalize(x[..., :dim], dim=-1)


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    same: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """−log softmax of each anchor's cosine to its positive among all candidates, averaged.

    The candidates of every anchor are the positives of the whole batch, then all its hard
    negatives. anchors, positives: (B, D). negatives: (N, D). same: (B, B + N) bool, True where a
    candidate is the same text as the anchor's positive: it is left out, the positive itself stays.
    temperature: cosines are divided by it. Returns a scalar.

        info_nce(a, b)                     # B in-batch candidates for each anchor
        info_nce(a, b, c)                  # and all rows of c
    """
    candidates = positives if negatives is None else torch.cat([positives, negatives])
    a, c = prefix(anchors, anchors.shape[-1]), prefix(candidates, candidates.shape[-1])
    scores = a @ c.T / temperature  # (B, B + N)
    labels = torch.arange(len(anchors), device=anchors.device)  # (B,)
    if same is not None:
        others = same.clone()
        others[labels, labels] = False
        scores = scores.masked_fill(others, float("-inf"))
    return torch.nn.functional.cross_entropy(scores, labels)


def matryoshka(
    loss: ContrastiveLoss, dims: Sequence[int], weights: Sequence[float] | None = None
) -> ContrastiveLoss:
    """The weighted sum of `loss` over the prefixes of the vectors, each scaled to unit length.

    weights: one for each of dims, 1 by default. matryoshka(loss, [D]) is loss itself on vectors D
    wide. Raises ConfigError for no dims, or weights that do not match.

        nested = matryoshka(info_nce, dims=[768, 256, 64])
        nested(anchors, positives).backward()
    """
    chosen = [1.0] * len(dims) if weights is None else list(weights)
    if not dims or len(chosen) != len(dims):
        raise ConfigError(f"{len(chosen)} weights for {len(dims)} prefixes: expected one for each")

    def nested(
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        *,
        same: Tensor | None = None,
    ) -> Tensor:
        total = anchors.new_zeros(())
        for dim, weight in zip(dims, chosen, strict=True):
            cut = None if negatives is None else prefix(negatives, dim)
            total = total + weight * loss(
                prefix(anchors, dim), prefix(positives, dim), cut, same=same
            )
        return total

    return nested
