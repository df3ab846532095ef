"""The cheapest index config and operating point that meet a recall target, with confidence.

A candidate is an index config (structure, code, prefix) with a shortlist and an effort. One half of
the queries chooses: for each config and effort, bisection finds the shortest shortlist that is
likely to meet the target, and longer ones are measured up to one that finds clearly more. Timed in
turns, those that none beats in both time and recall form a ladder.

The other half decides: each candidate of the ladder, the most careful first, is tested for a true
mean recall above the target (goal.holds), until one fails; the cheapest that passed is
chosen. Up to MAX_FLAT_ROWS a scan of all rows is a candidate, so that every tuning has a result.

Graphs and lists may miss more rows under a filter. They must hold without a filter and under each
of FILTERS alike; every test is made at the full error permitted, because a point that is wrong is
wrong in one of them (an intersection-union test).

Only the public search is timed, so the times are those of users, with rotation and merging; the
number of threads is not changed. Memory is counted by the file formats.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, Floats, unit_rows
from searchengine.indexer.building import empty
from searchengine.indexer.config import (
    FLAT_BELOW,
    LINKS,
    Code,
    RotationKind,
    SegmentConfig,
    Structure,
)
from searchengine.indexer.errors import TuneError
from searchengine.indexer.search.cascade import merge
from searchengine.indexer.search.scoring import Allowed, SearchResult, score_slack
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.files import DTYPES
from searchengine.indexer.tuning.goal import Goal, Point, Tuning, holds, smallest_sample

__all__ = ["Goal", "Point", "Tuning", "check_queries", "queries_needed", "tune"]

MIN_QUERIES = 100
"""Minimum number of queries: with fewer, recalls and times mean little for any target."""
PREFIXES = (32, 64, 128, 192, 256, 384, 512, 768)
SHORTLISTS = (10, 16, 32, 64, 128, 256, 512)
EFFORTS = {Structure.FLAT: (1,), Structure.HNSW: (1, 2), Structure.IVF: (64, 32, 16, 8, 4)}
"""ef_search of a graph over the shortlist; lists of an IVF over nprobe. Times do not tell nearer
points apart: two tunings chose different ones of them."""
MAX_FLAT_ROWS = 50_000
"""Up to this many rows a flat coarse stage is tried, and a scan of all rows."""
FILTERS = (0.5, 0.1)
"""Shares of the rows, drawn at random, that the filters of a tuning let through. Where many fewer
are let through, they are scanned."""
AS_FAST = 1.15
"""Two times per question within this ratio feel the same."""
_TIMED, _ROUNDS = 50, 15  # queries timed one by one in a round


def queries_needed(goal: Goal) -> int:
    """Minimum number of queries to confirm a goal if they find all neighbours; half held out."""
    return max(MIN_QUERIES, 2 * smallest_sample(goal.recall, goal.confidence))


def check_queries(count: int, goal: Goal) -> None:
    """Raise TuneError if `count` queries are too few to confirm the goal."""
    needed = queries_needed(goal)
    if count < needed:
        raise TuneError(
            f"recall@{goal.k} above {goal.recall:g} with confidence {goal.confidence:g} takes at "
            f"least {needed} queries to show, half of them held out, got {count}; give more "
            "queries, a lower target or a lower confidence"
        )


def tune(
    segments: Sequence[Segment],
    queries: npt.ArrayLike,
    goal: Goal | None = None,
    *,
    live: Sequence[Allowed | None] | None = None,
    searched: Sequence[Allowed | None] | None = None,
    configs: Sequence[SegmentConfig] | None = None,
    on_step: Callable[[str], None] | None = None,
    question_ms: float = 0,
) -> Tuning:
    """Find the cheapest index config and operating point; nothing is written.

    Args:
        segments: searched together, with one config.
        queries: (q, D), a random sample of the queries to expect. At least `queries_needed`; three
            times as many to confirm a config that misses half of what the goal permits.
        goal: the recall to exceed, and the memory to stay within.
        live: the rows of each segment that can be found, none of them empty; None for all. The
            tuning measures segments without the other rows.
        searched: these without the rows that are taken as queries; None if none are. A graph finds
            the neighbours of its nodes too easily (recall 0.96 instead of 0.92 at ef_search 24;
            20,000 real sentences).
        configs: index configs to try, by default those that suit the data.
        on_step: called with a message for each step.
        question_ms: milliseconds per query besides the search, such as its encoding. Candidates
            that are with it within AS_FAST of the cheapest cost the same: the one that finds most
            is chosen.

    Raises:
        TuneError: no segment, too few queries, more neighbours than rows, no config within
            max_ram, or none that meets the target (not up to MAX_FLAT_ROWS rows).
        VectorError: queries of another width, or not finite.
    """
    if not segments:
        raise TuneError("tuning needs at least one segment, got none; build one first")
    vectors, goal = unit_rows(queries, dim=segments[0].dim), goal or Goal()
    check_queries(len(vectors), goal)
    report = on_step or (lambda _: None)
    every = [None] * len(segments)
    rows = [s.rows if o is None else o.size for s, o in zip(segments, live or every, strict=True)]
    if goal.k > sum(rows):
        problem = f"k must be at most the {sum(rows)} rows there are, got {goal.k}"
        raise TuneError(f"{problem}; lower k, or index more")
    report(f"exact search of {len(vectors)} queries over {sum(rows)} rows")
    exact = OperatingPoint(tuple(segments), tuple(searched or live or every), goal.k, None)
    tuner = _Tuner(exact, rows, vectors, goal, 0.998 if question_ms else (1 + goal.recall) / 2)
    for config in tuner.configs(configs):
        report(f"measuring {config.structure} {config.code} over {config.prefix} dimensions")
        tuner.measure(config)
    report(f"timing {len(tuner.searches)} candidates in turns")
    best = choose(tuner.time_in_turns(), tuner.confirms, question_ms)
    if best is None:
        highest = max(tuner.curve.values(), key=lambda point: point.recall).lowest
        raise TuneError(
            f"no config was shown to exceed recall@{goal.k} {goal.recall} with confidence "
            f"{goal.confidence} on {len(vectors) // 2} held-out queries; the best mean on the "
            f"others was {highest:.4f}, without a filter or with one: give more queries, a "
            "lower target, or use exact search"
        )
    recall, *filtered = tuner.test(tuner.searches[best.config], 1)[1]
    return Tuning(
        config=best.config,
        goal=goal,
        recall=recall,
        filtered={f"{share:g}": mean for share, mean in zip(FILTERS, filtered, strict=False)},
        ms=best.ms,
        rows=sum(rows),
        queries=len(vectors),
        held_out=len(vectors) // 2,
        source="given" if searched is None else "documents",
        question_ms=question_ms,
        curve=tuple(tuner.curve.values()),
    )


def choose(
    points: Sequence[Point], confirms: Callable[[Point], bool], question_ms: float = 0
) -> Point | None:
    """The cheapest point that the held-out queries confirm; None if they confirm none.

    Of those within AS_FAST of it, the one that finds most. `confirms`: whether the held-out queries
    confirm a point; they have no part in which ones are tested, and in what order.
    """
    ladder: list[Point] = []
    for point in sorted(points, key=lambda each: (each.ms, -each.lowest)):
        if not ladder or point.lowest > ladder[-1].lowest:
            ladder.append(point)
    passed = list(takewhile(confirms, reversed(ladder)))
    limit = AS_FAST * (passed[-1].ms + question_ms) if passed else 0.0
    return next((each for each in passed if each.ms + question_ms <= limit), None)


def shares(found: SearchResult, exact: SearchResult, dim: int) -> Doubles:
    """recall@k of each query (q,). Scores are compared: of many equal rows, any will do."""
    true = exact.rows >= 0
    needed = np.where(true, exact.scores, np.inf).min(axis=1) - 2 * score_slack(dim)
    hits, counts = (found.scores >= needed[:, None]).sum(axis=1), true.sum(axis=1)
    result: Doubles = np.minimum(hits, counts) / np.maximum(1, counts)
    return result


_WARM_UP = 10  # queries that are searched before those that are timed


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A way to search several segments together.

    Attributes:
        segments: searched in turn; results are merged, and rows numbered through all segments.
        live: the rows of each that may be found; None for all.
        k: neighbours sought.
        shortlist: rows of each segment that are scored at full width; 0 takes the number that each
            segment is configured with, None scores every row.
    """

    segments: tuple[Segment, ...]
    live: tuple[Allowed | None, ...]
    k: int
    shortlist: int | None = 0

    def search(self, queries: Floats) -> SearchResult:
        """The k best rows of queries (q, D)."""
        results, bases = [], [0]
        for segment, live in zip(self.segments, self.live, strict=True):
            bases.append(bases[-1] + segment.rows)
            if self.shortlist is None:
                results.append(segment.exact(queries, self.k, live))
            else:
                results.append(segment.search(queries, self.k, self.shortlist or None, live))
        return merge(results, bases[:-1], self.k)

    def seconds(self, queries: Floats) -> Doubles:
        """Seconds of each query searched alone (q,)."""
        parts = [queries[i : i + 1] for i in range(len(queries))]
        for part in parts[:_WARM_UP]:
            self.search(part)
        seconds = np.empty(len(parts))
        for i, part in enumerate(parts):
            begin = time.perf_counter()
            self.search(part)
            seconds[i] = time.perf_counter() - begin
        return seconds


