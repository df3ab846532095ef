"""A connection to a server: the URL, the client, errors as sentences.

    qdrant://:API_KEY@HOST:PORT#COLLECTION             by HTTP
    qdrant+https://:API_KEY@HOST:PORT#COLLECTION       by HTTPS

COLLECTION is "searchengine" if it is left out. The API key may be in QDRANT_API_KEY instead.
`?shards=S&replicas=R` count only when the collection is created.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from searchengine.backends.folder.documents import forks
from searchengine.errors import BackendUnavailable, CollectionError
from searchengine.trainer.errors import install_line

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

DEFAULT_COLLECTION = "searchengine"
SCHEMES = {"qdrant": "http", "qdrant+https": "https"}
_PORT = 6333
_OLDEST = (1, 12)  # facets, which count passages
_TIMEOUT = 60  # seconds that a request may take
_NAME = re.compile(r"[\w-]{1,200}")
_BUSY = (429, 500, 502, 503, 504)  # answers of a server that may do better later


def shown(url: str) -> str:
    """The URL without its API key and its options, for messages."""
    url = re.sub(r"//[^/#?]*@", "//", url)
    return re.sub(r"\?[^#]*", "", url)


class Server:
    """A client of one collection. Safe to use from several threads.

    Attributes:
        name: the URL without the API key.
        collection: its name on the server.
        options: numbers in the URL: shards, replicas.
    """

    def __init__(self, url: str) -> None:
        """Connect, and check the version. Raises ImportError (missing extra), CollectionError."""
        _required()
        self.name = shown(url)
        parts = urlsplit(url)
        self.collection = unquote(parts.fragment) or DEFAULT_COLLECTION
        self.options = self._options(parts.query)
        if _NAME.fullmatch(self.collection) is None:
            raise CollectionError(
                f"{self.name}: the name of a collection must be letters, digits, _ and -, got "
                f"{self.collection!r}"
            )
        try:
            host, port = parts.hostname, parts.port or _PORT
        except ValueError as error:
            raise CollectionError(f"{self.name}: the port must be a number up to 65535") from error
        if not host:
            raise CollectionError(
                f"{self.name}: the host is missing; write qdrant://HOST:6333#NAME"
            )
        key = unquote(parts.password or parts.username or "") or os.environ.get("QDRANT_API_KEY")
        host = f"[{host}]" if ":" in host else host
        self._address = f"{SCHEMES[parts.scheme]}://{host}:{port}{parts.path.rstrip('/')}", key
        self._lock = threading.Lock()
        self._client: QdrantClient | None = None
        self._closed = False
        try:
            self._check_version()
        except BaseException:
            self.close()
            raise
        forks.inherit(self)

    def after_fork(self) -> None:
        """In a forked child: the connection is the parent's; open another one."""
        self._lock = threading.Lock()
        self._inherited, self._client = self._client, None

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of QdrantClient for this collection. Raises CollectionError."""
        with self.named_errors():
            return getattr(self._opened(), method)(collection_name=self.collection, **arguments)

    def close(self) -> None:
        """Close the connection; closing twice is harmless."""
        with self._lock:
            client, self._client, self._closed = self._client, None, True
        if client is not None:
            client.close()

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Raise the errors of the server as sentences."""
        from qdrant_client.http.exceptions import (
            ApiException,
            ResponseHandlingException,
            UnexpectedResponse,
        )

        try:
            yield
        except UnexpectedResponse as error:
            raise self._refused(error.status_code or 0, _reason(error)) from error
        except (ResponseHandlingException, ApiException) as error:
            raise BackendUnavailable(
                f"{self.name} cannot be reached ({_reason(error)}); check the URL, and whether the "
                "server runs, and try again"
            ) from error

    def _refused(self, status: int, reason: str) -> CollectionError:
        if status in (401, 403):
            return CollectionError(
                f"{self.name} refuses the API key ({reason}); set it in QDRANT_API_KEY, or in the "
                "URL: qdrant+https://:KEY@HOST:6333#NAME"
            )
        if status == 404:
            return CollectionError(f"{self.name}: the collection is gone ({reason}); create it")
        if status in _BUSY:
            return BackendUnavailable(f"{self.name} could not answer ({reason}); try again")
        return CollectionError(f"{self.name}: the server refused a request ({reason})")

    def _opened(self) -> "QdrantClient":
        with self._lock:
            if self._closed:
                raise CollectionError(f"{self.name} is closed; open it again")
            if self._client is None:
                self._client = connect(*self._address)
            return self._client

    def _check_version(self) -> None:
        with self.named_errors():
            version = str(self._opened().info().version)
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers < _OLDEST:
            raise CollectionError(
                f"{self.name} is Qdrant {version}, and 1.12 or later is needed; upgrade the server"
            )

    def _options(self, query: str) -> Mapping[str, int]:
        options = dict(parse_qsl(query))
        for name, value in options.items():
            if name not in ("shards", "replicas"):
                raise CollectionError(
                    f"{self.name}: the options of the URL are shards and replicas"
                )
            if not value.isdecimal() or int(value) < 1:
                raise CollectionError(f"{self.name}: {name} must be a whole number of at least 1")
        return {name: int(value) for name, value in options.items()}


def connect(address: str, key: str | None) -> "QdrantClient":
    """A client for a server. Nothing is sent yet."""
    from qdrant_client import QdrantClient

    return QdrantClient(url=address, api_key=key, timeout=_TIMEOUT, check_compatibility=False)


def _required() -> None:
    try:
        import qdrant_client  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"collections on Qdrant need qdrant-client: {install_line('qdrant')}"
        ) from error


def _reason(error: Exception) -> str:
    """The message of the server in one line."""
    content = getattr(error, "content", b"") or str(error) or type(error).__name__
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    found = re.search(r'"error"\s*:\s*"((?:[^"\\]|\\.)*)"', text)
    return " ".join((found[1] if found else text).split())[:300]
