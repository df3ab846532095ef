"""The Python client returns what the engine does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from server_process import TOKEN
from starlette.testclient import TestClient

from searchengine import Client, Document, SearchEngine
from searchengine.errors import QueryError, ServerError, UnknownKey


@pytest.fixture
def remote(client: TestClient) -> Iterator[Client]:
    """A Client that sends its requests to the application in this process."""
    with Client("http://localhost", token=TOKEN) as remote:
        remote._http.close()
        remote._http = client  # a httpx2.Client too
        yield remote


def test_it_returns_what_the_engine_does(remote: Client, words: Path) -> None:
    options: dict[str, Any] = {"where": "year > 2000", "facets": ("lang",), "as_you_type": True}
    vector = WordLengths().encode(["a bee"])[0]
    with SearchEngine.open(words) as engine:
        expected = engine.search("a be", 2, **options)
        batch = engine.search_batch(["a bee", "the cat sat"], 1)
        by_vector = engine.search(vector, 1, exact=True)
    hits = remote.search("a be", 2, **options)
    assert "text" in hits[0].scores
    assert hits == expected and hits.facets == expected.facets and hits.exact == expected.exact
    assert hits[0].snippet == expected[0].snippet and hits.timing is not None
    assert remote.search_batch(["a bee", "the cat sat"], 1) == batch
    assert remote.search(vector, 1, exact=True)[0].key == by_vector[0].key
    assert remote.search_batch([vector, vector], 1)[1][0].key == by_vector[0].key
    assert np.allclose(remote.encode(["a bee"], role="query"), [vector])
    assert remote.encode(["a bee"], dimensions=1).tolist() == [[1.0]]
    assert remote.stats()["documents"] == 3


def test_documents(remote: Client) -> None:
    added = remote.add(
        [{"_id": "x/y", "text": "new", "n": 1}, Document("z", "zz"), {"_id": "bad"}],
        commit_every=2,
    )
    assert added.added == 2 and len(added.bad) == 1 and "neither text" in added.bad[0]
    assert remote.get("x/y") == Document("x/y", "new", metadata={"n": 1})
    remote.update("x/y", {"n": None, "m": 2})
    found = remote.get("x/y")
    assert found is not None and found.metadata == {"m": 2}
    assert remote.delete(["x/y", "unknown"]) == 1 and remote.get("x/y") is None
    assert remote.delete(where="year > 2015") == 2
    row = np.eye(16)[15]
    assert (
        remote.add([{"_id": "v", "title": "v"}, {"_id": "w", "text": "w"}], [row, None]).added == 2
    )
    assert remote.search(row, 1)[0].key == "v"


def test_errors_are_those_of_the_engine(remote: Client, client: TestClient) -> None:
    for options in ({"where": "year >"}, {"k": 0}, {"mode": "none"}):
        with pytest.raises(QueryError, match=r"\(request [0-9a-f]{16}\)"):
            remote.search("a bee", **options)  # type: ignore[arg-type]
    with pytest.raises(UnknownKey):
        remote.update("unknown", {"n": 1})
    elsewhere = Client("http://localhost", "other")
    elsewhere._http = client
    with pytest.raises(QueryError, match="no collection 'other'") as error:
        elsewhere.get("bee")
    assert not isinstance(error.value, UnknownKey)  # for which `get` returns None
    with pytest.raises(QueryError, match="either a list of keys or a filter"):
        remote.delete("bee")
    client.headers["Authorization"] = "Bearer wrong"
    with pytest.raises(ServerError, match="a token is needed"):
        remote.search("a bee")
    with pytest.raises(ServerError, match="a token is needed"):
        remote.add([{"_id": "x", "text": "x"}])


def test_nobody_listens() -> None:
    with Client("http://127.0.0.1:1", "words", timeout=5) as client:
        with pytest.raises(ServerError, match="cannot be reached"):
            client.search("a bee")
        with pytest.raises(ServerError, match="was cut off"):
            client.add([{"_id": "x", "text": "x"}])


def test_a_request_to_a_busy_server_is_repeated(
    remote: Client, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("searchengine.server.client.time.sleep", waited.append)
    real, busy = client.request, [429, 503]

    class Busy:
        def __init__(self) -> None:
            self.headers = {"retry-after": "2"}
            self.status_code = busy.pop()

    def request(*arguments: Any, **options: Any) -> Any:
        return Busy() if busy else real(*arguments, **options)

    monkeypatch.setattr(client, "request", request)
    assert remote.search("a bee", 1)[0].key == "bee"
    assert waited == [2.0, 2.0] and not busy
