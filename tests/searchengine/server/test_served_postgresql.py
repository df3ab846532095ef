"""Servers of a collection on PostgreSQL: several over one, and a database that goes away."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import postgres_server
import psycopg
import pytest
from postgres_server import new_url
from server_process import DIM, Server, running
from test_load import wait_until

from searchengine import SearchEngine

AT = "/v1/collections/notes/documents"


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


@pytest.mark.long
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


@pytest.mark.long
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