def in_turns(
    points: Sequence[OperatingPoint], queries: Floats, rounds: int
) -> Iterator[tuple[int, Doubles]]:
    """The number of a point and its `seconds`: all points in each round, from another one on.

    So other work on the machine affects all of them.
    """
    for number in range(rounds):
        start = number * len(points) // rounds
        for i in (*range(start, len(points)), *range(start)):
            yield i, points[i].seconds(queries)


def hot_row(config: SegmentConfig, rows: int, dim: int) -> float:
    """Bytes per row that should fit in memory, because every search may read them.

    Codes, links and ids of the coarse stage over `rows` rows with `dim` dimensions. Nothing is
    built. SegmentConfigError: the config does not fit the vectors.
    """
    config = config.fitting(rows, dim)
    m, links = LINKS, 0.0
    if config.structure is Structure.IVF:
        links = 8 + 4.0 * config.prefix * empty(config, rows).nlist / rows
    elif config.structure is Structure.HNSW:
        # Level 0 has 2 m links of 4 bytes; 1 row in m is on level 1 with m links, and so on. Then
        # the row's level (4), where its links begin (8), and its number.
        links = 8 * m + 4 * m / (m - 1) + 12 + 8
    return config.prefix * (1 if config.code is Code.INT8 else 2) + links


