"""Connections to a server: the URL, pools, transactions that try again, errors as sentences.

The URL is described in docs/postgresql.md. With several hosts in it, searches ask a replica if one
answers, and writes go to the primary.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from typing import Any, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from searchengine.backends import limits
from searchengine.backends.postgresql import shown, split_url
from searchengine.errors import BackendUnavailable, CollectionBusy, CollectionError, CorpusError

Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]
Connection = psycopg.Connection[tuple[Any, ...]]
"""A connection in autocommit."""
_DEFAULTS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""What the URL does not set: with these, a dead network is noticed within a minute."""
_OPTIONS = "-c statement_timeout=60000"  # milliseconds; what the URL says comes after it
_CONFIGURE = (
    "SELECT set_config('search_path', concat_ws(', ', quote_ident(%s), (SELECT "
    "quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = "
    "extnamespace WHERE extname = 'vector')), false), "
    "set_config('citus.propagate_set_commands', 'local', false), "
    "set_config('citus.max_adaptive_executor_pool_size', '1', false)"
)
"""The second and third let the nodes of a cluster know parameters that a transaction sets, and ask
each by one connection, so that a transaction sees one commit of a node."""
_CONNECTIONS = 16
_WAIT, _SOON = 10.0, 0.5  # seconds to wait for a connection, and until the reason is asked for
_LONGEST = 1e6  # seconds that a statement may take
_TRIES = 12
_LOST = psycopg.OperationalError, psycopg.InterfaceError
_CONFLICTS = errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation
T = TypeVar("T")
# Of an error that a call raises, psycopg need not write to the terminal too.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


def run(connection: Connection, *statements: Statement) -> list[Rows]:
    """The rows of each statement; one round trip for all."""
    limits.check()
    if not statements:
        return []
    with connection.pipeline() if len(statements) > 1 else nullcontext():
        cursors = [connection.execute(sql, values or None) for sql, values in statements]
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


class Connections:
    """The connections to one collection. Safe to use from several threads.

    Attributes:
        name: the URL without its password.
        schema: the schema of the collection.
    """

    def __init__(self, url: str, end: str = "") -> None:
        """Connects at the first use. `end` of the schema: see BESIDE. Raises CollectionError."""
        self.name = shown(url) + end
        uri, name = split_url(url)
        self.schema = name + end
        try:
            self._options = _DEFAULTS | conninfo_to_dict(uri)
        except psycopg.Error as error:  # whose message may show the password in quotes
            reason = _reason(error).partition('"')[0].strip(": ")
            raise CollectionError(
                f"{self.name} is not a connection URI ({reason}); in a "
                "password, write % as %25, @ as %40, / as %2F and a space as %20"
            ) from None
        self._options["options"] = f"{_OPTIONS} {self._options.get('options', '')}"
        several = "," in f"{self._options.get('host', '')}{self._options.get('hostaddr', '')}"
        several &= "target_session_attrs" not in self._options
        self._primary = {"target_session_attrs": "read-write"} if several else {}
        self._pool = self._replicas = self._new_pool(self._primary)
        if several:
            standby = {"target_session_attrs": "prefer-standby", "load_balance_hosts": "random"}
            self._replicas = self._new_pool(standby)

    @contextmanager
    def borrow(self, *, replica: bool = False) -> Iterator[Connection]:
        """A connection of a pool, in autocommit; an open transaction is ended."""
        pool = self._replicas if replica else self._pool
        try:
            connection = self._acquire(pool)
            try:
                yield connection
            finally:
                with suppress(psycopg.Error):
                    connection.rollback()
                pool.putconn(connection)
        except psycopg.Error as error:
            deadline = limits.current().deadline
            if isinstance(error, psycopg.OperationalError) and deadline.expired():
                raise deadline.exceeded() from None
            reason = _reason(error)
            for kinds, words, failure, sentence in _SENTENCES:
                if isinstance(error, kinds) and re.search(words, reason):
                    raise failure(f"{self.name}: {sentence.format(reason=reason)}") from error
            raise CollectionError(f"{self.name}: {reason}") from error

    @contextmanager
    def transaction(self, lock: str, *, replica: bool = False) -> Iterator[tuple[Connection, str]]:
        """A transaction, which sees one commit, and the revision of its settings.

        `lock`: of the settings. It comes before anything takes a snapshot of the database: what
        waits for it sees what it has waited for. With EXCLUSIVE nobody else writes, statements
        may take any time, and what the caller writes on other connections is seen.
        """
        isolation = "READ COMMITTED" if lock == "EXCLUSIVE" else "REPEATABLE READ"
        sql = f"LOCK TABLE settings IN {lock} MODE; "
        if lock == "EXCLUSIVE":
            sql += "SET LOCAL statement_timeout = 0; "
        with self.borrow(replica=replica) as connection:
            if (end := limits.current().deadline.at) < inf:
                left = 1 + int(1e3 * min(max(0, end - time.monotonic()), _LONGEST))
                for name in ("lock_timeout", "statement_timeout"):
                    sql = f"SET LOCAL {name} = {left}; {sql}"
            sql = f"BEGIN ISOLATION LEVEL {isolation}; {sql}"
            cursor = connection.execute(sql + "SELECT value FROM settings WHERE name = 'revision'")
            while cursor.nextset():
                pass
            yield connection, cursor.fetchall()[0][0]

    def write(self, work: Callable[[Connection, str], T], *, alone: bool = False) -> T:
        """Run `work` in a transaction; again if another one was in its way.

        It is given the revision of the settings, which do not change meanwhile. `alone`: nobody
        else writes. Raises BackendUnavailable if the connection is lost. If that happens during the
        commit, it is unknown whether the change is stored: `upsert` and `delete` can be repeated.
        """
        for attempt in range(_TRIES):
            with self.transaction("EXCLUSIVE" if alone else "SHARE") as (connection, revision):
                try:
                    result = work(connection, revision)
                    connection.execute("COMMIT")
                    return result
                except (*_CONFLICTS, errors.LockNotAvailable):
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
        connection.execute(_CONFIGURE, (self.schema,))
        with suppress(psycopg.ProgrammingError):  # the extension is not there yet
            register_vector(connection)

    def _new_pool(self, options: dict[str, Any]) -> ConnectionPool[Connection]:
        return ConnectionPool(
            connection_class=Connection,
            kwargs=self._options | options,
            name=f"{__name__} {self.schema}",
            min_size=0,
            max_size=_CONNECTIONS,
            open=True,
            configure=self.configure,
            check=_check,
            reconnect_timeout=0,  # the next call tries again
            num_workers=1,
        )

    def _acquire(self, pool: ConnectionPool[Connection]) -> Connection:
        left = min(_WAIT, max(0.001, limits.current().deadline.at - time.monotonic()))
        with suppress(PoolTimeout):
            return pool.getconn(min(_SOON, left))
        limits.check()
        Connection.connect(**(self._options | self._primary)).close()  # raises the reason
        return pool.getconn(left - _SOON)


