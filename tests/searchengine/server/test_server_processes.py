"""Real server processes on loopback: start, kill, stop, workers."""

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner
from server_process import DIM, READER, TOKEN, TOKENS, Server, running, vectors_collection
from tiny_model import static_table, write_model2vec

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
            for i in range(1_000_000):
                body = {"text": "t", "_vector": np.eye(DIM)[i % DIM].tolist()}
                key = f"new{len(acknowledged)}"
                client.put(f"{AT}/{key}", json=body).raise_for_status()
                acknowledged.append(key)

    for end in (Server.kill, Server.stop):
        before = len(acknowledged)
        with running(tmp_path, [vectors]) as server:
            adding = threading.Thread(target=add, args=(server,))
            adding.start()
            deadline = time.monotonic() + 60
            while len(acknowledged) < before + 30:
                assert time.monotonic() < deadline and adding.is_alive()
                time.sleep(0.005)
            end(server)
            adding.join(60)
            assert not any("Traceback" in entry for entry in server.log)
        with SearchEngine.open(vectors) as engine:
            assert all(key in engine for key in acknowledged)
            engine.verify()


def test_workers_are_one_server(tmp_path: Path, vectors: Path) -> None:
    """Changes of one worker are shown by the others within a second; a dead one is replaced."""
    with running(tmp_path, [vectors], "--workers", 2) as server:
        pids = _answering(server, 2)
        for i in range(6):  # every client opens a connection, which any of the workers accepts
            with server.client() as client:
                assert client.put(f"{AT}/k{i}", json={"text": "x", "n": i}).status_code == 200
                assert client.get(f"{AT}/k{i}").json()["n"] == i  # the same worker
        time.sleep(1)
        for _ in range(6):
            with server.client() as client:
                assert client.get(f"{AT}/k5").json()["n"] == 5
        with server.client() as client:
            text = client.get("/metrics").text
            assert _sum(text, 'method="PUT"') == 6 and 'pid="' not in text
        killed, other = sorted(pids)
        os.kill(killed, signal.SIGKILL)
        assert other in _answering(server, 2, without=killed)
        assert server.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_stops_refuses_connections(
    tmp_path: Path, vectors: Path, workers: int
) -> None:
    """At once, also while a request is under way: nobody would answer them."""
    with running(tmp_path, [vectors], "--workers", workers) as server:
        server.wait_until_ready()
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 60) as slow:
            head = (
                f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            )
            slow.sendall(f"{head}Content-Length: 9\r\n\r\n{{".encode())
            time.sleep(0.5)  # until a worker has it
            server.process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 5
            with pytest.raises(ConnectionRefusedError):
                while time.monotonic() < end:
                    socket.create_connection((host, int(port)), 60).close()
                    time.sleep(0.1)
            assert server.process.poll() is None
        assert server.wait() == 0


def test_a_port_is_one_servers(tmp_path: Path, vectors: Path) -> None:
    with running(tmp_path, [vectors], "--workers", 2) as server:
        port = server.url.rsplit(":", 1)[1]
        second = CliRunner().invoke(cli, ["serve", str(vectors), "--port", port])
        assert second.exit_code == 2 and f"port {port}" in second.output
        assert server.stop() == 0


def _sum(text: str, label: str) -> float:
    counted = (row for row in text.splitlines() if row.startswith("searchengine_requests_total"))
    return sum(float(row.rsplit(" ", 1)[1]) for row in counted if label in row)


def _answering(server: Server, number: int, without: int = 0) -> set[int]:
    """The processes of a server's workers, once this number of them answers."""
    pid, end = server.process.pid, time.monotonic() + 60
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids = {int(child) for child in children if _is_worker(Path("/proc", child, "cmdline"))}
        if len(pids) >= number and without not in pids:
            server.wait_until_ready()
            return pids
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_worker(command: Path) -> bool:
    return command.exists() and b"spawn_main" in command.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.index"], "no such collection"),
        (["{}", "--host", "0.0.0.0"], "a token is required"),
        (["{}", "--tokens", "missing"], "missing: No such file"),
        (["{}", "{}"], "two collections are named 'vectors'"),
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
    assert len(result.output.splitlines()) <= 4


def test_another_encoder_is_loaded(tmp_path: Path) -> None:
    """After a reindex by another process the server answers by the new encoder, without a pause."""
    path = tmp_path / "words.index"
    with SearchEngine.create(path, write_model2vec(tmp_path / "first")) as engine:
        engine.add([{"_id": "whale", "text": "the whale sleeps"}, {"_id": "cat", "text": "a cat"}])
        table = np.random.default_rng(1).normal(size=static_table().shape).astype(np.float32)
        second = write_model2vec(tmp_path / "second", embeddings=table)
        with running(tmp_path, [path]) as server, server.client() as client:
            engine.reindex(str(second))
            expected = engine.search("whale", 1)[0].score
            begin = time.monotonic()
            score = None
            while score != pytest.approx(expected, abs=1e-6):
                response = client.post("/v1/search", json={"query": "whale", "k": 1})
                assert response.status_code == 200, response.text
                score = response.json()["hits"][0]["score"]
                assert time.monotonic() < begin + 20
            assert client.put(
                "/v1/collections/words/documents/x", json={"text": "a dog"}
            ).is_success
            assert client.get("/readyz").status_code == 200
            assert any("another encoder" in line for line in server.log)


@pytest.mark.parametrize("workers", [1, 2])
def test_tokens_are_read_again(tmp_path: Path, vectors: Path, workers: int) -> None:
    """By every worker."""
    with running(tmp_path, [vectors], "--workers", workers) as server:
        if workers > 1:
            _answering(server, workers)
        (tmp_path / "tokens.txt").write_text(TOKENS.replace(READER, "0123456789abcdef-other"))
        end, refused = time.monotonic() + 60, 0
        while refused < 20:  # in a row: each connection reaches any of the workers
            with server.client(READER) as client:
                refused = refused + 1 if client.get(AT).status_code == 401 else 0
            with server.client() as client:
                assert client.get(AT).status_code == 200
            assert time.monotonic() < end
        assert server.stop() == 0


STUCK = """
import time, searchengine.server.app
from searchengine import SearchEngine
searchengine.server.app.GRACE = searchengine.server.app.CLOSING = 0.5
SearchEngine.search_batch = lambda *_, **__: time.sleep(60)
"""


def test_after_a_signal_it_ends_whatever_it_does(tmp_path: Path, vectors: Path) -> None:
    with running(tmp_path, [vectors], before=STUCK) as server, server.client() as client:
        body = {"vectors": [[1.0] * DIM]}
        asking = threading.Thread(target=_failing, args=(client, "/v1/search/batch", body))
        asking.start()
        time.sleep(1)  # until it is under way
        begin = time.monotonic()
        assert server.stop() == 1 and time.monotonic() - begin < 20
        asking.join(60)
        assert any("most recent call first" in entry for entry in server.log)


def _failing(client: Any, path: str, body: Any) -> None:
    with suppress(httpx2.HTTPError):  # or an answer that it was given up
        assert client.post(path, json=body).status_code == 500
