"""Connections that are slow, idle, or not read: none is held for ever, and others are answered."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from server_process import DIM, vectors_collection

from searchengine import SearchEngine
from searchengine.server import running as running_module
from searchengine.server.server_settings import ServerSettings

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
Address = tuple[str, int]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    return vectors_collection(tmp_path / "vectors.index")


@contextmanager
def serving(path: Path, **options: Any) -> Iterator[tuple[uvicorn.Server, Address]]:
    """A server in a thread, without tokens."""
    settings = ServerSettings({"v": path}, log="none", **options)
    server = uvicorn.Server(running_module._config(settings, None))
    with running_module._listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield server, listener.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join(60)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def exchange(address: Address, request: bytes) -> bytes:
    """What a server sends until it closes a connection on which `request` has been sent."""
    received = b""
    with socket.create_connection(address, 60) as connection:
        try:
            connection.sendall(request)
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass  # closed with bytes of ours unread
    return received


def posted(path: str, length: int, *more: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return b"".join((head.encode(), *more, b"Content-Length: %d\r\n\r\n" % length))


def search(close: bool = True) -> bytes:
    body = json.dumps({"vector": [1.0] * DIM}).encode()
    return posted("/v1/search", len(body), b"Connection: close\r\n" if close else b"") + body


def test_a_head_that_never_ends(vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are closed that send the head of a request too slowly, or endless headers."""
    monkeypatch.setattr(running_module, "HEAD_SECONDS", 0.3)
    with serving(vectors) as (_, address):
        for begin in (b"", b"GET /hea", HEALTH + HEALTH[:20], b"\r\n", HEALTH + b"\r\n"):
            assert exchange(address, begin).count(b"200 OK") == begin.count(HEALTH)
        endless = b"GET /healthz HTTP/1.1\r\n" + b"X-Y: z\r\n" * 40_000
        monkeypatch.setattr(running_module, "HEAD_SECONDS", 3600)
        assert exchange(address, endless) == b""
        huge = posted("/v1/search", 999_999_999, b"Connection: close\r\n")
        assert b" 413 " in exchange(address, huge)
        closed = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in exchange(address, closed)


def test_a_body_that_nobody_reads(vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error the rest of a body may come for a moment; then the connection is closed."""
    monkeypatch.setattr(running_module, "BODY_SECONDS", 0.2)
    with serving(vectors) as (_, address):
        for path, status in (
            ("/healthz", b" 405 "),
            ("/v1/collections/v/documents", b" 403 "),
            ("/nothing", b" 404 "),
        ):
            assert status in exchange(address, posted(path, 1000) + b"x" * 10)
        # a body that does come leaves the connection open for the next request
        whole = posted("/healthz", 10) + b"x" * 10 + search()
        received = exchange(address, whole)
        assert b" 405 " in received and b" 200 " in received
        expecting = posted("/healthz", 1000, b"Expect: 100-continue\r\n")
        received = exchange(address, expecting)
        assert b" 405 " in received and b"connection: close" in received


def test_slow_bodies_take_nobody_s_turn(vectors: Path) -> None:
    with serving(vectors, max_requests=1, timeout=0.5) as (server, address), ExitStack() as stack:
        for _ in range(3):
            slow = stack.enter_context(socket.create_connection(address, 60))
            slow.sendall(posted("/v1/search", 1000) + b"{")
        until(lambda: len(server.server_state.tasks) == 3)
        assert b" 200 " in exchange(address, search())
        assert b" 503 " in slow.recv(65536)  # they have the time of a request


def test_responses_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take nobody's turn, and their connections are closed."""
    path = tmp_path / "long.index"
    with SearchEngine.create(path, None, dim=DIM, tokenizer="none") as engine:
        engine.add(
            [{"_id": f"{i}", "text": "x" * 1_000_000} for i in range(20)], np.eye(20, DIM) + 1
        )
    monkeypatch.setattr(running_module, "WRITE_SECONDS", 0.3)
    listing = b"GET /v1/collections/v/documents?limit=20 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(path, max_requests=1) as (server, address), ExitStack() as stack:
        for _ in range(3):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stack.enter_context(connection).connect(address)
            connection.sendall(listing)
            assert connection.recv(1)
        assert b" 200 " in exchange(address, search())
        until(lambda: not server.server_state.connections)


def test_idle_connections_make_room(vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "max_connections", lambda: 5)
    with serving(vectors) as (server, address), ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(12)]
        for connection in held:
            connection.settimeout(60)
        assert b" 200 " in exchange(address, search())
        assert held[0].recv(1) == held[6].recv(1) == b""
        held[-1].sendall(HEALTH)
        assert b"200 OK" in held[-1].recv(65536)
        assert len(server.server_state.connections) <= 5
