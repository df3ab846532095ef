"""One collection, used by processes and threads in random orders, against a dictionary.

    python tests/model.py --seeds 0:20 --steps 5000

Some processes have an engine each on one folder. A conductor draws steps: add, replace, delete,
update, optimize, reindex by another encoder, index a field, mirror a folder of files, refresh, open
again, back up and restore, and several of these at the same time by processes, or by threads of
one. A process may be killed in the midst of any. After every step all documents must be those of
the dictionary, or of one in which each call that ran has happened whole, in some order, or, where
it was killed, not at all; and every answer must be that of brute force over a commit that its
engine may show. A seed ends at its first problem, and its trail is printed. Ends with status 1 if
there was one.
"""

import argparse
import gc
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, permutations
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import faults
from conftest import Remainders, WordLengths
from scenarios import strays

from searchengine import Document, SearchEngine
from searchengine.engine import discard_reindex
from searchengine.errors import QueryError, SearchEngineError
from searchengine.ingest.folder_sync import MirrorOptions

ENCODERS = {each.fingerprint: each for each in (WordLengths(), Remainders())}
PROCESSES = 3
KEYS = 24
FILES = 5
WAIT = 60.0  # seconds that an engine waits for another writer, and a reply may take
CLOSE = 2e-3  # what float16 loses of a cosine
WEIGHTS = {
    "search": 25,
    "add": 14,
    "delete": 5,
    "delete_where": 1,
    "update": 6,
    "mirror": 3,
    "refresh": 10,
    "together": 6,
    "threads": 4,
    "kill": 4,
    "reindex": 1,
    "optimize": 2,
    "index_fields": 1,
    "open": 4,
    "verify": 1,
    "backup": 1,
    "restore": 1,
}
"""How often a step is drawn."""
CHANGES = ("add", "delete", "delete_where", "update", "mirror", "reindex")
QUESTIONS = 12  # that a process answers in a step; each counts as one
PREFIX = "w/"  # of the keys of the folder's documents
WORDS = [letter * length for letter, length in zip("bcdfghjkmn", range(2, 12), strict=True)]


Call = tuple[str, Any]
"""The name of a command, and its argument."""


class Found(Exception):
    """Something is not as it must be."""


@dataclass(frozen=True)
class Question:
    """A search, or (mode "list") a list of documents. `n`: a filter."""

    text: str
    mode: str
    n: int | None

    def finds(self, text: str) -> bool:
        return self.mode != "text" or self.text in text.split()

    def keeps(self, value: tuple[str, int, int]) -> bool:
        return self.n in (None, value[1]) and self.finds(value[0])


Row = tuple[str, float, str, int]
"""Key, score, text and the field n of a document."""


@dataclass(frozen=True)
class State:
    """What a commit holds.

    Attributes:
        held: key → text, the metadata field n, and what it was when last added.
        files: key → text, of the documents of the folder.
        encoder: its fingerprint.
    """

    held: Mapping[str, tuple[str, int, int]]
    files: Mapping[str, str]
    encoder: str = WordLengths().fingerprint

    def after(self, call: Call) -> "State":
        """The state that a write makes of this one."""
        name, argument = call
        held = dict(self.held)
        if name == "add":
            for key, (text, n) in argument.items():
                before = held.get(key)
                kept = before is not None and before[2] == n  # then what `update` has set stays
                held[key] = (text, before[1] if before and kept else n, n)
        elif name == "delete":
            held = {key: value for key, value in held.items() if key not in argument}
        elif name == "delete_where":
            held = {key: value for key, value in held.items() if value[1] != argument}
        elif name == "update" and argument.keys() <= held.keys():
            held |= {key: (held[key][0], n, held[key][2]) for key, n in argument.items()}
        elif name == "mirror_added":  # its first commit adds, its second deletes
            return replace(self, files=self.files | argument)
        elif name == "mirror":
            return replace(self, files=argument)
        elif name == "reindex":
            return replace(self, encoder=argument)
        return replace(self, held=held)

    def check(self, question: Question, answer: list[Row]) -> str:
        """What is wrong with an answer; "" if nothing."""
        encoder = ENCODERS[self.encoder]
        kept = {key: value for key, value in self.held.items() if question.keeps(value)}
        rows = {row[0]: row for row in answer if not row[0].startswith(PREFIX)}
        others = {row[0]: row for row in answer if row[0].startswith(PREFIX)}
        followed = {key for key, text in self.files.items() if question.finds(text)}
        if question.n is None and others.keys() != followed:
            return f"of the folder it has {sorted(others)}, not {sorted(self.files)}"
        if rows.keys() != kept.keys():
            return f"it has {sorted(rows)}, not {sorted(kept)}"
        if any((text, n) != kept[key][:2] for key, _, text, n in rows.values()):
            return "a text or metadata are not those of the commit"
        if question.mode != "vector":
            return ""
        vectors = encoder.encode([question.text, *(kept[key][0] for key in rows)])
        for (_, score, *_), cosine in zip(rows.values(), vectors[1:] @ vectors[0], strict=True):
            if abs(score - cosine) > CLOSE:
                return f"the score {score} is not the cosine {cosine}"
        scores = [row[1] for row in answer]
        return "" if scores == sorted(scores, reverse=True) else "scores do not fall"


