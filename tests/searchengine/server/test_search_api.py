"""Search and batch over HTTP: what the engine returns, as JSON."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from server_process import vectors_collection
from starlette.testclient import TestClient

from searchengine import SearchEngine

Serve = Callable[..., TestClient]


def test_a_question_may_be_a_vector_and_hits_without_texts(client: TestClient) -> None:
    vector = WordLengths().encode(["a bee"])[0].tolist()
    client.put("/v1/collections/words/documents/bee", json={"text": "a bee"})
    asked = {"vector": vector, "k": 1, "texts": False, "shortlist": 3}
    (hit,) = client.post("/v1/search", json=asked).json()["hits"]
    assert hit["key"] == "bee" and "text" not in hit and not hit["metadata"]


def test_a_batch_is_in_the_order_of_its_questions(client: TestClient) -> None:
    vectors = WordLengths().encode(["the cat sat", "a bee"]).tolist()
    for questions in ({"queries": ["the cat sat", "a bee"]}, {"vectors": vectors}):
        results = client.post("/v1/search/batch", json={**questions, "k": 1}).json()["results"]
        assert [result["hits"][0]["key"] for result in results] == ["cat", "bee"]


def test_similar(client: TestClient) -> None:
    body: dict[str, Any] = {"key": "a/b c", "k": 5, "where": "year > 0", "texts": False}
    hits = client.post("/v1/search/similar", json=body).json()["hits"]
    assert {hit["key"] for hit in hits} == {"bee", "cat"} and "text" not in hits[0]
    body = {"keys": ["bee", "cat"]}
    (hit,) = client.post("/v1/search/similar", json=body).json()["hits"]
    assert hit["key"] == "a/b c" and hit["text"]
    both = {"key": "bee", "keys": ["bee"]}
    for body in ({}, both, {"keys": []}, {"keys": ["bee"] * 101}):
        assert client.post("/v1/search/similar", json=body).status_code == 422
    assert client.post("/v1/search/similar", json={"key": "none"}).status_code == 404


HOSTILE: list[tuple[bytes, int, str]] = [
    (b'{"query": "%s"}' % (b"x" * 100_000), 422, "query: String should have at most 10000"),
    (b'{"query": "x", "where": "%s"}' % (b"(" * 60 + b"a" + b")" * 60), 422, "nested 20 deep"),
    (b'{"query": "\xff"}', 400, "not JSON"),
    (b'{"query": "\\ud800"}', 422, "unicode"),
    (b'{"query": "x", "k": ' + b"9" * 5000 + b"}", 400, "more than 4,300 digits"),
    (b'{"query": "x", "k": "5"}', 422, "k: Input should be a valid integer"),
    (b'{"vector": [1, 2]}', 422, "each query vector must have 16 numbers, got 2"),
    (b'{"vector": [NaN]}', 422, "finite number"),
    (b'{"vector": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}', 422, "not all zeros"),
    (b'{"query": " "}', 422, "query: String should match pattern"),
    (b'{"query": "x", "vector": [1]}', 422, "either query or vector"),
    (b'{"query": "x", "top_k": 1}', 422, "top_k: no such field"),
    (b'{"q": "x"}', 422, "q: no such field; did you mean query?"),
    (b'{"query": "x", "where": "year >"}', 422, "in the filter"),
    (b'{"query": "x", "exact": true, "shortlist": 3}', 422, "takes no shortlist"),
    (b'{"query": "x", "facets": ["a b"]}', 422, "the name of a field"),
    (b'{"query": "x", "min_score": 1e308}', 422, "min_score must be a number below 1e300"),
    (b'{"query": "x", "timeout": 0}', 422, "timeout: Input should be greater than 0"),
    (b"[" * 100_000, 400, "nested too deeply"),
    (b"", 422, "the body must be a JSON object"),
    (b'"x"', 422, "the body must be a JSON object"),
    (b'{"query": "x", "collection": "../words.index"}', 404, "no collection '../words.index'"),
]


def test_bad_input_gets_one_sentence(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for body, status, message in HOSTILE:
        response = client.post("/v1/search", content=body, headers=headers)
        assert response.status_code == status, (message, response.text)
        error = response.json()["error"]
        assert message in error["message"] and len(error["message"]) < 600
        assert error["id"] == response.headers["x-request-id"]
    for path in ("/v1/search", "/v1/search/batch", "/v1/embeddings"):
        for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):  # by curl -d
            response = client.post(path, content=b'{"query": "x"}', headers=headers)
            assert response.status_code == 422 and "Content-Type: application/json" in response.text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("documents?wher=year%3D1", "wher: no such parameter; did you mean where?"),
        ("documents?where=year%3D1&filter=x", "filter: no such parameter"),
        ("documents/bee?where=x", "where: no such parameter"),
    ],
)
def test_a_misspelt_parameter_is_named(client: TestClient, path: str, message: str) -> None:
    response = client.get(f"/v1/collections/words/{path}")
    assert response.status_code == 422 and response.json()["error"]["message"] == message
    assert response.json()["error"]["param"] == message.split(":")[0]
    response = client.post("/v1/search", json={"query": "bee", "where": "yeer = 1"})
    assert "no document has a field yeer" in response.json()["notes"][0]


def test_several_collections(serve: Serve, words: Path, tmp_path: Path) -> None:
    other = vectors_collection(tmp_path / "other.index")
    client = serve(collections={"words": words, "other": other})
    listed = client.get("/v1/collections").json()["collections"]
    assert [(each["name"], each["documents"]) for each in listed] == [("words", 3), ("other", 3)]
    without = client.post("/v1/search", json={"query": "a bee"})
    assert without.status_code == 422 and "name one of: words, other" in without.text
    hits = client.post("/v1/search", json={"collection": "other", "vector": [0, 1] + 6 * [0]})
    assert hits.json()["hits"][0]["key"] == "1"
    refused = client.post("/v1/embeddings", json={"model": "other", "input": "x"})
    assert refused.status_code == 422 and "no encoder" in refused.json()["error"]["message"]
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["words"]


def test_commits_of_others_are_seen_within_a_second(client: TestClient, words: Path) -> None:
    """And a folder that takes the place of the one that was opened."""

    def wait_for(documents: int) -> None:
        end = time.monotonic() + 2
        while client.get("/v1/collections/words/documents").json()["total"] != documents:
            assert time.monotonic() < end
            time.sleep(0.02)

    with SearchEngine.open(words) as engine:
        engine.add([{"_id": "new", "text": "seven77 seven77"}])
    wait_for(4)
    fresh = words.with_name("fresh.index")
    with SearchEngine.create(fresh, WordLengths()) as engine:
        engine.add([{"_id": "other", "text": "a bee"}])
    words.rename(words.with_name("old.index"))
    fresh.rename(words)
    wait_for(1)
    assert client.post("/v1/search", json={"query": "a bee"}).json()["hits"][0]["key"] == "other"
