"""Runs the application by uvicorn: the socket, one or several worker processes, signals."""

import errno
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

from searchengine.engine import SearchEngine
from searchengine.errors import CollectionError, QueryError
from searchengine.server.app import HARD_END, create
from searchengine.server.counting import FOLDER, Shared
from searchengine.server.guard import Guard
from searchengine.server.logs import log_as_json
from searchengine.server.server_settings import SPARE_TOKENS, ServerSettings
from searchengine.server.systemd import notify, reloading

_BACKLOG = 1024  # connections that wait to be accepted
_GRACE = 30  # seconds that requests under way have to end
_log = logging.getLogger(__name__)


def serve(settings: ServerSettings, on_address: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; `on_address` is called with the URL.

    The URL of a Unix socket is `unix:` and its path. Raises KeyboardInterrupt after SIGINT,
    CollectionError, and QueryError if the address cannot be used.
    """
    if settings.log == "json":
        log_as_json()
    _check_collections(settings)
    _allow_files()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are tokens to read again
    with _listening(settings) as (listeners, address):
        on_address(address)
        if settings.workers == 1:
            _run_here(settings, listeners[0])
        else:
            _run_workers(settings, listeners)


def _check_collections(settings: ServerSettings) -> None:
    """Raise CollectionError if none can be opened; the others are served, and say which is not."""
    failures: list[CollectionError] = []
    for path in settings.collections.values():
        try:
            SearchEngine.open(path).close()
        except CollectionError as error:
            failures.append(error)
    if len(failures) == len(settings.collections):
        raise failures[0]


def _allow_files() -> None:
    """Raise the number of open files to what this user may have."""
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def _listening(settings: ServerSettings) -> Iterator[tuple[list[socket.socket], str]]:
    """Sockets that listen, and their URL; a Unix socket is removed at the end.

    One for each worker, among which Linux distributes the connections: from a common one, the
    first worker to wake takes all that wait, and the others stay idle.
    """
    if (path := settings.unix_socket) is None:
        shared = settings.workers > 1 and sys.platform == "linux"
        with ExitStack() as stack:
            if shared and settings.port:  # else a program with the same option is not noticed
                _listen(settings.host, settings.port, queue=None).close()
            listener = stack.enter_context(_listen(settings.host, settings.port, shared=shared))
            host, port = listener.getsockname()[:2]
            others = range(1, settings.workers if shared else 1)
            listeners = [listener] + [
                stack.enter_context(_listen(settings.host, port, shared=True)) for _ in others
            ]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            yield listeners, url + settings.root_path
        return
    with _listen_unix(path) as listener:
        identity = path.stat()
        try:
            yield [listener], f"unix:{path}"
        finally:
            with suppress(OSError):
                if os.path.samestat(identity, path.stat()):
                    path.unlink()


def _listen_unix(path: Path) -> socket.socket:
    """A Unix socket that listens, with the mode that the umask leaves.

    One that a killed server has left behind is replaced, if nobody listens there.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                if other.connect_ex(str(path)) == errno.ECONNREFUSED:
                    path.unlink()
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        if error.errno == errno.EADDRINUSE:
            reason = "another program listens there, or it is another kind of file"
        raise QueryError(
            f"cannot listen on {path}: {reason}; choose another: --unix-socket PATH"
        ) from error
    return listener


def _listen(
    host: str, port: int, *, shared: bool = False, queue: int | None = _BACKLOG
) -> socket.socket:
    """A socket that listens, so that no connection is refused while workers start.

    `shared`: others may listen at the same port. `queue`: connections that wait; None: it only has
    the port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise QueryError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        if queue is not None:
            listener.listen(queue)
    except OSError as error:
        listener.close()
        raise QueryError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another: --port PORT"
        ) from error
    return listener


def _application(settings: ServerSettings, numbers: Path | None) -> Guard:
    if settings.log == "json" and numbers is not None:  # a worker process
        log_as_json()
    return create(settings, numbers)


def _config(settings: ServerSettings, numbers: Path | None) -> uvicorn.Config:
    return uvicorn.Config(
        partial(_application, settings, numbers),
        factory=True,
        http="httptools",
        workers=settings.workers,
        access_log=False,
        log_level="warning",
        log_config=None,
        backlog=_BACKLOG,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        proxy_headers=False,  # of trusted proxies only: `create` reads them
    )


def _run_here(settings: ServerSettings, listener: socket.socket) -> None:
    server = uvicorn.Server(_config(settings, None))
    try:
        server.run(sockets=[listener])
    except SystemExit:
        if not server.started:
            raise
        # uvicorn raises SIGTERM again after an orderly stop: no error


def _run_workers(settings: ServerSettings, listeners: list[socket.socket]) -> None:
    with tempfile.TemporaryDirectory(prefix="searchengine-") as folder:
        numbers = Path(folder) / "numbers"
        slots = len(settings.tokens) + SPARE_TOKENS
        Shared.create(numbers, settings.workers, len(settings.collections), slots)
        os.environ[FOLDER] = folder  # for the workers, which import prometheus-client
        _Workers(_config(settings, numbers), listeners).run()


class _Workers(Multiprocess):
    """Processes that answer; Ctrl-C raises KeyboardInterrupt when they have ended.

    SIGHUP is passed on to them. After SIGTERM or SIGINT all end within HARD_END seconds.
    """

    _interrupted = _notified = False
    _killing: threading.Timer | None = None

    def __init__(self, config: uvicorn.Config, listeners: list[socket.socket]) -> None:
        self._listeners = listeners
        super().__init__(config, [])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    @property
    def sockets(self) -> list[socket.socket]:
        """That of the worker to start: the one whose pipe was closed is replaced."""
        replaced = (i for i, each in enumerate(self.processes) if each.parent_conn.closed)
        position = next(replaced, len(self.processes))
        return [self._listeners[position % len(self._listeners)]]

    @sockets.setter
    def sockets(self, _: list[socket.socket]) -> None:
        """Ignored; Multiprocess sets it."""

    def handle_ttin(self) -> None:
        """Ignore the signal: the number of workers is that of the sockets."""

    handle_ttou = handle_ttin

    def _stop(self, number: int, _: object) -> None:
        self.signal_queue.append(number)
        if self._killing is None:
            notify("STOPPING=1")
            self._killing = threading.Timer(HARD_END, self._kill)
            self._killing.daemon = True
            self._killing.start()

    def _kill(self) -> None:
        for process in self.processes:
            process.process.kill()

    def init_processes(self) -> None:
        """Start the workers."""
        with _deferred_hangup():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have died; tell systemd when all of them answer."""
        before = list(self.processes)
        with _deferred_hangup():
            super().keep_subprocess_alive()
        for old, new in zip(before, self.processes, strict=True):
            if new is not old:
                message = "worker %d has died (exit status %s); %d replaces it"
                _log.error(message, old.pid, old.exitcode, new.pid)
        if not self._notified and all(process.is_ready() for process in self.processes):
            self._notified = True
            notify("READY=1")

    def terminate_all(self) -> None:
        """Stop the workers, and refuse connections from now on: no worker would accept them."""
        for listener in self._listeners:
            listener.close()
        super().terminate_all()

    def handle_hup(self) -> None:
        """Let every worker read the tokens again."""
        reloading()
        for process in self.processes:
            if process.pid is not None and process.process.is_alive():
                os.kill(process.pid, signal.SIGHUP)
        notify("READY=1")

    def handle_int(self) -> None:
        """Note SIGINT, and stop."""
        self._interrupted = True
        super().handle_int()

    def run(self) -> None:
        """Answer until a signal."""
        super().run()
        if self._interrupted:
            raise KeyboardInterrupt


@contextmanager
def _deferred_hangup() -> Iterator[None]:
    """Let processes that the block starts get SIGHUP when they handle it: before, it ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