def _commits(calls: Sequence[Call]) -> list[Call]:
    """The calls with the first commit of each mirror apart."""
    first = ([("mirror_added", each[1])] * (each[0] == "mirror") for each in calls)
    return [part for parts, each in zip(first, calls, strict=True) for part in (*parts, each)]


class Worker:
    """A process with an engine, and the states that it may show."""

    def __init__(self, path: Path, mirrored: Path, state: State) -> None:
        self.shown, self.encoder = [state], state.encoder
        ours, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            with suppress(EOFError):
                serve(theirs, path, mirrored, state.encoder)
            os._exit(0)
        theirs.close()
        self._connection = ours
        self.receive()  # it has opened the collection

    def send(self, *commands: Call) -> None:
        """Begin to run commands, each in a thread if they are several."""
        self._connection.send(commands)

    def receive(self) -> list[Call]:
        """The outcome of each: ("ok", value) or (name of an error, text)."""
        if not self._connection.poll(WAIT):
            raise Found(f"process {self.pid} does not answer")
        try:
            outcomes: list[Call] = self._connection.recv()
        except EOFError:
            raise Found(f"process {self.pid} died by itself") from None
        return outcomes

    def ask(self, name: str, argument: Any = None) -> tuple[str, Any]:
        self.send((name, argument))
        return self.receive()[0]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._connection.close()


Outcomes = Mapping[Worker, Sequence[Call]]
"""What commands of processes have returned: ("ok", value) or (name of an error, text)."""


