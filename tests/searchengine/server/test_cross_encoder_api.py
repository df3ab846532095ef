"""A cross-encoder over HTTP: used if the server has one and the request asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_app import Serve
from server_process import running, vectors_collection
from starlette.testclient import TestClient
from tiny_model import write_cross_encoder, write_plain

from searchengine import SearchEngine
from searchengine.engine import CrossEncoding
from searchengine.server import server_settings as limits
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

CPU = RuntimeConfig("torch", "fp32", "cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_cross_encoder(tmp_path_factory.mktemp("models") / "cross"))


@pytest.fixture
def client(serve: Serve, model: str) -> Iterator[TestClient]:
    """Its cross-encoder reads two documents of a question at most."""
    return serve(cross_encoding=CrossEncoding(model, 2), runtime=CPU)


def searched(client: TestClient, **asked: Any) -> dict[str, Any]:
    response = client.post("/v1/search", json=asked)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def refusal(client: TestClient, address: str = "/v1/search", **asked: Any) -> str:
    response = client.post(address, json=asked)
    assert response.status_code == 422, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_only_who_asks_gets_its_order(client: TestClient, words: Path, model: str) -> None:
    plain = searched(client, query="a bee", k=2, mode="vector")
    assert plain["timing"]["cross_encode"] == 0
    assert all("cross_encoder" not in hit["scores"] for hit in plain["hits"])
    again = searched(client, query="a bee", k=2, mode="vector", cross_encoder=True)
    assert again["timing"]["cross_encode"] > 0
    with SearchEngine.open(words, runtime=CPU) as engine:
        hits = engine.search("a bee", 2, mode="vector", cross_encoder=model, candidates=2)
    assert [hit["key"] for hit in again["hits"]] == [hit.key for hit in hits]
    assert again["hits"][0]["score"] == pytest.approx(hits[0].score, abs=0.02)
    before = {hit["key"]: hit["score"] for hit in plain["hits"]}
    for hit in again["hits"]:
        assert hit["scores"]["vector"] == pytest.approx(before[hit["key"]], abs=1e-5)
        assert hit["scores"]["cross_encoder"] == hit["score"] != before[hit["key"]]
    first = searched(client, query="a bee", k=1, mode="vector", cross_encoder=True, candidates=1)
    assert first["hits"][0]["key"] == plain["hits"][0]["key"]  # it has read no other
    batch = {"queries": ["a bee", "the cat"], "k": 2, "mode": "vector", "cross_encoder": True}
    results = client.post("/v1/search/batch", json=batch).json()["results"]
    assert [hit["key"] for hit in results[0]["hits"]] == [hit["key"] for hit in again["hits"]]
    assert "cross_encoder" in results[1]["hits"][0]["scores"]
    metrics = client.get("/metrics").text
    assert 'searchengine_stage_seconds_count{stage="cross_encode"}' in metrics


def test_a_request_may_not_ask_for_more(
    client: TestClient, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"query": "a bee", "k": 2, "mode": "vector", "cross_encoder": True}
    assert refusal(client, **asked, candidates=3) == "candidates must be at most 2, got 3"
    limit = "orders the best 2 documents, and offset + k must not exceed them, got 3"
    assert limit in refusal(client, **asked | {"k": 3})
    assert limit in refusal(client, **asked, offset=1)
    assert "candidates needs cross_encoder: true" in refusal(client, query="a bee", candidates=1)
    assert "questions as texts, got vectors" in refusal(
        client, vector=[1.0] * 16, k=2, cross_encoder=True
    )
    assert "valid boolean" in refusal(client, query="a bee", cross_encoder="other/model")
    monkeypatch.setattr("searchengine.server.served.MAX_PAIRS", 5)
    many = {"queries": ["a bee"] * 3, "k": 1, "cross_encoder": True}
    message = refusal(client, "/v1/search/batch", **many)
    assert message.startswith("questions times candidates must be at most 5, got 6; send fewer")
    without = serve()
    assert "start it with --cross-encoder MODEL" in refusal(without, **asked)
    assert limits.MAX_PAIRS >= 1000


def test_the_list_of_collections_says_whether_there_is_one(
    client: TestClient, serve: Serve
) -> None:
    for server, candidates in ((client, 2), (serve(), None)):
        (collection,) = server.get("/v1/collections").json()["collections"]
        assert collection["candidates"] == candidates


@pytest.mark.long
def test_a_real_server(tmp_path: Path, model: str) -> None:
    """The command's options; the collection has no encoder, so words rank."""
    collection = vectors_collection(tmp_path / "v.index", 5)
    options = ["--cross-encoder", model, "--candidates", 3, "--precision", "fp32"]
    with running(tmp_path, [collection], *options) as server:
        with server.client() as client:
            asked = {"query": "w1", "k": 3, "mode": "text"}
            plain = client.post("/v1/search", json=asked).json()
            asked["cross_encoder"] = True
            again = client.post("/v1/search", json=asked).json()
            refused = client.post("/v1/search", json={**asked, "k": 4})
            assert refused.status_code == 422 and "must not exceed them, got 4" in refused.text
        assert server.stop() == 0
    assert plain["timing"]["cross_encode"] == 0 < again["timing"]["cross_encode"]
    assert again["hits"][0]["scores"]["text"] == plain["hits"][0]["score"]
    assert again["hits"][0]["scores"]["cross_encoder"] == again["hits"][0]["score"]


def test_a_model_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    from command_line import run

    collection = vectors_collection(tmp_path / "v.index")
    encoder = write_plain(tmp_path / "plain")
    refused = run("serve", collection, "--cross-encoder", encoder, "--port", "0")
    assert refused.returncode == 2 and refused.stdout == ""
    assert "which scores no pairs" in refused.stderr.splitlines()[-1]
    refused = run("serve", collection, "--candidates", "3")
    assert "--candidates needs --cross-encoder MODEL" in refused.stderr
