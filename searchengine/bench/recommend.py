"""Which operating point to take: the fastest that holds a recall target, and what ties with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from searchengine.bench.formatting import (
    fraction,
    listed,
    plain,
    recall_of,
    short,
    size,
    spread_of,
)
from searchengine.bench.results import Kind, Results, Row

MARGIN = 1.05  # a ratio of speeds within this, or one over it, is the same speed to a user
ALIKE = 1.1  # memory within this of the least is the same memory
NAMED = 3  # of what ties; the table marks them all
QUESTIONS = 50  # fewer show little
ODD = 5  # of so many rounds one may say otherwise
FEW, FEW_MARGIN = 3, 1.5  # fewer rounds have no spread to judge by: they tell this much apart


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to take.

    Attributes:
        target: the recall asked for; a row holds it if the low end of its 95 % interval does.
        name: the row to take: exact search where nothing that holds the target is faster; None
            where nothing holds it and exact search was not measured.
        tied: the other rows that hold it and are as fast as the fastest one, within what the bench
            can tell.
        why: sentences for a person.
    """

    target: float
    name: str | None
    tied: tuple[str, ...]
    why: tuple[str, ...]


def recommend(results: Results, target: float = 0.95) -> Recommendation:
    """The fastest row of this engine that holds the target.

    Speed is compared by the rounds that rows share (`times_as_fast`). What ties for the first
    place was measured in as many rounds as anything was, and nothing that holds the target is
    faster than it (`faster`). Of those, the ones with the fewest hot bytes (within 10 %) are left,
    and of these the one with the highest recall, then the fewest multiply-adds, then the shortest
    median is taken. It must be faster than exact search; otherwise that is recommended. Other
    engines never are, nor prefixes that were not rotated where there are others.
    """
    holding = _holding(results, target)
    if not holding:
        return _nothing_holds(results, target)
    exact = results.exact
    ties = [row for row in _ties(holding) if exact is None or faster(row, exact)]
    if not ties:
        assert exact is not None  # without it nothing is left out
        return _as_fast(results, target, exact, holding[0])
    chosen = _preferred(ties)
    tied = tuple(row.name for row in ties if row is not chosen)
    why = [
        *_found(chosen, results),
        *_gained(chosen),
        *_memory(chosen),
        *_tied(chosen, tied),
        *_cheaper(chosen, results),
        *applied(chosen),
        *_doubts(results),
    ]
    return Recommendation(target, chosen.name, tied, tuple(why))


def ranked(results: Results, target: float = 0.95) -> tuple[tuple[str, ...], ...]:
    """The rows of this engine that hold the target, in groups of ties, fastest group first.

    Every row of a group is faster, beyond doubt, than every row of the groups after it: the order
    of two groups rests on all pairs, so that a bench measured again seldom turns it around. Within
    a group the faster row stands first; neighbours tie there, if perhaps not the two ends.
    """
    rows = _holding(results, target)
    groups: list[list[str]] = []
    reach = -1  # the last row that some row before ties with
    for place, row in enumerate(rows):
        if place > reach:
            groups.append([])
        groups[-1].append(row.name)
        tied = [i for i in range(place, len(rows)) if i == place or not faster(row, rows[i])]
        reach = max(reach, tied[-1])
    return tuple(tuple(group) for group in groups)


