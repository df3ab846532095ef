"""How good the vectors are, for every prefix length: agreement with human similarity scores.

STS: Agirre et al., SemEval 2012–2017. Spearman's rank correlation over all pairs of a task pooled,
as Reimers & Gurevych (arXiv 1908.10084) and SimCSE (arXiv 2104.08821, appendix B) report it.

Their geometry, without a task: whether similar texts are close, and all spread out. Alignment and
uniformity: Wang & Isola (arXiv 2005.10242), measured on STS pairs the way SimCSE does (section 6).
Spectrum: its section 5. Effective rank: Roy & Vetterli (EUSIPCO 2007). Rows are (n, D) float32,
scaled to length one; DataError for fewer than two of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.intervals import (
    MIN_PAIRS,
    Interval,
    spearman,
    spearman_interval,
)

Rows = NDArray[np.float32]
Floats = NDArray[np.float32] | NDArray[np.float64]
# Rows compared at a time: 1024² distances take 4 MB, whatever the number of rows.
BLOCK = 1024
OnBatch = Callable[[int], None]
ScoredPair = tuple[float, str, str]
SIMILAR_FROM = 4.0
"""Score from which a pair means the same, as in SimCSE (arXiv 2104.08821, section 5)."""
AVERAGE = "average"


class TextEncoder(Protocol):
    """An encoder to measure: texts, and by keyword role and on_batch → rows, as Encoder.encode."""

    def encode(self, *args: Any, **options: Any) -> Rows: ...


class StsTask(NamedTuple):
    """Scored pairs that make one row of a table."""

    name: str
    pairs: Sequence[ScoredPair]


@dataclass(frozen=True, slots=True)
class StsRow:
    """Agreement on one task at one prefix length, and the geometry of the task's vectors.

    spearman: in [−1, 1]; n: pairs. The rest is None in an average: spearman_interval, 95 %, also
    with fewer than MIN_PAIRS pairs; alignment, of the pairs scored SIMILAR_FROM or more, also if
    there are none; uniformity and effective_rank, over the distinct sentences.
    """

    task: str
    dim: int
    spearman: float
    n: int
    spearman_interval: Interval | None = None
    alignment: float | None = None
    uniformity: float | None = None
    effective_rank: float | None = None


def prefix_lengths(
    encoder: TextEncoder, width: int, dims: Sequence[int] | None = None
) -> tuple[int, ...]:
    """`dims`, or the encoder's `matryoshka_dims`, or the full width. Raises ConfigError."""
    chosen = tuple(dims) if dims is not None else getattr(encoder, "matryoshka_dims", (width,))
    if wrong := [dim for dim in chosen if not 1 <= dim <= width]:
        raise ConfigError(f"prefix length {wrong[0]}: expected 1 to {width}, the vectors' width")
    return chosen


