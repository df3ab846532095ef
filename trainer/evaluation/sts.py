"""How good the vectors are, for every prefix length: agreement with human similarity scores.

STS: Agirre et al., SemEval 2012–2017. Spearman's rank correlation over all pairs of a task pooled,
as Reimers & Gurevych (arXiv 1908.10084) and SimCSE (arXiv 2104.08821, appendix B) report it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.geometry import alignment, effective_rank, uniformity
from searchengine.trainer.evaluation.intervals import (
    MIN_PAIRS,
    Interval,
    interval_of_mean,
    spearman,
    spearman_interval,
)
from searchengine.trainer.reading import open_text, table_rows

Rows = NDArray[np.float32]
OnBatch = Callable[[int], None]
Role = Literal["query", "document"]
ScoredPair = tuple[float, str, str]
STS_COLUMNS = ("score", "sentence1", "sentence2")
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

    spearman: in [−1, 1]; n: pairs. task: "" for pairs without a name. The rest is None where it is
    not computed: spearman_interval, 95 %, see trainer.evaluation.intervals, also with fewer than
    MIN_PAIRS pairs; alignment, of the pairs scored SIMILAR_FROM or more, also if there are none;
    uniformity and effective_rank, over the distinct sentences; see trainer.evaluation.geometry.
    """

    task: str
    dim: int
    spearman: float
    n: int
    spearman_interval: Interval | None = None
    alignment: float | None = None
    uniformity: float | None = None
    effective_rank: float | None = None


class Remembered:
    """An encoder that encodes each text once, for several measurements."""

    def __init__(self, encoder: TextEncoder):
        self._encoder = encoder
        self._known: dict[tuple[Role | None, str], NDArray[np.float32]] = {}

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """The encoder's own; raises AttributeError where it has none."""
        dims: tuple[int, ...] = self._encoder.matryoshka_dims  # type: ignore[attr-defined]
        return dims

    @property
    def rows(self) -> NDArray[np.float32]:
        """The vectors of all texts so far, in their order. (m, D)."""
        return np.stack(list(self._known.values()))

    def encode(
        self,
        texts: Iterable[str],
        *,
        role: Role | None = None,
        on_batch: OnBatch | None = None,
    ) -> NDArray[np.float32]:
        """As the encoder's own; on_batch gets the counts of new texts."""
        texts = list(texts)
        fresh = [text for text in dict.fromkeys(texts) if (role, text) not in self._known]
        if fresh:
            vectors = self._encoder.encode(fresh, role=role, on_batch=on_batch)
            self._known.update(zip(((role, text) for text in fresh), vectors, strict=True))
        return np.stack([self._known[role, text] for text in texts])


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


def read_sts(paths: Iterable[str | Path]) -> list[ScoredPair]:
    """All pairs of the STS files, pooled: CSV or TSV, a header with score, sentence1, sentence2.

    Raises DataError, with file and line, for a column or a cell that is missing, for a score that
    is no number, and for a file without rows behind its header.
    """
    return [pair for path in paths for pair in _read_pairs(Path(path))]


def _read_pairs(path: Path) -> list[ScoredPair]:
    pairs = []
    with open_text(path) as lines:
        rows = table_rows(path, lines)
        _, header = next(rows, (1, []))
        if missing := [name for name in STS_COLUMNS if name not in header]:
            raise DataError(
                f"{path}:1: no column {', '.join(missing)}: expected a header line with "
                f"{', '.join(STS_COLUMNS)}, got {', '.join(header) or 'an empty file'}"
            )
        at = [header.index(name) for name in STS_COLUMNS]
        for line, row in rows:
            if not row:
                continue
            if len(row) <= max(at):
                raise DataError(
                    f"{path}:{line}: {len(row)} columns, expected at least {max(at) + 1}"
                )
            cell, first, second = (row[place] for place in at)
            try:
                score = float(cell)
            except ValueError:
                score = math.nan
            if not math.isfinite(score):
                raise DataError(f"{path}:{line}: the score is {cell!r}, expected a number")
            pairs.append((score, first, second))
    if not pairs:
        raise DataError(f"{path}: no rows behind the header line")
    return pairs


