"""The page's files, and what it asks for: values to filter by, and a map."""

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

from searchengine import SearchEngine

Serve = Callable[..., TestClient]
FOLDER = files("searchengine.server") / "page"
AT = "/v1/collections/words"


def test_the_page_needs_no_token_and_no_other_host(serve: Serve) -> None:
    client = serve(token=None)
    for name in ["", *(f"page/{each.name}" for each in FOLDER.iterdir())]:
        response = client.get(f"/{name}")
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy
        text = response.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\seval\(", text), name
    assert "<script>" not in client.get("/").text and "style=" not in client.get("/").text


@pytest.mark.parametrize(
    "name", ["other.js", "..%2Fapp.py", "%2e%2e/app.py", "/etc/passwd", "page.js%00", ""]
)
def test_no_name_reaches_the_file_system(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


def test_fields_and_their_values(client: TestClient) -> None:
    more = {"when": ["2020-05-01"], "who": {"name": "x" * 70}, "n": 1, "long": "y" * 300, "o": {}}
    for i in range(15):
        client.put(f"{AT}/documents/{i}", json={"text": "a bee", **more, "n": i})
    fields = {field.pop("name"): field for field in client.get(f"{AT}/fields").json()["fields"]}
    unbounded = {"low": None, "high": None}
    assert fields == {
        "year": {"kind": "choice", "lists": False, **unbounded},
        "lang": {"kind": "choice", "lists": True, **unbounded},
        "when": {"kind": "date", "lists": True, "low": "2020-05-01", "high": "2020-05-01"},
        "who.name": {"kind": "text", "lists": False, **unbounded},
        "n": {"kind": "number", "lists": False, "low": 0, "high": 14},
    }
    counted = client.post(f"{AT}/facets", json={"fields": ["lang"], "where": "year > 2012"}).json()
    counts = [{"value": "en", "count": 2}, {"value": "ko", "count": 1}]
    assert counted == {"total": 2, "facets": {"lang": counts}}
    assert client.post(f"{AT}/facets", json={}).json() == {"total": 18, "facets": {}}
    assert client.post(f"{AT}/facets", json={"where": "year >"}).status_code == 422


def test_a_map_shows_the_main_directions(client: TestClient, words: Path) -> None:
    answer = client.post(f"{AT}/map", json={"query": "a bee", "keys": ["bee", "unknown"]}).json()
    points = {point["key"]: (point["x"], point["y"]) for point in answer["points"]}
    assert set(points) == {"bee", "cat", "a/b c"}
    assert answer["explained"] == pytest.approx(1)  # three points lie in a plane
    for place in (*answer["hits"], answer["question"]):
        assert points["bee"] == pytest.approx((place["x"], place["y"]), abs=1e-3)
    vectors = WordLengths().encode(["a bee", "on the cat sat"])
    distance = float(np.linalg.norm(np.subtract(points["bee"], points["cat"])))
    assert distance == pytest.approx(float(np.linalg.norm(vectors[0] - vectors[1])), abs=1e-2)
    again = client.post(f"{AT}/map", json={"keys": ["bee"], "version": answer["version"]}).json()
    assert again["points"] is None and again["hits"] == answer["hits"]
    client.put(f"{AT}/documents/new", json={"text": "seven77"})
    later = client.post(f"{AT}/map", json={"version": answer["version"]}).json()
    assert len(later["points"]) == 4 and later["version"] != answer["version"]


def test_a_map_of_nothing(serve: Serve, tmp_path: Path) -> None:
    SearchEngine.create(tmp_path / "empty.index", None, dim=4).close()
    client = serve(READER, collections={"words": tmp_path / "empty.index"})
    answer: dict[str, Any] = client.post(f"{AT}/map", json={"keys": ["x"]}).json()
    version = answer.pop("version")
    assert version and answer == {"points": [], "question": None, "hits": [], "explained": 0.0}
    failed = client.post(f"{AT}/map", json={"query": "x"})
    assert failed.status_code == 422 and "words has no encoder" in failed.text
    assert str(tmp_path) not in failed.text
