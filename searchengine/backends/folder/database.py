"""documents.db as a file: its connections and transactions. Its tables: store.py.

Connections are shared by threads, safe in forked children, and have no locks where the folder
cannot be written.

Forks. SQLite counts, once for each process and file, the locks that the process holds. A forked
child inherits the count and not the locks, so every connection it opens to that file would skip
locks that nobody holds (https://sqlite.org/howtocorrupt.html, section 2.6). Hence, here and nowhere
else:

* before a fork, running statements end, and no connection is being opened or closed;
* in the child, the connections that only read are closed: no lock of the parent's is touched, and
  SQLite's counts are right again. The engine that used them is refused (engine.OfParent); one that
  the child opens itself has connections of its own;
* a connection that can write is neither used nor closed in the child, because closing it may fold
  and remove the log of other processes. The child refuses to open its file, with an error.

Frozen files. To read a database with a write-ahead log, SQLite uses a file next to it (-shm), even
without a log. In a read-only folder it cannot make that file, and needs none while there is no log.
"""

import ctypes
import errno
import json
import os
import resource
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from random import choice, random
from threading import RLock
from time import monotonic, sleep
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakSet

from searchengine.backends import limits
from searchengine.backends.filters.parser import moment
from searchengine.backends.folder import schema
from searchengine.errors import BackendUnavailable, CollectionBusy, CollectionError

Identity = tuple[int, int]
"""The device and inode of a file."""
guard = RLock()
"""Held while connections are opened or closed, and across a fork."""
_open: WeakSet["Connection"] = WeakSet()
after_fork: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
"""Object → its method that every child forked from now on calls: it refuses to be used."""
_paused = ExitStack()  # the locks that are held across a fork
_turns: dict[Identity, Any] = {}  # of the threads of this process that write to a file
_lost: set[Identity] = set()  # the files that the parent could write when this process was forked


class Connection(sqlite3.Connection):
    """A connection that any thread may use while it holds `lock`: one statement at a time.

    Attributes:
        lock: held while a statement runs.
        written: the file, if this connection can write to it.
        usable: False in a child that inherited a connection that can write.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lock, self.usable = RLock(), True
        self.written: Identity | None = None
        _open.add(self)

    def close(self) -> None:
        """Close it when no statement runs; closing twice is harmless."""
        with guard, self.lock:
            if self.usable:
                super().close()


def _pause() -> None:
    guard.acquire()
    for connection in list(_open):
        _paused.enter_context(connection.lock)


def _resume() -> None:
    _paused.close()
    guard.release()


def _in_child() -> None:
    for connection in list(_open):
        if connection.written is None:
            connection.close()
        elif connection.usable:
            connection.usable = False
            _lost.add(connection.written)
            # Never closed, nor at the interpreter's end.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open.clear()
    _turns.clear()  # no thread is writing here
    for user, refuse in list(after_fork.items()):
        refuse(user)
    _resume()


os.register_at_fork(before=_pause, after_in_parent=_resume, after_in_child=_in_child)


def log_of(path: Path) -> Path:
    """SQLite's log of a database."""
    return path.with_name(path.name + "-wal")