def serve(connection: Connection, path: Path, mirrored: Path, encoder: str) -> None:
    """In a worker: run the commands that come."""
    signal.alarm(0)
    gc.freeze()
    engine = Engine(path, mirrored, encoder)
    connection.send([])
    while True:
        commands = connection.recv()
        outcomes: list[Any] = [None] * len(commands)

        def run(place: int, name: str, argument: Any, outcomes: list[Any] = outcomes) -> None:
            try:
                outcomes[place] = ("ok", getattr(engine, name)(argument))
            except BaseException as error:
                kind = type(error).__name__
                text = str(error) if isinstance(error, SearchEngineError) else ""
                outcomes[place] = (kind, text or traceback.format_exc())

        if len(commands) == 1:
            run(0, *commands[0])
        else:
            threads = [
                threading.Thread(target=run, args=(place, *command))
                for place, command in enumerate(commands)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        connection.send(outcomes)


class Engine:
    """What a worker can be told."""

    def __init__(self, path: Path, mirrored: Path, encoder: str) -> None:
        self._path, self._watched = path, mirrored
        self._engine: SearchEngine = None  # type: ignore[assignment]
        self.open(encoder)

    def open(self, encoder: str) -> None:
        self.close(None)
        self._engine = SearchEngine.open(self._path, ENCODERS[encoder], wait=WAIT)

    def close(self, _: None) -> None:
        if self._engine is not None:
            self._engine.close()

    def __getattr__(self, name: str) -> Callable[[Any], object]:
        """A method of SearchEngine: delete, optimize, index_fields, refresh, verify, backup."""
        method = getattr(self._engine, name)
        return lambda argument: method() if argument is None else method(argument)

    def add(self, documents: Mapping[str, tuple[str, int]]) -> None:
        self._engine.add(
            [Document(key, text, metadata={"n": n}) for key, (text, n) in documents.items()]
        )

    def delete_where(self, n: int) -> None:
        self._engine.delete(where=f"n = {n}")

    def update(self, numbers: Mapping[str, int]) -> None:
        with suppress(QueryError):  # a key is missing, so nothing is updated
            self._engine.update({key: {"n": n} for key, n in numbers.items()})

    def mirror(self, _: Any) -> None:
        self._engine.mirror(self._watched, MirrorOptions(key_prefix=PREFIX))

    def reindex(self, encoder: str) -> None:
        self._engine.reindex(ENCODERS[encoder])

    def search(self, question: Question) -> list[Row]:
        where = None if question.n is None else f"n = {question.n}"
        if question.mode == "list":
            return [
                (d.key, 0.0, d.text, d.metadata.get("n", 0)) for d in self._engine.documents(where)
            ]
        hits = self._engine.search(
            question.text, k=200, where=where, mode=question.mode, typo_tolerance=False
        )
        return [(hit.key, hit.score, hit.text, hit.metadata.get("n", 0)) for hit in hits]

    def searches(self, questions: Sequence[Question]) -> list[list[Row]]:
        return [self.search(question) for question in questions]


class World:
    """One seed: the processes, the dictionary, and the folder of files."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path, self.mirrored = folder / "c", folder / "files"
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.trail: deque[str] = deque(maxlen=30)
        self.backups: list[tuple[Path, State]] = []
        self.state, self._time = State({}, {}), 10**9
        self.mirrored.mkdir()
        in_child(lambda: SearchEngine.create(self.path, WordLengths()).close())
        self.change_file()
        self.workers = [self.start() for _ in range(PROCESSES)]

    def start(self) -> Worker:
        return Worker(self.path, self.mirrored, self.state)

    # ---- drawing ----

    def text(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 6)))

    def key(self) -> str:
        return f"d{self.random.randrange(KEYS)}"

    def write(self, name: str) -> Call:
        """A call that changes documents."""
        some = [self.key() for _ in range(self.random.choice((1, 1, 2, 5)))]
        match name:
            case "add":
                return name, {key: (self.text(), self.random.randrange(4)) for key in some}
            case "update":
                return name, {key: self.random.randrange(4) for key in some}
            case "delete":
                return name, some
            case "delete_where":
                return name, self.random.randrange(4)
            case "mirror":
                return name, self.files()
            case "reindex":
                return name, self.random.choice([*ENCODERS])
            case "index_fields":
                return name, "n"
        return name, None

    def writes(self) -> Call:
        names = ("add", "add", "update", "delete", "delete_where", "optimize", "mirror")
        return self.write(self.random.choice(names))

    def question(self) -> Question:
        mode = self.random.choice(("vector", "vector", "text", "list"))
        text = self.random.choice(WORDS) if mode == "text" else self.text()
        return Question(text, mode, self.random.choice((None, None, 0, 1)))

    def files(self) -> dict[str, str]:
        return {f"{PREFIX}{file.name}": file.read_text() for file in self.mirrored.iterdir()}

    def change_file(self) -> None:
        """Write a file, or remove one."""
        file = self.mirrored / f"{self.random.randrange(FILES)}.txt"
        if file.exists() and self.random.random() < 0.3 and len(self.files()) > 1:
            file.unlink()
        else:
            new = self.mirrored.with_name("new")
            new.write_text(self.text())
            self._time += 1  # a time of its own, else a quick change might not be seen
            os.utime(new, (self._time, self._time))
            new.rename(file)

    # ---- judging ----

    def stored(self) -> State:
        """What documents.db holds."""
        with closing(sqlite3.connect(f"file:{self.path}/documents.db?mode=ro", uri=True)) as db:
            rows = db.execute("SELECT key, text, metadata, source FROM documents").fetchall()
            ((encoder,),) = db.execute("SELECT value FROM settings WHERE name = 'encoder'")
        ours = [row for row in rows if not row[0].startswith(PREFIX)]
        return State(
            {
                key: (text, json.loads(metadata)["n"], json.loads(source or metadata)["n"])
                for key, text, metadata, source in ours
            },
            {key: text for key, text, *_ in rows if key.startswith(PREFIX)},
            encoder_of(json.loads(encoder)),
        )

    def settle(self, done: Sequence[Call], killed: Sequence[Call] = ()) -> list[State]:
        """Find which of the possible states is stored now; returns all on the ways to them.

        `done` have happened, in some order; `killed` have, or not.
        """
        now, seen = self.stored(), [self.state]
        ends: list[State] = []
        done, killed = _commits(done), _commits(killed)
        for kept in range(len(killed) + 1):
            for order in permutations([*done, *killed[:kept]]):
                ways = [*accumulate(order, State.after, initial=self.state)]
                seen += ways
                ends.append(ways[-1])
        if now not in ends:
            raise Found(f"it holds {now}\nafter {done}, killed {killed}\nbefore: {self.state}")
        self.state = now
        return [*seen, now]

    def judge(
        self, worker: Worker, question: Question, answer: list[Row], also: Sequence[State] = ()
    ) -> None:
        faults = []
        for state in (*worker.shown, *also):
            fault = state.check(question, answer)
            if not fault:
                return
            faults.append(fault)
        raise Found(f"{question} of process {worker.pid}: {set(faults)}; got {answer}")

    # ---- steps ----

    def run(self, calls: Mapping[Worker, Sequence[Call]], kill: Worker | None = None) -> None:
        """Run calls at the same time, and judge what came of them."""
        for worker, own in calls.items():
            worker.send(*own)
        if kill is not None:
            time.sleep(self.random.random() ** 2 * 0.05)
            kill.kill()
        outcomes = {worker: worker.receive() for worker in calls if worker is not kill}
        done = self._done(calls, outcomes)
        killed = [] if kill is None else [call for call in calls[kill] if call[0] in CHANGES]
        seen = self.settle(done, killed)
        for worker, results in outcomes.items():
            alone = len(calls) == len(calls[worker]) == 1
            for (name, argument), (kind, value) in zip(calls[worker], results, strict=True):
                if name == "search" and kind == "ok":
                    self.judge(worker, argument, value, seen)
            self._show(worker, calls[worker], [self.state] if alone else seen)
        if kill is not None:
            self.workers[self.workers.index(kill)] = self.start()

    def _done(self, calls: Mapping[Worker, Sequence[Call]], outcomes: Outcomes) -> list[Call]:
        """The writes that were done; one may be refused since another process reindexed."""
        reindexed = any(name == "reindex" for own in calls.values() for name, _ in own)
        done = []
        for worker, results in outcomes.items():
            behind = reindexed or worker.encoder != self.state.encoder
            for call, (kind, value) in zip(calls[worker], results, strict=True):
                if kind == "EncoderMismatch" and behind:
                    self.counts["mismatch"] += 1
                    worker.encoder = ""
                elif kind != "ok":
                    raise Found(f"{call} raised {kind}: {value}")
                elif call[0] in CHANGES:
                    done.append(call)
        return done

    def _show(self, worker: Worker, calls: Sequence[Call], seen: list[State]) -> None:
        """Note which states a process may show after calls; open again what another reindexed."""
        if not worker.encoder:
            return self.reopen(worker)
        for name, argument in calls:
            if name == "reindex":
                worker.encoder = self.state.encoder
            refused = name == "update" and any(argument.keys() - each.held.keys() for each in seen)
            if refused or name in ("verify", "backup"):  # which need not show the newest commit
                seen = [*worker.shown, *seen]
        worker.shown = seen
        return None

    def ask(self, worker: Worker, questions: list[Question]) -> None:
        """Let a process answer questions, one after the other."""
        kind, answers = worker.ask("searches", questions)
        if kind == "EncoderMismatch" and worker.encoder != self.state.encoder:
            return self.reopen(worker)
        if kind != "ok":
            raise Found(f"{questions} raised {kind}: {answers}")
        for question, answer in zip(questions, answers, strict=True):
            self.judge(worker, question, answer)
        self.counts["search"] += len(questions) - 1
        return None

    def reopen(self, worker: Worker) -> None:
        kind, value = worker.ask("open", self.state.encoder)
        if kind != "ok":
            raise Found(f"opening raised {kind}: {value}")
        worker.shown, worker.encoder = [self.state], self.state.encoder

    def step(self) -> None:
        """Draw a step, and take it."""
        name = self.random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        worker = self.random.choice(self.workers)
        self.counts[name] += 1
        self.trail.append(f"{name} by {worker.pid}")
        if name == "mirror":
            self.change_file()
        if taken := getattr(self, f"_step_{name}", None):
            taken(worker)
        else:
            self.run({worker: [self.write(name)]})

    def _step_search(self, worker: Worker) -> None:
        self.ask(worker, [self.question() for _ in range(QUESTIONS)])

    def _step_open(self, worker: Worker) -> None:
        self.reopen(worker)

    def _step_together(self, _: Worker) -> None:
        """Two processes write at the same time, and one of them may be killed."""
        one, two = self.random.sample(self.workers, 2)
        reindexes = self.random.random() < 0.15
        calls = {one: [self.write("reindex") if reindexes else self.writes()], two: [self.writes()]}
        self.run(calls, self.random.choice([None, None, one]))

    def _step_threads(self, worker: Worker) -> None:
        """Threads of a process write and search at the same time."""
        questions = [("search", self.question()) for _ in range(2)]
        self.run({worker: [self.writes(), self.writes(), *questions]})
        self.counts["search"] += 2

    def _step_kill(self, worker: Worker) -> None:
        name = self.random.choice(("add", "delete", "update", "optimize", "mirror", "reindex"))
        self.run({worker: [self.write(name)]}, worker)

    def _step_backup(self, worker: Worker) -> None:
        path = self.path.with_name(f"backup-{self.counts['backup']}")
        self.run({worker: [("refresh", None)]})
        self.run({worker: [("backup", path)]})
        self.backups.append((path, self.state))

    def _step_restore(self, _: Worker) -> None:
        """Put a backup in the place of the collection, while no engine has it open."""
        if not self.backups:
            return
        path, self.state = self.backups.pop(self.random.randrange(len(self.backups)))
        for worker in self.workers:
            worker.ask("close")
        shutil.rmtree(self.path)
        path.rename(self.path)
        self.settle([])
        for worker in self.workers:
            self.reopen(worker)

    def end(self) -> None:
        """Close everything; the next writer finds all well and leaves nothing behind."""
        for worker in self.workers:
            worker.ask("close")

        def last() -> None:
            with SearchEngine.open(self.path, ENCODERS[self.state.encoder], wait=WAIT) as engine:
                discard_reindex(engine)  # one that was killed stays, to be gone on with
                engine.add([Document("last", "kk", metadata={"n": 0})])
                engine.add([Document("last", "kk", metadata={"n": 0})])  # removes what is replaced
                engine.verify()

        in_child(last)
        self.settle([("add", {"last": ("kk", 0)})])
        if left := strays(self.path):
            raise Found(f"left behind: {left}")


def encoder_of(setting: Any) -> str:
    """The fingerprint in the setting of an encoder."""
    return str(setting["fingerprint"] if isinstance(setting, dict) else setting)


def in_child(work: Callable[[], object]) -> None:
    """Do something in a forked process, so that this one never opens an engine."""
    if problem := faults.in_child(lambda say: work(), 300).problem:  # type: ignore[func-returns-value]
        raise Found(problem)


def warm_up(folder: Path | None) -> None:
    """Import everything once, here, rather than in each worker."""
    with tempfile.TemporaryDirectory(prefix="model-", dir=folder) as name:
        files = Path(name) / "files"
        files.mkdir()
        (files / "0.txt").write_text("bb")
        SearchEngine.create(f"{name}/c", WordLengths()).close()
        engine = Engine(Path(name) / "c", files, WordLengths().fingerprint)
        engine.mirror(None)
        engine.reindex(Remainders().fingerprint)
        engine.searches([Question("bb", mode, None) for mode in ("vector", "text", "list")])
        engine.close(None)
        gc.collect()
    gc.freeze()


def run(seed: int, steps: int, folder: Path | None = None) -> tuple[Counter[str], str]:
    """The steps of a seed: how often each was taken, and what went wrong; "" if nothing."""
    with tempfile.TemporaryDirectory(
        prefix="model-", dir=folder, ignore_cleanup_errors=True
    ) as name:
        world = World(Path(name), seed)
        problem = ""
        try:
            while world.counts.total() < steps:
                world.step()
            world.end()
        except Found as found:
            problem = f"seed {seed}: {found}\n" + "\n".join(world.trail)
        finally:
            for worker in world.workers:
                with suppress(ChildProcessError, OSError):
                    worker.kill()
        return world.counts, problem


def main() -> int:
    parser = argparse.ArgumentParser(description="A collection against a dictionary.")
    parser.add_argument("--seeds", default="0:4", help="A:B")
    parser.add_argument("--steps", type=int, default=5000, help="steps of a seed")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="to work in")
    options = parser.parse_args()
    warm_up(options.folder)
    first, last = map(int, options.seeds.split(":"))
    failed = False
    for seed in range(first, last):
        counts, problem = run(seed, options.steps, options.folder)
        print(json.dumps({"seed": seed, "steps": sum(counts.values()), **counts}), flush=True)
        if problem:
            print(problem, flush=True)
        failed |= bool(problem)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
