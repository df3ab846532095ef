"""The cheapest index config and operating point that meet a recall target, with confidence.

Half of the queries choose what to try: prefix, structure, shortlist and effort. The other half is
held out and decides. From a ladder of operating points, the most careful first, each is tested for
a true mean recall above the target (a betting bound, see tuning.confidence), until one fails:
fixed-sequence testing, which allows any number of points at the full confidence. If the first point
of a ladder fails, half of the remaining permitted error goes to the next ladder. A shortlist of all
rows finds every neighbour and needs no test: up to MAX_FLAT_ROWS rows it is tried last, so that
every tuning has a result.

Graphs and lists that are walked may miss more rows under a filter. A point of them must hold for
searches without a filter and under each of FILTERS alike; every test is made at the full error
permitted, because a point that is wrong is wrong in one of them (an intersection-union test).

A user waits for the encoding of a question too. Points cost the same if their times, with it, are
within AS_FAST of each other; the one that finds more is chosen.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from searchengine.indexer.arrays import Doubles, Floats, RowNumbers, unit_rows
from searchengine.indexer.config import FLAT_BELOW, Code, SegmentConfig, Structure
from searchengine.indexer.errors import TuneError
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.search.cascade import SearchResult, merge
from searchengine.indexer.search.exact import score_slack
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.confidence import holds, last_holding, smallest_sample
from searchengine.indexer.tuning.cost import footprint
from searchengine.indexer.tuning.goal import AS_FAST, Goal, Objective, Point, Tuning

__all__ = ["Goal", "Objective", "Point", "Tuning", "check_queries", "queries_needed", "tune"]

MIN_QUERIES = 100
"""Minimum number of queries: with fewer, ranks and times mean little for any target."""
_TIMED_QUERIES = 200  # queries timed one by one
PREFIXES = (32, 64, 96, 128, 192, 256, 384, 512, 768)
EF_SEARCHES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MAX_FLAT_ROWS = 50_000
"""Up to this many rows a flat coarse stage is tried, and a shortlist of all rows."""
MAX_SHORTLIST = 400
"""Longest shortlist that is tried, except one of all rows."""
CAREFUL_SHARE = 0.998
"""Share of the true neighbours that a long enough shortlist contains."""
_RANKED_QUERIES = 100  # queries whose neighbours are ranked for every prefix
FILTERS = (0.5, 0.1)
"""Shares of the rows, drawn at random, that the filters of a tuning let through. Where many fewer
are let through, they are scanned."""
_WALKED = (Structure.HNSW, Structure.IVF)


@dataclass(frozen=True, slots=True)
class Questions:
    """Queries and what they should find.

    Attributes:
        vectors: (q, D) float32.
        truth: (q, k) true neighbours, numbered through all segments; -1 is padding.
        scores: (q, k) the scores of these.
        allowed: the rows of each segment that may be found; None for all.
        filtered: the same queries, each under a filter.
    """

    vectors: Floats
    truth: RowNumbers
    scores: Floats
    allowed: Sequence[Allowed | None] | None = None
    filtered: tuple["Questions", ...] = ()

    def part(self, numbers: RowNumbers) -> "Questions":
        """These queries."""
        return replace(
            self,
            vectors=self.vectors[numbers],
            truth=self.truth[numbers],
            scores=self.scores[numbers],
            filtered=tuple(each.part(numbers) for each in self.filtered),
        )


Searchable = Sequence[RowNumbers | None]
"""The rows of each segment that are neither deleted nor used as queries; None for all."""


def queries_needed(goal: Goal) -> int:
    """Minimum number of queries to confirm a goal, if they find all neighbours.

    Half of them are held out, and the first config is tested at half of the permitted error.
    """
    return max(MIN_QUERIES, 2 * smallest_sample(goal.recall, 1 - (1 - goal.confidence) / 2))


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
    self_queries: npt.ArrayLike | None = None,
    configs: Sequence[SegmentConfig] | None = None,
    on_step: Callable[[str], None] | None = None,
    question_ms: float = 0,
) -> Tuning:
    """Find the cheapest index config and operating point; nothing is written.

    Args:
        segments: searched together, with one config.
        queries: (q, D), a random sample of the queries to expect. At least `queries_needed`; three
            times as many to confirm a config that misses half of what the goal permits.
        goal: the recall to exceed and what to minimise.
        live: the rows of each segment that can be found, none of them empty; None for all. The
            tuning measures segments without the other rows.
        self_queries: (q,) the row that each query is a copy of, numbered through all segments; None
            if the queries are not rows. These rows are excluded from all measurements: a graph
            finds the neighbours of its nodes too easily (recall 0.96 instead of 0.92 at ef_search
            24; 20,000 real sentences).
        configs: index configs to try; by default those that suit the data. Shortlists and efforts
            are tried for each.
        on_step: called with a message for each step.
        question_ms: milliseconds per query besides the search, such as its encoding.

    Raises:
        TuneError: no segment, too few queries, more neighbours than rows, no config within
            max_ram, or none that meets the target (not up to MAX_FLAT_ROWS rows).
        VectorError: queries of another width, or not finite.
    """
    goal = goal or Goal()
    report = on_step or (lambda _: None)
    if not segments:
        raise TuneError("tuning needs at least one segment, got none; build one first")
    vectors = unit_rows(queries, dim=segments[0].dim)
    check_queries(len(vectors), goal)
    sizes = _sizes(segments, live)
    rows = sum(sizes)
    if goal.k > rows:
        raise TuneError(f"k must be at most the {rows} rows there are, got {goal.k}")
    searchable = _searchable(segments, live, self_queries)
    report(f"exact search of {len(vectors)} queries over {rows} rows")
    questions = _answered(segments, vectors, goal.k, searchable)
    # The order of the held-out queries must not depend on them either: confidence.holds.
    shuffled = np.random.default_rng(0).permutation(len(vectors))
    tuning_queries, held_out = (questions.part(part) for part in np.array_split(shuffled, 2))
    ladders: list[list[_Step]] = []
    for config, shortlists in candidates(
        segments, sizes, searchable, tuning_queries, goal, configs, careful=question_ms > 0
    ):
        report(f"building {config.structure} {config.code} over {config.prefix} dimensions")
        # As they will be built: without deleted rows a segment may be too small for a structure.
        views = [
            s.over(config.fitting(size, s.dim), rows)
            for s, size, rows in zip(segments, sizes, searchable, strict=True)
        ]
        for size in shortlists:
            report(f"measuring {config.structure} over {config.prefix}, shortlist {size}")
            point = replace(config, shortlist=size)
            # A point that costs twice the best so far would not be chosen.
            likely = [step.point.ms for ladder in ladders for step in ladder if step.likely]
            best_ms = min(likely, default=float("inf"))
            max_ms = max(2 * best_ms, _as_fast(best_ms, question_ms))
            steps = _ladder(
                views, sizes, point, tuning_queries, held_out, goal, max_ms, question_ms
            )
            ladders.append(list(steps))
        del views  # before the next one is built: they may take much memory
    curve = tuple(step.point for ladder in ladders for step in ladder)
    best = _decide(ladders, goal, report, question_ms)
    if best is None:
        steps = (step for ladder in ladders for step in ladder)
        highest = max(steps, key=lambda step: step.point.recall)
        config = highest.point.config
        raise TuneError(
            f"no config was shown to exceed recall@{goal.k} {goal.recall} with confidence "
            f"{goal.confidence} on {len(held_out.vectors)} held-out queries; the best mean on the "
            f"others was {highest.lowest:.4f}, without a filter or with one (prefix "
            f"{config.prefix}, shortlist {config.shortlist}): give more queries, a lower target, "
            "or use exact search"
        )
    return Tuning(
        config=best.point.config,
        goal=goal,
        recall=float(best.sealed.mean()),
        filtered={
            f"{share:g}": float(sealed.mean())
            for share, sealed in zip(FILTERS, best.filtered, strict=False)
        },
        ms=best.point.ms,
        rows=rows,
        queries=len(vectors),
        held_out=len(held_out.vectors),
        source="given" if self_queries is None else "documents",
        tried=len(curve),
        curve=curve,
        question_ms=question_ms,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A point of a ladder.

    Attributes:
        point: as measured on the queries seen.
        lowest: their mean recall, without a filter or under the one that costs most of it.
        likely: whether the queries seen would confirm the target.
        sealed: recall of each held-out query, not looked at before the decision.
        filtered: the same under each filter; empty where nothing is walked, or it is not likely.
        exact: whether all rows are scored, so that the recall is 1 and needs no test.
    """

    point: Point
    lowest: float
    likely: bool
    sealed: Doubles
    filtered: tuple[Doubles, ...] = ()
    exact: bool = False


