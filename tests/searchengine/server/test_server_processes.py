"""Real server processes on loopback: start, kill, stop, workers."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from click.testing import CliRunner
from server_process import DIM, TOKEN, Server, running, vectors_collection
from tiny_model import static_table, write_model2vec

from searchengine import Client, SearchEngine
from searchengine.cli import cli
from searchengine.errors import CorpusError
from searchengine.server import running as running_module
from searchengine.server.server_settings import ServerSettings

AT = "/v1/collections/vectors/documents"


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    return vectors_collection(tmp_path / "vectors.index")


def line(i: int) -> bytes:
    vector = np.eye(DIM)[i % DIM].tolist()
    return json.dumps({"_id": f"new{i}", "text": f"t{i}", "_vector": vector}).encode() + b"\n"


class Adding(threading.Thread):
    """Adds documents until it is stopped, and remembers the acknowledged ones."""

    def __init__(self, server: Server, every: int = 10) -> None:
        super().__init__()
        self.acknowledged = 0
        self.answer: list[dict[str, Any]] = []
        self.enough = threading.Event()
        self._server, self._every, self._sent = server, every, 0

    def _lines(self) -> Iterator[bytes]:
        while not self.enough.is_set() and self._sent < 1_000_000:
            self._sent += 1
            yield line(self._sent)

    def run(self) -> None:
        """Write lines and read acknowledgements at the same time."""
        host, port = self._server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            head = (
                f"POST {AT}?commit_every={self._every} HTTP/1.1\r\nHost: {host}\r\n"
                f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            connection.sendall(head.encode())
            reading = threading.Thread(target=self._read, args=(connection,))
            reading.start()
            try:
                for each in self._lines():
                    connection.sendall(b"%x\r\n%s\r\n" % (len(each), each))
                connection.sendall(b"0\r\n\r\n")
            except OSError:
                pass  # the server has gone, which is the point
            reading.join(60)

    def _read(self, connection: Any) -> None:
        try:
            for raw in connection.makefile("rb"):
                if raw.startswith(b"{"):
                    entry = json.loads(raw)
                    self.answer.append(entry)
                    self.acknowledged = entry.get("committed", self.acknowledged)
        except OSError:
            pass

    def wait_for(self, acknowledged: int) -> None:
        end = time.monotonic() + 60
        while self.acknowledged < acknowledged:
            assert time.monotonic() < end and self.is_alive()
            time.sleep(0.005)


def test_kill_and_stop_in_a_bulk_add(tmp_path: Path, vectors: Path) -> None:
    """A kill loses nothing that was acknowledged; a stop commits what was read, and says so."""
    with running(tmp_path, [vectors]) as server:
        adding = Adding(server)
        adding.start()
        adding.wait_for(50)
        server.kill()
        adding.join(60)
    keys = [f"new{i}" for i in range(1, adding.acknowledged + 1)]
    begin = time.monotonic()
    with running(tmp_path, [vectors]) as server, server.client() as client:
        assert time.monotonic() - begin < 10  # less than 2 on a machine that does nothing else
        before = client.get(AT, params={"limit": 0}).json()["total"]
        assert before >= 3 + len(keys) >= 53
        assert client.get(f"{AT}/{keys[-1]}").status_code == 200
        client.request("DELETE", AT, params={"where": "exists(n) or not exists(n)"})

        adding = Adding(server, every=1000)
        adding.start()
        adding.wait_for(1)
        assert server.stop() == 0
        adding.join(60)
        assert not any("Traceback" in entry for entry in server.log)
    last = adding.answer[-1]
    assert last["done"] is False and f"after {last['lines']} again" in last["error"]
    assert adding.acknowledged == last["lines"] == last["documents"]
    with SearchEngine.open(vectors) as engine:
        assert len(engine) == adding.acknowledged
        engine.verify()


def test_workers_are_one_server(tmp_path: Path, vectors: Path) -> None:
    """Changes of one worker are shown by the others at once; a dead one is replaced."""
    with running(tmp_path, [vectors], "--workers", 2, "--log", "json") as server:
        pids = _answering(server, 2)
        for i in range(6):  # every client opens a connection, which any of the workers accepts
            with server.client() as client:
                assert client.put(f"{AT}/k{i}", json={"text": "x", "n": i}).status_code == 200
            with server.client() as client:
                assert client.get(f"{AT}/k{i}").json()["n"] == i
        with server.client() as client:
            text = client.get("/metrics").text
            assert _sum(text, 'method="PUT"') == 6 and 'worker="' not in text
        with Client(server.url, token=TOKEN) as remote:
            assert remote.add([{"_id": "c", "text": "x"}], [np.ones(DIM)]).added == 1
            assert remote.search(np.ones(DIM), 1)[0].key == "c"
            with pytest.raises(CorpusError, match="cannot be written as JSON"):
                remote.add([{"_id": "x", "text": "x", "n": object()}])
        killed = min(pids)
        os.kill(killed, signal.SIGKILL)
        assert len(_answering(server, 2, without=killed)) == 2
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
        with running(tmp_path, [path], "--log", "none") as server, server.client() as client:
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


def test_a_head_that_never_ends(vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are closed that send the head of a request too slowly, or endless headers."""
    monkeypatch.setattr(running_module, "HEAD_SECONDS", 0.3)
    server = uvicorn.Server(
        running_module._config(ServerSettings({"v": vectors}, log="none"), None)
    )
    with running_module._listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        address = listener.getsockname()[:2]
        health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        try:
            for begin in (b"", b"GET /hea", health + health[:20]):
                assert _until_closed(address, begin).count(b"200 OK") == begin.count(b"\r\n\r\n")
            endless = b"GET /healthz HTTP/1.1\r\n" + b"X-Y: z\r\n" * 40_000
            monkeypatch.setattr(running_module, "HEAD_SECONDS", 3600)
            assert _until_closed(address, endless) == b""
            huge = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n"
            assert b" 413 " in _until_closed(address, huge + b"Connection: close\r\n\r\n")
            assert b"200 OK" in _until_closed(
                address, health.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            )
        finally:
            server.should_exit = True
            thread.join(60)


def _until_closed(address: tuple[str, int], begin: bytes) -> bytes:
    """What a server sends until it closes a connection on which `begin` has been sent."""
    received = b""
    with socket.create_connection(address, 60) as connection:
        try:
            connection.sendall(begin)
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass  # closed with bytes of ours unread
    return received
