"""Two benches of the same subject, row by row: what became better or worse, beyond the noise."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from searchengine.bench.formatting import NOTHING, fraction, plain, short
from searchengine.bench.recommend import MARGIN
from searchengine.bench.results import Kind, Results, Row, Spread
from searchengine.errors import QueryError

NDCG_NOISE = 0.005  # a bench keeps no interval of nDCG
BUILD_NOISE = 2.0  # each coarse stage is built once, so that there is no spread to judge by
BATCH_NOISE = 1.15  # one call a round, that may use several threads
PEER_MEMORY_NOISE = 1.1  # what a process took, not what its index needs
RUNNING = ("processor", "cores", "threads", "memory", "system")  # of a machine: what sets its speed
SAME = ("rows", "dim", "k")  # of a subject: what recall and latency depend on most


class Verdict(StrEnum):
    """What a difference amounts to."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "within noise"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Change:
    """One measure of one row, before and after.

    Attributes:
        name: the row's.
        measure: recall, ndcg, p50_ms, speed_up (times as fast as the exact search of the same
            bench), batch_qps, build_s or hot_bytes; "row" for a row that only one side has.
        before, after: its values; None where a side has none.
        ratio: after / before; None for recall and ndcg.
        difference: after - before of recall and ndcg; None for the others.
        verdict: beyond the noise or not.
        note: why it cannot be compared; else empty.
    """

    name: str
    measure: str
    before: float | None
    after: float | None
    ratio: float | None
    difference: float | None
    verdict: Verdict
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"verdict": str(self.verdict)}


def compare(before: Results, after: Results) -> list[Change]:
    """What changed from one bench to the other, row by row in the order of the first.

    The runs are not paired, and the machine may have been busier in one of them. So a row's
    speed is compared twice: in milliseconds, and as times the exact search of its own bench, whose
    load it shared. What counts as a change:

    * recall: a difference greater than sqrt(a^2 + b^2) of the half widths of both 95 % intervals.
      The queries are the same as a rule, so this errs on the side of noise. nDCG: 0.005.
    * p50_ms and speed_up: no round of one side reaches into the rounds of the other (five against
      five: 1 in 126 by chance), and the medians are more than 5 % apart, p50_ms moreover by
      more than exact search is between the two benches: that much was the machine.
    * batch_qps: the quartiles of both sides lie apart, and the medians are more than 15 % apart,
      and more than those of exact search. build_s: twice, told of the first row of every coarse
      stage alone, for the others share it. hot_bytes: any; of another engine, whose process it
      is, 10 %.

    p50_ms, batch_qps and build_s are not comparable across machines, only speed_up is.

    Raises:
        QueryError: the two did not search the same number of rows of the same width for the same k.
    """
    _check(before, after)
    drift, batch_drift = _drift(before, after, _p50), _drift(before, after, _batch, _p50)
    exacts = before.exact, after.exact
    others = {row.name: row for row in after.rows}
    changes: list[Change] = []
    built: set[tuple[str, str, int, bool]] = set()
    for old in before.rows:
        new = others.pop(old.name, None)
        if new is None:
            changes.append(_alone(old.name, "only in the first"))
            continue
        changes += _found(old, new)
        changes += _timed(old, new, drift, batch_drift)
        if _stage(old) not in built:
            changes += _built(old, new, drift)
            built.add(_stage(old))
        changes += _speed_up((old, new), exacts)
        changes += _hot(old, new)
    return [*changes, *(_alone(name, "only in the second") for name in others)]


def remarks(before: Results, after: Results) -> list[str]:
    """What else differs between two benches, a sentence each: machine, versions, subject, ends."""
    said = []
    for what, one, two in (
        ("subject", before.subject, after.subject),
        ("machine", before.machine, after.machine),
    ):
        for name in dict.fromkeys([*one, *two]):
            if one.get(name) != two.get(name):
                said.append(
                    f"{name} of the {what} differs: {plain(one.get(name))} before, "
                    f"{plain(two.get(name))} after."
                )
    if _elsewhere(before, after):
        said.append("The machines differ: only recall, speed_up and hot_bytes can be compared.")
    drift = _ratio(_p50(before.exact), _p50(after.exact))
    if drift is not None and not 1 / MARGIN < drift < MARGIN:
        said.append(f"Exact search took {short(drift)} times as long after as before.")
    for name, side in (("first", before), ("second", after)):
        if not side.complete:
            said.append(f"The {name} bench was interrupted.")
    return said