def unit_prefix(x: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """The first `dim` dimensions of every row, scaled to length one; a zero row stays zero.

    (n, dim) float32, the same as the index takes of a vector.
    """
    head = x[:, :dim].astype(np.float64)
    norms = np.linalg.norm(head, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (head / np.where(norms == 0, 1, norms)).astype(np.float32)
    return unit


def prefix_cosines(a: NDArray[np.float32], b: NDArray[np.float32], dim: int) -> NDArray[np.float64]:
    """Cosine of row i of a with row i of b over their first `dim` dimensions. (n,) float64."""
    x, y = a[:, :dim].astype(np.float64), b[:, :dim].astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    cosines: NDArray[np.float64] = np.einsum("ij,ij->i", x, y) / np.maximum(norms, 1e-12)
    return cosines


def sts_tasks(
    encoder: TextEncoder,
    tasks: Sequence[StsTask],
    dims: Sequence[int] | None = None,
    on_batch: OnBatch | None = None,
) -> list[StsRow]:
    """One row per task and prefix length, in the order of tasks and dims.

    dims: as for `prefix_lengths`. Each distinct sentence is encoded once; on_batch gets their
    counts. Raises ConfigError for a length the vectors do not have, DataError for pairs that cannot
    be correlated.
    """
    for name, pairs in tasks:  # before anything is encoded
        if len({score for score, _, _ in pairs}) < 2:
            raise DataError(f"{name}: a correlation needs two scores or more that differ")
    texts = sentences(tasks)
    vectors = encoder.encode(texts, on_batch=on_batch)
    place = {text: i for i, text in enumerate(texts)}
    rows = []
    for task in tasks:
        places = np.array([(place[a], place[b]) for _, a, b in task.pairs])
        for dim in prefix_lengths(encoder, vectors.shape[1], dims):
            rows.append(_row(task, vectors, places, dim))
    return rows


def sentences(tasks: Iterable[StsTask]) -> list[str]:
    """The distinct sentences of all tasks, in order of their first occurrence."""
    return list(dict.fromkeys(s for task in tasks for _, a, b in task.pairs for s in (a, b)))


def averages(rows: Iterable[StsRow]) -> list[StsRow]:
    """The plain mean over the tasks, one row named "average" per prefix length; n: all pairs."""
    by_dim: dict[int, list[StsRow]] = {}
    for row in rows:
        by_dim.setdefault(row.dim, []).append(row)
    return [
        StsRow(AVERAGE, dim, sum(r.spearman for r in group) / len(group), sum(r.n for r in group))
        for dim, group in by_dim.items()
    ]


def _row(task: StsTask, vectors: Rows, pairs: NDArray[np.int64], dim: int) -> StsRow:
    """vectors: (n, D) of the sentences of all tasks; pairs: (m, 2), rows of them."""
    cosines = prefix_cosines(vectors[pairs[:, 0]], vectors[pairs[:, 1]], dim)
    if np.ptp(cosines) == 0:
        raise DataError(
            f"{task.name}: all {len(cosines)} pairs have the same cosine over {dim} dimensions"
        )
    gold = np.array([score for score, _, _ in task.pairs])
    used, places = np.unique(pairs, return_inverse=True)
    x, similar = unit_prefix(vectors[used], dim), places.reshape(-1, 2)[gold >= SIMILAR_FROM]
    return StsRow(
        task.name,
        dim,
        spearman(cosines, gold),
        len(gold),
        spearman_interval(cosines, gold) if len(gold) >= MIN_PAIRS else None,
        alignment(x[similar[:, 0]], x[similar[:, 1]]) if len(similar) else None,
        uniformity(x),
        effective_rank(x),
    )


def alignment(a: Floats, b: Floats) -> float:
    """Mean of ‖a_i − b_i‖² over positive pairs: 0 to 4, lower is closer.

    a, b: (n, D), row i of one belongs to row i of the other.
    """
    return float(np.mean(np.linalg.norm(a.astype(np.float64) - b, axis=1) ** 2))


def uniformity(x: Floats) -> float:
    """log of the mean of exp(−2 ‖x_i − x_j‖²) over all i < j: −8 to 0, lower is more even.

    Computed in blocks of rows: memory does not grow with n², time does.
    """
    _check(x, "uniformity")
    squares = np.einsum("nd,nd->n", x, x)
    total = 0.0
    for i in range(0, len(x), BLOCK):
        for j in range(i, len(x), BLOCK):
            values = squares[i : i + BLOCK, None] + squares[None, j : j + BLOCK]
            values -= 2 * (x[i : i + BLOCK] @ x[j : j + BLOCK].T)
            values = np.exp(-2 * np.maximum(values, 0))  # rounding can take a distance below zero
            counted = np.triu(values, k=1) if i == j else values
            total += float(counted.sum(dtype=np.float64))
    return float(np.log(total / (len(x) * (len(x) - 1) / 2)))


def spectrum(x: Floats) -> NDArray[np.float64]:
    """Singular values of the rows, divided by their sum: descending, summing to 1.

    (min(n, D),) float64. The rows are not centred: a direction that all share comes first. Raises
    DataError for rows that are all zero.
    """
    _check(x, "spectrum")
    values: NDArray[np.float64] = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    if values[0] == 0:
        raise DataError(f"spectrum of {len(x)} rows that are all zero: nothing to divide by")
    values /= values.sum()
    return values


def effective_rank(x: Floats) -> float:
    """exp of the entropy of `spectrum(x)`, 1 to min(n, D): how many directions are in use."""
    shares = spectrum(x)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _check(x: Floats, what: str) -> None:
    if x.ndim != 2 or len(x) < 2:
        raise DataError(f"{what} of an array of shape {x.shape}: expected (n, D), n at least 2")
