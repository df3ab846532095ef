"""Every command that writes, disturbed at every step that it can be: killed, cut or out of room.

    python tests/fault_harness.py                                   # all of it
    python tests/fault_harness.py --only add optimize --ways kill full --points 20 --seed 1

A step is a call that changes a file or folder (tests/faults.c counts them). At each the process is
killed before it (`kill`) or half way through a write (`tear`), the disk is full from then on
(`full`), the call fails once (`error`), or the power is cut: all that was not synced is lost, or
any part of it (`cut`, tests/powercut.py). Then the collection must hold what it held before or what
one of the command's commits makes of it, whole; acknowledged documents stay. Searches give what
brute force gives, `verify` passes, the command succeeds when it is given again, and the next writer
leaves nothing behind. A command that is refused says so by a CollectionError and changes nothing.

Prints a line of JSON for each command; ends with status 1 if anything was not so.
"""

import argparse
import errno
import gc
import json
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from conftest import Remainders, WordLengths, commits_of
from faults import Action, Library, Record, in_child, records, under_faults
from powercut import Disk
from scenarios import answers_as_brute_force, document, leave_pending, stored, strays

from searchengine import SearchEngine
from searchengine.engine import discard_reindex
from searchengine.errors import CollectionError, SearchEngineError
from searchengine.indexer.segment import SegmentConfig
from searchengine.ingest.folder_sync import MirrorOptions
from searchengine.upkeep import copies, tuning

Act = Callable[[SearchEngine], object]
WAYS = ("kill", "tear", "full", "error", "cut")
_SECONDS = 300  # that one try may take
_ENCODERS = {each.fingerprint: each for each in (WordLengths(), Remainders())}
_VOLATILE = ("commit", "commit_id", "tombstones_id")  # settings that each commit changes


class Command(NamedTuple):
    """A change of a collection.

    Attributes:
        act: the command.
        prepare: done before, undisturbed.
        commits: the command in parts of one commit each, where it has several.
        target: what it writes beside the collection, with no other documents, and in the end all.
        creates: the collection is made under faults, too.
        damaged: until the command has succeeded, the collection is.
    """

    act: Act
    prepare: Act = lambda engine: None
    commits: Sequence[Act] = ()
    target: str = ""
    creates: bool = False
    damaged: bool = False


def add(*numbers: int, version: int = 0) -> Act:
    documents = [document(number, version) for number in numbers]
    return lambda engine: engine.add(documents)


def add_by_two(engine: SearchEngine) -> None:
    with commits_of(2):
        add(6, 7, 8, 9, 10)(engine)


def mirror(engine: SearchEngine) -> None:
    engine.mirror(beside(engine, "files"), MirrorOptions(key_prefix="w/"))


def write_files(engine: SearchEngine) -> None:
    """Files that were mirrored; since then one has changed, one is new, and one is gone."""
    folder = beside(engine, "files")
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"{name} xx")
    mirror(engine)
    (folder / "a.txt").write_text("xxx x")
    (folder / "d.txt").write_text("d xxxx")
    (folder / "b.txt").rename(beside(engine, "b.gone"))


def mirror_first(engine: SearchEngine) -> None:
    """The first commit of `mirror`, after which the document of a file that is gone goes."""
    gone, file = beside(engine, "b.gone"), beside(engine, "files") / "b.txt"
    gone.rename(file)
    mirror(engine)
    file.rename(gone)


def back_up(engine: SearchEngine) -> None:
    if not _is_whole(target := beside(engine, "backup")):
        engine.backup(target)


def export(engine: SearchEngine) -> None:
    target = beside(engine, "exported")
    with suppress(FileNotFoundError):
        shutil.rmtree(target)
    engine.export(target)


def copy(engine: SearchEngine) -> None:
    """Batches of a commit each: given again, it goes on."""
    copies.copy(beside(engine, "c"), beside(engine, "copy"))


def alter(engine: SearchEngine) -> None:
    """Another text than the one that was encoded."""
    with closing(sqlite3.connect(beside(engine, "c") / "documents.db")) as connection, connection:
        connection.execute("UPDATE documents SET text = 'xx xxxxx xxx' WHERE key = 'd0'")


def repair(engine: SearchEngine) -> None:
    assert SearchEngine.repair(beside(engine, "c"), WordLengths()).whole
    engine.refresh()


