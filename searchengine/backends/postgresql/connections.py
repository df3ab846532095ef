"""Connections to a server: the URL, pools, transactions that try again, errors as sentences.

    postgresql://USER@HOST:PORT/DATABASE#COLLECTION

COLLECTION is the schema of the collection, by default "searchengine". With several hosts,
HOST:PORT,HOST:PORT, searches ask a replica if one answers, and writes go to the primary; with
target_session_attrs in the URL, all go to such a server. The rest is a connection URI
of libpq: passwords come from the URL, PGPASSWORD or ~/.pgpass, and `?options=-c%20NAME%3DVALUE`
sets a parameter of the session, such as statement_timeout (in milliseconds).
"""

import logging
import random
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.types import TypeInfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from searchengine.backends import limits
from searchengine.backends.postgresql import shown, split_url
from searchengine.errors import BackendUnavailable, CollectionError, CorpusError

Connection = psycopg.Connection[tuple[Any, ...]]
Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL REPEATABLE READ"
_LIMIT = (
    "SELECT set_config('statement_timeout', least(%s, nullif(setting::int, 0))::text, true) "
    "FROM pg_settings WHERE name = 'statement_timeout'"
)
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq that the URL does not set: a dead network is noticed within a minute."""
_OPTIONS = "-c statement_timeout=60000"  # milliseconds; what the URL says comes after it
_CLUSTER = (
    "SELECT set_config('citus.propagate_set_commands', 'local', false), "
    "set_config('citus.max_adaptive_executor_pool_size', '1', false)"
)
"""Let the nodes of a cluster know parameters that a transaction sets, and ask each by one
connection, so that a transaction sees one commit of a node. Means nothing to other servers."""
_CONNECTIONS = 16
_WAIT, _SOON = 10.0, 0.5  # seconds to wait for a connection, and until the reason is asked for
_TRIES = 12
_SERVER = re.compile(r".*connection to server (at|on) .*? failed: ")
"""Comes before the reason; names of hosts and folders must not be taken for one."""
_OPEN = TransactionStatus.INTRANS, TransactionStatus.INERROR
_IN_THE_WAY = errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation
T = TypeVar("T")


def run(connection: Connection, *statements: Statement) -> list[Rows]:
    """The rows of each statement; one round trip for all."""
    limits.check()
    if len(statements) == 1:
        cursor = connection.execute(statements[0][0], statements[0][1] or None)
        return [cursor.fetchall() if cursor.description else []]
    with connection.pipeline():
        cursors = [connection.execute(sql, values or None) for sql, values in statements]
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


class Connections:
    """The connections to one collection. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """Connect once. Raises CollectionError and BackendUnavailable."""
        self.name = shown(url)
        self.uri, self.schema = split_url(url)
        try:
            self._options = _DEFAULTS | conninfo_to_dict(self.uri)
        except psycopg.Error as error:  # whose message may show the password
            raise self._no_uri(error) from None
        self._options["options"] = f"{_OPTIONS} {self._options.get('options', '')}"
        several = "," in f"{self._options.get('host', '')}{self._options.get('hostaddr', '')}"
        several &= "target_session_attrs" not in self._options
        self._primary = {"target_session_attrs": "read-write"} if several else {}
        with self.single():
            pass
        # The pools log each try to connect; calls that wait for a connection raise why.
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        self._pool = self._replicas = self._new_pool(self._primary)
        if several:
            standby = {"target_session_attrs": "prefer-standby", "load_balance_hosts": "random"}
            self._replicas = self._new_pool(standby)

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """A connection to the primary of its own, in autocommit, without a limit on time."""
        with self.named_errors(), self._connect() as connection:
            self.configure(connection)
            connection.execute("SET statement_timeout = 0")
            yield connection

    @contextmanager
    def borrow(self, *, replica: bool = False) -> Iterator[Connection]:
        """A connection of a pool, in autocommit; an open transaction is ended."""
        pool = self._replicas if replica else self._pool
        with self.named_errors():
            connection = self._acquire(pool)
            try:
                yield connection
            finally:
                with suppress(psycopg.Error):
                    if connection.info.transaction_status in _OPEN:
                        connection.execute("ROLLBACK")
                pool.putconn(connection)

    @contextmanager
    def reading(self, *, replica: bool) -> "Iterator[Reading]":
        """A read-only transaction, which sees one commit."""
        with self.borrow(replica=replica) as connection:
            yield Reading(connection)

    def write(self, work: Callable[[Connection, str], T], *, alone: bool = False) -> T:
        """Run `work` in a transaction; again if another one was in its way.

        It is given the revision of the settings, which do not change meanwhile. `alone`: nobody
        else writes. Raises BackendUnavailable if the connection is lost. If that happens during the
        commit, it is unknown whether the change is stored: `upsert` and `delete` can be repeated.
        """
        begin: list[Statement] = [(_WRITE, ())]
        if alone:  # before anything takes a snapshot
            begin.append(("LOCK TABLE settings IN EXCLUSIVE MODE", ()))
        for attempt in range(_TRIES):
            with self.borrow() as connection:
                try:
                    lock = "" if alone else "FOR SHARE"
                    *_, ((revision,),) = run(connection, *begin, *_revision(lock))
                    result = work(connection, revision)
                    connection.execute("COMMIT")
                    return result
                except _IN_THE_WAY:
                    if attempt == _TRIES - 1:
                        raise
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close all connections; closing twice is harmless."""
        self._pool.close()
        self._replicas.close()

    def configure(self, connection: Connection) -> None:
        """Find the collection's tables and the types of pgvector by their bare names."""
        connection.execute(
            "SELECT set_config('search_path', concat_ws(', ', quote_ident(%s), (SELECT "
            "quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = "
            "extnamespace WHERE extname = 'vector')), false)",
            (self.schema,),
        )
        connection.execute(_CLUSTER)
        if TypeInfo.fetch(connection, "halfvec") is not None:  # the extension is there
            register_vector(connection)

    def _connect(self, **options: Any) -> Connection:
        """A new connection, to the primary unless the options say otherwise."""
        chosen = self._options | self._primary | options
        return Connection.connect(autocommit=True, prepare_threshold=None, **chosen)

    def _new_pool(self, options: dict[str, Any]) -> "ConnectionPool[Connection]":
        return ConnectionPool(
            kwargs={"autocommit": True, "prepare_threshold": None, **self._options, **options},
            min_size=0,
            max_size=_CONNECTIONS,
            open=True,
            configure=self.configure,
            check=_check,
            reconnect_timeout=0,  # the next call tries again
            num_workers=1,
        )

    def _acquire(self, pool: "ConnectionPool[Connection]") -> Connection:
        left = min(_WAIT, max(0.001, limits.current().deadline.at - time.monotonic()))
        try:
            return pool.getconn(min(left, _SOON))
        except PoolClosed:
            raise CollectionError(f"{self.name} is closed; open it again") from None
        except PoolTimeout:
            limits.check()
        self._connect().close()  # raises the reason
        try:
            return pool.getconn(left)
        except PoolTimeout:
            limits.check()
            raise BackendUnavailable(
                f"{self.name}: all connections were in use for {left:.0f} seconds; ask again "
                "later, or search from fewer threads"
            ) from None

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Raise the errors of the server as sentences."""
        try:
            yield
        except psycopg.Error as error:
            call = limits.current()
            if isinstance(error, errors.QueryCanceled) and call.expired():
                raise call.exceeded() from None
            raise self._named(error) from error

    def _named(self, error: psycopg.Error) -> Exception:
        reason = _reason(error)
        for kinds, words, failure, said in _SAID:
            if isinstance(error, kinds) and words in reason:
                return failure(f"{self.name}: {said.format(reason=reason)}")
        return CollectionError(f"{self.name}: {reason}")

    def _no_uri(self, error: Exception) -> CollectionError:
        def quoted(part: re.Match[str]) -> str:
            return part[0] if part[1] in self.name else '"…"'

        reason = re.sub('"(.*)"', quoted, _reason(error))
        return CollectionError(
            f"{self.name} is not a connection URI ({reason}); in a password, write % as %25, @ as "
            "%40, / as %2F and a space as %20"
        )


_STORE = "PostgreSQL cannot store this ({reason}); nothing was changed: "
_USER = (
    "refuses the user or the password ({reason}); set them in the URL, in PGUSER and PGPASSWORD, "
    "or in ~/.pgpass"
)
_REACH = "cannot be reached ({reason}); check the URL, and whether the server runs"
_BUSY = "takes no connection now ({reason}); try again"
_LONG = (
    "a key, and a value of a metadata field with an index, may have about 2,700 bytes; shorten it, "
    "or drop the index of the field"
)
_SLOW = (
    "a statement took longer than statement_timeout allows; allow more with "
    "?options=-c%20statement_timeout%3DMILLISECONDS in the URL"
)
_WAYS = "other writers changed the same documents again and again; nothing was changed, try again"
_RIGHT = "the user may not do this ({reason}); grant the right, or connect as another user"
_PRIMARY = (
    "this server is a replica, and writes go to the primary; name both in the URL "
    "(HOST:PORT,HOST:PORT), or try again after a failover"
)
_LOST = psycopg.OperationalError, psycopg.InterfaceError
_SAID: list[tuple[Any, str, type[Exception], str]] = [
    (errors.QueryCanceled, "", CollectionError, _SLOW),
    (_IN_THE_WAY, "", CollectionError, _WAYS),
    (errors.ProgramLimitExceeded, "", CorpusError, _STORE + _LONG),
    (psycopg.DataError, "", CorpusError, _STORE + "correct the document, or leave it out"),
    (errors.ReadOnlySqlTransaction, "", BackendUnavailable, _PRIMARY),
    (errors.InsufficientPrivilege, "", CollectionError, _RIGHT),
    (errors.UndefinedTable, "", CollectionError, "the collection is gone ({reason})"),
    *((_LOST, word, CollectionError, _USER) for word in ("password", "authentic", "role", "hba")),
    (_LOST, "does not exist", CollectionError, "{reason}; create it with: createdb NAME"),
    *((_LOST, word, BackendUnavailable, _BUSY) for word in ("starting", "shutting", "too many")),
    *((_LOST, word, BackendUnavailable, _REACH) for word in ("refused", "No such", "timeout")),
    (_LOST, "", BackendUnavailable, "the connection was lost ({reason}); try again"),
]
"""Errors by their class and a word of the reason; what is raised, and what it says."""


class Reading:
    """A transaction that its first statements begin, in one round trip.

    Attributes:
        began: called with the revision of the settings, before any result is returned.
    """

    def __init__(self, connection: Connection) -> None:
        self.began: Callable[[str], None] = lambda _: None
        self._connection, self._is_begun = connection, False

    @property
    def connection(self) -> Connection:
        """The connection, in the transaction."""
        if not self._is_begun:
            self.run()
        return self._connection

    def run(self, *statements: Statement) -> list[Rows]:
        """The rows of each statement; one round trip for all."""
        if self._is_begun:
            return run(self._connection, *statements)
        self._is_begun = True
        before: list[Statement] = [(_READ, ()), *_revision()]
        try:
            rows = run(self._connection, *before, *statements)
        except psycopg.DataError:  # vectors of another width, if settings have changed
            *_, ((revision,),) = run(self._connection, ("ROLLBACK", ()), *before)
            self.began(revision)
            raise
        self.began(rows[len(before) - 1][0][0])
        return rows[len(before) :]


def _revision(lock: str = "") -> list[Statement]:
    """Limits a transaction to the time of the call, and reads the revision of the settings."""
    call, limit = limits.current(), list[Statement]()
    if call.deadline.at < inf:
        limit.append((_LIMIT, (max(1, int(1e3 * (call.deadline.at - time.monotonic()))),)))
    return [*limit, (f"SELECT value FROM settings WHERE name = 'revision' {lock}", ())]


def _check(connection: Connection) -> None:
    """Raise OperationalError for a connection that the server has closed, without asking it."""
    if select.select([connection.pgconn.socket], [], [], 0)[0]:
        connection.pgconn.consume_input()
        if connection.pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError("closed")


def _reason(error: Exception) -> str:
    """The first line of a message of the server."""
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    lines = lines or [type(error).__name__]
    text = lines[-1] if lines[0].startswith("connection") and len(lines) > 1 else lines[0]
    return _SERVER.sub("", text).strip()
