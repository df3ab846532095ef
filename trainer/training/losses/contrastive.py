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

from trainer.errors import ConfigError
from trainer.training.losses.cosines import nested_cosines

ScoreLoss = Callable[[Tensor], Tensor]


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


def distillation(
    student: Tensor, teacher: Tensor, *, temperature: float = 0.05, bias: Tensor | None = None
) -> Tensor:
    """KL divergence of the student's ranking from the teacher's, averaged over anchors.

    KL(softmax(teacher / t) ‖ softmax(student / t)). student, teacher: (B, N) cosines of the same
    pairs, over a prefix and over the full width. bias: as in `info_nce`. The teacher learns
    nothing from it.
    """
    shift = 0.0 if bias is None else bias.nan_to_num(neginf=-1e4)  # −inf − −inf is not a number
    target = (teacher.detach() / temperature + shift).log_softmax(dim=1)
    log_student = (student / temperature + shift).log_softmax(dim=1)
    return functional.kl_div(log_student, target, reduction="batchmean", log_target=True)


def layer_distillation(truncated: Tensor, full: Tensor, *, temperature: float = 0.3) -> Tensor:
    """KL divergence between the softmaxes of two vectors of a text, averaged over texts.

    Draws the vector after the first layers to the one after all (arXiv 2402.14776); multiplied by
    the temperature. truncated, full: (n, D). The full vectors get no gradient.
    """
    target = (full.detach() / temperature).log_softmax(dim=-1)
    log_truncated = (truncated / temperature).log_softmax(dim=-1)
    divergence = functional.kl_div(log_truncated, target, reduction="batchmean", log_target=True)
    return temperature * divergence


def matryoshka(
    loss: ScoreLoss,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
    form: Callable[[Tensor, Tensor, Sequence[int]], list[Tensor]] = nested_cosines,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The weighted sum of `loss` over the cosines of every prefix, a function of vectors.

    weights: one for each of dims, 1 by default. form: how the cosines are found; `plain_cosines`
    gives the same to rounding. matryoshka(loss, [D]) is loss itself on vectors D wide. Raises
    ConfigError for no dims, or weights that do not match.
    """
    chosen = [1.0] * len(dims) if weights is None else list(weights)
    if not dims or len(chosen) != len(dims):
        raise ConfigError(f"{len(chosen)} weights for {len(dims)} prefixes: expected one for each")

    def nested(anchors: Tensor, candidates: Tensor) -> Tensor:
        scores = form(anchors, candidates, dims)
        terms = (weight * loss(found) for weight, found in zip(chosen, scores, strict=True))
        return torch.stack(list(terms)).sum()

    return nested