def accessible(path: Path, mode: int) -> bool:
    """Whether the user that this process acts as may do this; as os.access."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def is_frozen(path: Path) -> bool:
    """Whether the folder cannot be written, and no process is writing."""
    return not accessible(path.parent, os.W_OK) and not log_of(path).exists()


def frozen_state(path: Path) -> tuple[int, int, bool]:
    """Changes when the file changes or is about to."""
    file = path.stat()
    return file.st_mtime_ns, file.st_size, log_of(path).exists()


def connect(path: Path, mode: str) -> Connection:
    """A connection. `mode`: ro, rw, or rwc, which makes the file. A frozen file is read only."""
    if mode != "rwc" and is_frozen(path):
        mode = "ro&immutable=1"
    with guard:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
    connection.create_function("moment", 1, moment, deterministic=True)
    if mode == "rwc":
        share_as_folder(path, connection)
    return connection


def share_as_folder(path: Path, connection: sqlite3.Connection) -> None:
    """Give a new database the permissions of its folder: SQLite lets no group write to it."""
    connection.execute("PRAGMA schema_version")  # makes the file
    path.chmod(path.parent.stat().st_mode & 0o666)


_NO_MAPPING = (sqlite3.SQLITE_IOERR_SHMMAP, sqlite3.SQLITE_IOERR_NOMEM)
_LIMITS = {
    errno.EMFILE: "this process has as many files open as it may ({} of ulimit -n): close some "
    "collections, or raise the limit",
    errno.ENFILE: "the system has as many files open as it may: close some programs",
    errno.ENOMEM: "there is no memory left for a mapping: free some, or raise the limit of this "
    "process (ulimit -v, or its container's)",
}


def exhausted(error: BaseException) -> str | None:
    """The limit of this process or machine that was reached, and the way out; None: none was."""
    for cause in filter(None, (error, error.__cause__)):
        number, code = getattr(cause, "errno", None), getattr(cause, "sqlite_errorcode", 0)
        if isinstance(cause, MemoryError) or code in _NO_MAPPING:
            number = errno.ENOMEM
        elif code & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):  # it does not say why
            with ExitStack() as stack:
                try:
                    for _ in range(4):  # as the database, its log, and the memory they share
                        stack.enter_context(open(os.devnull))
                except OSError as refused:
                    number = refused.errno
        elif number is None:  # faiss has no numbers
            number = next((n for n in _LIMITS if os.strerror(n) in str(cause)), None)
        if number in _LIMITS:
            return _LIMITS[number].format(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return None


def way_out(path: Path) -> str:
    """What to do where SQLite cannot read or write: another user may own one of its files."""
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]
    present = (path.parent, *filter(os.path.exists, files))
    if files[1].exists() and not files[2].exists() and not accessible(path.parent, os.W_OK):
        return f"a power cut has left its log: make {path.parent} writable once and open it there"
    for action, mode in (("read", os.R_OK), ("write", os.W_OK)):
        for entry in present:
            if not accessible(entry, mode):
                return f"this user cannot {action} {entry}: change its owner or its mode"
    if os.statvfs(path.parent).f_bavail == 0:
        return "the disk is full: free some space there"
    return "check that the disk has room and the folder can be written"


# Have SQLite sync its writes; on macOS the drive's cache too, as files.sync.
_SYNC = "PRAGMA synchronous = 2; PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1;"
_READING = "PRAGMA busy_timeout = 5000;"  # while another process recovers the log after a crash
# SQLite would fold when it has released the write lock: see `fold_log`.
_WRITING = "PRAGMA busy_timeout = 0; PRAGMA wal_autocheckpoint = 0;"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1  # seconds between two tries to begin to write
_UPGRADING = 10  # seconds to wait for another process that upgrades the file
# Bytes of SQLite's log from which it is folded into the file; it is cut to as many.
FOLDED = 4 << 20
# Bytes of the log from which readers are waited for; seconds after which a reader of the same
# commit begins again meanwhile.
OVERGROWN, REOPENED = 32 << 20, 0.1
_STEPS = 20_000  # instructions of SQLite between two looks at the clock: about a millisecond
_PATIENCE, _POLL = 1.0, 0.05  # seconds to wait for readers; between two looks at them


class Database:
    """An open documents.db. Readers never wait for a writer (SQLite's write-ahead log).

    Only SQLite ever opens the file: POSIX drops all locks that a process holds on a file as soon
    as it closes any descriptor of it, so a second way in would undo SQLite's locks.

    Attributes:
        path: the file.
        identity: its device and inode: another file may take its name while this one is open.
    """

    def __init__(self, path: Path, *, create: bool = False, readers: int = 0) -> None:
        """Open the file to write, or by some connections that only read (`readers`)."""
        self.path, self.identity = path, (0, 0)
        self._read_only = readers > 0
        self.connections: list[Connection] = []
        with guard:
            try:
                # A frozen file is read without locks: it must not change meanwhile.
                self._frozen = frozen_state(path) if not create and is_frozen(path) else None
                with self.named_errors():
                    self._open(create, readers)
            except BaseException as error:
                self.close()
                if create or not isinstance(error, OSError | CollectionError) or self.in_place:
                    raise
                if path.is_file():
                    raise self.replaced() from error
                missing = f"{path} is missing, so {path.parent} is not a collection"
                raise BackendUnavailable(f"{missing}; give the folder of one") from error

    def _open(self, create: bool, readers: int) -> None:
        if not create:
            self.identity = _identity(self.path)
            if self.identity in _lost:
                raise CollectionError(
                    f"{self.path.parent} was being written when this process was forked, so its "
                    "locks cannot be known here; fork before writing, or start workers by "
                    "multiprocessing's spawn"
                )
        for _ in range(max(1, readers)):
            self._connect(create)
        if create:
            self.identity = _identity(self.path)
        if not self.in_place:
            raise self.replaced()
        if not self._read_only and self._frozen is None:
            self.connection.written = self.identity
        self._mend(create)

    def _mend(self, create: bool) -> None:
        """Create the tables, or migrate those of a former version; have SQLite keep a log.

        A recovered file has none, nor that of a process killed when it removed it. SQLite stays
        without one where it cannot write; there readers lock writers out.
        """
        is_outdated = create or outdated(self.connection, self.path)
        if self._frozen is not None and not is_outdated:
            return
        sql = f"PRAGMA journal_mode{'' if self._read_only else ' = wal'}"
        has_log = self.connection.execute(sql).fetchall() == [("wal",)]
        if self._read_only and (is_outdated or not has_log):
            try:
                Database(self.path).close()  # a connection that can write does it
            except CollectionError:  # in use, or not writable
                if is_outdated:
                    raise
        elif create and not has_log:
            raise CollectionError(f"{self.path}: SQLite has no log; {way_out(self.path)}")
        elif is_outdated:  # by others too, meanwhile: one upgrades, and the other finds it done
            with self.transaction(_UPGRADING, queue=False):
                schema.upgrade(self.connection)

    def _connect(self, create: bool) -> None:
        connection = connect(self.path, "rwc" if create else "ro" if self._read_only else "rw")
        self.connections.append(connection)
        writing = f"{_WRITING} PRAGMA journal_size_limit = {FOLDED};"
        connection.executescript(_SYNC + (_READING if self._read_only else writing))

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that opened it to write."""
        return not all(connection.usable for connection in self.connections)

    @property
    def connection(self) -> Connection:
        """The first connection."""
        return self.connections[0]

    @contextmanager
    def borrow(self, *, long: bool = False) -> Iterator[Connection]:
        """A connection for this thread alone during the block; waits until one is free.

        Long statements leave the first one to quick ones, so that a slow filter never keeps a quick
        look-up waiting; if it is the only one, all take turns.
        """
        usable = self.connections[long and len(self.connections) > 1 :]
        if not usable or self.inherited:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        free = (connection for connection in usable if connection.lock.acquire(blocking=False))
        if (connection := next(free, None)) is None:
            connection = choice(usable) if long else usable[0]
            connection.lock.acquire()
        try:
            yield connection
        finally:
            connection.lock.release()

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """SQLite's errors as CollectionError, with the file's name and what to do."""
        try:
            yield
        except (sqlite3.OperationalError, MemoryError) as error:
            deadline = limits.current().deadline
            code = getattr(error, "sqlite_errorcode", 0)  # the module's own errors have none
            if code == sqlite3.SQLITE_INTERRUPT and deadline.at < inf:
                raise deadline.exceeded() from None
            if limit := exhausted(error):
                raise CollectionError(f"{self.path}: {limit}") from error
            if "locked" in str(error):
                raise CollectionBusy(
                    f"{self.path.parent} is being written to by another process; "
                    "try again when it has finished, or wait longer: SearchEngine.open(…, wait=)"
                ) from error
            if str(error).startswith(("malformed JSON", "no such table", "Could not decode")):
                raise self.damaged(str(error)) from error
            raise CollectionError(f"{self.path}: {error}; {way_out(self.path)}") from error
        except sqlite3.ProgrammingError as error:
            if "closed" not in str(error):
                raise
            raise CollectionError(f"{self.path.parent} is closed; open it again") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise self.damaged(str(error)) from error

    def damaged(self, how: str) -> CollectionError:
        """The error for a file with impossible content; `how`: the fault."""
        folder = shlex.quote(str(self.path.parent))
        return CollectionError(
            f"{self.path} is damaged ({how}); repair it: searchengine repair {folder}"
        )

    def replaced(self) -> BackendUnavailable:
        """The error if another file now has this file's name."""
        return BackendUnavailable(
            f"{self.path.parent} was replaced by another folder during this change; "
            "nothing was changed in either, try again"
        )

    @property
    def in_place(self) -> bool:
        """Whether the path still leads to the open file."""
        with suppress(OSError):
            return _identity(self.path) == self.identity
        return False

    @contextmanager
    def transaction(self, wait: float = 0, *, queue: bool = True) -> Iterator[None]:
        """All of the block or nothing. Threads of this process queue for their turn.

        Without `queue` a thread does not wait for others of its process either. Between processes
        SQLite's lock admits one writer; the end of a transaction, or of a process, releases it.

        Raises CollectionBusy if another process is still writing after `wait` seconds, and
        BackendUnavailable if the folder was replaced meanwhile.
        """
        turn = _turns.setdefault(self.identity, RLock())
        if not turn.acquire(blocking=queue):
            raise CollectionBusy(f"{self.path.parent} is being written to by another thread")
        try:
            self._begin(wait)
            before = self.connection.total_changes
            try:
                yield
                if self.connection.total_changes != before and not self.in_place:
                    raise self.replaced()
                self.execute("COMMIT")
            except BaseException:
                if not self.inherited and self.connection.in_transaction:
                    self.execute("ROLLBACK")
                raise
        finally:
            turn.release()

    def _begin(self, wait: float) -> None:
        """Try for `wait` seconds. If SQLite did the waiting, a fork would have to wait as well."""
        until, pause = monotonic() + wait, _FIRST_PAUSE
        while True:
            try:
                return self.execute("BEGIN IMMEDIATE")
            except CollectionBusy:
                remaining = until - monotonic()
                if remaining <= 0:
                    raise
                sleep(min(remaining, pause * random()))
                pause = min(2 * pause, _LONGEST_PAUSE)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection, for statements of a transaction."""
        with self.named_errors(), self.borrow() as connection, _interrupted(connection):
            yield connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """One statement without rows."""
        with self.writing() as connection:
            connection.execute(sql, parameters)

    def read(
        self, sql: str, parameters: Sequence[Any] = (), *, long: bool = False
    ) -> list[tuple[Any, ...]]:
        """All rows of a quick statement: an unfinished one would hold later ones of its connection
        at an older snapshot."""
        self._check_frozen()
        with self.named_errors(), self.borrow(long=long) as connection, _interrupted(connection):
            rows = connection.execute(sql, parameters).fetchall()
        self._check_frozen()
        return rows

    def scan(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement that may take long; quick ones do not wait for it."""
        return self.read(sql, parameters, long=True)

    def _check_frozen(self) -> None:
        """Raise CollectionError if a file that is read without locks has changed."""
        if self._frozen is not None and self._frozen != frozen_state(self.path):
            raise CollectionError(
                f"{self.path} was changed since it was opened, in a folder that cannot be written "
                "from here; refresh, or open it again"
            )

    def hold(self) -> None:
        """Until `close`, read the state of the newest commit.

        SQLite cannot begin two connections at the same moment: if another commit came in between,
        the connections that began before it are closed.
        """
        with self.named_errors():
            commits = [_begin_reading(connection) for connection in self.connections]
            for connection, commit in zip(list(self.connections), commits, strict=True):
                if commit != commits[-1]:
                    self.connections.remove(connection)
                    connection.close()

    def fold_log(self, follow: Callable[[], None], patient: bool) -> bool:
        """Fold SQLite's log into the file, as far as no reader needs it; True if all was folded.

        `follow` begins this process's reading again, so that it reads the file.

        The write lock is held meanwhile: SQLite before 3.51.3 (3.50.7, 3.44.6) can lose commits if
        the log begins again while it is folded (https://sqlite.org/wal.html#walresetbug). Nothing
        is done while others write; errors are left to the next call.

        `patient`: wait up to a second for other readers, and then until they may have begun again,
        so that the next commit writes the log from its start.
        """
        started, complete, is_over = monotonic(), False, False
        with suppress(CollectionError):
            while not (complete or is_over):
                # Begun again each time: SQLite has four marks for those that read, this connection
                # too, and one that finds none free shares an older one.
                with self.transaction(queue=False):
                    complete = self._fold()
                    follow()
                    if patient:
                        sleep(REOPENED + 2 * (monotonic() - started) if complete else _POLL)
                is_over = not patient or monotonic() > started + _PATIENCE
        return complete

    def _fold(self) -> bool:
        """Fold, by a connection of its own: one that holds a transaction cannot."""
        with Database(self.path) as other, other.writing() as connection:
            if other.identity != self.identity:  # its write lock is another one
                return False
            sql = "PRAGMA wal_checkpoint(PASSIVE)"
            busy, size, folded = connection.execute(sql).fetchone()
            return not busy and bool(size == folded)

    @property
    def log_bytes(self) -> int:
        """Size of SQLite's log; 0 if there is none."""
        with suppress(OSError):
            return log_of(self.path).stat().st_size
        return 0

    @property
    def overgrown(self) -> bool:
        """Whether readers should let go of the log."""
        return self.log_bytes > OVERGROWN

    def copy_to(self, path: Path) -> None:
        """Write the database as this connection sees it to a new file."""
        with self.named_errors(), self.borrow(long=True) as connection:
            target = sqlite3.connect(path)
            try:
                target.executescript(_SYNC)
                share_as_folder(path, target)
                connection.backup(target)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
                    raise
                raise CollectionError(f"{path}: {error}; free some space there") from error
            finally:
                target.close()

    def close(self) -> None:
        """Close the connections; closing twice is harmless."""
        while self.connections:
            self.connections.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def outdated(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether migrations are pending. CollectionError for a file of another kind or version."""
    sql = "SELECT count(*) FROM sqlite_master WHERE name IN ('documents', '_sqlite_migrations')"
    if connection.execute(sql).fetchone() != (2,):
        raise CollectionError(
            f"{path} has no table of documents, so {path.parent} is not a collection"
        )
    sql = "SELECT name FROM _sqlite_migrations WHERE migration_set = 'searchengine'"
    applied = {str(row[0]) for row in connection.execute(sql)}
    if unknown := sorted(applied - schema.MIGRATIONS.keys()):
        raise CollectionError(
            f"{path} was written by another version of searchengine (its format has "
            f"{', '.join(unknown)}); open it with that version, or index the documents again"
        )
    return applied != schema.MIGRATIONS.keys()


@contextmanager
def _interrupted(connection: sqlite3.Connection) -> Iterator[None]:
    """Interrupt the statements of the block when the time of the call is over."""
    deadline = limits.current().deadline
    if deadline.at == inf:
        yield
        return
    limits.check()
    connection.set_progress_handler(deadline.expired, _STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def _identity(path: Path) -> Identity:
    file = path.stat()
    return file.st_dev, file.st_ino


def _begin_reading(connection: sqlite3.Connection) -> object:
    """Begin a read transaction; returns the id of its commit."""
    connection.execute("BEGIN")
    sql = "SELECT value FROM settings WHERE name = 'commit_id'"
    return connection.execute(sql).fetchone()
