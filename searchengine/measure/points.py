"""The points of a bench, measured in turns, round after round.

A tuning finds them and chooses the one to use (searchengine.indexer.tuning.tune), so `bench` names
the point that `tune` applies. The bench adds exact search and what the collection does now, and
measures what a tuning does not: the slowest queries, nDCG.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from searchengine.indexer.arrays import Doubles
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import ALL_ROWS, RotationKind, SegmentConfig, Structure
from searchengine.indexer.errors import TuneError
from searchengine.indexer.segment import Segment
from searchengine.indexer.threads import available_cores, threads
from searchengine.indexer.tuning.tune import (
    AS_FAST,
    Goal,
    OperatingPoint,
    Point,
    Tuning,
    cold_row,
    hot_bytes,
    in_turns,
    recalls,
    tune,
)
from searchengine.measure.bench_data import Dataset
from searchengine.measure.results import EXACT, Results, Row
from searchengine.measure.significance import intervals

TIMED = 100
"""Queries timed one at a time in a round."""
PREFIXES, SHORTLISTS = (64, 128, 256), (2, 5, 10, 20, 50)
"""Measured where too few queries are there for a tuning; SHORTLISTS in multiples of k."""


@dataclass(eq=False, slots=True)
class _Entry:
    """A point and its measurements so far.

    Attributes:
        recall: mean share of the exact rows found, and its 95 % interval.
        ndcg: mean nDCG@10; None without judgements.
        rounds: seconds of the queries, per round.
    """

    name: str
    config: SegmentConfig
    point: OperatingPoint
    recall: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ndcg: float | None = None
    rounds: list[Doubles] = field(default_factory=list)

    def row(self) -> Row:
        """The row of the results."""
        ms, p99 = np.median(np.median(self.rounds, axis=1)), np.percentile(self.rounds, 99)
        times, views = (1e3 * float(ms), 1e3 * float(p99)), self.point.segments
        memory = sum(hot_bytes(view.config, view.rows, view.dim) for view in views)
        if self.point.shortlist is None:  # each query reads all rows
            memory = sum(view.rows * cold_row(view.config, view.dim) for view in views)
        return Row(self.name, self.config, *self.recall, self.ndcg, *times, memory)


def bench(
    dataset: Dataset, goal: Goal, progress: Progress, *, repeats: int = 5
) -> Iterator[Results]:
    """Tune without writing anything, then measure the points worth showing.

    Yields the results after each round, so that an interruption leaves a report.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    goal = replace(goal, k=min(goal.k, dataset.rows))
    tuning = _tuned(dataset, goal, progress)
    entries = _present(dataset, goal.k)
    now = entries[-1].name
    configs = {_name(dataset, each): each for each in _configs(dataset, goal.k, tuning)}
    others = {name: each for name, each in configs.items() if name not in (EXACT, now)}
    entries += _views(dataset, goal.k, others, progress)
    _measure_recall(dataset, entries, progress)
    recommended, why = None, str(tuning)
    curve: tuple[Point, ...] = ()
    if isinstance(tuning, Tuning):
        recommended, curve = _name(dataset, tuning.config), tuning.curve
        why = (
            f"{tuning.held_out:,} held-out queries show that recall@{goal.k} exceeds "
            f"{goal.recall:g} (confidence {goal.confidence:g})."
        )
    subject = {
        **{name: getattr(dataset, name) for name in ("name", "path", "rows", "mode")},
        "dim": dataset.segments[0].dim,
        "queries": len(dataset.queries),
        "k": goal.k,
        "judged": 0 if dataset.judge is None else len(dataset.queries),
    }
    machine = {"processor": processor_name(), "cores": available_cores(), "threads": threads.limit}
    points, total = [entry.point for entry in entries], len(entries) * repeats
    for done, (i, seconds) in enumerate(in_turns(points, dataset.queries[:TIMED], repeats), 1):
        entries[i].rounds.append(seconds)
        progress("measuring", 1, total)
        if done % len(points) == 0:
            yield Results(
                measured_at=started,
                complete=done == total,
                subject=subject,
                machine=machine,
                settings={"repeats": repeats, **asdict(goal)},
                encoding_ms=dataset.encoding_ms,
                now=now,
                recommended=recommended,
                why=why,
                rows=tuple(entry.row() for entry in entries),
                curve=tuple(point.as_dict() for point in curve),
            )


def _tuned(dataset: Dataset, goal: Goal, progress: Progress) -> Tuning | TuneError:
    """The tuning of the queries, or why none of its points holds the goal."""
    pairs = zip(dataset.segments, dataset.live, strict=True)
    filled = [pair for pair in pairs if pair[1] is None or pair[1].size]
    try:
        return tune(
            [segment for segment, _ in filled],
            dataset.queries,
            goal,
            live=[live for _, live in filled],
            on_step=lambda step: progress(step, 1, 1),
            question_ms=dataset.encoding_ms or 0,
        )
    except TuneError as error:
        return error


