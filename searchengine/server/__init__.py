"""HTTP API over open collections. This file: what a server is started with, limits of a request.

app                the ASGI application, and the processes that run it
guard, auth        what every request passes: id, token, limits, time, log line
served             a collection: its engine, threads, refresh; its questions are joined
…_routes, models   what answers at each address, and what it takes
responses          JSON up to a size; exceptions as one sentence
mcp_server         a collection as tools of an assistant, over stdio
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from searchengine.errors import QueryError
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

MAX_BODY = 8 << 20  # bytes of a request
MAX_REQUESTS = 64  # under way in a process; others get 429
MAX_RESPONSE = 32 << 20  # bytes
MAX_TEXT = 32 << 20  # characters of the documents that one request reads
MAX_HITS = 25_600  # questions of a batch times the hits of each, with those to skip
MAX_OFFSET = 10_000
MAX_PAGE = 1000  # documents in one list
MAX_KEY = 4096  # characters
MAX_FACETS = 20  # fields whose values are counted


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server is started with.

    Attributes:
        collections: name → folder or URL.
        host, port: where to listen; port 0 takes a free one.
        root_path: prefix of all addresses as callers write them, such as /search; a proxy may take
            it off, or not.
        trust_proxy: addresses or networks of proxies, whose X-Forwarded-For and X-Forwarded-Proto
            name the caller.
        tokens: the file of those who may read and write; None: everyone on this machine may read.
        workers: processes that answer.
        timeout: seconds that a request may take.
        runtime: runs the encoders.
        encoder: of the only collection, in place of the one that it names.

    Raises QueryError.
    """

    collections: Mapping[str, Path | str]
    host: str = "127.0.0.1"
    port: int = 8080
    root_path: str = ""
    trust_proxy: tuple[str, ...] = ()
    tokens: Path | None = None
    workers: int = 1
    timeout: float = 30.0
    runtime: RuntimeConfig | None = None
    encoder: str | None = None

    def __post_init__(self) -> None:
        if self.encoder is not None and len(self.collections) > 1:
            raise QueryError("--encoder is for one collection; serve the others by another process")
        if self.tokens is None and self.host not in ("localhost", "127.0.0.1", "::1"):
            raise QueryError(
                f"{self.host} can be reached from other machines, so a token is required; "
                "name a file of tokens: --tokens FILE, or bind to 127.0.0.1"
            )
        if not re.fullmatch(r"((/[A-Za-z0-9_~][A-Za-z0-9_.~-]*)+)?", self.root_path):
            raise QueryError(
                f"a root path must be like /search, without a / at the end, got {self.root_path!r}"
            )
        for proxy in self.trust_proxy:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise QueryError(
                    f"a trusted proxy must be an IP address or a network, got {proxy!r}"
                ) from error
