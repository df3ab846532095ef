"""Threads of one process that use one collection, stepped by a seed: a campaign.

    python tests/threads_campaign.py --seeds 0:40 --steps 500 --results found.jsonl
    python tests/threads_campaign.py --results found.jsonl --summary

Three threads share an engine, a fourth has its own on the same folder. They add, update, delete,
mirror a folder, watch another one whose files change meanwhile, search, refresh, optimize, reindex
by another encoder, prepare a reindex and discard it. One runs at a time, from point to point
(tests/stepped.py). After every step that has changed the database, all of it is compared with a
model: the documents are those before or after the call that runs; every document has its passages,
and each stored vector is that of the collection's encoder for its text; no id has come back. Every
search must return what brute force finds in the commit that it read. After a pass of `watch` the
document of every file that has not changed meanwhile must be as the file is. A seed ends at its
first problem, and repeats it. Ends with status 1 if there was one.
"""

import argparse
import gc
import json
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from campaign_results import Piece, Results, seed_range, source_digest
from conftest import Remainders, WordLengths
from expected import Record, added, patched
from pending import leave_pending
from stepped import Actor, Hung, Stepper, stepped
from watched_folder import Held, Looks, WatchedFolder

from searchengine import Document, SearchEngine
from searchengine.backends.folder import collection as ahead
from searchengine.backends.folder import merging
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.changes import Changes
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.folders import folder_of
from searchengine.backends.folder.merging import Merging
from searchengine.backends.folder.view import View
from searchengine.backends.folder.writer import WritableView
from searchengine.corpus.files import read_corpus
from searchengine.encoders.loading import CollectionEncoder
from searchengine.errors import CollectionBusy, CollectionError, EncoderMismatch, QueryError
from searchengine.indexer.segment import Segment
from searchengine.ingest import folder_sync, ingestion, pipeline
from searchengine.ingest.folder_sync import FolderSync, MirrorOptions
from searchengine.ingest.ingestion import Ingestion
from searchengine.ingest.passages import PassageReader
from searchengine.query.hits import Hits
from searchengine.upkeep import reindex, verify
from searchengine.upkeep.reindex import Reindexing

NAME = "threads"
KEYS = 14
ENCODERS = {each.fingerprint: each for each in (WordLengths(), Remainders())}
_CLOSE = 2e-3  # what float16 loses of a cosine
_UNSHOWN = "is committed, but cannot be shown"

POINTS: list[tuple[Any, str]] = [
    (View, "refresh"),
    (View, "reading"),
    (View, "_newest"),
    (View, "_show_newest"),
    (WritableView, "own_store"),
    (WritableView, "opened"),
    (CollectionEncoder, "load"),
    (CollectionEncoder, "questions"),
    (CollectionEncoder, "expect"),
    (CollectionEncoder, "settle"),
    (ingestion, "passage_reader"),
    (FolderSync, "look"),
    (FolderSync, "run"),
    (FolderSync, "settle"),
    (FolderSync, "_adopt"),
    (FolderSync, "_keys"),
    (Collection, "delete"),
    (PassageReader, "cut"),
    (Ingestion, "_read_block"),
    (Ingestion, "_commit"),
    (Ingestion, "_encode"),
    (Reindexing, "_catch_up"),
    (Reindexing, "_documents"),
    (Reindexing, "_linked"),
    (Reindexing, "_adopt"),
    (Merging, "_build"),
    (Merging, "end"),
]
"""Calls before which an actor pauses."""

WEIGHTS = {
    "add": 10,
    "delete": 6,
    "delete_where": 1,
    "update": 4,
    "mirror": 2,
    "watch": 3,
    "files": 8,
    "search": 8,
    "refresh": 3,
    "optimize": 1,
    "reindex": 4,
    "preview": 1,
    "discard": 1,
}
"""How often an operation is chosen."""

State = Mapping[str, Record]
After = Callable[[State], State]


