"""A model hub on loopback: as much of its HTTP API as huggingface_hub asks for to fetch a model.

with HubEndpoint({"owner/name": folder}) as hub:
    hub.replace(monkeypatch, tmp_path)  # or subprocess.run(…, env=hub.environment(tmp_path))
    Encoder.load("owner/name")
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants


class HubEndpoint:
    """Serves folders as repositories, in threads. Use as a context manager.

    Attributes:
        repositories: folder by name; each is there at any commit that is asked for.
        newest: the commit of main.
        refusals: name → status and X-Error-Code of all answers for it.
        cut: names of files that end in the middle, as a lost connection leaves them.
        requests: method and path of each request.
    """

    def __init__(self, repositories: Mapping[str, Path]) -> None:
        self.repositories = dict(repositories)
        self.newest = "c0ffee" + "0" * 34
        self.refusals: dict[str, tuple[int, str]] = {}
        self.cut: set[str] = set()
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def replace(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        """Let this process fetch from here; huggingface_hub reads its environment only once."""
        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", f"{home}")
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", self.url)

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
            _send(request, b"{}", {"X-Error-Code": code}, status)
            return
        folder = self.repositories[name]
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        match verb:
            case "revision":
                _send(request, json.dumps({"id": name, "sha": commit}).encode(), headers)
            case "tree":
                entries = [_entry(file, folder) for file in files]
                _send(request, json.dumps(entries).encode(), headers)
            case _:
                content = (folder / rest).read_bytes()
                headers["ETag"] = f'"{_checksum(content)}"'
                _send(request, content, headers, cut=rest in self.cut)


def _entry(file: Path, folder: Path) -> dict[str, Any]:
    content = file.read_bytes()
    path = file.relative_to(folder).as_posix()
    return {"type": "file", "path": path, "size": len(content), "oid": _checksum(content)}


def _checksum(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _send(
    request: BaseHTTPRequestHandler,
    content: bytes,
    headers: dict[str, str],
    status: int = 200,
    *,
    cut: bool = False,
) -> None:
    request.send_response(status)
    for name, value in (headers | {"Content-Length": f"{len(content)}"}).items():
        request.send_header(name, value)
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(content[: len(content) // 2] if cut else content)
    request.close_connection = cut
