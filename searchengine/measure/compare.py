"""Comparison of two benches of the same data: changes beyond the noise, row by row."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from searchengine.errors import QueryError
from searchengine.measure.formatting import NOTHING, fraction, plain, short
from searchengine.measure.recommend import MARGIN
from searchengine.measure.results import Kind, Results, Row, Spread

NDCG_NOISE = 0.005  # a bench has no interval of nDCG
BUILD_NOISE = 2.0  # every coarse stage is built once, without a spread
BATCH_NOISE = 1.15  # one call per round, perhaps on several threads
PEER_MEMORY_NOISE = 1.1  # memory of a process, not of its index alone
MACHINE = ("processor", "cores", "threads", "memory", "system")  # fields that determine speed
MUST_MATCH = ("rows", "dim", "k")  # fields that determine recall and latency


class Verdict(StrEnum):
    """The meaning of a difference."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "within noise"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Change:
    """One measure of one row, before and after.

    Attributes:
        name: name of the row.
        measure: recall, ndcg, p50_ms, speed_up (times as fast as the exact search of the same
            bench), batch_qps, build_s or hot_bytes; "row" for a row that only one side has.
        before, after: its values; None if a side has none.
        ratio: after / before; None for recall and ndcg.
        difference: after - before of recall and ndcg; None for the others.
        verdict: better, worse, within noise or not comparable.
        note: reason why it cannot be compared; else empty.
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
    """The changes from one bench to another, row by row in the order of the first.

    The runs are not paired, and the machine may have been busier in one of them. So the speed of a
    row is compared twice: in milliseconds, and relative to the exact search of its own bench, which
    had the same load. A difference counts as a change if it exceeds these limits:

    * recall: sqrt(a^2 + b^2) of the half widths of both 95 % intervals. The queries are usually the
      same, so the limit is conservative. nDCG: 0.005.
    * p50_ms and speed_up: the rounds of both sides do not overlap (of five against five, 1 in 126
      by chance), and the medians differ by more than 5 %; p50_ms also by more than exact search
      differs between the benches, which is the machine's share.
    * batch_qps: the quartiles of both sides do not overlap, and the medians differ by more than
      15 %, and by more than those of exact search. build_s: factor 2, reported once per coarse
      stage. hot_bytes: any difference; of a peer, whose whole process counts, 10 %.

    Across machines only speed_up is comparable, not p50_ms, batch_qps and build_s.

    Raises:
        QueryError: number of rows, dimensions or k differ.
    """
    _check(before, after)
    drift, batch_drift = _drift(before, after, _p50), _drift(before, after, _batch, _p50)
    exacts = before.exact, after.exact
    after_rows = {row.name: row for row in after.rows}
    changes: list[Change] = []
    reported: set[tuple[str, str, int, bool]] = set()
    for old in before.rows:
        new = after_rows.pop(old.name, None)
        if new is None:
            changes.append(_alone(old.name, "only in the first"))
            continue
        changes += _quality(old, new)
        changes += _speed(old, new, drift, batch_drift)
        if _stage(old) not in reported:
            changes += _build_time(old, new, drift)
            reported.add(_stage(old))
        changes += _speed_up((old, new), exacts)
        changes += _hot(old, new)
    return [*changes, *(_alone(name, "only in the second") for name in after_rows)]


def differences(before: Results, after: Results) -> list[str]:
    """Further differences of two benches, one sentence each: data, machine, versions, ends."""
    sentences = []
    for section, one, two in (
        ("data", before.subject, after.subject),
        ("machine", before.machine, after.machine),
    ):
        for name in dict.fromkeys([*one, *two]):
            if one.get(name) != two.get(name):
                sentences.append(
                    f"{name} of the {section} differs: {plain(one.get(name))} before, "
                    f"{plain(two.get(name))} after."
                )
    if _machines_differ(before, after):
        sentences.append("The machines differ: only recall, speed_up and hot_bytes are comparable.")
    drift = _ratio(_p50(before.exact), _p50(after.exact))
    if drift is not None and not 1 / MARGIN < drift < MARGIN:
        sentences.append(f"Exact search took {short(drift)} times as long after as before.")
    for name, side in (("first", before), ("second", after)):
        if not side.complete:
            sentences.append(f"The {name} bench was interrupted.")
    return sentences


def table(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The changes as rows of a printed table (`searchengine.cli.console.show_rows`)."""
    return [
        {
            "name": change.name,
            "measure": change.measure,
            "before": _value(change, change.before),
            "after": _value(change, change.after),
            "change": _change(change),
            "verdict": f"{change.verdict}: {change.note}" if change.note else str(change.verdict),
        }
        for change in changes
    ]


def _value(change: Change, value: float | None) -> str:
    if change.measure == "hot_bytes" and value is not None:
        return f"{value:,.0f}"
    return fraction(value) if change.difference is not None else short(value)


def _change(change: Change) -> str:
    if change.difference is not None:
        return f"{change.difference:+.4f}"
    return NOTHING if change.ratio is None else f"× {short(change.ratio)}"


def __getattr__(name: str) -> object:
    """Former names, for one more release."""
    if name == "remarks":
        warnings.warn("remarks is now differences", DeprecationWarning, stacklevel=2)
        return differences
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check(before: Results, after: Results) -> None:
    differing = [
        f"{name} {plain(before.subject.get(name))} and {plain(after.subject.get(name))}"
        for name in MUST_MATCH
        if before.subject.get(name) != after.subject.get(name)
    ]
    if differing:
        raise QueryError(
            f"the two benches must have the same rows, dimensions and k, got {'; '.join(differing)}"
        )


