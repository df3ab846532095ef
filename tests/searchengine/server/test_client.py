"""The Python client has the methods of SearchEngine, and each of them returns what it returns."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest
from conftest import WordLengths
from server_app import listening, serving, words_collection
from server_process import READER, TOKEN

from searchengine import Client, Document, SearchEngine
from searchengine.corpus.documents import LeftOut
from searchengine.errors import (
    CollectionBusy,
    CollectionError,
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    FieldWarning,
    FilterError,
    QueryError,
    SearchTimeout,
    ServerError,
    UnknownKey,
)
from searchengine.query.request import Options
from searchengine.server import client as client_module
from searchengine.server import document_routes
from searchengine.server.client import UNAVAILABLE, ServerOptions
from searchengine.server.models import SearchRequest

OWN = {"add_bulk", "job", "encode"}
"""What a client has, and an engine has not."""
LEFT_OUT = {
    **dict.fromkeys(
        ("search", "search_batch", "asearch", "asearch_batch", "similar", "explain"),
        ("layers",),  # of the encoder, of which a server has one
    ),
    "add": ("passages", "progress", "building"),  # of an array, or of work that the server does
}
"""Arguments of an engine that a client does not have."""


def names(kind: type) -> set[str]:
    special = {"__len__", "__contains__", "__getitem__", "__iter__", "__bool__", "__repr__"}
    return {name for name in dir(kind) if not name.startswith("_") or name in special}


def parameters(call: Callable[..., Any], options: type) -> dict[str, tuple[Any, Any]]:
    """Argument → kind and default; **options are those that a class of them names."""
    found = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind == parameter.VAR_KEYWORD:
            found |= dict.fromkeys(get_type_hints(options), (parameter.KEYWORD_ONLY, None))
        else:
            found[name] = parameter.kind, parameter.default
    return found


def test_a_client_has_the_methods_of_an_engine() -> None:
    engine, client = names(SearchEngine) | {"collection", "cross_encoders"}, names(Client)
    assert client - engine == OWN
    assert engine - client == set(UNAVAILABLE)


@pytest.mark.parametrize("name", sorted((names(SearchEngine) & names(Client)) - {"__repr__"}))
def test_its_methods_take_the_same_arguments(name: str) -> None:
    engine, client = getattr(SearchEngine, name), getattr(Client, name)
    expected, found = parameters(engine, Options), parameters(client, ServerOptions)
    defaults = inspect.signature(SearchEngine.search).parameters
    if "shortlist" in expected:  # options, which the server has the defaults of
        for option in ServerOptions.__annotations__:
            expected[option] = found[option]
            if option not in ("cross_encoder", "candidates"):  # the server is started with them
                default = SearchRequest.model_fields[option].default
                unset = defaults[option].default
                assert default == unset or (default, unset) == ([], ())
    if name == "add":  # vectors alone would need the highest key
        expected["documents"] = expected["documents"][0], inspect.Parameter.empty
    for argument in LEFT_OUT.get(name, ()):
        del expected[argument]
    assert found == expected and list(found)[:3] == list(expected)[:3]
    returned = [inspect.signature(call).return_annotation for call in (engine, client)]
    texts = [str(each).replace("listing.Counts", "dict[typing.Any, int]") for each in returned]
    assert texts[0].rsplit(".", 1)[-1].strip("'>") in texts[1] or name == "facets"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    path = words_collection(tmp_path_factory.mktemp("client") / "words.index")
    with pytest.MonkeyPatch.context() as patch, serving(path, patch), listening(path) as url:
        yield url, path


@pytest.fixture(scope="module")
def shared(url: tuple[str, Path]) -> Iterator[Client]:
    """A client of a server whose collection stays as it is."""
    with Client(url[0], token=READER) as client:
        yield client


@pytest.fixture(scope="module")
def engine(url: tuple[str, Path]) -> Iterator[SearchEngine]:
    """Its collection."""
    with SearchEngine.open(url[1]) as engine:
        yield engine


@pytest.fixture
def remote(url: tuple[str, Path], words: Path) -> Iterator[Client]:
    """A client of a server whose collection changes."""
    with listening(words) as address, Client(address, token=TOKEN) as remote:
        yield remote


VECTOR = [float(x) for x in WordLengths().encode(["a bee"])[0]]
CALLS: dict[str, Callable[[Any], Any]] = {
    "search": lambda e: e.search(
        "a bee", 2, where="year > 2000", facets=("lang",)
    ),
    "search: options": lambda e: e.search(
        "a bee", np.int64(2), mode="hybrid", offset=1, phrases="required"
    ),
    "search: more options": lambda e: e.search(
        "the cat", mode="vector", min_score=0.1, group_by="lang", shortlist=3
    ),
    "search: time": lambda e: e.search("a bee", timeout=60),
    "search: vector": lambda e: e.search(VECTOR, 1, exact=True),
    "search_batch": lambda e: e.search_batch(["a bee", "the cat sat"], 1, where="year > 2000"),
    "search_batch: vectors": lambda e: e.search_batch(np.array([VECTOR, VECTOR]), 1),
    "search_batch: none": lambda e: e.search_batch([]),
    "search_batch: many": lambda e: e.search_batch(300 * ["a bee"], 2),
    "asearch": lambda e: asyncio.run(e.asearch("a bee", 2, facets=["year"])),
    "asearch_batch": lambda e: asyncio.run(e.asearch_batch(["a bee"], 2)),
    "similar": lambda e: e.similar("cat", 2, where="year > 2000", facets=["lang"]),
    "similar: several": lambda e: e.similar(["cat", "bee"]),
    "explain": lambda e: [
        e.explain("a bee", "cat", 1, mode="vector"), e.explain(VECTOR, "bee", where="year > 2000"),
    ],
    "encode_questions": lambda e: e.encode_questions(["a bee", "the cat"]).tolist(),
    "encode_documents": lambda e: e.encode_documents(["a bee"]).tolist(),
    "get": lambda e: [e.get("cat"), e.get("none"), e.get("none", 7)],
    "get: several": lambda e: [e.get(["cat", "none", "cat", "a/b c"], 7), e.get([])],
    "__getitem__": lambda e: e["a/b c"],
    "vectors": lambda e: [v if v is None else v.tolist() for v in e.vectors(["cat", "x", "bee"])],
    "keys": lambda e: [list(e.keys()), list(e.keys("year > 2015"))],
    "documents": lambda e: [
        list(e.documents()), list(e.documents("year > 2000", offset=1, limit=1)),
        list(e.documents(limit=0)), list(e.documents(limit=2)), list(e),
    ],
    "__contains__": lambda e: ["cat" in e, "none" in e, 7 in e, None in e],
    "count": lambda e: [e.count(), e.count("lang = 'ko'"), len(e), bool(e)],
    "facets": lambda e: [e.facets("lang", "year", where="year > 2000"), e.facets()],
    "synonyms": lambda e: e.synonyms(),
    "sample": lambda e: [e.sample(2, seed=3), e.sample(9, "year > 2015"), e.sample(0)],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_it_returns_what_the_engine_does(
    name: str, shared: Client, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_PAGE", 2)  # several pages, and requests for keys
    call = CALLS[name]
    found, expected = call(shared), call(engine)
    assert found == expected and type(found) is type(expected)
    if name.startswith(("search:", "asearch", "similar")) and not name.endswith("batch"):
        for attribute in ("exact", "facets", "notes"):
            assert getattr(found, attribute) == getattr(expected, attribute), attribute
        assert (found.timing is None) == (expected.timing is None)
        assert [hit.snippet for hit in found] == [hit.snippet for hit in expected]


def test_every_shared_method_was_called() -> None:
    called = {name.partition(":")[0] for name in CALLS} | {"__len__", "__bool__", "__iter__"}
    elsewhere = {"add", "update", "delete", "set_synonyms", "stats", "close", "__repr__"}
    assert called | elsewhere == names(SearchEngine) & names(Client)


def test_long_documents_come_in_several_responses(
    shared: Client, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_routes, "_BLOCK", 1)
    monkeypatch.setattr(document_routes, "_PAGE", 60)
    keys = ["cat", "none", "a/b c"]
    assert shared.get(keys) == engine.get(keys) and list(shared) == list(engine)
    assert [v is None for v in shared.vectors(keys)] == [False, True, False]


def test_stats(shared: Client, engine: SearchEngine) -> None:
    found, expected = shared.stats(), engine.stats()
    assert found.documents == 3 and found.path == "words" and found.fields == ()
    differing = [name for name in expected.__slots__ if name not in ("path", "encoder")]
    for name in differing:
        assert getattr(found, name) == getattr(expected, name), name
    assert "<Client http://127.0.0.1:" in repr(shared)


def test_encode_keeps_a_prefix(shared: Client) -> None:
    assert np.allclose(shared.encode(["a bee"], role="query"), [VECTOR])
    assert shared.encode(["a bee"], dimensions=1).tolist() == [[1.0]]
    assert len(shared.encode(3000 * ["a bee"])) == 3000 and shared.encode([]).size == 0


ERRORS: list[Callable[[Any], Any]] = [
    lambda e: e.search("a bee", where="year >"),
    lambda e: e.search("a bee", 0),
    lambda e: e.search("a bee", mode="none"),
    lambda e: e.search_batch(["a bee"], top_k=3),
    lambda e: e.search(" "),
    lambda e: e.search("a bee", timeout=-1),
    lambda e: e.search_batch("a bee"),
    lambda e: e.encode_questions("bee"),
    lambda e: e.encode_documents("bee"),
    lambda e: e.similar(None),
    lambda e: e.explain("a bee", None),
    lambda e: e.explain("a bee", "cat", 0),
    lambda e: e.keys("year >"),
    lambda e: e.documents(offset=-1),
    lambda e: e.documents(limit=-1),
    lambda e: e.sample(-1),
    lambda e: e.facets("text"),
    lambda e: e.vectors("cat"),
    lambda e: e.delete(),
    lambda e: e.delete("bee"),
    lambda e: e.update({"bee": {"text": "x"}}),
    lambda e: e.add("text"),
]


@pytest.mark.parametrize("call", ERRORS)
def test_errors_are_those_of_the_engine(
    call: Callable[[Any], Any], shared: Client, engine: SearchEngine
) -> None:
    with pytest.raises((QueryError, FilterError)) as expected:
        call(engine)
    with pytest.raises(expected.type) as found:
        call(shared)
    assert found.type is expected.type and str(found.value) == str(expected.value)


def test_errors_of_the_server_are_those_of_the_engine(shared: Client, engine: SearchEngine) -> None:
    for asked in (shared, engine):
        with pytest.raises(UnknownKey):
            asked["none"]
        with pytest.raises(QueryError, match="none"):
            asked.similar("none")
        with pytest.raises(SearchTimeout):
            asked.search("a bee", timeout=1e-9)
        with pytest.warns(FieldWarning, match="no document has a field yaer") as warned:
            assert not asked.search("a bee", where="yaer > 2000")
        assert warned[0].filename == __file__
    with pytest.raises(ServerError, match=r"may read only.*\(request [0-9a-f]{16}\)"):
        shared.add([{"_id": "x", "text": "x"}])
    address = str(shared._http.base_url)
    with Client(address, "other", token=READER) as other:
        with pytest.raises(QueryError, match="no collection 'other'") as error:
            other.get("bee")
        assert not isinstance(error.value, UnknownKey)
    with Client(address, token="wrong") as other:
        with pytest.raises(ServerError, match="a token is needed"):
            other.search("a bee")
    with pytest.raises(QueryError, match="half a character"):
        shared.search("a \ud800")
    with pytest.raises(AttributeError, match="'optimize', which needs the files"):
        shared.optimize()
    with pytest.raises(AttributeError, match="here it is sample"):
        shared.peek()


def test_documents_are_written(remote: Client, words: Path) -> None:
    records = [{"_id": "x/y", "text": "new", "n": 1}, {"_id": "bad"}, Document("z", "zz")]
    added = remote.add(iter(records), commit_every=2)
    assert (added.added, added.without_text) == (2, LeftOut(1, ["bad"]))
    assert remote.add(records).unchanged == 2 and remote.add([{"_id": 7, "text": "7"}]).added == 1
    assert remote.get(["x/y", 7]) == [Document("x/y", "new", metadata={"n": 1}), Document("7", "7")]
    remote.update({"x/y": {"n": None, "m": 2}, "z": {"m": 3}})
    assert [each.metadata for each in (remote["x/y"], remote["z"])] == [{"m": 2}, {"m": 3}]
    with pytest.raises(QueryError, match="no document 'none'"):
        remote.update({"z": {"m": 4}, "none": {}})
    assert remote.delete(["x/y", "unknown", "z"]) == 2 and "x/y" not in remote
    assert remote.delete(where="year > 2015") == 2 and remote.count() == 2
    row = np.eye(16)[15]
    assert remote.add([{"_id": "v"}, {"_id": "w", "text": "w"}], [row, None]).added == 2
    assert remote.search(row, 1)[0].key == "v"
    with SearchEngine.open(words) as engine:
        assert list(engine) == list(remote)


def test_synonyms_are_written(remote: Client) -> None:
    assert remote.synonyms() == []
    remote.set_synonyms([("one", "eins"), ["two", "zwei"]])
    assert remote.synonyms() == [["one", "eins"], ["two", "zwei"]] and remote.stats().synonyms == 2
    with pytest.raises(QueryError, match="a synonym must have"):
        remote.set_synonyms([["one", "."]])
    for wrong in (["car"], {"car": ["x"]}, None, [None]):
        with pytest.raises(QueryError, match="must be a list of"):
            remote.set_synonyms(wrong)  # type: ignore[arg-type]
    assert remote.stats().synonyms == 2
    remote.set_synonyms([])
    assert remote.synonyms() == []


def test_bad_documents_are_refused_or_left_out(remote: Client) -> None:
    records = [{"_id": "a", "text": "a"}, {"_id": "b", "text": 5}, {"_id": 5000 * "c", "text": "c"}]
    with pytest.raises(CorpusError, match="document 2"):
        remote.add(records[:2])
    with pytest.raises(CorpusError, match=r"document 2: a key has at most.*; 1 documents are"):
        remote.add(records[::2])
    added = remote.add(records, skip_bad=True)
    assert added.unchanged == 1 and added.bad.count == 2
    assert any("document 3: a key has at most 4096" in reason for reason in added.bad.first)
    with pytest.raises(EmptyCorpus):
        remote.add([])
    with pytest.raises(EmptyCorpus, match="1 without text"):
        remote.add([{"_id": "x"}])
    for rows, reason in (([], "0 vectors and more"), (3 * [None], "2 documents and more")):
        with pytest.raises(QueryError, match=reason):
            remote.add([{"_id": "x", "text": "x"}, {"_id": "y", "text": "y"}], rows)
    with pytest.raises(QueryError, match="got PosixPath"):
        remote.add([{"_id": "x", "text": "x"}], Path("folder"))  # type: ignore[arg-type]


def test_a_key_occurs_twice(remote: Client, words: Path) -> None:
    records = [{"_id": "x", "text": "a"}, {"_id": "y", "text": "b"}, {"_id": "x", "text": "c"}]
    with SearchEngine.create(words.with_name("local.index"), WordLengths()) as engine:
        for asked in (engine, remote):
            with pytest.raises(DuplicateKey, match="document 3: the key 'x' occurs twice") as error:
                asked.add(records, commit_every=2)
            assert type(error.value) is DuplicateKey and asked["x"].text == "a"
        records += [Document("z", "d"), Document("x", "e")]
        records += 2 * [Document("w", "f", derived=True)]
        found, expected = (
            asked.add(records, skip_bad=True, commit_every=3) for asked in (remote, engine)
        )
    assert found == expected and found.bad.count == 2 and found.repeated.first == ["w"]


def test_documents_are_added_in_a_job(remote: Client) -> None:
    records = [{"_id": f"n{i}", "text": f"n {i}"} for i in range(30)]
    job = remote.add_bulk(iter([*records, {"_id": 5000 * "c", "text": "c"}]), commit_every=10)
    states: list[dict[str, Any]] = []
    added = job.wait(60, progress=states.append)
    assert added.added == 30 and added.bad.count == 1 and "a key has at most" in added.bad.first[0]
    assert states[-1]["state"] == "done" and remote.count() == 33
    assert remote.job(job.id) == job and job.status()["lines"] == 31
    job.cancel()  # it has ended
    with pytest.raises(QueryError, match="no job 'unknown'"):
        remote.job("unknown")
    with pytest.raises(CorpusError, match="document 2"):
        remote.add_bulk([{"_id": "x", "text": "x"}, {"_id": "y", "text": 5}])
    assert "x" not in remote


def test_a_job_that_does_not_end_well(remote: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"state": "running", "error": None, "documents": 3}
    monkeypatch.setattr(remote, "_get", lambda path: status)
    with pytest.raises(SearchTimeout, match=r"job 1 has not ended within 0\.01 seconds"):
        remote.job("1").wait(0.01)
    status["state"] = "cancelled"
    with pytest.raises(ServerError, match="job 1 cancelled: 3 documents are stored"):
        remote.job("1").wait()
    status |= {"state": "failed", "error": "the disk is full"}
    with pytest.raises(ServerError, match="job 1 failed: the disk is full"):
        remote.job("1").wait()


def test_the_only_collection_is_meant(
    url: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(url[0], token=READER) as client:
        for listed, reason in (("ab", "it has a, b"), ("", "it has none that may be read")):
            monkeypatch.setattr(client, "_get", lambda _, listed=listed: {"collections": [
                {"name": name} for name in listed
            ]})  # fmt: skip
            with pytest.raises(QueryError, match=reason):
                client.get("x")


def test_a_client_is_closed(url: tuple[str, Path]) -> None:
    with Client(url[0], token=READER) as client:
        assert client.search("a bee")
    for call in (
        lambda: client.get("x"),
        lambda: client.search("a bee"),
        lambda: asyncio.run(client.asearch("a bee")),
    ):
        with pytest.raises(CollectionError, match="is closed; make another one"):
            call()


def test_a_token_that_no_header_can_carry() -> None:
    with pytest.raises(QueryError, match="token must be ASCII"):
        Client("http://localhost", token="tökén")


def test_nobody_listens() -> None:
    with Client("http://127.0.0.1:1", "words", timeout=5) as client:
        with pytest.raises(ServerError, match="cannot be reached"):
            client.search("a bee")
        with pytest.raises(ServerError, match="cannot be reached"):
            client.add([{"_id": "x", "text": "x"}])


class Answers:
    """A stand-in for the HTTP client, which raises or returns one answer after the other."""

    base_url, is_closed = "http://localhost", False

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent = list(answers), 0

    def request(self, *_: Any, **__: Any) -> Any:
        self.sent += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def refusal(status: int, code: str | None = None, **headers: str) -> Any:
    error = {"type": "unavailable", "message": "no", "code": code, "id": "0"}
    return SimpleNamespace(
        status_code=status, headers=headers, url="u", json=lambda: {"error": error}
    )


OK = SimpleNamespace(status_code=200, headers={}, json=lambda: {"deleted": 1, "documents": [None]})


def test_only_what_is_safe_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import httpx2

    waited: list[float] = []
    monkeypatch.setattr("searchengine.server.client.time.sleep", waited.append)
    client = Client("http://localhost", "words")
    client._http.close()

    def sent(call: Callable[[], Any], *answers: Any) -> int:
        client._http = http = Answers(*answers)  # type: ignore[assignment]
        call()
        return http.sent

    busy = refusal(503, "collection_busy", **{"retry-after": "2"})
    assert sent(lambda: client.delete(["x"]), refusal(429, **{"retry-after": "2"}), busy, OK) == 3
    assert waited == [2, 2]
    with pytest.raises(CollectionBusy):
        sent(lambda: client.delete(["x"]), *(9 * [busy]))
    assert len(waited) == 2 + 3
    with pytest.raises(ServerError, match="no"):  # it would be past the time limit of the client
        sent(lambda: client.delete(["x"]), refusal(429, **{"retry-after": "61"}))
    with pytest.raises(SearchTimeout):  # it would be as slow again
        sent(lambda: client.search("a bee"), refusal(503, "search_timeout"))
    broken = httpx2.ReadError("broken")
    assert sent(lambda: client.get("x"), broken, OK) == 2
    for call, answers in (
        (lambda: client.get("x"), (broken, broken)),
        (lambda: client.delete(["x"]), (broken,)),  # it may have been done
        (lambda: client.add_bulk([{"_id": "x", "text": "x"}]), (busy,)),  # its body is gone
    ):
        with pytest.raises((ServerError, CollectionBusy)):
            sent(call, *answers)
        assert not client._http.answers  # type: ignore[attr-defined]
    late = httpx2.ReadTimeout("late")
    with pytest.raises(SearchTimeout, match="within 3 seconds"):
        sent(lambda: client.search("a bee", timeout=3), late)
    with pytest.raises(ServerError, match="has not answered within 60 seconds"):
        sent(lambda: client.search("a bee"), late)
    client.close()
