"""Search and batch over HTTP: what the engine returns, as JSON."""

import time
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from server_process import vectors_collection
from starlette.testclient import TestClient

from searchengine import SearchEngine


def test_a_search_returns_what_the_engine_does(client: TestClient, words: Path) -> None:
    asked = {"query": "a bee", "k": 2, "where": "year > 2000", "facets": ["lang"]}
    response = client.post("/v1/search", json=asked)
    assert response.status_code == 200
    with SearchEngine.open(words) as engine:
        hits = engine.search("a bee", 2, where="year > 2000", facets=["lang"])
    result = response.json()
    assert result["hits"] == hits.to_dicts() and result["hits"][0]["key"] == "bee"
    assert result["collection"] == "words" and result["exact"] is hits.exact
    assert result["facets"] == {"lang": [{"value": "en", "count": 3}, {"value": "ko", "count": 1}]}
    timing = result["timing"]
    assert timing["questions"] == 1
    parts = sum(timing[name] for name in ("wait", "encode", "search", "fetch"))
    assert parts == pytest.approx(timing["total"], abs=0.01) and timing["total"] > 0


def test_a_question_may_be_a_vector_and_hits_without_texts(client: TestClient) -> None:
    vector = WordLengths().encode(["a bee"])[0].tolist()
    asked = {"vector": vector, "k": 1, "texts": False, "shortlist": 3}
    (hit,) = client.post("/v1/search", json=asked).json()["hits"]
    assert hit["key"] == "bee" and "text" not in hit


def test_words_that_no_document_has_are_replaced(client: TestClient) -> None:
    """Over HTTP, in a batch, and in the count of the page."""
    word, wrong = "eeeee", "eexeee"
    asked: dict[str, Any] = {"mode": "text", "k": 3}
    result = client.post("/v1/search", json={"query": wrong, **asked}).json()
    right = client.post("/v1/search", json={"query": word, **asked}).json()
    assert result["replaced"] == {wrong: word} and right["replaced"] == {}
    assert result["hits"] and result["hits"] == right["hits"]
    batch = client.post("/v1/search/batch", json={"queries": [word, wrong], **asked}).json()
    assert [each["replaced"] for each in batch["results"]] == [{}, {wrong: word}]
    off = client.post("/v1/search", json={"query": wrong, "typo_tolerance": False, **asked}).json()
    assert off["replaced"] == {} and off["hits"] == []
    counts = [
        client.post("/v1/collections/words/count", json={"query": query, "mode": "text"}).json()
        for query in (word, wrong)
    ]
    assert counts[0]["total"] == counts[1]["total"] > 0


def test_a_batch_is_in_the_order_of_its_questions(client: TestClient) -> None:
    response = client.post("/v1/search/batch", json={"queries": ["the cat sat", "a bee"], "k": 1})
    results = response.json()["results"]
    assert [result["hits"][0]["key"] for result in results] == ["cat", "bee"]
    assert results[0]["timing"]["questions"] == 2
    vectors = WordLengths().encode(["a bee", "a bee"]).tolist()
    response = client.post("/v1/search/batch", json={"vectors": vectors, "k": 1})
    assert [result["hits"][0]["key"] for result in response.json()["results"]] == ["bee", "bee"]


