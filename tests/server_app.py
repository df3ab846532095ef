"""An application of the server in this process, over documents that a human can encode."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from server_process import READER, TOKEN
from starlette.testclient import TestClient

from searchengine import SearchEngine
from searchengine.server.app import create
from searchengine.server.server_settings import ServerSettings, Token

DOCUMENTS = [
    {"_id": "bee", "text": "a bee", "year": 2016, "lang": "en"},
    {"_id": "cat", "text": "the cat sat", "title": "on", "year": 2011, "lang": "en"},
    {"_id": "a/b c", "text": "eeeee bb eeeee", "year": 2020, "lang": ["en", "ko"]},
]
TOKENS = (Token.from_secret("writer", "write", TOKEN), Token.from_secret("reader", "read", READER))
Serve = Callable[..., TestClient]


def words_collection(path: Path) -> Path:
    """A collection of DOCUMENTS."""
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add(DOCUMENTS)
    return path


@contextmanager
def serving(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Yields a function that starts an application; its client sends the token that writes."""
    real = SearchEngine.open

    def opened(path: Path, *, runtime: Any = None, **options: Any) -> SearchEngine:
        with real(path) as engine:
            encodes = engine.collection.settings["encoder"]["fingerprint"] == "word-lengths"
        return real(path, WordLengths() if encodes else None, **options)

    monkeypatch.setattr(SearchEngine, "open", staticmethod(opened))
    with ExitStack() as stack:

        def start(token: str | None = TOKEN, **options: Any) -> TestClient:
            options = {"collections": {"words": path}, "tokens": TOKENS, "log": "none"} | options
            app = create(ServerSettings(**options))
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            client = TestClient(
                app, "http://localhost", headers=headers, raise_server_exceptions=False
            )
            return stack.enter_context(client)

        yield start