class Found(Exception):
    """A problem: its kind (vector, id, lost, wrong, error, hung), and what it is."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what


@dataclass(eq=False)
class Opened:
    """An engine; `stale`: another one has changed the encoder since."""

    engine: SearchEngine
    stale: bool = False


@dataclass(eq=False)
class Call:
    """An operation that an actor is doing.

    Attributes:
        name: of the operation.
        used: the engine.
        commits: what each commit makes of the documents, in their order.
        encoder: the fingerprint that it brings.
        done: number of `commits` that were seen, with those before them.
        idle: which of them would have changed nothing at some moment.
        committed: whether one was seen.
        wrong_change: instead of `commits`: why it must not have made one state of another.
        since: the last change of the watched folder before it has looked.
        stale: whether the engine was, or became, stale.
        refused: errors that it may end by.
    """

    name: str
    used: Opened
    commits: Sequence[After] = ()
    encoder: str | None = None
    done: int = 0
    idle: set[int] = field(default_factory=set)
    committed: bool = False
    wrong_change: Callable[[State, State], str | None] | None = None
    since: int = 0
    stale: bool = False
    refused: tuple[type[Exception], ...] = ()


@dataclass(eq=False)
class Campaign:
    """One seed."""

    folder: Path
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    trail: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    def __post_init__(self) -> None:
        self.path, self.files = self.folder / "c", self.folder / "files"
        self.random = Random(self.seed)
        self.stepper = Stepper(self.random)
        self.calls: dict[Actor, Call] = {}
        self.read: dict[int, object] = {}  # thread → the id of the commit that it has read
        self.state: State = {}
        self.encoder = "word-lengths"
        self.history: dict[object, tuple[State, str]] = {}
        self.problem: Found | None = None
        self.finishing = False
        self._serial = 0
        self._version: int | None = None
        self._commit: object = None
        self._stored: dict[Any, Any] = {}  # segment → its vectors
        self._seen: dict[str, dict[int, Any]] = {}
        self._gone: dict[str, set[int]] = {}

    # ---- a seed, from its start to its end ----

    def run(self, steps: int) -> dict[str, Any] | None:
        """Take the steps; the first problem, or None."""
        self.files.mkdir()
        self._change_files()
        text = self._text
        self.watched = WatchedFolder(self.folder / "watched", "w/", self.random, text)
        with ExitStack() as stack:
            stack.enter_context(stepped(self.stepper, POINTS))
            stack.enter_context(self._small(self.random.random() < 0.5))
            create = SearchEngine.create(self.path, WordLengths())
            self.shared = Opened(create)
            self.own = Opened(SearchEngine.open(self.path, WordLengths()))
            self.opened = [self.shared, self.own]
            self.monitor = stack.enter_context(Store(self.path / "documents.db", readers=1))
            try:
                self._look(None)
                for name in ("a", "b", "c", "other"):
                    self.stepper.add(name, self._act)
                while not self._ended(steps):
                    self._step()
                self._finish()
            except Found as found:
                return self._problem(found.kind, found.what)
            except Hung as hung:
                return self._problem("hung", str(hung))
            finally:
                self.stepper.stop()
                for opened in self.opened:
                    opened.engine.close()
        return None

    def _problem(self, kind: str, what: str) -> dict[str, Any]:
        trail = list(self.trail)
        step = self.counts["steps"]
        return {"kind": kind, "step": step, "what": what[:4000], "trail": trail}

    def _ended(self, steps: int) -> bool:
        self.finishing = self.counts["steps"] >= steps
        return all(actor.done for actor in self.stepper.actors)

    def _step(self) -> None:
        actor = self.stepper.step()
        self.counts["steps"] += 1
        if self.counts["steps"] > 10**6:
            raise Found("hung", "the calls do not end")
        if actor is not None:
            call = self.calls.get(actor)
            self.trail.append(f"{actor.name}: {call.name if call else '-'}, {actor.at}")
            self._look(call)
        if self.problem is not None:
            raise self.problem

    def _finish(self) -> None:
        """All calls have ended: what is stored is whole, for a new engine too."""
        with SearchEngine.open(self.path, ENCODERS[self.encoder]) as engine:
            engine.verify()
            engine.optimize()
            self._look(None)
            engine.mirror(self.watched.path, MirrorOptions("w/"))
            self._look(self._following("mirror", self.own))
            if problem := self.watched.not_followed(_texts(self.state), self.watched.now):
                raise Found("lost", problem)
            engine.verify()

    @contextmanager
    def _small(self, sliced: bool) -> Iterator[None]:
        """Small blocks, so that little data takes every way; every second seed merges unlocked."""
        sizes: list[tuple[Any, str, int]] = [
            (pipeline, "LARGEST_BLOCK", (2, 1 << 19)),
            (reindex, "REST", 2),
            (reindex, "ROUNDS", 3),
            (ahead, "MIN_ROWS", 3),
            (folder_sync, "RECENT", 0),  # else the clock would decide which files have settled
            *([(merging, "IN_ONE", 0)] if sliced else []),
        ]
        with ExitStack() as stack:
            for module, name, size in sizes:
                stack.enter_context(mock.patch.object(module, name, size))
            reading = View.reading

            @contextmanager
            def noted(view: View, *, newest: bool = False) -> Iterator[Any]:
                with reading(view, newest=newest) as snapshot:
                    if (actor := self.stepper.actor) is not None:
                        self.read[actor.thread.ident or 0] = snapshot.commit_id
                    yield snapshot

            stack.enter_context(mock.patch.object(View, "reading", noted))
            stack.enter_context(mock.patch.object(folder_sync, "Watcher", self._watcher))
            yield

    # ---- what actors do ----

    def _act(self, actor: Actor) -> None:
        while not self.finishing and self.problem is None:
            name = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            if name in ("mirror", "watch") and name in (call.name for call in self.calls.values()):
                continue
            used = self.own if actor.name == "other" else self.shared
            work, call = getattr(self, f"_op_{name}")(used)
            call.name, call.stale = name, used.stale
            self.calls[actor] = call
            self.counts[f"op {name}"] += 1
            try:
                work()
                self._returned(call)
            except Found as found:
                self.problem = found
            except EncoderMismatch as error:
                self._mismatch(call, error)
            except call.refused:
                self._raised(call)
            except CollectionError as error:
                if not call.stale or _UNSHOWN not in str(error):
                    self.problem = Found("error", f"{name}: {traceback.format_exc()}")
            except Exception:
                self.problem = Found("error", f"{name}: {traceback.format_exc()}")
            del self.calls[actor]
            self.stepper.point("between two calls")

    def _returned(self, call: Call) -> None:
        left = set(range(call.done, len(call.commits))) - call.idle
        if left or call.encoder is not None:
            raise Found("lost", f"{call.name} has returned, and its change was not committed")

    def _raised(self, call: Call) -> None:
        self.counts["refused"] += 1
        if call.committed and len(call.commits) == 1:
            self.problem = Found("wrong", f"{call.name} was refused, and its change is committed")

    def _mismatch(self, call: Call, error: EncoderMismatch) -> None:
        """Right only where another engine has changed the encoder: open it again."""
        if call.name in ("reindex", "preview") and "is pending" in str(error):
            return
        if not call.stale:
            self.problem = Found("error", f"{call.name}: {traceback.format_exc()}")
            return
        self.counts["mismatches"] += 1
        self._raised(call)
        if call.used in (self.shared, self.own) and call.used.stale:
            opened = Opened(SearchEngine.open(self.path, ENCODERS[self.encoder]))
            self.opened.append(opened)
            if call.used is self.shared:
                self.shared = opened
            else:
                self.own = opened

    def _text(self) -> str:
        self._serial += 1
        number = self._serial * 40503 % 65535 + 1
        return " ".join("x" * (bit + 1) for bit in range(16) if number >> bit & 1)

    def _op_add(self, used: Opened) -> tuple[Callable[[], object], Call]:
        documents = []
        for number in self.random.sample(range(KEYS), self.random.randint(1, 4)):
            before = self.state.get(f"k{number}")
            same = before is not None and self.random.random() < 0.2
            text = before.text if before is not None and same else self._text()
            documents.append(Document(f"k{number}", text, metadata={"n": self._serial % 30}))

        def after(state: State) -> State:
            new = {
                each.key: added(state.get(each.key), "", each.text, each.metadata)
                for each in documents
            }
            return {**state, **new}

        return lambda: used.engine.add(documents), Call("add", used, [after])

    def _op_delete(self, used: Opened) -> tuple[Callable[[], object], Call]:
        # Often the newest, whose id must not come back.
        newest = list(self.state)[-1:] if self.random.random() < 0.5 else []
        keys = [*(key for key in newest if key[0] == "k"), f"k{self.random.randrange(KEYS)}"]

        def after(state: State) -> State:
            return {key: record for key, record in state.items() if key not in keys}

        return lambda: used.engine.delete(keys), Call("delete", used, [after])

    def _op_delete_where(self, used: Opened) -> tuple[Callable[[], object], Call]:
        def after(state: State) -> State:
            return {k: r for k, r in state.items() if not r.metadata.get("n", 0) >= 25}

        return lambda: used.engine.delete(where="n >= 25"), Call("delete", used, [after])

    def _op_update(self, used: Opened) -> tuple[Callable[[], object], Call]:
        key, patch = f"k{self.random.randrange(KEYS)}", {"n": self.random.randrange(30)}

        def after(state: State) -> State:
            if key not in state:
                return state
            r = state[key]
            return {**state, key: Record(r.title, r.text, r.source, patched(r.metadata, patch))}

        call = Call("update", used, [after], refused=(QueryError,))
        return lambda: used.engine.update({key: patch}), call

    def _change_files(self) -> None:
        names = [f"f{i}.txt" for i in range(5)]
        for name in self.random.sample(names, 2):
            (self.files / name).write_text(self._text())
        if len(list(self.files.iterdir())) > 2:
            (self.files / self.random.choice(sorted(p.name for p in self.files.iterdir()))).unlink()

    def _op_mirror(self, used: Opened) -> tuple[Callable[[], object], Call]:
        self._change_files()
        documents = list(read_corpus(self.files))

        def read(state: State) -> State:
            new = {d.key: Record(d.title, d.text, {}, {}) for d in documents}
            return {**state, **new}

        def remove(state: State) -> State:
            there = {document.key for document in documents}
            return {k: r for k, r in state.items() if k[0] != "f" or k in there}

        return lambda: used.engine.mirror(self.files), Call("mirror", used, [read, remove])

    def _op_files(self, used: Opened) -> tuple[Callable[[], object], Call]:
        return self.watched.change, Call("files", used)

    def _op_watch(self, used: Opened) -> tuple[Callable[[], object], Call]:
        call = self._following("watch", used)

        def watch() -> None:
            for done in used.engine.watch(self.watched.path, MirrorOptions("w/")):
                self.counts["passes"] += 1
                empty = "no document" in done.problem  # all its files went or were moved meanwhile
                if done.problem and not empty and not (call.stale and _UNSHOWN in done.problem):
                    raise Found("error", f"watch: {done.problem}")

        return watch, call

    def _following(self, name: str, used: Opened) -> Call:
        """A call that makes the documents of the watched folder those of its files."""
        call = Call(name, used, since=self.watched.now)

        def wrong_change(before: State, after: State) -> str | None:
            return self.watched.wrong_change(_texts(before), _texts(after), call.since)

        call.wrong_change = wrong_change
        return call

    def _watcher(self, folder: Path, stop: object, _: object) -> Looks:
        """In place of folder_sync.Watcher: an actor looks some times, when it is its turn."""
        actor = self.stepper.actor
        assert actor is not None
        call, left = self.calls[actor], self.random.randint(1, 6)

        def begin() -> None:
            call.since = self.watched.now

        def end(in_step: bool) -> bool:
            nonlocal left
            self.stepper.point("between two looks")
            problem = self.watched.not_followed(_texts(self.state), call.since)
            if in_step and problem:
                raise Found("lost", f"watch: {problem}")
            left -= in_step
            return in_step and (left <= 0 or self.finishing)

        return Looks(begin, end)

    def _op_search(self, used: Opened) -> tuple[Callable[[], object], Call]:
        words = self.random.sample(range(1, 17), self.random.randint(1, 3))
        question, k = " ".join("x" * word for word in words), self.random.choice([3, 100])
        mode = self.random.choice(["vector", "vector", "text"])

        def search() -> None:
            me = (self.stepper.actor or self.stepper.actors[0]).thread.ident or 0
            try:
                hits = used.engine.search_batch([question], k, mode=mode, typo_tolerance=False)[0]
            except CollectionError as error:
                state, _ = self.history.get(self.read.get(me), ({}, ""))
                if "is empty" not in str(error) or state:
                    raise
                return
            state, encoder = self.history[self.read[me]]
            judged = _found_words if mode == "text" else _found_vectors
            judged(hits, question, k, state, encoder)
            self.counts["answers"] += 1

        return search, Call("search", used)

    def _op_refresh(self, used: Opened) -> tuple[Callable[[], object], Call]:
        return used.engine.refresh, Call("refresh", used)

    def _op_optimize(self, used: Opened) -> tuple[Callable[[], object], Call]:
        return used.engine.optimize, Call("optimize", used)

    def _op_reindex(self, used: Opened) -> tuple[Callable[[], object], Call]:
        new = self._other()
        call = Call("reindex", used, encoder=new, refused=(CollectionBusy,))
        return lambda: used.engine.reindex(ENCODERS[new]), call

    def _op_preview(self, used: Opened) -> tuple[Callable[[], object], Call]:
        refused = (CollectionBusy, CollectionError) if not self.state else (CollectionBusy,)
        new = self._other()
        call = Call("preview", used, refused=refused)
        return lambda: leave_pending(used.engine, ENCODERS[new]), call

    def _op_discard(self, used: Opened) -> tuple[Callable[[], object], Call]:
        return used.engine.discard_reindex, Call("discard", used, refused=(CollectionBusy,))

    def _other(self) -> str:
        return next(name for name in ENCODERS if name != self.encoder)

    # ---- what must hold after every step ----

    def _look(self, call: Call | None) -> None:
        """Check the database if the step has changed it."""
        version = self.monitor.read("PRAGMA data_version")[0][0]
        if version != self._version:
            self._version = version
            self.counts["looks"] += 1
            self._take_over(call)
            self._check_ids()
            self._check_tables()
            self._check_vectors()
        for each in self.calls.values():
            self._idle(each)

    def _take_over(self, call: Call | None) -> None:
        """What the step has committed must be the state before, or the one after the call."""
        settings = self.monitor.settings()
        documents = self._documents()
        commit, encoder = settings["commit_id"], settings["encoder"]["fingerprint"]
        if encoder != self.encoder:
            if call is None or call.encoder != encoder:
                raise Found("wrong", f"the encoder became {encoder} in {call and call.name}")
            self.encoder, call.encoder = encoder, None
            self.counts["reindexed"] += 1
            for each in self.opened:
                each.stale = each is not call.used
            for running in self.calls.values():
                running.stale |= running.used.stale
        if not _equal(self.state, documents):
            if call is None or not self._made_by(call, documents):
                name = call.name if call else "nothing"
                raise Found("wrong", f"{name} made {_short(documents)} of {_short(self.state)}")
            if commit == self._commit:
                raise Found("wrong", "the documents changed, and the commit's id did not")
            self.state = documents
        self._commit = commit
        self.history[commit] = self.state, self.encoder

    def _made_by(self, call: Call, documents: State) -> bool:
        """Whether the next commit of a call makes these documents of those before."""
        if call.wrong_change is not None:
            if problem := call.wrong_change(self.state, documents):
                raise Found("wrong", f"{call.name}: {problem}")
            call.committed = True
            return True
        for i in range(call.done, len(call.commits)):
            if _equal(call.commits[i](self.state), documents):
                call.done, call.committed = i + 1, True
                return True
            if i not in call.idle:
                break
        return False

    def _idle(self, call: Call) -> None:
        """Commits that would change nothing now need not be made."""
        if call.encoder == self.encoder:
            call.encoder = None
        for i, commit in enumerate(call.commits):
            if _equal(commit(self.state), self.state):
                call.idle.add(i)

    def _documents(self) -> dict[str, Record]:
        rows = self.monitor.read(
            "SELECT key, title, text, metadata, ifnull(source, metadata) FROM documents ORDER BY id"
        )
        records = {}
        for key, title, text, metadata, source in rows:
            if key[0] != "k":  # a file's metadata are its path, size and time
                metadata = source = "{}"
            records[key] = Record(title, text, json.loads(source), json.loads(metadata))
        return records

    def _check_ids(self) -> None:
        for table, identity in {
            "documents": "CASE WHEN key LIKE 'w/%' THEN 'watched' ELSE key END",  # it may be moved
            "passages": "document || ' ' || start || ' ' || end",
            "segments": "base || ' ' || rows || ' ' || manifest_sha256",
            "pending": "first || ' ' || last",
        }.items():
            present = dict(self.monitor.read(f"SELECT id, {identity} FROM {table}"))
            seen, gone = self._seen.setdefault(table, {}), self._gone.setdefault(table, set())
            for number, what in present.items():
                if number in gone or seen.setdefault(number, what) != what:
                    raise Found("id", f"{table}: {number} was {seen[number]}, and is {what}")
            gone |= seen.keys() - present.keys()

    def _check_tables(self) -> None:
        for sql, what in verify._INVARIANTS.items():
            if count := self.monitor.read(sql)[0][0]:
                raise Found("damaged", f"{count} {what}")

    def _check_vectors(self) -> None:
        segments = self.monitor.segments()
        sql = (
            "SELECT p.id, key, title, text FROM passages AS p "
            "JOIN documents AS d ON d.id = document"
        )
        texts = self.monitor.read(sql)
        rows = {i: (key, f"{title} {text}".strip()) for i, key, title, text in texts}
        found = Counter(key for key, _ in rows.values())
        if found != Counter(self.state.keys()):
            raise Found("vector", f"the passages are of {found}, not of {list(self.state)}")
        for row in segments:
            if row not in self._stored:
                with closing(Segment.open(folder_of(self.path, row.id))) as segment:
                    self._stored[row] = segment.vectors(np.arange(row.rows))
            for i, vector in enumerate(self._stored[row]):
                if row.base + i in rows:
                    key, text = rows.pop(row.base + i)
                    expected = _vector(self.encoder, text)
                    if (cosine := expected @ vector) < 1 - _CLOSE:
                        made = [n for n in ENCODERS if _vector(n, text) @ vector > 1 - _CLOSE]
                        raise Found(
                            "vector", f"{key} by {made}, not by {self.encoder} ({cosine:.2f})"
                        )
        if rows:
            raise Found("vector", f"{rows} are in no segment")


@lru_cache(maxsize=100_000)
def _vector(encoder: str, text: str) -> Any:
    return ENCODERS[encoder].encode([text])[0]


def _equal(one: State, other: State) -> bool:
    return dict(one) == dict(other)


def _texts(state: State) -> Held:
    return {key: (record.title, record.text) for key, record in state.items()}


def _short(state: State) -> str:
    return str({key: (record.text, record.metadata) for key, record in state.items()})


def _found_vectors(hits: Hits, question: str, k: int, state: State, encoder: str) -> None:
    """Raise Found unless these are the k nearest of a state."""
    asked = _vector(encoder, question)
    scores = {
        key: float(asked @ _vector(encoder, f"{r.title} {r.text}".strip()))
        for key, r in state.items()
    }
    keys = [hit.key for hit in hits]
    if len(set(keys)) != len(keys) or len(keys) != min(k, len(scores)) or set(keys) - set(scores):
        raise Found("wrong", f"{question!r}: {keys} of {list(scores)}")
    for hit in hits:
        if abs(hit.score - scores[hit.key]) > _CLOSE or hit.text != state[hit.key].text:
            raise Found("wrong", f"{question!r}: {hit}, not {scores[hit.key]}, {state[hit.key]}")
    left = [score for key, score in scores.items() if key not in keys]
    if left and max(left) > hits[-1].score + 2 * _CLOSE:
        raise Found("wrong", f"{question!r}: a score of {max(left)} was left out of {hits}")


def _found_words(hits: Hits, question: str, k: int, state: State, encoder: str) -> None:
    """Raise Found unless these have a word of the question, or two joined, and are all of them."""
    asked = question.split()
    words = {*asked, *map("".join, pairwise(asked))}
    match = {key for key, r in state.items() if words & set(f"{r.title} {r.text}".split())}
    keys = {hit.key for hit in hits}
    if keys - match or len(hits) != min(k, len(match)):
        raise Found("wrong", f"{question!r} (words): {keys} of {match}")


# ---------------------------------------------------------------------------------------- sabotage


@contextmanager
def _forgotten_maker() -> Iterator[None]:
    """The commit compares what is shown with what is stored, as it once did."""
    original = WritableView.check_made_by

    def shown(self: WritableView, made_by: Any, store: Store) -> None:
        original(self, None if made_by is None else self.settings, store)

    with mock.patch.object(WritableView, "check_made_by", shown):
        yield


@contextmanager
def _former_reader() -> Iterator[None]:
    """The reader of `add` takes the encoder that the engine had before, whatever is shown."""

    def load(self: CollectionEncoder, settings: Any = None) -> Any:
        held = self._present
        return self.questions(settings).encoder if held is None else held.encoder

    with mock.patch.object(CollectionEncoder, "load", load):
        yield


@contextmanager
def _used_ids() -> Iterator[None]:
    """A new document takes the id above the largest that is stored, as it once did."""
    take = Changes.take

    def again(self: Changes, kind: str, count: int = 1) -> int:
        first = take(self, kind, count)
        if kind != "documents":
            return first
        return int(self.store.read("SELECT ifnull(max(id), -1) + 1 FROM documents")[0][0])

    with mock.patch.object(Changes, "take", again):
        yield


@contextmanager
def _late_stamps() -> Iterator[None]:
    """`watch` remembers when files were last written after it has read them, not before."""
    settle = FolderSync.settle

    def late(self: FolderSync) -> bool:
        files = self.files.items()
        self.files = {path: folder_sync._stamp(self.folder / path) or old for path, old in files}
        return settle(self)

    with mock.patch.object(FolderSync, "settle", late):
        yield


SABOTAGES = {
    "maker": _forgotten_maker,
    "reader": _former_reader,
    "ids": _used_ids,
    "stamps": _late_stamps,
}
"""What the campaign must notice."""


def run(
    seed: int, steps: int, sabotage: str | None = None, folder: Path | None = None
) -> tuple[Campaign, list[dict[str, Any]]]:
    """Run a seed; what was done, and what was wrong."""
    with ExitStack() as stack:
        if sabotage is not None:
            stack.enter_context(SABOTAGES[sabotage]())
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="threads-", dir=folder))
        campaign = Campaign(Path(name), seed)
        problem = campaign.run(steps)
        campaign.counts.update({f"point {k}": n for k, n in campaign.stepper.hits.items()})
    return campaign, [] if problem is None else [problem]


def main(arguments: Sequence[str]) -> int:
    """Run seeds one after the other, and print what they found."""
    parser = argparse.ArgumentParser(description="Threads of one process, stepped by seeds.")
    parser.add_argument("--seeds", type=seed_range, default=range(20), help="A:B, without B")
    parser.add_argument("--steps", type=int, default=500, help="of each seed")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="undo a mend, to be noticed")
    parser.add_argument("--results", type=Path, help="file to append to, and to resume from")
    parser.add_argument("--folder", type=Path, help="where the collections are made")
    parser.add_argument("--summary", action="store_true", help="print totals and end")
    options = parser.parse_args(arguments)
    results = Results(options.results)
    if options.summary:
        print(results.summary())
        return 0
    logging.getLogger("searchengine").setLevel(logging.ERROR)  # merges of stale engines fail
    named = {name: getattr(options, name) for name in ("steps", "sabotage")}
    failed = False
    for seed in results.unfinished(NAME, named, options.seeds):
        begun = time.monotonic()
        campaign, problems = run(seed, options.steps, options.sabotage, options.folder)
        seconds = round(time.monotonic() - begun, 2)
        results.append(
            Piece(NAME, named, seed, seconds, campaign.counts, problems, source_digest())
        )
        counts = {k: n for k, n in campaign.counts.items() if not k.startswith("point")}
        print(
            json.dumps({"seed": seed, "seconds": seconds, "counts": counts, "problems": problems}),
            flush=True,
        )
        failed |= bool(problems)
        gc.collect()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