_SENTENCES: list[tuple[Any, str, type[Exception], str]] = [
    (PoolClosed, "", CollectionError, "is closed; open it again"),
    (
        errors.QueryCanceled, "", CollectionError,
        "{reason}; to allow more: ?options=-c%20statement_timeout%3DMILLISECONDS in the URL",
    ),
    (  # of writers of the same documents; on a replica, with its recovery
        _CONFLICTS, "", BackendUnavailable, "{reason}; nothing was changed, try again",
    ),
    (
        errors.LockNotAvailable, "", CollectionBusy,
        "others read without a pause, so its tables could not be replaced; repeat the command "
        "later, nothing is encoded twice",
    ),
    (
        (psycopg.DataError, errors.ProgramLimitExceeded), "", CorpusError,
        "PostgreSQL cannot store this ({reason}); nothing was changed: correct the document; a "
        "key, and a value of a metadata field with an index, may have about 2,700 bytes, so "
        "shorten it, or drop the index of the field",
    ),
    (
        errors.ReadOnlySqlTransaction, "", BackendUnavailable,
        "this server is a replica, and writes go to the primary; name both in the URL "
        "(HOST:PORT,HOST:PORT), or try again after a failover",
    ),
    (
        errors.InsufficientPrivilege, "", CollectionError,
        "the user may not do this ({reason}); grant the right, or connect as another user",
    ),
    (
        _LOST, "password|authentic|hba|does not exist", CollectionError,
        "refuses the user, the password or the database ({reason}); set them in the URL, in PGUSER "
        "and PGPASSWORD, or in ~/.pgpass, or create the database: createdb NAME",
    ),
    (
        _LOST, "", BackendUnavailable,
        "cannot be reached, was lost, or has all connections in use ({reason}); check the URL and "
        "whether the server runs, or try again, from fewer threads",
    ),
]  # fmt: skip
"""Errors by their class and words of the reason; what is raised, and what it says."""


def _check(connection: Connection) -> None:
    """Raise OperationalError for a connection that the server has closed, without asking it."""
    for _ in range(2):  # the server's last message, and the end
        connection.pgconn.consume_input()


def _reason(error: Exception) -> str:
    """The first line of a message of the server, without the address that it begins with."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rpartition(" failed: ")[2]
