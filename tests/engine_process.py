"""A process that keeps a SearchEngine open and does what it is told over a socket.

`start` forks it from a process that has imported everything and opened nothing, so that to replace
one that was killed costs milliseconds. A command is a name and its arguments; the reply is
("ok", value, warnings) or ("error", (type, message, traceback), warnings). A process that forks
with its engine open gives a second process, which connects to the listener by itself.
"""

import faulthandler
import gc
import json
import logging
import os
import pickle
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from conftest import Remainders, WordLengths
from expected import FILTERS, Question, Row
from faults import Action, Library
from pending import leave_pending
from watched_folder import AskedWatcher

from searchengine import Document, SearchEngine
from searchengine.backends.folder import collection as ahead
from searchengine.errors import QueryError
from searchengine.ingest import folder_sync, pipeline
from searchengine.ingest.folder_sync import FolderSync, MirrorOptions
from searchengine.upkeep import reindex

ENCODERS = {each.fingerprint: each for each in (WordLengths(), Remainders())}
PATIENCE = 60.0  # seconds after which a process counts as hung; more than any engine waits
SABOTAGES = ("descriptors", "stale", "deaf", "mixed", "blind")
"""What a campaign must notice: warming that opens and closes documents.db, which drops the
process's locks on it; a refresh that shows nothing new; a delete that is not done; vectors of the
former encoder that are stored after a reindex; a watch that sees the first files only."""

Text = tuple[str, str, str, dict[str, Any]]
"""A document to add: key, title, text, metadata."""


class Hung(Exception):
    """A process does not answer; says where its threads are."""


class Reply(NamedTuple):
    """What became of a command; `error` is (type, message, traceback)."""

    value: Any
    error: tuple[str, str, str] | None
    warnings: list[str]


class Listener:
    """Where processes connect to, each with a token that says which one it is."""

    def __init__(self, folder: Path, sabotage: str | None = None) -> None:
        self.address = str(folder / "socket")
        self.sabotage = sabotage
        self.folder = folder
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(64)

    def accept(self) -> "Process":
        """The process that has just been started. Raises Hung when none comes."""
        if not select.select([self._socket], [], [], PATIENCE)[0]:
            raise Hung("a new process does not connect")
        connected, _ = self._socket.accept()
        connection = Connection(connected.detach())
        return Process(connection, connection.recv(), self.folder)

    def start(self) -> "Process":
        """Fork a process without an engine."""
        if os.fork() == 0:
            try:
                os.closerange(3, 4096)  # the conductor's: its end must be seen by all
                Worker(self.address, self.folder, self.sabotage).serve()
            finally:
                os._exit(0)
        return self.accept()

    def close(self) -> None:
        """Let no more processes connect."""
        self._socket.close()


class Process:
    """A process as its conductor sees it."""

    def __init__(self, connection: Connection, pid: int, folder: Path) -> None:
        self.pid = pid
        self.connection = connection
        self._ended = os.pidfd_open(pid)
        self._stacks = stacks_of(folder, pid)

    def send(self, name: str, *arguments: Any, die: tuple[int, Action] | None = None) -> None:
        """Send a command. `die`: at which call that changes a file the process dies, and how."""
        self.connection.send((name, arguments, die))

    def receive(self) -> Reply:
        """The reply to a command. Raises Hung, or EOFError when the process has died."""
        if not self.connection.poll(PATIENCE):
            os.kill(self.pid, signal.SIGUSR1)
            self.connection.poll(2)
            stacks = self._stacks.read_text() if self._stacks.exists() else ""
            raise Hung(f"process {self.pid} does not answer\n{stacks}")
        try:
            return Reply(*self.connection.recv())
        except (ConnectionResetError, pickle.UnpicklingError):
            raise EOFError from None

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone, with its locks."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Wait for the end of the process. Raises Hung."""
        if not select.select([self._ended], [], [], PATIENCE)[0]:
            raise Hung(f"process {self.pid} does not end")

    def close(self) -> None:
        """Forget a process that has ended."""
        self.connection.close()
        os.close(self._ended)


def stacks_of(folder: Path, pid: int) -> Path:
    """Where a process writes its stacks when it gets SIGUSR1 or crashes."""
    return folder / f"stacks-{pid}"


