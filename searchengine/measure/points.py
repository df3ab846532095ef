"""The points of a bench, measured in turns, round after round.

A tuning finds them and chooses the one to use (searchengine.indexer.tuning.tune), so `bench` names
the point that `tune` applies. The bench adds exact search and what the collection does now, and
measures what a tuning does not: the slowest queries, nDCG.
"""

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Doubles
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import (
    ALL_ROWS,
    FLAT_BELOW,
    Code,
    RotationKind,
    SegmentConfig,
    Structure,
)
from searchengine.indexer.errors import TuneError
from searchengine.indexer.segment import Segment
from searchengine.indexer.threads import available_cores, threads
from searchengine.indexer.tuning.points import (
    OperatingPoint,
    cold_row,
    hot_bytes,
    in_turns,
    recalls,
)
from searchengine.indexer.tuning.tune import AS_FAST, Goal, Point, Tuning, tune
from searchengine.measure.bench_data import Dataset
from searchengine.measure.results import EXACT, Results, Row
from searchengine.measure.significance import intervals

TIMED = 100
"""Queries timed one at a time in a round."""
PREFIXES, SHORTLISTS = (64, 128, 256), (2, 5, 10, 20, 50)
"""Measured where too few queries are there for a tuning; SHORTLISTS in multiples of k."""
_PACKAGES = ("searchengine", "faiss-cpu", "faiss-gpu", "numpy")


@dataclass(eq=False, slots=True)
class _Entry:
    """A point and its measurements so far.

    Attributes:
        memory, disk: bytes that should stay in memory, and that may stay on disk.
        recall: mean share of the exact rows found, and its 95 % interval.
        ndcg: mean nDCG@10; None without judgements.
        rounds: seconds of the queries, per round.
    """

    name: str
    config: SegmentConfig
    point: OperatingPoint
    memory: int
    disk: int
    recall: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ndcg: float | None = None
    rounds: list[Doubles] = field(default_factory=list)


