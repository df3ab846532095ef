"""What one request may ask for, and that no work goes on after its time."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import WordLengths
from starlette.testclient import TestClient

from searchengine.backends import limits
from searchengine.server import responses, served

Serve = Callable[..., TestClient]
AT = "/v1/collections/words/documents"


def test_a_batch_has_a_number_of_questions_and_hits(client: TestClient) -> None:
    for questions, options, status in (
        (257, {"k": 1}, 422),
        (256, {"k": 1000}, 422),
        (256, {"k": 100, "offset": 1}, 422),
        (256, {"k": 100, "texts": False}, 200),
    ):
        body = {"queries": ["a bee"] * questions, **options}
        response = client.post("/v1/search/batch", json=body)
        assert response.status_code == status
        if options["k"] == 1000:
            assert "offset + k must be at most 25,600, got 256,000" in response.text


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
        response = client.request(method, path, json=body)
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


class Endless(WordLengths):
    """Encodes no question before its time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Semaphore(0)

    def encode(self, texts: Any, *, role: Any = None, **_: Any) -> Any:
        end = time.monotonic() + 20
        try:
            while texts != ["warm"] and time.monotonic() < end:
                limits.check()
            return super().encode(texts)
        finally:
            self.ended.release()


@pytest.mark.parametrize(("limit", "asked"), [(1, {}), (60, {"timeout": 1}), (1, {"timeout": 60})])
def test_work_ends_when_the_time_of_its_request_is_over(
    serve: Serve, limit: int, asked: dict[str, int]
) -> None:
    """As the server allows, or as the caller."""
    encoder = Endless()
    client = serve(timeout=limit, encoder=encoder)
    assert encoder.ended.acquire(timeout=5)
    begin = time.monotonic()
    for path, body in (
        ("/v1/search", {"query": "a bee"}),
        ("/v1/search/batch", {"queries": ["a bee"]}),
    ):
        response = client.post(path, json=body | asked)
        assert response.status_code == 503 and "within 1 second" in response.text
        assert encoder.ended.acquire(timeout=5)
    assert time.monotonic() - begin < 8
    similar = {"key": "bee", "timeout": 1e-6}
    assert client.post("/v1/search/similar", json=similar).status_code == 503
