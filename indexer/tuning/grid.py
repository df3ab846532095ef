"""The grid of a tuning: index configs worth building, each with shortlists worth measuring."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats, RowNumbers
from indexer.config import FLAT_BELOW, Code, SegmentConfig, Structure
from indexer.errors import TuneError
from indexer.segment import Segment
from indexer.tuning.cost import footprint
from indexer.tuning.goal import Goal

PREFIXES = (32, 64, 96, 128, 192, 256, 384, 512, 768)
EF_SEARCHES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MAX_FLAT_ROWS = 50_000
"""Up to this many rows a flat coarse stage is tried, and a shortlist of all rows."""
MAX_SHORTLIST = 400
"""Longest shortlist that is tried, except that of all rows."""
NEARLY_ALL = 0.998
"""Share of the true neighbours that a long enough shortlist contains."""
_RANKED_QUERIES = 100  # queries whose neighbours are ranked for every prefix


@dataclass(frozen=True, slots=True)
class Questions:
    """Queries (q, D), their true neighbours (q, k), numbered through all segments, and the scores
    of these (q, k); -1 is padding."""

    vectors: Floats
    truth: RowNumbers
    scores: Floats

    def part(self, numbers: RowNumbers) -> "Questions":
        """These queries."""
        return Questions(self.vectors[numbers], self.truth[numbers], self.scores[numbers])


Kept = Sequence[RowNumbers | None]
"""The rows of each segment that are neither deleted nor used as queries; None for all."""


def candidates(
    segments: Sequence[Segment],
    sizes: Sequence[int],
    kept: Kept,
    seen: Questions,
    goal: Goal,
    configs: Sequence[SegmentConfig] | None,
    *,
    careful: bool = False,
) -> Iterator[tuple[SegmentConfig, list[int]]]:
    """Configs worth building, each with the shortlists worth measuring, shortest first.

    `careful`: also a shortlist that can find nearly everything.

    For each prefix, the ranks of the true neighbours give the shortest shortlist that can meet the
    target with any structure. A wider prefix is skipped unless it shortens that by a quarter. The
    last candidate is a shortlist of all rows, if there are at most MAX_FLAT_ROWS.
    """
    base = segments[0].config
    dim = segments[0].dim
    narrower = [p for p in PREFIXES if p < dim]
    widths = sorted({r.prefix for r in configs}) if configs else [*narrower, dim]
    ranked = seen.part(np.arange(min(_RANKED_QUERIES, len(seen.vectors))))
    enough = goal.recall + 0.2 * (1 - goal.recall)
    rows = sum(sizes)
    longest = min(MAX_SHORTLIST, rows)
    shortlists = [
        size
        for size in sorted(
            {goal.k, *(s for s in (*EF_SEARCHES, MAX_SHORTLIST) if goal.k <= s <= longest)}
        )
        # A shortlist of all rows except those used as queries would make the trial exact search.
        if not any(
            part is not None and part.size <= size < rows_there
            for part, rows_there in zip(kept, sizes, strict=True)
        )
    ]
    shortest, within, tried = float("inf"), False, 0
    for width in widths:
        if configs is None and (tried == 4 or goal.k > 0.75 * shortest):
            break
        before = ranks(segments, kept, ranked, width)
        usable = [s for s in shortlists if (before < s).mean() >= enough]
        if not usable or (configs is None and usable[0] > 0.75 * shortest):
            continue
        shortest, tried = usable[0], tried + 1
        chosen = usable[:3]
        if careful:
            enough_for_all = [s for s in usable if (before < s).mean() >= NEARLY_ALL]
            chosen = sorted({*chosen, *enough_for_all[:1]})
        defaults = _defaults(base, width, rows, small=goal.max_ram is not None)
        for config in [c for c in configs or defaults if c.prefix == width]:
            if _fits(config, sizes, dim, goal):
                within = True
                yield replace(config, stages=(), shortlist=usable[0]), chosen
    scan = _flat(base, widths[0])
    if configs is None and rows <= MAX_FLAT_ROWS and _fits(scan, sizes, dim, goal):
        yield replace(scan, shortlist=max(sizes)), [max(sizes)]
        return
    if not shortest < float("inf"):
        raise TuneError(
            f"no prefix reaches recall@{goal.k} {goal.recall} with a shortlist of {MAX_SHORTLIST}; "
            "lower the target, or use exact search"
        )
    if not within:
        raise TuneError(
            f"max_ram must be larger than {goal.max_ram} bytes: no config for {rows} rows fits; "
            "allow more memory"
        )


def _fits(config: SegmentConfig, sizes: Sequence[int], dim: int, goal: Goal) -> bool:
    """Whether segments of these sizes stay within the memory that a goal allows."""
    hot = sum(footprint(config, size, dim).hot for size in sizes)
    return goal.max_ram is None or hot <= goal.max_ram


def _defaults(base: SegmentConfig, width: int, rows: int, small: bool) -> Iterator[SegmentConfig]:
    """The configs to try for a prefix; with `small` also a graph with fewer links.

    Other codes of a graph are not tried: they were no faster.
    """
    flat = _flat(base, width)
    if rows <= MAX_FLAT_ROWS:
        yield flat
    if rows >= FLAT_BELOW:
        graph = replace(flat, structure=Structure.HNSW, code=Code.INT8)
        yield graph
        if small:
            yield replace(graph, hnsw_m=16)
    if rows >= 10 * FLAT_BELOW:
        yield replace(flat, structure=Structure.IVF, code=Code.INT8)
        if width % 2 == 0:
            yield replace(flat, structure=Structure.IVF, code=Code.FASTSCAN)


def _flat(base: SegmentConfig, width: int) -> SegmentConfig:
    """A scan of a prefix, with default values for what other structures need."""
    return replace(
        base,
        prefix=width,
        structure=Structure.FLAT,
        code=Code.FP16,
        lists=0,
        hnsw_m=32,
        ef_construction=64,
        effort=0,
        stages=(),
    )


def ranks(
    segments: Sequence[Segment], kept: Kept, questions: Questions, width: int
) -> npt.NDArray[np.int64]:
    """Number of rows (q, k) that precede each true neighbour in the order of the prefix."""
    first = 0
    heads, scores = [], np.full(questions.truth.shape, np.inf, np.float32)
    for segment in segments:
        head = np.ascontiguousarray(segment.rotate(questions.vectors)[:, :width])
        inside = (questions.truth >= first) & (questions.truth < first + segment.rows)
        neighbours = segment.prefix_rows(width).take(questions.truth[inside] - first)
        scores[inside] = np.einsum("nd,nd->n", neighbours, head[np.nonzero(inside)[0]])
        heads.append(head)
        first += segment.rows
    above = np.zeros(questions.truth.shape, np.int64)
    for segment, head, rows in zip(segments, heads, kept, strict=True):
        for block in segment.prefix_rows(width).blocks(rows):
            similar = np.sort(head @ block.T, axis=1)
            for i, line in enumerate(similar):
                # 1e-6: a row must not precede itself because of rounding
                above[i] += len(line) - np.searchsorted(line, scores[i] + 1e-6, side="right")
    return above
