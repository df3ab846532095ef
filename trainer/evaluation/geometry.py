"""The geometry of vectors, without a task: whether similar texts are close, and all spread out.

Alignment and uniformity: Wang & Isola (arXiv 2005.10242), measured on STS pairs the way SimCSE does
(arXiv 2104.08821, section 6). Isotropy: Mu & Viswanath (arXiv 1702.01417). Effective rank: Roy &
Vetterli (EUSIPCO 2007).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import DataError
from searchengine.trainer.evaluation.sts import (
    OnBatch,
    Remembered,
    ScoredPair,
    TextEncoder,
    prefix_lengths,
    unit_prefix,
)

Floats = NDArray[np.float32] | NDArray[np.float64]
# Rows compared at a time: 1024² distances take 4 MB, whatever the number of rows.
BLOCK = 1024


@dataclass(frozen=True, slots=True)
class GeometryRow:
    """The vectors' shape at one prefix length, each prefix scaled to length one.

    alignment: 0 to 4, lower is closer; uniformity: −8 to 0, lower is more even; isotropy: up to 1,
    which is even; mean_cosine: of two distinct sentences; effective_rank: 1 to `dim`. positives:
    pairs in the alignment; n: distinct sentences in all the others.
    """

    dim: int
    alignment: float
    uniformity: float
    isotropy: float
    mean_cosine: float
    effective_rank: float
    positives: int
    n: int


def geometry(
    encoder: TextEncoder,
    pairs: Sequence[ScoredPair],
    dims: Sequence[int] | None = None,
    *,
    positive_from: float = 4.0,
    on_batch: OnBatch | None = None,
) -> list[GeometryRow]:
    """One row per prefix length: alignment of the positive pairs, the rest over all sentences.

    pairs: (score, sentence, sentence). dims: by default the encoder's `matryoshka_dims`, or else
    its full width. positive_from: the score from which a pair is positive, 4 for SimCSE. Each
    distinct sentence is encoded and counted once; on_batch gets their counts. Raises DataError
    where no pair is positive, ConfigError for a length the vectors do not have.
    """
    positives = [(a, b) for score, a, b in pairs if score >= positive_from]
    if not positives:
        raise DataError(
            f"none of {len(pairs)} pairs has a score of at least {positive_from:g}: alignment "
            "needs positive pairs, so lower the score from which a pair is positive"
        )
    known = Remembered(encoder)
    known.encode((text for _, a, b in pairs for text in (a, b)), on_batch=on_batch)
    vectors = known.rows
    left, right = known.encode(a for a, _ in positives), known.encode(b for _, b in positives)
    rows = []
    for dim in prefix_lengths(encoder, vectors.shape[1], dims):
        x = unit_prefix(vectors, dim)
        rows.append(
            GeometryRow(
                dim=dim,
                alignment=alignment(unit_prefix(left, dim), unit_prefix(right, dim)),
                uniformity=uniformity(x),
                isotropy=isotropy(x),
                mean_cosine=mean_cosine(x),
                effective_rank=effective_rank(x),
                positives=len(positives),
                n=len(x),
            )
        )
    return rows


def alignment(a: Floats, b: Floats, alpha: float = 2.0) -> float:
    """Mean of ‖a_i − b_i‖^alpha over positive pairs (Wang & Isola, alpha = 2); lower is closer.

    a, b: (n, D), row i of one belongs to row i of the other; unit rows, as encoders give them.
    Raises DataError for other shapes and for no rows.
    """
    if a.ndim != 2 or a.shape != b.shape or not len(a):
        raise DataError(
            f"alignment of arrays of shape {a.shape} and {b.shape}: expected the same (n, D), n > 0"
        )
    distances = np.linalg.norm(a.astype(np.float64) - b, axis=1)
    return float(np.mean(distances**alpha))


def uniformity(x: Floats, t: float = 2.0) -> float:
    """log of the mean of exp(−t ‖x_i − x_j‖²) over all i < j (Wang & Isola, t = 2).

    x: (n, D) unit rows. Lower is more even. Computed in blocks of rows: memory does not grow with
    n², time does. Raises DataError for fewer than two rows.
    """
    _check(x, "uniformity")
    squares = np.einsum("nd,nd->n", x, x)
    total = 0.0
    for i in range(0, len(x), BLOCK):
        for j in range(i, len(x), BLOCK):
            values = squares[i : i + BLOCK, None] + squares[None, j : j + BLOCK]
            values -= 2 * (x[i : i + BLOCK] @ x[j : j + BLOCK].T)
            values = np.exp(-t * np.maximum(values, 0))  # rounding can take a distance below zero
            counted = np.triu(values, k=1) if i == j else values
            total += float(counted.sum(dtype=np.float64))
    return float(np.log(total / (len(x) * (len(x) - 1) / 2)))


def mean_cosine(x: Floats) -> float:
    """Mean cosine of all pairs of distinct rows; 0 for vectors that favour no direction.

    x: (n, D) unit rows, n ≥ 2. Exact, from the length of the rows' sum: ‖Σ x_i‖² is n and the
    cosines of all ordered pairs.
    """
    _check(x, "mean cosine")
    wide = x.astype(np.float64)
    total = wide.sum(axis=0)
    squares = np.einsum("nd,nd->", wide, wide)
    return float((total @ total - squares) / (len(x) * (len(x) - 1)))


def spectrum(x: Floats) -> NDArray[np.float64]:
    """Singular values of the (n, D) matrix, divided by their sum: descending, summing to 1.

    (min(n, D),) float64. The rows are not centred: a direction that all share comes first. Raises
    DataError for fewer than two rows, and for rows that are all zero.
    """
    _check(x, "spectrum")
    values: NDArray[np.float64] = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    if values[0] == 0:
        raise DataError(f"spectrum of {len(x)} rows that are all zero: nothing to divide by")
    values /= values.sum()
    return values


def effective_rank(x: Floats) -> float:
    """exp of the entropy of `spectrum(x)` (Roy & Vetterli 2007): 1 to min(n, D)."""
    shares = spectrum(x)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def isotropy(x: Floats) -> float:
    """min Z(c) / max Z(c), Z(c) = Σ_i exp(c·x_i) (Mu & Viswanath, arXiv 1702.01417, eq. 7).

    c runs over the eigenvectors of xᵀx, and over their negatives, because the sign of an
    eigenvector means nothing. x: (n, D). 1 where no direction is favoured; for unit rows at least
    exp(−2).
    """
    _check(x, "isotropy")
    wide = x.astype(np.float64)
    _, axes = np.linalg.eigh(wide.T @ wide)  # (D, D), one eigenvector a column
    along = wide @ axes
    z = np.concatenate([np.exp(along).sum(axis=0), np.exp(-along).sum(axis=0)])
    return float(z.min() / z.max())


def _check(x: Floats, what: str) -> None:
    if x.ndim != 2 or len(x) < 2:
        raise DataError(f"{what} of an array of shape {x.shape}: expected (n, D), n at least 2")