HOSTILE: list[tuple[bytes, int, str]] = [
    (b'{"query": "%s"}' % (b"x" * 100_000), 422, "query: String should have at most 10000"),
    (b'{"query": "x", "where": "%s"}' % (b"(" * 60 + b"a" + b")" * 60), 422, "50 levels"),
    (b'{"query": "x", "where": "%s"}' % (b"a" * 10_001), 422, "where: String should have at most"),
    (b'{"query": "\xff"}', 400, "not JSON"),
    (b'{"query": "\\ud800"}', 422, "unicode"),
    (b'{"query": "x", "k": 1000000000}', 422, "k: Input should be less than or equal to 1000"),
    (b'{"query": "x", "k": ' + b"9" * 5000 + b"}", 400, "not JSON"),
    (b'{"query": "x", "k": 1001}', 422, "k: Input should be less than or equal to 1000"),
    (b'{"query": "x", "offset": 10001}', 422, "offset: Input should be less than or equal to"),
    (b'{"query": "x", "shortlist": 100001}', 422, "shortlist: Input should be less than or"),
    (b'{"query": "x", "facets": [%s]}' % b",".join([b'"a"'] * 21), 422, "facets: List should have"),
    (b'{"query": "x", "k": "5"}', 422, "k: Input should be a valid integer"),
    (b'{"vector": [1, 2]}', 422, "numbers of shape (q, 16)"),
    (b'{"vector": [NaN]}', 422, "finite number"),
    (b'{"vector": [1e999]}', 422, "finite number"),
    (b'{"vector": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}', 422, "not all zeros"),
    (b'{"query": " "}', 422, "query: String should match pattern"),
    (b'{"query": "x", "vector": [1]}', 422, "either query or vector"),
    (b'{"query": "x", "sise": 1}', 422, "sise: no such field"),
    (b'{"query": "x", "top_k": 1}', 422, "top_k: no such field"),
    (b'{"q": "x"}', 422, "q: no such field; did you mean query?"),
    (b'{"query": "x", "typo_tolerence": true}', 422, "did you mean typo_tolerance?"),
    (b'{"query": "x", "where": "year >"}', 422, "in the filter"),
    (b'{"query": "x", "exact": true, "shortlist": 3}', 422, "takes no shortlist"),
    (b'{"query": "x", "facets": ["a b"]}', 422, "the name of a field"),
    (b"[" * 100_000, 400, "not JSON"),
    (b"", 422, "Field required"),
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


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
@pytest.mark.parametrize("path", ["/v1/search", "/v1/search/batch", "/v1/embeddings"])
def test_a_body_without_its_type_is_explained(
    client: TestClient, path: str, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}  # curl -d sends the second
    response = client.post(path, content=b'{"query": "x"}', headers=headers)
    message = response.json()["error"]["message"]
    assert response.status_code == 422 and "Content-Type: application/json" in message


@pytest.mark.parametrize(
    "path, message",
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


def test_a_misspelt_field_is_named(client: TestClient) -> None:
    response = client.post("/v1/search", json={"query": "bee", "where": "yeer = 1"})
    assert response.json()["hits"] == []
    assert "no document has a field yeer" in response.json()["notes"][0]


def test_an_error_shows_no_path_and_no_trace(
    client: TestClient, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(SearchEngine, "get", fail)
    response = client.get("/v1/collections/words/documents/bee")
    assert response.status_code == 500
    assert "secret" not in response.text and response.json()["error"]["type"] == "internal"
    similar = client.put("/v1/collections/words/documents/x", json={"text": "a", "_vector": [1]})
    assert similar.status_code == 422 and str(words) not in similar.text


def test_several_collections(serve: Any, words: Path, tmp_path: Path) -> None:
    other = vectors_collection(tmp_path / "other.index")
    client = serve(collections={"words": words, "other": other})
    assert [each["name"] for each in client.get("/v1/collections").json()["collections"]] == [
        "words",
        "other",
    ]
    without = client.post("/v1/search", json={"query": "a bee"})
    assert without.status_code == 422
    assert "name one of: words, other" in without.json()["error"]["message"]
    hits = client.post("/v1/search", json={"collection": "other", "vector": [0, 1] + 6 * [0]})
    assert hits.json()["hits"][0]["key"] == "1"
    refused = client.post("/v1/embeddings", json={"model": "other", "input": "x"})
    assert refused.status_code == 422 and "no encoder" in refused.json()["error"]["message"]


def test_what_another_process_commits_is_seen_within_a_second(
    client: TestClient, words: Path
) -> None:
    with SearchEngine.open(words) as engine:
        engine.add([{"_id": "new", "text": "seven77 seven77"}])
    begin = time.monotonic()
    asked = {"query": "seven77", "k": 1}
    while client.post("/v1/search", json=asked).json()["hits"][0]["key"] != "new":
        assert time.monotonic() < begin + 1
        time.sleep(0.02)


def test_a_replaced_folder_is_seen_within_a_second(client: TestClient, words: Path) -> None:
    fresh = words.with_name("fresh.index")
    with SearchEngine.create(fresh, WordLengths()) as engine:
        engine.add([{"_id": "other", "text": "a bee"}])
    words.rename(words.with_name("old.index"))
    fresh.rename(words)
    begin = time.monotonic()
    while client.get("/v1/collections/words/documents").json()["total"] != 1:
        assert time.monotonic() < begin + 1
        time.sleep(0.02)


def test_a_caller_may_limit_the_time(client: TestClient) -> None:
    requests: dict[str, dict[str, Any]] = {
        "": {"query": "a bee"},
        "/batch": {"queries": ["a bee"]},
        "/similar": {"key": "bee"},
    }
    for path, body in requests.items():
        address = f"/v1/search{path}"
        assert client.post(address, json=body | {"timeout": 60}).status_code == 200
        late = client.post(address, json=body | {"timeout": 1e-9})
        assert late.status_code == 503 and late.json()["error"]["code"] == "search_timeout"
        assert client.post(address, json=body | {"timeout": 0}).status_code == 422


def test_openapi_has_an_example_of_every_request(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    bodies = 0
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert operation.get("security", []) == (
                [] if path in ("/healthz", "/readyz") else [{"token": []}]
            )
            for content in operation.get("requestBody", {}).get("content", {}).values():
                name = content["schema"].get("$ref", "").rsplit("/", 1)[-1]
                model = schema["components"]["schemas"].get(name, content)
                assert model.get("examples") or model.get("example"), path
                bodies += 1
    assert bodies == 9
    example = schema["components"]["schemas"]["SearchRequest"]["examples"][0]
    assert client.post("/v1/search", json=example).status_code == 200