def learn(engine: SearchEngine) -> None:
    described = dict.fromkeys(tuning.DESCRIBED, 0)
    engine.collection.configure(
        tuning.map_setting(described, np.eye(16, dtype=np.float32), WordLengths(16))
    )


def beside(engine: SearchEngine, name: str) -> Path:
    """A path in the folder of the collection's folder."""
    return Path(engine.collection.path).with_name(name)


def _is_whole(path: Path) -> bool:
    return (path / "documents.db").exists()


COMMANDS = {
    "create": Command(add(0, 1), creates=True),
    "add": Command(add(6, 7)),
    "replace": Command(add(0, 6, version=1)),
    "add by two": Command(add_by_two, commits=[add(6, 7), add(8, 9), add(10)]),
    "delete": Command(lambda engine: engine.delete(["d0", "d5"])),
    "delete where": Command(lambda engine: engine.delete(where="even = true")),
    "update": Command(lambda engine: engine.update({"d0": {"seen": 2}, "d3": {"seen": 1}})),
    "index_fields": Command(lambda engine: engine.index_fields("n", "even")),
    "set_synonyms": Command(lambda engine: engine.set_synonyms([["x", "xx"]])),
    "set_default": Command(lambda engine: engine.set_default(mode="vector")),
    "optimize": Command(lambda engine: engine.optimize()),
    "merge": Command(add(9), prepare=lambda engine: [add(n)(engine) for n in (6, 7, 8)]),
    "reindex": Command(lambda engine: engine.reindex(Remainders())),
    "reindex again": Command(
        lambda engine: engine.reindex(Remainders()),
        prepare=lambda engine: leave_pending(engine, Remainders()),
    ),
    "discard": Command(
        lambda engine: discard_reindex(engine),
        prepare=lambda engine: leave_pending(engine, Remainders()),
    ),
    "tune": Command(lambda engine: engine.apply(SegmentConfig(prefix=4))),  # the same commit
    "learn": Command(learn),
    "repair": Command(repair, prepare=alter, damaged=True),
    "mirror": Command(mirror, prepare=write_files, commits=[mirror_first, mirror]),
    "backup": Command(back_up, target="backup"),
    "export": Command(export),
    "copy": Command(copy, target="copy"),
}


class Content(NamedTuple):
    """What documents.db holds: documents, settings and indexed fields."""

    documents: list[tuple[Any, ...]]
    settings: list[tuple[str, str]]
    fields: list[str]


def content(path: Path) -> Content | None:
    """None: there is no collection."""
    if not _is_whole(path):
        return None
    with closing(sqlite3.connect(path / "documents.db")) as connection:
        sql = "SELECT key, title, text, metadata, source, root, vectors FROM documents ORDER BY key"
        documents = connection.execute(sql).fetchall()
        settings = connection.execute("SELECT name, value FROM settings ORDER BY name").fetchall()
        fields = connection.execute("SELECT path FROM fields ORDER BY path").fetchall()
    return Content(
        documents, [each for each in settings if each[0] not in _VOLATILE], [f for (f,) in fields]
    )


def encoder_of(path: Path) -> WordLengths:
    """The encoder that a collection stores."""
    if not _is_whole(path):
        return WordLengths()
    with closing(sqlite3.connect(path / "documents.db")) as connection:
        sql = "SELECT value FROM settings WHERE name = 'encoder'"
        return _ENCODERS[json.loads(connection.execute(sql).fetchone()[0])["fingerprint"]]


@contextmanager
def opened(path: Path, encoder: WordLengths | None = None) -> Iterator[SearchEngine]:
    """The collection with the encoder that it stores, or a new one."""
    if _is_whole(path):
        engine = SearchEngine.open(path, encoder or encoder_of(path))
    else:
        engine = SearchEngine.create(path, WordLengths(), SegmentConfig(prefix=8))
    try:
        yield engine
    finally:
        with suppress(CollectionError):  # a disk that is full
            engine.close()