class Bench:
    """A bench of a data set: `run` measures, `results` returns the results so far."""

    def __init__(
        self, dataset: Dataset, goal: Goal, progress: Progress, *, repeats: int = 5
    ) -> None:
        """`goal`: of the tuning; `repeats`: rounds; `progress`: progress callback."""
        self._dataset, self._repeats, self._progress = dataset, repeats, progress
        self._goal = replace(goal, k=min(goal.k, dataset.rows))
        self._config = max(dataset.segments, key=lambda segment: segment.rows).config
        self._entries: list[_Entry] = []
        self._tuning: Tuning | str = "the bench was interrupted before a point was chosen"
        self._now: str | None = None
        self._started = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self, on_round: Callable[[Results], object] | None = None) -> Results:
        """Tune without writing anything, then measure the points worth showing.

        `on_round` gets the results so far after every round, so that an interruption leaves a
        report.
        """
        report = on_round or (lambda _: None)
        self._tuning = self._tuned()
        self._entries = [*self._present(), *self._views(self._configs())]
        self._measure_recall()
        points, queries = [entry.point for entry in self._entries], self._dataset.queries[:TIMED]
        total = len(points) * self._repeats
        timed = in_turns(points, queries, self._repeats)
        for done, (number, seconds) in enumerate(timed, start=1):
            self._entries[number].rounds.append(seconds)
            self._progress("measuring", 1, total)
            if done % len(points) == 0:
                report(self.results(complete=False))
        return self.results(complete=True)

    def _tuned(self) -> Tuning | str:
        """The tuning of the queries, or why none of its points holds the goal."""
        pairs = zip(self._dataset.segments, self._dataset.live, strict=True)
        filled = [pair for pair in pairs if pair[1] is None or pair[1].size]
        try:
            return tune(
                [segment for segment, _ in filled],
                self._dataset.queries,
                self._goal,
                live=[live for _, live in filled],
                on_step=lambda step: self._progress(step, 1, 1),
                question_ms=self._dataset.encoding_ms or 0,
            )
        except TuneError as error:
            return str(error)

    def _configs(self) -> Iterator[SegmentConfig]:
        """The configs to measure: of a tuning, the chosen one and those that find most in a time.

        Without a tuning, the usual ones of a collection of this size.
        """
        if isinstance(self._tuning, Tuning):
            yield self._tuning.config
            yield from (point.config for point in frontier(self._tuning.curve))
            return
        rows, dim, k = self._dataset.rows, self._dataset.segments[0].dim, self._goal.k
        kind = (Structure.FLAT, Code.FP16) if rows < FLAT_BELOW else (Structure.HNSW, Code.INT8)
        base = replace(self._config, stages=(), effort=0, structure=kind[0], code=kind[1])
        for prefix in [width for width in PREFIXES if width < dim] or [dim]:
            for shortlist in [k * times for times in SHORTLISTS if k * times <= rows] or [rows]:
                yield replace(base, prefix=prefix, shortlist=shortlist)

    def _present(self) -> Iterator[_Entry]:
        """Exact search, and the point of the collection unless that is exact search."""
        data, k, config = self._dataset, self._goal.k, self._config
        every = replace(config.scanned(), shortlist=ALL_ROWS, stages=())
        views = tuple(
            s.over(replace(s.config, shortlist=ALL_ROWS, stages=())) for s in data.segments
        )
        stored = sum(view.rows * cold_row(view.config, view.dim) for view in views)
        scan = OperatingPoint(views, data.live, k, None)
        yield _Entry(EXACT, every, scan, stored, 0)  # each query reads all rows
        self._now, dim = EXACT, data.segments[0].dim
        sizes = [max(segment.config.shortlist, k) for segment in data.segments]
        if all(size >= rows for size, rows in zip(sizes, data.sizes, strict=True)):
            return
        several = "" if min(sizes) == max(sizes) else f"{min(sizes)}–{max(sizes)}"
        if several:  # measured segment by segment
            config = replace(config, shortlist=0)
        self._now = point_name(config, dim, several)
        yield self._entry(self._now, config, OperatingPoint(data.segments, data.live, k, 0))

    def _views(self, configs: Iterable[SegmentConfig]) -> Iterator[_Entry]:
        """The points of configs, each coarse stage built once, without the point of now."""
        built: dict[SegmentConfig, tuple[Segment, ...]] = {}
        data, names = self._dataset, {EXACT, self._now}
        for config in configs:
            name = self._name(config)
            if name in names:
                continue
            names.add(name)
            key = config.coarse_stage()
            if key not in built:
                built[key] = tuple(segment.over(config) for segment in data.segments)
                self._progress(f"building {config.structure} over {config.prefix}", 1, 1)
            views = tuple(segment.over(config) for segment in built[key])  # one coarse stage
            point = OperatingPoint(views, data.live, self._goal.k, config.shortlist)
            yield self._entry(name, config, point)

    @staticmethod
    def _entry(name: str, config: SegmentConfig, point: OperatingPoint) -> _Entry:
        views = point.segments
        size = sum(hot_bytes(view.config, view.rows, view.dim) for view in views)
        stored = sum(view.rows * cold_row(view.config, view.dim) for view in views)
        return _Entry(name, config, point, size, stored)

    def _measure_recall(self) -> None:
        """Measure recall and nDCG of every point."""
        queries, judge = self._dataset.queries, self._dataset.judge
        exact, shares = self._entries[0].point.search(queries).rows, []
        for entry in self._entries:
            shares.append(recalls(entry.point.search(queries).rows, exact))
            entry.ndcg = None if judge is None else float(judge(entry.point.segments).mean())
            self._progress("measuring recall", 1, len(self._entries))
        for entry, found, (low, high) in zip(self._entries, shares, intervals(shares), strict=True):
            entry.recall = float(found.mean()), low, high

    def _name(self, config: SegmentConfig) -> str:
        """The name of a config, which is exact search if it passes on all rows."""
        data = self._dataset
        every = all(config.shortlist >= rows for rows in data.sizes)
        return EXACT if every else point_name(config, data.segments[0].dim)

    def results(self, *, complete: bool) -> Results:
        """Return the results so far."""
        data, tuning = self._dataset, self._tuning
        segment = data.segments[0]
        why = (
            tuning
            if isinstance(tuning, str)
            else (
                f"{tuning.held_out:,} held-out queries show that recall@{self._goal.k} exceeds "
                f"{self._goal.recall:g} (confidence {self._goal.confidence:g})."
            )
        )
        measured = [entry for entry in self._entries if entry.rounds]
        return Results(
            measured_at=self._started,
            complete=complete,
            subject={
                "name": data.name,
                "path": data.path,
                "rows": data.rows,
                "dim": segment.dim,
                "queries": len(data.queries),
                "k": self._goal.k,
                "segments": len(data.segments),
                "storage": str(segment.config.storage),
                "encoder": data.encoder,
                "judged": 0 if data.judge is None else len(data.queries),
                "default_mode": data.default_mode,
                "mode": data.mode,
            },
            machine=machine(),
            settings={"repeats": self._repeats, **asdict(self._goal)},
            encoding_ms=data.encoding_ms,
            now=self._now,
            recommended=None if isinstance(tuning, str) else self._name(tuning.config),
            why=why,
            rows=tuple(map(_row, measured)),
            curve=tuple(point.as_dict() for point in tuning.curve)
            if isinstance(tuning, Tuning)
            else (),
        )


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


def _row(entry: _Entry) -> Row:
    low, ms, high = 1e3 * np.percentile(np.median(entry.rounds, axis=1), (25, 50, 75))
    return Row(
        entry.name,
        entry.config,
        *entry.recall,
        entry.ndcg,
        float(ms),
        float(low),
        float(high),
        1e3 * float(np.percentile(entry.rounds, 99)),
        entry.memory,
        entry.disk,
    )


def processor_name() -> str:
    """The processor's name, from the system; "unknown" if it gives none."""
    cpuinfo = Path("/proc/cpuinfo")  # of Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor()) or "unknown"


def machine() -> dict[str, Any]:
    """Processor, cores, threads of a search, memory (bytes), system, and versions of packages."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": processor_name(),
        "cores": available_cores(),
        "threads": threads.limit,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }
