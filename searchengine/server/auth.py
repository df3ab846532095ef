"""Who may ask: the file of tokens, and what the token of a request allows."""

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from searchengine.errors import QueryError
from searchengine.server.refusals import Refused

OPEN = ("/healthz", "/readyz", "/openapi.json", "/docs")
"""Addresses without a token, beside the page and its parts."""
# Of all that is not GET, only this reads.
_READS = re.compile(
    r"/v1/(search(/batch|/similar)?|embeddings|collections/[^/]+/(map|count|documents:get))"
)
_MIN_CHARACTERS = 16
_SCOPES = ("read", "write")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: the name for the log, whether it may write, and its SHA-256. Never the token."""

    name: str
    writes: bool
    digest: bytes

    @classmethod
    def from_secret(cls, name: str, scope: str, secret: str) -> "Token":
        """The token of a secret; `scope` is read or write, which includes read."""
        return cls(name, scope == "write", hashlib.sha256(secret.encode()).digest())


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file: a line `NAME SCOPE TOKEN` each; # begins a comment.

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
        if len(fields) != 3 or fields[1] not in _SCOPES:
            raise QueryError(
                f"{path}:{number}: expected NAME SCOPE TOKEN, where the scope is read or write"
            )
        name, scope, secret = fields
        if len(secret) < _MIN_CHARACTERS or not re.fullmatch(r"[!-~]+", secret):
            raise QueryError(
                f"{path}:{number}: a token must have at least {_MIN_CHARACTERS} ASCII "
                "characters; make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        token = Token.from_secret(name, scope, secret)
        if name in (other.name for other in tokens):
            raise QueryError(f"{path}:{number}: the name {name!r} occurs twice")
        if token.digest in (other.digest for other in tokens):
            raise QueryError(f"{path}:{number}: the token of {name!r} is that of another name")
        tokens.append(token)
    if not tokens:
        raise QueryError(f"{path} holds no token; write a line: NAME SCOPE TOKEN")
    return tuple(tokens)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """What requests may do.

    Attributes:
        tokens: who may read and write; none: everyone on this machine may read.
    """

    def __init__(
        self, tokens: tuple[Token, ...], file: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        """`file`: where the tokens come from; None: they stay. `host`: where the server listens."""
        self.tokens, self._file, self._host = tokens, file, host.lower()
        self._version: object = None
        self.follow()  # a worker may begin long after the server was started

    def follow(self) -> None:
        """Read the file again if it has changed; if it has an error, the former tokens stay."""
        if self._file is None:
            return
        version = None  # differs after the file has changed
        with suppress(OSError):
            found = os.stat(self._file)
            version = found.st_mtime_ns, found.st_ino, found.st_size
        if version == self._version:
            return
        self._version = version
        try:
            self.tokens = read_tokens(self._file)
        except QueryError as error:
            _log.error("the tokens stay as they are: %s", error)

    def admit(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Token | None:
        """The token of a request; None: it needs none. Raises Refused."""
        if not self.tokens:
            self._check_host(headers)
        if path in OPEN or not path.startswith(("/v1/", "/metrics")):
            return None
        writes = method not in ("GET", "HEAD") and not _READS.fullmatch(path)
        if not self.tokens:
            if writes:
                raise Refused(403, "writing needs a token; start the server with: --tokens FILE")
            return None
        token = self._token(headers)
        if writes and not token.writes:
            raise Refused(403, "this token may read only; use one with the scope write")
        return token

    def _token(self, headers: Mapping[bytes, bytes]) -> Token:
        """The token in the header. All are compared, in a time that no content changes."""
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        secret = secret.strip()
        challenge = {"WWW-Authenticate": "Bearer"}
        if scheme.lower() != b"bearer" or not secret:
            raise Refused(401, "a token is needed: Authorization: Bearer TOKEN", challenge)
        digest = hashlib.sha256(secret).digest()
        found = [token for token in self.tokens if hmac.compare_digest(token.digest, digest)]
        if not found:
            raise Refused(401, "the server does not know this token; check its spelling", challenge)
        return found[0]

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse other names of this machine: a web page could make one of its own point here."""
        host = headers.get(b"host", b"").decode("latin1").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in (*_LOOPBACK, self._host):
            raise Refused(421, "without tokens, the server answers to localhost and 127.0.0.1 only")
