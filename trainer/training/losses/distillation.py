"""Losses by which an encoder learns from a teacher: pure functions of scores or vectors.

Rankings: Hinton et al., arXiv 1503.02531; of candidates, Lin et al., arXiv 2010.11386. Margins:
Hofstätter et al., arXiv 2010.02666. Layers: Li et al., arXiv 2402.14776. Vectors: Reimers &
Gurevych, arXiv 2004.09813. No teacher gets a gradient.
"""

from torch import Tensor
from torch.nn import functional


def distillation(
    student: Tensor,
    teacher: Tensor,
    *,
    temperature: float = 0.05,
    teacher_temperature: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """KL divergence of the student's ranking from the teacher's, averaged over anchors.

    KL(softmax(teacher / t') ‖ softmax(student / t)). student: (B, N) cosines. teacher: (B, N)
    scores of the same pairs: its cosines, or of any scale. teacher_temperature: t', by default t.
    bias: as in `info_nce`.
    """
    shift = 0.0 if bias is None else bias.nan_to_num(neginf=-1e4)  # −inf − −inf is not a number
    divisor = temperature if teacher_temperature is None else teacher_temperature
    target = (teacher.detach() / divisor + shift).log_softmax(dim=1)
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


def margin_mse(student: Tensor, teacher: Tensor, valid: Tensor | None = None) -> Tensor:
    """Squared difference of the two's margins, averaged over all negatives (arXiv 2010.02666).

    A margin is the score of the positive less that of a negative. student, teacher: (B, 1 + n)
    scores, the positive's first. valid: (B, 1 + n) bool, False where a row has fewer negatives.
    """
    difference = (student[:, :1] - student[:, 1:]) - (teacher[:, :1] - teacher[:, 1:]).detach()
    kept = difference if valid is None else difference[valid[:, 1:]]
    return kept.square().mean()


def vector_distance(similarities: Tensor) -> Tensor:
    """1 − cosine of the two's vectors of a text, averaged over texts. similarities: (n,) cosines.

    Times 2/D it is the mean squared difference of the dimensions of unit rows (arXiv 2004.09813).
    """
    return 1 - similarities.mean()
