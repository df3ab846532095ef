"""The bench: searchers measured in turns, round after round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Doubles, RowNumbers, evenly
from searchengine.indexer.building.build import Progress
from searchengine.indexer.tuning.points import ColdRows, recalls
from searchengine.measure.dataset import Dataset
from searchengine.measure.grid import Grid
from searchengine.measure.growth import PARTS, growth
from searchengine.measure.machine import machine
from searchengine.measure.peers import PeerFailed
from searchengine.measure.recommend import recommend
from searchengine.measure.results import Growth, Kind, Results, Row, Spread
from searchengine.measure.searchers import PointSearcher, Searcher, Searchers
from searchengine.measure.significance import intervals

TIMED = 100
"""Queries timed one at a time in a round."""
TIME_LIMIT = 4.0
"""Seconds of a round per searcher: a slow one gets fewer queries, but at least MIN_TIMED. It also
limits the cold queries of a searcher."""
MIN_TIMED = 20
FINALISTS = 8
"""Maximum number of searchers measured in additional rounds: the fastest that meet the target."""
FINALIST_RATIO = 1.5
"""Maximum latency of a finalist, as a multiple of the fastest one's."""
OnRound = Callable[[Results], object]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure.

    Attributes:
        grid: operating points.
        repeats: number of rounds; finalists get twice as many in addition.
        cold: maximum number of cold queries per operating point; 0 measures none.
        growth: measure on samples of the rows.
        target: target recall.
    """

    grid: Grid
    repeats: int = 5
    cold: int = 5
    growth: bool = True
    target: float = 0.95


@dataclass(eq=False)
class _Entry:
    """A searcher and its measurements so far.

    Attributes:
        recall: mean share of the exact rows found, and its 95 % interval.
        ndcg: nDCG@10 of every question; None without judgements.
        ndcg_loss: 95 % interval of how much lower it is than that of exact search; None like it.
        count: number of queries timed in a round.
        rounds: seconds of those queries, per round.
        batches: queries per second in one call, per round.
        cold: seconds and pages read, per cold query.
    """

    searcher: Searcher
    recall: tuple[float, float, float]
    ndcg: Doubles | None
    ndcg_loss: tuple[float, float] | None
    count: int
    rounds: list[Doubles] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    cold: list[tuple[float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the row."""
        return str(self.searcher.fields["name"])

    def measure_round(self) -> None:
        """Measure another round."""
        self.rounds.append(self.searcher.one_by_one(self.count)[1])

    def measure_batch(self) -> None:
        """Measure the timed queries in one call."""
        rows, seconds = self.searcher.at_once(self.count)
        self.batches.append(len(rows) / seconds)

    @property
    def medians(self) -> list[float]:
        """Median milliseconds of every round."""
        return [1e3 * float(np.median(seconds)) for seconds in self.rounds]


