"""Who may do what: tokens, scopes, hosts; what is logged, counted and sent with every response."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import READER
from starlette.testclient import TestClient

from searchengine.cli.serve import named_collections
from searchengine.errors import QueryError
from searchengine.server import MAX_BODY, ServerSettings, app
from searchengine.server.auth import Access, read_tokens
from searchengine.server.responses import Refused

Serve = Callable[..., TestClient]
SEARCH = {"query": "a bee"}
DOCUMENT = "/v1/collections/words/documents/bee"
WRITES = [
    ("PUT", DOCUMENT),
    ("PATCH", DOCUMENT),
    ("DELETE", DOCUMENT),
    ("DELETE", "/v1/collections/words/documents?where=year"),
    ("POST", "/v1/search/more"),
]


def test_without_a_token_nothing_is_read(serve: Serve) -> None:
    client = serve(token=None)
    wrong = (f"Bearer {READER}x", f"Bearer {READER[:-1]}", f"Basic {READER}", "Bearer", READER, "")
    for value in wrong:
        headers = {"Authorization": value}
        for method, path in (("POST", "/v1/search"), ("GET", DOCUMENT), ("GET", "/metrics")):
            response = client.request(method, path, json=SEARCH, headers=headers)
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            is_token = value.startswith("Bearer ")
            message = "does not know this token" if is_token else "a token is needed"
            assert message in response.json()["error"]["message"] and READER not in response.text
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs", "/"):
            assert client.get(path, headers=headers).status_code in (200, 503)


@pytest.mark.parametrize(
    ("token", "options", "message"),
    [(READER, {}, "may read only"), (None, {"tokens": None}, "--tokens FILE")],
    ids=["a token that reads", "no tokens"],
)
def test_who_only_reads(serve: Serve, token: str | None, options: object, message: str) -> None:
    client = serve(token, **options)  # type: ignore[arg-type]
    assert client.post("/v1/search", json=SEARCH).status_code == 200
    assert client.post("/v1/collections/words/facets", json={}).json()["total"] == 3
    assert client.get("/metrics").status_code == 200
    for method, path in WRITES:
        response = client.request(method, path, json={"text": "x"})
        assert response.status_code == 403 and message in response.text
    assert client.get(DOCUMENT).json()["text"] == "a bee"


def test_without_tokens_only_names_of_this_machine(serve: Serve) -> None:
    """A page of evil.example that resolves to 127.0.0.1 must not read."""
    client = serve(None, tokens=None)
    for host in ("localhost", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST:1"):
        assert client.post("/v1/search", json=SEARCH, headers={"host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "a:1", ""):
        response = client.post("/v1/search", json=SEARCH, headers={"host": host})
        assert response.status_code == 421 and "localhost only" in response.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"host": host}, "a token is required") for host in ("0.0.0.0", "::", "example.org")),
        ({"root_path": "search"}, "must be like /search"),
        ({"root_path": "/search/"}, "must be like /search"),
        ({"trust_proxy": ("proxy.example",)}, "a trusted proxy must be an IP address"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        ServerSettings({"v": Path("v")}, **options)  # type: ignore[arg-type]


def owner(path: Path, header: bytes) -> str | None:
    """The name of the token in a header; None: it is refused."""
    try:
        token = Access(path, "x").admit("GET", "/v1/collections", {b"authorization": header})
    except Refused:
        return None
    return None if token is None else token.name


def test_a_file_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# who\nme write 0123456789abcdef # comment\n\nyou read fedcba9876543210\n")
    assert [*read_tokens(path).values()] == [("me", True), ("you", False)]
    assert owner(path, b"bearer fedcba9876543210") == "you"
    assert owner(path, b"Bearer 0123456789abcdef") == "me"
    path.write_text("#\nme read 0123456789abcdef#rest # comment\n")
    assert owner(path, b"Bearer 0123456789abcdef#rest") == "me"
    for text, message in (
        ("me write", "expected NAME SCOPE TOKEN"),
        ("me both 0123456789abcdef", "expected NAME SCOPE TOKEN"),
        ("me read short", "at least 16"),
        ("me read 0123456789abcdéf", "at least 16 ASCII"),
        ("a read 0123456789abcdef\na write 0123456789abcdeg", "occurs twice"),
        ("a read 0123456789abcdef\nb write 0123456789abcdef", "occurs twice"),
        ("# none", "holds no token"),
    ):
        path.write_text(text)
        with pytest.raises(QueryError, match=message) as error:
            read_tokens(path)
        assert "0123456789" not in str(error.value)
        assert owner(path, b"Bearer 0123456789abcdef") is None  # not: everyone
    path.write_bytes(b"me read \xff")
    for place, message in ((path, "must be UTF-8"), (tmp_path / "missing", "No such file")):
        with pytest.raises(QueryError, match=message):
            read_tokens(place)


def test_names_of_collections() -> None:
    named = {"papers": Path("a/papers.index"), "b": Path("x/y"), "z": Path("z")}
    assert named_collections(["a/papers.index", "b=x/y", "z"]) == named
    with pytest.raises(QueryError, match="letters, digits"):
        named_collections(["a b"])
    with pytest.raises(QueryError, match="must differ"):
        named_collections(["x/a.index", "y/a"])
    with pytest.raises(QueryError, match="--encoder is for one collection"):
        ServerSettings(named, encoder="x")


def test_a_body_has_a_limit(client: TestClient) -> None:
    long = b"x" * (MAX_BODY + 1)
    for body in (long, iter([b'{"text": "', long, b'"}'])):
        response = client.put(DOCUMENT, content=body)  # type: ignore[arg-type]
        assert response.status_code == 413 and f"at most {MAX_BODY} bytes" in response.text


def test_the_file_of_tokens_is_followed(
    serve: Serve, words: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No request fails meanwhile; an error in the file changes nothing."""
    monkeypatch.setattr(app, "REFRESH", 0.01)
    path, new, client = words.with_name("tokens"), "0123456789abcdef-new", serve()
    text = path.read_text()

    def wait_for(token: str, status: int) -> None:
        end, headers = time.monotonic() + 30, {"Authorization": f"Bearer {token}"}
        while client.get(DOCUMENT, headers=headers).status_code != status:
            assert time.monotonic() < end and client.get(DOCUMENT).status_code == 200

    wait_for(new, 401)
    path.write_text(f"{text}you read {new}\n")
    wait_for(new, 200)
    path.write_text("not a token\n")
    while not any("stay as they are" in each and new not in each for each in caplog.messages):
        wait_for(new, 200)
    path.write_text(text)
    wait_for(new, 401)


