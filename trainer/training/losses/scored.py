"""Losses of pairs with scores: pure functions of each pair's similarity and score.

CoSENT: Huang et al., IEEE/ACM TASLP 2024, doi 10.1109/TASLP.2024.3402087. AnglE: Li & Li, arXiv
2309.12871, which is CoSENT on `cosines.paired_angles`.

    nested = matryoshka(partial(cosent, scores=scores), [768, 64], form=paired_cosines)
    nested(first, second).backward()                      # (n, 768) each, scores (n,)
"""

import torch
from torch import Tensor
from torch.nn import functional


def cosent(similarities: Tensor, scores: Tensor, *, temperature: float = 0.05) -> Tensor:
    """log(1 + Σ exp((s_low − s_high) / t)) over all two pairs of which one is scored higher.

    Only the order of the scores counts. similarities: (n,), of each pair. scores: (n,), of any
    scale. Without two different scores it is 0.
    """
    logits = similarities / temperature
    lower = scores.unsqueeze(1) < scores  # (n, n): row scored below column
    differences = (logits.unsqueeze(1) - logits).masked_fill(~lower, float("-inf"))
    return torch.cat([logits.new_zeros(1), differences.flatten()]).logsumexp(dim=0)


def squared_error(similarities: Tensor, scores: Tensor) -> Tensor:
    """Mean squared difference of similarity and score. similarities: (n,). scores: (n,), cosines.

    Reimers & Gurevych, arXiv 1908.10084, section 3.
    """
    return functional.mse_loss(similarities, scores)
