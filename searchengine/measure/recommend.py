"""The recommended operating point, and what a reader learns of it in ten seconds.

What a user waits for is the encoding of the question and the search. Where the encoding takes
4 ms, 0.1 and 0.2 ms of search feel the same, and the point that finds more is recommended.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from searchengine.measure.formatting import (
    NOTHING,
    fraction,
    listed,
    plain,
    recall_of,
    short,
    size,
    spread_of,
)
from searchengine.measure.results import CONFIGURED, Kind, Results, Row

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
    """Recommend the best of the fastest rows that hold the target.

    Speed is compared by shared rounds (`times_as_fast`), with the time to encode a question added
    to both. Rows tie for the first place if no row that holds the target is faster (`faster`);
    without encoding, only those that were measured in the most rounds. Ties that lose nDCG@10
    against exact search beyond doubt are left out if others do not, then ties with a lower recall
    beyond doubt. Of the rest, those with the fewest hot bytes (within 10 %) remain; of these the
    highest recall wins, then the fewest multiply-adds, then the shortest median. The winner must be
    faster than exact search, which is recommended otherwise. Prefixes without rotation are
    considered only if there are no others.
    """
    holding = _holding(results, target)
    if not holding:
        return _nothing_holds(results, target)
    exact, encoding = results.exact, _encoding(results)
    ties = [
        row for row in _ties(holding, encoding) if exact is None or faster(row, exact, encoding)
    ]
    if not ties:
        assert exact is not None  # without it nothing is left out
        return _as_fast(results, target, exact, holding[0])
    chosen = _preferred(ties)
    tied = tuple(row.name for row in ties if row is not chosen)
    why = [
        *_recall_and_latency(chosen, results),
        *_speed(chosen),
        f"It needs {size(chosen.hot_bytes)} in memory; {size(chosen.cold_bytes)} may stay on disk.",
        *_tied(chosen, tied, encoding),
        *_cheaper(chosen, results),
        *_doubts(results),
    ]
    return Recommendation(target, chosen.name, tied, tuple(why))


def ranked(results: Results, target: float = 0.95) -> tuple[tuple[str, ...], ...]:
    """The rows that hold the target, in groups of ties, fastest group first.

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