class Harness:
    """One command, in a folder that is copied for every try."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command, self.library = command, Library()
        self.base, self.work, self._folder = folder / "base", folder / "work", folder
        self.path = self.work / "c"
        self.work.mkdir()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._expect(self._prepare)
        shutil.copytree(self.work, self.base)
        self.contents = [content(self.path)]
        for act in command.commits or [command.act]:
            self._expect(partial(self._act, act))
            self.contents.append(content(self.path))

    def _expect(self, work: Callable[[], None]) -> None:
        outcome = in_child(lambda say: work(), _SECONDS)
        assert outcome.problem is None, outcome.problem

    def _prepare(self) -> None:
        if not self.command.creates:
            with opened(self.path) as engine:
                for act in (add(0, 1, 2, 3), add(4), lambda e: e.delete(["d1"]), add(5)):
                    act(engine)
                self.command.prepare(engine)

    def _act(self, act: Act) -> None:
        with opened(self.path) as engine:
            act(engine)

    def fresh(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.base, self.work)

    def steps(self) -> list[Record]:
        """The calls of the command with their data, and a mark where it was acknowledged."""
        journal = self._folder / "journal"

        def recorded() -> None:
            self.library.arm(self.work, record=True)
            with opened(self.path) as engine:
                self.command.act(engine)
                self.library.mark(1)
            journal.write_bytes(self.library.journal())
            self.library.disarm()

        self.fresh()
        self._expect(recorded)
        return [*records(journal.read_bytes())]

    # ---- the ways ----

    def disturb(self, ways: Sequence[str], points: int | None, seed: int) -> None:
        """Try every way at every step, or at `points` of them by chance."""
        steps = self.steps()
        numbered = [step for step in steps if step.kind != "k"]
        numbers = [*range(1, len(numbered) + 1)]
        self.counts["steps"] = len(numbers)
        if points is not None and points < len(numbers):
            numbers = sorted(Random(seed).sample(numbers, points))
        for way in ways:
            if way == "cut":
                self._cut(steps, {*numbers}, seed)
                continue
            for number in numbers:
                if way == "tear" and numbered[number - 1].kind != "w":
                    continue
                where = f"{way} at step {number} ({numbered[number - 1]})"
                self.counts[way] += 1
                self.fresh()
                self._kill(way, number, where) if way in ("kill", "tear") else self._fail(
                    way, number, where
                )

    def _kill(self, way: str, number: int, where: str) -> None:
        def work(say: Callable[[Any], None]) -> None:
            encoder = encoder_of(self.path)
            self.library.arm(self.work, number, Action.KILL if way == "kill" else Action.TEAR)
            with opened(self.path, encoder) as engine:
                self.command.act(engine)
                say("acknowledged")

        outcome = in_child(work, _SECONDS)
        if outcome.signal != signal.SIGKILL:  # not every run closes by as many calls
            self.counts["not reached"] += 1
            if outcome.problem or not outcome.said:
                self.problems.append(f"{where}: {outcome.problem or 'it was not killed'}")
        self._check(where, bool(outcome.said))

    def _fail(self, way: str, number: int, where: str) -> None:
        """The command may be refused; given again, when there is room, it succeeds."""

        def work(say: Callable[[Any], None]) -> None:
            once, encoder = way == "error", encoder_of(self.path)
            action = Action.FAIL_ONCE if once else Action.FAIL_FROM
            self.library.arm(self.work, number, action, errno.EIO if once else errno.ENOSPC)
            try:
                with opened(self.path, encoder) as engine:
                    try:
                        self.command.act(engine)
                        say("acknowledged")
                    except SearchEngineError as error:
                        self.library.disarm()
                        assert isinstance(error, CollectionError), repr(error)
                        say("refused")
                        held = content(self.path)
                        unchanged = held in self.contents[:-1] or self._is_new(held)
                        assert unchanged, f"refused, and changed: {error}"
                        engine.refresh()
                        if not self.command.damaged:
                            self._answers(engine)
                        self.command.act(engine)
                        say("acknowledged")
            except SearchEngineError as error:  # it could not be opened
                self.library.disarm()
                assert isinstance(error, CollectionError), repr(error)
                say("refused")
            self.library.disarm()

        outcome = in_child(work, _SECONDS)
        self.counts["refused"] += "refused" in outcome.said
        if outcome.problem is not None:
            self.problems.append(f"{where}: {outcome.problem:.600}")
        else:
            self._check(where, "acknowledged" in outcome.said)

    def _cut(self, steps: Sequence[Record], numbers: set[int], seed: int) -> None:
        """Cut the power before each step, and after the last."""
        disk, acknowledged, number = Disk(self.base, seen_as=self.work), False, 0
        for step in [*steps, None]:
            if step is not None and step.kind == "k":
                acknowledged = True
                continue
            number += 1
            if number in numbers or step is None:
                for chance in (None, 1000 * seed + number):
                    shutil.rmtree(self.work, ignore_errors=True)
                    disk.write_after_cut(self.work, chance)
                    if (files := self.base / "files").exists():  # of the user, with their times
                        shutil.rmtree(self.work / "files", ignore_errors=True)
                        shutil.copytree(files, self.work / "files")
                    self.counts["cut"] += 1
                    where = f"cut before step {number} ({step or 'none'}), seed {chance}"
                    self._check(where, acknowledged)
            if step is not None:
                disk.apply(step)

    # ---- judging ----

    def _is_new(self, held: Content | None) -> bool:
        """Whether the collection has just been made, or not yet."""
        return self.command.creates and (held is None or not held.documents)

    def _check(self, where: str, acknowledged: bool) -> None:
        """Judge the work folder, in a child."""
        allowed = self.contents[-1:] if acknowledged else self.contents
        outcome = in_child(lambda say: self._judge(allowed, acknowledged, say), _SECONDS)
        self.counts["in flight"] += bool(outcome.said) and not acknowledged
        if outcome.problem is not None:
            self.problems.append(f"{where}: {outcome.problem:.600}")

    def _judge(
        self, allowed: Sequence[Content | None], acknowledged: bool, say: Callable[[Any], None]
    ) -> None:
        held = content(self.path)
        if self._is_new(held):
            assert allowed[0] is None, "acknowledged documents are lost"
        else:
            assert held in allowed, f"holds {_difference(held, allowed)}"
            say("in flight") if held == self.contents[-1] != self.contents[0] else None
        target = content(self.path.with_name(self.command.target or "none"))
        if target is not None:
            assert all(row in held.documents for row in target.documents), "not of the original"
            whole = acknowledged or self.command.act is not copy
            assert not whole or len(target.documents) == len(held.documents), "it is not whole"
        with opened(self.path) as engine:
            if not self.command.damaged:
                engine.verify()
                self._answers(engine)
            self.command.act(engine)
        if self.command.target:
            target = content(self.path.with_name(self.command.target))
            assert target is not None and target.documents == held.documents, "it is not whole"
        held, last = content(self.path), self.contents[-1:]
        assert held in last, f"given again, it left {_difference(held, last)}"
        with opened(self.path) as engine:
            discard_reindex(engine)  # one that was cut stays, to be gone on with
            engine.add([document(255)])
            engine.add([document(255)])  # changes nothing, and removes replaced segments
            engine.verify()
            self._answers(engine)
        left = [self.path / each for each in strays(self.path)]
        # After a cut an empty folder may lack its lock file, and is left alone as anybody's.
        if left := [each for each in left if not (each.is_dir() and not any(each.iterdir()))]:
            raise AssertionError(f"left behind: {left}")

    def _answers(self, engine: SearchEngine) -> None:
        held = {key: each for key, each in stored(self.path).items() if not key.startswith("w/")}
        if len(held) == len(engine):  # documents of files have no field `even`
            answers_as_brute_force(engine, held, _ENCODERS[engine.encoder.load().fingerprint])


def _difference(held: Content | None, allowed: Sequence[Content | None]) -> str:
    """What a content has that none of the allowed ones has, and what it lacks."""
    texts = [{str(each) for part in content or () for each in part} for content in (held, *allowed)]
    every = set().union(*texts[1:])
    return f"{sorted(texts[0] - every)}, and lacks {[sorted(t - texts[0]) for t in texts[1:]]}"


def run(name: str, ways: Sequence[str] = WAYS, points: int | None = None, seed: int = 0) -> Any:
    """What one command showed: counts, and problems."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir=_memory()) as folder:
        harness = Harness(COMMANDS[name], Path(folder))
        harness.disturb(ways, points, seed)
        return {"command": name, **harness.counts, "problems": harness.problems}


def _memory() -> str | None:
    """A folder in memory: what a process has written outlives it wherever it lies."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Commands disturbed at every step.")
    parser.add_argument("--only", nargs="*", default=[*COMMANDS], choices=[*COMMANDS])
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--points", type=int, help="steps of a command, by chance; default: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    gc.freeze()  # collecting would copy every page that a child shares
    failed = False
    for name in options.only:
        tally = run(name, options.ways, options.points, options.seed)
        print(json.dumps(tally, ensure_ascii=False), flush=True)
        failed |= bool(tally["problems"])
    return int(failed)


if __name__ == "__main__":
    under_faults()
    sys.exit(main())