def _configs(dataset: Dataset, k: int, tuning: Tuning | TuneError) -> Iterator[SegmentConfig]:
    """The configs to measure: of a tuning, the chosen one and those that find most in a time.

    Without a tuning, usual prefixes and shortlists in the structure that there is.
    """
    if isinstance(tuning, Tuning):
        yield tuning.config
        yield from (point.config for point in frontier(tuning.curve))
        return
    rows, dim = dataset.rows, dataset.segments[0].dim
    for prefix in [width for width in PREFIXES if width < dim] or [dim]:
        for shortlist in [k * times for times in SHORTLISTS if k * times <= rows] or [rows]:
            yield replace(dataset.config, stages=(), effort=0, prefix=prefix, shortlist=shortlist)


def _present(dataset: Dataset, k: int) -> list[_Entry]:
    """Exact search, and the point of the collection unless that is exact search."""
    config, segments = dataset.config, dataset.segments
    every = replace(config.scanned(), shortlist=ALL_ROWS, stages=())
    views = tuple(s.over(replace(s.config, shortlist=ALL_ROWS, stages=())) for s in segments)
    exact = _Entry(EXACT, every, OperatingPoint(views, dataset.live, k, None))
    sizes = [max(segment.config.shortlist, k) for segment in segments]
    if all(size >= rows for size, rows in zip(sizes, dataset.sizes, strict=True)):
        return [exact]
    several = "" if min(sizes) == max(sizes) else f"{min(sizes)}–{max(sizes)}"
    if several:  # measured segment by segment
        config = replace(config, shortlist=0)
    name = point_name(config, segments[0].dim, several)
    return [exact, _Entry(name, config, OperatingPoint(segments, dataset.live, k, 0))]


def _views(
    dataset: Dataset, k: int, configs: Mapping[str, SegmentConfig], progress: Progress
) -> Iterator[_Entry]:
    """The points of configs by name, each coarse stage built once."""
    built: dict[SegmentConfig, list[Segment]] = {}
    for name, config in configs.items():
        key = config.coarse_stage()
        if key not in built:
            built[key] = [segment.over(config) for segment in dataset.segments]
            progress(f"building {config.structure} over {config.prefix}", 1, 1)
        views = tuple(segment.over(config) for segment in built[key])  # they share it
        yield _Entry(name, config, OperatingPoint(views, dataset.live, k, config.shortlist))


def _measure_recall(dataset: Dataset, entries: Sequence[_Entry], progress: Progress) -> None:
    """Measure recall and nDCG of every point; the first one is exact search."""
    queries, judge = dataset.queries, dataset.judge
    exact, shares = entries[0].point.search(queries).rows, []
    for entry in entries:
        shares.append(recalls(entry.point.search(queries).rows, exact))
        entry.ndcg = None if judge is None else float(judge(entry.point.segments).mean())
        progress("measuring recall", 1, len(entries))
    for entry, found, (low, high) in zip(entries, shares, intervals(shares), strict=True):
        entry.recall = float(found.mean()), low, high


def _name(dataset: Dataset, config: SegmentConfig) -> str:
    """The name of a config, which is exact search if it passes on all rows."""
    every = all(config.shortlist >= rows for rows in dataset.sizes)
    return EXACT if every else point_name(config, dataset.segments[0].dim)


def frontier(points: Iterable[Point]) -> list[Point]:
    """The points that find more than each faster one, in steps of time that can be told apart."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.ms, -point.recall)):
        if not best or point.recall > best[-1].recall:
            if best and point.ms <= AS_FAST * best[-1].ms:
                best.pop()
            best.append(point)
    return best


def point_name(config: SegmentConfig, dim: int, shortlist: str = "") -> str:
    """The name of an operating point; `shortlist`: text in place of the number."""
    stages = "".join(f" → {width}: {keep}" for width, keep in config.stages)
    name = f"{config.structure} {config.code} {config.prefix}"
    name += f" → {shortlist or config.shortlist}{stages}"
    if config.effort:
        name += f", {'ef' if config.structure is Structure.HNSW else 'lists'} {config.effort}"
    bare = config.rotation is RotationKind.IDENTITY and config.prefix != dim
    return name + (", not rotated" if bare else "")


def processor_name() -> str:
    """The processor's name, from the system; "unknown" if it gives none."""
    cpuinfo = Path("/proc/cpuinfo")  # of Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor()) or "unknown"