class Bench:
    """A bench of a data set: `run` measures, `results` returns the results so far."""

    def __init__(
        self,
        dataset: Dataset,
        settings: Settings,
        scratch: Path,
        progress: Progress,
        missing: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`scratch`: folder for built structures; `progress`: progress callback.

        missing: names of measurements that are left out → reasons.
        """
        self._dataset, self._settings = dataset, settings
        self._scratch, self._progress = scratch, progress
        self._entries: list[_Entry] = []
        self._growth: list[Growth] = []
        self._missing = dict(missing)
        self._made = datetime.now(UTC).isoformat(timespec="seconds")
        self._machine = machine()

    def run(self, peers: Sequence[Searcher] = (), on_round: OnRound | None = None) -> Results:
        """Measure the operating points of the grid, and peers.

        `on_round` gets the results so far after every round, so that an interruption leaves a
        report.
        """
        report = on_round or (lambda _: None)
        searchers = Searchers(self._dataset, self._settings.grid, self._scratch, self._progress)
        searchers.build()
        self._missing |= searchers.missing
        self._enter([*searchers.searchers, *peers])
        for turn in range(self._settings.repeats):
            self._round(self._entries, turn, "measuring", self._settings.repeats)
            for entry in [*self._entries]:
                self._try(entry, entry.measure_batch)
            report(self.results(complete=False))
        finalists = self._finalists()
        for turn in range(2 * self._settings.repeats if len(finalists) > 1 else 0):
            self._round(finalists, turn, "finals", 2 * self._settings.repeats)
        report(self.results(complete=False))
        self._measure_cold()
        report(self.results(complete=False))
        if self._settings.growth:
            self._measure_growth()
        return self.results(complete=True)

    def _points(self) -> list[tuple[_Entry, PointSearcher]]:
        """The entries of operating points, without peers."""
        pairs = ((entry, entry.searcher) for entry in self._entries)
        return [
            (entry, searcher) for entry, searcher in pairs if isinstance(searcher, PointSearcher)
        ]

    def _enter(self, searchers: Sequence[Searcher]) -> None:
        """Measure the recall of every searcher, and how many queries fit in a round."""
        exact: RowNumbers | None = None
        shares, entered = [], []
        for searcher in searchers:
            try:
                rows, _ = searcher.at_once(len(self._dataset.queries))
                seconds = float(searcher.one_by_one(1)[1][0])
            except PeerFailed as error:
                self._missing[searcher.fields["name"]] = str(error)
                continue
            exact = rows if exact is None else exact
            judge = self._dataset.judge
            deeper = searcher.deeper(len(self._dataset.queries))
            ndcg = None if judge is None else judge(chain([rows], deeper))
            count = max(MIN_TIMED, min(TIMED, round(TIME_LIMIT / max(seconds, 1e-9))))
            shares.append(recalls(rows, exact))
            entered.append((searcher, ndcg, min(count, len(self._dataset.queries))))
            self._progress("measuring recall", 1, len(searchers))
        losses: list[tuple[float, float] | None] = [None] * len(entered)
        judged = [(i, ndcg) for i, (_, ndcg, _) in enumerate(entered) if ndcg is not None]
        if judged:  # exact search first
            lower = intervals([judged[0][1] - ndcg for _, ndcg in judged])
            for (i, _), interval in zip(judged, lower, strict=True):
                losses[i] = interval
        for (searcher, ndcg, count), recall, ends, loss in zip(
            entered, shares, intervals(shares), losses, strict=True
        ):
            share = float(recall.mean()), *ends
            self._entries.append(_Entry(searcher, share, ndcg, loss, count))

    def _round(self, entries: Sequence[_Entry], turn: int, step: str, turns: int) -> None:
        """Measure every entry once; each round begins with a different entry."""
        start = turn * len(entries) // turns
        for entry in (*entries[start:], *entries[:start]):
            self._try(entry, entry.measure_round)
            self._progress(step, 1, len(entries) * turns)

    def _try(self, entry: _Entry, measure: Callable[[], None]) -> None:
        """Measure; leave out a peer that fails."""
        try:
            measure()
        except PeerFailed as error:
            self._entries.remove(entry)
            self._missing[entry.name] = str(error)

    def _finalists(self) -> list[_Entry]:
        """The fastest searchers that meet the target, without peers."""
        holding = [
            entry
            for entry, searcher in self._points()
            if searcher.fields["kind"] is not Kind.EXACT
            and entry.recall[1] >= self._settings.target
        ]
        holding.sort(key=lambda entry: float(np.median(entry.medians)))
        best = float(np.median(holding[0].medians)) if holding else 0.0
        return [e for e in holding if float(np.median(e.medians)) <= FINALIST_RATIO * best][
            :FINALISTS
        ]

    def _measure_cold(self) -> None:
        """Measure the first query on rows that are on disk only."""
        points = [(e, s) for e, s in self._points() if s.numbers is None]  # the same file
        count = self._settings.cold
        if not count:
            return
        try:
            with ColdRows.copied(self._dataset.segments, self._scratch / "cold") as rows:
                for entry, searcher in points:
                    for number in evenly(len(self._dataset.queries), count):
                        query = self._dataset.queries[number : number + 1]
                        entry.cold.append(rows.first(searcher.point, query))
                        if sum(seconds for seconds, _ in entry.cold) > TIME_LIMIT:
                            break
                    self._progress("measuring cold", 1, len(points))
        except OSError as error:
            self._missing["cold latency"] = f"the rows cannot be copied: {error.strerror}"
            return
        except (KeyboardInterrupt, SystemExit):
            for entry, _ in points:  # incomplete, so not comparable
                entry.cold.clear()
            raise
        if not any(pages for entry, _ in points for _, pages in entry.cold):
            self._missing["cold latency"] = "the system keeps the rows in memory"
            for entry, _ in points:
                entry.cold.clear()

    def _measure_growth(self) -> None:
        """Measure exact search and the recommended point on samples of the rows."""
        best = recommend(self.results(complete=False), self._settings.target).name
        points = {e.name: searcher for e, searcher in self._points() if searcher.numbers is None}
        chosen = points.get(best or "")
        if len(self._dataset.segments) > 1 or self._dataset.live[0] is not None:
            self._missing["growth"] = (
                "it needs one segment without deleted rows; run searchengine optimize first"
            )
            return
        if chosen is None or chosen.fields["kind"] is Kind.EXACT:
            self._missing["growth"] = "it needs a recommended cascade, but none is recommended"
            return
        segment, k, fields = chosen.point.segments[0], self._settings.grid.k, chosen.fields
        queries = self._dataset.queries
        for point in growth(segment, queries, k, fields["name"], fields["build_s"]):
            self._growth.append(point)
            self._progress("measuring growth", 1, 2 * len(PARTS))

    def results(self, *, complete: bool) -> Results:
        """Return the results so far."""
        dataset, grid = self._dataset, self._settings.grid
        segment = dataset.segments[0]
        return Results(
            made=self._made,
            complete=complete,
            subject={
                "name": dataset.name,
                "rows": dataset.rows,
                "dim": segment.dim,
                "queries": len(dataset.queries),
                "k": grid.k,
                "segments": len(dataset.segments),
                "storage": str(segment.config.storage),
                "encoder": dataset.encoder,
                "judged": dataset.judged,
                "default_mode": dataset.mode,
            },
            machine=self._machine,
            settings={
                "repeats": self._settings.repeats,
                "cold": self._settings.cold,
                "target": self._settings.target,
                **asdict(grid),
            },
            encode_ms=dataset.encode_ms,
            rows=tuple(self._rows()),
            growth=tuple(self._growth),
            missing=dict(self._missing),
        )

    def _rows(self) -> Iterator[Row]:
        reference = self._entries[0].medians if self._entries else []
        for entry in self._entries:
            if entry.rounds:
                yield _row(entry, reference)


def _row(entry: _Entry, reference: Sequence[float]) -> Row:
    """The results of an entry; `reference`: median milliseconds of exact search, per round."""
    recall, low, high = entry.recall
    medians = entry.medians
    percentiles = 1e3 * np.percentile(entry.rounds, (50, 95, 99), axis=1)
    speedups = [exact / median for exact, median in zip(reference, medians, strict=False)]
    fields: dict[str, Any] = entry.searcher.fields
    return Row(
        **fields,
        recall=recall,
        recall_low=low,
        recall_high=high,
        ndcg=None if entry.ndcg is None else float(np.mean(entry.ndcg)),
        ndcg_loss=entry.ndcg_loss,
        p50_ms=Spread.of(percentiles[0].tolist()),
        p95_ms=Spread.of(percentiles[1].tolist()),
        p99_ms=Spread.of(percentiles[2].tolist()),
        rounds_ms=tuple(medians),
        percentiles_ms=tuple(
            (1e3 * np.percentile(np.concatenate(entry.rounds), np.arange(101))).tolist()
        ),
        cold_ms=Spread.of([1e3 * s for s, _ in entry.cold]) if entry.cold else None,
        cold_reads=float(np.mean([pages for _, pages in entry.cold])) if entry.cold else None,
        batch_qps=Spread.of(entry.batches) if entry.batches else None,
        measured=Spread.of(speedups),
    )
