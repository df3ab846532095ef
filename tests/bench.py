"""Where faults are tried: a scenario's collection in a folder that is copied for every fault."""

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from conftest import WordLengths
from faults import Library, Record, in_child, records
from scenarios import Model, Say, Scenario, create, judge

from searchengine import SearchEngine


@dataclass
class Tally:
    """What a campaign found.

    Attributes:
        calls: calls of the steps that change a file or folder.
        faults: how many were tried; `kinds` says of what kind.
        in_flight: number of faults after which the unacknowledged commit was there, whole.
        refused: number of steps that ended in an error of our own, and had changed nothing.
        problems: what went wrong, and where.
    """

    scenario: str
    calls: int = 0
    faults: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)

    def wrong(self, where: str, what: str | None) -> None:
        """Keep a problem, if it is one."""
        if what is not None:
            self.problems.append(f"{where}: {what}")


@dataclass(frozen=True)
class Sample:
    """How many of all faults are tried, and which by chance; None for all."""

    points: int | None = None
    seed: int = 0

    def of(self, number: int) -> list[int]:
        """Numbers below `number`, rising; 0 is always among them."""
        if self.points is None or self.points >= number:
            return list(range(number))
        return [0, *sorted(Random(self.seed).sample(range(1, number), self.points - 1))]


class Bench:
    """A scenario's collection, in a folder that is copied for every fault."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.states = scenario.states()
        self.library = Library()
        self.base, self.work = folder / "base", folder / "work"
        self.path = self.work / "words.index"
        self.begun = -1 if scenario.creates else 0
        self.base.mkdir()
        if not scenario.creates:
            outcome = in_child(lambda say: self._make())
            assert outcome.problem is None, outcome.problem

    def _make(self) -> None:
        with create(self.base / self.path.name) as engine:
            for step in self.scenario.before:
                step.act(engine)

    def fresh(self) -> None:
        """Bring the work folder to the state before the steps."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.base, self.work)

    def run(self, say: Say) -> None:
        """Take the steps; say the number of each when it is acknowledged, 0 for the creation."""
        if self.scenario.creates:
            engine = create(self.path)
            self._acknowledge(0, say)
        else:
            engine = SearchEngine.open(self.path, WordLengths())
        with engine:
            for number, step in enumerate(self.scenario.steps, start=1):
                step.act(engine)
                self._acknowledge(number, say)

    def _acknowledge(self, number: int, say: Say) -> None:
        self.library.mark(number)
        say(number)

    def calls(self) -> list[Record]:
        """The calls of the steps with their data, and marks where they were acknowledged."""
        journal = self.work.with_name("journal")

        def recorded(say: Say) -> None:
            self.fresh()
            self.library.arm(self.work, record=True)
            self.run(say)
            taken = self.library.journal()
            self.library.disarm()
            journal.write_bytes(taken)

        outcome = in_child(recorded)
        assert outcome.problem is None, outcome.problem
        return list(records(journal.read_bytes()))

    def allowed(self, acknowledged: int) -> list[Model | None]:
        """States allowed after this number of acknowledged steps: theirs, or the next."""
        known: list[Model | None] = [None]
        if acknowledged >= 0:
            known = [self.states[acknowledged][-1]]
        return known + [model for state in self.states[acknowledged + 1 :][:1] for model in state]

    def check(self, acknowledged: int, where: str, tally: Tally) -> None:
        """Judge the work folder, in a child."""
        models = self.allowed(acknowledged)
        checked = in_child(lambda say: judge(self.path, models, say))
        tally.wrong(where, checked.problem)
        tally.in_flight += any(which > 0 for which in checked.said)
