"""How good the vectors are: agreement with human similarity scores, for every prefix length.

STS: Agirre et al., SemEval 2012–2017. The settings are those of SimCSE (arXiv 2104.08821, appendix
B): Spearman's rank correlation over all pairs of a task pooled ("all", as Reimers & Gurevych,
arXiv 1908.10084, report it too), or a mean over the task's subsets.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.intervals import (
    MIN_PAIRS,
    Interval,
    interval_of_mean,
    spearman,
    spearman_interval,
)
from searchengine.trainer.reading import open_text, table_rows

Cells = list[str]
OnBatch = Callable[[int], None]
Role = Literal["query", "document"]
ScoredPair = tuple[float, str, str]
Setting = Literal["all", "mean", "weighted"]
STS_COLUMNS = ("score", "sentence1", "sentence2")
AVERAGE = "average"


class TextEncoder(Protocol):
    """An encoder to measure: anything that turns texts into rows."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        on_batch: OnBatch | None = None,
    ) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class StsTask:
    """Scored pairs that make one row of a table. subsets: the subset of each pair, or empty."""

    name: str
    pairs: Sequence[ScoredPair]
    subsets: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.subsets and len(self.subsets) != len(self.pairs):
            raise DataError(
                f"{self.name}: {len(self.subsets)} subset names for {len(self.pairs)} pairs, "
                "expected one each, or none"
            )

    def parts(self, setting: Setting) -> dict[str, list[int]]:
        """The places in `pairs` that are correlated together, by subset; one part for "all"."""
        if setting == "all" or not self.subsets:
            return {"": list(range(len(self.pairs)))}
        parts: dict[str, list[int]] = {}
        for i, subset in enumerate(self.subsets):
            parts.setdefault(subset, []).append(i)
        return parts


@dataclass(frozen=True, slots=True)
class StsRow:
    """Agreement on one task at one prefix length.

    spearman, pearson: fractions in [−1, 1]; n: pairs. task: "" for pairs without a name.
    spearman_interval: its 95 % interval, see trainer.evaluation.intervals; None: not computed, or
    fewer than MIN_PAIRS pairs are correlated together.
    """

    task: str
    dim: int
    spearman: float
    pearson: float
    n: int
    spearman_interval: Interval | None = None


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
    """All pairs of the STS files, pooled: TSV with a header naming score, sentence1, sentence2.

    Raises DataError with file and line for a line that is malformed.
    """
    return list(read_task("", paths).pairs)


def read_task(name: str, paths: Iterable[str | Path]) -> StsTask:
    """The files as one task: as `read_sts`, with the subsets where a file has that column.

    Pairs of a file without the column `subset` form one subset together, named "".
    """
    pairs: list[ScoredPair] = []
    subsets: list[str] = []
    for path in map(Path, paths):
        for line, (score, first, second, subset) in read_table(path, STS_COLUMNS, ("subset",)):
            pairs.append((_score(path, line, score), first, second))
            subsets.append(subset)
    return StsTask(name, pairs, subsets)


def _score(path: Path, line: int, cell: str) -> float:
    try:
        score = float(cell)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{path}:{line}: the score is {cell!r}, expected a number")
    return score


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
    setting: Setting = "all",
    on_batch: OnBatch | None = None,
    *,
    intervals: bool = False,
) -> list[StsRow]:
    """One row per task and prefix length, in the order of tasks and dims.

    dims: prefix lengths; by default the encoder's `matryoshka_dims`, or else its full width.
    setting: "all" correlates all pairs of a task at once; "mean" is the mean of the subsets'
    correlations, "weighted" that mean weighted by their pair counts. Each distinct sentence is
    encoded once; on_batch gets their counts. intervals: compute those of Spearman, which takes
    about a second per 10,000 pairs and prefix length. Raises ConfigError for a length the vectors
    do not have, DataError for pairs that cannot be correlated.
    """
    if setting not in get_args(Setting):
        raise ConfigError(f"setting {setting!r}: expected one of {', '.join(get_args(Setting))}")
    for task in tasks:
        _check(task, setting)
    known = Remembered(encoder)
    width = known.encode(sentences(tasks), on_batch=on_batch).shape[1]
    rows = []
    for task in tasks:
        left = known.encode(a for _, a, _ in task.pairs)
        right = known.encode(b for _, _, b in task.pairs)
        for dim in prefix_lengths(encoder, width, dims):
            cosines = prefix_cosines(left, right, dim)
            rows.append(_row(task, cosines, dim, setting, intervals=intervals))
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
        pearson = float(np.mean([row.pearson for row in group]))
        n = sum(row.n for row in group)
        means.append(StsRow(AVERAGE, dim, float(np.mean(values)), pearson, n, interval))
    return means


