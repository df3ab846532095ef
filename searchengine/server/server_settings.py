"""What a server is started with, its tokens, and the limits of a request."""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal

from searchengine.errors import QueryError
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
MAX_BUFFERED = 64 << 20  # bytes of large requests that are being received at a time
MAX_UNSENT = 128 << 20  # bytes of large responses that are being sent at a time
SPARE_TOKENS = 64  # tokens that a reload may add
MAX_FACETS = 20
MAX_EXAMPLES = 100  # stored documents in place of a question
MAX_PAGE = 1000  # documents in one list
MAX_DIMENSIONS = 8192
MAX_KEY = 4096  # characters

_MIN_CHARACTERS = 16  # characters
_SCOPES = ("read", "write")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~][A-Za-z0-9_.~-]*)+")
# Of the addresses here.
_TOPS = ("v1", "page", "metrics", "healthz", "readyz", "openapi.json")


@dataclass(frozen=True, slots=True)
class Token:
    """A token: the name for the log, whether it may write, and its SHA-256. Never the token.

    `collections`: those that it is for; none: all.
    """

    name: str
    writes: bool
    digest: bytes
    collections: tuple[str, ...] = ()

    def reads(self, collection: str) -> bool:
        """Whether it is for a collection."""
        return not self.collections or collection in self.collections

    @classmethod
    def from_secret(
        cls, name: str, scope: str, secret: str, collections: Sequence[str] = ()
    ) -> "Token":
        """The token of a secret; `scope` is read or write, which includes read."""
        return cls(
            name, scope == "write", hashlib.sha256(secret.encode()).digest(), tuple(collections)
        )


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
        tokens_file: where they come from, to be read again; None: they stay.
        workers: processes that answer.
        max_body: bytes of a request.
        max_requests: requests under way in the whole server, from the end of their body to the
            beginning of their response; others get 429.
        timeout: seconds that a request may take.
        rate: requests per second for each token, over all workers; None: no limit.
        wait: seconds that a change waits for another writer.
        origins: web origins that browsers may call from (CORS).
        log: a line for each request, as text or JSON, or none.
        slow: milliseconds from which on a request is logged with the times of its stages, even if
            others are not logged; None: none is.
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
    rate: float | None = None
    wait: float = 30.0
    origins: tuple[str, ...] = ()
    log: Literal["text", "json", "none"] = "text"
    slow: float | None = None
    runtime: RuntimeConfig | None = field(default=None)
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
        if root and (not _ROOT_PATH.fullmatch(root) or root.split("/")[1] in _TOPS):
            raise QueryError(
                "a root path must be like /search, without a / at the end, and must not begin with "
                f"/{', /'.join(_TOPS)}; got {root!r}"
            )
        for token in self.tokens:
            if unknown := set(token.collections) - set(self.collections):
                raise QueryError(
                    f"the token of {token.name!r} is for the collection {min(unknown)!r}, and the "
                    f"server has {', '.join(self.collections)}; name one of them"
                )
        for proxy in self.trust_proxy:
            if proxy != "unix" and not _is_network(proxy):
                raise QueryError(
                    "a trusted proxy must be an IP address, a network such as 10.0.0.0/8, or unix, "
                    f"got {proxy!r}"
                )
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s]+", origin):
                raise QueryError(
                    f"an origin must be like https://example.org, without a path, got {origin!r}"
                )


def with_new_tokens(settings: ServerSettings) -> ServerSettings:
    """The settings with the tokens that their file holds now. Raises QueryError."""
    if settings.tokens_file is None:
        return settings
    return replace(settings, tokens=read_tokens(settings.tokens_file))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file: a line `NAME SCOPE TOKEN [COLLECTION…]` each; # begins a comment.

    Raises QueryError; a message never quotes a token.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise QueryError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise QueryError(f"{path} must be UTF-8 text, one token a line") from error
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()  # a token may have a #
        if not fields:
            continue
        if len(fields) < 3 or fields[1] not in _SCOPES:
            raise QueryError(
                f"{path}:{number}: expected NAME SCOPE TOKEN, where the scope is read or write, "
                "and the collections that the token is for if not all"
            )
        name, scope, secret, *collections = fields
        if len(secret) < _MIN_CHARACTERS or not re.fullmatch(r"[!-~]+", secret):
            raise QueryError(
                f"{path}:{number}: a token must have at least {_MIN_CHARACTERS} ASCII "
                "characters; make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        token = Token.from_secret(name, scope, secret, collections)
        if name in (other.name for other in tokens):
            raise QueryError(f"{path}:{number}: the name {name!r} occurs twice")
        if token.digest in (other.digest for other in tokens):
            raise QueryError(f"{path}:{number}: the token of {name!r} is that of another name")
        tokens.append(token)
    if not tokens:
        raise QueryError(f"{path} holds no token; write a line: NAME SCOPE TOKEN")
    return tuple(tokens)


def token_position(tokens: Sequence[Token], header: bytes | None) -> int | None:
    """The position of the token in an Authorization header; None: none, or an unknown one.

    All tokens are compared, each in a time that does not depend on its content.
    """
    if header is None:
        return None
    scheme, _, secret = header.partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    digest = hashlib.sha256(secret.strip()).digest()
    matches = [hmac.compare_digest(token.digest, digest) for token in tokens]
    return matches.index(True) if any(matches) else None
