"""What one request may ask for, and that no work goes on after its time."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from searchengine.backends import limits
from searchengine.server import responses, served

Serve = Callable[..., TestClient]
AT = "/v1/collections/words/documents"


def test_a_batch_has_a_number_of_hits(client: TestClient) -> None:
    body = {"queries": ["a bee"] * 256, "k": 1000}
    response = client.post("/v1/search/batch", json=body)
    assert response.status_code == 422
    assert "questions times offset + k must be at most 25,600, got 256,000" in response.text
    assert client.post("/v1/search/batch", json={**body, "k": 100}).status_code == 200
    response = client.post("/v1/search/batch", json={**body, "k": 100, "offset": 1})
    assert response.status_code == 422


def test_a_response_has_a_size(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than that is refused, whoever asks; a smaller part of it is not."""
    text = "bee " * 2000
    assert client.put(f"{AT}/long", json={"text": text}).status_code == 200
    search = {"query": "bee", "mode": "text", "k": 1}
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/v1/search", search),
        ("POST", "/v1/search/batch", {"queries": ["bee"], "mode": "text"}),
        ("GET", AT, None),
        ("POST", "/v1/embeddings", {"input": ["x"] * 200}),
    ]
    for method, path, body in requests:
        plain = {"Accept-Encoding": "identity"}
        response = client.request(method, path, json=body, headers=plain)
        assert response.status_code == 200 and response.json()
        assert len(response.content) == int(response.headers["content-length"]) > 5000
    assert client.post("/v1/search", json=search).json()["hits"][0]["text"] == text
    monkeypatch.setattr(responses, "MAX_RESPONSE", 5000)
    for method, path, body in requests:
        response = client.request(method, path, json=body)
        assert response.status_code == 422 and '\\"texts\\": false' in response.text
    assert client.post("/v1/search", json={**search, "texts": False}).status_code == 200
    monkeypatch.setattr(served, "MAX_TEXT", 5000)
    for method, path, body in requests[:3]:
        response = client.request(method, path, json=body)
        assert response.status_code == 422 and "too long to be read" in response.text


def test_work_ends_when_the_time_of_its_request_is_over(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, ended = serve(timeout=1), threading.Semaphore(0)

    def endless(*_: Any) -> Any:
        try:
            while True:
                limits.check()
        finally:
            ended.release()

    monkeypatch.setattr("searchengine.engine.hits", endless)
    begin = time.monotonic()
    for path, body in (
        ("/v1/search", {"query": "a bee"}),
        ("/v1/search/batch", {"queries": ["a bee"]}),
    ):
        response = client.post(path, json=body)
        assert response.status_code == 503 and "within 1 second" in response.text
        assert ended.acquire(timeout=5)
    assert time.monotonic() - begin < 5


def test_a_response_is_compressed(client: TestClient) -> None:
    """For who accepts it, in a thread, if it is worth it."""
    address = "/v1/collections/words/documents"
    assert client.put(f"{address}/long", json={"text": "a bee or two " * 500}).status_code == 200
    small = client.get("/healthz")
    assert "content-encoding" not in small.headers
    plain = client.get(address, headers={"Accept-Encoding": "br"})
    assert "content-encoding" not in plain.headers
    for accepted in ("gzip", "br;q=1.0, gzip; q=0.5"):
        packed = client.get(address, headers={"Accept-Encoding": accepted})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert packed.json() == plain.json()
        with client.stream("GET", address, headers={"Accept-Encoding": accepted}) as response:
            assert len(b"".join(response.iter_raw())) < len(plain.content) / 5
