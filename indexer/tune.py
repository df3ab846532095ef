"""The cheapest recipe and operating point that hold a recall target, with a confidence bound.

Half of the queries are searched over: which prefix, structure, shortlist and effort. The other
half, which that search never saw, decides. From a ladder of operating points, the most careful
first, each is tested for a true mean recall above the target (a betting bound, see
indexer.confidence), down to the first that fails: fixed-sequence testing, which allows any number
of points at the full confidence. A ladder that fails at its first point hands what is left of the
permitted error, halved, to the next best.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from indexer.arrays import Floats, RowNumbers, unit_rows
from indexer.confidence import certified, holds
from indexer.config import SMALL, Code, SegmentConfig, Structure
from indexer.errors import TuneError
from indexer.footprint import footprint
from indexer.goal import Goal, Objective, Point, Tuning
from indexer.rerank import SearchResult, merge
from indexer.segment import Segment

__all__ = ["Goal", "Objective", "Point", "Tuning", "tune"]

PREFIXES = (32, 64, 96, 128, 192, 256, 384, 512, 768)
EFFORTS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SCANNED = 50_000
"""Up to this many rows a flat coarse stage is tried."""
LONGEST = 400
"""No shortlist beyond this is tried."""
FEWEST = 100
"""Queries below which nothing can be shown: half are held out."""
_RANKED = 100  # queries whose neighbours are ranked by every prefix
_ALONE = 200  # queries timed one by one

Recalls = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Questions:
    """Queries (q, D) and their true neighbours (q, k), numbered through all segments."""

    vectors: Floats
    truth: RowNumbers

    def part(self, numbers: RowNumbers) -> "_Questions":
        return _Questions(self.vectors[numbers], self.truth[numbers])


Kept = Sequence[RowNumbers | None]
"""The rows of each segment that are searched, None for all: those made into queries are not."""


def tune(
    segments: Sequence[Segment],
    queries: npt.ArrayLike,
    goal: Goal | None = None,
    *,
    own: npt.ArrayLike | None = None,
    recipes: Sequence[SegmentConfig] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Tuning:
    """Find the cheapest recipe and operating point; nothing is written.

    Args:
        segments: searched together, by one recipe.
        queries: (q, D), like those that will be asked: drawn at random, not chosen. At least
            FEWEST; some thousand for targets near what the best recipe reaches.
        goal: what is asked for.
        own: (q,) the row that each query was made of, numbered through all segments; None where
            the queries are no rows. These rows are left out of everything that is measured: a
            graph finds the neighbours of its own nodes too easily (recall 0.96 instead of 0.92 at
            efSearch 24; 20,000 real sentences).
        recipes: what to try; by default what suits the data. Shortlist and effort are tried
            anyway.
        on_step: told what is being done.

    Raises:
        TuneError: too few queries, no recipe within max_ram, or none that holds the target.
        VectorError: queries of another width, or not finite.
    """
    goal = goal or Goal()
    said = on_step or (lambda _: None)
    vectors = unit_rows(queries, dim=segments[0].dim)
    if len(vectors) < FEWEST:
        raise TuneError(
            f"tuning needs at least {FEWEST} queries, half of them held out, got {len(vectors)}; "
            "without any, they are made of the documents"
        )
    rows = sum(segment.rows for segment in segments)
    kept = _without(segments, own)
    said(f"exact search of {len(vectors)} queries over {rows} rows")
    found = [s.exact(vectors, goal.k, rows) for s, rows in zip(segments, kept, strict=True)]
    asked = _Questions(vectors, _merged(found, segments, goal.k).rows)
    # The order of the held-out queries must not depend on them either: confidence.lower_bound.
    shuffled = np.random.default_rng(0).permutation(len(vectors))
    seen, held_out = (asked.part(part) for part in np.array_split(shuffled, 2))
    ladders: list[list[_Step]] = []
    for config, shortlists in _candidates(segments, kept, seen, goal, recipes):
        said(f"building {config.structure} {config.code} over {config.prefix} numbers")
        views = [s.over(config, rows) for s, rows in zip(segments, kept, strict=True)]
        for size in shortlists:
            said(f"measuring {config.structure} over {config.prefix}, shortlist {size}")
            point = replace(config, shortlist=size)
            # What costs twice the best so far would not be chosen.
            likely = [step.point.ms for ladder in ladders for step in ladder if step.likely]
            most = 2 * min(likely, default=float("inf"))
            ladders.append(list(_ladder(views, point, seen, held_out, goal, most)))
        del views  # before the next is built: it may take much memory
    curve = tuple(step.point for ladder in ladders for step in ladder)
    best = _decide(ladders, goal, said)
    if best is None:
        reached = max(curve, key=lambda point: point.recall)
        raise TuneError(
            f"no recipe was shown to exceed recall@{goal.k} {goal.recall} with confidence "
            f"{goal.confidence} on {len(held_out.vectors)} held-out queries; the best mean on the "
            f"others was {reached.recall:.4f} (prefix {reached.config.prefix}, shortlist "
            f"{reached.config.shortlist}): give more queries, a lower target, or use exact search"
        )
    return Tuning(
        config=best.point.config,
        goal=goal,
        recall=float(best.sealed.mean()),
        ms=best.point.ms,
        rows=rows,
        queries=len(vectors),
        held_out=len(held_out.vectors),
        source="given" if own is None else "documents",
        tried=len(curve),
        curve=curve,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A point of a ladder.

    Attributes:
        point: as measured on the queries seen.
        likely: whether the target would be shown if those were the held-out ones.
        sealed: recall of each held-out query, not looked at before the decision.
    """

    point: Point
    likely: bool
    sealed: Recalls


