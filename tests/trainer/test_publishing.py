"""A model pushed to a hub on loopback, which keeps what it is sent."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from tests.tiny_model import write_sentence_transformer


class Hub(ThreadingHTTPServer):
    """Answers as the Hugging Face Hub does to a commit of small files.

    repositories: name → whether it is private; files: path → content; messages: of the commits.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, bool] = {}
        self.files: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.repositories.setdefault(name, asked.get("private", asked.get("visibility")))
            return {"url": f"{self.url}/{name}", "id": name}
        if path.endswith("/preupload/main"):
            files = [each["path"] for each in json.loads(body)["files"]]
            each = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": name, **each} for name in files]}
        if path == "/api/validate-yaml":  # of the model card
            return {"errors": [], "warnings": []}
        assert path.endswith("/commit/main")
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files[line["value"]["path"]] = content
            else:
                self.messages.append(line["value"]["summary"])
        return {"commitUrl": f"{self.url}/me/tiny/commit/{'0' * 40}", "commitOid": "0" * 40}


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers["Authorization"])
        refused = self.headers["Authorization"] != "Bearer secret"
        answer = (
            {"error": "Invalid token"}
            if refused
            else self.server.answer(self.path.partition("?")[0], body)
        )
        content = json.dumps(answer).encode()
        self.send_response(401 if refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder:
    return Encoder.load(write_sentence_transformer(tmp_path / "tiny"), precision="fp32")


def test_what_is_pushed_is_what_is_saved(hub: Hub, encoder: Encoder, tmp_path: Path) -> None:
    url = encoder.push_to_hub("me/tiny", message="First", token="secret")
    assert url == f"{hub.url}/me/tiny"
    assert hub.repositories == {"me/tiny": "private"}
    assert hub.messages == ["First"]
    encoder.save(tmp_path / "saved")
    saved = {
        str(path.relative_to(tmp_path / "saved")): path.read_bytes()
        for path in (tmp_path / "saved").rglob("*")
        if path.is_file()
    }
    assert hub.files == saved
    for name, content in hub.files.items():
        (tmp_path / "fetched" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fetched" / name).write_bytes(content)
    again = Encoder.load(tmp_path / "fetched", precision="fp32")
    np.testing.assert_array_equal(again.encode(["a dog"]), encoder.encode(["a dog"]))


@pytest.mark.parametrize(
    ("repository", "token", "message"),
    [
        ("me/tiny", "wrong", r"cannot be pushed to me/tiny: .*401"),
        ("a b", "secret", "cannot be pushed to a b: Repo id must"),
        ("me/tiny", None, r"cannot be pushed to me/tiny: .*[Cc]onnect"),
    ],
)
def test_a_refusal_is_one_sentence(
    hub: Hub,
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
    repository: str,
    token: str | None,
    message: str,
) -> None:
    if token is None:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelError, match=message):
        encoder.push_to_hub(repository, token=token or "secret")
    assert not hub.files
