"""Servers of a collection on PostgreSQL: several over one, and a database that goes away."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import postgres_server
import psycopg
import pytest
from click.testing import CliRunner
from postgres_server import new_url
from server_process import DIM, Server, running
from test_load import wait_until

from searchengine import SearchEngine
from searchengine.cli import cli

AT = "/v1/collections/notes/documents"
SECONDS = 5  # until writes are acknowledged again


@contextmanager
def two_servers(folder: Path, url: str) -> Iterator[list[Server]]:
    """Server processes of one collection."""
    with ExitStack() as stack:
        servers = []
        for name in "ab":
            (folder / name).mkdir()
            servers.append(stack.enter_context(running(folder / name, [f"notes={url}"])))
        yield servers


def put(client: httpx2.Client, key: str, vector: Any) -> httpx2.Response:
    return client.put(f"{AT}/{key}", json={"text": "t", "_vector": np.asarray(vector).tolist()})


def search(client: httpx2.Client, vector: Any) -> httpx2.Response:
    body = {"vector": np.asarray(vector).tolist(), "k": 1, "mode": "vector"}
    return client.post("/v1/search", json=body)


def nearest(client: httpx2.Client, vector: Any) -> str:
    (hit,) = search(client, vector).raise_for_status().json()["hits"]
    return str(hit["key"])


def create(url: str) -> None:
    with SearchEngine.create(url, None, dim=DIM) as engine:
        engine.add([{"_id": str(i), "text": f"t{i}"} for i in range(DIM)], np.eye(DIM))


def test_two_servers_share_a_collection_and_follow_the_database(tmp_path: Path) -> None:
    create(url := new_url())
    with two_servers(tmp_path, url) as servers:
        writer, reader = (server.client() for server in servers)
        put(writer, "new", np.ones(DIM)).raise_for_status()
        assert nearest(reader, np.ones(DIM)) == "new"
        server = postgres_server._server()
        postgres_server.kill(server)
        wait_until(lambda: writer.get("/readyz").status_code == 503)
        problem = writer.get("/readyz").json()["problems"]["notes"]
        assert "notes" in problem and "postgres" not in problem
        answer = search(writer, np.ones(DIM))
        assert answer.status_code == 503 and "cannot be reached; try again" in answer.text
        postgres_server.restart(server)
        for client in (writer, reader):
            wait_until(lambda: client.get("/readyz").status_code == 200)  # noqa: B023
        assert nearest(writer, np.ones(DIM)) == "new"
        writer.close(), reader.close()


def test_a_server_that_cannot_be_opened_is_named_without_its_password() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/db#notes"
    result = CliRunner().invoke(cli, ["serve", url, "--port", "0"])
    assert result.exit_code != 0
    assert "cannot be reached" in result.output and "secret" not in result.output


def test_two_servers_read_from_a_replica_that_takes_over(tmp_path: Path) -> None:
    server = postgres_server.start()  # another one: it is not started again
    uri = server.get_uri()
    create(f"{uri}#notes")
    with postgres_server.replica(server) as replica:
        both = f"{uri.replace('host=', f'host={replica},')}#notes"
        with two_servers(tmp_path, both) as servers:
            clients = writer, reader = [server.client() for server in servers]
            put(writer, "new", np.ones(DIM)).raise_for_status()
            wait_until(lambda: nearest(reader, np.ones(DIM)) == "new")  # the replica has it
            postgres_server.kill(server)
            # Searches go on, by the replica; nothing can be written, and the error says so.
            assert {nearest(client, np.ones(DIM)) for client in clients} == {"new"}
            refused = put(writer, "late", np.eye(DIM)[0])
            assert refused.status_code == 503 and "cannot be reached; try again" in refused.text
            with psycopg.connect(uri.replace(str(server.pgdata), replica)) as connection:
                assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
            put(writer, "late", -np.ones(DIM)).raise_for_status()
            assert {nearest(client, -np.ones(DIM)) for client in clients} == {"late"}
            for client in clients:
                wait_until(lambda: client.get("/readyz").status_code == 200)  # noqa: B023
                client.close()


class Load:
    """Readers and a writer over several servers, until `done`.

    Attributes:
        acknowledged: vectors of the documents that a server has acknowledged, in their order.
        safe: so many of them must be found by any reader.
        wrong: what no answer may be.
    """

    def __init__(self, servers: list[Server], readers: int) -> None:
        self.acknowledged: list[Any] = []
        self.safe = self.answers = 0
        self.wrong: list[Any] = []
        self.done, self._servers = threading.Event(), servers
        self.threads = [
            threading.Thread(target=self._repeat, args=(i,)) for i in range(readers + 1)
        ]
        for thread in self.threads:
            thread.start()

    def _repeat(self, i: int) -> None:
        rng = np.random.default_rng(i)
        clients = [server.client() for server in self._servers]
        try:
            while not self.done.is_set():
                if i == 0:  # the writer changes its server each time, a reader keeps it
                    number = len(self.acknowledged)
                    vector = rng.standard_normal(DIM)
                    if self._sent(put(clients[number % 2], f"d{number}", vector)):
                        self.acknowledged.append(vector)
                elif self.safe:
                    number = int(rng.integers(self.safe))
                    answer = self._sent(search(clients[i % 2], self.acknowledged[number]))
                    if answer and [hit["key"] for hit in answer["hits"]] != [f"d{number}"]:
                        self.wrong.append((number, answer))
                    self.answers += bool(answer)
        except BaseException as error:
            self.wrong.append(error)
        for client in clients:
            client.close()

    @staticmethod
    def _sent(response: httpx2.Response) -> Any:
        """The answer; None: the database is away."""
        if response.status_code == 503:
            time.sleep(0.02)
            return None
        return response.raise_for_status().json()

    def wait_for(self, writes: int) -> None:
        target = len(self.acknowledged) + writes
        wait_until(lambda: len(self.acknowledged) >= target or self.wrong)


@pytest.mark.parametrize(
    ("readers", "kills"), [(2, 1), pytest.param(8, 20, marks=pytest.mark.long)]
)
def test_a_replica_takes_the_place_of_a_killed_primary(
    tmp_path: Path, readers: int, kills: int
) -> None:
    """With synchronous commit: nothing acknowledged is lost, no answer is wrong."""
    times = []
    with postgres_server.pair() as (primary, replica, url):
        SearchEngine.create(url, None, dim=DIM).close()
        with two_servers(tmp_path, url) as servers:
            load = Load(servers, readers)
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
                    replica.follow(primary.folder)
                    primary.wait_for_replica()
                load.wait_for(20)
            finally:
                load.done.set()
                for thread in load.threads:
                    thread.join(postgres_server.DEADLINE)
        with SearchEngine.open(url) as engine:
            assert {*engine.keys()} >= {f"d{i}" for i in range(len(load.acknowledged))}
    print(  # the figures of docs/operating.md
        f"{kills} kills: {len(load.acknowledged)} acknowledged, {load.answers} answers, writes "
        f"back after {np.median(times):.2f} s (median), {max(times):.2f} s (at most)"
    )
    assert load.wrong == [] and max(times) < SECONDS