def _candidates(
    segments: Sequence[Segment],
    kept: Kept,
    seen: _Questions,
    goal: Goal,
    recipes: Sequence[SegmentConfig] | None,
) -> Iterator[tuple[SegmentConfig, list[int]]]:
    """Recipes worth building, each with the shortlists worth trying, shortest first.

    For each prefix the ranks that the true neighbours have in it say what the shortest shortlist
    is that could hold the target, whatever the structure. A wider prefix is left out where it does
    not shorten that by a quarter.
    """
    base = segments[0].config
    dim = segments[0].dim
    narrower = [p for p in PREFIXES if p < dim]
    widths = sorted({r.prefix for r in recipes}) if recipes else [*narrower, dim]
    few = seen.part(np.arange(min(_RANKED, len(seen.vectors))))
    enough = goal.recall + 0.2 * (1 - goal.recall)
    rows = sum(segment.rows for segment in segments)
    longest = min(LONGEST, rows)
    sizes = sorted({goal.k, *(s for s in (*EFFORTS, LONGEST) if goal.k <= s <= longest)})
    shortest, within, tried = float("inf"), False, 0
    for width in widths:
        if recipes is None and (tried == 4 or goal.k > 0.75 * shortest):
            break
        ranks = _ranks(segments, kept, few, width)
        usable = [s for s in sizes if (ranks < s).mean() >= enough]
        if not usable or (recipes is None and usable[0] > 0.75 * shortest):
            continue
        shortest, tried = usable[0], tried + 1
        usual = _usual(base, width, rows, small=goal.max_ram is not None)
        of_width = [r for r in recipes or usual if r.prefix == width]
        for recipe in of_width:
            hot = sum(footprint(recipe, s.rows, s.dim).hot for s in segments)
            if goal.max_ram is None or hot <= goal.max_ram:
                within = True
                yield replace(recipe, stages=(), shortlist=usable[0]), usable[:3]
    if not shortest < float("inf"):
        raise TuneError(
            f"no prefix holds recall@{goal.k} {goal.recall} within a shortlist of {LONGEST}; "
            "lower the target, or use exact search"
        )
    if not within:
        raise TuneError(
            f"no recipe for {rows} rows takes at most {goal.max_ram} bytes; allow more memory"
        )


