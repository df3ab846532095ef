"""A server of a collection on PostgreSQL: two processes over one, and a database that goes away."""

import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import postgres_server
import psycopg
from click.testing import CliRunner
from postgres_server import new_url
from server_process import DIM, TOKEN, running

from searchengine import SearchEngine
from searchengine.cli import cli

DEADLINE = 30  # seconds


def collection() -> str:
    url = new_url()
    with SearchEngine.create(url, None, dim=DIM) as engine:
        engine.add([{"_id": str(i), "text": f"t{i}"} for i in range(DIM)], np.eye(DIM))
    return url


def put(client: httpx2.Client, key: str, vector: Any) -> httpx2.Response:
    document = {"text": "t", "_vector": vector.tolist()}
    return client.put(f"/v1/collections/notes/documents/{key}", json=document)


def nearest(client: httpx2.Client, vector: Any) -> list[str]:
    answer = client.post("/v1/search", json={"vector": vector.tolist(), "k": 1})
    return [hit["key"] for hit in answer.raise_for_status().json()["hits"]]


def wait_for(server: Any, status: int) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE
    while True:
        answer = httpx2.get(f"{server.url}/readyz")
        if answer.status_code == status:
            body: dict[str, Any] = answer.json()
            return body
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)


def test_two_servers_share_a_collection_and_follow_the_database(tmp_path: Path) -> None:
    url = collection()
    folders = tmp_path / "a", tmp_path / "b"
    [folder.mkdir() for folder in folders]
    with (
        running(folders[0], [f"notes={url}"]) as one,
        running(folders[1], [f"notes={url}"]) as two,
        one.client() as writer,
        two.client() as reader,
    ):
        put(writer, "new", np.ones(DIM)).raise_for_status()
        assert nearest(reader, np.ones(DIM)) == ["new"]
        server = postgres_server._server()
        postgres_server.kill(server)
        problems = wait_for(one, 503)["problems"]
        assert "notes" in problems["notes"] and "postgres" not in problems["notes"]
        answer = httpx2.post(
            f"{one.url}/v1/search",
            json={"vector": np.ones(DIM).tolist()},
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        assert answer.status_code == 503, answer.text
        postgres_server.restart(server)
        wait_for(one, 200)
        wait_for(two, 200)
        assert nearest(writer, np.ones(DIM)) == ["new"]


def test_a_server_that_cannot_be_opened_is_named_without_its_password() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/db#notes"
    result = CliRunner().invoke(cli, ["serve", url, "--port", "0"])
    assert result.exit_code != 0
    assert "cannot be reached" in result.output and "secret" not in result.output


def test_two_servers_read_from_a_replica_that_takes_over(tmp_path: Path) -> None:
    server = postgres_server.start()  # another one: it is not started again
    uri = server.get_uri()
    url, name = f"{uri}#notes", "notes"
    with SearchEngine.create(url, None, dim=DIM) as engine:
        engine.add([{"_id": str(i), "text": f"t{i}"} for i in range(DIM)], np.eye(DIM))
    folders = tmp_path / "a", tmp_path / "b"
    [folder.mkdir() for folder in folders]
    with postgres_server.replica(server) as replica:
        both = f"{uri.replace('host=', f'host={replica},')}#{name}"
        with (
            running(folders[0], [f"notes={both}"]) as one,
            running(folders[1], [f"notes={both}"]) as two,
            one.client() as writer,
            two.client() as reader,
        ):
            for each in (one, two):
                wait_for(each, 200)
            put(writer, "new", np.ones(DIM)).raise_for_status()
            deadline = time.monotonic() + DEADLINE
            while nearest(reader, np.ones(DIM)) != ["new"]:
                assert time.monotonic() < deadline  # until the replica has received it
                time.sleep(0.02)
            postgres_server.kill(server)
            # Searches go on, by the replica; nothing can be written, and the error says so.
            for client in (writer, reader):
                assert nearest(client, np.ones(DIM)) == ["new"]
            refused = put(writer, "late", np.eye(DIM)[0])
            assert refused.status_code == 503 and "cannot be reached; try again" in refused.text
            with psycopg.connect(uri.replace(str(server.pgdata), replica)) as connection:
                assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
            put(writer, "late", -np.ones(DIM)).raise_for_status()
            for client in (writer, reader):
                assert nearest(client, -np.ones(DIM)) == ["late"]
            for each in (one, two):
                wait_for(each, 200)