class Warnings(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.messages.append(record.getMessage())

    def taken(self) -> list[str]:
        """The messages since the last call."""
        messages, self.messages = self.messages, []
        return messages


def small_and_quick() -> None:
    """Have little data take every way, and `watch` look often."""
    ahead.MIN_ROWS = 3  # so that segments are built before the lock and under it
    pipeline.LARGEST_BLOCK, reindex.REST, reindex.ROUNDS = (4, 1 << 19), 2, 3
    folder_sync.RECENT, folder_sync.RETRY = 0.1, 0.05
    folder_sync.Watcher = AskedWatcher  # type: ignore[misc]


class Worker:
    """Inside a process: its engine, and a method for every command."""

    def __init__(self, address: str, folder: Path, sabotage: str | None = None) -> None:
        self.address, self.folder, self.sabotage = address, folder, sabotage
        self.engine: SearchEngine | None = None
        self._library = Library()
        self._warnings = Warnings()
        logging.getLogger("searchengine").addHandler(self._warnings)
        self._connect()

    def _connect(self) -> None:
        stacks = stacks_of(self.folder, os.getpid()).open("w")
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks)
        self._stacks = stacks
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(self.address)
        self.connection = Connection(connected.detach())
        self.connection.send(os.getpid())

    def serve(self) -> None:
        """Do commands until the conductor is gone or says exit."""
        small_and_quick()
        while True:
            try:
                name, arguments, die = self.connection.recv()
            except (EOFError, ConnectionResetError):
                return
            if name == "exit":
                self._leave(*arguments)
            if name == "script":
                for each, values in arguments[0]:
                    self._reply(each, values)
                continue
            if die is not None:
                self._library.arm(self.folder, *die)
            self._reply(name, arguments)
            self._library.disarm()

    def _reply(self, name: str, arguments: Sequence[Any]) -> None:
        value, failed = None, None
        try:
            value = getattr(self, name)(*arguments)
        except BaseException as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            failed = (type(error).__name__, str(error), where)
        self.connection.send((value, failed, self._warnings.taken()))

    @property
    def _open(self) -> SearchEngine:
        assert self.engine is not None
        return self.engine

    def open(self, path: Path, wait: float, encoder: str) -> None:
        self.engine = SearchEngine.open(path, ENCODERS[encoder], wait=wait)
        if self.sabotage == "mixed":
            collection = self.engine.folder
            collection.accepts = collection.check_made_by = lambda *_: None  # type: ignore

    def close(self) -> None:
        self._open.close()
        self.engine = None

    def warm(self) -> None:
        self._open.warm()
        if self.sabotage == "descriptors":
            (self._open.collection.path / "documents.db").open("rb").close()

    def search(self, question: Question) -> list[Row]:
        return rows(self._open, question)

    def similar(self, key: str, k: int) -> list[Row] | None:
        try:
            hits = self._open.similar(key, k)
        except QueryError:
            return None
        return [(h.key, h.score, h.title, h.text, dict(h.metadata)) for h in hits]

    def add(self, texts: Sequence[Text], commit_every: int | None, pause: bool) -> tuple[int, int]:
        """`pause`: say so and wait for the conductor before the last document is read."""

        def documents() -> Iterator[Document]:
            for position, (key, title, text, metadata) in enumerate(texts, start=1):
                if pause and position == len(texts):
                    self.connection.send(("paused", None, []))
                    self.connection.recv()
                yield Document(key, text, title, metadata)

        summary = self._open.add(documents(), commit_every=commit_every)
        return summary.added, summary.changed

    def add_in_threads(self, batches: Sequence[Sequence[Text]]) -> None:
        """Add each batch in a thread of its own, all at once."""
        errors: list[BaseException] = []
        engine = self._open

        def work(batch: Sequence[Text]) -> None:
            try:
                engine.add([Document(key, text, title, m) for key, title, text, m in batch])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def delete(self, keys: list[str] | None, where: str | None) -> int:
        if self.sabotage == "deaf":
            return len(set(keys or ()))
        return self._open.delete(keys, where=where)

    def update(self, patches: dict[str, dict[str, Any]]) -> None:
        self._open.update(patches)

    def index_fields(self, names: Sequence[str]) -> None:
        self._open.index_fields(*names)

    def optimize(self) -> None:
        self._open.optimize()

    def reindex(self, encoder: str) -> None:
        self._open.reindex(ENCODERS[encoder])

    def prepare(self, encoder: str) -> None:
        """Encode everything, and leave the swap to the next reindex."""
        leave_pending(self._open, ENCODERS[encoder])

    def discard(self) -> None:
        self._open.discard_reindex()

    def watch(self, folder: Path, prefix: str) -> list[str]:
        """Follow a folder until the conductor asks to end; why each reported pass failed, or ""."""
        problems: list[str] = []
        if self.sabotage == "blind":
            look = FolderSync.look
            FolderSync.look = lambda *a: look(*a) and False  # type: ignore[method-assign]
        AskedWatcher.asked = None

        def hear() -> None:
            self.connection.recv()
            AskedWatcher.asked = time.monotonic()

        hearing = threading.Thread(target=hear)
        hearing.start()
        try:
            for done in self._open.watch(folder, MirrorOptions(prefix)):
                problems.append(done.problem)
        finally:
            hearing.join()  # the conductor gets no reply before it has asked
        return problems

    def refresh(self) -> None:
        if self.sabotage != "stale":
            self._open.refresh()

    def stats(self) -> int:
        return self._open.stats().documents

    def verify(self) -> None:
        self._open.verify()

    def backup(self, target: Path) -> None:
        self._open.backup(target)

    def export(self, target: Path) -> int:
        return self._open.export(target)

    def peek(self, path: Path, question: Question, encoder: str) -> list[Row]:
        """Search by a second engine of this process, opened and closed for it."""
        with SearchEngine.open(path, ENCODERS[encoder]) as engine:
            return rows(engine, question)

    def fork(self) -> int:
        """Fork with the engine open; the child goes on as a process with none."""
        parent = self.connection
        child = os.fork()
        if child == 0:
            parent.close()
            self.engine = None
            with suppress(ConnectionError, FileNotFoundError):
                self._connect()
                self.serve()
            os._exit(0)
        return child

    def _leave(self, how: str) -> None:
        """End: at once, by letting go of the engine, or by closing it first."""
        if self.engine is not None and how == "close":
            self.engine.close()
        if how == "drop":
            self.engine = None
            gc.collect()
        os._exit(0)


def rows(engine: SearchEngine, question: Question) -> list[Row]:
    """What an engine answers."""
    where = FILTERS[question.filter].where
    options = {"mode": question.mode, "where": where, "typo_tolerance": False}
    hits = engine.search(question.text, question.k, **options)  # type: ignore[arg-type]
    return [(h.key, h.score, h.title, h.text, dict(h.metadata)) for h in hits]


def read_export(folder: Path) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Key → title, text, metadata, of an export."""
    records = [json.loads(line) for line in (folder / "documents.jsonl").open(encoding="utf-8")]
    return {
        record.pop("_id"): (record.pop("title"), record.pop("text"), record) for record in records
    }
