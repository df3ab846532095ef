"""The bench: searchers measured in turns, round after round."""

import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Doubles
from searchengine.indexer.building.build import Progress
from searchengine.indexer.threads import available_cores, threads
from searchengine.indexer.tuning.points import recalls
from searchengine.measure.bench_data import Dataset
from searchengine.measure.operating_points import Grid, Searcher, Searchers
from searchengine.measure.results import Kind, Results, Row, Spread
from searchengine.measure.significance import intervals
from searchengine.trainer.processor import processor_name

TIMED = 100
"""Queries timed one at a time in a round."""
TIME_LIMIT = 4.0
"""Seconds of a round per searcher: a slow one gets fewer queries, but at least MIN_TIMED."""
MIN_TIMED = 20
FINALISTS = 8
"""Maximum number of searchers measured in additional rounds: the fastest that meet the target."""
FINALIST_RATIO = 1.5
"""Maximum latency of a finalist, as a multiple of the fastest finalist's."""
OnRound = Callable[[Results], object]
_PACKAGES = ("searchengine", "faiss-cpu", "faiss-gpu", "numpy", "torch")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure.

    Attributes:
        grid: operating points.
        repeats: number of rounds; finalists get twice as many in addition.
        target: target recall.
    """

    grid: Grid
    repeats: int = 5
    target: float = 0.95


@dataclass(eq=False, slots=True)
class _Entry:
    """A searcher and its measurements so far.

    Attributes:
        recall: mean share of the exact rows found, and its 95 % interval.
        ndcg: nDCG@10 of every question; None without judgements.
        ndcg_loss: 95 % interval of how much lower it is than that of exact search; None like it.
        count: number of queries timed in a round.
        rounds: seconds of those queries, per round.
        batches: queries per second in one call, per round.
    """

    searcher: Searcher
    recall: tuple[float, float, float]
    ndcg: Doubles | None
    ndcg_loss: tuple[float, float] | None
    count: int
    rounds: list[Doubles] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)

    @property
    def medians(self) -> list[float]:
        """Median milliseconds of every round."""
        return [1e3 * float(np.median(seconds)) for seconds in self.rounds]


class Bench:
    """A bench of a data set: `run` measures, `results` returns the results so far."""

    def __init__(self, dataset: Dataset, settings: Settings, progress: Progress) -> None:
        """`progress`: progress callback."""
        self._dataset, self._settings, self._progress = dataset, settings, progress
        self._entries: list[_Entry] = []
        self._missing: dict[str, str] = {}  # name of a point that was not measured → reason
        self._now: str | None = None
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._machine = machine()

    def run(self, on_round: OnRound | None = None) -> Results:
        """Measure the operating points of the grid.

        `on_round` gets the results so far after every round, so that an interruption leaves a
        report.
        """
        report = on_round or (lambda _: None)
        searchers = Searchers(self._dataset, self._settings.grid, self._progress)
        searchers.build()
        self._missing |= searchers.missing
        self._now = searchers.now
        self._measure_recall(searchers.searchers)
        repeats = self._settings.repeats
        for number in range(repeats):
            self._round(self._entries, number, "measuring", repeats)
            for entry in self._entries:
                queries = self._dataset.queries[: entry.count]
                (seconds,) = entry.searcher.point.seconds(queries, batch=True)
                entry.batches.append(entry.count / seconds)
            report(self.results(complete=False))
        finalists = self._finalists()
        for number in range(2 * repeats if len(finalists) > 1 else 0):
            self._round(finalists, number, "finals", 2 * repeats)
        report(self.results(complete=False))
        return self.results(complete=True)

    def _measure_recall(self, searchers: Sequence[Searcher]) -> None:
        """Measure recall and nDCG of every searcher, and how many queries fit in a round."""
        dataset = self._dataset
        queries = dataset.queries
        exact = searchers[0].point.search(queries).rows
        shares, ndcgs, counts = [], [], []
        for searcher in searchers:
            rows = searcher.point.search(queries).rows
            seconds = float(searcher.point.seconds(queries[:1])[0])
            shares.append(recalls(rows, exact))
            if dataset.judge is not None:
                ndcgs.append(dataset.judge(searcher.point.segments))
            count = max(MIN_TIMED, min(TIMED, round(TIME_LIMIT / max(seconds, 1e-9))))
            counts.append(min(count, len(queries)))
            self._progress("measuring recall", 1, len(searchers))
        losses = intervals([ndcgs[0] - ndcg for ndcg in ndcgs]) if ndcgs else []
        for i, (low, high) in enumerate(intervals(shares)):
            recall = float(shares[i].mean()), low, high
            ndcg, loss = (ndcgs[i], losses[i]) if ndcgs else (None, None)
            self._entries.append(_Entry(searchers[i], recall, ndcg, loss, counts[i]))

    def _round(self, entries: Sequence[_Entry], number: int, step: str, rounds: int) -> None:
        """Measure every entry once; each round begins with a different entry."""
        start = number * len(entries) // rounds
        for entry in (*entries[start:], *entries[:start]):
            queries = self._dataset.queries[: entry.count]
            entry.rounds.append(entry.searcher.point.seconds(queries))
            self._progress(step, 1, len(entries) * rounds)

    def _finalists(self) -> list[_Entry]:
        """The fastest searchers that meet the target."""
        own = [e for e in self._entries if e.searcher.fields["kind"] is not Kind.EXACT]
        target = self._settings.target
        least = min((e.recall[0] for e in own if e.recall[1] >= target), default=math.inf)
        medians = {e: float(np.median(e.medians)) for e in own if e.recall[0] >= least}
        limit = FINALIST_RATIO * min(medians.values(), default=0)
        fastest = sorted(medians, key=medians.__getitem__)[:FINALISTS]
        return [entry for entry in fastest if medians[entry] <= limit]

    def results(self, *, complete: bool) -> Results:
        """Return the results so far."""
        dataset, grid = self._dataset, self._settings.grid
        segment = dataset.segments[0]
        reference = self._entries[0].medians if self._entries else []
        return Results(
            measured_at=self._started,
            complete=complete,
            subject={
                "name": dataset.name,
                "path": dataset.path,
                "rows": dataset.rows,
                "dim": segment.dim,
                "queries": len(dataset.queries),
                "k": grid.k,
                "segments": len(dataset.segments),
                "storage": str(segment.config.storage),
                "encoder": dataset.encoder,
                "judged": dataset.judged,
                "default_mode": dataset.default_mode,
                "mode": dataset.mode,
            },
            machine=self._machine,
            settings={
                "repeats": self._settings.repeats,
                "target": self._settings.target,
                **asdict(grid),
            },
            overhead_ms=dataset.overhead_ms,
            now=self._now,
            rows=tuple(
                _row(entry, reference, self._settings.repeats)
                for entry in self._entries
                if entry.rounds
            ),
            missing=dict(self._missing),
        )


def _row(entry: _Entry, reference: Sequence[float], shared: int) -> Row:
    """The results of an entry.

    `reference`: median milliseconds of exact search, per round. `shared`: number of rounds of all
    entries; latencies of the finals, perhaps at a busier time, do not compare with them.
    """
    recall, low, high = entry.recall
    medians = entry.medians
    rounds = entry.rounds[:shared]
    percentiles = 1e3 * np.percentile(rounds, (50, 95, 99), axis=1)
    speedups = [exact / median for exact, median in zip(reference, medians, strict=False)]
    fields: dict[str, Any] = entry.searcher.fields
    return Row(
        **fields,
        recall=recall,
        recall_low=low,
        recall_high=high,
        ndcg=None if entry.ndcg is None else float(np.mean(entry.ndcg)),
        ndcg_loss=entry.ndcg_loss,
        p50_ms=Spread.from_values(percentiles[0].tolist()),
        p95_ms=Spread.from_values(percentiles[1].tolist()),
        p99_ms=Spread.from_values(percentiles[2].tolist()),
        rounds_ms=tuple(medians),
        batch_qps=Spread.from_values(entry.batches) if entry.batches else None,
        measured=Spread.from_values(speedups),
    )


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
