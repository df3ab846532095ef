"""HTTP servers on loopback, in threads of the tests' process: an embeddings endpoint, a model hub.

with HubEndpoint({"owner/name": folder}):
    Encoder.load("owner/name")
"""

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import huggingface_hub
import numpy as np
from conftest import WordLengths
from huggingface_hub.utils import _http as hub_client


class Loopback:
    """A server that hands each request to `answer`. Use as a context manager."""

    def __init__(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        raise NotImplementedError


def send(
    request: BaseHTTPRequestHandler, content: bytes, headers: Mapping[str, str], status: int = 200
) -> None:
    """Send an answer."""
    request.send_response(status)
    for name, value in {**headers, "Content-Length": f"{len(content)}"}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(content)


@dataclass
class Fault:
    """What the next request gets instead of its vectors; `delay` seconds later.

    content: bytes of the answer; None closes the connection. edit: changes the usual answer.
    """

    status: int = 200
    content: bytes | None = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    edit: Callable[[dict[str, Any]], object] | None = None


class EmbeddingServer(Loopback):
    """An OpenAI-compatible endpoint that serves `encode`, and fails as a test tells it to.

    Attributes:
        encode: texts → array (n, D); by default WordLengths of 8.
        faults: for the next requests, in turn; the others get their vectors.
        requests: the bodies of all requests. keys: their Authorization headers.
        most: maximum requests at a time. delay: seconds before every answer.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Any] | None = None) -> None:
        super().__init__()
        self.url += "/v1"
        self.encode: Callable[[Sequence[str]], Any] = encode or WordLengths(8).encode
        self.faults, self.delay = deque[Fault](), 0.0
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.now = self.most = 0
        self._lock = threading.Lock()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        with self._lock:
            assert request.path == "/v1/embeddings"
            self.requests.append(body)
            self.keys.append(request.headers.get("Authorization"))
            fault = self.faults.popleft() if self.faults else Fault(edit=lambda _: None)
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.delay + fault.delay)
        with self._lock:
            self.now -= 1
        content = fault.content
        if fault.edit is not None:
            usual = self.usual(body)
            content = json.dumps(fault.edit(usual) or usual).encode()
        if content is None:
            request.close_connection = True
            return
        try:
            send(request, content, fault.headers, fault.status)
        except OSError:  # the client has gone
            request.close_connection = True

    def usual(self, body: dict[str, Any]) -> dict[str, Any]:
        """The right answer; in another order, for the client must look at `index`."""
        vectors = np.asarray(self.encode(body["input"]))
        if "dimensions" in body:
            vectors = vectors[:, : body["dimensions"]]
        data = [
            {"object": "embedding", "index": i, "embedding": vector.tolist()}
            for i, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data[::-1], "model": body["model"]}


class HubEndpoint(Loopback):
    """As much of the hub's API as huggingface_hub asks for to fetch a folder, a repository here.

    Attributes:
        repositories: folder by name; each is there at any commit that is asked for.
        newest: the commit of main.
        refusals: name → status and X-Error-Code of all answers for it.
        requests: method and path of each request.
    """

    def __init__(self, repositories: Mapping[str, Path]) -> None:
        super().__init__()
        self.repositories = dict(repositories)
        self.newest = "c0ffee" + "0" * 34
        self.refusals: dict[str, tuple[int, str]] = {}
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        """Let this process fetch from here; huggingface_hub reads its environment only once."""
        huggingface_hub.set_client_factory(self._client)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        huggingface_hub.set_client_factory(hub_client.default_client_factory)
        super().__exit__(*error)

    def _client(self) -> Any:
        def redirect(request: Any) -> None:
            here = urlsplit(self.url)
            request.url = request.url.copy_with(scheme="http", host=here.hostname, port=here.port)

        client = hub_client.default_client_factory()
        client.event_hooks = {"request": [redirect]}
        return client

    def fetched(self) -> set[str]:
        """The files that were sent, as name/path."""
        sent = [path.split("/") for path in self.requests if path.startswith("GET ")]
        return {"/".join(parts[5:]) for parts in sent if parts[3:4] == ["resolve"]}

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        path = unquote(urlsplit(request.path).path)
        self.requests.append(f"{request.command} {path}")
        parts = path.removeprefix("/api/models").strip("/").split("/")
        name, (verb, revision) = "/".join(parts[:2]), parts[2:4] or ("revision", "main")
        rest = "/".join(parts[4:])
        commit = self.newest if revision == "main" else revision
        headers = {"X-Repo-Commit": commit}
        if name in self.refusals or name not in self.repositories:
            status, code = self.refusals.get(name, (401, "RepoNotFound"))
            send(request, b"{}", {"X-Error-Code": code}, status)
            return
        folder = self.repositories[name]
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        match verb:
            case "revision":
                send(request, json.dumps({"id": name, "sha": commit}).encode(), headers)
            case "tree":
                entries = [_entry(file, folder) for file in files]
                send(request, json.dumps(entries).encode(), headers)
            case _:
                content = (folder / rest).read_bytes()
                headers["ETag"] = f'"{_checksum(content)}"'
                send(request, content, headers)


def _entry(file: Path, folder: Path) -> dict[str, Any]:
    content = file.read_bytes()
    path = file.relative_to(folder).as_posix()
    return {"type": "file", "path": path, "size": len(content), "oid": _checksum(content)}


def _checksum(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