def test_every_response_has_an_id_and_headers(client: TestClient) -> None:
    ids = [client.get(DOCUMENT).headers["x-request-id"] for _ in range(3)]
    assert len({each[:8] for each in ids}) == 1 and len(set(ids)) == 3
    slash = client.get("/v1/collections/", headers={"host": "evil.example"})
    assert slash.status_code == 404 and "location" not in slash.headers
    for path in (DOCUMENT, "/nothing", "/metrics", "/v1/search", "/", "/page/page.js", "/docs"):
        response = client.get(path)
        assert len(response.headers["x-request-id"]) == 16
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_methods_of_an_address(client: TestClient, method: str) -> None:
    """HEAD is answered where GET is; another method is told what the address takes."""
    response = client.request(method, "/v1/search")
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    if method == "GET":
        assert response.json()["error"]["message"] == "this address takes POST, got GET"
    documents = client.request(method, DOCUMENT)
    if method == "OPTIONS":
        assert documents.headers["allow"] == "DELETE, GET, PATCH, PUT"
    else:
        assert documents.status_code == 200 and int(documents.headers["content-length"]) > 20
        assert bool(documents.content) is (method == "GET")


def test_a_line_a_request(client: TestClient, capfd: pytest.CaptureFixture[str]) -> None:
    response = client.get("/v1/collections/words/documents/a%0Ab%1b[31m%ff?where=secret")
    (line,) = capfd.readouterr().err.splitlines()
    assert "secret" not in line and "\x1b" not in line
    assert " writer GET /v1/collections/words/documents/" in line and " 422 " in line
    assert line.endswith(f" ms {response.headers['x-request-id']}")


def test_metrics_count_requests(client: TestClient) -> None:
    def numbers() -> dict[str, float]:
        rows = (line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
        return {name: float(value) for name, value in rows if name[0] != "#"}

    before, requests = numbers(), "searchengine_requests_total"
    for question in ("a bee", "a bee", "a cat", ""):
        client.post("/v1/search", json={"query": question})
    client.get("/unknown/1")
    after = numbers()
    for labels, number in (
        ('{collection="words",method="POST",route="/v1/search",status="200"}', 3),
        ('{collection="",method="POST",route="/v1/search",status="422"}', 1),
        ('{collection="",method="GET",route="other",status="404"}', 1),
    ):
        assert after[requests + labels] - before.get(requests + labels, 0) == number
    assert after['searchengine_documents{collection="words"}'] == 3
    assert 5 < after["process_open_fds"] < after["process_max_fds"]
