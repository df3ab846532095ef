"""Runs the application by uvicorn: the socket, one or several worker processes."""

import errno
import logging
import os
import resource
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

from searchengine.engine import SearchEngine
from searchengine.errors import CollectionError, QueryError
from searchengine.server.app import create
from searchengine.server.metrics import FOLDER
from searchengine.server.server_settings import ServerSettings

_BACKLOG = 4096  # connections that wait to be accepted: what Linux allows
GRACE = 30
"""Seconds that requests under way have to end."""
_UNRESPONSIVE = 30  # seconds after which a worker that does not answer its parent is replaced
_log = logging.getLogger(__name__)


def serve(settings: ServerSettings, on_address: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; `on_address` is called with the URL.

    The URL of a Unix socket is `unix:` and its path. Raises CollectionError, and QueryError if the
    address cannot be used.
    """
    _check_collections(settings)
    with suppress(OSError, ValueError):  # open files: what this user may have
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the file of tokens is followed anyway
    with _listening(settings) as (listener, address):
        on_address(address)
        if settings.workers > 1:
            _run_workers(settings, listener)
            return
        server = uvicorn.Server(_config(settings))
        try:
            server.run(sockets=[listener])
        except SystemExit:
            if not server.started:
                raise
            # uvicorn raises SIGTERM again after an orderly stop: no error


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


@contextmanager
def _listening(settings: ServerSettings) -> Iterator[tuple[socket.socket, str]]:
    """A socket that listens, and its URL; a Unix socket is removed at the end.

    It listens now, so that no connection is refused while workers start.
    """
    if (path := settings.unix_socket) is None:
        with _listen(settings.host, settings.port) as listener:
            host, port = listener.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            yield listener, url + settings.root_path
        return
    with _listen_unix(path) as listener:
        identity = path.stat()
        try:
            yield listener, f"unix:{path}"
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


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address. Raises QueryError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise QueryError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another: "
            "--host ADDRESS --port PORT"
        ) from error


def _config(settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        partial(create, settings),
        factory=True,
        http="httptools",
        workers=settings.workers,
        access_log=False,
        log_level="warning",
        log_config=None,
        backlog=_BACKLOG,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_worker_healthcheck=_UNRESPONSIVE,
        proxy_headers=False,  # of trusted proxies only: `create` reads them
    )


def _run_workers(settings: ServerSettings, listener: socket.socket) -> None:
    with tempfile.TemporaryDirectory(prefix="searchengine-") as folder:
        os.environ[FOLDER] = folder  # for the workers, which import prometheus-client
        _Workers(_config(settings), [listener]).run()


class _Workers(Multiprocess):
    """Processes that answer; SIGHUP replaces them one by one."""

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have died."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        for old, new in zip(before, self.processes, strict=True):
            if new is not old:
                message = "worker %d has died (exit status %s); %d replaces it"
                _log.error(message, old.pid, old.exitcode, new.pid)

    def terminate_all(self) -> None:
        """Stop the workers, and refuse connections from now on: no worker would accept them."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()
