"""Runs the application by uvicorn: the socket, one or several worker processes, signals."""

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from searchengine.engine import CrossEncoders, SearchEngine
from searchengine.errors import QueryError
from searchengine.server.app import create
from searchengine.server.counting import FOLDER, Shared
from searchengine.server.server_settings import ServerSettings

_BACKLOG = 1024  # connections that wait to be accepted
_GRACE = 30  # seconds that requests under way have to end
HEAD_SECONDS = 10.0
"""Time for the first line and the headers of a request, from the connection or the first byte."""
MAX_HEAD = 1 << 17
"""Bytes of them."""


def serve(settings: ServerSettings, on_address: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; `on_address` is called with the URL.

    Raises KeyboardInterrupt after SIGINT, CollectionError, and QueryError if there is no
    cross-encoder where the settings name one, or the address cannot be used.
    """
    for path in settings.collections.values():
        SearchEngine.open(path).close()  # raises now, in one sentence
    if settings.cross_encoding is not None:
        CrossEncoders(settings.runtime).check(settings.cross_encoding.source)
    with _listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        on_address(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        if settings.workers == 1:
            _run_here(settings, listener)
        else:
            _run_workers(settings, listener)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, so that no connection is refused while workers start."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise QueryError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise QueryError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another: --port PORT"
        ) from error
    return listener


class Connection(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, with limits for what comes before the guard sees a request.

    A connection is closed if the head of a request takes too long or is too long: else slow callers
    could hold connections for ever, and endless headers fill the memory.
    """

    _timer: asyncio.TimerHandle | None = None  # runs while the head is incomplete
    _head = 0  # bytes of it, and of what came with them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.on_message_begin()

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        super().on_message_begin()
        if self._timer is None:
            self._head = 0
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes; the parser calls the methods above."""
        super().data_received(data)
        if self._timer is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._end_head()
        super().connection_lost(exc)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _config(settings: ServerSettings, numbers: Path | None) -> uvicorn.Config:
    return uvicorn.Config(
        partial(create, settings, numbers),
        factory=True,
        http=Connection,
        workers=settings.workers,
        access_log=False,
        log_level="warning",
        log_config=None,
        backlog=_BACKLOG,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        # Behind a proxy the log has the proxy's address: headers may be forged.
        proxy_headers=False,
    )


def _run_here(settings: ServerSettings, listener: socket.socket) -> None:
    server = uvicorn.Server(_config(settings, None))
    try:
        server.run(sockets=[listener])
    except SystemExit:
        if not server.started:
            raise
        # uvicorn raises SIGTERM again after an orderly stop: no error


def _run_workers(settings: ServerSettings, listener: socket.socket) -> None:
    with tempfile.TemporaryDirectory(prefix="searchengine-") as folder:
        numbers = Path(folder) / "numbers"
        Shared.create(numbers, settings.workers, len(settings.collections), len(settings.tokens))
        os.environ[FOLDER] = folder  # for the workers, which import prometheus-client
        _Workers(_config(settings, numbers), sockets=[listener]).run()


class _Workers(Multiprocess):
    """Processes that answer; Ctrl-C raises KeyboardInterrupt when they have ended."""

    _interrupted = False

    def handle_int(self) -> None:
        """Note SIGINT, and stop."""
        self._interrupted = True
        super().handle_int()

    def run(self) -> None:
        """Answer until a signal."""
        super().run()
        if self._interrupted:
            raise KeyboardInterrupt
