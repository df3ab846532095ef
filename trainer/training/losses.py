"""Losses: pure functions of scores, which are cosines of every prefix of two sets of vectors.

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

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from searchengine.trainer.errors import ConfigError

# A row shorter than this is taken for this long: a zero row stays zero, and its gradient finite.
EPSILON = 1e-12
ScoreLoss = Callable[[Tensor], Tensor]
# From two sets of vectors and prefix lengths to the scores that a loss gets for each length.
PrefixScores = Callable[[Tensor, Tensor, Sequence[int]], list[Tensor]]


def prefix(x: Tensor, dim: int) -> Tensor:
    """The first `dim` dimensions of each row at unit length; zero rows stay zero. (n, dim)"""
    check_lengths([dim], x.shape[-1])
    return functional.normalize(x[..., :dim], dim=-1)


def check_lengths(dims: Sequence[int], width: int) -> None:
    """ConfigError for a prefix length that vectors of this width do not have."""
    if wrong := [dim for dim in dims if not 1 <= dim <= width]:
        raise ConfigError(f"prefix length {wrong[0]}: expected 1 to {width}, the vectors' width")


def cosines(a: Tensor, c: Tensor) -> Tensor:
    """Cosines of every row of a (B, D) with every row of c (N, D): (B, N)."""
    return prefix(a, a.shape[-1]) @ prefix(c, c.shape[-1]).T


def plain_cosines(a: Tensor, c: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """The cosines (B, N) over each prefix in turn: cut, scaled, multiplied."""
    return [prefix(a, dim) @ prefix(c, dim).T for dim in dims]


def nested_cosines(a: Tensor, c: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """As `plain_cosines`, but every dimension is multiplied once: see `_Nested`."""
    check_lengths(dims, a.shape[-1])
    ends = sorted(set(dims))
    scores = _Nested.apply(a, c, *ends)  # type: ignore[no-untyped-call]
    by_length = dict(zip(ends, scores, strict=True))
    return [by_length[dim] for dim in dims]


def paired_cosines(a: Tensor, c: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """The cosine of row i of a (n, D) with row i of c (n, D): (n,) for each of dims."""
    check_lengths(dims, a.shape[-1])
    ends = sorted(set(dims))
    blocks = list(itertools.pairwise([0, *ends]))

    def sums(products: Tensor) -> Tensor:
        """(len(ends), n): over each prefix."""
        parts = [products[:, start:end].sum(dim=1) for start, end in blocks]
        return torch.stack(parts).cumsum(dim=0)

    scales = (sums(x.square()).clamp(min=EPSILON**2).rsqrt() for x in (a, c))
    by_length = dict(zip(ends, sums(a * c) * next(scales) * next(scales), strict=True))
    return [by_length[dim] for dim in dims]


class _Nested(torch.autograd.Function):
    """The cosines of ascending prefixes; only they and the scales are kept for the gradient.

    The dot products over a prefix are those over the next shorter one plus those over the block
    between them, and so are the squared lengths: all prefixes together cost the multiplications of
    the longest, forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, *ends: int) -> tuple[Tensor, ...]:
        cosines: list[Tensor] = []
        scales: list[Tensor] = []
        start, dots = 0, a.new_zeros(len(a), len(c))
        squares_a, squares_c = a.new_zeros(len(a)), c.new_zeros(len(c))
        for end in ends:
            x, y = a[:, start:end], c[:, start:end]
            dots = torch.addmm(dots, x, y.T)
            squares_a = squares_a + x.square().sum(-1)
            squares_c = squares_c + y.square().sum(-1)
            scale_a, scale_c = (s.clamp(min=EPSILON**2).rsqrt() for s in (squares_a, squares_c))
            cosines.append((dots * scale_a.unsqueeze(1)).mul_(scale_c))
            scales += [scale_a, scale_c]
            start = end
        ctx.save_for_backward(a, c, *cosines, *scales)
        ctx.ends = ends
        return tuple(cosines)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """From the longest prefix down: a block is part of its own prefix and all longer ones.

        With s = x·y / (|x||y|): ds/dx = y / (|x||y|) − s · x / |x|².
        """
        ends = ctx.ends
        a, c, *saved = ctx.saved_tensors
        cosines, scales = saved[: len(ends)], saved[len(ends) :]
        grad_a, grad_c = torch.zeros_like(a), torch.zeros_like(c)
        dots = torch.zeros_like(cosines[0])
        pull_a, pull_c = a.new_zeros(len(a)), c.new_zeros(len(c))
        for k in reversed(range(len(ends))):
            start, end = (ends[k - 1] if k else 0), ends[k]
            scale_a, scale_c = scales[2 * k], scales[2 * k + 1]
            pulled = gradients[k] * cosines[k]
            # The length of a row taken for EPSILON does not change with the row.
            free_a, free_c = scale_a < 1 / EPSILON, scale_c < 1 / EPSILON
            pull_a = pull_a - pulled.sum(1) * scale_a.square() * free_a
            pull_c = pull_c - pulled.sum(0) * scale_c.square() * free_c
            dots.add_(torch.mul(gradients[k], scale_a.unsqueeze(1), out=pulled).mul_(scale_c))
            x, y = a[:, start:end], c[:, start:end]
            grad_a[:, start:end] = torch.addmm(x * pull_a.unsqueeze(1), dots, y)
            grad_c[:, start:end] = torch.addmm(y * pull_c.unsqueeze(1), dots.T, x)
        return grad_a, grad_c, *(None for _ in ends)


def matryoshka(
    loss: ScoreLoss,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
    form: PrefixScores = nested_cosines,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The weighted sum of `loss` over the cosines of every prefix, a function of vectors.

    weights: one for each of dims, 1 by default. form: what `loss` gets for each prefix; by default
    the cosines of all pairs (`plain_cosines` gives the same to rounding), with `paired_cosines`
    those of row i with row i. matryoshka(loss, [D]) is loss itself on vectors D
    wide. Raises ConfigError for no dims, or weights that do not match.
    """
    chosen = [1.0] * len(dims) if weights is None else list(weights)
    if not dims or len(chosen) != len(dims):
        raise ConfigError(f"{len(chosen)} weights for {len(dims)} prefixes: expected one for each")

    def nested(anchors: Tensor, candidates: Tensor) -> Tensor:
        scores = form(anchors, candidates, dims)
        terms = (weight * loss(x) for weight, x in zip(chosen, scores, strict=True))
        return torch.stack(list(terms)).sum()

    return nested


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


def cosent(similarities: Tensor, scores: Tensor, *, temperature: float = 0.05) -> Tensor:
    """log(1 + Σ exp((s_low − s_high) / t)) over any two pairs with different scores.

    Only the order of the scores counts. similarities: (n,), of each pair. scores: (n,), of any
    scale. 0 if all scores are equal.
    """
    logits = similarities / temperature
    lower = scores.unsqueeze(1) < scores  # (n, n): row scored below column
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
