"""Under load: a full queue, a time limit, callers that leave."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from server_process import TOKEN
from starlette.testclient import TestClient

from searchengine import SearchEngine
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import EncoderMissing, EndpointError
from searchengine.server import guard, served
from searchengine.server.guard import Guard

Serve = Callable[..., TestClient]


class Held(WordLengths):
    """Encodes questions when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let = threading.Event(), threading.Event()

    def encode(self, texts: Any, *, role: Any = None) -> Any:
        if role == "query" and texts != ["warm"]:
            self.begun.set()
            assert self.let.wait(30)
        return super().encode(texts, role=role)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    encoder = Held()
    real = SearchEngine.open.__func__  # type: ignore[attr-defined]

    def opened(path: Path, *_: Any, runtime: Any = None, **options: Any) -> SearchEngine:
        return real(SearchEngine, path, encoder, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr("server_app.SearchEngine.open", staticmethod(opened))
    yield encoder
    encoder.let.set()


def ask(client: TestClient, question: str, results: list[Any]) -> threading.Thread:
    def work() -> None:
        results.append(client.post("/v1/search", json={"query": question}))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_full_queue_answers_429(
    held: Held, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_REQUESTS", 3)
    client = serve()
    results: list[Any] = []
    threads = [ask(client, f"a {'x' * i}", results) for i in range(1, 4)]
    app: Any = client.app
    end = time.monotonic() + 30
    while not app._turns.locked():
        assert time.monotonic() < end
        time.sleep(0.01)
    refused = client.post("/v1/search", json={"query": "a bee"})
    assert refused.headers["retry-after"] == "1" and "under way" in refused.text
    assert client.get("/healthz").status_code == 200  # health is always answered
    held.let.set()
    for thread in threads:
        thread.join(30)
    assert [response.status_code for response in results] == [200] * 3
    assert client.post("/v1/search", json={"query": "a bee"}).status_code == 200


def test_a_request_has_a_time_limit(held: Held, serve: Serve) -> None:
    client = serve(timeout=0.2)
    response = client.post("/v1/search", json={"query": "a bee"})
    assert response.status_code == 503 and "within 0.2 seconds" in response.text
    assert "retry-after" not in response.headers  # it would take as long again
    end = time.monotonic() + 30  # on a slow machine other answers may be late too
    held.let.set()
    while client.post("/v1/search", json={"query": "a bee"}).status_code != 200:
        assert time.monotonic() < end


def test_a_caller_that_leaves_is_not_encoded(
    held: Held, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its question is dropped before its call begins; the request ends at once, as 499."""
    client = serve()
    results: list[Any] = []
    first = ask(client, "a bee", results)
    assert held.begun.wait(30)
    app: Any = client.app
    assert isinstance(app, Guard)

    async def leave() -> float:
        body = b'{"query": "nobody waits"}'
        messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            raise AssertionError(f"sent to nobody: {message}")

        headers = [
            (b"content-type", b"application/json"),
            (b"authorization", f"Bearer {TOKEN}".encode()),
        ]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/search",
            "raw_path": b"/v1/search",
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
        }
        begin = time.perf_counter()
        await app(scope, receive, send)
        return time.perf_counter() - begin

    assert asyncio.run(leave()) < 5
    assert " 499 " in capfd.readouterr().err
    held.let.set()
    first.join(30)
    assert client.post("/v1/search", json={"query": "a cat"}).status_code == 200
    assert not any("nobody waits" in texts for texts in held.calls)


def test_writing_does_not_hold_up_searches(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, let = threading.Event(), threading.Event()
    real = SearchEngine.add

    def slow(self: SearchEngine, *arguments: Any, **options: Any) -> Any:
        begun.set()
        assert let.wait(30)
        return real(self, *arguments, **options)

    client = serve()
    monkeypatch.setattr(SearchEngine, "add", slow)
    at = "/v1/collections/words/documents"
    threads = [
        threading.Thread(target=lambda i=i: client.put(f"{at}/{i}", json={"text": "x"}))  # type: ignore[misc]
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    for _ in range(5):
        assert client.post("/v1/search", json={"query": "a bee"}).status_code == 200
        assert client.get(f"{at}/bee").status_code == 200
    let.set()
    for thread in threads:
        thread.join(30)
    assert client.get(at, params={"limit": 0}).json()["total"] == 9


def test_an_encoder_that_fails_is_tried_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = threading.Event()
    failing.set()
    real = SearchEngine.warm

    tried: list[float] = []

    def warm(self: SearchEngine) -> int:
        tried.append(time.monotonic())
        if failing.is_set():
            raise EndpointError("http://secret.example cannot be reached")
        return real(self)

    monkeypatch.setattr(SearchEngine, "warm", warm)
    monkeypatch.setattr(served, "AGAIN", 0.05)
    client = serve()
    end = time.monotonic() + 30
    while "cannot be loaded" not in (answer := client.get("/readyz")).text:
        assert answer.status_code == 503 and time.monotonic() < end
    assert "secret" not in answer.text  # everyone may ask
    while tried[-1] - tried[0] < 3 * served.REFRESH:  # meanwhile, commits are looked for
        assert time.monotonic() < end
        time.sleep(0.01)
    logged = [each.getMessage() for each in caplog.records if each.name == served.__name__]
    assert logged == [
        "words answers only searches by words (mode text): http://secret.example cannot be reached"
    ]
    failing.clear()
    while (answer := client.get("/readyz")).status_code != 200:
        assert time.monotonic() < end
    assert answer.json() == {"status": "ok", "problems": {}}


def test_a_missing_encoder_leaves_searches_by_words(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(self: CollectionEncoder, settings: object) -> TextEncoder:
        raise EncoderMissing("built by /secret, which cannot be loaded")

    monkeypatch.setattr(CollectionEncoder, "questions", missing)
    client = serve()
    assert client.post("/v1/search", json={"query": "a bee", "mode": "text"}).json()["hits"]
    for mode in ("hybrid", "vector", "auto"):
        answer = client.post("/v1/search", json={"query": "a bee", "mode": mode})
        assert answer.status_code == 503
        message = "the encoder of the collection cannot be loaded; search by words: mode text"
        assert answer.json()["error"]["message"] == message
    assert sum("/secret" in each.getMessage() for each in caplog.records) == 1
