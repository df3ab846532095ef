"""Processes that use one collection in random orders, and are killed: a campaign, by seeds.

    python tests/processes_campaign.py --seeds 0:50 --steps 200 --jobs 2 --results found.jsonl
    python tests/processes_campaign.py --results found.jsonl --summary

A conductor tells some processes, each with an engine of its own on one folder, what to do: open,
warm, search, add, delete, update, optimize, reindex by another encoder, refresh, verify, back up,
export, restore, rebuild, fork, watch a folder whose files change (tests/processes_watching.py).
Some are killed in the midst of it, by SIGKILL at a random moment or at the n-th call that changes a
file (tests/faults.c). Every answer is compared with brute force over the state that the engine must
show (tests/expected.py); after every write and every kill a fresh process opens the collection and
compares all documents and some answers. A seed ends at its first problem.

A folder in memory (`--folder /dev/shm`) is faster, and does as well: what a process has written
outlives the process wherever it lies. Ends with status 1 if there was a problem.
"""

import argparse
import ctypes
import gc
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign_results import Piece, Results, seed_range, source_digest
from conftest import WordLengths
from engine_process import (
    ENCODERS,
    SABOTAGES,
    Hung,
    Listener,
    Process,
    Reply,
    Text,
    read_export,
    rows,
)
from expected import (
    DIM,
    ENCODER,
    FILTERS,
    INDEXABLE,
    MODES,
    Delta,
    Found,
    Question,
    Record,
    Reindexed,
    Row,
    State,
    added,
    kind_of,
    patched,
)
from faults import Action, in_child, under_faults
from processes_watching import BESIDE, Watching
from scenarios import create, stored, strays
from watched_folder import WatchedFolder

from searchengine import Document, SearchEngine
from searchengine.backends.folder.documents.store import Store

NAME = "processes"
PROCESSES = 4  # that are there at any time, forked ones apart
FORKED = 3  # at most
WAIT = 30.0  # seconds that a patient engine waits for another writer
KEYS = 80
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: children of killed processes become ours, to be reaped

WEIGHTS = {
    "open_or_close": 5,
    "warm": 5,
    "search": 10,
    "similar": 3,
    "add": 16,
    "add_again": 5,
    "delete": 5,
    "delete_where": 2,
    "update": 7,
    "index_fields": 1,
    "optimize": 2,
    "reindex": 7,
    "prepare": 1,
    "discard": 1,
    "watch": 4,
    "refresh": 7,
    "stats": 2,
    "verify": 2,
    "backup": 4,
    "export": 1,
    "peek": 3,
    "restore": 4,
    "rebuild": 1,
    "fork": 5,
    "leave": 2,
    "kill": 16,
    "together": 7,
    "threads": 2,
    "slow_add": 2,
    "replaced_write": 2,
    "foreign": 1,
    "gone": 1,
}
"""How often a step is taken; `--only` and `--without` name these."""


@dataclass
class Engine:
    """What the conductor knows of an engine.

    Attributes:
        shown: the states that it may show.
        folder: which folder it has open; the world counts the folders that lay at the path.
        wait: what it was opened with.
        encoder: the fingerprint of its encoder.
    """

    shown: list[State]
    folder: int
    wait: float
    encoder: str = ENCODER


@dataclass
class Member:
    """A process and its engine, if it has one open."""

    name: str
    process: Process
    engine: Engine | None = None
    forked: bool = False


@dataclass
class Write:
    """A command that changes documents: its name and arguments, and what each commit changes."""

    name: str
    arguments: tuple[Any, ...]
    commits: list[Delta]
    value: Any = None  # what it returns; None for what is not compared


