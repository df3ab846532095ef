"""Connections to a server: the URL, a pool, errors as sentences, transactions that try again.

    postgresql://USER@HOST:PORT/DATABASE#COLLECTION

COLLECTION is the schema of the collection, by default "searchengine". With several hosts,
HOST:PORT,HOST:PORT, searches ask a replica if one answers, and writes go to the primary; with
target_session_attrs in the URL, all go to such a server. The rest is a connection URI
of libpq: passwords come from the URL, PGPASSWORD or ~/.pgpass, and `?options=-c%20NAME%3DVALUE`
sets a parameter of the session, such as statement_timeout (in milliseconds).
"""

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from searchengine.backends import limits
from searchengine.errors import BackendUnavailable, CollectionError, CorpusError
from searchengine.trainer.errors import install_line

if TYPE_CHECKING:
    from psycopg.types import TypeInfo

    from searchengine.backends.postgresql.pool import Connection, Pool, Transaction

DEFAULT_SCHEMA = "searchengine"
STATEMENT_TIMEOUT = 60_000
"""Milliseconds that a statement may take, unless the URL sets statement_timeout."""
_OLDEST = (0, 8)  # of pgvector: iterative scans, without which filters under-fill
_WAIT = 10  # seconds to wait for a free connection
_GRACE = 10  # seconds that an answer may take beyond statement_timeout
_KEPT_ALIVE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq that the URL does not set: a dead network is noticed within a minute."""
_CLUSTER = (
    "SELECT set_config('citus.propagate_set_commands', 'local', false), "
    "set_config('citus.max_adaptive_executor_pool_size', '1', false)"
)
"""Let the nodes of a cluster know parameters that a transaction sets, and ask each by one
connection, so that a transaction sees one commit of a node. Means nothing to other servers."""
_CONNECTIONS = 16
_TRIES = 12
_SERVER = re.compile(r".*connection to server (at|on) .*? failed: ")
"""Comes before the reason; names of hosts and folders must not be taken for one."""
_ENDED = re.compile("server closed the connection unexpectedly|connection not open")
_NAME = re.compile(r"[^\W\d]\w{0,62}")
T = TypeVar("T")


def split_url(url: str) -> tuple[str, str]:
    """The connection URI and the schema of a collection's URL. Raises CollectionError."""
    uri, _, name = url.partition("#")
    schema = unquote(name) or DEFAULT_SCHEMA
    if _NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise CollectionError(
            f"{shown(url)}: the name of a collection, after the first #, must be a word of at most "
            "63 characters that does not begin with a digit or pg_; write # in a password as %23"
        )
    return uri, schema


def shown(url: str) -> str:
    """The URL without its password, for messages."""
    url = re.sub(r"(?<=//)([^:/@]*):.*@", r"\1@", url)  # an unquoted password may hold @, / and ?
    return re.sub(r"(?<=[?&])(ssl)?password=[^&#]*&?", "", url)


