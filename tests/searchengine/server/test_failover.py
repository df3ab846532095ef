"""Two server processes over a collection in PostgreSQL; its primary is killed and replaced."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import failover_servers
import httpx2
import numpy as np
import pytest
from server_process import TOKEN, Server, running

from searchengine import SearchEngine

DIM = 8
SECONDS = 5  # until writes are acknowledged again


class Load:
    """Readers and a writer over several servers.

    Attributes:
        acknowledged: vectors of the documents that a server has acknowledged, in their order.
        safe: so many of them must be found by any reader.
        wrong: what no answer may be.
        unavailable: how often a server said that the database is away.
    """

    def __init__(self, servers: list[Server], readers: int) -> None:
        self._servers = servers
        self._rng = np.random.default_rng(0)
        self.acknowledged: list[list[float]] = []
        self.safe = 0
        self.wrong: list[Any] = []
        self.unavailable = self.answers = 0
        self._done = threading.Event()
        works = [self._write, *[self._read] * readers]
        self._threads = [
            threading.Thread(target=self._repeat, args=(work, number))
            for number, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def _repeat(self, work: Callable[[httpx2.Client, np.random.Generator], None], i: int) -> None:
        rng = np.random.default_rng(i)
        clients = [server.client(TOKEN) for server in self._servers]
        try:
            while not self._done.is_set():
                # The writer changes its server each time, a reader keeps it.
                work(clients[(i if i else len(self.acknowledged)) % len(clients)], rng)
        except BaseException as error:
            self.wrong.append(error)
        finally:
            for client in clients:
                client.close()

    def _write(self, client: httpx2.Client, rng: np.random.Generator) -> None:
        vector = rng.standard_normal(DIM)
        vector /= np.linalg.norm(vector)
        path = f"/v1/collections/n/documents/d{len(self.acknowledged)}"
        document = {"text": "t", "_vector": vector.tolist()}
        while not self._done.is_set():
            if self._sent(client, "PUT", path, document) is not None:
                self.acknowledged.append(vector.tolist())
                return

    def _read(self, client: httpx2.Client, rng: np.random.Generator) -> None:
        if not self.safe:
            return
        number = int(rng.integers(self.safe))
        body = {"vector": self.acknowledged[number], "k": 1, "mode": "vector"}
        answer = self._sent(client, "POST", "/v1/search", body)
        if answer is not None:
            self.answers += 1
            (hit,) = answer["hits"]
            if hit["key"] != f"d{number}" or hit["score"] < 0.998:
                self.wrong.append((number, hit))

    def _sent(self, client: httpx2.Client, method: str, path: str, body: dict[str, Any]) -> Any:
        """The answer; None: the database is away."""
        response = client.request(method, path, json=body)
        if response.status_code == 503:
            self.unavailable += 1
            time.sleep(0.02)
            return None
        assert response.status_code in (200, 201), response.text
        return response.json()

    def wait_for(self, writes: int) -> None:
        target = len(self.acknowledged) + writes
        deadline = time.monotonic() + failover_servers.DEADLINE
        while len(self.acknowledged) < target and not self.wrong:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(failover_servers.DEADLINE)


@pytest.mark.parametrize(
    ("readers", "kills"), [(2, 1), pytest.param(8, 20, marks=pytest.mark.long)]
)
def test_a_replica_takes_the_place_of_a_killed_primary(
    tmp_path: Path, readers: int, kills: int
) -> None:
    """With synchronous commit: nothing acknowledged is lost, no answer is wrong."""
    folders = tmp_path / "a", tmp_path / "b"
    [folder.mkdir() for folder in folders]
    times = []
    with failover_servers.pair() as (primary, replica, url):
        SearchEngine.create(url, None, dim=DIM).close()
        with running(folders[0], [f"n={url}"]) as one, running(folders[1], [f"n={url}"]) as two:
            load = Load([one, two], readers)
            try:
                for _ in range(kills):
                    load.wait_for(20)
                    load.safe = len(load.acknowledged)
                    load.wait_for(20)
                    start = time.monotonic()
                    primary.kill()
                    replica.promote()
                    load.wait_for(2)  # one may have been under way
                    times.append(time.monotonic() - start)
                    primary, replica = replica, primary
                    replica.follow(primary)
                    primary.wait_for_replica()
                load.wait_for(20)
            finally:
                load.stop()
        with SearchEngine.open(url) as engine:
            keys = set(engine.keys())
    print(  # the figures of docs/operating.md
        f"{kills} kills: {len(load.acknowledged)} acknowledged, {load.answers} answers, "
        f"{load.unavailable} unavailable, writes back after {np.median(times):.2f} s (median), "
        f"{max(times):.2f} s (at most)"
    )
    assert load.wrong == []
    assert keys >= {f"d{i}" for i in range(len(load.acknowledged))}
    assert max(times) < SECONDS
