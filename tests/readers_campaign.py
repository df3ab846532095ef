"""Readers beside a writer: every answer is that of one committed state, and time never runs back.

    python tests/readers_campaign.py --readers 8 --seconds 600 --seeds 0:6 --results found.jsonl
    python tests/readers_campaign.py --results found.jsonl --summary

One process adds, deletes, updates and optimizes; others search, refresh and reopen, and so do
threads of the writer's own process if there are any. The writer tells every reader what each commit
holds, and a reader compares its answers with brute force over the states that they may be of
(tests/expected.py) as they come, so that an hour takes no more memory than a minute. Ends with
status 1 if there was a wrong answer.
"""

import argparse
import json
import queue
import random
import sys
import tempfile
import threading
import time
import traceback
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign_results import Piece, Results, seed_range, source_digest
from clean_process import clean
from conftest import WordLengths
from engine_process import rows
from expected import FILTERS, MODES, Question, Record, Row, State, added, kind_of, patched

from searchengine import Document, SearchEngine

NAME = "readers"
EVERYTHING = 500
_KEYS = 60
_PROBLEMS = 10  # told of each reader; the others are counted


@dataclass
class Answer:
    """What a reader got between two looks at the commit that its engine showed."""

    first: int
    last: int
    question: Question
    rows: list[Row]