class Connections:
    """The connections to one collection. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """Connect once. Raises ImportError (missing extra) and CollectionError."""
        _required()
        self.url, self.name = url, shown(url)
        self.uri, self.schema = split_url(url)
        self._types: dict[str, TypeInfo | None] = {}
        self._open_pools()
        try:
            with self.borrow(replica=True) as connection:
                self._check_extension(connection)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def single(self) -> "Iterator[Connection]":
        """A connection of its own, in autocommit, without a limit on time."""
        with self.named_errors(), self._connected(self._writable) as connection:
            connection.execute("SET statement_timeout = 0")
            connection.answers_within = None
            yield connection

    @contextmanager
    def borrow(self, *, replica: bool = False) -> "Iterator[Connection]":
        """A connection of a pool, in autocommit. Raises BackendUnavailable."""
        pool = self._replicas if replica else self._pool
        with self.named_errors():
            connection = self._acquire(pool)
            try:
                connection.settle()
                yield connection
            finally:
                pool.release(connection)

    @contextmanager
    def reading(self, *, replica: bool = True) -> "Iterator[Transaction]":
        """A read-only transaction that sees one commit; of a replica it may be an older one."""
        from searchengine.backends.postgresql.pool import READ, Transaction

        with self.named_errors():
            pool = self._replicas if replica else self._pool
            transaction = Transaction(lambda: self._acquire(pool), READ)
            try:
                yield transaction
            finally:
                if transaction.acquired is not None:
                    pool.release(transaction.acquired)

    def write(self, work: "Callable[[Transaction], T]", lock: str = "FOR SHARE") -> T:
        """Run `work` in a transaction; again if another one was in its way.

        `lock`: of the row of settings that says which revision they are; prefixes.py keeps all
        writers out by it. Raises BackendUnavailable if the connection is lost. If that happens
        during the commit, it is unknown whether the change is stored: `upsert` and `delete` can be
        repeated.
        """
        from psycopg import errors

        from searchengine.backends.postgresql.pool import WRITE, Transaction

        for attempt in range(_TRIES):
            with self.named_errors():
                transaction = Transaction(lambda: self._acquire(self._pool), WRITE, lock)
                try:
                    result = work(transaction)
                    if not transaction.committed:
                        transaction.commit()
                    return result
                except (
                    errors.SerializationFailure,
                    errors.DeadlockDetected,
                    errors.UniqueViolation,  # inserted by another since this one began
                ):
                    if attempt == _TRIES - 1:
                        raise
                finally:
                    if transaction.acquired is not None:
                        self._pool.release(transaction.acquired)
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close all connections; closing twice is harmless."""
        self._pool.close()
        self._replicas.close()

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Raise the errors of the server as sentences."""
        import psycopg
        from psycopg import errors

        try:
            yield
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
            raise self._unstorable(error) from error
        except errors.ReadOnlySqlTransaction as error:
            raise BackendUnavailable(
                f"{self.name}: this server is a replica, and writes go to the primary; name both "
                "in the URL (HOST:PORT,HOST:PORT), or try again after a failover"
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
            raise self._lost(error) from error
        except psycopg.Error as error:
            raise self._unnamed(error) from error

    def _open_pools(self) -> None:
        """One for writes, and one for searches; the same unless the URL has several hosts."""
        from psycopg.conninfo import conninfo_to_dict

        from searchengine.backends.postgresql.pool import Pool

        try:
            options = conninfo_to_dict(self.uri)
        except psycopg_error() as error:
            raise self._no_uri(error) from None  # whose message may show the password
        several = "," in f"{options.get('host', '')}{options.get('hostaddr', '')}"
        several &= "target_session_attrs" not in options
        self._writable = ("read-write",) if several else ("",)
        self._pool = Pool(lambda: self._connected(self._writable), _CONNECTIONS, _WAIT)
        self._replicas = self._pool
        if several:
            kinds = ("standby", "any")
            self._replicas = Pool(lambda: self._connected(kinds), _CONNECTIONS, _WAIT)

    def _acquire(self, pool: "Pool") -> "Connection":
        from searchengine.backends.postgresql.pool import Busy

        if pool.closed:
            raise CollectionError(f"{self.name} is closed; open it again")
        try:
            return pool.acquire()
        except Busy as error:
            raise BackendUnavailable(
                f"{self.name}: {error}; ask again later, or search from fewer threads"
            ) from None

    def _connected(self, kinds: Sequence[str]) -> "Connection":
        """A new connection, which finds the collection's tables and the types of pgvector.

        `kinds`: the target_session_attrs to try in turn; "": as the URL says.
        """
        from psycopg.conninfo import conninfo_to_dict

        from searchengine.backends.postgresql.pool import Connection

        options = _KEPT_ALIVE | conninfo_to_dict(self.uri)
        call = limits.current()
        if call is not None and call.deadline is not None:
            left = max(2, math.ceil(call.deadline.at - time.monotonic()))  # 2 is libpq's least
            options["connect_timeout"] = min(left, int(options["connect_timeout"]) or left)
        for kind in kinds:
            if kind:
                options |= {"target_session_attrs": kind, "load_balance_hosts": "random"}
            try:
                connection = Connection.connect(autocommit=True, prepare_threshold=None, **options)
                break
            except psycopg_error() as error:
                limits.check()
                if kind == kinds[-1]:
                    raise self._not_connected(error) from error
        try:
            connection.answers_within = STATEMENT_TIMEOUT / 1e3 + _GRACE
            timeout = "FROM pg_settings WHERE name = 'statement_timeout'"
            _, _, ((milliseconds,),) = connection.run(
                (_CLUSTER, ()),
                (
                    f"SELECT set_config(name, %s, false) {timeout} AND source <> 'client'",
                    (str(STATEMENT_TIMEOUT),),
                ),
                (f"SELECT setting::int {timeout}", ()),
            )
            connection.answers_within = milliseconds / 1e3 + _GRACE if milliseconds else None
            self.use_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def use_schema(self, connection: "Connection") -> None:
        """Find the collection's tables and the types of pgvector by their bare names."""
        from pgvector.psycopg.halfvec import register_halfvec_info
        from pgvector.psycopg.vector import register_vector_info
        from psycopg.types import TypeInfo

        connection.execute(
            "SELECT set_config('search_path', concat_ws(', ', quote_ident(%s), (SELECT "
            "quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = "
            "extnamespace WHERE extname = 'vector')), false)",
            (self.schema,),
        )
        for name, register in (
            ("vector", register_vector_info),
            ("halfvec", register_halfvec_info),
        ):
            if self._types.get(name) is None:
                self._types[name] = TypeInfo.fetch(connection, name)
            info = self._types[name]
            if info is not None:
                register(connection, info)

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

    def _unstorable(self, error: Exception) -> CorpusError:
        from psycopg import errors

        way_out = "correct the document, or leave it out"
        if isinstance(error, errors.ProgramLimitExceeded):
            way_out = (
                "a key, and a value of a metadata field with an index, may have about 2,700 bytes; "
                f"shorten it, or drop the index of the field in the schema {self.schema}"
            )
        return CorpusError(
            f"PostgreSQL cannot store this ({_reason(error)}); nothing was changed: {way_out}"
        )

    def _unnamed(self, error: Exception) -> Exception:
        if _ENDED.match(str(error)) is not None:  # to a node of a cluster, which has no code
            return self._lost(error)
        return CollectionError(f"{self.name}: {_reason(error)}")

    def _lost(self, error: Exception) -> BackendUnavailable:
        return BackendUnavailable(
            f"{self.name}: the connection was lost ({_reason(error)}); try again"
        )

    def _no_uri(self, error: Exception) -> CollectionError:
        def quoted(part: re.Match[str]) -> str:
            return part[0] if part[1] in self.name else '"…"'

        reason = re.sub('"(.*)"', quoted, _reason(error))
        return CollectionError(
            f"{self.name} is not a connection URI ({reason}); in a password, write % as %25, @ as "
            "%40, / as %2F and a space as %20"
        )

    def _not_connected(self, error: Exception) -> CollectionError:
        reason = _reason(error)
        if any(word in reason for word in ("password", "authentication", "role", "pg_hba")):
            return CollectionError(
                f"{self.name} refuses the user or the password ({reason}); set them in the URL, in "
                "PGUSER and PGPASSWORD, or in ~/.pgpass"
            )
        if "database" in reason and "does not exist" in reason:
            return CollectionError(f"{self.name}: {reason}; create it with: createdb NAME")
        if any(word in reason for word in ("starting up", "shutting down", "recovery", "slots")):
            return BackendUnavailable(
                f"{self.name} runs, but takes no connection now ({reason}); try again"
            )
        if "too many" in reason:
            return BackendUnavailable(
                f"{self.name} has no connection left ({reason}); end others, or raise "
                "max_connections on the server"
            )
        return BackendUnavailable(
            f"{self.name} cannot be reached ({reason}); check the URL, and whether the server runs"
        )


def psycopg_error() -> type[Exception]:
    """The errors of psycopg."""
    import psycopg

    return psycopg.Error


def _required() -> None:
    try:
        import pgvector.psycopg  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"collections on PostgreSQL need {error.name}: {install_line('postgresql')}"
        ) from error


def _reason(error: Exception) -> str:
    """The first line of a message of the server."""
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    lines = lines or [type(error).__name__]
    text = lines[-1] if lines[0].startswith("connection") and len(lines) > 1 else lines[0]
    return _SERVER.sub("", text).strip()


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
