"""Connections to a server: the URL, a pool, errors as sentences, transactions that try again.

    postgresql://USER@HOST:PORT/DATABASE#COLLECTION

COLLECTION is the schema of the collection, by default "searchengine". The rest is a connection URI
of libpq: passwords come from the URL, PGPASSWORD or ~/.pgpass, and `?options=-c%20NAME%3DVALUE`
sets a parameter of the session, such as statement_timeout (in milliseconds).
"""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from searchengine.backends import limits
from searchengine.backends.folder.documents.connections import inherit
from searchengine.errors import BackendUnavailable, CollectionError, CorpusError
from searchengine.trainer.errors import install_line

if TYPE_CHECKING:
    import psycopg
    from psycopg_pool import ConnectionPool

    Connection = psycopg.Connection[tuple[Any, ...]]

DEFAULT_SCHEMA = "searchengine"
STATEMENT_TIMEOUT = 60_000
"""Milliseconds that a statement may take, unless the URL sets statement_timeout."""
_OLDEST = (0, 8)  # of pgvector: iterative scans, without which filters under-fill
_CONNECT, _WAIT = 10, 10  # seconds to connect, and to wait for a free connection
_CONNECTIONS = 16
_TRIES = 12
_NAME = re.compile(r"[^\W\d]\w{0,62}")
T = TypeVar("T")


def split_url(url: str) -> tuple[str, str]:
    """The connection URI and the schema of a collection's URL. Raises CollectionError."""
    uri, _, name = url.partition("#")
    schema = unquote(name) or DEFAULT_SCHEMA
    if _NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise CollectionError(
            f"{shown(url)}: the name of a collection must be a word of at most 63 characters that "
            f"does not begin with a digit or pg_, got {schema!r}"
        )
    return uri, schema


def shown(url: str) -> str:
    """The URL without its password, for messages."""
    url = re.sub(r"(?<=//)([^:/@]*):.*@", r"\1@", url)  # an unquoted password may hold @, / and ?
    return re.sub(r"(?<=[?&])password=[^&#]*&?", "", url)