@dataclass
class Judge:
    """A reader's answers, against the states that the writer has told of."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)
    _commits: list[int] = field(default_factory=list)
    _states: list[State] = field(default_factory=list)
    _waiting: deque[Answer] = field(default_factory=deque)
    _last: int = 0

    def learn(self, commit: int, state: State) -> None:
        """The writer has ended an operation; this is what its last commit holds."""
        if self._commits and commit == self._commits[-1]:
            return  # it changed nothing
        self._commits.append(commit)
        self._states.append(state)

    def ask(self, engine: SearchEngine, choose: random.Random) -> None:
        """One question more."""
        words = choose.sample(range(1, 17), choose.randint(1, 3))
        question = Question(
            " ".join("x" * word for word in words),
            choose.choice([3, EVERYTHING]),
            choose.choice(MODES),
            choose.choice([0, 0, *range(len(FILTERS))]),
        )
        first = engine.stats().commit
        found = rows(engine, question)
        answer = Answer(first, engine.stats().commit, question, found)
        self.counts["answers"] += 1
        self.counts["hits"] += len(found)
        if first < self._last:
            self._wrong("lost", f"commit {first} was shown after {self._last}")
        self._last = answer.last
        self._waiting.append(answer)

    def settle(self, *, finished: bool = False) -> None:
        """Judge the answers whose commits are known; forget the states that nobody can see."""
        while self._waiting:
            answer = self._waiting[0]
            if not finished and (not self._commits or answer.last > self._commits[-1]):
                return
            self._waiting.popleft()
            # An operation is told of when it has ended; a commit in its midst (a merge changes
            # nothing) holds what is told of before it or after it.
            low = max(0, bisect_right(self._commits, answer.first) - 1)
            high = bisect_left(self._commits, answer.last) + 1
            possible = self._states[low:high]
            faults = [state.fault(answer.question, answer.rows) for state in possible]
            if all(faults):
                kind = kind_of(answer.rows, self._states, self._fits(answer))
                self._wrong(kind, f"{answer.question} at {answer.first}: {faults}")
            del self._commits[:low], self._states[:low]

    def _fits(self, answer: Answer) -> Callable[[State], bool]:
        return lambda state: state.fault(answer.question, answer.rows) is None

    def _wrong(self, kind: str, what: str) -> None:
        self.counts["wrong"] += 1
        if len(self.problems) < _PROBLEMS:
            self.problems.append({"kind": kind, "what": f"{self.name}: {what}"[:2000]})

    def failed(self) -> None:
        """The reader ends by the exception that is being handled."""
        self._wrong("error", traceback.format_exc())


def changes(
    engine: SearchEngine, choose: random.Random, until: float
) -> Iterator[tuple[int, State]]:
    """Change the collection by chance, ten times at least; commit numbers and what they hold."""
    state, serial, changed = State(), 0, 0
    yield engine.stats().commit, state
    while changed < 10 or time.monotonic() < until:
        changed += 1
        kind = choose.choices(
            ["add", "one", "delete", "where", "update", "optimize"], [5, 5, 3, 1, 3, 1]
        )[0]
        kind = kind if state.records else "add"
        delta: dict[str, Record | None] = {}
        if kind in ("add", "one"):
            for _ in range(1 if kind == "one" else choose.randint(2, 40)):
                serial += 1
                key = f"k{choose.randrange(_KEYS)}"
                number = serial * 40503 % 65535 + 1
                text = " ".join("x" * (bit + 1) for bit in range(16) if number >> bit & 1)
                source = {"n": serial % 30, "even": serial % 2 == 0}
                delta[key] = added(state.records.get(key), "", text, source)
            engine.add(Document(k, r.text, r.title, r.source) for k, r in delta.items() if r)
        elif kind == "delete":
            gone = [f"k{choose.randrange(_KEYS)}" for _ in range(8)]
            delta = dict.fromkeys(gone)
            engine.delete(gone)
        elif kind == "where":
            engine.delete(where=FILTERS[3].where)
            kept = FILTERS[3].holds
            delta = {key: None for key, r in state.records.items() if kept(r.metadata)}
        elif kind == "update":
            key = choose.choice(sorted(state.records))
            patch = {"n": choose.randrange(30), "seen": serial % 9}
            engine.update({key: patch})
            old = state.records[key]
            delta = {key: Record(old.title, old.text, old.source, patched(old.metadata, patch))}
        elif kind == "optimize":
            engine.optimize()
        state = state.after(delta)
        yield engine.stats().commit, state


def read(path: Path, seed: int, news: Any) -> None:
    """A process that searches, refreshes and reopens until the writer has ended."""
    judge, choose, goes_on = Judge(f"process {seed}"), random.Random(seed), True

    def hear() -> bool:
        while news.poll():
            message = news.recv()
            if message is None:
                return False
            judge.learn(*message)
        judge.settle()
        return True

    news.send("ready")
    try:
        while goes_on:
            with SearchEngine.open(path, WordLengths()) as engine:
                for _ in range(20):
                    for _ in range(choose.randint(1, 5)):
                        judge.ask(engine, choose)
                    if not (goes_on := hear()):
                        break
                    engine.refresh()
        judge.settle(finished=True)
    except BaseException:
        judge.failed()
        while goes_on and news.recv() is not None:  # so that the writer is not kept waiting
            pass
    news.send((judge.counts, judge.problems))


def ask(engine: SearchEngine, seed: int, news: "queue.SimpleQueue[Any]", judge: Judge) -> None:
    """A thread that searches by the engine that writes."""
    choose, goes_on = random.Random(1000 + seed), True
    try:
        while goes_on:
            judge.ask(engine, choose)
            while not news.empty():
                message = news.get()
                if message is None:
                    goes_on = False
                    break
                judge.learn(*message)
            judge.settle(finished=not goes_on)
    except BaseException:
        judge.failed()


@dataclass
class Readers:
    """The readers of a piece: processes, and threads that search by the writer's engine."""

    path: Path
    engine: SearchEngine
    seed: int

    def start(self, processes: int, threads: int) -> None:
        """Start them; returns when all processes are ready."""
        pipes = [clean.Pipe() for _ in range(processes)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            clean.Process(target=read, args=(self.path, 100 * self.seed + i, theirs))
            for i, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for ours, theirs in pipes:
            theirs.close()
            ours.recv()
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(threads)]
        self._judges = [Judge(f"thread {i}") for i in range(threads)]
        self._threads = [
            threading.Thread(target=ask, args=(self.engine, 100 * self.seed + i, *each))
            for i, each in enumerate(zip(self._queues, self._judges, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, message: tuple[int, State] | None) -> None:
        """What a commit holds; None: it is over."""
        for pipe in self._pipes:
            pipe.send(message)
        for each in self._queues:
            each.put(message)

    def stop(self) -> tuple[Counter[str], list[dict[str, Any]]]:
        """How much they asked, and what was wrong."""
        self.tell(None)
        for thread in self._threads:
            thread.join()
        found = [pipe.recv() for pipe in self._pipes]
        found += [(judge.counts, judge.problems) for judge in self._judges]
        counts, problems = Counter[str](), []
        for some, wrong in found:
            counts.update(some)
            problems += wrong
        for process in self._processes:
            process.join(60)
            if process.exitcode != 0:
                problems.append({"kind": "error", "what": f"a reader ended: {process.exitcode}"})
        return counts, problems


def run(
    path: Path, seconds: float, seed: int, processes: int, threads: int
) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Read and write for some time; how much was done, and what was wrong."""
    with SearchEngine.create(path, WordLengths(), {"prefix": 4}) as engine:
        readers, changed = Readers(path, engine, seed), 0
        readers.start(processes, threads)
        try:
            for change in changes(engine, random.Random(seed), time.monotonic() + seconds):
                readers.tell(change)
                changed += 1
        finally:
            counts, problems = readers.stop()
        engine.verify()
    counts["changes"] = changed
    return counts, problems


def main(arguments: Sequence[str]) -> int:
    """Run pieces one after the other, and print what they found."""
    parser = argparse.ArgumentParser(description="Readers beside a writer.")
    parser.add_argument("--readers", type=int, default=8, help="processes that read")
    parser.add_argument("--threads", type=int, default=0, help="threads of the writer that read")
    parser.add_argument("--seconds", type=float, default=60, help="how long a piece lasts")
    parser.add_argument("--seeds", type=seed_range, default=range(1), help="A:B, without B")
    parser.add_argument("--results", type=Path, help="file to append to, and to resume from")
    parser.add_argument("--folder", type=Path, help="where the collection is made")
    parser.add_argument("--summary", action="store_true", help="print totals and end")
    options = parser.parse_args(arguments)
    results = Results(options.results)
    if options.summary:
        print(results.summary())
        return 0
    named = {name: getattr(options, name) for name in ("readers", "threads", "seconds")}
    failed = False
    for seed in results.unfinished(NAME, named, options.seeds):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="readers-", dir=options.folder) as name:
            path = Path(name) / "words.index"
            counts, problems = run(path, options.seconds, seed, options.readers, options.threads)
        seconds = round(time.monotonic() - begun, 2)
        results.append(Piece(NAME, named, seed, seconds, counts, problems, source_digest()))
        record = {"seed": seed, "seconds": seconds, "counts": counts, "problems": problems}
        print(json.dumps(record), flush=True)
        failed |= bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