def hot_bytes(config: SegmentConfig, rows: int, dim: int) -> int:
    """Bytes of a segment that should stay in memory: rotation (32 and 8 bits), coarse stage."""
    matrix = 0 if config.rotation is RotationKind.IDENTITY else config.prefix * dim
    return 5 * matrix + round(rows * hot_row(config, rows, dim))


def cold_row(config: SegmentConfig, dim: int) -> int:
    """Bytes of a full-width row, which may stay on the disk."""
    return dim * int(np.dtype(DTYPES[config.storage]).itemsize)


class _Tuner:
    """Measures candidates on the queries that choose, and tests them on those held out.

    Attributes:
        curve: the operating points that were measured.
        searches: a search at each that is likely to meet the target, unless others beat it.
    """

    def __init__(
        self, exact: OperatingPoint, rows: list[int], vectors: Floats, goal: Goal, enough: float
    ) -> None:
        """`rows`: of each segment as it will be built. `enough`: recall up to which is measured."""
        self.exact, self.rows, self.goal, self.enough = exact, rows, goal, enough
        self.curve: dict[SegmentConfig, Point] = {}
        self.searches: dict[SegmentConfig, OperatingPoint] = {}
        self.dim, rng = vectors.shape[1], np.random.default_rng(0)
        # The order of the held-out queries must not depend on them either: goal.holds.
        self.halves = [vectors[half] for half in np.array_split(rng.permutation(len(vectors)), 2)]
        self.timed = self.halves[0][:_TIMED]
        self.filters: list[tuple[Allowed | None, ...]] = [exact.live]
        for share in FILTERS:
            drawn = []
            for segment, only in zip(exact.segments, exact.live, strict=True):
                numbers = np.arange(segment.rows) if only is None else only.rows
                numbers = numbers[rng.random(numbers.size) < share]
                drawn.append(Allowed.from_rows(numbers, segment.rows))
            self.filters.append(tuple(drawn))
        among = [replace(exact, live=each) for each in self.filters]
        self.truth = [[each.search(half) for each in among] for half in self.halves]
        self.filters[0] = (None,) * len(rows)  # the views have no other rows

    def test(self, search: OperatingPoint, half: int) -> tuple[bool, list[float]]:
        """Whether a half of the queries shows the target, and their mean recalls.

        Without a filter and, of graphs and lists, under each, up to one that does not show it.
        """
        walked = any(each.config.structure is not Structure.FLAT for each in search.segments)
        filters, means = self.filters if walked else self.filters[:1], list[float]()
        for allowed, exact in zip(filters, self.truth[half], strict=False):
            found = replace(search, live=allowed).search(self.halves[half])
            recalls = shares(found, exact, self.dim)
            means.append(float(recalls.mean()))
            if not holds(recalls, self.goal.recall, self.goal.confidence):
                return False, means
        return True, means

    def confirms(self, point: Point) -> bool:
        """Whether the held-out queries show that a point meets the target."""
        return self.test(self.searches[point.config], 1)[0]

    def configs(self, configs: Sequence[SegmentConfig] | None) -> Iterator[SegmentConfig]:
        """Index configs to measure, by rising prefix while that makes them faster."""
        widths = {p for p in (*PREFIXES, self.dim) if self.dim / 16 <= p <= self.dim}
        best_ms = math.inf
        for width in sorted({each.prefix for each in configs} if configs else widths):
            options = [each for each in configs or self.usual(width) if each.prefix == width]
            yield from filter(self.fits, options)
            times = (self.curve[each].ms for each in self.searches if each.prefix == width)
            ms = min(times, default=math.inf)
            if ms > 1.5 * best_ms:
                break
            best_ms = min(best_ms, ms)
        every_row = self.usual(min(widths))[0].exact_from(0)
        if not configs and every_row.structure is Structure.FLAT and self.fits(every_row):
            self.likely(self.views(every_row), every_row)
        if not self.curve:
            raise TuneError(
                f"max_ram must be larger than {self.goal.max_ram} bytes: no config for "
                f"{sum(self.rows)} rows fits; allow more memory"
            )

    def usual(self, width: int) -> list[SegmentConfig]:
        """Configs of a prefix that suit the rows. Lists, which are slower, where no graph fits."""
        base, rows = self.exact.segments[0].config, sum(self.rows)
        base = replace(base, stages=(), effort=0)
        scan = replace(base, prefix=width, structure=Structure.FLAT, code=Code.FP16)
        graph = replace(scan, structure=Structure.HNSW, code=Code.INT8)
        walked = graph if self.fits(graph) else replace(graph, structure=Structure.IVF)
        return [scan] * (rows <= MAX_FLAT_ROWS) + [walked] * (rows >= FLAT_BELOW)

    def fits(self, config: SegmentConfig) -> bool:
        """Whether segments of this config stay within the memory that the goal allows."""
        hot = sum(hot_bytes(config, size, self.dim) for size in self.rows)
        return self.goal.max_ram is None or hot <= self.goal.max_ram

    def views(self, config: SegmentConfig) -> list[Segment]:
        """The segments with an index config, as it will be built: a small one is flat."""
        parts = zip(self.exact.segments, self.rows, self.exact.live, strict=True)
        return [each.over(config.fitting(n, self.dim), only) for each, n, only in parts]

    def measure(self, config: SegmentConfig) -> None:
        """Measure an index config with each effort, from the shortest likely shortlist on."""
        views, k, graph = self.views(config), self.goal.k, config.structure is Structure.HNSW
        lists = max(each.lists for each in views)
        # A shortlist of all rows except those used as queries would make the trial exact search.
        parts = [*zip(self.rows, self.exact.live, strict=True)]
        sizes = [
            size
            for size in sorted({k, *(each for each in SHORTLISTS if k <= each <= sum(self.rows))})
            if not any(only is not None and only.size <= size < n for n, only in parts)
        ]
        for ratio in EFFORTS[config.structure]:
            efforts = [int(ratio * size if graph else lists // ratio) for size in sizes]
            pairs = zip(sizes, efforts, strict=True)
            steps = [replace(config, stages=(), shortlist=s, effort=effort) for s, effort in pairs]
            steps = [step.exact_from(max(self.rows)) for step in steps]
            for step in steps[bisect_left(steps, True, key=partial(self.likely, views)) :]:
                if self.likely(views, step) and self.curve[step].lowest >= self.enough:
                    break
        points = [self.curve[each] for each in self.searches]
        for point in points:  # views that are beaten clearly take no more memory
            if any(each.lowest >= point.lowest and 1.5 * each.ms < point.ms for each in points):
                del self.searches[point.config]

    def likely(self, views: Sequence[Segment], config: SegmentConfig) -> bool:
        """Whether the queries that choose would confirm a point; it is measured if it is new."""
        if config not in self.curve:
            parts = zip(views, self.rows, strict=True)
            segments = tuple(each.over(config.fitting(n, self.dim)) for each, n in parts)
            search = OperatingPoint(segments, self.filters[0], self.goal.k)
            likely, means = self.test(search, 0)
            lowest = math.inf if config.shortlist >= max(self.rows) else min(means)
            hot = hot_row(config, sum(self.rows), self.dim)
            ms = 1e3 * float(np.median(search.seconds(self.timed)))
            self.curve[config] = Point(config, means[0], lowest, ms, hot)
            if likely:
                self.searches[config] = search
        return config in self.searches

    def time_in_turns(self) -> list[Point]:
        """The points that are searched, with times of rounds in which all take turns.

        Of each query the shortest counts: what else runs on the machine only makes it longer.
        """
        times: dict[SegmentConfig, list[Doubles]] = {config: [] for config in self.searches}
        searches, configs = [*self.searches.values()], [*self.searches]
        for number, seconds in in_turns(searches, self.timed, _ROUNDS):
            times[configs[number]].append(seconds)
        for config, rounds in times.items():
            ms = 1e3 * float(np.median(np.min(rounds, axis=0)))
            self.curve[config] = replace(self.curve[config], ms=ms)
        return [self.curve[config] for config in configs]
