"""Models and embeddings as OpenAI's API has them, asked by its own client."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from cut_documents import Words
from lazy import Lazy, needs
from server_process import TOKEN
from starlette.testclient import TestClient

Serve = Callable[..., TestClient]
openai = Lazy("openai")
AT = "/v1/embeddings"


def test_embeddings_have_the_shape_of_openai(client: TestClient) -> None:
    expected = WordLengths().encode(["a bee", "the cat sat"])
    answer = client.post(AT, json={"model": "words", "input": ["a bee", "the cat sat"]}).json()
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
    assert len(client.post(AT, json={"input": ["a"] * 2048}).json()["data"]) == 2048


@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        ({"input": ["a"] * 2049}, "input", "at most 2048 items"),
        ({"input": ["a", "a" * 100_001]}, "input.1", "at most 100000 characters"),
        ({"input": ["a", " "]}, "input.1", "pattern"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": 5}, "input", "list"),
        ({"input": ["a", 1]}, "input.1", "string"),
        ({"input": [1, 2]}, "input", "send texts, not tokens"),
        ({"input": [[1], [2, 3]]}, "input", "check_embedding_ctx_length=False"),
        ({"input": "a bee", "dimensions": 17}, "dimensions", "at most 16"),
        ({"input": "bee", "dimensions": 1}, None, "is zero in"),
    ],
)
def test_errors_name_the_field_and_its_limit(
    client: TestClient, asked: dict[str, Any], param: str | None, message: str
) -> None:
    response = client.post(AT, json=asked)
    error = response.json()["error"]
    assert response.status_code == 422 and message in error["message"]
    assert (error["type"], error["param"]) == ("invalid", param)
    assert error["code"] == (None if param else "query_error")


def test_what_was_cut_is_said(serve: Serve) -> None:
    """An encoder whose tokens are words, and that reads three of them, or any number."""
    room: Any
    asked = {"input": ["a a", "a a a a a", "a a a", "a a a a"], "input_type": "query"}
    for room, cut, tokens in ((3, [1, 3], 11), (None, [], 14)):
        answer = serve(encoder=Words(room, strict=False)).post(AT, json=asked).json()
        assert (answer["truncated"], answer["max_tokens"]) == (cut, room)
        assert answer["usage"]["prompt_tokens"] == tokens


class Roles(WordLengths):
    """Adds the role of texts to them."""

    def encode(self, texts: Any, *, role: Any = None, **_: Any) -> Any:
        return super().encode([f"{text} {role}" for text in texts])


def test_texts_are_documents_unless_they_are_questions(serve: Serve) -> None:
    client = serve(encoder=Roles())
    for asked, role in (({}, "document"), ({"input_type": "query"}, "query")):
        answer = client.post(AT, json={"input": "a bee", **asked}).json()
        expected = WordLengths().encode([f"a bee {role}"])
        assert np.allclose(answer["data"][0]["embedding"], expected)


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
    with pytest.raises(openai.NotFoundError, match="no collection 'ada'"):
        ours.embeddings.create(model="ada", input="a bee")
