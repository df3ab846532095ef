"""The page's files, and what only it asks for: values to filter by, and a map."""

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from server_process import READER
from starlette.testclient import TestClient

from searchengine import Document, SearchEngine
from searchengine.backends.contract import Entry
from searchengine.server import page_routes

Serve = Callable[..., TestClient]
FOLDER = files("searchengine.server") / "page"
AT = "/v1/collections/words"


def test_the_page_needs_no_token_and_no_other_host(serve: Serve) -> None:
    client = serve(token=None)
    names = [each.name for each in FOLDER.iterdir()]
    weight = 0
    for name in ["", *(f"page/{name}" for name in names)]:
        response = client.get(f"/{name}")
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy
        text = response.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\seval\(", text), name
        weight += len(response.content)
    assert weight <= 200_000
    assert "<script>" not in client.get("/").text and "style=" not in client.get("/").text


@pytest.mark.parametrize(
    "name", ["other.js", "..%2Fapp.py", "%2e%2e/app.py", "/etc/passwd", "page.js%00", ""]
)
def test_no_name_reaches_the_file_system(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


def test_the_page_is_sent_once(client: TestClient) -> None:
    for path in ("/", "/page/page.js"):
        first = client.get(path, headers={"Accept-Encoding": "identity"})
        assert first.headers["cache-control"] == "no-cache"
        tag = first.headers["etag"]
        packed = client.get(path)
        assert packed.headers["content-encoding"] == "gzip" and packed.headers["etag"] == tag
        assert packed.text == first.text and packed.headers["vary"] == "Accept-Encoding"
        for known in (tag, f'"other", {tag}', "*"):
            again = client.get(path, headers={"If-None-Match": known})
            assert again.status_code == 304 and again.content == b""
            assert again.headers["etag"] == tag
        assert client.get(path, headers={"If-None-Match": 'W/"other"'}).status_code == 200


def test_fields(client: TestClient) -> None:
    answer = client.get(f"{AT}/fields").json()
    fields = {field["name"]: field for field in answer["fields"]}
    assert fields["lang"]["kind"] == "choice" and fields["lang"]["lists"]


def test_counts_are_of_the_question(client: TestClient) -> None:
    def count(**request: object) -> dict[str, Any]:
        response = client.post(f"{AT}/count", json=request)
        assert response.status_code == 200, response.text
        return response.json()

    everything = count(fields={"lang": None})
    assert everything["total"] == 3 and everything["best"] is None
    words = count(query="bee", mode="text", fields={"lang": None, "year": "year > 3000"})
    assert words["total"] == 1 and not words["at_least"]
    assert sum(value["count"] for value in words["facets"]["lang"]) == 1
    assert words["facets"]["year"] == []
    assert (
        count(query="bee", mode="vector", fields={"lang": None})["facets"] == everything["facets"]
    )
    assert count(query="zeeee", mode="text")["total"] == 1  # eeeee in its place
    assert count(query="zeeee", mode="text", typo_tolerance=False)["total"] == 0
    assert client.post(f"{AT}/count", json={"where": "year >"}).status_code == 422


def test_it_is_said_that_counts_are_of_the_best(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_routes, "BEST", 2)
    body = {"query": "bee", "mode": "vector", "fields": {"lang": None}, "where": "year = 2016"}
    answer = client.post(f"{AT}/count", json=body).json()  # the field is counted without the filter
    assert (answer["total"], answer["best"]) == (1, 2)
    body["fields"] = {"lang": "year = 2016"}
    assert client.post(f"{AT}/count", json=body).json()["best"] is None


def test_counting_needs_no_right_to_write(serve: Serve) -> None:
    assert serve(READER).post(f"{AT}/count", json={"query": "bee"}).status_code == 200


def test_similar(client: TestClient) -> None:
    body = {"key": "a/b c", "k": 5, "where": "year > 0", "texts": False}
    hits = client.post("/v1/search/similar", json=body).json()["hits"]
    assert {hit["key"] for hit in hits} == {"bee", "cat"} and "text" not in hits[0]
    assert client.post("/v1/search/similar", json={"key": "none"}).status_code == 422
    for body in ({}, {"key": "bee", "keys": ["bee"]}, {"keys": []}, {"keys": ["bee"] * 101}):
        assert client.post("/v1/search/similar", json=body).status_code == 422
    body = {"keys": ["bee", "cat"], "texts": False}
    (hit,) = client.post("/v1/search/similar", json=body).json()["hits"]
    assert hit["key"] == "a/b c" and "text" not in hit


def test_a_map_shows_the_main_directions(client: TestClient, words: Path) -> None:
    answer = client.post(f"{AT}/map", json={"query": "a bee", "keys": ["bee", "unknown"]}).json()
    points = {point["key"]: (point["x"], point["y"]) for point in answer["points"]}
    assert set(points) == {"bee", "cat", "a/b c"}
    assert answer["explained"] == pytest.approx(1)  # three points lie in a plane
    ((x, y),) = [(hit["x"], hit["y"]) for hit in answer["hits"]]
    assert points["bee"] == pytest.approx((x, y), abs=1e-3)
    assert points["bee"] == pytest.approx(
        (answer["question"]["x"], answer["question"]["y"]), abs=1e-3
    )
    with SearchEngine.open(words) as engine:
        vectors = WordLengths().encode(["a bee", "on the cat sat"])
        assert engine["cat"].full_text == "on the cat sat"
    distance = float(np.linalg.norm(vectors[0] - vectors[1]))
    assert np.linalg.norm(np.subtract(points["bee"], points["cat"])) == pytest.approx(
        distance, abs=1e-2
    )
    again = client.post(f"{AT}/map", json={"keys": ["bee"], "version": answer["version"]}).json()
    assert again["points"] is None and again["hits"] == answer["hits"]
    client.put(f"{AT}/documents/new", json={"text": "seven77"})
    later = client.post(f"{AT}/map", json={"version": answer["version"]}).json()
    assert len(later["points"]) == 4 and later["version"] != answer["version"]


def test_a_map_of_nothing(serve: Serve, tmp_path: Path) -> None:
    SearchEngine.create(tmp_path / "empty.index", None, dim=4).close()
    client = serve(READER, collections={"words": tmp_path / "empty.index"})
    answer = client.post(f"{AT}/map", json={"keys": ["x"]}).json()
    version = answer.pop("version")
    assert version and answer == {"points": [], "question": None, "hits": [], "explained": 0.0}
    failed = client.post(f"{AT}/map", json={"query": "x"})
    assert failed.status_code == 422 and "words has no encoder" in failed.text
    assert str(tmp_path) not in failed.text


def test_a_map_reads_no_texts(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the passages of a long document it reads a few, evenly spread."""
    first, second, third = np.eye(3, dtype=np.float32)
    with SearchEngine.create(tmp_path / "long.index", None, dim=3) as engine:
        documents = [{"_id": key, "title": key.upper(), "text": "x" * 400} for key in "abc"]
        engine.add(documents, [first, second, third])
        spans = tuple((i, i + 1) for i in range(400))
        rows = np.repeat([first, second], 200, axis=0)
        engine.collection.upsert([Entry(Document("long", "y" * 400), spans, rows)])
    client = serve(collections={"words": tmp_path / "long.index"})
    monkeypatch.setattr("searchengine.server.served.MAX_TEXT", 0)  # a request that reads one fails
    answer = client.post(f"{AT}/map", json={"keys": ["long", "gone", "b"]}).json()
    points = {point["key"]: (point["x"], point["y"]) for point in answer["points"]}
    assert {point["title"] for point in answer["points"]} == {"A", "B", "C", ""}
    assert points["long"] == pytest.approx(np.add(points["a"], points["b"]) / 2, abs=0.02)
    assert [(hit["key"], hit["title"]) for hit in answer["hits"]] == [("long", ""), ("b", "B")]
