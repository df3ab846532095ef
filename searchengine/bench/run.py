"""A bench: operating points measured in turns, round after round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from indexer.arrays import Doubles, RowNumbers, evenly
from indexer.building.build import Progress
from indexer.tuning.cold import ColdRows
from indexer.tuning.points import recalls
from searchengine.bench.contestants import Contestant, Field, Ours
from searchengine.bench.grid import Grid
from searchengine.bench.growth import PARTS, growth
from searchengine.bench.machine import machine
from searchengine.bench.peers import PeerFailed
from searchengine.bench.recommend import recommend
from searchengine.bench.results import Growth, Kind, Results, Row, Spread
from searchengine.bench.subject import Subject
from searchengine.evaluate.significance import intervals

TIMED = 100
"""Queries timed one by one in a round."""
PATIENCE = 4.0
"""Doubles that one operating point may take of a round; a slow one gets fewer queries, but at least
FEWEST. And seconds after which no more cold queries of it are tried."""
FEWEST = 20
FINALISTS = 8
"""Operating points that are measured more often, in turns with each other alone: the fastest of
those that hold the target, whose order is what is asked for."""
NEAR = 1.5
"""Times as long as the fastest that a finalist takes at most."""
OnRound = Callable[[Results], object]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure.

    Attributes:
        grid: which operating points.
        repeats: rounds; finalists get twice as many more.
        cold: queries of each operating point on a fresh map, at most; 0 measures none.
        growth: whether to measure on parts of the rows.
        target: the recall wanted.
    """

    grid: Grid
    repeats: int = 5
    cold: int = 5
    growth: bool = True
    target: float = 0.95