class Connections:
    """A pool of connections to one collection. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """Connect once. Raises ImportError (missing extra) and CollectionError."""
        _required()
        self.url, self.name = url, shown(url)
        self.uri, self.schema = split_url(url)
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Connection] | None = None
        self._closed = False
        with self.single() as connection:
            self._check_extension(connection)
        inherit(self)

    def after_fork(self) -> None:
        """In a forked child: the connections are the parent's; open others."""
        self._lock = threading.Lock()
        self._inherited, self._pool = self._pool, None

    @contextmanager
    def single(self) -> "Iterator[Connection]":
        """A connection outside of the pool, in autocommit, without a limit on time."""
        import psycopg

        with self.named_errors():
            try:
                connection = psycopg.connect(
                    self.uri, autocommit=True, prepare_threshold=None, connect_timeout=_CONNECT
                )
            except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
                raise self._not_connected(error) from error
            with connection:
                self.use_schema(connection)
                yield connection

    @contextmanager
    def borrow(self) -> "Iterator[Connection]":
        """A connection of the pool, in autocommit. Raises BackendUnavailable."""
        pool = self._opened()
        try:
            with self.named_errors(), pool.connection() as connection:
                yield connection
        except BackendUnavailable:
            self._discard(pool)
            raise

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """A connection in a read-only transaction that sees one commit."""
        with self.borrow() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                _limit(connection)
                yield connection
            finally:
                if not connection.closed:
                    connection.execute("ROLLBACK")

    def write(self, work: "Callable[[Connection], T]") -> T:
        """Run `work` in a transaction; again if another one was in its way.

        Raises BackendUnavailable if the connection is lost. If that happens during the commit, it
        is unknown whether the change is stored: `upsert` and `delete` can be repeated.
        """
        from psycopg import errors

        for attempt in range(_TRIES):
            with self.borrow() as connection:
                try:
                    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                    result = work(connection)
                    connection.execute("COMMIT")
                    return result
                except (
                    errors.SerializationFailure,
                    errors.DeadlockDetected,
                    errors.UniqueViolation,  # inserted by another since this one began
                ):
                    if attempt == _TRIES - 1:
                        raise
                finally:
                    if not connection.closed and connection.info.transaction_status:
                        connection.execute("ROLLBACK")
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        raise AssertionError("the last attempt returns or raises")

    def _discard(self, pool: "ConnectionPool[Connection]") -> None:
        """Let the next call open another pool, at once.

        This one would wait before it connects again, the longer the server was away.
        """
        with self._lock:
            if self._pool is pool:
                self._pool = None
        pool.close(timeout=0)

    def close(self) -> None:
        """Close all connections; closing twice is harmless."""
        with self._lock:
            pool, self._pool, self._closed = self._pool, None, True
        if pool is not None:
            pool.close()

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Raise the errors of the server as sentences."""
        import psycopg
        from psycopg import errors
        from psycopg_pool import PoolTimeout

        try:
            yield
        except PoolTimeout as error:
            raise BackendUnavailable(
                f"{self.name}: no connection within {_WAIT} seconds, because the server does not "
                "answer or is busy; try again later"
            ) from error
        except errors.QueryCanceled as error:
            call = limits.current()
            if call is not None and call.expired():
                raise call.exceeded() from None
            raise CollectionError(
                f"{self.name}: a statement took longer than statement_timeout allows; allow more "
                "with ?options=-c%20statement_timeout%3DMILLISECONDS in the URL"
            ) from error
        except (errors.SerializationFailure, errors.DeadlockDetected) as error:
            raise CollectionError(
                f"{self.name}: other writers changed the same documents {_TRIES} times in a row; "
                "nothing was changed, try again"
            ) from error
        except (psycopg.DataError, errors.ProgramLimitExceeded) as error:
            raise CorpusError(
                f"PostgreSQL cannot store this ({_reason(error)}); nothing was changed: correct "
                "the document, or leave it out"
            ) from error
        except errors.InsufficientPrivilege as error:
            raise CollectionError(
                f"{self.name}: the user may not do this ({_reason(error)}); grant the right, or "
                "connect as another user"
            ) from error
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            raise CollectionError(
                f"{self.name}: the collection is gone ({_reason(error)}); create it again"
            ) from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise BackendUnavailable(
                f"{self.name}: the connection was lost ({_reason(error)}); try again"
            ) from error
        except psycopg.Error as error:
            raise CollectionError(f"{self.name}: {_reason(error)}") from error

    def _opened(self) -> "ConnectionPool[Connection]":
        from psycopg_pool import ConnectionPool

        with self._lock:
            pool, closed = self._pool, self._closed
        if pool is not None:
            return pool
        if not closed:
            with self.single():  # raises at once while the server is away; a pool would wait
                pass
        with self._lock:
            if self._closed:
                raise CollectionError(f"{self.name} is closed; open it again")
            if self._pool is None:
                self._pool = ConnectionPool(
                    self.uri,
                    min_size=1,
                    max_size=_CONNECTIONS,
                    timeout=_WAIT,
                    configure=self._configure,
                    check=ConnectionPool.check_connection,
                    kwargs={
                        "autocommit": True,
                        "prepare_threshold": None,  # a plan must know the values
                        "connect_timeout": _CONNECT,
                    },
                    open=True,
                )
            return self._pool

    def _configure(self, connection: "Connection") -> None:
        self.use_schema(connection)
        connection.execute(
            "SELECT set_config(name, %s, false) FROM pg_settings "
            "WHERE name = 'statement_timeout' AND source <> 'client'",
            (str(STATEMENT_TIMEOUT),),
        )

    def use_schema(self, connection: "Connection") -> None:
        """Find the collection's tables and the types of pgvector by their bare names."""
        from pgvector.psycopg import register_vector

        connection.execute(
            "SELECT set_config('search_path', concat_ws(', ', quote_ident(%s), (SELECT "
            "quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = "
            "extnamespace WHERE extname = 'vector')), false)",
            (self.schema,),
        )
        if connection.execute("SELECT to_regtype('halfvec')").fetchone() != (None,):
            register_vector(connection)

    def _check_extension(self, connection: "Connection") -> None:
        sql = (
            "SELECT installed_version, default_version FROM pg_available_extensions "
            "WHERE name = 'vector'"
        )
        installed, available = connection.execute(sql).fetchone() or (None, None)
        if available is None:
            raise CollectionError(
                f"{self.name}: the server lacks the extension pgvector; install version 0.8 or "
                "later there (https://github.com/pgvector/pgvector)"
            )
        if _version(installed or available) < _OLDEST:
            update = "" if _version(available) < _OLDEST else ": ALTER EXTENSION vector UPDATE"
            raise CollectionError(
                f"{self.name} has pgvector {installed or available}, and 0.8 or later is needed; "
                f"upgrade it on the server{update}"
            )

    def _not_connected(self, error: Exception) -> CollectionError:
        reason = _reason(error)
        if "password" in reason or "authentication" in reason or "role" in reason:
            return CollectionError(
                f"{self.name} refuses the user or the password ({reason}); set them in the URL, in "
                "PGUSER and PGPASSWORD, or in ~/.pgpass"
            )
        if "database" in reason and "does not exist" in reason:
            return CollectionError(f"{self.name}: {reason}; create it with: createdb NAME")
        return BackendUnavailable(
            f"{self.name} cannot be reached ({reason}); check the URL, and whether the server runs"
        )


def _required() -> None:
    try:
        import pgvector.psycopg  # noqa: F401
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"collections on PostgreSQL need {error.name}: {install_line('postgresql')}"
        ) from error


def _reason(error: Exception) -> str:
    """The first line of a message of the server."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = lines[-1] if lines[0].startswith("connection") and len(lines) > 1 else lines[0]
    return text.strip().removeprefix("- ")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _limit(connection: "Connection") -> None:
    """Let no statement of the transaction take longer than the call may still take."""
    call = limits.current()
    if call is None or call.deadline is None:
        return
    limits.check()
    milliseconds = int(1e3 * (call.deadline.at - time.monotonic())) + 1
    connection.execute(
        "SELECT set_config('statement_timeout', least(%s, nullif(setting::int, 0))::text, true) "
        "FROM pg_settings WHERE name = 'statement_timeout'",
        (milliseconds,),
    )