def _usual(base: SegmentConfig, width: int, rows: int, small: bool) -> Iterator[SegmentConfig]:
    """What is tried over a prefix; `small` where memory is short, a graph of fewer links too.

    NSG is not: it took five times as long to build and was no faster (200k real sentences); nor are
    other codes of a graph, which were no faster either.
    """
    of = replace(
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
    if rows <= SCANNED:
        yield of
    if rows >= SMALL:
        graph = replace(of, structure=Structure.HNSW, code=Code.INT8)
        yield graph
        if small:
            yield replace(graph, hnsw_m=16)
    if rows >= 10 * SMALL:
        yield replace(of, structure=Structure.IVF, code=Code.INT8)
        if width % 2 == 0:
            yield replace(of, structure=Structure.IVF, code=Code.FASTSCAN)


def _ranks(
    segments: Sequence[Segment], kept: Kept, asked: _Questions, width: int
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


def _ladder(
    views: Sequence[Segment],
    config: SegmentConfig,
    seen: _Questions,
    held_out: _Questions,
    goal: Goal,
    most: float,
) -> Iterator[_Step]:
    """Points of one recipe and shortlist, from the cheapest to the most careful.

    It ends where half of what the target permits to miss is missed no longer, or where a query
    costs more than `most` milliseconds.
    """
    efforts: Sequence[int] = [e for e in EFFORTS if e >= config.shortlist] or [config.shortlist]
    if config.structure is Structure.IVF:
        lists = max(view.lists for view in views)
        efforts = sorted({max(1, lists // part) for part in (64, 32, 16, 8, 4, 2)})
    elif config.structure is not Structure.HNSW:
        efforts = [0]
    hot = footprint(config, sum(v.rows for v in views), views[0].dim).hot_row
    for effort in efforts:
        point = replace(config, effort=effort)
        searched = [view.over(point) for view in views]
        reached = _recalls(searched, seen, goal.k)
        ms = _cost(searched, seen, goal)
        likely = holds(reached, goal.recall, goal.confidence)
        sealed = _recalls(searched, held_out, goal.k)
        yield _Step(Point(point, float(reached.mean()), ms, hot), likely, sealed)
        if reached.mean() >= (1 + goal.recall) / 2 or ms > most:
            return


def _decide(
    ladders: Sequence[Sequence[_Step]], goal: Goal, said: Callable[[str], None]
) -> _Step | None:
    """The cheapest point that the held-out queries confirm, ladder by ladder."""
    likely = [
        (min(step.point.ms for step in ladder if step.likely), number)
        for number, ladder in enumerate(ladders)
        if any(step.likely for step in ladder)
    ]
    permitted = 1 - goal.confidence
    for _, number in sorted(likely):
        permitted /= 2
        careful_first = ladders[number][::-1]
        last = certified((step.sealed for step in careful_first), goal.recall, 1 - permitted)
        if last is not None:
            return careful_first[last]
        said("the held-out queries do not confirm it; trying the next recipe")
    return None


def _without(segments: Sequence[Segment], own: npt.ArrayLike | None) -> Kept:
    """The rows that are no queries."""
    if own is None:
        return [None] * len(segments)
    rows = np.cumsum([0, *(segment.rows for segment in segments)])
    others = np.delete(np.arange(rows[-1]), np.asarray(own, np.int64))
    cuts = np.searchsorted(others, rows)
    kept = [others[a:b] - row for a, b, row in zip(cuts[:-1], cuts[1:], rows[:-1], strict=True)]
    if not all(part.size for part in kept):
        raise TuneError("all rows of a segment were made into queries; take fewer of them")
    return kept


def _recalls(segments: Sequence[Segment], asked: _Questions, k: int) -> Recalls:
    """recall@k of each query (q,) float64; a batch of them is searched at once."""
    found = _search(segments, asked.vectors, k).rows
    shares = [
        np.isin(truth[truth >= 0], rows).sum() / max(1, (truth >= 0).sum())
        for truth, rows in zip(asked.truth, found, strict=True)
    ]
    return np.asarray(shares, np.float64)


def _cost(segments: Sequence[Segment], asked: _Questions, goal: Goal) -> float:
    """Milliseconds a query: the median of queries alone, or the mean in one batch."""
    if goal.objective is Objective.THROUGHPUT:
        begin = time.perf_counter()
        _search(segments, asked.vectors, goal.k)
        return (time.perf_counter() - begin) * 1e3 / len(asked.vectors)
    times = []
    for query in asked.vectors[:_ALONE]:
        begin = time.perf_counter()
        _search(segments, query[None], goal.k)
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e3


def _search(segments: Sequence[Segment], queries: Floats, k: int) -> SearchResult:
    return _merged([segment.search(queries, k) for segment in segments], segments, k)


def _merged(results: Sequence[SearchResult], segments: Sequence[Segment], k: int) -> SearchResult:
    bases = np.cumsum([0, *(segment.rows for segment in segments)])[:-1].tolist()
    return merge(results, bases, k)
