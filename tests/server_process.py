"""A real server process on loopback, and a collection of vectors for it to serve."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np

from searchengine import SearchEngine

TOKEN = "0123456789abcdef-writes"
READER = "0123456789abcdef-reads"
TOKENS = f"# name scope token\nwriter write {TOKEN}\nreader read {READER}\n"
DIM = 8


def vectors_collection(path: Path, documents: int = 3) -> Path:
    """A collection without an encoder: document i has the vector e_(i mod 8) and the text w<i>."""
    with SearchEngine.create(path, None, dim=DIM) as engine:
        rows = np.eye(DIM)[np.arange(documents) % DIM]
        engine.add([{"_id": f"{i}", "text": f"w{i}", "n": i} for i in range(documents)], rows)
    return path


class Server:
    """A running `searchengine serve`; `url` is where, `log` the lines of stderr so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.line = process.stdout.readline()
        assert " at " in self.line, process.communicate()
        self.url = self.line.split(" at ")[1].strip()
        self.log: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def client(self, token: str | None = TOKEN) -> httpx2.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60)

    def wait_until_ready(self, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        with self.client(None) as client:
            while client.get("/readyz").status_code != 200:
                assert time.monotonic() < end, "not ready in time"
                time.sleep(0.01)

    def stop(self) -> int:
        """Send SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        status = self.process.wait(60)
        self._reading.join(60)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return status


@contextmanager
def running(
    folder: Path, collections: Sequence[object], *options: object, before: str = "", **environ: str
) -> Iterator[Server]:
    """A server of collections, with the tokens above; it is ready.

    `before`: what its process runs first. `environ`: variables of its environment.
    """
    tokens = folder / "tokens.txt"
    tokens.write_text(TOKENS)
    arguments = ["serve", *collections, "--port", 0, "--tokens", tokens, *options]
    program = f"import sys; from searchengine.cli import cli; {before}\ncli(sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    pipe = subprocess.PIPE
    environment = {**os.environ, **environ}
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    server = Server(process)
    try:
        server.wait_until_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
