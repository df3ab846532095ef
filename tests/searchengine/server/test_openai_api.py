"""Models and embeddings as OpenAI's API has them, asked by its own client and by LangChain's."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from lazy import Lazy, needs
from server_process import TOKEN, vectors_collection
from starlette.testclient import TestClient

Serve = Callable[..., TestClient]
openai, langchain = Lazy("openai"), Lazy("langchain_openai")
AT = "/v1/embeddings"


def refusal(client: TestClient, given: Any, **options: Any) -> dict[str, Any]:
    response = client.post(AT, json={"input": given, **options})
    assert response.status_code == 422
    error: dict[str, Any] = response.json()["error"]
    return error


def test_embeddings_have_the_shape_of_openai(client: TestClient) -> None:
    expected = WordLengths().encode(["a bee", "the cat sat"])
    asked = {"model": "words", "input": ["a bee", "the cat sat"]}
    answer = client.post(AT, json=asked).json()
    assert answer["object"] == "list" and answer["model"] == "words"
    assert [each["index"] for each in answer["data"]] == [0, 1]
    assert np.allclose([each["embedding"] for each in answer["data"]], expected)
    assert answer["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    assert answer["truncated"] == [] and answer["max_tokens"] is None

    short = client.post(AT, json={"input": "a bb", "dimensions": 1}).json()
    assert short["data"][0]["embedding"] == [1.0]  # a prefix, scaled to length 1
    coded = client.post(AT, json={"input": "a bee", "encoding_format": "base64"})
    vector = np.frombuffer(base64.b64decode(coded.json()["data"][0]["embedding"]), "<f4")
    assert np.array_equal(vector, expected[0])
    assert "at most 16" in refusal(client, "a bee", dimensions=17)["message"]
    assert "only zeros" in refusal(client, "bee", dimensions=1)["message"]


def test_errors_name_the_field_and_its_limit(client: TestClient) -> None:
    many = refusal(client, ["a"] * 2049)
    assert many["type"] == "invalid" and many["param"] == "input.texts"
    assert "at most 2048 items" in many["message"] and "2049" in many["message"]
    assert "at most 100000 characters" in refusal(client, ["a", "a" * 100_001])["message"]
    assert refusal(client, ["a", " "])["param"] == "input.texts.1"
    for wrong in ([], 5, ["a", 1], [None]):
        assert refusal(client, wrong)["param"].startswith("input.")
    assert refusal(client, "a", dimensions=99)["code"] == "query_error"
    assert len(client.post(AT, json={"input": ["a"] * 2048}).json()["data"]) == 2048


def test_what_was_cut_is_said(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder whose tokens are words, and that reads three of them, or any number."""

    def spans(self: Any, texts: list[str]) -> list[Any]:
        return [np.zeros((len(text.split()), 2), np.int32) for text in texts]

    monkeypatch.setattr(WordLengths, "token_spans", spans, raising=False)
    monkeypatch.setattr(WordLengths, "room", lambda self, role: 3, raising=False)
    client = serve()
    asked = {"input": ["a a", "a a a a a", "a a a", "a a a a"]}
    answer = client.post(AT, json=asked).json()
    assert answer["truncated"] == [1, 3] and answer["max_tokens"] == 3
    assert answer["usage"]["prompt_tokens"] == 2 + 3 + 3 + 3
    assert client.post(AT, json={**asked, "input_type": "query"}).json()["truncated"] == [1, 3]
    monkeypatch.setattr(WordLengths, "room", lambda self, role: None)
    answer = serve().post(AT, json=asked).json()
    assert answer["truncated"] == [] and answer["max_tokens"] is None
    assert answer["usage"]["prompt_tokens"] == 14


def test_models_are_the_collections_with_an_encoder(
    serve: Serve, words: Path, tmp_path: Path
) -> None:
    plain = vectors_collection(tmp_path / "plain.index")
    client = serve(collections={"words": words, "plain": plain})
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["words"]
    assert client.get("/v1/models", headers={"Authorization": "no"}).status_code == 401


def test_tokens_are_refused_and_the_way_out_is_named(client: TestClient) -> None:
    for tokens in ([1, 2], [[1], [2, 3]]):
        error = refusal(client, tokens)
        assert error["param"] == "input" and "send texts, not tokens" in error["message"]
        assert "check_embedding_ctx_length=False" in error["message"]


@needs("openai", "dev")
def test_the_client_of_openai(client: TestClient) -> None:
    ours = openai.OpenAI(
        base_url="http://localhost/v1", api_key=TOKEN, http_client=client, max_retries=0
    )
    assert [model.id for model in ours.models.list()] == ["words"]
    texts = ["a bee", "the cat sat"]
    expected = WordLengths().encode(texts)
    for options in ({}, {"encoding_format": "float"}, {"user": "someone"}):
        answer = ours.embeddings.create(model="words", input=texts, **options)
        assert np.allclose([each.embedding for each in answer.data], expected)
    assert answer.truncated == []
    answer = ours.embeddings.create(model="words", input="a bb", dimensions=1)
    assert answer.data[0].embedding == [1.0]
    with pytest.raises(openai.UnprocessableEntityError, match="at most 2048 items") as error:
        ours.embeddings.create(model="words", input=["a"] * 2049)
    assert error.value.param == "input.texts" and error.value.type == "invalid"
    with pytest.raises(openai.NotFoundError, match="no collection 'ada'"):
        ours.embeddings.create(model="ada", input="a bee")


@needs("langchain_openai", "dev")
def test_langchain_sends_texts(client: TestClient) -> None:
    options: dict[str, Any] = {"http_client": client, "api_key": TOKEN, "model": "words"}
    options |= {"base_url": "http://localhost/v1", "check_embedding_ctx_length": False}
    ours = langchain.OpenAIEmbeddings(**options)
    assert np.allclose(ours.embed_query("a bee"), WordLengths().encode(["a bee"])[0])
    texts = ["a bee", "the cat sat", "bee " * 9000]
    found = ours.embed_documents(texts)
    assert np.allclose(found, WordLengths().encode(texts), atol=1e-3)