def faster(first: Row, second: Row) -> bool:
    """Whether the first row is faster than the second beyond doubt; neither way is a tie.

    Rounds are compared in pairs, for what else the machine did fell on both. The median ratio must
    be beyond 1.05, and its interval beyond 1. The interval is that of the sign test: from the
    (d + 1)-th smallest to the (d + 1)-th largest ratio, d the largest number with
    2 P(Bin(n, 1/2) <= d) <= 5 %; it needs no distribution (Conover, Practical Nonparametric
    Statistics, section 3.2). d is at least a fifth of the rounds, so that of five rounds one may
    say otherwise: where two rows are alike, four or all five rounds are on one given side in 19 of
    100 cases, and their median seldom is beyond 1.05 then. One or two rounds, of an interrupted
    bench, must show a ratio of 1.5.
    """
    ratios = sorted(_ratios(first, second))
    if len(ratios) < FEW:
        return bool(ratios) and ratios[0] > FEW_MARGIN
    outside = max(_cut(len(ratios)), len(ratios) // ODD)
    return median(ratios) > MARGIN and ratios[outside] > 1


def times_as_fast(first: Row, second: Row) -> float:
    """How many times as fast the first row is as the second: the median ratio of their rounds."""
    ratios = _ratios(first, second)
    return median(ratios) if ratios else second.p50_ms.median / first.p50_ms.median


def _ratios(first: Row, second: Row) -> list[float]:
    """By round; a row that was measured in more rounds than the other was so after the others."""
    return [b / a for a, b in zip(first.rounds_ms, second.rounds_ms, strict=False)]


def _cut(rounds: int) -> int:
    """How many ratios lie outside the interval, at each end."""
    outside, tail = 0, 1
    while True:
        tail += math.comb(rounds, outside + 1)
        if 2 * tail > 0.05 * 2**rounds:
            return outside
        outside += 1


def _holding(results: Results, target: float) -> list[Row]:
    """The rows of this engine that hold the target, fastest first; exact search left out.

    Rows are ordered by how much faster they are than the others, pair by pair: their own medians
    do not compare where some were measured in more rounds than others, at a busier time perhaps.
    """
    holding = [row for row in _own(results) if row.recall_low >= target]
    ahead = {
        row.name: sum(math.log(times_as_fast(row, other)) for other in holding) for row in holding
    }
    return sorted(holding, key=lambda row: (-ahead[row.name], row.name))


def _own(results: Results) -> list[Row]:
    """The candidates of this engine.

    What was cut off without a rotation is there for comparison only: a collection is rotated,
    unless it has no rotated rows at all.
    """
    own = [row for row in results.rows if row.candidate]
    if any(row.kind in (Kind.CASCADE, Kind.FUNNEL) for row in own):
        return [row for row in own if row.kind is not Kind.TRUNCATED]
    return own


def _ties(holding: Sequence[Row]) -> list[Row]:
    """Those for the first place, of what took part in the finals, fastest first.

    A row that did not was measured in few rounds, of which one noisy one would make it a tie.
    Finals that were interrupted leave some a round short.
    """
    unbeaten = [row for row in holding if not any(faster(other, row) for other in holding)]
    most = max(len(row.rounds_ms) for row in unbeaten or holding)
    finalists = [row for row in unbeaten if len(row.rounds_ms) >= most - 1]
    return finalists or [holding[0]]  # three that beat each other in a circle: next to impossible


def _preferred(ties: Sequence[Row]) -> Row:
    """Of what is as fast: by memory, within a tenth of the least, then by what it finds."""
    least = min(_hot(row) for row in ties)
    light = [row for row in ties if _hot(row) <= ALIKE * least]
    return min(light, key=_merits)


def _hot(row: Row) -> float:
    return math.inf if row.hot_bytes is None else row.hot_bytes


def _merits(row: Row) -> tuple[float, float, float, str]:
    adds = math.inf if row.multiply_adds is None else row.multiply_adds
    return -row.recall, adds, row.p50_ms.median, row.name


def _as_fast(results: Results, target: float, exact: Row, first: Row) -> Recommendation:
    """Exact search, because a scan of so few rows is as fast as anything that holds the target."""
    k, rows = results.subject.get("k"), plain(results.subject.get("rows"))
    why = (
        f"Search exactly: over {rows} rows a scan, in {spread_of(exact.p50_ms)} ms a query, is as "
        f"fast as anything that holds recall@{k} ≥ {target:g}, and finds all of them.",
        f"Of the others {first.name} comes first, with recall {recall_of(first)} in "
        f"{spread_of(first.p50_ms)} ms a query: {short(times_as_fast(first, exact))} times as fast "
        "as exact search, which is not beyond doubt.",
    )
    return Recommendation(target, exact.name, (), (*why, *_doubts(results)))


def _nothing_holds(results: Results, target: float) -> Recommendation:
    exact = results.exact
    own = _own(results)
    k = results.subject.get("k")
    why = []
    if exact is None:
        why.append("Nothing holds the target, and exact search was not measured.")
    elif own:
        why.append(f"Only exact search holds recall@{k} ≥ {target:g}.")
    else:
        why.append("Only exact search was measured, so there is nothing to choose from.")
    if exact is not None:
        why.append(f"It finds all of them, in {spread_of(exact.p50_ms)} ms a query.")
    if own:
        best = max(own, key=lambda row: (row.recall, -row.p50_ms.median))
        why.append(
            f"The highest recall that anything else reached is {recall_of(best)}, by {best.name} "
            f"in {spread_of(best.p50_ms)} ms a query. A longer shortlist or a wider prefix finds "
            "more (--shortlists, --prefixes); otherwise search exactly."
        )
    name = None if exact is None else exact.name
    return Recommendation(target, name, (), (*why, *_doubts(results)))


def _found(row: Row, results: Results) -> list[str]:
    k = results.subject.get("k")
    said = [
        f"Take {row.name}: it finds {fraction(row.recall)} of the exact {k} nearest (95 % interval "
        f"{fraction(row.recall_low)}–{fraction(row.recall_high)}) in {spread_of(row.p50_ms)} ms a "
        f"query; 99 of 100 queries take at most {short(row.p99_ms.median)} ms."
    ]
    exact = results.exact
    if row.ndcg is not None and exact is not None and exact.ndcg is not None:
        said.append(f"Its nDCG@10 is {row.ndcg:.3f}, that of exact search {exact.ndcg:.3f}.")
    return said


def _gained(row: Row) -> list[str]:
    measured = f"{spread_of(row.measured)} times as fast on the clock"
    if row.theoretical is None:
        return [f"It is {measured}, against exact search."]
    return [
        f"Against exact search it is {measured}, and computes {short(row.theoretical)} times fewer "
        "multiply-adds."
    ]


def _memory(row: Row) -> list[str]:
    if row.hot_bytes is None:
        return []
    rest = "" if row.cold_bytes is None else f"; {size(row.cold_bytes)} may stay on the disk"
    return [f"It wants {size(row.hot_bytes)} in memory{rest}."]


def _tied(row: Row, tied: Sequence[str]) -> list[str]:
    if not tied:
        return []
    names = [row.name, *tied]
    named, more = names[:NAMED], len(names) - NAMED
    if more > 0:
        named.append(f"{more} more (≈ in the table)")
    return [
        f"In speed {listed(named)} cannot be told apart; of these it was taken for "
        "its memory, then for what it finds."
    ]


def _cheaper(row: Row, results: Results) -> list[str]:
    """What a step down would lose: of what is faster and finds less, the one that finds most."""
    quicker = [
        other
        for other in _own(results)
        if other.recall < row.recall and times_as_fast(other, row) > MARGIN
    ]
    if not quicker:
        return ["Nothing that was measured is faster and finds less."]
    following = max(quicker, key=lambda other: (other.recall, -other.p50_ms.median))
    doubt = "" if faster(following, row) else ", which is not beyond doubt"
    return [
        f"The next cheaper point, {following.name}, takes {short(following.p50_ms.median)} ms, "
        f"{short(times_as_fast(following, row))} times as fast{doubt}, and finds "
        f"{recall_of(following)}: {fraction(row.recall - following.recall)} less."
    ]


def applied(row: Row) -> list[str]:
    """How a collection is made that is searched as this row was; nothing of exact search."""
    if not row.candidate:
        return []
    options = {
        "structure": row.structure,
        "code": row.code,
        "prefix": row.prefix,
        "shortlist": row.shortlist,
    }
    if row.effort:
        options["effort"] = row.effort
    if row.stages:
        options["funnel"] = ",".join(f"{width}:{keep}" for width, keep in row.stages)
    if row.kind is Kind.TRUNCATED:
        options["rotation"] = "identity"
    said = " ".join(f"--{name} {value}" for name, value in options.items())
    return [
        f"To make a collection that is searched so: searchengine index CORPUS COLLECTION {said}. "
        "One that exists: searchengine tune."
    ]


def _doubts(results: Results) -> list[str]:
    """What makes the answer less sure: few questions, an early end."""
    said = []
    queries = results.subject.get("queries")
    if isinstance(queries, int) and queries < QUESTIONS:
        many = "1 question was" if queries == 1 else f"{queries} questions were"
        said.append(
            f"Only {many} asked, and so few show little: ask {QUESTIONS} or more before you rely "
            "on it."
        )
    if not results.complete:
        said.append(
            "The bench was interrupted: points may be missing, and spreads rest on fewer rounds."
        )
    return said