class Campaign:
    """One seed: the processes, what is at the path, and what was there."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        weights: Mapping[str, int],
        templates: Path,
        sabotage: str | None = None,
    ) -> None:
        self.folder, self.path = folder, folder / "words.index"
        self.templates = templates
        shutil.copytree(templates / "empty", self.path)
        self.random = random.Random(seed)
        self.weights = weights
        self.counts: Counter[str] = Counter()
        self.trail: deque[str] = deque(maxlen=25)
        self.current = State()
        self.history = [self.current]
        self.at_path = 0  # the folders that have lain at the path, counted
        self.backups: list[tuple[Path, State]] = []
        self.members: list[Member] = []
        self._serial = itertools.count(1)
        self.watched = WatchedFolder(folder / "watched", "w/", self.random, self._text)
        self.watching: Watching | None = None
        self._listener = Listener(folder, sabotage)

    # ---- a seed, from its start to its end ----

    def run(self, steps: int) -> dict[str, Any] | None:
        """Take the steps; the first problem, or None."""
        try:
            for _ in range(PROCESSES):
                self._start()
            self._do(self._adding(self._new_texts(self.random.randint(1, 40))))
            for _ in range(steps):
                self._step()
                self._reap()
            self._finish()
        except Found as found:
            return self._problem(found.kind, found.what)
        except Hung as hung:
            return self._problem("hung", str(hung))
        except EOFError:
            return self._problem("error", f"a process died by itself: {self._stacks()}")
        finally:
            watching = [self.watching.member] if self.watching and self.watching.member else []
            for member in [*self.members, *watching]:
                with suppress(Hung):
                    member.process.kill()
            self._listener.close()
            self._reap()
        return None

    def _problem(self, kind: str, what: str) -> dict[str, Any]:
        step = self.counts["steps"]
        return {"kind": kind, "step": step, "what": what[:4000], "trail": list(self.trail)}

    def _stacks(self) -> str:
        return "\n".join(file.read_text() for file in self.folder.glob("stacks-*"))[-3000:]

    def _step(self) -> None:
        weights = {
            name: weight
            for name, weight in self.weights.items()
            if weight and (self.watching is None or name in BESIDE)
        }
        self.counts["steps"] += 1
        if self.watching is not None:
            self.watching.before_step()
        if weights:
            name = self.random.choices(list(weights), list(weights.values()))[0]
            self.counts[f"step {name}"] += 1
            getattr(self, f"_step_{name}")()
        self._probe()
        if self.watching is not None:
            self.watching.after_step()

    def _probe(self) -> None:
        """Every open engine answers a question."""
        searches = []
        for member in self.members:
            if member.engine is None:
                continue
            question = self._question()
            member.process.send("search", question)
            searches.append((member, question))
        for member, question in searches:
            self._judge(member, question, self._value(member, "probe"))

    def _finish(self) -> None:
        """Close everything; the next writer leaves nothing behind, and SQLite finds no fault."""
        if self.watching is not None:
            self.watching.end()
        self._note("end")
        for member in list(self.members):
            self._end(member, "close")

        encoder = ENCODERS[self.current.encoder]

        def last_writer() -> None:
            with SearchEngine.open(self.path, encoder) as engine:
                engine.discard_reindex()  # of a process that was killed
            for _ in range(2):  # the second removes what a merge of the first has replaced
                with SearchEngine.open(self.path, encoder) as engine:
                    engine.add([Document("last", "x xx xxx")])
            with SearchEngine.open(self.path, encoder) as engine:
                engine.verify()
            assert not strays(self.path), f"left behind: {strays(self.path)}"

        def integrity() -> None:
            with closing(sqlite3.connect(self.path / "documents.db")) as connection:
                report = connection.execute("PRAGMA integrity_check").fetchall()
            assert report == [("ok",)], report

        self._check([self.current], verify=True)
        self._in_fresh_process(last_writer)
        self._in_fresh_process(integrity)

    # ---- processes ----

    def _start(self) -> Member:
        member = Member(f"p{next(self._serial)}", self._listener.start())
        self.members.append(member)
        return member

    def _end(self, member: Member, how: str) -> None:
        member.process.send("exit", how)
        member.process.wait()
        self._remove(member)

    def _remove(self, member: Member) -> None:
        """A process has ended; another takes its place, unless it was an extra one."""
        member.process.close()
        self.members.remove(member)

    def _replace(self, member: Member) -> None:
        self._remove(member)
        if not member.forked:
            self._start()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _value(self, member: Member, doing: str) -> Any:
        """The value of a reply. Raises Found when it is an error, or when anything was logged."""
        reply = member.process.receive()
        if reply.error is not None:
            raise Found("error", f"{member.name} {doing}: {_error_text(reply)}")
        if reply.warnings:
            raise Found("error", f"{member.name} {doing} logged {reply.warnings}")
        return reply.value

    def _call(self, member: Member, name: str, *arguments: Any) -> Any:
        self._note(f"{member.name} {name} {_short(arguments)}")
        member.process.send(name, *arguments)
        return self._value(member, name)

    def _note(self, what: str) -> None:
        self.trail.append(what)

    def _member(self) -> Member:
        """Any process, with its engine open."""
        return self._opened(self.random.choice(self.members))

    def _opened(self, member: Member) -> Member:
        engine = member.engine
        if engine is not None and (self._is_stale(engine) or (self.watching and not engine.wait)):
            self._close(member, engine)
        if member.engine is None:
            wait = WAIT if self.watching else self.random.choice([0.0, WAIT])
            self._call(member, "open", self.path, wait, self.current.encoder)
            member.engine = Engine([self.current], self.at_path, wait, self.current.encoder)
        return member

    def _is_stale(self, engine: Engine) -> bool:
        """Whether the collection has another encoder by now."""
        return engine.encoder != self.current.encoder

    def _close(self, member: Member, engine: Engine) -> None:
        """Close an engine. Of a stale one no change is taken, nor does it show the newest."""
        if self._is_stale(engine) and self.random.random() < 0.5:
            name = self.random.choice(["refresh", "add", "delete"])
            arguments: dict[str, tuple[Any, ...]] = {
                "add": (self._new_texts(2), None, False),
                "delete": ([f"d{self.random.randrange(KEYS)}"], None),
            }
            self._note(f"{member.name} {name}, by the former encoder")
            member.process.send(name, *arguments.get(name, ()))
            self._refused(member, name, ["EncoderMismatch"])
            self.counts["refused by the encoder"] += 1
        self._call(member, "close")
        member.engine = None

    def _used(self, member: Member) -> Engine:
        """A process with its engine open."""
        engine = self._opened(member).engine
        assert engine is not None
        return engine

    def _moved(self, engine: Engine) -> None:
        """The engine shows the newest commit of the folder that is at the path now."""
        engine.shown, engine.folder = [self.current], self.at_path
        engine.encoder = self.current.encoder

    # ---- what is asked, and whether the answer is right ----

    def _question(self) -> Question:
        r = self.random
        words = r.sample(range(1, DIM + 1), r.randint(1, 4))
        return Question(
            " ".join("x" * word for word in words),
            r.choice([1, 3, 7, KEYS + 5, KEYS + 5]),
            "vector" if self.watching else r.choice(MODES),
            r.choice(APART) if self.watching else r.randrange(len(FILTERS)),
        )

    def _judge(self, member: Member, question: Question, answer: list[Row]) -> None:
        self._narrow(member, answer, str(question), lambda state: state.fault(question, answer))

    def _right(
        self, candidates: Sequence[State], question: Question, answer: list[Row], who: str
    ) -> list[State]:
        """The states that an answer fits. Raises Found when there are none."""
        return self._fitting(
            candidates, answer, f"{who} {question}", lambda state: state.fault(question, answer)
        )

    def _narrow(
        self,
        member: Member,
        answer: list[Row] | None,
        what: str,
        fault: Callable[[State], str | None],
    ) -> None:
        """Keep of the states that an engine may show those that an answer fits; there must be."""
        engine = member.engine  # which may be a stale one
        if engine is None:
            engine = self._used(member)
        self.counts["answers"] += 1
        self.counts["hits"] += len(answer or ())
        engine.shown = self._fitting(engine.shown, answer, f"{member.name} {what}", fault)

    def _fitting(
        self,
        candidates: Sequence[State],
        answer: list[Row] | None,
        what: str,
        fault: Callable[[State], str | None],
    ) -> list[State]:
        faults = [fault(state) for state in candidates]
        fitting = [s for s, message in zip(candidates, faults, strict=True) if message is None]
        if not fitting:
            states = [*self.history, *candidates]
            kind = kind_of(answer or (), states, lambda state: fault(state) is None)
            raise Found(kind, f"{what}: {faults[-1]}")
        return fitting

    # ---- what is at the path, seen by a fresh process ----

    def _in_fresh_process(self, work: Callable[[], object], kind: str = "unopenable") -> list[Any]:
        ended = in_child(lambda say: say(work()), seconds=60)
        if ended.signal == signal.SIGALRM:
            raise Found("hung", "a fresh process")
        if ended.problem is not None:
            raise Found(kind, f"a fresh process: {ended.problem}")
        return ended.said

    def _check(
        self, allowed: Sequence[State], path: Path | None = None, *, verify: bool = False
    ) -> State:
        """The state that a fresh process finds; Found unless it is one of those allowed."""
        at = path or self.path
        first = Question("x xx xxx", KEYS + 5, filter=APART[0] if self.watching else 0)
        questions = [first, self._question()]
        unsure = self.watched.prefix if self.watching else None

        def look() -> dict[str, Any]:
            with Store(at / "documents.db", readers=1) as store:
                encoder = store.settings()["encoder"]["fingerprint"]
            with SearchEngine.open(at, ENCODERS[encoder]) as engine:
                held = {
                    key: (document.title, document.text, document.metadata)
                    for key, document in stored(at).items()
                }
                sure, watched = parted(held, unsure)
                which = [
                    i
                    for i, state in enumerate(allowed)
                    if state.encoder == encoder and parted(state.rows, unsure)[0] == sure
                ]
                if not which:
                    return {"held": sure, "encoder": encoder}
                encoded = engine.verify(encode=len(held)) if verify else 0
                for question in questions:
                    answer = rows(engine, question)
                    fault = allowed[which[0]].fault(question, answer)
                    if fault is not None:
                        return {"fault": f"{question}: {fault}"}
            return {"which": which[0], "watched": watched, "encoded": encoded}

        self.counts["fresh processes"] += 1
        self.counts["verified"] += verify
        found = self._in_fresh_process(look)[0]
        if "held" in found:
            raise Found(*self._difference(found["held"], found["encoder"], allowed))
        if "fault" in found:
            raise Found("wrong", f"a fresh process: {found['fault']}")
        self.counts["vectors compared"] += found["encoded"]
        state: State = allowed[found["which"]]
        return self.watching.seen(state, found["watched"]) if self.watching else state

    def _difference(
        self, held: Mapping[str, Any], encoder: str, allowed: Sequence[State]
    ) -> tuple[str, str]:
        """What kind of problem it is to hold this, and where it differs from what is nearest."""
        now = {key: tuple(value) for key, value in held.items()}
        unsure = self.watched.prefix if self.watching else None

        def different(state: State) -> list[str]:
            sure = parted(state.rows, unsure)[0]
            keys = sorted(now.keys() | sure.keys())
            return [key for key in keys if now.get(key) != sure.get(key)]

        if encoder not in {state.encoder for state in allowed}:
            return "wrong", f"{self.path.name} has the encoder {encoder}"
        nearest = min(allowed, key=lambda state: len(different(state)))
        examples = [f"{k}: {now.get(k)}, not {nearest.rows.get(k)}" for k in different(nearest)[:3]]
        acknowledged = set.intersection(*(set(_items(state, unsure)) for state in allowed))
        lost = acknowledged - {_item(key, value) for key, value in now.items()}
        former = any(now == parted(state.rows, unsure)[0] for state in self.history)
        return (
            "lost" if lost or former else "mixed",
            f"{self.path.name} holds {'; '.join(examples)}",
        )

    def _settle(self, allowed: Sequence[State], *, verify: bool = False) -> None:
        """A write has ended: look which state is there now."""
        unique = list(dict.fromkeys(allowed))
        self.current = self._check(unique, verify=verify or self.random.random() < 0.2)
        if self.current is not self.history[-1]:
            self.counts["reindexes"] += self.current.encoder != self.history[-1].encoder
            self.history.append(self.current)

    def _decide(self) -> None:
        """Commit once more, and change nothing.

        A process that is killed while SQLite syncs its commit leaves it undecided: nobody sees it,
        but whoever recovers the log may find it. A later commit writes over it.
        """

        encoder = ENCODERS[self.current.encoder]

        def commit() -> dict[str, Any]:
            with SearchEngine.open(self.path, encoder, wait=30) as engine:
                engine.index_fields()
            return {}

        self._in_fresh_process(commit)

    # ---- writes ----

    def _text(self) -> str:
        """A text that no other has: its words' lengths are the binary digits of its number."""
        number = next(self._serial) * 40503 % 65535 + 1
        return " ".join("x" * (bit + 1) for bit in range(16) if number >> bit & 1)

    def _source(self) -> dict[str, Any]:
        r, n = self.random, self.random.randrange(40)
        source: dict[str, Any] = {"n": n, "even": n % 2 == 0}
        source["author"] = {"name": r.choice(["ann", "bob", "bea"]), "rank": r.randint(1, 5)}
        if r.random() < 0.5:
            source["tags"] = r.sample(["red", "green", "blue"], r.randint(0, 2))
        return source

    def _new_texts(self, count: int, keys: Sequence[int] | None = None) -> list[Text]:
        r = self.random
        numbers = r.sample(keys or range(KEYS), min(count, len(keys or range(KEYS))))
        titles = ["", "", "xx", "x xxxx"]
        return [(f"d{n}", r.choice(titles), self._text(), self._source()) for n in numbers]

    def _adding(self, texts: list[Text], every: int | None = None, pause: bool = False) -> Write:
        """`add`, from the current state; with `every` all texts must be new ones."""
        size = every or max(1, len(texts))
        before = self.current.records
        commits: list[Delta] = [
            {k: added(before.get(k), title, text, m) for k, title, text, m in part}
            for part in (texts[start : start + size] for start in range(0, len(texts), size))
        ]
        known = [(before.get(key), title, text) for key, title, text, _ in texts]
        new = sum(record is None for record, _, _ in known)
        changed = sum(r is not None and (r.title, r.text) != (t, x) for r, t, x in known)
        return Write("add", (texts, every, pause), commits, (new, changed))

    def _write_add(self, keys: Sequence[int] | None = None) -> Write:
        count = self.random.choice([1, 1, 2, 5, 9, 16])
        every = self.random.choice([None, None, 1, 3, 4]) if count > 1 else None
        return self._adding(self._new_texts(count, keys), every)

    def _write_add_again(self, keys: Sequence[int] | None = None) -> Write:
        """Documents that are there: as they are, with other metadata, or with another text."""
        texts = []
        for key in self._some_keys(5, keys):
            record = self.current.records[key]
            source, text = dict(record.source), record.text
            if self.random.random() < 0.5:
                source["n"] = self.random.randrange(40)
            if self.random.random() < 0.3:
                source["author"] = {**source["author"], "rank": self.random.randint(1, 5)}
            if self.random.random() < 0.3:
                text = self._text()
            texts.append((key, record.title, text, source))
        return self._adding(texts) if texts else self._write_add(keys)

    def _write_delete(self, keys: Sequence[int] | None = None) -> Write:
        gone = self._some_keys(6, keys)
        value = len(gone)
        if self.random.random() < 0.3:
            gone = [*gone, "unknown"]
        return Write("delete", (gone, None), [dict.fromkeys(set(gone) - {"unknown"}, None)], value)

    def _write_delete_where(self) -> Write:
        chosen = self.random.choice(FILTERS[3:])
        records = self.current.records
        gone = [key for key, record in records.items() if chosen.holds(record.metadata)]
        return Write("delete", (None, chosen.where), [dict.fromkeys(gone, None)], len(gone))

    def _write_update(self, keys: Sequence[int] | None = None) -> Write:
        r, patches = self.random, {}
        for key in self._some_keys(4, keys):
            choices: list[dict[str, Any]] = [
                {"seen": r.randrange(9)},
                {"n": r.randrange(40), "seen": None},
                {"author": {"rank": r.randint(1, 5)}},
                {"author": {"name": None, "note": {"by": "us"}}},
                {"tags": None},
            ]
            patches[key] = r.choice(choices)
        if not patches:
            return self._write_add(keys)
        records = self.current.records
        changed = {
            key: Record(
                records[key].title,
                records[key].text,
                records[key].source,
                patched(records[key].metadata, patch),
            )
            for key, patch in patches.items()
        }
        return Write("update", (patches,), [changed])

    def _write_optimize(self) -> Write:
        return Write("optimize", (), [])

    def _write_reindex(self) -> Write:
        other = next(name for name in ENCODERS if name != self.current.encoder)
        return Write("reindex", (other,), [Reindexed(other)])

    def _write_prepare(self) -> Write:
        return Write("prepare", self._write_reindex().arguments, [])

    def _write_discard(self) -> Write:
        return Write("discard", (), [])

    def _write_index_fields(self) -> Write:
        return Write("index_fields", (self.random.sample(INDEXABLE, 2),), [])

    def _some_keys(self, most: int, keys: Sequence[int] | None = None) -> list[str]:
        among = None if keys is None else {f"d{n}" for n in keys}
        known = [
            key
            for key in self.current.records
            if key.startswith("d") and (among is None or key in among)
        ]
        return self.random.sample(known, min(len(known), self.random.randint(1, most)))

    def _states(self, write: Write) -> list[State]:
        """The current state, and that after each commit of a write."""
        states = [self.current]
        for delta in write.commits:
            states.append(states[-1].after(delta))
        return states

    def _any_write(self) -> Write:
        names = [name for name in WRITES if self.weights.get(name)]
        names = [name for name in names if name in BESIDE] if self.watching else names
        name = self.random.choices(names, [self.weights[name] for name in names])[0]
        write: Write = getattr(self, f"_write_{name}")()
        return write

    def _do(self, write: Write, member: Member | None = None) -> None:
        """Take a write, by any process, and look at what it did."""
        member = member or self._member()
        engine = self._used(member)
        states = self._states(write)
        before = engine.shown
        value = self._call(member, write.name, *write.arguments)
        if write.value is not None and value != write.value:
            raise Found("wrong", f"{member.name} {write.name} gave {value}, not {write.value}")
        self.counts["writes"] += 1
        self._settle(states[-1:], verify=write.name in ("optimize", "reindex"))
        unsure = self.watched.prefix if self.watching else None
        unchanged = parted(self.current.rows, unsure)[0] == parted(states[0].rows, unsure)[0]
        rewrites = write.name == "reindex" or (write.name == "optimize" and self.current.records)
        if unchanged and not rewrites:
            assert before is not None  # it changed nothing, so it need not have looked
            engine.shown = list(dict.fromkeys([*before, self.current]))
        else:
            self._moved(engine)

    def _step_add(self) -> None:
        self._do(self._write_add())

    def _step_add_again(self) -> None:
        self._do(self._write_add_again())

    def _step_delete(self) -> None:
        self._do(self._write_delete())

    def _step_delete_where(self) -> None:
        self._do(self._write_delete_where())

    def _step_update(self) -> None:
        self._do(self._write_update())

    def _step_optimize(self) -> None:
        self._do(self._write_optimize())

    def _step_reindex(self) -> None:
        self._do(self._write_reindex())

    def _step_prepare(self) -> None:
        if self.current.records:
            self._do(self._write_prepare())

    def _step_discard(self) -> None:
        self._do(self._write_discard())

    def _step_watch(self) -> None:
        self.watching = Watching(self)

    def _step_index_fields(self) -> None:
        self._do(self._write_index_fields())

    # ---- steps of one process ----

    def _step_open_or_close(self) -> None:
        member = self.random.choice(self.members)
        if member.engine is None:
            self._opened(member)
        else:
            self._call(member, "close")
            member.engine = None

    def _step_warm(self) -> None:
        member = self._member()
        self._used(member)
        self._call(member, "warm")

    def _step_search(self) -> None:
        member = self._member()
        for _ in range(self.random.randint(1, 5)):
            question = self._question()
            self._judge(member, question, self._call(member, "search", question))

    def _step_similar(self) -> None:
        member = self._member()
        key, k = f"d{self.random.randrange(KEYS)}", self.random.choice([1, 5, KEYS])
        answer = self._call(member, "similar", key, k)
        self._narrow(
            member, answer, f"similar {key}", lambda state: state.fault_similar(key, k, answer)
        )

    def _step_refresh(self) -> None:
        member = self._member()
        self._show_newest(member, self._used(member))

    def _show_newest(self, member: Member, engine: Engine) -> None:
        if self._is_stale(engine):
            self._close(member, engine)
            return
        self._call(member, "refresh")
        self._moved(engine)

    def _step_stats(self) -> None:
        member = self._member()
        count = self._call(member, "stats")
        self._narrow(
            member,
            None,
            "stats",
            lambda s: None if len(s.rows) == count else f"{count} documents, not {len(s.rows)}",
        )

    def _step_verify(self) -> None:
        member = self._member()
        self._used(member)
        self._call(member, "verify")

    def _step_peek(self) -> None:
        """A second engine in the same process, opened and closed while the first stays open."""
        member, question = self._member(), self._question()
        answer = self._call(member, "peek", self.path, question, self.current.encoder)
        self._right([self.current], question, answer, f"{member.name} peek")
        self.counts["answers"] += 1

    def _step_backup(self) -> None:
        member = self._member()
        engine = self._used(member)
        target = self.folder / f"backup-{next(self._serial)}"
        self._call(member, "backup", target)
        # Of an engine whose folder was replaced: what it shows, or what is there now.
        older = engine.shown if engine.folder != self.at_path else []
        state = self._check([self.current, *older], target, verify=True)
        self.backups.append((target, state))
        while len(self.backups) > 3:
            shutil.rmtree(self.backups.pop(0)[0])

    def _step_export(self) -> None:
        member = self._member()
        self._used(member)
        target = self.folder / f"export-{next(self._serial)}"
        count = self._call(member, "export", target)
        held = read_export(target)
        shutil.rmtree(target)

        def fault(state: State) -> str | None:
            same = held == state.rows and count == len(held)
            return None if same else f"exported {sorted(held)}"

        answer: list[Row] = [(key, 0.0, *row) for key, row in held.items()]
        self._narrow(member, answer, "export", fault)

    def _step_fork(self) -> None:
        """A child opens an engine of its own; it must not trouble its parent."""
        extra = [member for member in self.members if member.forked]
        if len(extra) >= FORKED:
            self._end(self.random.choice(extra), self.random.choice(["at once", "drop", "close"]))
        parent = self._member()
        self._call(parent, "fork")
        child = Member(f"{parent.name}-{next(self._serial)}", self._listener.accept(), forked=True)
        self.members.append(child)
        self.counts["forks"] += 1
        act = self.random.choice(["nothing", "search", "refresh", "add", "close", "parent"])
        if act == "search":
            self._used(child)
            question = self._question()
            self._judge(child, question, self._call(child, "search", question))
        elif act == "refresh":
            self._used(child)
            self._call(child, "refresh")
        elif act == "add":
            self._do(self._any_write(), child)
        elif act == "close":
            self._end(child, self.random.choice(["at once", "drop", "close"]))
        elif act == "parent":
            self._call(parent, "close")
            parent.engine = None

    def _step_leave(self) -> None:
        member = self.random.choice(self.members)
        how = self.random.choice(["at once", "drop", "close"])
        self._note(f"{member.name} leaves: {how}")
        self._end(member, how)
        if not member.forked:
            self._start()

    # ---- kills ----

    def _step_kill(self) -> None:
        """SIGKILL in the midst of a command, mostly a write."""
        member = self._member()
        self._used(member)
        r = self.random
        write = self._any_write() if WRITES.keys() & self._enabled() else None
        if write is None or r.random() < 0.2:
            others: list[tuple[str, tuple[Any, ...]]] = [
                ("refresh", ()),
                ("verify", ()),
                ("search", (self._question(),)),
                ("backup", (self.folder / f"killed-{next(self._serial)}",)),
            ]
            write = Write(*r.choice(others), [])
        die = None
        long = write.name == "reindex"
        if write.commits and r.random() < 0.6:
            die = r.randint(1, 150 if long else 45), r.choice([Action.KILL, Action.TEAR])
        delay = r.choice([0.0, r.uniform(0, 0.004), r.uniform(0, 0.1 if long else 0.02)])
        how = f"dies {die}" if die else f"is killed after {1000 * delay:.1f} ms"
        self._note(f"{member.name} {how} in {write.name} {_short(write.arguments)}")
        states = self._states(write)
        member.process.send(write.name, *write.arguments, die=die)
        reply: Reply | None = None
        if die is None:
            time.sleep(delay)
        else:
            with suppress(EOFError):
                reply = member.process.receive()
        member.process.kill()
        if reply is None:
            with suppress(EOFError):
                reply = member.process.receive()
        self.counts["kills"] += 1
        self.counts["kills within a command"] += reply is None
        self.counts[f"kills of {write.name}"] += 1
        if reply is not None and reply.error is not None:
            raise Found("error", f"{member.name} {write.name}: {_error_text(reply)}")
        self._replace(member)
        self._settle(states if reply is None else states[-1:], verify=True)
        self._decide()
        self.counts["kills that cut a write short"] += self.current is not states[-1]

    def _enabled(self) -> set[str]:
        return {name for name, weight in self.weights.items() if weight}

    # ---- several at once ----

    def _step_together(self) -> None:
        """Several processes at once, on keys of their own; one may be killed on the way."""
        r = self.random
        members = r.sample(self.members, min(len(self.members), r.randint(2, 4)))
        zero = tuple([0] * len(members))
        scripts = self._scripts(members)
        self._note(
            "together: "
            + "; ".join(
                f"{member.name} {[write.name for write in script]}"
                for member, script in zip(members, scripts, strict=True)
            )
        )
        for member, script in zip(members, scripts, strict=True):
            member.process.send("script", [(write.name, write.arguments) for write in script])
        victim = self._maybe_kill_one_of(members)
        replies = [_replies(m, len(script)) for m, script in zip(members, scripts, strict=True)]
        done, most = self._progress(members, scripts, replies, victim)
        base, deltas = self.current, [[d for w in s for d in w.commits] for s in scripts]
        known: dict[tuple[int, ...], State] = {zero: base}

        def state(progress: tuple[int, ...]) -> State:
            if progress not in known:
                after = base
                for mine, count in zip(deltas, progress, strict=True):
                    for delta in mine[:count]:
                        after = after.after(delta)
                known[progress] = after
            return known[progress]

        def between(low: Sequence[int]) -> list[tuple[int, ...]]:
            spans = (range(a, b + 1) for a, b in zip(low, most, strict=True))
            return list(itertools.product(*spans))

        for i, (member, script) in enumerate(zip(members, scripts, strict=True)):
            self._follow(i, member, script, replies[i], state, between, zero)
        if victim is not None:
            self._replace(members[victim])
        self._settle([state(progress) for progress in between(done)], verify=victim is not None)
        self._decide()
        self.counts["writes"] += sum(len(script) for script in scripts)

    def _scripts(self, members: Sequence[Member]) -> list[list[Write]]:
        """What each does, on keys of its own; at times one of them reindexes."""
        scripts = []
        for i, member in enumerate(members):
            self._used(member)
            scripts.append(self._script(range(i, KEYS, 4)))
        if self.weights.get("reindex") and self.random.random() < 0.3:
            which = self.random.randrange(len(members))
            scripts[which] = [self._write_reindex(), *self._script([])[:1]]
        return scripts

    def _maybe_kill_one_of(self, members: Sequence[Member]) -> int | None:
        """Which one was killed, some moments after all were sent to work."""
        if self.random.random() >= 0.4 or not self.weights["kill"]:
            return None
        victim = self.random.randrange(len(members))
        time.sleep(self.random.uniform(0, 0.03))
        members[victim].process.kill()
        self._note(f"{members[victim].name} is killed")
        self.counts["kills"] += 1
        return victim

    def _script(self, keys: Sequence[int]) -> list[Write]:
        """A few commands on some keys; a question is a write that changes nothing."""
        r, script = self.random, []
        wrote = False
        for _ in range(r.randint(1, 3)):
            kind = r.choice(["add", "add", "delete", "update", "search", "search", "refresh"])
            if kind == "search" or not keys:
                script.append(Write("search", (self._question(),), []))
            elif kind == "refresh":
                script.append(Write("refresh", (), []))
            elif not wrote and self.weights.get(kind):
                script.append(getattr(self, f"_write_{kind}")(keys))
                wrote = True  # one write only, so that each starts from the current state
        return script

    def _progress(
        self,
        members: Sequence[Member],
        scripts: Sequence[Sequence[Write]],
        replies: Sequence[Sequence[Reply]],
        victim: int | None,
    ) -> tuple[list[int], list[int]]:
        """How many commits of each are acknowledged, and how many there may be."""
        done, most = [], []
        reindexed = next((s for s in scripts if any(w.name == "reindex" for w in s)), None)
        for i, (script, got) in enumerate(zip(scripts, replies, strict=True)):
            engine = members[i].engine
            assert engine is not None
            low = high = 0
            for position, write in enumerate(script):
                if position >= len(got):
                    high += len(write.commits)  # killed within it or before
                    continue
                error = got[position].error
                if error is None:
                    low, high = low + len(write.commits), high + len(write.commits)
                elif error[0] == "CollectionBusy" and engine.wait == 0:
                    self.counts["busy"] += 1
                    # Earlier commits of it may stand; the one that found the other did not.
                    high += max(0, len(write.commits) - 1)
                elif error[0] == "EncoderMismatch" and reindexed and scripts[i] is not reindexed:
                    self.counts["refused by the encoder"] += 1
                    high += max(0, len(write.commits) - 1)
                else:
                    raise Found(
                        "error", f"{members[i].name} {write.name}: {_error_text(got[position])}"
                    )
            if len(got) < len(script) and i != victim:
                raise Found("error", f"{members[i].name} died by itself: {self._stacks()}")
            done.append(low)
            most.append(high)
        return done, most

    def _follow(
        self,
        i: int,
        member: Member,
        script: Sequence[Write],
        replies: Sequence[Reply],
        state: Callable[[tuple[int, ...]], State],
        between: Callable[[Sequence[int]], list[tuple[int, ...]]],
        zero: tuple[int, ...],
    ) -> None:
        """What one process saw while all were at work: states that can follow one another."""
        engine = member.engine
        assert engine is not None
        # Candidates: a progress of everyone, or a state of before.
        seen: list[tuple[tuple[int, ...] | None, State]] = [(None, s) for s in engine.shown]
        own_low = own_high = 0
        for write, reply in zip(script, replies, strict=False):
            own_high += len(write.commits)
            own_low += 0 if reply.error is not None else len(write.commits)
            if write.name == "reindex" and reply.error is None:
                engine.encoder = write.arguments[0]
            if write.name != "search":
                lows = {progress or zero for progress, _ in seen}
                least = [min(low[j] for low in lows) for j in range(len(zero))]
                later = [p for p in between(least) if own_low <= p[i] <= own_high]
                moved = [(p, state(p)) for p in later if any(_covers(p, low) for low in lows)]
                moved = [(p, after) for p, after in moved if after.encoder == engine.encoder]
                unmoved = not any(write.commits) and write.name != "refresh"
                seen = moved + (seen if unmoved or reply.error is not None else [])
                assert seen, "the model knows no state that this process may show"
                engine.folder = self.at_path
                continue
            question, answer = write.arguments[0], reply.value
            self.counts["answers"] += 1
            self.counts["answers beside writers"] += 1
            self.counts["hits"] += len(answer)
            fitting = set(self._right([s for _, s in seen], question, answer, member.name))
            seen = [each for each in seen if each[1] in fitting]
        engine.shown = list(dict.fromkeys(s for _, s in seen))

    def _step_threads(self) -> None:
        """Threads of one process that add at once: all succeed, whether or not the engine waits."""
        member = self._member()
        engine = self._used(member)
        batches = [self._new_texts(2, range(i, KEYS, 4)) for i in range(4)]
        before = self.current
        self._call(member, "add_in_threads", batches)
        for batch in batches:
            before = before.after(self._adding(batch).commits[0])
        self.counts["writes"] += len(batches)
        self._settle([before])
        self._moved(engine)

    def _step_slow_add(self) -> None:
        """While one reads documents, another writes; the first commits after it."""
        slow, quick = self._two()
        texts = self._new_texts(4)
        self._pause(slow, texts)
        begun = self.current
        self._do(self._any_write(), quick)
        engine = slow.engine
        assert engine is not None
        slow.process.send("go")
        if self._is_stale(engine):
            self._refused(slow, "add by the former encoder", ["EncoderMismatch"])
            engine.shown = [*engine.shown, begun]  # the folder may have been replaced before
            self.counts["refused by the encoder"] += 1
            self._settle([self.current])
            return
        write = self._adding(texts)
        value = self._value(slow, "slow add")
        if value != write.value:
            raise Found("wrong", f"{slow.name} slow add gave {value}, not {write.value}")
        self._settle(self._states(write)[-1:])
        self._moved(engine)

    def _two(self) -> list[Member]:
        two = self.random.sample(self.members, 2)
        for member in two:
            self._used(member)
            self._call(member, "stats")
        return two

    def _pause(self, member: Member, texts: list[Text]) -> None:
        """Begin to add; the last document is not read yet."""
        self._used(member)
        reply = self._call(member, "add", texts, None, True)
        assert reply == "paused", reply

    # ---- another folder at the path ----

    def _step_restore(self) -> None:
        """An earlier backup takes the place of the folder, under the eyes of all."""
        if not self.backups:
            return self._step_backup()
        self._put_backup()
        return None

    def _put_backup(self) -> None:
        source, state = self.random.choice(self.backups)
        copy = self.folder / f"copy-{next(self._serial)}"
        shutil.copytree(source, copy)
        self._note(f"restore {source.name}")
        self._put(copy, state)

    def _step_rebuild(self) -> None:
        """A collection made elsewhere takes the place of the folder."""
        copy = self.folder / f"made-{next(self._serial)}"
        texts = self._new_texts(self.random.randint(5, 40))
        self._note(f"rebuild with {len(texts)} documents")

        def build() -> None:
            with SearchEngine.open(copy, WordLengths()) as engine:
                engine.add([Document(key, text, title, m) for key, title, text, m in texts])

        shutil.copytree(self.templates / "empty", copy)
        self._in_fresh_process(build)
        self._put(copy, State({k: added(None, title, text, m) for k, title, text, m in texts}))

    def _put(self, folder: Path, state: State) -> Path:
        """Rename the folder away, and another into its place; where the former is, if kept."""
        old = self.folder / f"old-{next(self._serial)}"
        self.path.rename(old)
        folder.rename(self.path)
        self.at_path += 1
        self.current = state
        self.history.append(state)
        if self.watching is not None:
            self.watching.restored(state)
        self.counts["replaced folders"] += 1
        if self.random.random() < 0.5:
            shutil.rmtree(old)
        self._settle([state], verify=True)
        return old

    def _step_replaced_write(self) -> None:
        """The folder is replaced while one adds: that fails, and changes neither."""
        if not self.backups:
            return self._step_backup()
        member = self._member()
        engine = self._used(member)
        shown, before = engine.shown, self.current
        self._pause(member, self._new_texts(4))
        source, state = self.random.choice(self.backups)
        copy, old = (self.folder / f"{name}-{next(self._serial)}" for name in ("copy", "old"))
        shutil.copytree(source, copy)
        self._note(f"restore {source.name} while {member.name} adds")
        self.path.rename(old)
        copy.rename(self.path)
        self.at_path += 1
        self.current = state
        self.history.append(state)
        self.counts["replaced folders"] += 1
        member.process.send("go")
        self._refused(member, "add to a folder that was replaced")
        self._check([before], old, verify=True)
        self._settle([state], verify=True)
        engine.shown = list(dict.fromkeys([*shown, before, state]))
        return None

    def _step_foreign(self) -> None:
        """For a while another encoder's collection lies there: reading goes on, nothing else."""
        copy = self.folder / f"made-{next(self._serial)}"
        shutil.copytree(self.templates / "foreign", copy)
        self._away(copy)

    def _step_gone(self) -> None:
        """For a while there is no folder: reading goes on, nothing else."""
        self._away(None)

    def _away(self, folder: Path | None) -> None:
        old = self.folder / f"old-{next(self._serial)}"
        members = [self._member() for _ in range(2)]
        for member in members:
            self._used(member)
            self._call(member, "stats")
        self._note("the folder is gone" if folder is None else "another encoder's folder is there")
        self.path.rename(old)
        if folder is not None:
            folder.rename(self.path)
        self.counts["folders away for a while"] += 1
        for member in members:
            doing = self.random.choice(["refresh", "add", "refresh and add"])
            for command in doing.split(" and "):
                arguments = (self._new_texts(2), None, False) if command == "add" else ()
                self._note(f"{member.name} {command}")
                member.process.send(command, *arguments)
                self._refused(member, command)
            question = self._question()
            self._judge(member, question, self._call(member, "search", question))
        if folder is None:
            if self.path.exists():
                raise Found("wrong", f"{self.path.name} was made by a write that failed")
        else:
            self._in_fresh_process(lambda: _is_foreign(self.path), "wrong")
            shutil.rmtree(self.path)
        old.rename(self.path)
        self._settle([self.current], verify=True)

    def _refused(
        self,
        member: Member,
        doing: str,
        errors: Sequence[str] = ("CollectionError", "EncoderMismatch"),
    ) -> None:
        """A command must fail, by an error of the collection."""
        reply = member.process.receive()
        if reply.error is None:
            raise Found("wrong", f"{member.name} {doing} succeeded")
        if reply.error[0] not in errors:
            raise Found("error", f"{member.name} {doing}: {_error_text(reply)}")
        self.counts["refused"] += 1


