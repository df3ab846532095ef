"""Connections that are kept open, transactions on them, and how long an answer may take.

A statement costs a round trip, so those that are known together are sent together (`run`), and the
end of a transaction that only reads is sent without waiting for its answer (`end`).
"""

import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import UndefinedTable
from psycopg.pq import ConnStatus, TransactionStatus

from searchengine.backends import limits

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITE = "BEGIN ISOLATION LEVEL REPEATABLE READ"
_LATE = 1.0  # seconds after a call's deadline until the server itself must have ended the statement
T = TypeVar("T")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection in autocommit.

    Attributes:
        answers_within: seconds that the server may take for an answer; None: any time.
    """

    answers_within: float | None = None
    _ending: AbstractContextManager[Any] | None = (
        None  # with the answer to the end of a transaction
    )

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        """As psycopg's. Raises OperationalError, and closes, when the server does not answer."""
        seconds, call = self.answers_within, limits.current()
        late = False
        if call is not None and call.deadline is not None:
            left = max(0.0, call.deadline.at - time.monotonic()) + _LATE
            late = seconds is None or left < seconds
            seconds = left if late else seconds
        if seconds is None:
            return super().wait(gen, *arguments, **options)
        try:
            return super().wait(_within(gen, time.monotonic() + seconds), *arguments, **options)
        except _NoAnswer:
            self.close()
            if late:
                limits.check()
            raise psycopg.OperationalError(f"no answer within {seconds:.0f} seconds") from None

    def run(self, *statements: Statement) -> list[Rows]:
        """The rows of each statement; one round trip for all."""
        if len(statements) == 1 and self._ending is None:
            cursor = self.execute(statements[0][0], statements[0][1] or None)
            return [cursor.fetchall() if cursor.description else []]
        pipeline, self._ending = self._ending, None
        if pipeline is None:
            pipeline = self.pipeline()
            pipeline.__enter__()
        with _entered(pipeline):
            cursors = [self.execute(sql, parameters or None) for sql, parameters in statements]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def insert(
        self, table: str, columns: str, types: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert many rows."""
        if not rows:
            return
        sql = f"COPY {table} ({columns}) FROM STDIN WITH (FORMAT binary)"
        with self.cursor() as cursor, cursor.copy(sql) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def end(self) -> None:
        """End a transaction that is not to be committed, without waiting for the answer."""
        self._ending = self.pipeline()
        self._ending.__enter__()
        self.execute("ROLLBACK")

    def settle(self) -> None:
        """Take the answer to `end`. The next `run` does it too."""
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.__exit__(None, None, None)

    def close(self) -> None:
        """As psycopg's; takes the answer to `end` first."""
        with suppress(psycopg.Error):
            self.settle()
        super().close()

    def is_idle(self) -> bool:
        """Whether it can be used; without asking the server, which may have closed it."""
        try:
            if not self.closed and select.select([self.pgconn.socket], [], [], 0)[0]:
                self.pgconn.consume_input()
        except psycopg.Error:
            return False
        status = self.pgconn.transaction_status
        return self.pgconn.status == ConnStatus.OK and (
            status == TransactionStatus.IDLE or self._ending is not None
        )


@contextmanager
def _entered(entered: AbstractContextManager[Any]) -> Iterator[None]:
    """A pipeline that has been entered before."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # of the same cause; if it knew, psycopg would log it
            entered.__exit__(None, None, None)
        raise
    else:
        entered.__exit__(None, None, None)


class Busy(Exception):
    """No connection became free."""


class Pool:
    """At most `size` connections, each used by one thread at a time."""

    def __init__(self, connect: Callable[[], Connection], size: int, wait: float) -> None:
        """`wait`: seconds until `acquire` gives up."""
        self._connect, self._wait = connect, wait
        self._free = threading.Semaphore(size)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self.closed = False

    def acquire(self) -> Connection:
        """A connection; `release` must follow. Raises Busy if all are in use."""
        call = limits.current()
        wait = self._wait
        if call is not None and call.deadline is not None:
            wait = min(wait, max(0.0, call.deadline.at - time.monotonic()))
        if not self._free.acquire(timeout=wait):
            limits.check()
            raise Busy(f"all connections were in use for {wait:.0f} seconds")
        try:
            while True:
                with self._lock:
                    connection = self._idle.pop() if self._idle else None
                if connection is None:
                    return self._connect()
                if connection.is_idle():
                    return connection
                connection.close()
        except BaseException:
            self._free.release()
            raise

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next one; an open transaction is ended."""
        if not connection.closed:
            status = connection.pgconn.transaction_status
            try:
                if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                    connection.end()
                elif status != TransactionStatus.IDLE and connection._ending is None:
                    connection.close()
            except psycopg.Error:
                connection.close()
        with self._lock:
            keep = not (connection.closed or self.closed)
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        self._free.release()

    def close(self) -> None:
        """Close the idle connections now, the others when they are released."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        self.close()


class Transaction:
    """A transaction that its first statements begin. It sees one commit.

    Attributes:
        began: called once, with the revision of the settings, before any result is returned.
    """

    def __init__(self, acquire: Callable[[], Connection], begin: str, lock: str = "") -> None:
        """`begin`: READ or WRITE; `lock`: of the row of the revision."""
        self.began: Callable[[str], None] = lambda _: None
        self.acquired: Connection | None = None
        self.committed = False
        self._acquire, self._begin, self._lock = acquire, begin, lock
        self._later: list[Statement] = []

    @property
    def connection(self) -> Connection:
        """The connection, in the transaction."""
        self.begin()
        if self._later:
            self.run()
        assert self.acquired is not None
        return self.acquired

    def run(self, *statements: Statement) -> list[Rows]:
        """The rows of each statement; one round trip for all."""
        limits.check()
        later, self._later = self._later, []
        if self.acquired is not None and not (later or statements):
            return []
        if self.acquired is not None:
            return self.acquired.run(*later, *statements)[len(later) :]
        return self._first(*later, *statements)[len(later) :]

    def _first(self, *statements: Statement) -> list[Rows]:
        """Begin the transaction, and return the rows of its first statements."""
        self.acquired = self._acquire()
        before: list[Statement] = [(self._begin, ())]
        call = limits.current()
        if call is not None and call.deadline is not None:
            milliseconds = max(1, int(1e3 * (call.deadline.at - time.monotonic())) + 1)
            before.append(
                (
                    "SELECT set_config('statement_timeout', least(%s, nullif(setting::int, 0))"
                    "::text, true) FROM pg_settings WHERE name = 'statement_timeout'",
                    (milliseconds,),
                )
            )
        before.append((f"SELECT value FROM settings WHERE name = 'revision' {self._lock}", ()))
        try:
            rows = self.acquired.run(*before, *statements)
        except (psycopg.DataError, UndefinedTable):
            # Vectors of another width, or a former table, if settings have changed.
            rows = self.acquired.run(("ROLLBACK", ()), *before)[1:]
            self._begun(rows[-1])
            raise
        self._begun(rows[len(before) - 1])
        return rows[len(before) :]

    def _begun(self, revision: Rows) -> None:
        self.began(revision[0][0] if revision else "")

    def begin(self) -> None:
        """Begin it, unless it has begun."""
        if self.acquired is None:
            self.run()

    def later(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Send a statement together with the next one."""
        self._later.append((sql, parameters))

    def commit(self, *statements: Statement) -> list[Rows]:
        """Commit, after these statements; returns their rows."""
        rows = self.run(*statements, ("COMMIT", ()))[:-1]
        self.committed = True
        return rows


class _NoAnswer(Exception):
    pass


def _within(gen: PQGen[T], deadline: float) -> PQGen[T]:
    """A generator of psycopg, which waits until a deadline and no longer."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise _NoAnswer
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
