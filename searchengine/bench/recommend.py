"""The recommended operating point: the fastest that holds a recall target, and its ties."""

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

MARGIN = 1.05  # two speeds within this ratio count as equal
_MEMORY_MARGIN = 1.1  # two sizes within this ratio count as equal
_NAMED_TIES = 3  # ties named in the text; the table marks all of them
_MIN_QUERIES = 50  # fewer queries prove little
_OUTLIER_SHARE = 5  # one round in five may contradict the others
_MIN_ROUNDS, FEW_MARGIN = 3, 1.5  # fewer rounds have no spread: their ratio must exceed the margin


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommendation of a bench.

    Attributes:
        target: target recall; a row holds it if the low end of its 95 % interval does.
        name: the recommended row; exact search if no faster row meets the target; None if no row
            meets it and exact search was not measured.
        tied: the other rows that meet the target and are not measurably slower than the fastest.
        why: the reasons, in sentences.
    """

    target: float
    name: str | None
    tied: tuple[str, ...]
    why: tuple[str, ...]


def recommend(results: Results, target: float = 0.95) -> Recommendation:
    """Recommend the fastest row that holds the target, peers excepted.

    Speed is compared by shared rounds (`times_as_fast`). Rows tie for the first place if they were
    measured in the most rounds and no row that holds the target is faster (`faster`). Of the ties,
    those with the fewest hot bytes (within 10 %) remain; of these the highest recall wins, then the
    fewest multiply-adds, then the shortest median. The winner must be faster than exact search,
    which is recommended otherwise. Prefixes without rotation are considered only if there are no
    others.
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
        *_recall_and_latency(chosen, results),
        *_speed(chosen),
        *_memory(chosen),
        *_tied(chosen, tied),
        *_cheaper(chosen, results),
        *usage(chosen),
        *_doubts(results),
    ]
    return Recommendation(target, chosen.name, tied, tuple(why))


def ranked(results: Results, target: float = 0.95) -> tuple[tuple[str, ...], ...]:
    """The rows that hold the target, peers excepted, in groups of ties, fastest group first.

    Every row of a group is significantly faster than every row of the groups after it. All pairs
    decide the order of two groups, so that a second bench seldom reverses it. Within a group the
    faster row comes first; neighbours tie, but perhaps not the two ends.
    """
    rows = _holding(results, target)
    groups: list[list[str]] = []
    reach = -1  # the last row that ties with an earlier one
    for place, row in enumerate(rows):
        if place > reach:
            groups.append([])
        groups[-1].append(row.name)
        tied = [i for i in range(place, len(rows)) if i == place or not faster(row, rows[i])]
        reach = max(reach, tied[-1])
    return tuple(tuple(group) for group in groups)


