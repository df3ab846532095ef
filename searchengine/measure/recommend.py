"""The recommended operating point, and what a reader learns of it in ten seconds.

What a user waits for is the whole question: its encoding, the search by vectors, the words. Where
the rest takes 4 ms, 0.1 and 0.2 ms of search feel the same, and the point that finds more is
recommended. No other row beats the recommended one in all that the report shows.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from searchengine.errors import QueryError
from searchengine.measure.formatting import (
    fraction,
    listed,
    plain,
    recall_of,
    short,
    size,
    spread_of,
)
from searchengine.measure.results import RESULTS, Kind, Results, Row

RECOMMENDED = "recommended"
"""Name, after a path and #, of the row that is recommended."""
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
        target: target recall; see `recommend`.
        name: the recommended row; None if no row meets the target and exact search was not
            measured.
        tied: the other rows that meet the target and are not measurably slower than the fastest.
        why: the reasons, in sentences.
    """

    target: float
    name: str | None
    tied: tuple[str, ...]
    why: tuple[str, ...]


def recommend(results: Results, target: float | None = None) -> Recommendation:
    """Recommend the best of the fastest rows that hold the target (by default that of the bench).

    A row holds it if the low end of its recall's 95 % interval does, or if it finds no less than
    such a row. Speed is compared by shared rounds (`times_as_fast`), with the rest of a question
    (`Results.overhead`) added to both. Rows tie for the first place if no row that holds the target
    is faster (`faster`); without the rest, only those that were measured in the most rounds. Ties
    that lose nDCG@10 against exact search beyond doubt are left out if others do not, then ties
    with a lower recall beyond doubt, then those that another row `beats`. If the collection
    searches by one of the others, it stays; else of those with the fewest hot bytes (within 10 %)
    the highest recall wins, then the shortest median.

    If no row that holds the target is faster than exact search, exact search is recommended. What
    beats the choice in all that is shown replaces it.
    """
    target = results.target if target is None else target
    holding, exact, overhead = _holding(results, target), results.exact, results.overhead
    ties = [
        row for row in _ties(holding, overhead) if exact is None or faster(row, exact, overhead)
    ]
    chosen = _preferred(ties, results) if ties else exact
    if chosen is None:
        return Recommendation(target, None, (), tuple(_nothing_holds(results, target)))
    chosen = _unbeaten(chosen, results)
    tied = tuple(row.name for row in ties if row is not chosen)
    why = [*_what(chosen, results, target, holding), *_cost(chosen), *_tied(chosen, tied, overhead)]
    if chosen.kind is not Kind.EXACT:
        why += _cheaper(chosen, results)
    return Recommendation(target, chosen.name, tied, (*why, *_doubts(results)))


def beats(first: Row, second: Row) -> bool:
    """True if the first row is better in all that the report shows of both.

    That is recall, latency and nDCG@10, as they are written; if all three are equal, the memory,
    and at last the numbers behind what is written.
    """
    shown, other = _shown(first), _shown(second)
    if shown != other:
        return all(a >= b for a, b in zip(shown, other, strict=True))
    if size(first.hot_bytes) != size(second.hot_bytes):
        return first.hot_bytes < second.hot_bytes
    values, others = _values(first), _values(second)
    return values != others and all(a >= b for a, b in zip(values, others, strict=True))


def _values(row: Row) -> tuple[float, float, float]:
    return row.recall, -row.p50_ms.median, row.ndcg or 0.0


def _shown(row: Row) -> tuple[float, ...]:
    recall, latency, ndcg = _values(row)
    written = fraction(recall), short(latency), fraction(ndcg)
    return tuple(float(text.replace(",", "")) for text in written)


def named_row(results: Results, name: str = RECOMMENDED) -> Row:
    """The row with this name, or the recommended one. Raises QueryError if there is none."""
    advice = recommend(results) if name == RECOMMENDED else None
    row = results.named(name if advice is None else advice.name)
    if row is None and advice is not None:
        raise QueryError(f"the bench recommends nothing: {' '.join(advice.why)}")
    if row is None:
        names = ", ".join([RECOMMENDED, *(row.name for row in results.rows)])
        raise QueryError(f"the bench has no point {name!r}; its points are {names}")
    return row


def point_at(address: str) -> tuple[Row, Mapping[str, Any]]:
    """The row of FILE#NAME, and `Results.subject`: what it was measured on.

    FILE is a results.json or its folder, NAME as in `named_row`. Raises QueryError.
    """
    path, _, name = address.partition("#")
    results = Results.read(Path(path))
    return named_row(results, name or RECOMMENDED), results.subject


def faster(first: Row, second: Row, overhead: float = 0) -> bool:
    """True if the first row is significantly faster than the second; False both ways is a tie.

    `overhead`: milliseconds that every question takes besides.

    Rounds are compared in pairs, because the machine's load affected both. The median ratio must
    exceed 1.05, and its interval must exceed 1. The interval is that of the sign test: from the
    (d + 1)-th smallest to the (d + 1)-th largest ratio, d the largest number with
    2 P(Bin(n, 1/2) <= d) <= 5 %; it assumes no distribution (Conover, Practical Nonparametric
    Statistics, section 3.2). d is at least a fifth of the rounds, so that one of five rounds may
    contradict the others: if two rows are equally fast, four or five of five rounds favour a given
    one in 19 of 100 cases, and the median ratio then seldom exceeds 1.05. One or two rounds, of an
    interrupted bench, must all exceed 1.5.
    """
    ratios = sorted(_ratios(first, second, overhead))
    if len(ratios) < _MIN_ROUNDS:
        return bool(ratios) and ratios[0] > FEW_MARGIN
    outside = max(_cut(len(ratios)), len(ratios) // _OUTLIER_SHARE)
    return median(ratios) > MARGIN and ratios[outside] > 1


def times_as_fast(first: Row, second: Row, overhead: float = 0) -> float:
    """The speed of the first row relative to the second: the median ratio of their rounds.

    `overhead` as for `faster`.
    """
    ratios = _ratios(first, second, overhead)
    if not ratios:
        return (second.p50_ms.median + overhead) / (first.p50_ms.median + overhead)
    return median(ratios)


def _ratios(first: Row, second: Row, overhead: float) -> list[float]:
    """Ratios by round; the additional rounds of finalists come after the shared ones."""
    rounds = zip(first.rounds_ms, second.rounds_ms, strict=False)
    return [(b + overhead) / (a + overhead) for a, b in rounds]


def _cut(rounds: int) -> int:
    """The number of ratios outside the interval at each end."""
    outside, tail = 0, 1
    while True:
        tail += math.comb(rounds, outside + 1)
        if 2 * tail > 0.05 * 2**rounds:
            return outside
        outside += 1


def _holding(results: Results, target: float) -> list[Row]:
    """The rows that hold the target, fastest first, without exact search.

    The order follows the pairwise ratios: medians of rows measured in different rounds, perhaps at
    a busier time, are not comparable.
    """
    rows = _candidates(results)
    least = min((row.recall for row in rows if row.recall_low >= target), default=math.inf)
    holding = [row for row in rows if row.recall >= least]
    ahead = {
        row.name: sum(math.log(times_as_fast(row, other)) for other in holding) for row in holding
    }
    return sorted(holding, key=lambda row: (-ahead[row.name], row.name))


def _candidates(results: Results) -> list[Row]:
    return [row for row in results.rows if row.kind is not Kind.EXACT]


def _ties(holding: Sequence[Row], overhead: float) -> list[Row]:
    """The rows that tie for the first place, fastest first.

    Without overhead, only finalists: other rows were measured in few rounds, where one noisy round
    makes a tie. Interrupted finals leave some finalists one round short.
    """
    unbeaten = [
        row for row in holding if not any(faster(other, row, overhead) for other in holding)
    ]
    if not unbeaten:
        return list(holding[:1])  # three rows that beat each other in a circle: very unlikely
    if overhead:
        return unbeaten
    most = max(len(row.rounds_ms) for row in unbeaten)
    return [row for row in unbeaten if len(row.rounds_ms) >= most - 1]


def _preferred(ties: Sequence[Row], results: Results) -> Row:
    """The best of equally fast rows; see `recommend`."""
    lossless = [row for row in ties if row.ndcg_loss is None or row.ndcg_loss[0] <= 0] or ties
    surest = max(row.recall_low for row in lossless)
    good = [row for row in lossless if row.recall_high >= surest]
    good = [row for row in good if not any(beats(other, row) for other in results.rows)] or good
    least = min(row.hot_bytes for row in good)
    light = [row for row in good if row.hot_bytes <= _MEMORY_MARGIN * least]
    now = [row for row in good if row.name == results.now]
    return min(now or light, key=_order)


def _order(row: Row) -> tuple[float, float, str]:
    return -row.recall, row.p50_ms.median, row.name


def _unbeaten(chosen: Row, results: Results) -> Row:
    """The row, or the best of those that beat it and that no other row beats."""
    better = [row for row in results.rows if beats(row, chosen)]
    top = [row for row in better if not any(beats(other, row) for other in better)]
    return min(top, key=_order) if top else chosen


def _what(row: Row, results: Results, target: float, holding: Sequence[Row]) -> list[str]:
    """What is recommended, and how it compares with exact search."""
    k, exact, overhead = results.subject.get("k"), results.exact, results.overhead
    if row.kind is Kind.EXACT:
        why = [
            f"Search exactly: it takes {spread_of(row.p50_ms)} ms per query over "
            f"{plain(results.subject.get('rows'))} rows."
        ]
        if not holding:
            return [*why, *_nothing_holds(results, target)]
        first = holding[0]
        times, gain = (times_as_fast(first, row, besides) for besides in (0, overhead))
        compared = "no significant difference"
        if faster(first, row):
            compared = (
                f"{short(times)} times as fast, but with the {short(overhead)} ms that the rest of "
                f"a question takes, it is answered only {100 * (1 - 1 / gain):.1f} % sooner"
            )
        return [
            *why,
            f"The fastest point that holds recall@{k} ≥ {target:g}, {first.name}, finds "
            f"{recall_of(first)} in {spread_of(first.p50_ms)} ms per query: {compared}.",
        ]
    why = [
        f"Use {row.name}: it finds {fraction(row.recall)} of the exact {k} nearest (95 % interval "
        f"{fraction(row.recall_low)}–{fraction(row.recall_high)}) in {spread_of(row.p50_ms)} ms "
        f"per query; 99 % of the queries take at most {short(row.p99_ms.median)} ms."
    ]
    if row.ndcg is not None and exact is not None and exact.ndcg is not None:
        doubt = ""
        if row.ndcg_loss is not None and row.ndcg_loss[0] > 0:
            doubt = "; the loss is beyond doubt, and every point without it is slower"
        why.append(f"Its nDCG@10 is {row.ndcg:.3f}, that of exact search {exact.ndcg:.3f}{doubt}.")
    return why


def _nothing_holds(results: Results, target: float) -> list[str]:
    rows, k = _candidates(results), results.subject.get("k")
    if not rows:
        alone = "Only exact search" if results.rows else "Nothing"
        return [f"{alone} was measured, so there is nothing to choose from."]
    best = max(rows, key=lambda row: (row.recall, -row.p50_ms.median))
    only = "Nothing" if results.exact is None else "Nothing else"
    return [
        f"{only} holds recall@{k} ≥ {target:g}. The highest recall of another row is "
        f"{recall_of(best)}, by {best.name} in {spread_of(best.p50_ms)} ms per query. A longer "
        "shortlist or a wider prefix finds more (--shortlists, --prefixes)."
    ]


def _cost(row: Row) -> list[str]:
    if row.kind is Kind.EXACT:
        return []
    memory = f"{size(row.hot_bytes)} in memory; {size(row.cold_bytes)} may stay on disk"
    return [
        f"It is {spread_of(row.measured)} times as fast as exact search.",
        f"It needs {memory}.",
    ]


def _tied(row: Row, tied: Sequence[str], overhead: float) -> list[str]:
    if not tied:
        return []
    names = [row.name, *tied]
    named, more = names[:_NAMED_TIES], len(names) - _NAMED_TIES
    if more > 0:
        named.append(f"{more} more (≈ in the table)")
    besides = f"With {short(overhead)} ms for the rest of a question, the" if overhead else "The"
    return [
        f"{besides} speeds of {listed(named)} do not differ significantly. Quality decided, where "
        "it differs beyond doubt; of those that no other point beats in all, memory, then recall."
    ]


def _cheaper(row: Row, results: Results) -> list[str]:
    """The loss of the next faster row: of those with less recall, the one with the most."""
    overhead = results.overhead
    faster_rows = [
        other
        for other in _candidates(results)
        if other.recall < row.recall and times_as_fast(other, row, overhead) > MARGIN
    ]
    if not faster_rows:
        if overhead:
            return ["No point with less recall answers a question noticeably sooner (by 5 %)."]
        return ["No measured point is faster with less recall."]
    cheaper = max(faster_rows, key=lambda other: (other.recall, -other.p50_ms.median))
    doubt = "" if faster(cheaper, row, overhead) else ", which is not significant"
    felt = f" ({short(times_as_fast(cheaper, row, overhead))} by question)" if overhead else ""
    return [
        f"The next cheaper point, {cheaper.name}, takes {short(cheaper.p50_ms.median)} ms, "
        f"{short(times_as_fast(cheaper, row))} times as fast{felt}{doubt}, and finds "
        f"{recall_of(cheaper)}, {fraction(row.recall - cheaper.recall)} less."
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


def milliseconds(row: Row, results: Results) -> float:
    """The time of a whole question; for bare vectors that of a search."""
    return results.overhead + row.p50_ms.median


def sentence(results: Results, advice: Recommendation) -> str:
    """What to do, and what it gives."""
    row, k = results.named(advice.name), results.subject.get("k")
    if row is None:
        return advice.why[0]
    now, exact = results.named(results.now), results.exact
    what = "a search" if results.overhead_ms is None else "a question"
    time = f"{what} takes {short(milliseconds(row, results))} ms"
    if now is not None and now is not row:
        whose = "now" if results.subject["path"] else "by default"
        time += f" ({whose} {short(milliseconds(now, results))})"
    gains = []
    if row.kind is not Kind.EXACT:
        gains.append(f"{fraction(row.recall)} of the exact {k} nearest are found")
    if row.ndcg is not None and exact is not None and exact.ndcg is not None:
        compared = "" if row is exact else f" (exact {exact.ndcg:.3f})"
        gains.append(f"nDCG@10 is {row.ndcg:.3f}{compared}")
    if row is exact:
        holding = _holding(results, advice.target)
        gains.append(
            "no point that holds the target is noticeably faster"
            if holding
            else "no other point holds the target"
        )
    if row is now:
        begin = "Leave it as it is" + (", it searches exactly" if row is exact else "")
    else:
        begin = "Search exactly" if row is exact else f"Use {row.name}"
    same = now is not None and (fraction(now.recall), fraction(now.ndcg)) == (
        fraction(row.recall),
        fraction(row.ndcg),
    )
    leave = ""
    if now not in (None, row) and same and not faster(row, now, results.overhead):
        leave = " It gains nothing noticeable: you may as well leave it as it is."
    return f"{begin}: {listed([time, *gains])}.{leave}"


def command(results: Results, advice: Recommendation, folder: Path | None) -> str:
    """The command that applies the recommendation; "" if there is nothing to do.

    `folder`: where results.json is; None: it was not written.
    """
    if folder is None or advice.name is None or advice.name == results.now:
        return ""
    collection = results.subject["path"]
    point = shlex.quote(f"{folder / RESULTS}#{RECOMMENDED}")
    if collection is None:
        return f"searchengine tune COLLECTION --apply {point}  # COLLECTION: one of these vectors"
    return f"searchengine tune {shlex.quote(collection)} --apply {point}"