def sts(
    encoder: TextEncoder,
    pairs: Sequence[ScoredPair],
    dims: Sequence[int] | None = None,
    on_batch: OnBatch | None = None,
) -> list[StsRow]:
    """The pairs pooled, as one task without a name: see `sts_tasks`."""
    return sts_tasks(encoder, [StsTask("", pairs)], dims, on_batch=on_batch)


def sts_tasks(
    encoder: TextEncoder,
    tasks: Sequence[StsTask],
    dims: Sequence[int] | None = None,
    on_batch: OnBatch | None = None,
    *,
    detailed: bool = False,
) -> list[StsRow]:
    """One row per task and prefix length, in the order of tasks and dims.

    dims: prefix lengths; by default the encoder's `matryoshka_dims`, or else its full width.
    Each distinct sentence is encoded once; on_batch gets their counts. detailed: compute all of a
    row, which takes seconds per 10,000 pairs and prefix length. Raises ConfigError for a length the
    vectors do not have, DataError for pairs that cannot be correlated.
    """
    for task in tasks:
        _check(task)
    known = Remembered(encoder)
    width = known.encode(sentences(tasks), on_batch=on_batch).shape[1]
    rows = []
    for task in tasks:
        left = known.encode(a for _, a, _ in task.pairs)
        right = known.encode(b for _, _, b in task.pairs)
        for dim in prefix_lengths(encoder, width, dims):
            row = _row(task, prefix_cosines(left, right, dim), dim)
            if detailed:
                x = unit_prefix(known.encode(sentences([task])), dim)
                row = _detailed(row, task, unit_prefix(left, dim), unit_prefix(right, dim), x)
            rows.append(row)
    return rows


def sentences(tasks: Iterable[StsTask]) -> list[str]:
    """The distinct sentences of all tasks, in order of their first occurrence."""
    return list(dict.fromkeys(s for task in tasks for _, a, b in task.pairs for s in (a, b)))


def averages(rows: Iterable[StsRow]) -> list[StsRow]:
    """The plain mean over the tasks, one row named "average" per prefix length; n: all pairs.

    With an interval if all rows have one: tasks are independent samples.
    """
    by_dim: dict[int, list[StsRow]] = {}
    for row in rows:
        by_dim.setdefault(row.dim, []).append(row)
    means = []
    for dim, group in by_dim.items():
        values = [row.spearman for row in group]
        ends = [row.spearman_interval for row in group if row.spearman_interval is not None]
        interval = interval_of_mean(values, ends) if len(ends) == len(group) else None
        n = sum(row.n for row in group)
        means.append(StsRow(AVERAGE, dim, float(np.mean(values)), n, interval))
    return means


def _check(task: StsTask) -> None:
    """Refuse, before anything is encoded, pairs whose scores cannot be correlated."""
    where, n = task.name and f"{task.name}: ", len(task.pairs)
    if n < 2:
        raise DataError(f"{where}{n} scored pairs: a correlation needs at least 2")
    if len({score for score, _, _ in task.pairs}) == 1:
        raise DataError(f"{where}all {n} pairs have the same score: no order to correlate")


def _row(task: StsTask, cosines: NDArray[np.float64], dim: int) -> StsRow:
    if np.ptp(cosines) == 0:
        raise DataError(
            f"{task.name and f'{task.name}: '}all {len(cosines)} pairs have the same cosine over "
            f"{dim} numbers: no order to correlate"
        )
    gold = [score for score, _, _ in task.pairs]
    return StsRow(task.name, dim, spearman(cosines, gold), len(gold))


def _detailed(row: StsRow, task: StsTask, a: Rows, b: Rows, x: Rows) -> StsRow:
    """The row with interval and geometry. a, b: the pairs' unit rows; x: those of all sentences."""
    gold = np.array([score for score, _, _ in task.pairs])
    similar = gold >= SIMILAR_FROM
    cosines = prefix_cosines(a, b, row.dim)
    return replace(
        row,
        spearman_interval=spearman_interval(cosines, gold) if row.n >= MIN_PAIRS else None,
        alignment=alignment(a[similar], b[similar]) if similar.any() else None,
        uniformity=uniformity(x),
        effective_rank=effective_rank(x),
    )