def _p50(row: Row | None) -> float | None:
    return None if row is None else row.p50_ms.median


def _batch(row: Row | None) -> float | None:
    return None if row is None or row.batch_qps is None else row.batch_qps.median


def _ratio(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before <= 0 else after / before


def _machines_differ(before: Results, after: Results) -> bool:
    return any(before.machine.get(name) != after.machine.get(name) for name in MACHINE)


def _drift(
    before: Results, after: Results, *measures: Callable[[Row | None], float | None]
) -> float | None:
    """The change of exact search, as a ratio of at least 1, by the first measure that both have.

    None if the machines differ.
    """
    if _machines_differ(before, after):
        return None
    ratios = (_ratio(measure(before.exact), measure(after.exact)) for measure in measures)
    ratio = next(filter(None, ratios), None)
    return max(ratio, 1 / ratio) if ratio else 1.0


def _alone(name: str, where: str) -> Change:
    return Change(name, "row", None, None, None, None, Verdict.NOT_COMPARABLE, where)


def _verdict(sign: float, beyond: bool) -> Verdict:
    """sign: above 0 for an improvement."""
    if not beyond or not sign:
        return Verdict.NOISE
    return Verdict.BETTER if sign > 0 else Verdict.WORSE


def _quality(old: Row, new: Row) -> Iterator[Change]:
    """Recall and nDCG."""
    half = math.hypot(*((row.recall_high - row.recall_low) / 2 for row in (old, new)))
    measured = [("recall", old.recall, new.recall, half), ("ndcg", old.ndcg, new.ndcg, NDCG_NOISE)]
    for measure, was, now, noise in measured:
        if was is not None and now is not None:
            difference = now - was
            verdict = _verdict(difference, abs(difference) > noise)
            yield Change(old.name, measure, was, now, None, difference, verdict)


def _speed(old: Row, new: Row, drift: float | None, batch_drift: float | None) -> Iterator[Change]:
    """p50_ms and batch_qps, which depend on the machine's load."""
    latency = _apart(old.rounds_ms or _ends(old.p50_ms), new.rounds_ms or _ends(new.p50_ms))
    yield _ratio_change(old.name, "p50_ms", (_p50(old), _p50(new)), -1, (latency, MARGIN, drift))
    if old.batch_qps is not None and new.batch_qps is not None:
        batch = _apart(_ends(old.batch_qps), _ends(new.batch_qps))
        rates = _batch(old), _batch(new)
        yield _ratio_change(old.name, "batch_qps", rates, 1, (batch, BATCH_NOISE, batch_drift))


def _stage(row: Row) -> tuple[str, str, int, bool]:
    """Identity of the coarse stage, which is built once for all its rows."""
    return row.structure, row.code, row.prefix, row.kind is Kind.TRUNCATED


def _build_time(old: Row, new: Row, drift: float | None) -> Iterator[Change]:
    if old.build_s is not None and new.build_s is not None:
        seconds = old.build_s, new.build_s
        yield _ratio_change(old.name, "build_s", seconds, -1, (True, BUILD_NOISE, drift))


def _ratio_change(
    name: str,
    measure: str,
    values: tuple[float | None, float | None],
    direction: int,
    noise: tuple[bool, float, float | None],
) -> Change:
    """A measure compared by its ratio.

    direction: 1 if more is better, -1 if less is. noise: True if the spreads do not overlap; the
    largest ratio that counts as noise; and the change of exact search (None: another machine).
    """
    apart, margin, drift = noise
    was, now = values
    ratio = _ratio(was, now)
    if drift is None or ratio is None or ratio <= 0:
        reason = "another machine" if drift is None else "not above 0"
        return Change(name, measure, was, now, ratio, None, Verdict.NOT_COMPARABLE, reason)
    change = math.log(ratio)
    verdict = _verdict(direction * change, apart and abs(change) > math.log(max(margin, drift)))
    return Change(name, measure, was, now, ratio, None, verdict)


def _speed_up(rows: tuple[Row, Row], exacts: tuple[Row | None, Row | None]) -> Iterator[Change]:
    """Speed relative to the exact search of the same bench, by round."""
    (old, new), (first, second) = rows, exacts
    if old.kind is Kind.EXACT or first is None or second is None:
        return
    sides = [
        [e / r for e, r in zip(exact.rounds_ms, row.rounds_ms, strict=False)] or _ends(row.measured)
        for exact, row in ((first, old), (second, new))
    ]
    medians = old.measured.median, new.measured.median
    yield _ratio_change(old.name, "speed_up", medians, 1, (_apart(*sides), MARGIN, 1.0))


def _hot(old: Row, new: Row) -> Iterator[Change]:
    if old.hot_bytes is not None and new.hot_bytes is not None:
        saved = old.hot_bytes - new.hot_bytes
        ratio = _ratio(old.hot_bytes, new.hot_bytes)
        noise = PEER_MEMORY_NOISE if old.kind is Kind.PEER else 1.0
        similar = ratio is not None and 1 / noise <= ratio <= noise
        verdict = _verdict(saved, not similar)
        yield Change(old.name, "hot_bytes", old.hot_bytes, new.hot_bytes, ratio, None, verdict)


def _ends(value: Spread) -> tuple[float, float]:
    return value.low, value.high


def _apart(one: Sequence[float], two: Sequence[float]) -> bool:
    """True if the ranges of both sides do not overlap."""
    return max(one) < min(two) or max(two) < min(one)
