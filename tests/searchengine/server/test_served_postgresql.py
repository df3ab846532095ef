"""A server of a collection on PostgreSQL: two processes over one, and a database that goes away."""

import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import postgres_server
import psycopg
import pytest
from click.testing import CliRunner
from postgres_server import new_url
from server_process import DIM, TOKEN, running

from searchengine import Client, SearchEngine
from searchengine.cli import cli
from searchengine.errors import ServerError

DEADLINE = 30  # seconds


def collection() -> str:
    url = new_url()
    with SearchEngine.create(url, None, dim=DIM) as engine:
        engine.add([{"_id": str(i), "text": f"t{i}"} for i in range(DIM)], np.eye(DIM))
    return url


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
        Client(one.url, token=TOKEN) as writer,
        Client(two.url, token=TOKEN) as reader,
    ):
        writer.add([{"_id": "new", "text": "t", "_vector": np.ones(DIM).tolist()}])
        hits = reader.search(np.ones(DIM).tolist(), k=1)
        assert [hit.key for hit in hits] == ["new"]
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
        assert [hit.key for hit in writer.search(np.ones(DIM).tolist(), k=1)] == ["new"]


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
            Client(one.url, token=TOKEN) as writer,
            Client(two.url, token=TOKEN) as reader,
        ):
            for each in (one, two):
                wait_for(each, 200)
            writer.add([{"_id": "new", "text": "t", "_vector": np.ones(DIM).tolist()}])
            deadline = time.monotonic() + DEADLINE
            while [hit.key for hit in reader.search(np.ones(DIM).tolist(), k=1)] != ["new"]:
                assert time.monotonic() < deadline  # until the replica has received it
                time.sleep(0.02)
            postgres_server.kill(server)
            # Searches go on, by the replica; nothing can be written, and the error says so.
            for client in (writer, reader):
                assert [hit.key for hit in client.search(np.ones(DIM).tolist(), k=1)] == ["new"]
            with pytest.raises(ServerError, match="cannot be reached; try again"):
                writer.add([{"_id": "late", "text": "t", "_vector": np.eye(DIM)[0].tolist()}])
            with psycopg.connect(uri.replace(str(server.pgdata), replica)) as connection:
                assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
            writer.add([{"_id": "late", "text": "t", "_vector": (-np.ones(DIM)).tolist()}])
            for client in (writer, reader):
                assert [h.key for h in client.search((-np.ones(DIM)).tolist(), k=1)] == ["late"]
            for each in (one, two):
                wait_for(each, 200)