def _check(task: StsTask, setting: Setting) -> None:
    """Refuse, before anything is encoded, pairs whose scores cannot be correlated."""
    for subset, places in task.parts(setting).items():
        where = _where(task, subset)
        if len(places) < 2:
            raise DataError(f"{where}{len(places)} scored pairs: a correlation needs at least 2")
        if len({task.pairs[i][0] for i in places}) == 1:
            raise DataError(
                f"{where}all {len(places)} pairs have the same score: no order to correlate"
            )


def too_few_pairs(task: StsTask, setting: Setting) -> str | None:
    """Why a task has no interval, in a sentence; None: it has enough pairs."""
    subset, places = min(task.parts(setting).items(), key=lambda part: len(part[1]))
    if len(places) >= MIN_PAIRS:
        return None
    return (
        f"{_where(task, subset)}{len(places)} pairs are too few for an interval; "
        f"at least {MIN_PAIRS} are needed"
    )


def _where(task: StsTask, subset: str) -> str:
    parts = [task.name, f"subset {subset}" if subset else ""]
    named = ", ".join(part for part in parts if part)
    return f"{named}: " if named else ""


def _row(
    task: StsTask, cosines: NDArray[np.float64], dim: int, setting: Setting, *, intervals: bool
) -> StsRow:
    gold = np.array([score for score, _, _ in task.pairs])
    correlations, ends = [], []
    parts = task.parts(setting)
    intervals = intervals and too_few_pairs(task, setting) is None
    for subset, places in parts.items():
        x, y = cosines[places], gold[places]
        if np.ptp(x) == 0:
            raise DataError(
                f"{_where(task, subset)}all {len(x)} pairs have the same cosine over {dim} "
                "numbers: no order to correlate"
            )
        correlations.append((spearman(x, y), float(np.corrcoef(x, y)[0, 1])))
        if intervals:
            ends.append(spearman_interval(x, y))
    sizes = [len(places) for places in parts.values()] if setting == "weighted" else None
    rank, linear = np.average(correlations, axis=0, weights=sizes)
    interval = (
        interval_of_mean([rho for rho, _ in correlations], ends, sizes) if intervals else None
    )
    return StsRow(task.name, dim, float(rank), float(linear), len(gold), interval)


def read_table(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, Cells]]:
    """Line number and cells of each line that is not empty, the cells in the order of `columns`.

    columns: names that the header must hold. optional: names whose cells follow; "" where the
    header lacks one. Raises DataError, with file and line, for a column or a cell that is missing
    and for a file without rows behind its header.
    """
    with open_text(path) as lines:
        rows = table_rows(path, lines)
        _, header = next(rows, (1, []))
        if missing := [name for name in columns if name not in header]:
            raise DataError(
                f"{path}:1: no column {', '.join(missing)}: expected a header line with "
                f"{', '.join(columns)}, got {', '.join(header) or 'an empty file'}"
            )
        at = [header.index(name) if name in header else None for name in (*columns, *optional)]
        width = 1 + max(place for place in at if place is not None)
        empty = True
        for number, row in rows:
            if not row:
                continue
            if len(row) < width:
                raise DataError(f"{path}:{number}: {len(row)} columns, expected at least {width}")
            empty = False
            yield number, ["" if place is None else row[place] for place in at]
        if empty:
            raise DataError(f"{path}: no rows behind the header line")
