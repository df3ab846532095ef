"""An OpenAI-compatible embeddings endpoint on loopback that fails as a test tells it to."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np
from conftest import WordLengths


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


class EmbeddingServer:
    """Serves `encode` in threads. Use as a context manager.

    Attributes:
        encode: texts → array (n, D); by default WordLengths of 8.
        faults: for the next requests, in turn; the others get their vectors.
        requests: the bodies of all requests. keys: their Authorization headers. times: when.
        most: maximum requests at a time. delay: seconds before every answer.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Any] | None = None) -> None:
        self.encode: Callable[[Sequence[str]], Any] = encode or WordLengths(8).encode
        self.faults, self.delay = deque[Fault](), 0.0
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.now = self.most = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        with self._lock:
            assert request.path == "/v1/embeddings"
            self.requests.append(body)
            self.keys.append(request.headers.get("Authorization"))
            self.times.append(time.monotonic())
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
            request.send_response(fault.status)
            for name, value in {**fault.headers, "Content-Length": str(len(content))}.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(content)
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
