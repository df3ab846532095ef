"""How good the vectors are, for every prefix length: agreement with human similarity scores.

STS: Agirre et al., SemEval 2012–2017. Spearman's rank correlation over all pairs of a task pooled,
as Reimers & Gurevych (arXiv 1908.10084) and SimCSE (arXiv 2104.08821, appendix B) report it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.geometry import alignment, effective_rank, uniformity
from searchengine.trainer.evaluation.intervals import (
    MIN_PAIRS,
    Interval,
    spearman,
    spearman_interval,
)

Rows = NDArray[np.float32]
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
    """`dims`, or else the encoder's `matryoshka_dims`, or else the full width alone.

    Raises ConfigError for a length outside 1 to `width`.
    """
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

    dims: prefix lengths; by default the encoder's `matryoshka_dims`, or else its full width.
    Each distinct sentence is encoded once; on_batch gets their counts. Takes seconds per 10,000
    pairs and prefix length. Raises ConfigError for a length the vectors do not have, DataError for
    pairs that cannot be correlated.
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