def faster(first: Row, second: Row, encoding: float = 0) -> bool:
    """True if the first row is significantly faster than the second; False both ways is a tie.

    `encoding`: milliseconds that every question takes besides.

    Rounds are compared in pairs, because the machine's load affected both. The median ratio must
    exceed 1.05, and its interval must exceed 1. The interval is that of the sign test: from the
    (d + 1)-th smallest to the (d + 1)-th largest ratio, d the largest number with
    2 P(Bin(n, 1/2) <= d) <= 5 %; it assumes no distribution (Conover, Practical Nonparametric
    Statistics, section 3.2). d is at least a fifth of the rounds, so that one of five rounds may
    contradict the others: if two rows are equally fast, four or five of five rounds favour a given
    one in 19 of 100 cases, and the median ratio then seldom exceeds 1.05. One or two rounds, of an
    interrupted bench, must all exceed 1.5.
    """
    ratios = sorted(_ratios(first, second, encoding))
    if len(ratios) < _MIN_ROUNDS:
        return bool(ratios) and ratios[0] > FEW_MARGIN
    outside = max(_cut(len(ratios)), len(ratios) // _OUTLIER_SHARE)
    return median(ratios) > MARGIN and ratios[outside] > 1


def times_as_fast(first: Row, second: Row, encoding: float = 0) -> float:
    """The speed of the first row relative to the second: the median ratio of their rounds.

    `encoding` as for `faster`.
    """
    ratios = _ratios(first, second, encoding)
    if not ratios:
        return (second.p50_ms.median + encoding) / (first.p50_ms.median + encoding)
    return median(ratios)


def _ratios(first: Row, second: Row, encoding: float) -> list[float]:
    """Ratios by round; the additional rounds of finalists come after the shared ones."""
    rounds = zip(first.rounds_ms, second.rounds_ms, strict=False)
    return [(b + encoding) / (a + encoding) for a, b in rounds]


def _encoding(results: Results) -> float:
    """Milliseconds to encode a question, which every row takes besides; 0 for bare vectors."""
    return 0.0 if results.encode_ms is None else results.encode_ms.median


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


def _ties(holding: Sequence[Row], encoding: float) -> list[Row]:
    """The rows that tie for the first place, fastest first.

    Without encoding, only finalists: other rows were measured in few rounds, where one noisy round
    makes a tie. Interrupted finals leave some finalists one round short.
    """
    unbeaten = [
        row for row in holding if not any(faster(other, row, encoding) for other in holding)
    ]
    if not unbeaten:
        return [holding[0]]  # three rows that beat each other in a circle: very unlikely
    if encoding:
        return unbeaten
    most = max(len(row.rounds_ms) for row in unbeaten)
    return [row for row in unbeaten if len(row.rounds_ms) >= most - 1]


def _preferred(ties: Sequence[Row]) -> Row:
    """The best of equally fast rows: by nDCG and recall beyond doubt, by memory, by recall."""
    lossless = [row for row in ties if row.ndcg_loss is None or row.ndcg_loss[0] <= 0] or ties
    surest = max(row.recall_low for row in lossless)
    good = [row for row in lossless if row.recall_high >= surest]
    least = min(row.hot_bytes for row in good)
    light = [row for row in good if row.hot_bytes <= _MEMORY_MARGIN * least]

    def order(row: Row) -> tuple[float, float, float, str]:
        adds = math.inf if row.multiply_adds is None else row.multiply_adds
        return -row.recall, adds, row.p50_ms.median, row.name

    return min(light, key=order)


def _as_fast(results: Results, target: float, exact: Row, first: Row) -> Recommendation:
    """Recommend exact search, because no row that holds the target is faster."""
    k, rows = results.subject.get("k"), plain(results.subject.get("rows"))
    why = [
        f"Search exactly: with {spread_of(exact.p50_ms)} ms per query over {rows} rows, exact "
        f"search is as fast as any point that holds recall@{k} ≥ {target:g}.",
        f"The fastest of those is {first.name}, with recall {recall_of(first)} in "
        f"{spread_of(first.p50_ms)} ms per query: {short(times_as_fast(first, exact))} times as "
        "fast as exact search",
    ]
    encoding = _encoding(results)
    if encoding and faster(first, exact):
        gain = 100 * (1 - 1 / times_as_fast(first, exact, encoding))
        why[1] += (
            f", but with the {short(encoding)} ms that encoding takes, a question is answered only "
            f"{gain:.1f} % sooner."
        )
    else:
        why[1] += ", which is not significant."
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
        doubt = ""
        if row.ndcg_loss is not None and row.ndcg_loss[0] > 0:
            doubt = "; the loss is beyond doubt, and every point without it is slower"
        sentences.append(
            f"Its nDCG@10 is {row.ndcg:.3f}, that of exact search {exact.ndcg:.3f}{doubt}."
        )
    return sentences


def _speed(row: Row) -> list[str]:
    measured = f"It is {spread_of(row.measured)} times as fast as exact search"
    if row.theoretical is None:
        return [f"{measured}."]
    if row.theoretical >= 1:
        work = f"{short(row.theoretical)} times fewer multiply-adds"
    else:
        work = f"{short(1 / row.theoretical)} times as many multiply-adds"
    return [f"{measured}, and computes {work}."]


def _tied(row: Row, tied: Sequence[str], encoding: float) -> list[str]:
    if not tied:
        return []
    names = [row.name, *tied]
    named, more = names[:_NAMED_TIES], len(names) - _NAMED_TIES
    if more > 0:
        named.append(f"{more} more (≈ in the table)")
    besides = f"With {short(encoding)} ms of encoding, the" if encoding else "The"
    return [
        f"{besides} speeds of {listed(named)} do not differ significantly; quality where it "
        "differs beyond doubt, then memory, then recall decided between them."
    ]


def _cheaper(row: Row, results: Results) -> list[str]:
    """The loss of the next faster row: of those with less recall, the one with the most."""
    encoding = _encoding(results)
    faster_rows = [
        other
        for other in _candidates(results)
        if other.recall < row.recall and times_as_fast(other, row, encoding) > MARGIN
    ]
    if not faster_rows:
        if encoding:
            return ["No point with less recall answers a question noticeably sooner (by 5 %)."]
        return ["No measured point is faster with less recall."]
    cheaper = max(faster_rows, key=lambda other: (other.recall, -other.p50_ms.median))
    doubt = "" if faster(cheaper, row, encoding) else ", which is not significant"
    felt = f" ({short(times_as_fast(cheaper, row, encoding))} with encoding)" if encoding else ""
    return [
        f"The next cheaper point, {cheaper.name}, takes {short(cheaper.p50_ms.median)} ms, "
        f"{short(times_as_fast(cheaper, row))} times as fast{felt}{doubt}, and finds "
        f"{recall_of(cheaper)}, {fraction(row.recall - cheaper.recall)} less."
    ]


def command(row: Row, results: Results) -> str:
    """The command that makes a collection search like this row; "" if there is nothing to do.

    An index config is part of a collection from the beginning. One that is there finds its own, by
    the same measure.
    """
    name = str(results.subject.get("name"))
    if not row.candidate or row.name.startswith(CONFIGURED):
        return ""
    if results.subject.get("encoder"):
        return f"searchengine tune {shlex.quote(name)}"
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
    flags = " ".join(f"--{option} {value}" for option, value in options.items())
    return f"searchengine index {shlex.quote(name)} COLLECTION {flags}"


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


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a bench.

    Attributes:
        sentence: what to use, and what it gives.
        heads: column heads; the first column says what a row is.
        rows: the cells of now, recommended and exact, in this order; those that are one are one.
        chosen: the position of the recommended row; None if nothing is recommended.
        reading: how the name of a cascade is read; "" if none is in the table.
        command: to copy; "" if nothing is to be done.
    """

    sentence: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    chosen: int | None
    reading: str
    command: str

    def lines(self) -> list[dict[str, str | None]]:
        """The rows of the table for a terminal."""
        cells = ([None if cell == NOTHING else cell for cell in row] for row in self.rows)
        return [dict(zip(self.heads, row, strict=True)) for row in cells]


def answer(results: Results, advice: Recommendation) -> Answer:
    """The answer for a recommendation."""
    recommended = next((row for row in results.rows if row.name == advice.name), None)
    configured = (row for row in results.rows if row.name.startswith(CONFIGURED))
    labels: dict[str, list[str]] = {}
    shown: dict[str, Row] = {}
    now = "now" if results.subject.get("encoder") else "default"
    for label, row in (
        (now, next(configured, None)),
        ("recommended", recommended),
        ("exact", results.exact),
    ):
        if row is not None:
            shown[row.name] = row
            labels.setdefault(row.name, []).append(label)
    judged = any(row.ndcg is not None for row in shown.values())
    cells = [_cells(labels[name], row, results, judged) for name, row in shown.items()]
    heads = ["", "operating point", *(["question, ms"] if results.encode_ms else ["search, ms"])]
    heads += [f"recall@{results.subject.get('k')}", *(["nDCG@10"] if judged else []), "in memory"]
    first = sorted(shown.values(), key=lambda row: row is not recommended)
    cascade = next((row for row in first if row.kind is Kind.CASCADE), None)
    return Answer(
        _sentence(results, recommended, advice),
        tuple(heads),
        tuple(cells),
        None if recommended is None else list(shown).index(recommended.name),
        "" if cascade is None else _reading(cascade),
        "" if recommended is None else command(recommended, results),
    )


def _cells(labels: list[str], row: Row, results: Results, judged: bool) -> tuple[str, ...]:
    name = row.name.removeprefix(CONFIGURED).removeprefix(": ")
    cells = [" = ".join(labels), name, short(_milliseconds(row, results)), fraction(row.recall)]
    return (*cells, *([fraction(row.ndcg)] if judged else []), size(row.hot_bytes))


def _milliseconds(row: Row, results: Results) -> float:
    """The time of a question: with its encoding, where it was measured."""
    encoding = 0.0 if results.encode_ms is None else results.encode_ms.median
    return encoding + row.p50_ms.median


def _sentence(results: Results, row: Row | None, advice: Recommendation) -> str:
    exact, k = results.exact, results.subject.get("k")
    if row is None:
        return advice.why[0]
    what = "a search" if results.encode_ms is None else "a question, with its encoding,"
    time = f"{what} takes {short(_milliseconds(row, results))} ms"
    if row.kind is Kind.EXACT:
        return f"Leave it, search exactly: {time}, and nothing measured is noticeably faster."
    if exact is not None:
        time += f" instead of {short(_milliseconds(exact, results))}"
    quality = f"{fraction(row.recall)} of the exact {k} nearest are found"
    if row.ndcg is not None and exact is not None and exact.ndcg is not None:
        quality += f" (nDCG@10 {row.ndcg:.3f}, exact {exact.ndcg:.3f})"
    begin = "Leave it as it is" if row.name.startswith(CONFIGURED) else f"Use {row.name}"
    return f"{begin}: {time}, and {quality}."


def _reading(row: Row) -> str:
    return (
        f"{row.prefix} → {row.shortlist}: the first {row.prefix} numbers of each vector choose a "
        f"shortlist of {row.shortlist}, which is reranked at full width."
    )