@dataclass(eq=False)
class _Entry:
    """A contestant, and what was found of it so far.

    Attributes:
        recall: share of the exact rows found, mean over the queries, and its 95 % interval.
        ndcg: mean nDCG@10, if there are judgements.
        count: queries timed in a round.
        rounds: seconds of those, round by round.
        batches: queries a second in one call, round by round.
        cold: seconds and pages read, of queries on a fresh map.
    """

    contestant: Contestant
    recall: tuple[float, float, float]
    ndcg: float | None
    count: int
    rounds: list[Doubles] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    cold: list[tuple[float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.contestant.about["name"])

    def once_more(self) -> None:
        """Another round."""
        self.rounds.append(self.contestant.one_by_one(self.count)[1])

    def all_at_once(self) -> None:
        """The timed queries in one call."""
        found, seconds = self.contestant.at_once(self.count)
        self.batches.append(len(found) / seconds)

    @property
    def medians(self) -> list[float]:
        """Milliseconds, of each round."""
        return [1e3 * float(np.median(seconds)) for seconds in self.rounds]


class Bench:
    """One bench of a subject; `run` does it, `results` says what is known so far."""

    def __init__(
        self,
        subject: Subject,
        settings: Settings,
        scratch: Path,
        heard: Progress,
        missing: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`scratch` is a folder for what is built; `heard` is told what is done.

        missing: what takes no part, and why.
        """
        self._subject, self._settings = subject, settings
        self._scratch, self._heard = scratch, heard
        self._entries: list[_Entry] = []
        self._growth: list[Growth] = []
        self._missing = dict(missing)
        self._made = datetime.now(UTC).isoformat(timespec="seconds")
        self._machine = machine()

    def run(self, others: Sequence[Contestant] = (), on_round: OnRound | None = None) -> Results:
        """Measure this engine's operating points, and others.

        `on_round` is given what is known after every round: enough for a report, should what
        follows be interrupted.
        """
        said = on_round or (lambda _: None)
        contestants = Field(self._subject, self._settings.grid, self._scratch, self._heard)
        contestants.gather()
        self._missing |= contestants.missing
        self._enter([*contestants.contestants, *others])
        for turn in range(self._settings.repeats):
            self._round(self._entries, turn, "measuring", self._settings.repeats)
            for entry in [*self._entries]:
                self._try(entry, entry.all_at_once)
            said(self.results(complete=False))
        finalists = self._finalists()
        for turn in range(2 * self._settings.repeats if len(finalists) > 1 else 0):
            self._round(finalists, turn, "finals", 2 * self._settings.repeats)
        said(self.results(complete=False))
        self._measure_cold()
        said(self.results(complete=False))
        if self._settings.growth:
            self._measure_growth()
        return self.results(complete=True)

    def _own(self) -> list[tuple[_Entry, Ours]]:
        """The entries of this engine."""
        pairs = ((entry, entry.contestant) for entry in self._entries)
        return [(entry, one) for entry, one in pairs if isinstance(one, Ours)]

    def _enter(self, contestants: Sequence[Contestant]) -> None:
        """What each finds, and how slow it is."""
        exact: RowNumbers | None = None
        shares, entered = [], []
        for contestant in contestants:
            try:
                found, _ = contestant.at_once(len(self._subject.queries))
                slow = float(contestant.one_by_one(1)[1][0])
            except PeerFailed as error:
                self._missing[contestant.about["name"]] = str(error)
                continue
            exact = found if exact is None else exact
            judge = self._subject.judge
            ndcg = None if judge is None else float(np.mean(judge(found)))
            count = max(FEWEST, min(TIMED, round(PATIENCE / max(slow, 1e-9))))
            shares.append(recalls(found, exact))
            entered.append((contestant, ndcg, min(count, len(self._subject.queries))))
            self._heard("finding", 1, len(contestants))
        for (contestant, ndcg, count), each, ends in zip(
            entered, shares, intervals(shares), strict=True
        ):
            self._entries.append(_Entry(contestant, (float(each.mean()), *ends), ndcg, count))

    def _round(self, entries: Sequence[_Entry], turn: int, what: str, turns: int) -> None:
        """Every entry once, another one first each time: exact search beside what is compared."""
        start = turn * len(entries) // turns
        for entry in (*entries[start:], *entries[:start]):
            self._try(entry, entry.once_more)
            self._heard(what, 1, len(entries) * turns)

    def _try(self, entry: _Entry, measure: Callable[[], None]) -> None:
        """Measure; another engine that fails takes no further part."""
        try:
            measure()
        except PeerFailed as error:
            self._entries.remove(entry)
            self._missing[entry.name] = str(error)

    def _finalists(self) -> list[_Entry]:
        """The fastest few of this engine's that hold the target."""
        holding = [
            entry
            for entry, ours in self._own()
            if ours.about["kind"] is not Kind.EXACT and entry.recall[1] >= self._settings.target
        ]
        holding.sort(key=lambda entry: float(np.median(entry.medians)))
        best = float(np.median(holding[0].medians)) if holding else 0.0
        return [e for e in holding if float(np.median(e.medians)) <= NEAR * best][:FINALISTS]

    def _measure_cold(self) -> None:
        """The first query on rows that are on the disk alone."""
        own = [(e, ours) for e, ours in self._own() if ours.numbers is None]  # the same file
        count = self._settings.cold
        if not count:
            return
        try:
            with ColdRows.copied(self._subject.segments, self._scratch / "cold") as rows:
                for entry, ours in own:
                    some = evenly(len(self._subject.queries), count)
                    for number in some:
                        query = self._subject.queries[number : number + 1]
                        entry.cold.append(rows.first(ours.point, query))
                        if sum(seconds for seconds, _ in entry.cold) > PATIENCE:
                            break
                    self._heard("measuring cold", 1, len(own))
        except OSError as error:
            self._missing["cold latency"] = f"the rows cannot be copied: {error.strerror}"
            return
        except (KeyboardInterrupt, SystemExit):
            for entry, _ in own:  # some of them alone would tell nothing
                entry.cold.clear()
            raise
        if not any(pages for entry, _ in own for _, pages in entry.cold):
            self._missing["cold latency"] = "the system keeps the rows in memory"
            for entry, _ in own:
                entry.cold.clear()

    def _measure_growth(self) -> None:
        """Exact search and what is recommended, on parts of the rows."""
        best = recommend(self.results(complete=False), self._settings.target).name
        own = {entry.name: ours for entry, ours in self._own() if ours.numbers is None}
        chosen = own.get(best or "")
        if len(self._subject.segments) > 1 or self._subject.live[0] is not None:
            self._missing["growth"] = (
                "it is measured on parts of one segment without deleted rows; run searchengine "
                "optimize before"
            )
            return
        if chosen is None or chosen.about["kind"] is Kind.EXACT:
            self._missing["growth"] = "it is measured of a recommended cascade, and there is none"
            return
        segment, k, about = chosen.point.segments[0], self._settings.grid.k, chosen.about
        queries = self._subject.queries
        for measured in growth(segment, queries, k, about["name"], about["build_s"]):
            self._growth.append(measured)
            self._heard("measuring growth", 1, 2 * len(PARTS))

    def results(self, *, complete: bool) -> Results:
        """What is known so far."""
        subject, grid = self._subject, self._settings.grid
        segment = subject.segments[0]
        return Results(
            made=self._made,
            complete=complete,
            subject={
                "name": subject.name,
                "rows": subject.rows,
                "dim": segment.dim,
                "queries": len(subject.queries),
                "k": grid.k,
                "segments": len(subject.segments),
                "storage": str(segment.config.storage),
                "encoder": subject.encoder,
                "judged": subject.judged,
            },
            machine=self._machine,
            settings={
                "repeats": self._settings.repeats,
                "cold": self._settings.cold,
                "target": self._settings.target,
                **asdict(grid),
            },
            encode_ms=subject.encode_ms,
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
    """What was found of an entry; `reference` are the rounds of exact search."""
    found, low, high = entry.recall
    medians = entry.medians
    percentiles = 1e3 * np.percentile(entry.rounds, (50, 95, 99), axis=1)
    speedups = [exact / own for exact, own in zip(reference, medians, strict=False)]
    about: dict[str, Any] = entry.contestant.about
    return Row(
        **about,
        recall=found,
        recall_low=low,
        recall_high=high,
        ndcg=entry.ndcg,
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
