"""Documents over HTTP: get, list, put, update, delete."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conftest import WordLengths
from server_process import vectors_collection
from starlette.testclient import TestClient

AT = "/v1/collections/words/documents"
Serve = Callable[..., TestClient]


def test_put_get_update_delete(client: TestClient) -> None:
    new = {"text": "seven77", "title": "t", "year": 2001, "of": {"kind": [1, None]}}
    assert client.put(f"{AT}/x/y", json=new).json() == {"key": "x/y", "result": "added"}
    assert client.get(f"{AT}/x/y").json() == {"_id": "x/y", **new}
    for changed, result in (
        (new, "unchanged"),
        (new | {"year": 2}, "metadata_updated"),
        ({"text": "new"}, "changed"),
    ):
        assert client.put(f"{AT}/x/y", json=changed).json()["result"] == result
    patched = client.patch(f"{AT}/x/y", json={"year": None, "n": 1}).json()
    assert patched == {"_id": "x/y", "title": "", "text": "new", "n": 1}
    assert client.delete(f"{AT}/x/y").json() == {"deleted": 1}
    for method in ("GET", "DELETE", "PATCH"):
        response = client.request(method, f"{AT}/x/y", json={"n": 1})
        assert response.status_code == 404 and response.json()["error"]["type"] == "unknown_key"
    other = client.get("/v1/collections/other/documents/x")
    assert other.status_code == 404 and other.json()["error"]["type"] == "not_found"


@pytest.mark.parametrize(
    "key", ["a/b/../c", "line\nend\n", "100 %", "é?#", "documents", "k" * 4096]
)
def test_any_key_has_an_address(client: TestClient, key: str) -> None:
    address = f"{AT}/{quote(key, safe='')}"
    assert client.put(address, json={"text": "x"}).json() == {"key": key, "result": "added"}
    assert client.get(address).json()["_id"] == key
    assert client.post(address).headers["allow"] == "DELETE, GET, PATCH, PUT"
    assert client.delete(address).json() == {"deleted": 1}
    too_long = client.put(f"{AT}/{'k' * 4097}", json={"text": "x"})
    assert too_long.status_code == 422 and "at most 4096" in too_long.text


def test_lists_are_pages_of_a_filter(client: TestClient) -> None:
    page = client.get(AT, params={"where": "year > 2000", "offset": 1, "limit": 1}).json()
    assert page["total"] == 3 and [each["_id"] for each in page["documents"]] == ["cat"]
    empty = {"documents": [], "total": 3, "next": None}
    assert client.get(AT, params={"limit": 0}).json() == empty
    assert client.get(AT, params={"limit": 1001}).status_code == 422

    def pages(**parameters: Any) -> list[list[Any]]:
        found, after = [], {}
        while after is not None:
            page = client.get(AT, params={**parameters, **after}).json()
            found.append([each["_id"] for each in page["documents"]])
            after = None if page["next"] is None else {"after": page["next"]}
        return found

    assert pages(limit=2) == [["bee", "cat"], ["a/b c"]]
    assert pages(limit=1, where="year > 2015") == [["bee"], ["a/b c"]]
    assert client.request("DELETE", AT).status_code == 422  # never all of them by mistake
    assert client.request("DELETE", AT, params={"where": "year > 2015"}).json() == {"deleted": 2}
    assert client.get(AT).json()["total"] == 1


BAD: list[tuple[Any, str]] = [
    ({}, "neither text nor title"),
    ([1], "the body must be a JSON object"),
    ({"text": 5}, "text"),
    ({"text": "x", "_id": "other"}, "the _id is 'other'"),
    ({"text": "x", "_vector": [1, 2]}, "a list of 16 finite numbers"),
    ({"text": "x", "_vector": "abc"}, "a list of 16 finite"),
    ({"text": "x", "_vector": 16 * [0]}, "not all zeros"),
    ({"text": "x", "deep": json.loads("[" * 200 + "]" * 200)}, "nested more than 100"),
]


def test_a_bad_document_is_refused(client: TestClient, words: Path) -> None:
    for document, message in BAD:
        response = client.put(f"{AT}/x", json=document)
        assert response.status_code == 422 and message in response.json()["error"]["message"]
        assert str(words) not in response.text
    assert client.get(f"{AT}/x").status_code == 404


def test_documents_with_vectors(client: TestClient, serve: Serve, tmp_path: Path) -> None:
    """Beside an encoder, and without one."""
    vector = 15 * [0] + [1]
    client.put(f"{AT}/v", json={"title": "v", "_vector": vector})
    (hit,) = client.post("/v1/search", json={"vector": vector, "k": 1}).json()["hits"]
    assert hit["key"] == "v" and hit["score"] == pytest.approx(1)
    assert "_vector" not in hit["metadata"]
    client = serve(collections={"words": vectors_collection(tmp_path / "v.index", 1)})
    stored = client.put(f"{AT}/a", json={"_vector": 7 * [0] + [1]})
    assert stored.json()["result"] == "added"
    refused = client.put(f"{AT}/b", json={"text": "only words"})
    assert refused.status_code == 422 and "_vector over HTTP" in refused.text
    hits = client.post("/v1/search", json={"vector": 7 * [0] + [1]}).json()["hits"]
    assert [hit["key"] for hit in hits] == ["a", "0"]


class Failing(WordLengths):
    """Fails on documents by an error that nobody expects."""

    def encode(self, texts: Any, *, role: Any = None, **_: Any) -> Any:
        if role == "document":
            raise ZeroDivisionError("secret")
        return super().encode(texts)


def test_a_failed_commit_is_not_acknowledged(serve: Serve) -> None:
    response = serve(encoder=Failing()).put(f"{AT}/x", json={"text": "x"})
    assert response.status_code == 500 and "internal error" in response.text
    assert "retry-after" not in response.headers and "secret" not in response.text
    assert response.json()["error"]["id"] == response.headers["x-request-id"]
