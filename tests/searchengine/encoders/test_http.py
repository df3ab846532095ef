"""An encoder behind a URL, against a real server on loopback that fails in every way."""

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from conftest import WordLengths
from loopback import EmbeddingServer, Fault

from searchengine import HttpEncoder, SearchEngine
from searchengine.encoders import http
from searchengine.encoders.loading import load_given
from searchengine.errors import EndpointError

TEXTS = [" ".join(["a"] * (i % 7 + 1) + ["bee"] * (i % 5)) for i in range(100)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    monkeypatch.setattr(http, "FIRST_WAIT", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def encoder(server: EmbeddingServer) -> HttpEncoder:
    """Probed, so that the server's next request is the test's."""
    encoder = HttpEncoder(server.url, "words")
    assert encoder.dim == 8
    server.requests.clear()
    return encoder


def failure(encoder: HttpEncoder, texts: list[str] | None = None) -> str:
    with pytest.raises(EndpointError) as raised:
        encoder.encode(["a bee"] if texts is None else texts)
    assert "\n" not in str(raised.value) and encoder.url in str(raised.value)
    return str(raised.value)


# ------------------------------------------------------------------------------------- requests


def test_batches_in_order_and_not_too_many_at_once(server: EmbeddingServer) -> None:
    server.delay, done, texts = 0.02, [], 3 * TEXTS
    encoder = HttpEncoder(server.url, "words")
    vectors = encoder.encode(texts, role="document", on_batch=done.append)
    assert np.abs(vectors - WordLengths(8).encode(texts)).max() < 1e-6
    assert 1 < server.most <= 4
    assert sum(done) == 300 and max(len(each["input"]) for each in server.requests) == http.BATCH
    assert encoder.encode([]).shape == (0, 8)


def test_what_is_sent(server: EmbeddingServer) -> None:
    prompts = {"query_prompt": "query: ", "document_prompt": "passage: "}
    encoder = HttpEncoder(f"{server.url}/embeddings/", "words", 5, **prompts)
    assert encoder.encode(["a bee"], role="document").shape == (1, 5)
    encoder.encode(["a bee"], role="query")
    first, second = (body for body in server.requests if len(body["input"]) == 1)
    sent = {"model": "words", "encoding_format": "float", "dimensions": 5}
    assert first == {**sent, "input": ["passage: a bee"]}
    assert second == {**sent, "input": ["query: a bee"]}
    assert set(server.keys) == {None}


@pytest.mark.parametrize(
    "fault", [Fault(429), Fault(503, headers={"Retry-After": "0"}), Fault(content=None)]
)
def test_a_passing_failure_is_repeated(
    server: EmbeddingServer, encoder: HttpEncoder, fault: Fault
) -> None:
    server.faults.extend([fault, fault])
    assert np.abs(encoder.encode(["a bee"]) - WordLengths(8).encode(["a bee"])).max() < 1e-6
    assert len(server.requests) == 3


# -------------------------------------------------------------------------------------- failures


def test_one_clear_error_at_the_end(server: EmbeddingServer, encoder: HttpEncoder) -> None:
    busy = json.dumps({"error": {"message": "too many\n requests", "type": "x"}}).encode()
    server.faults.extend([Fault(429, busy)] * 6)
    message = failure(encoder)
    assert "answered 429" in message and "too many" in message
    assert "6 times; check that it runs, or try later" in message
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(400, b'{"error": "no such model"}'), "400 .*no such.*; correct the URL, the model"),
        (Fault(401, b'{"error": "no"}'), "401 .*no.*; check the key in OPENAI_API_KEY"),
        (Fault(307, headers={"Location": "http://x/"}), "answered 307 .*; correct the URL"),
    ],
)
def test_no_repetition_where_it_cannot_help(
    server: EmbeddingServer, encoder: HttpEncoder, fault: Fault, message: str
) -> None:
    server.faults.append(fault)
    with pytest.raises(EndpointError, match=message):
        encoder.encode(["a bee"])
    assert len(server.requests) == 1


def rows(*embeddings: Any) -> Any:
    """An edit: these embeddings, in order."""
    return lambda _: {"data": [{"index": i, "embedding": e} for i, e in enumerate(embeddings)]}


def indices(*numbers: Any) -> Any:
    return lambda _: {"data": [{"index": i, "embedding": [1.0] * 8} for i in numbers]}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (rows([1.0] * 8), "expected 2 embeddings"),
        (indices(0, 0), "expected 2 embeddings"),
        (rows([1.0] * 8, [1.0] * 7), "2 embeddings of one width"),
        (
            rows([1.0] * 5, [1.0] * 5),
            r"of shape \(2, 8\) for 2 texts, got float32 of shape \(2, 5\)",
        ),
        (rows([1.0] * 8, [1e300] * 8), "expected 2 embeddings"),
        (rows([1.0] * 8, [float("nan")] * 8), "expected 2 embeddings"),
        (rows([1.0] * 8, "QUJD"), "expected 2 embeddings"),
        (lambda _: {"error": "x"}, "error.* expected 2 embeddings"),
        (lambda _: [1], "expected 2 embeddings"),
    ],
)
def test_a_wrong_answer_is_refused(
    server: EmbeddingServer, encoder: HttpEncoder, edit: Any, message: str
) -> None:
    server.faults.append(Fault(edit=edit))
    with pytest.raises(EndpointError, match=message):
        encoder.encode(["a bee", "bees"])
    assert encoder.encode(["a bee"]).shape == (1, 8)


