"""Collections that cannot be read: the others go on, and metrics and /readyz say which."""

import math
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from server_process import vectors_collection
from starlette.testclient import TestClient
from test_load import wait_until
from tiny_model import static_table, write_model2vec

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.errors import CollectionError
from searchengine.server import served

Serve = Callable[..., TestClient]
AT = "/v1/collections/vectors/documents"


def metrics(client: Any) -> dict[tuple[str, ...], float]:
    """Name and values of labels → value, as Prometheus reads them."""
    return {
        (sample.name, *map(str, sample.labels.values())): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }


def up(client: TestClient) -> float:
    return metrics(client)["searchengine_up", "vectors"]


def test_a_damaged_collection_does_not_stop_the_others(
    serve: Serve,
    words: Path,
    tmp_path: Path,
    quick_looks: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, kept = vectors_collection(tmp_path / "vectors.index"), tmp_path / "kept.db"
    (path / "documents.db").rename(kept)
    refused = CliRunner().invoke(cli, ["serve", str(path)])  # it alone
    assert refused.exit_code == 2 and "documents.db" in refused.output
    client = serve(collections={"words": words, "vectors": path})
    search = {"collection": "words", "query": "a bee"}
    assert client.post("/v1/search", json=search).json()["hits"]
    ready = client.get("/readyz")
    assert ready.status_code == 503 and "vectors" in ready.json()["problems"]
    for response in (
        client.get(f"{AT}/1"),
        client.put(f"{AT}/1", json={"text": "x"}),
        client.post("/v1/search", json=search | {"collection": "vectors"}),
    ):
        assert response.status_code == 503 and response.headers["retry-after"]
        message = response.json()["error"]["message"]
        assert message.startswith("the collection cannot be opened: ")
        assert "documents.db" in message and str(tmp_path) not in message
    listed = client.get("/v1/collections").json()["collections"]
    assert [(each["name"], each["documents"]) for each in listed] == [
        ("words", 3),
        ("vectors", None),
    ]
    numbers = metrics(client)
    assert numbers["searchengine_documents", "words"] == 3
    assert math.isnan(numbers["searchengine_documents", "vectors"])
    assert numbers["searchengine_up", "words"] == 1 and up(client) == 0
    (message,) = [each for each in caplog.messages if "vectors cannot be read" in each]
    assert str(tmp_path) in message
    kept.rename(path / "documents.db")
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert client.get(f"{AT}/1").json()["text"] == "w1" and up(client) == 1
    path.rename(tmp_path / "elsewhere")
    wait_until(lambda: not up(client))
    (tmp_path / "elsewhere").rename(path)
    wait_until(lambda: up(client))


def test_changes_are_refused_while_the_folder_is_away(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or has no collection in it; and a change during which another collection takes its place."""
    monkeypatch.setattr(served, "REFRESH", 60.0)  # the server learns of it by the change
    path, fresh = (vectors_collection(tmp_path / f"{name}.index") for name in ("vectors", "fresh"))
    client = serve(collections={"vectors": path})
    put: Any = "PUT", f"{AT}/x", {"text": "x", "_vector": [1, *7 * [0]]}
    delete = [("DELETE", f"{AT}/1", None), ("DELETE", f"{AT}?where=n=1", None)]
    others: Any = [
        ("PATCH", f"{AT}/1", {"n": 2}),
        *delete,
        ("GET", "/v1/collections/vectors/stats", None),
    ]

    def assert_refused(*requests: Any) -> None:
        for method, address, body in requests:
            response = client.request(method, address, json=body)
            assert response.status_code == 503, (method, address, response.text)
            assert response.headers["retry-after"] == "1" and "try again" in response.text

    former = tmp_path / "former.index"
    path.rename(former)
    assert_refused(put, *others)
    path.mkdir()
    assert_refused(put, *others)
    assert client.get(f"{AT}/1").json()["text"] == "w1"
    path.rmdir()
    former.rename(path)
    other = sqlite3.connect(path / "documents.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")

    def replace() -> None:
        path.rename(former)
        fresh.rename(path)
        other.close()

    threading.Timer(0.3, replace).start()  # while the change waits for the other
    assert_refused(put)
    for folder in (former, path):
        with SearchEngine.open(folder) as engine:
            assert len(engine) == 3
    assert client.request(put[0], put[1], json=put[2]).json()["result"] == "added"
    with SearchEngine.open(path) as engine:
        assert len(engine) == 4


def test_a_database_that_hangs_is_named(serve: Serve) -> None:
    """After the time limit of a request, though the look at it never ends."""
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/d#words"
        client = serve(timeout=0.2, collections={"words": url})
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["problems"] == {"words": "no answer within 0.2 seconds"}


def test_questions_are_encoded_by_the_encoder_that_is_named(serve: Serve, tmp_path: Path) -> None:
    path = vectors_collection(tmp_path / "vectors.index")
    with SearchEngine.open(path) as engine:
        dim = engine.stats().dim
    model = write_model2vec(tmp_path / "model", embeddings=static_table(dim))
    client = serve(collections={"vectors": path}, encoder=str(model))
    search = {"collection": "vectors", "query": "a whale", "mode": "vector", "k": 1}
    assert len(client.post("/v1/search", json=search).json()["hits"]) == 1


def test_a_former_engine_is_closed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reindex by another, answers are by the new encoder, without a pause; the former one
    takes no memory, once requests that use it have ended."""
    monkeypatch.setattr(served, "LATE", 0.0)
    path = tmp_path / "c.index"
    with SearchEngine.create(path, write_model2vec(tmp_path / "first")) as engine:
        engine.add([{"_id": "1", "text": "a whale"}])
    client = serve(timeout=2, collections={"words": path})
    collection: Any = client.app._app.state.collections["words"]  # type: ignore[attr-defined]
    former = collection.engine
    with SearchEngine.open(path) as other:
        other.reindex(write_model2vec(tmp_path / "second", embeddings=static_table(4)))
        expected = other.search("a whale", 1)[0].score

    def closed() -> bool:
        assert client.post("/v1/search", json={"query": "a whale"}).status_code == 200
        try:
            former.search("whale", mode="text")
        except CollectionError as error:
            return "is closed" in str(error)
        return False

    wait_until(closed)
    assert collection.engine is not former
    (hit,) = client.post("/v1/search", json={"query": "a whale"}).json()["hits"]
    assert hit["score"] == pytest.approx(expected, abs=1e-6)
    assert client.put(f"{AT.replace('vectors', 'words')}/x", json={"text": "a dog"}).is_success
