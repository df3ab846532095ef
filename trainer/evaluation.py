"""How good the vectors are: agreement with human similarity scores, for every prefix length.

STS: Agirre et al., SemEval 2012–2017; Spearman's rank correlation over all pairs pooled ("all"
setting), the way Reimers & Gurevych (arXiv 1908.10084) and SimCSE (arXiv 2104.08821) report it.
"""

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ConfigError, DataError
from trainer.reading import open_text


class TextEncoder(Protocol):
    """What is measured: anything that turns texts into rows."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        role: Literal["query", "document"] | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]: ...


ScoredPair = tuple[float, str, str]
STS_COLUMNS = ("score", "sentence1", "sentence2")


@dataclass(frozen=True, slots=True)
class StsRow:
    """Agreement at one prefix length. spearman, pearson: fractions in [−1, 1]; n: pairs."""

    dim: int
    spearman: float
    pearson: float
    n: int


def read_sts(paths: Iterable[str | Path]) -> list[ScoredPair]:
    """All pairs of the STS files, pooled: TSV with a header naming score, sentence1, sentence2.

    Raises DataError with file and line for a line that is malformed.
    """
    pairs: list[ScoredPair] = []
    for path in map(Path, paths):
        with open_text(path) as lines:
            rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            header = next(rows, [])
            if missing := [name for name in STS_COLUMNS if name not in header]:
                raise DataError(
                    f"{path}:1: no column {', '.join(missing)}: expected a header line with "
                    f"{', '.join(STS_COLUMNS)}, got {', '.join(header) or 'an empty file'}"
                )
            at = [header.index(name) for name in STS_COLUMNS]
            found = [_scored_pair(path, rows.line_num, row, at) for row in rows if row]
        if not found:
            raise DataError(f"{path}: no pairs behind the header line")
        pairs += found
    return pairs


def _scored_pair(path: Path, line: int, row: list[str], at: list[int]) -> ScoredPair:
    if len(row) <= max(at):
        raise DataError(f"{path}:{line}: {len(row)} columns, expected at least {max(at) + 1}")
    try:
        score = float(row[at[0]])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{path}:{line}: the score is {row[at[0]]!r}, expected a number")
    return score, row[at[1]], row[at[2]]


def prefix_cosines(a: NDArray[np.float32], b: NDArray[np.float32], dim: int) -> NDArray[np.float64]:
    """Cosine of row i of a with row i of b over their first `dim` numbers. (n,) float64."""
    x, y = a[:, :dim].astype(np.float64), b[:, :dim].astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    found: NDArray[np.float64] = np.einsum("ij,ij->i", x, y) / np.maximum(norms, 1e-12)
    return found


def sts(
    encoder: TextEncoder,
    pairs: Sequence[ScoredPair],
    dims: Sequence[int] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> list[StsRow]:
    """One row per prefix length, widest first as given.

    dims: prefix lengths; by default the encoder's `matryoshka_dims`, or else its full width. Each
    distinct sentence is encoded once; on_batch hears of them. Raises ConfigError for a
    length the vectors do not have.
    """
    if len(pairs) < 2:
        raise DataError(f"{len(pairs)} scored pairs: a correlation needs at least 2")
    texts = list(dict.fromkeys(text for _, a, b in pairs for text in (a, b)))
    place = {text: i for i, text in enumerate(texts)}
    vectors = encoder.encode(texts, on_batch=on_batch)
    left = vectors[[place[a] for _, a, _ in pairs]]
    right = vectors[[place[b] for _, _, b in pairs]]
    gold = np.array([score for score, _, _ in pairs])
    width = vectors.shape[1]
    chosen = tuple(dims) if dims is not None else getattr(encoder, "matryoshka_dims", (width,))
    if wrong := [dim for dim in chosen if not 1 <= dim <= width]:
        raise ConfigError(f"prefix length {wrong[0]}: expected 1 to {width}, the vectors' width")
    return [_row(prefix_cosines(left, right, dim), gold, dim) for dim in chosen]


def _row(found: NDArray[np.float64], gold: NDArray[np.float64], dim: int) -> StsRow:
    try:
        from scipy import stats  # an extra: encoding and indexing do without
    except ImportError:
        raise ConfigError(
            "measuring needs scipy: install the extra `train` (pip install 'searchengine[train]')"
        ) from None
    if np.ptp(gold) == 0 or np.ptp(found) == 0:
        raise DataError(
            f"all {len(gold)} pairs have the same score or the same cosine: no order to correlate"
        )
    spearman = float(stats.spearmanr(found, gold).statistic)
    return StsRow(dim, spearman, float(stats.pearsonr(found, gold).statistic), len(gold))
