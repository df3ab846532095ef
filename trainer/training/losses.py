"""Losses: pure functions of the cosines of every prefix of two sets of vectors.

    scores = cosines(anchors, positives)                  # (B, B)
    info_nce(scores)                                      # B in-batch candidates for each anchor
    nested = matryoshka(info_nce, dims=[768, 256, 64])    # the sum over three prefixes
    nested(anchors, positives).backward()

InfoNCE: van den Oord et al., arXiv 1807.03748; with in-batch and weighted hard negatives as in
SimCSE, arXiv 2104.08821. Supervised contrastive: Khosla et al., arXiv 2004.11362; for sentences
Gunel et al., arXiv 2011.01403. Nested (Matryoshka): Kusupati et al., arXiv 2205.13147; over layers
too: Li et al., arXiv 2402.14776. CoSENT: Huang et al., IEEE/ACM TASLP 2024, doi
10.1109/TASLP.2024.3402087.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional


def prefix(x: Tensor, dim: int) -> Tensor:
    """The first `dim` dimensions of each row at unit length; zero rows stay zero. (n, dim)"""
    return functional.normalize(x[..., :dim], dim=-1)


def cosines(a: Tensor, c: Tensor, dim: int | None = None) -> Tensor:
    """Cosines of every row of a (B, D) with every row of c (N, D), of their first `dim`: (B, N)."""
    dim = a.shape[-1] if dim is None else dim
    return prefix(a, dim) @ prefix(c, dim).T


def paired_cosines(a: Tensor, c: Tensor, dim: int) -> Tensor:
    """The cosine of row i of a (n, D) with row i of c (n, D), of their first `dim`: (n,)."""
    return (prefix(a, dim) * prefix(c, dim)).sum(dim=-1)


def matryoshka(
    loss: Callable[[Tensor], Tensor],
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
    scores: Callable[[Tensor, Tensor, int], Tensor] = cosines,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The weighted sum of `loss` over the cosines of every prefix, a function of vectors.

    weights: one for each of dims, 1 by default. scores: what `loss` gets for a prefix; with
    `paired_cosines` those of row i with row i. matryoshka(loss, [D]) is loss itself on vectors D
    wide.
    """
    chosen = [1.0] * len(dims) if weights is None else list(weights)

    def nested(a: Tensor, c: Tensor) -> Tensor:
        terms = [w * loss(scores(a, c, dim)) for w, dim in zip(chosen, dims, strict=True)]
        return torch.stack(terms).sum()

    return nested


def info_nce(scores: Tensor, *, bias: Tensor | None = None, temperature: float = 0.05) -> Tensor:
    """−log softmax of each anchor's cosine to its positive among all candidates, averaged.

    scores: (B, N) cosines of anchors and candidates; candidate i is the positive of anchor i.
    bias: (B, N), added to the logits: −inf leaves a candidate out, log(α) weighs it α times.
    temperature: cosines are divided by it.
    """
    labels, logits = torch.arange(len(scores), device=scores.device), scores / temperature
    return functional.cross_entropy(logits if bias is None else logits + bias, labels)


def supervised_contrastive(scores: Tensor, labels: Tensor, *, temperature: float = 0.3) -> Tensor:
    """The loss where all rows of the same label are positives, averaged over anchors that have one.

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


def cosent(cosines: Tensor, gold: Tensor, *, temperature: float = 0.05) -> Tensor:
    """log(1 + Σ exp((s_low − s_high) / t)) over any two pairs with different gold scores.

    s: the cosine of a pair. Only the order of gold scores counts. cosines: (n,), of each pair.
    gold: (n,), of any scale. 0 if all of them are equal.
    """
    logits = cosines / temperature
    lower = gold.unsqueeze(1) < gold  # (n, n): row scored below column
    differences = (logits.unsqueeze(1) - logits).masked_fill(~lower, float("-inf"))
    return torch.cat([logits.new_zeros(1), differences.flatten()]).logsumexp(dim=0)


def layer_distillation(truncated: Tensor, full: Tensor, *, temperature: float = 0.3) -> Tensor:
    """KL divergence between the softmaxes of two vectors of a text, averaged over texts.

    Draws the vector after the first layers to the one after all (arXiv 2402.14776); multiplied by
    the temperature. truncated, full: (n, D). The full vectors get no gradient.
    """
    target = (full.detach() / temperature).log_softmax(dim=-1)
    log_truncated = (truncated / temperature).log_softmax(dim=-1)
    divergence = functional.kl_div(log_truncated, target, reduction="batchmean", log_target=True)
    return temperature * divergence