WRITES = dict.fromkeys(
    ("add", "add_again", "delete", "delete_where", "update", "optimize", "index_fields", "reindex")
)
APART = [i for i, each in enumerate(FILTERS) if not each.holds({})]
"""Filters that no file matches: vectors with these are found alike whatever `watch` adds."""


def _is_foreign(path: Path) -> None:
    with SearchEngine.open(path, WordLengths(8, "another")) as engine:
        engine.verify()
        found = [hit.key for hit in engine.search("x xx", 20)]
    assert sorted(found) == [f"d{n}" for n in range(9)], found


def _covers(progress: Sequence[int], low: Sequence[int]) -> bool:
    return all(a >= b for a, b in zip(progress, low, strict=True))


def parted(held: Mapping[str, Any], prefix: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The documents whose keys do not begin with a prefix, and those whose keys do; None: none."""
    watched = {k: v for k, v in held.items() if prefix is not None and k.startswith(prefix)}
    return {key: value for key, value in held.items() if key not in watched}, watched


def _item(key: str, value: Sequence[Any]) -> str:
    return json.dumps([key, *value], sort_keys=True)


def _items(state: State, unsure: str | None) -> Iterable[str]:
    return (_item(key, value) for key, value in parted(state.rows, unsure)[0].items())


def _replies(member: Member, count: int) -> list[Reply]:
    replies = []
    with suppress(EOFError):
        for _ in range(count):
            replies.append(member.process.receive())
    return replies


def _error_text(reply: Reply) -> str:
    assert reply.error is not None
    kind, message, where = reply.error
    return f"{kind}: {message}\n{where}"


def _short(arguments: Sequence[Any]) -> str:
    """Arguments for the trail: keys instead of documents."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(each) for each in value]
        return value[0] if isinstance(value, tuple) and len(value) == 4 else value

    return ", ".join(str(short(value)) for value in arguments)[:300]


# ---- the driver ----


def make_templates(folder: Path) -> None:
    """An empty collection and another encoder's, to be copied: to make one takes half a second."""

    def work() -> None:
        create(folder / "empty").close()
        with SearchEngine.create(folder / "foreign", WordLengths(8, "another")) as engine:
            engine.add([Document(f"d{n}", "x xx") for n in range(9)])

    ended = in_child(lambda say: work())
    assert ended.problem is None, ended.problem


@dataclass
class Job:
    """A seed that runs in a process of its own, and where it says what it found."""

    seed: int
    answer: Path
    begun: float = field(default_factory=time.monotonic)


def run_seed(
    seed: int, weights: Mapping[str, int], below: Path, arguments: Mapping[str, Any]
) -> Piece:
    """One seed, in this process, which must have opened nothing.

    `below`: a folder with the templates, in which another is made. `arguments`: the steps to take
    and the sabotage, kept with what was found.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="seed-", dir=below) as name:
        campaign = Campaign(Path(name), seed, weights, below, arguments["sabotage"])
        problem = campaign.run(arguments["steps"])
    seconds = round(time.monotonic() - begun, 2)
    problems = [] if problem is None else [problem]
    return Piece(NAME, arguments, seed, seconds, campaign.counts, problems, source_digest())


def _conduct(job: Job, weights: Mapping[str, int], named: Any) -> None:
    """The life of a seed's process."""
    status = 1
    try:
        signal.alarm(300 + 5 * named["steps"])
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        piece = run_seed(job.seed, weights, job.answer.parent, named)
        scratch = job.answer.with_suffix(".part")
        scratch.write_text(json.dumps(vars(piece)))
        scratch.rename(job.answer)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def chosen_weights(only: str, without: str) -> dict[str, int]:
    """The steps to take: those named, or all but those named."""
    named = set(filter(None, (only + "," + without).split(",")))
    if unknown := named - WEIGHTS.keys():
        raise SystemExit(f"there are no steps {sorted(unknown)}; there are {sorted(WEIGHTS)}")
    left = set(without.split(",")) | (WEIGHTS.keys() - set(only.split(",")) if only else set())
    return {name: 0 if name in left else weight for name, weight in WEIGHTS.items()}


def main(arguments: Sequence[str]) -> int:
    """Run seeds, each in a process of its own, and print what they found."""
    parser = argparse.ArgumentParser(description="Processes that use one collection, and die.")
    parser.add_argument("--seeds", type=seed_range, default=range(1), help="A:B, without B")
    parser.add_argument("--steps", type=int, default=200, help="steps of a seed")
    parser.add_argument("--jobs", type=int, default=1, help="seeds that run at once")
    parser.add_argument("--results", type=Path, help="file to append to, and to resume from")
    parser.add_argument(
        "--folder", type=Path, help="where collections are made; default: the temporary one"
    )
    parser.add_argument("--only", default="", help="steps to take, with commas; default: all")
    parser.add_argument("--without", default="", help="steps to leave out, with commas")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="a fault that must be noticed")
    parser.add_argument("--summary", action="store_true", help="print totals and end")
    options = parser.parse_args(arguments)
    results = Results(options.results)
    if options.summary:
        print(results.summary())
        return 0
    weights = chosen_weights(options.only, options.without)
    named = {name: getattr(options, name) for name in ("steps", "only", "without", "sabotage")}
    seeds = results.unfinished(NAME, named, options.seeds)
    total, problems, begun = Counter[str](), 0, time.monotonic()
    gc.freeze()  # collecting would copy every page that a child shares
    with tempfile.TemporaryDirectory(prefix="processes-", dir=options.folder) as folder:
        make_templates(Path(folder))
        for piece in _pieces(seeds, options.jobs, weights, named, Path(folder)):
            results.append(piece)
            total.update(piece.counts)
            problems += len(piece.problems)
            record = {"seed": piece.seed, "steps": piece.counts["steps"], "seconds": piece.seconds}
            print(json.dumps({**record, "problems": piece.problems}), flush=True)
    seconds = time.monotonic() - begun
    print(json.dumps({"seconds": round(seconds, 1), "problems": problems, "counts": total}))
    return 1 if problems else 0


def _pieces(
    seeds: Iterable[int], jobs: int, weights: Mapping[str, int], named: Any, folder: Path
) -> Iterator[Piece]:
    """Run seeds, some at once, each in a process of its own."""
    waiting, running = deque(seeds), dict[int, Job]()
    while waiting or running:
        while waiting and len(running) < jobs:
            seed = waiting.popleft()
            job = Job(seed, folder / f"{seed}.json")
            child = os.fork()
            if child == 0:
                _conduct(job, weights, named)
            running[child] = job
        ended, status = os.wait()
        job = running.pop(ended)
        if job.answer.exists():
            piece = Piece(**json.loads(job.answer.read_text()))
            piece.counts = Counter(piece.counts)
        else:
            seconds = time.monotonic() - job.begun
            what = [{"kind": "error", "what": f"the conductor ended with status {status}"}]
            piece = Piece(NAME, named, job.seed, seconds, Counter(), what, source_digest())
        yield piece


if __name__ == "__main__":
    under_faults()
    sys.exit(main(sys.argv[1:]))
