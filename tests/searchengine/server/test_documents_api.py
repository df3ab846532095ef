"""Documents over HTTP: get, list, put, update, delete."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from server_process import vectors_collection
from starlette.testclient import TestClient

from searchengine import SearchEngine
from searchengine.errors import CollectionBusy

AT = "/v1/collections/words/documents"
Serve = Callable[..., TestClient]


def test_put_get_update_delete(client: TestClient) -> None:
    new = {"text": "seven77", "title": "t", "year": 2001, "of": {"kind": [1, None]}}
    assert client.put(f"{AT}/x/y", json=new).json() == {"key": "x/y", "result": "added"}
    assert client.get(f"{AT}/x/y").json() == {"_id": "x/y", **new}
    assert client.put(f"{AT}/x/y", json=new).json()["result"] == "unchanged"
    assert client.put(f"{AT}/x/y", json=new | {"year": 2}).json()["result"] == "metadata_updated"
    assert client.put(f"{AT}/x/y", json={"text": "new"}).json()["result"] == "changed"
    patched = client.patch(f"{AT}/x/y", json={"year": None, "n": 1}).json()
    assert patched == {"_id": "x/y", "title": "", "text": "new", "n": 1}
    assert client.delete(f"{AT}/x/y").json() == {"deleted": 1}
    for response in (
        client.get(f"{AT}/x/y"),
        client.delete(f"{AT}/x/y"),
        client.patch(f"{AT}/x/y", json={"n": 1}),
    ):
        assert response.status_code == 404 and response.json()["error"]["type"] == "unknown_key"
    other = client.get("/v1/collections/other/documents/x")
    assert other.status_code == 404 and other.json()["error"]["type"] == "not_found"


@pytest.mark.parametrize("key", ["a/b/../c", "line\nend\n", "100 %", "é?#", "documents"])
def test_any_key_has_an_address(client: TestClient, key: str) -> None:
    address = f"{AT}/{quote(key, safe='')}"
    assert client.put(address, json={"text": "x"}).json() == {"key": key, "result": "added"}
    assert client.get(address).json()["_id"] == key
    assert client.post(address).headers["allow"] == "DELETE, GET, PATCH, PUT"
    assert client.delete(address).json() == {"deleted": 1}


def test_lists_are_pages_of_a_filter(client: TestClient) -> None:
    page = client.get(AT, params={"where": "year > 2000", "offset": 1, "limit": 1}).json()
    assert page["total"] == 3 and [each["_id"] for each in page["documents"]] == ["cat"]
    empty = {"documents": [], "total": 3, "next": None}
    assert client.get(AT, params={"limit": 0}).json() == empty
    assert client.get(AT, params={"limit": 100_000}).status_code == 422
    assert client.request("DELETE", AT).status_code == 422  # never all of them by mistake
    assert client.request("DELETE", AT, params={"where": "year > 2015"}).json() == {"deleted": 2}
    assert client.get(AT).json()["total"] == 1


def test_a_page_says_where_the_next_one_begins(client: TestClient) -> None:
    def pages(**parameters: Any) -> list[list[Any]]:
        found, after = [], {}
        while after is not None:
            page = client.get(AT, params={**parameters, **after}).json()
            found.append([each["_id"] for each in page["documents"]])
            after = None if page["next"] is None else {"after": page["next"]}
        return found

    assert pages(limit=2) == [["bee", "cat"], ["a/b c"]]
    assert pages(limit=1, where="year > 2015") == [["bee"], ["a/b c"]]


def test_several_documents_at_once(client: TestClient) -> None:
    stored = client.post(f"{AT}:get", json={"keys": ["cat", "none", "bee"]}).json()["documents"]
    assert [each and each["_id"] for each in stored] == ["cat", None, "bee"]
    assert client.post(f"{AT}:get", json={"keys": 1001 * ["x"]}).status_code == 422


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "neither text nor title"),
    ({"text": 5}, "text: Input should be a valid string"),
    ({"text": "x", "_id": "other"}, "the _id is 'other'"),
    ({"text": "x", "_vector": [1, 2]}, "a list of 16 finite numbers"),
    ({"text": "x", "_vector": "abc"}, "a list of 16 finite"),
    ({"text": "x", "_vector": 16 * [0]}, "not all zeros"),
    ({"text": "x", "deep": json.loads("[" * 200 + "]" * 200)}, "nested more than 100"),
]


def test_a_bad_document_is_refused(client: TestClient) -> None:
    for document, message in BAD:
        response = client.put(f"{AT}/x", json=document)
        assert response.status_code == 422 and message in response.json()["error"]["message"]
    assert client.get(f"{AT}/x").status_code == 404


def test_a_document_with_its_vector(client: TestClient) -> None:
    vector = 15 * [0] + [1]
    client.put(f"{AT}/v", json={"title": "v", "_vector": vector})
    hit = client.post("/v1/search", json={"vector": vector, "k": 1}).json()["hits"][0]
    assert (
        hit["key"] == "v" and hit["score"] == pytest.approx(1) and "_vector" not in hit["metadata"]
    )


def test_vectors_without_an_encoder(serve: Serve, tmp_path: Path) -> None:
    client = serve(collections={"words": vectors_collection(tmp_path / "v.index", 1)})
    for key, document in (("a", {"_vector": 7 * [0] + [1]}), ("b", {"text": "only words"})):
        assert client.put(f"{AT}/{key}", json=document).json()["result"] == "added"
    hits = client.post("/v1/search", json={"vector": 7 * [0] + [1]}).json()["hits"]
    assert [hit["key"] for hit in hits] == ["a", "0"]
    hits = client.post("/v1/search", json={"query": "words", "mode": "text"}).json()["hits"]
    assert [hit["key"] for hit in hits] == ["b"]


def test_a_failed_commit_is_not_acknowledged(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise CollectionBusy("pid 1 is writing")

    monkeypatch.setattr(SearchEngine, "add", busy)
    response = client.put(f"{AT}/x", json={"text": "x"})
    assert response.status_code == 503 and response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "unavailable" and "another process" in response.text


def test_keys_and_batches_have_limits(client: TestClient) -> None:
    assert client.put(f"{AT}/{'k' * 4096}", json={"text": "x"}).status_code == 200
    too_long = client.put(f"{AT}/{'k' * 4097}", json={"text": "x"})
    assert too_long.status_code == 422 and "at most 4096" in too_long.text
    assert client.get(AT, params={"limit": 1001}).status_code == 422
    for queries, status in (256, 200), (257, 422):
        body = {"queries": ["a bee"] * queries, "k": 1, "texts": False}
        assert client.post("/v1/search/batch", json=body).status_code == status


def test_what_nobody_expected_is_not_shown(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: SearchEngine, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(SearchEngine, "search_batch", failing)
    response = client.post("/v1/search/batch", json={"queries": ["a bee"]})
    assert response.status_code == 500 and "secret" not in response.text
    assert response.json()["error"]["id"] == response.headers["x-request-id"]
