"""Under load: a full queue, a time limit, callers that leave, encoders that fail."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from server_process import TOKEN
from starlette.testclient import TestClient
from tiny_model import write_model2vec

from searchengine import SearchEngine
from searchengine.server import MAX_REQUESTS
from searchengine.server.guard import Guard

Serve = Callable[..., TestClient]
AT = "/v1/collections/words/documents"


class Held(WordLengths):
    """Encodes questions, or what has another role, when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.role = "query"
        self.begun, self.let = threading.Event(), threading.Event()

    def encode(self, texts: Any, *, role: Any = None, **_: Any) -> Any:
        if role == self.role and texts != ["warm"]:
            self.begun.set()
            assert self.let.wait(30)
        return super().encode(texts, role=role)


@pytest.fixture
def held() -> Iterator[Held]:
    encoder = Held()
    yield encoder
    encoder.let.set()


def start(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def status(client: TestClient, question: str = "a bee", **options: Any) -> int:
    return client.post("/v1/search", json={"query": question, **options}).status_code


def test_a_full_queue_answers_429(held: Held, serve: Serve) -> None:
    client = serve(encoder=held)
    results: list[int] = []
    threads = [start(lambda: results.append(status(client))) for _ in range(MAX_REQUESTS)]
    app: Any = client.app
    wait_until(app._turns.locked)
    refused = client.post("/v1/search", json={"query": "a bee"})
    assert refused.headers["retry-after"] == "1" and "under way" in refused.text
    assert client.get("/healthz").status_code == 200  # health is always answered
    held.let.set()
    for thread in threads:
        thread.join(30)
    assert results == [200] * MAX_REQUESTS and status(client) == 200


def test_a_request_has_a_time_limit(held: Held, serve: Serve) -> None:
    client = serve(timeout=0.2, encoder=held)
    response = client.post("/v1/search", json={"query": "a bee"})
    assert response.status_code == 503 and "within 0.2 seconds" in response.text
    assert "retry-after" not in response.headers  # it would take as long again
    held.let.set()
    wait_until(lambda: status(client) == 200)  # on a slow machine other answers may be late too


def test_a_caller_that_leaves_is_not_encoded(
    held: Held, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its question is dropped before its call begins; the request ends at once, as 499."""
    client = serve(encoder=held)
    first = start(lambda: status(client))
    assert held.begun.wait(30)
    app: Any = client.app
    assert isinstance(app, Guard)

    async def leave() -> None:
        body = b'{"query": "nobody waits"}'
        messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            raise AssertionError(f"sent to nobody: {message}")

        token = (b"authorization", f"Bearer {TOKEN}".encode())
        scope = {
            **{"type": "http", "method": "POST", "path": "/v1/search", "raw_path": b"/v1/search"},
            **{"query_string": b"", "http_version": "1.1", "scheme": "http"},
            "headers": [(b"content-type", b"application/json"), token],
        }
        async with asyncio.timeout(5):
            await app(scope, receive, send)

    client.portal.call(leave)  # type: ignore[union-attr]
    assert " 499 " in capfd.readouterr().err
    held.let.set()
    first.join(30)
    assert status(client, "a cat") == 200
    assert not any("nobody waits" in texts for texts in held.calls)


def test_writing_does_not_hold_up_searches(held: Held, serve: Serve) -> None:
    held.role, client = "document", serve(encoder=held)
    threads = [
        start(lambda i=i: client.put(f"{AT}/{i}", json={"text": "x"}))  # type: ignore[misc]
        for i in range(6)
    ]
    assert held.begun.wait(30)
    for _ in range(5):
        assert status(client) == client.get(f"{AT}/bee").status_code == 200
    held.let.set()
    for thread in threads:
        thread.join(30)
    assert client.get(AT, params={"limit": 0}).json()["total"] == 9


def test_a_change_says_in_time_that_another_process_is_writing(serve: Serve, words: Path) -> None:
    client, results = serve(timeout=3), list[Any]()
    with closing(sqlite3.connect(words / "documents.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        new = {"text": "x"}
        threads = [start(lambda: results.append(client.put(f"{AT}/x", json=new))) for _ in "abc"]
        for thread in threads:
            thread.join(30)
    for response in results:  # also those that waited for their turn
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert "another process is writing" in response.text
    assert len(results) == 3 and client.put(f"{AT}/x", json=new).json()["result"] == "added"


def test_a_missing_encoder_leaves_searches_by_words_and_is_tried_again(
    serve: Serve, tmp_path: Path, quick_looks: None, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_model2vec(tmp_path / "secret")
    with SearchEngine.create(tmp_path / "c.index", model) as engine:
        engine.add([{"_id": "1", "text": "a whale"}])
    model.rename(tmp_path / "away")
    client = serve(collections={"words": tmp_path / "c.index"})
    wait_until(lambda: "cannot be loaded" in client.get("/readyz").text)
    answer = client.get("/readyz")
    assert answer.status_code == 503 and "secret" not in answer.text  # everyone may ask
    assert status(client, mode="text") == 200
    for mode in ("hybrid", "vector", "auto"):
        answer = client.post("/v1/search", json={"query": "a whale", "mode": mode})
        assert answer.status_code == 503 and "secret" not in answer.text
        assert "the encoder cannot be loaded; search by words: mode text" in answer.text
    assert sum("answers only searches by words" in each for each in caplog.messages) == 1
    (tmp_path / "away").rename(model)
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert status(client, mode="vector") == 200
