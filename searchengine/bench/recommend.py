"""Which operating point to take: the fastest that holds a recall target, and what ties with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from searchengine.bench.amounts import (
    fraction,
    listed,
    recall_of,
    short,
    size,
    spread_of,
)
from searchengine.bench.results import Kind, Results, Row

MARGIN = 1.05  # a ratio of speeds within this, or one over it, is the same speed to a user
FEW, FEW_MARGIN = 3, 1.5  # fewer rounds have no spread to judge by: they tell this much apart


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to take.

    Attributes:
        target: the recall asked for; a row holds it if the low end of its 95 % interval does.
        name: the row to take: exact search where nothing else holds the target; None where not
            even that was measured.
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

    Speed is compared by the rounds that rows share (`times_as_fast`). Among rows that tie with the
    fastest (`faster`), the one with the fewest hot bytes is taken, then the one with the shortest
    prefix, then by name. Other engines are never recommended, and exact search only where nothing
    else holds the target.
    """
    holding = _holding(results, target)
    if not holding:
        return _nothing_holds(results, target)
    first = holding[0]
    ties = [row for row in holding if row is first or not faster(first, row)]
    chosen = min(ties, key=_preferred)
    tied = tuple(row.name for row in ties if row is not chosen)
    why = [
        *_found(chosen, results),
        *_gained(chosen),
        *_memory(chosen),
        *_tied(chosen, tied),
        *_cheaper(chosen, results),
        *_unfinished(results),
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

    Rounds are compared in pairs, for what else the machine did fell on both. The interval of the
    median ratio is that of the sign test: from the (d + 1)-th smallest to the (d + 1)-th largest
    ratio, d the largest number with 2 P(Bin(n, 1/2) <= d) <= 5 %; of fewer than six rounds all of
    them (94 % at five, 75 % at three). It needs no distribution (Conover, Practical Nonparametric
    Statistics, section 3.2). All of it must lie beyond a ratio of 1.05. One or two rounds, of an
    interrupted bench, must show a ratio of 1.5.
    """
    ratios = sorted(_ratios(first, second))
    if not ratios:
        return False
    return ratios[_cut(len(ratios))] > (MARGIN if len(ratios) >= FEW else FEW_MARGIN)


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
    return [row for row in results.rows if row.kind not in (Kind.EXACT, Kind.PEER)]


def _preferred(row: Row) -> tuple[float, int, str]:
    return (math.inf if row.hot_bytes is None else row.hot_bytes, row.prefix, row.name)


def _nothing_holds(results: Results, target: float) -> Recommendation:
    exact = next((row for row in results.rows if row.kind is Kind.EXACT), None)
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
    return Recommendation(target, name, (), (*why, *_unfinished(results)))


def _found(row: Row, results: Results) -> list[str]:
    k = results.subject.get("k")
    said = [
        f"Take {row.name}: it finds {fraction(row.recall)} of the exact {k} nearest (95 % interval "
        f"{fraction(row.recall_low)}–{fraction(row.recall_high)}) in {spread_of(row.p50_ms)} ms a "
        f"query; 99 of 100 queries take at most {short(row.p99_ms.median)} ms."
    ]
    exact = next((each for each in results.rows if each.kind is Kind.EXACT), None)
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
    return [
        f"In speed {listed([row.name, *tied])} cannot be told apart; of these it was taken for "
        "its memory, then its shorter prefix."
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


def _unfinished(results: Results) -> list[str]:
    if results.complete:
        return []
    return ["The bench was interrupted: points may be missing, and spreads rest on fewer rounds."]
