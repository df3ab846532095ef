"""What a server is started with, and the limits of a request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Literal

from searchengine.errors import QueryError
from searchengine.server.auth import Token, is_loopback
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

MAX_K = 1000
MAX_OFFSET = 10_000
MAX_SHORTLIST = 100_000
MAX_QUERY = 10_000  # characters
MAX_FILTER = 10_000  # characters; depth and number of tests: searchengine.backends.filters.parser
MAX_URL_FILTER = 2000  # characters of a filter in an address, which may have 64 KiB
MAX_FIELD = 100  # characters of the name of a field
MAX_BATCH = 256  # questions
MAX_INPUTS = 2048  # texts to encode, as in OpenAI's API
MAX_INPUT = 100_000  # characters of a text to encode
MAX_HITS = 25_600  # questions of a batch times the hits of each, with those to skip
MAX_TEXT = 32 << 20  # characters of the documents that one request reads
MAX_RESPONSE = 32 << 20  # bytes
MAX_FACETS = 20
MAX_EXAMPLES = 100  # stored documents in place of a question
MAX_PAGE = 1000  # documents in one list
MAX_DIMENSIONS = 8192
MAX_KEY = 4096  # characters


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server is started with.

    Attributes:
        collections: name → folder or URL.
        host, port: where to listen; port 0 takes a free one.
        unix_socket: a Unix socket to listen on, in place of them.
        root_path: prefix of all addresses as callers write them, such as /search; a proxy may take
            it off, or not.
        trust_proxy: addresses, networks, or "unix" for the Unix socket: connections from there are
            of a proxy, whose X-Forwarded-For and X-Forwarded-Proto name the caller.
        tokens: who may read and write; none: everyone on this machine may read.
        tokens_file: where they come from, to be read again when it changes; None: they stay.
        workers: processes that answer.
        max_body: bytes of a request.
        max_requests: requests under way in a process, to the beginning of their response; others
            get 429.
        timeout: seconds that a request may take.
        wait: seconds that a change waits for another writer.
        origins: web origins that browsers may call from (CORS).
        log: a line for each request, or none.
        runtime: runs the encoders.
        encoders: collection → its encoder, where that is not the one that the collection names.

    Raises QueryError.
    """

    collections: Mapping[str, Path | str]
    host: str = "127.0.0.1"
    port: int = 8080
    unix_socket: Path | None = None
    root_path: str = ""
    trust_proxy: tuple[str, ...] = ()
    tokens: tuple[Token, ...] = ()
    tokens_file: Path | None = None
    workers: int = 1
    max_body: int = 8 << 20
    max_requests: int = 64
    timeout: float = 30.0
    wait: float = 30.0
    origins: tuple[str, ...] = ()
    log: Literal["text", "none"] = "text"
    runtime: RuntimeConfig | None = None
    encoders: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tokens and not is_loopback(self.host):
            raise QueryError(
                f"{self.host} can be reached from other machines, so a token is required; "
                "name a file of tokens: --tokens FILE, or bind to 127.0.0.1"
            )
        if self.unix_socket is not None and (self.host, self.port) != ("127.0.0.1", 8080):
            raise QueryError("the server listens on a Unix socket or on a port; choose one of them")
        root = self.root_path
        if root and not re.fullmatch(r"(/[A-Za-z0-9_~][A-Za-z0-9_.~-]*)+", root):
            raise QueryError(
                f"a root path must be like /search, without a / at the end, got {root!r}"
            )
        for proxy in self.trust_proxy:
            try:
                _ = proxy == "unix" or ip_network(proxy)
            except ValueError as error:
                raise QueryError(
                    "a trusted proxy must be an IP address, a network such as 10.0.0.0/8, or unix, "
                    f"got {proxy!r}"
                ) from error
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s]+", origin):
                raise QueryError(
                    f"an origin must be like https://example.org, without a path, got {origin!r}"
                )