def table(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The changes as rows of a printed table (`searchengine.cli.console.show_rows`)."""
    return [
        {
            "name": change.name,
            "measure": change.measure,
            "before": _shown(change, change.before),
            "after": _shown(change, change.after),
            "change": _change(change),
            "verdict": f"{change.verdict}: {change.note}" if change.note else str(change.verdict),
        }
        for change in changes
    ]


def _shown(change: Change, value: float | None) -> str:
    if change.measure == "hot_bytes" and value is not None:
        return f"{value:,.0f}"
    return fraction(value) if change.difference is not None else short(value)


def _change(change: Change) -> str:
    if change.difference is not None:
        return f"{change.difference:+.4f}"
    return NOTHING if change.ratio is None else f"× {short(change.ratio)}"


def _check(before: Results, after: Results) -> None:
    differing = [
        f"{name} {plain(before.subject.get(name))} and {plain(after.subject.get(name))}"
        for name in SAME
        if before.subject.get(name) != after.subject.get(name)
    ]
    if differing:
        raise QueryError(
            f"the two benches searched different things ({'; '.join(differing)}); compare benches "
            "of the same rows for the same k"
        )


def _p50(row: Row | None) -> float | None:
    return None if row is None else row.p50_ms.median


def _batch(row: Row | None) -> float | None:
    return None if row is None or row.batch_qps is None else row.batch_qps.median


def _ratio(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before <= 0 else after / before


def _elsewhere(before: Results, after: Results) -> bool:
    return any(before.machine.get(name) != after.machine.get(name) for name in RUNNING)


def _drift(
    before: Results, after: Results, *measures: Callable[[Row | None], float | None]
) -> float | None:
    """How far the first measure of exact search that both have moved, as a ratio of at least 1.

    None on another machine.
    """
    if _elsewhere(before, after):
        return None
    ratios = (_ratio(measure(before.exact), measure(after.exact)) for measure in measures)
    ratio = next(filter(None, ratios), None)
    return max(ratio, 1 / ratio) if ratio else 1.0


def _alone(name: str, where: str) -> Change:
    return Change(name, "row", None, None, None, None, Verdict.NOT_COMPARABLE, where)


def _verdict(sign: float, beyond: bool) -> Verdict:
    """sign: above 0 where the change is for the better."""
    if not beyond or not sign:
        return Verdict.NOISE
    return Verdict.BETTER if sign > 0 else Verdict.WORSE


def _found(old: Row, new: Row) -> Iterator[Change]:
    """Recall and nDCG."""
    half = math.hypot(*((row.recall_high - row.recall_low) / 2 for row in (old, new)))
    measured = [("recall", old.recall, new.recall, half), ("ndcg", old.ndcg, new.ndcg, NDCG_NOISE)]
    for measure, was, now, noise in measured:
        if was is not None and now is not None:
            more = now - was
            verdict = _verdict(more, abs(more) > noise)
            yield Change(old.name, measure, was, now, None, more, verdict)


def _timed(old: Row, new: Row, drift: float | None, batch_drift: float | None) -> Iterator[Change]:
    """What the machine's load moves from round to round: p50_ms and batch_qps."""
    latency = _apart(old.rounds_ms or _ends(old.p50_ms), new.rounds_ms or _ends(new.p50_ms))
    yield _ratioed(old.name, "p50_ms", (_p50(old), _p50(new)), -1, (latency, MARGIN, drift))
    if old.batch_qps is not None and new.batch_qps is not None:
        batch = _apart(_ends(old.batch_qps), _ends(new.batch_qps))
        rates = _batch(old), _batch(new)
        yield _ratioed(old.name, "batch_qps", rates, 1, (batch, BATCH_NOISE, batch_drift))


def _stage(row: Row) -> tuple[str, str, int, bool]:
    """What is built once, and shared by all rows that use it."""
    return row.structure, row.code, row.prefix, row.kind is Kind.TRUNCATED


def _built(old: Row, new: Row, drift: float | None) -> Iterator[Change]:
    if old.build_s is not None and new.build_s is not None:
        seconds = old.build_s, new.build_s
        yield _ratioed(old.name, "build_s", seconds, -1, (True, BUILD_NOISE, drift))


def _ratioed(
    name: str,
    measure: str,
    values: tuple[float | None, float | None],
    towards: int,
    noise: tuple[bool, float, float | None],
) -> Change:
    """A measure compared by its ratio.

    towards: 1 where more is better, -1 where less is. noise: whether the spreads lie apart, the
    ratio that is noise whatever they say, and how far exact search moved (None: elsewhere).
    """
    apart, margin, drift = noise
    was, now = values
    ratio = _ratio(was, now)
    if drift is None or ratio is None or ratio <= 0:
        why = "another machine" if drift is None else "not above 0"
        return Change(name, measure, was, now, ratio, None, Verdict.NOT_COMPARABLE, why)
    moved = math.log(ratio)
    verdict = _verdict(towards * moved, apart and abs(moved) > math.log(max(margin, drift)))
    return Change(name, measure, was, now, ratio, None, verdict)


def _speed_up(rows: tuple[Row, Row], exacts: tuple[Row | None, Row | None]) -> Iterator[Change]:
    """Times as fast as the exact search of the same bench, by round."""
    (old, new), (first, second) = rows, exacts
    if old.kind is Kind.EXACT or first is None or second is None:
        return
    sides = [
        [e / r for e, r in zip(exact.rounds_ms, row.rounds_ms, strict=False)] or _ends(row.measured)
        for exact, row in ((first, old), (second, new))
    ]
    medians = old.measured.median, new.measured.median
    yield _ratioed(old.name, "speed_up", medians, 1, (_apart(*sides), MARGIN, 1.0))


def _hot(old: Row, new: Row) -> Iterator[Change]:
    if old.hot_bytes is not None and new.hot_bytes is not None:
        fewer = old.hot_bytes - new.hot_bytes
        ratio = _ratio(old.hot_bytes, new.hot_bytes)
        noise = PEER_MEMORY_NOISE if old.kind is Kind.PEER else 1.0
        alike = ratio is not None and 1 / noise <= ratio <= noise
        verdict = _verdict(fewer, not alike)
        yield Change(old.name, "hot_bytes", old.hot_bytes, new.hot_bytes, ratio, None, verdict)


def _ends(value: Spread) -> tuple[float, float]:
    return value.low, value.high


def _apart(one: Sequence[float], two: Sequence[float]) -> bool:
    """Whether no value of one side lies within the other's."""
    return max(one) < min(two) or max(two) < min(one)