# --------------------------------------------------------------------------- settings and the key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "ftp://h/v1"}, "expected a URL"),
        ({"url": "http://h:x/v1"}, "expected a URL"),
        ({"url": "https://me:secret@h/v1"}, "with no password"),
        ({"url": "https://h/v1?key=secret"}, r"with no password, \? or #"),
        ({"model": " "}, "needs the name of a model"),
        ({"dimensions": 1.5}, "dimensions must be a whole number from 1, got 1.5"),
    ],
)
def test_wrong_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EndpointError, match=message) as raised:
        HttpEncoder(**{"url": "http://h/v1", "model": "m"} | arguments)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "source",
    [
        "https://h/v1#m",
        "https://h/v1#BAAI/bge:latest&dimensions=256",
        "http://h:8/v1#a%26b%23c&key_env=K&query_prompt=query: &document_prompt=%26 %3D",
    ],
)
def test_a_source_is_read_back(source: str) -> None:
    encoder = load_given(source)
    assert isinstance(encoder, HttpEncoder) and encoder.source == source


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://h/v1", "needs the name of a model"),
        ("https://h/v1#m&size=3", "'size' is not a setting; choose from dimensions, document"),
        ("https://h/v1#m&dimensions=x", "dimensions must be a whole number .*, got 'x'"),
    ],
)
def test_a_wrong_source(source: str, message: str) -> None:
    with pytest.raises(EndpointError, match=message):
        load_given(source)


def test_the_key_is_neither_stored_nor_shown(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("MY_KEY", "sk-secret-123")
    encoder = HttpEncoder(server.url, "words", key_env="MY_KEY")
    with SearchEngine.create(tmp_path / "c", encoder) as engine:
        engine.add([{"_id": "1", "text": "a bee"}])
        server.faults.append(Fault(401, b'{"error": "bad key sk-secret-123"}'))
        with pytest.raises(EndpointError, match=r"bad key ….*; check the key"):
            engine.search("bees")
        texts = [repr(encoder), str(vars(encoder)), caplog.text]
    assert set(server.keys) == {"Bearer sk-secret-123"}
    files = [path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert not any(b"sk-secret" in content for content in files)
    assert not any("sk-secret" in text for text in texts)


@pytest.mark.parametrize("key", ["sk-\nsecret", "sk-ésecret"])
def test_a_key_that_no_header_may_have(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    message = failure(HttpEncoder(server.url, "words"))
    assert "variable OPENAI_API_KEY must hold a key of ASCII" in message and "secret" not in message
    assert not server.requests


@pytest.mark.parametrize("before", [0, 290])
def test_a_key_in_an_answer_is_in_no_traceback(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Nor a part of it, where a long message is cut off."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-123")
    encoder = HttpEncoder(server.url, "words")
    server.faults.append(Fault(401, json.dumps({"error": "x" * before + "sk-secret-123"}).encode()))
    with pytest.raises(EndpointError) as raised:
        encoder.encode(["a bee"])
    shown = "".join(traceback.format_exception(raised.value))
    assert "answered 401" in shown and "sk-" not in shown


def test_the_key_goes_only_to_hosts_that_the_user_named(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection from elsewhere must not choose where the key is sent."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    SearchEngine.create(tmp_path / "c", f"{server.url}#words").close()
    server.keys.clear()

    def ask(encoder: str | None = None) -> str | None:
        with SearchEngine.open(tmp_path / "c", encoder) as engine:
            engine.encoder.load().encode(["a bee"])
        return server.keys[-1]

    assert ask() is None
    server.faults.append(Fault(403))
    with pytest.raises(EndpointError, match="goes only to hosts that you name: --encoder"):
        ask()
    assert ask(f"{server.url}#words") == "Bearer sk-mine"
    for url, sends in (
        ("https://api.openai.com/v1#m", True),
        ("https://api.openai.com.x/v1#m", False),
        ("https://api.openai.com/v1#m&key_env=OTHER", False),
    ):
        assert HttpEncoder.from_source(url, is_named=False)._sends_key is sends


# ---------------------------------------------------------------------------------- command line


def test_from_the_command_line(server: EmbeddingServer, tmp_path: Path) -> None:
    """Indexed, searched and changed without naming the encoder again."""
    corpus = tmp_path / "c.jsonl"
    lines = [{"_id": str(i), "text": text} for i, text in enumerate(TEXTS)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = f"{server.url}#words&dimensions=6"
    assert run_json("index", corpus, tmp_path / "c", "--encoder", source)["added"] == 100
    assert all(body["dimensions"] == 6 for body in server.requests)
    hits = run_json("search", tmp_path / "c", "a bee", "-k", "1", "--mode", "vector")["hits"]
    assert hits[0]["text"] == "a bee" or hits[0]["score"] == pytest.approx(1, abs=1e-3)
    corpus.write_text('{"_id": "new", "text": "zzzzz"}\n')
    assert run_json("index", corpus, tmp_path / "c")["added"] == 1
    info = run("info", tmp_path / "c").stdout
    assert source in info and server.url.split("/")[2] in info
    server.encode = lambda texts: WordLengths(8).encode([text + " zzzzzz" for text in texts])
    done = run("search", tmp_path / "c", "a bee")
    assert done.returncode == 2
    assert f"built by the encoder {source} (" in done.stderr
    assert "), but that name returns other vectors now" in done.stderr
    server.faults.extend([Fault(500)] * 9)
    done = run("search", tmp_path / "c", "a bee")
    assert done.returncode == 2 and "answered 500 (), 6 times" in done.stderr
