"""An application of the server in this process, over documents that a human can encode."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import uvicorn
from conftest import WordLengths
from server_process import TOKEN, TOKENS
from starlette.testclient import TestClient

from searchengine import SearchEngine
from searchengine.server import ServerSettings
from searchengine.server.app import create, listen

DOCUMENTS = [
    {"_id": "bee", "text": "a bee", "year": 2016, "lang": "en"},
    {"_id": "cat", "text": "the cat sat", "title": "on", "year": 2011, "lang": "en"},
    {"_id": "a/b c", "text": "eeeee bb eeeee", "year": 2020, "lang": ["en", "ko"]},
]
Serve = Callable[..., TestClient]


def words_collection(path: Path) -> Path:
    """A collection of DOCUMENTS; beside it is the file of tokens."""
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add(DOCUMENTS)
    path.with_name("tokens").write_text(TOKENS)
    return path


@contextmanager
def serving(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Yields a function that starts an application; its client sends the token that writes.

    Collections by words are encoded by its option `encoder`, or else by one of ours.
    """
    real = SearchEngine.open

    def opened(path: Path, named: Any = None, *, runtime: Any = None, **options: Any) -> Any:
        with real(path) as engine:
            encodes = engine.collection.settings["encoder"]["fingerprint"] == "word-lengths"
        return real(path, named or WordLengths() if encodes else named, **options)

    monkeypatch.setattr(SearchEngine, "open", staticmethod(opened))
    with ExitStack() as stack:

        def start(token: str | None = TOKEN, **options: Any) -> TestClient:
            options = {"collections": {"words": path}, "tokens": path.with_name("tokens")} | options
            app = create(ServerSettings(**options))
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            client = TestClient(
                app, "http://localhost", headers=headers, raise_server_exceptions=False
            )
            return stack.enter_context(client)

        yield start


@contextmanager
def listening(path: Path) -> Iterator[str]:
    """The address of a server in a thread of this process: its encoder may be one of ours."""
    settings = ServerSettings({"words": path}, tokens=path.with_name("tokens"))
    config = uvicorn.Config(create(settings), log_config=None, log_level="critical")
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        end = time.monotonic() + 30
        try:
            while requests.get(f"{url}/readyz", timeout=30).status_code != 200:
                assert time.monotonic() < end
                time.sleep(0.02)
            yield url
        finally:
            server.should_exit = True
            thread.join(60)
