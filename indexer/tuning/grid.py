"""What a tuning tries: the configs worth building, each with the shortlists worth measuring."""

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
"""Up to this many rows a flat coarse stage is tried, and one whose shortlist is all of them."""
MAX_SHORTLIST = 400
"""No shortlist beyond this is tried, but that of all rows."""
_RANKED_QUERIES = 100  # queries whose neighbours are ranked by every prefix


@dataclass(frozen=True, slots=True)
class Questions:
    """Queries (q, D) and their true neighbours (q, k), numbered through all segments."""

    vectors: Floats
    truth: RowNumbers

    def part(self, numbers: RowNumbers) -> "Questions":
        return Questions(self.vectors[numbers], self.truth[numbers])


Kept = Sequence[RowNumbers | None]
"""The rows of each segment that are searched, None for all: neither deleted nor made queries."""


def candidates(
    segments: Sequence[Segment],
    sizes: Sequence[int],
    kept: Kept,
    seen: Questions,
    goal: Goal,
    recipes: Sequence[SegmentConfig] | None,
) -> Iterator[tuple[SegmentConfig, list[int]]]:
    """Recipes worth building, each with the shortlists worth trying, shortest first.

    For each prefix the ranks that the true neighbours have in it say what the shortest shortlist
    is that could hold the target, whatever the structure. A wider prefix is left out where it does
    not shorten that by a quarter. The last is a shortlist of all rows, where they are few.
    """
    base = segments[0].config
    dim = segments[0].dim
    narrower = [p for p in PREFIXES if p < dim]
    widths = sorted({r.prefix for r in recipes}) if recipes else [*narrower, dim]
    few = seen.part(np.arange(min(_RANKED_QUERIES, len(seen.vectors))))
    enough = goal.recall + 0.2 * (1 - goal.recall)
    rows = sum(sizes)
    longest = min(MAX_SHORTLIST, rows)
    shortlists = [
        each
        for each in sorted(
            {goal.k, *(s for s in (*EF_SEARCHES, MAX_SHORTLIST) if goal.k <= s <= longest)}
        )
        # Where that is all rows but those made into queries, the trial would be exact search.
        if not any(
            part is not None and part.size <= each < size
            for part, size in zip(kept, sizes, strict=True)
        )
    ]
    shortest, within, tried = float("inf"), False, 0
    for width in widths:
        if recipes is None and (tried == 4 or goal.k > 0.75 * shortest):
            break
        found = ranks(segments, kept, few, width)
        usable = [s for s in shortlists if (found < s).mean() >= enough]
        if not usable or (recipes is None and usable[0] > 0.75 * shortest):
            continue
        shortest, tried = usable[0], tried + 1
        usual = _usual(base, width, rows, small=goal.max_ram is not None)
        of_width = [r for r in recipes or usual if r.prefix == width]
        for recipe in of_width:
            if _fits(recipe, sizes, dim, goal):
                within = True
                yield replace(recipe, stages=(), shortlist=usable[0]), usable[:3]
    scan = _flat(base, widths[0])
    if recipes is None and rows <= MAX_FLAT_ROWS and _fits(scan, sizes, dim, goal):
        yield replace(scan, shortlist=max(sizes)), [max(sizes)]
        return
    if not shortest < float("inf"):
        raise TuneError(
            f"no prefix holds recall@{goal.k} {goal.recall} within a shortlist of {MAX_SHORTLIST}; "
            "lower the target, or use exact search"
        )
    if not within:
        raise TuneError(
            f"no recipe for {rows} rows takes at most {goal.max_ram} bytes; allow more memory"
        )


def _fits(config: SegmentConfig, sizes: Sequence[int], dim: int, goal: Goal) -> bool:
    """Whether segments of these sizes stay within the memory that a goal allows."""
    hot = sum(footprint(config, size, dim).hot for size in sizes)
    return goal.max_ram is None or hot <= goal.max_ram


def _usual(base: SegmentConfig, width: int, rows: int, small: bool) -> Iterator[SegmentConfig]:
    """What is tried over a prefix; `small` where memory is short, a graph of fewer links too.

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
    """A scan of a prefix; all else that a structure needs is as usual."""
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
    segments: Sequence[Segment], kept: Kept, asked: Questions, width: int
) -> npt.NDArray[np.int64]:
    """How many rows each true neighbour (q, k) has before it in the order of the prefix."""
    first = 0
    heads, scores = [], np.full(asked.truth.shape, np.inf, np.float32)
    for segment in segments:
        head = np.ascontiguousarray(segment.rotate(asked.vectors)[:, :width])
        inside = (asked.truth >= first) & (asked.truth < first + segment.rows)
        near = segment.prefix_rows(width).take(asked.truth[inside] - first)
        scores[inside] = np.einsum("nd,nd->n", near, head[np.nonzero(inside)[0]])
        heads.append(head)
        first += segment.rows
    above = np.zeros(asked.truth.shape, np.int64)
    for segment, head, rows in zip(segments, heads, kept, strict=True):
        for block in segment.prefix_rows(width).blocks(rows):
            found = np.sort(head @ block.T, axis=1)
            for i, line in enumerate(found):
                # 1e-6: a row does not stand before itself for having been rounded another way
                above[i] += len(line) - np.searchsorted(line, scores[i] + 1e-6, side="right")
    return above
