"""Contrastive losses, plain and nested: pure functions of cosines.

InfoNCE: van den Oord et al., arXiv 1807.03748; with in-batch and weighted hard negatives as in
SimCSE, arXiv 2104.08821. Supervised contrastive: Khosla et al., arXiv 2004.11362; for sentences
Gunel et al., arXiv 2011.01403. Nested (Matryoshka): Kusupati et al., arXiv 2205.13147; over layers
too: Li et al., arXiv 2402.14776.

    scores = cosines(anchors, positives)                  # (B, B)
    info_nce(scores)                                      # B in-batch candidates for each anchor
    nested = matryoshka(info_nce, dims=[768, 256, 64])    # the sum over three prefixes
    nested(anchors, positives).backward()
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.losses.cosines import nested_cosines

ScoreLoss = Callable[[Tensor], Tensor]
# From two sets of vectors and prefix lengths to what a loss is given for each length.
PrefixScores = Callable[[Tensor, Tensor, Sequence[int]], list[Tensor]]


def info_nce(
    scores: Tensor,
    *,
    labels: Tensor | None = None,
    bias: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """−log softmax of each anchor's cosine to its positive among all candidates, averaged.

    scores: (B, N) cosines of anchors and candidates. labels: (B,) which candidate is the anchor's
    positive; by default candidate i that of anchor i. bias: (B, N), added to the logits: −inf
    leaves a candidate out, log(α) weighs it α times. temperature: cosines are divided by it.
    """
    if labels is None:
        labels = torch.arange(len(scores), device=scores.device)
    logits = scores / temperature
    return functional.cross_entropy(logits if bias is None else logits + bias, labels)


def supervised_contrastive(scores: Tensor, labels: Tensor, *, temperature: float = 0.3) -> Tensor:
    """Every row with the same label is a positive; averaged over the anchors that have one.

    For anchor i with positives P(i): −1/|P(i)| Σ_{p ∈ P(i)} log softmax over all rows but i
    (arXiv 2004.11362, equation 2). scores: (B, B) cosines of the batch with itself. labels: (B,).
    A batch in which no two labels agree gives 0.
    """
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    logits = (scores / temperature).masked_fill(itself, float("-inf"))
    log_share = logits.log_softmax(dim=1).masked_fill(itself, 0.0)
    positive = (labels.unsqueeze(1) == labels) & ~itself  # (B, B)
    counts = positive.sum(dim=1)  # (B,)
    means = (log_share * positive).sum(dim=1) / counts.clamp(min=1)
    return -means.sum() / (counts > 0).sum().clamp(min=1)


def matryoshka(
    loss: ScoreLoss,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
    form: PrefixScores = nested_cosines,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The weighted sum of `loss` over the cosines of every prefix, a function of vectors.

    weights: one for each of dims, 1 by default. form: what `loss` gets for each prefix; by default
    the cosines of all pairs (`plain_cosines` gives the same to rounding), with `paired_cosines` or
    `paired_angles` those of row i with row i. matryoshka(loss, [D]) is loss itself on vectors D
    wide. Raises ConfigError for no dims, or weights that do not match.
    """
    chosen = [1.0] * len(dims) if weights is None else list(weights)
    if not dims or len(chosen) != len(dims):
        raise ConfigError(f"{len(chosen)} weights for {len(dims)} prefixes: expected one for each")

    def nested(anchors: Tensor, candidates: Tensor) -> Tensor:
        scores = form(anchors, candidates, dims)
        terms = (weight * loss(found) for weight, found in zip(chosen, scores, strict=True))
        return torch.stack(list(terms)).sum()

    return nested
