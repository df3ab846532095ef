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
        asked: how often a client has asked for an answer: it waits for each.
        stalled: nothing passes, and connections stay open.
    """

    def __init__(self, server: str, delay: float = 0.0) -> None:
        """`server`: the path of its socket."""
        self.delay, self.stalled, self.asked = delay, False, 0
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
                    count = source is client
                    for work in (
                        (self._receive, source, queue, count),
                        (self._send, target, queue),
                    ):
                        threading.Thread(target=work[0], args=work[1:], daemon=True).start()

    def _receive(
        self, source: socket.socket, queue: "SimpleQueue[tuple[float, bytes]]", count: bool
    ) -> None:
        data, rest = b"start", b" "  # the first message has no type
        while data:
            data = b""
            with suppress(OSError):
                data = source.recv(1 << 16)
            if count:
                rest = self._count(rest + data)
            queue.put((time.monotonic() + self.delay, data))

    def _count(self, messages: bytes) -> bytes:
        """Count what asks for an answer: Query, and Sync. Returns an incomplete message."""
        while len(messages) >= 5:
            size = 1 + int.from_bytes(messages[1:5], "big")
            if len(messages) < size:
                break
            self.asked += messages[:1] in b"QS"
            messages = messages[size:]
        return messages

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