def _ladder(
    views: Sequence[Segment],
    sizes: Sequence[int],
    config: SegmentConfig,
    tuning_queries: Questions,
    held_out: Questions,
    goal: Goal,
    max_ms: float,
    question_ms: float = 0,
) -> Iterator[_Step]:
    """Points of one config and shortlist, from the cheapest to the most careful.

    It ends when less than half of the permitted misses are left and a query takes noticeably longer
    than at the first likely point, or where it costs more than `max_ms` milliseconds.
    """
    efforts: Sequence[int] = [e for e in EF_SEARCHES if e >= config.shortlist] or [config.shortlist]
    if config.structure is Structure.IVF:
        lists = max(view.lists for view in views)
        efforts = sorted({max(1, lists // part) for part in (64, 32, 16, 8, 4, 2)})
    elif config.structure is not Structure.HNSW:
        efforts = [0]
    hot = footprint(config, sum(sizes), views[0].dim).hot_row
    exact = config.shortlist >= max(sizes)
    walked = config.structure in _WALKED and not exact
    as_fast = 0.0
    for effort in efforts:
        point = replace(config, effort=effort)
        searched = [v.over(point.fitting(n, v.dim)) for v, n in zip(views, sizes, strict=True)]
        reached = _recall(searched, tuning_queries, goal.k)
        ms = _cost(searched, tuning_queries, goal)
        sealed = _recall(searched, held_out, goal.k)
        likely = exact or holds(reached, goal.recall, goal.confidence)
        lowest, under_filters = float(reached.mean()), tuple[Doubles, ...]()
        if likely and walked:  # filters take most of the time, so only where they may matter
            filtered = _under_filters(searched, tuning_queries, goal.k)
            likely = all(holds(each, goal.recall, goal.confidence) for each in filtered)
            lowest = min([lowest, *(float(each.mean()) for each in filtered)])
            under_filters = _under_filters(searched, held_out, goal.k) if likely else ()
        measured = Point(point, float(reached.mean()), ms, hot)
        yield _Step(measured, lowest, likely, sealed, under_filters, exact)
        if likely and not as_fast and question_ms:
            as_fast = _as_fast(ms, question_ms)
        if ms > max_ms or (lowest >= (1 + goal.recall) / 2 and ms >= as_fast):
            return


def _as_fast(ms: float, question_ms: float) -> float:
    """Milliseconds of a search that feel like `ms`, where a question takes `question_ms` besides.

    Without any besides, `ms`: the median of a search alone is measured, not felt.
    """
    return AS_FAST * (ms + question_ms) - question_ms if question_ms else ms


def _decide(
    ladders: Sequence[Sequence[_Step]],
    goal: Goal,
    report: Callable[[str], None],
    question_ms: float = 0,
) -> _Step | None:
    """The best of the cheapest points that the held-out queries confirm, ladder by ladder.

    The cheapest ladder is tried first; of those that feel as fast, the one that finds most.
    """
    likely = {
        number: [step.point for step in ladder if step.likely]
        for number, ladder in enumerate(ladders)
        if any(step.likely for step in ladder)
    }
    cheapest = min((point.ms for points in likely.values() for point in points), default=0.0)
    limit = _as_fast(cheapest, question_ms)

    def rank(number: int) -> tuple[float, float]:
        ms = min(point.ms for point in likely[number])
        finds = [point.recall for point in likely[number] if point.ms <= limit]
        return (0.0, -max(finds)) if question_ms and finds else (ms, 0.0)

    permitted = 1 - goal.confidence
    for number in sorted(likely, key=rank):
        careful_first = [step for step in reversed(ladders[number]) if step.likely]
        if careful_first[0].exact:
            return careful_first[0]
        permitted /= 2
        sealed = ((step.sealed, *step.filtered) for step in careful_first)
        last = last_holding(sealed, goal.recall, 1 - permitted)
        if last is not None:
            confirmed = careful_first[: last + 1]
            as_fast = max(limit, confirmed[-1].point.ms)
            return next(step for step in confirmed if step.point.ms <= as_fast)
        report("the held-out queries do not confirm it; trying the next config")
    return None


def _sizes(segments: Sequence[Segment], live: Sequence[Allowed | None] | None) -> list[int]:
    """Number of rows of each segment that can be found."""
    parts = [None] * len(segments) if live is None else live
    return [s.rows if only is None else only.size for s, only in zip(segments, parts, strict=True)]


def _searchable(
    segments: Sequence[Segment],
    live: Sequence[Allowed | None] | None,
    self_queries: npt.ArrayLike | None,
) -> Searchable:
    """The rows that are neither deleted nor used as queries."""
    queries = np.asarray([] if self_queries is None else self_queries, np.int64)
    searchable: list[RowNumbers | None] = []
    first = 0
    for segment, only in zip(segments, live or [None] * len(segments), strict=True):
        rows = np.arange(segment.rows) if only is None else only.rows
        rows = np.setdiff1d(rows, queries - first)
        searchable.append(None if rows.size == segment.rows else rows)
        first += segment.rows
        if not rows.size:
            raise TuneError("all rows of a segment are used as queries; use fewer rows as queries")
    return searchable


def _answered(
    segments: Sequence[Segment], vectors: Floats, k: int, searchable: Searchable
) -> Questions:
    """Queries (q, D) with their true neighbours, without a filter and under each of FILTERS."""

    def among(rows: Searchable, allowed: Sequence[Allowed | None] | None = None) -> Questions:
        exact = [s.exact(vectors, k, only) for s, only in zip(segments, rows, strict=True)]
        truth = merge(exact, _bases(segments), k)
        return Questions(vectors, truth.rows, truth.scores, allowed)

    rng = np.random.default_rng(0)
    filtered = []
    for share in FILTERS:
        rows = [
            numbers[rng.random(numbers.size) < share]
            for s, only in zip(segments, searchable, strict=True)
            for numbers in [np.arange(s.rows) if only is None else only]
        ]
        allowed = [Allowed.from_rows(n, s.rows) for n, s in zip(rows, segments, strict=True)]
        filtered.append(among(rows, allowed))
    return replace(among(searchable), filtered=tuple(filtered))


def _recall(segments: Sequence[Segment], questions: Questions, k: int) -> Doubles:
    """recall@k of each query (q,) float64; they are searched in one batch.

    Scores are compared, not rows: of many equal rows, any will do.
    """
    result = _search(segments, questions.vectors, k, questions.allowed)
    true = questions.truth >= 0
    least = np.where(true, questions.scores, np.inf).min(axis=1, keepdims=True)
    least = least - 2 * score_slack(questions.vectors.shape[1])
    hits = ((result.rows >= 0) & (result.scores >= least)).sum(axis=1)
    count = true.sum(axis=1)
    shares: Doubles = np.minimum(hits, count) / np.maximum(1, count)
    return shares


def _under_filters(
    segments: Sequence[Segment], questions: Questions, k: int
) -> tuple[Doubles, ...]:
    return tuple(_recall(segments, each, k) for each in questions.filtered)


def _cost(segments: Sequence[Segment], questions: Questions, goal: Goal) -> float:
    """Milliseconds per query: the median of single queries, or the mean in one batch."""
    if goal.objective is Objective.THROUGHPUT:
        begin = time.perf_counter()
        _search(segments, questions.vectors, goal.k)
        return (time.perf_counter() - begin) * 1e3 / len(questions.vectors)
    times = []
    for query in questions.vectors[:_TIMED_QUERIES]:
        begin = time.perf_counter()
        _search(segments, query[None], goal.k)
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e3


def _search(
    segments: Sequence[Segment],
    queries: Floats,
    k: int,
    allowed: Sequence[Allowed | None] | None = None,
) -> SearchResult:
    results = [
        segment.search(queries, k, allowed=only)
        for segment, only in zip(segments, allowed or [None] * len(segments), strict=True)
    ]
    return merge(results, _bases(segments), k)


def _bases(segments: Sequence[Segment]) -> list[int]:
    """The number of each segment's first row."""
    return list(accumulate((segment.rows for segment in segments[:-1]), initial=0))


def candidates(
    segments: Sequence[Segment],
    sizes: Sequence[int],
    searchable: Searchable,
    tuning_queries: Questions,
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
    ranked = tuning_queries.part(np.arange(min(_RANKED_QUERIES, len(tuning_queries.vectors))))
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
            for part, rows_there in zip(searchable, sizes, strict=True)
        )
    ]
    shortest, within, tried = float("inf"), False, 0
    for width in widths:
        if configs is None and (tried == 4 or goal.k > 0.75 * shortest):
            break
        before = ranks(segments, searchable, ranked, width)
        usable = [s for s in shortlists if (before < s).mean() >= enough]
        if not usable or (configs is None and usable[0] > 0.75 * shortest):
            continue
        shortest, tried = usable[0], tried + 1
        chosen = usable[:3]
        if careful:
            enough_for_all = [s for s in usable if (before < s).mean() >= CAREFUL_SHARE]
            chosen = sorted({*chosen, *enough_for_all[:1]})
        defaults = _defaults(base, width, rows)
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


def _defaults(base: SegmentConfig, width: int, rows: int) -> Iterator[SegmentConfig]:
    """The configs to try for a prefix. Other codes of a graph were no faster."""
    flat = _flat(base, width)
    if rows <= MAX_FLAT_ROWS:
        yield flat
    if rows >= FLAT_BELOW:
        yield replace(flat, structure=Structure.HNSW, code=Code.INT8)
    if rows >= 10 * FLAT_BELOW:
        yield replace(flat, structure=Structure.IVF, code=Code.INT8)


def _flat(base: SegmentConfig, width: int) -> SegmentConfig:
    """A scan of a prefix, with default values for what other structures need."""
    return replace(
        base,
        prefix=width,
        structure=Structure.FLAT,
        code=Code.FP16,
        lists=0,
        hnsw_m=16,
        ef_construction=64,
        effort=0,
        stages=(),
    )


def ranks(
    segments: Sequence[Segment], searchable: Searchable, questions: Questions, width: int
) -> npt.NDArray[np.int64]:
    """Number of rows (q, k) that precede each true neighbour in the order of the prefix."""
    first = 0
    heads, scores = [], np.full(questions.truth.shape, np.inf, np.float32)
    for segment in segments:
        prefixes = segment.prefixes(replace(segment.config, prefix=width, stages=()))
        head = prefixes.of(questions.vectors)
        inside = (questions.truth >= first) & (questions.truth < first + segment.rows)
        neighbours = prefixes.take(questions.truth[inside] - first)
        scores[inside] = np.einsum("nd,nd->n", neighbours, head[np.nonzero(inside)[0]])
        heads.append((prefixes, head))
        first += segment.rows
    above = np.zeros(questions.truth.shape, np.int64)
    for (prefixes, head), rows in zip(heads, searchable, strict=True):
        for block in prefixes.blocks(rows):
            similar = np.sort(head @ block.T, axis=1)
            for i, line in enumerate(similar):
                # 1e-6: a row must not precede itself because of rounding
                above[i] += len(line) - np.searchsorted(line, scores[i] + 1e-6, side="right")
    return above
