"""Real server processes on loopback: start, kill, stop, workers."""

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner
from server_process import DIM, READER, TOKEN, TOKENS, Server, running, vectors_collection
from test_load import start, wait_until

from searchengine import SearchEngine
from searchengine.cli import cli

AT = "/v1/collections/vectors/documents"


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    return vectors_collection(tmp_path / "vectors.index")


def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, vectors: Path) -> None:
    """A stop commits what is being written, too."""
    acknowledged: list[str] = []

    def add(server: Server) -> None:
        with server.client() as client, suppress(httpx2.TransportError):
            while True:
                key = f"new{len(acknowledged)}"
                body = {"text": "t", "_vector": np.eye(DIM)[len(acknowledged) % DIM].tolist()}
                client.put(f"{AT}/{key}", json=body).raise_for_status()
                acknowledged.append(key)

    for end in (Server.kill, Server.stop):
        target = len(acknowledged) + 30
        with running(tmp_path, [vectors]) as server:
            adding = start(lambda: add(server))
            wait_until(lambda: len(acknowledged) >= target)  # noqa: B023
            end(server)
            adding.join(60)
            assert not any("Traceback" in entry for entry in server.log)
        with SearchEngine.open(vectors) as engine:
            assert all(key in engine for key in acknowledged)
            engine.verify()


def workers_of(server: Server) -> set[int]:
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path("/proc", child, "cmdline") for child in children}
    return {
        n for n, file in commands.items() if file.exists() and b"spawn_main" in file.read_bytes()
    }


def test_workers_are_one_server(tmp_path: Path, vectors: Path) -> None:
    """Changes, and tokens, are seen by all within a second; one that dies is replaced."""
    with running(tmp_path, [vectors], "--workers", 2) as server:
        wait_until(lambda: len(workers_of(server)) == 2)
        for i in range(6):  # every client opens a connection, which any of the workers accepts
            with server.client() as client:
                body = {"text": "x", "n": i, "_vector": np.eye(DIM)[0].tolist()}
                assert client.put(f"{AT}/k{i}", json=body).status_code == 200
                assert client.get(f"{AT}/k{i}").json()["n"] == i  # the same worker
        (tmp_path / "tokens.txt").write_text(TOKENS.replace(READER, "0123456789abcdef-other"))
        time.sleep(1.5)
        for _ in range(6):
            with server.client() as client, server.client(READER) as refused:
                assert client.get(f"{AT}/k5").json()["n"] == 5
                assert refused.get(f"{AT}/k5").status_code == 401
        with server.client() as client:
            text = client.get("/metrics").text
        rows = [row for row in text.splitlines() if row.startswith("searchengine_requests_total")]
        assert sum(float(row.rsplit(" ", 1)[1]) for row in rows if '"PUT"' in row) == 6
        assert 'pid="' not in text
        port = server.url.rsplit(":", 1)[1]
        second = CliRunner().invoke(cli, ["serve", str(vectors), "--port", port])
        assert second.exit_code == 2 and f"port {port}" in second.output
        killed, _ = sorted(workers_of(server))
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(workers_of(server) - {killed}) == 2)
        server.wait_until_ready()
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.long
def test_a_server_that_stops_refuses_connections(
    tmp_path: Path, vectors: Path, workers: int, number: int
) -> None:
    """At once, also while a request is under way. Ctrl-C signals all processes, and no trace."""
    with running(tmp_path, [vectors], "--workers", workers) as server:
        wait_until(lambda: workers == 1 or len(workers_of(server)) == workers)
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 60) as slow:
            head = f"POST /v1/search HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            slow.sendall(f"{head}Content-Length: 9\r\n\r\n{{".encode())
            time.sleep(0.5)  # until a worker has it
            ended = (server.process.pid, *(workers_of(server) if number == signal.SIGINT else ()))
            for pid in ended:
                os.kill(pid, number)
            end = time.monotonic() + 5
            with pytest.raises(ConnectionRefusedError):
                while time.monotonic() < end:
                    socket.create_connection((host, int(port)), 60).close()
                    time.sleep(0.1)
            assert server.process.poll() is None
        assert server.wait() == (0 if number == signal.SIGTERM else 130)
        assert not any("Traceback" in line for line in server.log)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.index"], "no such collection"),
        (["postgresql://me:secret@127.0.0.1:1/db#notes"], "cannot be reached"),
        (["{}", "--tokens", "missing"], "missing: No such file"),
        (["{}", "{}"], "must differ"),
        (["{}", "--host", "192.0.2.1", "--tokens", "t"], "cannot listen on 192.0.2.1"),
        ([], "Missing argument"),
    ],
)
def test_it_does_not_start(
    tmp_path: Path, vectors: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text("me read 0123456789abcdef")
    result = CliRunner().invoke(cli, ["serve", *(each.format(vectors) for each in arguments)])
    assert result.exit_code == 2 and message in result.output
    assert len(result.output.splitlines()) <= 4 and "secret" not in result.output


STUCK = """
import time, searchengine.server.app
from searchengine import SearchEngine
searchengine.server.app.GRACE = searchengine.server.app.CLOSING = 0.5
SearchEngine.search_batch = lambda *_, **__: time.sleep(60)
"""


def test_after_a_signal_it_ends_whatever_it_does(tmp_path: Path, vectors: Path) -> None:
    def ask() -> None:
        with suppress(httpx2.HTTPError):  # or an answer that it was given up
            body = {"vectors": [[1.0] * DIM]}
            assert client.post("/v1/search/batch", json=body).status_code == 500

    with running(tmp_path, [vectors], before=STUCK) as server, server.client() as client:
        asking = start(ask)
        time.sleep(1)  # until it is under way
        begin = time.monotonic()
        assert server.stop() == 1 and time.monotonic() - begin < 20
        asking.join(60)
        assert any("most recent call first" in entry for entry in server.log)
