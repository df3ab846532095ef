"""A proxy on the loopback device, which delays what passes, or lets nothing pass."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue


class Wire:
    """Connects each client to a server; each direction takes `delay` seconds.

    Attributes:
        stalled: nothing passes, and connections stay open.
    """

    def __init__(self, server: str, delay: float = 0.0) -> None:
        """`server`: the path of its socket."""
        self.delay, self.stalled = delay, False
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more clients."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                for source, target in ((client, server), (server, client)):
                    queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                    for work, end in ((self._receive, source), (self._send, target)):
                        threading.Thread(target=work, args=(end, queue), daemon=True).start()

    def _receive(self, source: socket.socket, queue: "SimpleQueue[tuple[float, bytes]]") -> None:
        data = b"start"
        while data:
            data = b""
            with suppress(OSError):
                data = source.recv(1 << 16)
            queue.put((time.monotonic() + self.delay, data))

    def _send(self, target: socket.socket, queue: "SimpleQueue[tuple[float, bytes]]") -> None:
        data = b"start"
        with suppress(OSError):
            while data:
                at, data = queue.get()
                time.sleep(max(0.0, at - time.monotonic()))
                while self.stalled:
                    time.sleep(0.01)
                target.sendall(data)
        with suppress(OSError):
            target.close()


@contextmanager
def wire(folder: str, delay: float = 0.0) -> Iterator[Wire]:
    """A proxy to the PostgreSQL server that has its socket in a folder."""
    proxy = Wire(f"{folder}/.s.PGSQL.5432", delay)
    try:
        yield proxy
    finally:
        proxy.close()
