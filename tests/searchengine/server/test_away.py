"""Collections that cannot be read: the others go on, and metrics and /readyz say which."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from server_process import Server, running, vectors_collection
from starlette.testclient import TestClient
from tiny_model import static_table, write_model2vec

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.cli.serve import of_collections
from searchengine.errors import EncoderMismatch, QueryError
from searchengine.server import served

Serve = Callable[..., TestClient]
Sample = tuple[str, tuple[tuple[str, str], ...]]


def metrics(text: str) -> dict[Sample, float]:
    """Name and labels → value, as Prometheus reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> Sample:
    return name, tuple(sorted(labels.items()))


def damaged_and_mended(folder: Path) -> tuple[Path, Path]:
    """A collection without its database, and where that is kept."""
    path = vectors_collection(folder / "vectors.index")
    kept = folder / "kept.db"
    (path / "documents.db").rename(kept)
    return path, kept


def test_collections_of_a_server_may_have_an_encoder_of_their_own() -> None:
    two = {"a": Path("a"), "b": Path("b")}
    assert of_collections(["b=x/y"], two) == {"b": "x/y"}
    assert of_collections(["x"], {"a": Path("a")}) == {"a": "x"}
    with pytest.raises(QueryError, match="--encoder x: name its collection, one of a, b: "):
        of_collections(["x"], two)
    with pytest.raises(QueryError, match="--encoder c=x: name its collection, one of a, b"):
        of_collections(["c=x"], two)


def test_questions_are_encoded_by_the_encoder_that_is_named(serve: Serve, tmp_path: Path) -> None:
    path = vectors_collection(tmp_path / "vectors.index")
    with SearchEngine.open(path) as engine:
        dim = engine.stats().dim
    model = write_model2vec(tmp_path / "model", embeddings=static_table(dim))
    client = serve(collections={"vectors": path}, encoders={"vectors": str(model)})
    search = {"collection": "vectors", "query": "a whale", "mode": "vector", "k": 1}
    assert len(client.post("/v1/search", json=search).json()["hits"]) == 1


def wait_for(client: TestClient, status: int, path: str) -> None:
    end = time.monotonic() + 30
    while client.get(path).status_code != status:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_damaged_collection_does_not_stop_the_others(
    serve: Serve,
    words: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(served, "AGAIN", 0.05)
    path, kept = damaged_and_mended(tmp_path)
    client = serve(collections={"words": words, "vectors": path})
    search = {"collection": "words", "query": "a bee"}
    assert client.post("/v1/search", json=search).json()["hits"]
    ready = client.get("/readyz")
    assert ready.status_code == 503 and "vectors" in ready.json()["problems"]
    for response in (
        client.get("/v1/collections/vectors/documents/1"),
        client.put("/v1/collections/vectors/documents/1", json={"text": "x"}),
        client.post("/v1/search", json=search | {"collection": "vectors"}),
    ):
        assert response.status_code == 503 and response.headers["retry-after"]
        message = response.json()["error"]["message"]
        assert message.startswith("the collection cannot be opened: ")
        assert "documents.db" in message and str(tmp_path) not in message
    listed = client.get("/v1/collections").json()["collections"]
    assert [(each["name"], each["documents"]) for each in listed] == [
        ("words", 3),
        ("vectors", None),
    ]
    numbers = metrics(client.get("/metrics").text)
    assert numbers[of("searchengine_documents", collection="words")] == 3
    assert math.isnan(numbers[of("searchengine_documents", collection="vectors")])
    assert numbers[of("searchengine_up", collection="words")] == 1
    assert numbers[of("searchengine_up", collection="vectors")] == 0
    said = [each for each in caplog.messages if "vectors cannot be read" in each]
    assert len(said) == 1 and str(tmp_path) in said[0]
    kept.rename(path / "documents.db")
    wait_for(client, 200, "/readyz")
    assert client.get("/v1/collections/vectors/documents/1").json()["text"] == "w1"
    assert metrics(client.get("/metrics").text)[of("searchengine_up", collection="vectors")] == 1


def test_a_folder_that_goes_away(
    serve: Serve, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "REFRESH", 0.02)
    path = vectors_collection(tmp_path / "vectors.index")
    client = serve(collections={"words": words, "vectors": path})
    up = of("searchengine_up", collection="vectors")
    assert metrics(client.get("/metrics").text)[up] == 1
    path.rename(tmp_path / "elsewhere")
    end = time.monotonic() + 30
    while (numbers := metrics(client.get("/metrics").text))[up] == 1:
        assert time.monotonic() < end
    assert numbers[of("searchengine_documents", collection="words")] == 3
    (tmp_path / "elsewhere").rename(path)
    while metrics(client.get("/metrics").text)[up] == 0:
        assert time.monotonic() < end


def test_a_server_of_damaged_collections_only_does_not_start(tmp_path: Path) -> None:
    path, _ = damaged_and_mended(tmp_path)
    result = CliRunner().invoke(cli, ["serve", str(path)])
    assert result.exit_code == 2 and "documents.db" in result.output


def test_metrics_of_a_real_server_s_processes(tmp_path: Path) -> None:
    vectors = vectors_collection(tmp_path / "vectors.index")

    def read(server: Server) -> dict[Sample, float]:
        with server.client() as client:
            assert client.get("/v1/collections/vectors/stats").status_code == 200
            return metrics(client.get("/metrics").text)

    for workers in (1, 2):
        with running(tmp_path, [vectors], "--workers", workers) as server:
            numbers = read(server)
            assert server.stop() == 0
        if workers == 1:  # prometheus-client has none of several
            assert 5e7 < numbers[of("process_resident_memory_bytes")] < 2e9
            assert 5 < numbers[of("process_open_fds")] < numbers[of("process_max_fds")]
        route = "/v1/collections/{name}/stats"
        labels = {"route": route, "method": "GET", "collection": "vectors"}
        assert numbers[of("searchengine_requests_total", **labels, status="200")] == 1
        assert numbers[of("searchengine_request_seconds_count", **labels)] == 1


def test_a_former_engine_is_closed(
    serve: Serve, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reindex its encoder takes no memory, once requests that use it have ended."""
    monkeypatch.setattr(served, "LATE", 0.0)
    closed: list[SearchEngine] = []
    close = SearchEngine.close
    monkeypatch.setattr(SearchEngine, "close", lambda self: closed.append(self) or close(self))
    client = serve(timeout=0.2)
    collection = client.app._app.app.state.collections["words"]
    former, refresh = collection.engine, SearchEngine.refresh

    def replaced(self: SearchEngine) -> None:
        if self is former:
            raise EncoderMismatch("another one")
        refresh(self)

    monkeypatch.setattr(SearchEngine, "refresh", replaced)
    end = time.monotonic() + 30
    while former not in closed:
        assert client.post("/v1/search", json={"query": "a bee"}).status_code == 200
        assert time.monotonic() < end
    assert collection.engine is not former