def faster(first: Row, second: Row) -> bool:
    """True if the first row is significantly faster than the second; False both ways is a tie.

    Rounds are compared in pairs, because the machine's load affected both. The median ratio must
    exceed 1.05, and its interval must exceed 1. The interval is that of the sign test: from the
    (d + 1)-th smallest to the (d + 1)-th largest ratio, d the largest number with
    2 P(Bin(n, 1/2) <= d) <= 5 %; it assumes no distribution (Conover, Practical Nonparametric
    Statistics, section 3.2). d is at least a fifth of the rounds, so that one of five rounds may
    contradict the others: if two rows are equally fast, four or five of five rounds favour a given
    one in 19 of 100 cases, and the median ratio then seldom exceeds 1.05. One or two rounds, of an
    interrupted bench, must all exceed 1.5.
    """
    ratios = sorted(_ratios(first, second))
    if len(ratios) < _MIN_ROUNDS:
        return bool(ratios) and ratios[0] > FEW_MARGIN
    outside = max(_cut(len(ratios)), len(ratios) // _OUTLIER_SHARE)
    return median(ratios) > MARGIN and ratios[outside] > 1


def times_as_fast(first: Row, second: Row) -> float:
    """The speed of the first row relative to the second: the median ratio of their rounds."""
    ratios = _ratios(first, second)
    return median(ratios) if ratios else second.p50_ms.median / first.p50_ms.median


def _ratios(first: Row, second: Row) -> list[float]:
    """Ratios by round; the additional rounds of finalists come after the shared ones."""
    return [b / a for a, b in zip(first.rounds_ms, second.rounds_ms, strict=False)]


def _cut(rounds: int) -> int:
    """The number of ratios outside the interval at each end."""
    outside, tail = 0, 1
    while True:
        tail += math.comb(rounds, outside + 1)
        if 2 * tail > 0.05 * 2**rounds:
            return outside
        outside += 1


def _holding(results: Results, target: float) -> list[Row]:
    """The candidates that hold the target, fastest first.

    The order follows the pairwise ratios: medians of rows measured in different rounds, perhaps at
    a busier time, are not comparable.
    """
    holding = [row for row in _candidates(results) if row.recall_low >= target]
    ahead = {
        row.name: sum(math.log(times_as_fast(row, other)) for other in holding) for row in holding
    }
    return sorted(holding, key=lambda row: (-ahead[row.name], row.name))


def _candidates(results: Results) -> list[Row]:
    """The rows that can be recommended.

    Prefixes without rotation are a baseline, unless the collection itself is not rotated.
    """
    rows = [row for row in results.rows if row.candidate]
    if any(row.kind in (Kind.CASCADE, Kind.FUNNEL) for row in rows):
        return [row for row in rows if row.kind is not Kind.TRUNCATED]
    return rows


def _ties(holding: Sequence[Row]) -> list[Row]:
    """The finalists that tie for the first place, fastest first.

    Other rows were measured in few rounds, where one noisy round makes a tie. Interrupted finals
    leave some finalists one round short.
    """
    unbeaten = [row for row in holding if not any(faster(other, row) for other in holding)]
    most = max(len(row.rounds_ms) for row in unbeaten or holding)
    finalists = [row for row in unbeaten if len(row.rounds_ms) >= most - 1]
    return finalists or [holding[0]]  # three rows that beat each other in a circle: very unlikely


def _preferred(ties: Sequence[Row]) -> Row:
    """The best of equally fast rows: by memory, within 10 % of the least, then by recall."""
    least = min(_hot(row) for row in ties)
    light = [row for row in ties if _hot(row) <= _MEMORY_MARGIN * least]
    return min(light, key=_merits)


def _hot(row: Row) -> float:
    return math.inf if row.hot_bytes is None else row.hot_bytes


def _merits(row: Row) -> tuple[float, float, float, str]:
    adds = math.inf if row.multiply_adds is None else row.multiply_adds
    return -row.recall, adds, row.p50_ms.median, row.name


def _as_fast(results: Results, target: float, exact: Row, first: Row) -> Recommendation:
    """Recommend exact search, because no row that holds the target is faster."""
    k, rows = results.subject.get("k"), plain(results.subject.get("rows"))
    why = (
        f"Search exactly: with {spread_of(exact.p50_ms)} ms per query over {rows} rows, exact "
        f"search is as fast as any point that holds recall@{k} ≥ {target:g}.",
        f"The best of those is {first.name}, with recall {recall_of(first)} in "
        f"{spread_of(first.p50_ms)} ms per query: {short(times_as_fast(first, exact))} times as "
        "fast as exact search, which is not significant.",
    )
    return Recommendation(target, exact.name, (), (*why, *_doubts(results)))


def _nothing_holds(results: Results, target: float) -> Recommendation:
    exact = results.exact
    candidates = _candidates(results)
    k = results.subject.get("k")
    why = []
    if exact is None:
        why.append("Nothing holds the target, and exact search was not measured.")
    elif candidates:
        why.append(f"Only exact search holds recall@{k} ≥ {target:g}.")
    else:
        why.append("Only exact search was measured, so there is nothing to choose from.")
    if exact is not None:
        why.append(f"It takes {spread_of(exact.p50_ms)} ms per query.")
    if candidates:
        best = max(candidates, key=lambda row: (row.recall, -row.p50_ms.median))
        why.append(
            f"The highest recall of another row is {recall_of(best)}, by {best.name} "
            f"in {spread_of(best.p50_ms)} ms per query. A longer shortlist or a wider prefix finds "
            "more (--shortlists, --prefixes); otherwise search exactly."
        )
    name = None if exact is None else exact.name
    return Recommendation(target, name, (), (*why, *_doubts(results)))


def _recall_and_latency(row: Row, results: Results) -> list[str]:
    k = results.subject.get("k")
    sentences = [
        f"Use {row.name}: it finds {fraction(row.recall)} of the exact {k} nearest (95 % interval "
        f"{fraction(row.recall_low)}–{fraction(row.recall_high)}) in {spread_of(row.p50_ms)} ms "
        f"per query; 99 % of the queries take at most {short(row.p99_ms.median)} ms."
    ]
    exact = results.exact
    if row.ndcg is not None and exact is not None and exact.ndcg is not None:
        sentences.append(f"Its nDCG@10 is {row.ndcg:.3f}, that of exact search {exact.ndcg:.3f}.")
    return sentences


def _speed(row: Row) -> list[str]:
    measured = f"It is {spread_of(row.measured)} times as fast as exact search"
    if row.theoretical is None:
        return [f"{measured}."]
    return [f"{measured}, and computes {short(row.theoretical)} times fewer multiply-adds."]


def _memory(row: Row) -> list[str]:
    if row.hot_bytes is None:
        return []
    rest = "" if row.cold_bytes is None else f"; {size(row.cold_bytes)} may stay on disk"
    return [f"It needs {size(row.hot_bytes)} in memory{rest}."]


def _tied(row: Row, tied: Sequence[str]) -> list[str]:
    if not tied:
        return []
    names = [row.name, *tied]
    named, more = names[:_NAMED_TIES], len(names) - _NAMED_TIES
    if more > 0:
        named.append(f"{more} more (≈ in the table)")
    return [
        f"The speeds of {listed(named)} do not differ significantly; memory, then recall, decided "
        "between them."
    ]


def _cheaper(row: Row, results: Results) -> list[str]:
    """The loss of the next faster row: of those with less recall, the one with the most."""
    faster_rows = [
        other
        for other in _candidates(results)
        if other.recall < row.recall and times_as_fast(other, row) > MARGIN
    ]
    if not faster_rows:
        return ["No measured point is faster with less recall."]
    cheaper = max(faster_rows, key=lambda other: (other.recall, -other.p50_ms.median))
    doubt = "" if faster(cheaper, row) else ", which is not significant"
    return [
        f"The next cheaper point, {cheaper.name}, takes {short(cheaper.p50_ms.median)} ms, "
        f"{short(times_as_fast(cheaper, row))} times as fast{doubt}, and finds "
        f"{recall_of(cheaper)}, {fraction(row.recall - cheaper.recall)} less."
    ]


def usage(row: Row) -> list[str]:
    """The command that indexes a collection like this row; empty for exact search."""
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
    flags = " ".join(f"--{name} {value}" for name, value in options.items())
    return [
        f"For a new collection: searchengine index CORPUS COLLECTION {flags}. For an existing one: "
        "searchengine tune."
    ]


def _doubts(results: Results) -> list[str]:
    """Reasons to doubt the recommendation: few queries, an early end."""
    doubts = []
    queries = results.subject.get("queries")
    if isinstance(queries, int) and queries < _MIN_QUERIES:
        number = "1 query was" if queries == 1 else f"{queries} queries were"
        doubts.append(
            f"Only {number} measured, which proves little; measure {_MIN_QUERIES} or more."
        )
    if not results.complete:
        doubts.append(
            "The bench was interrupted: points may be missing, and spreads have fewer rounds."
        )
    return doubts
