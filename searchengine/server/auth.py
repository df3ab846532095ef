"""Who may ask: the file of tokens, and what the token of a request allows."""

import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from searchengine.errors import QueryError
from searchengine.server.responses import Refused

_OPEN = ("/healthz", "/readyz", "/openapi.json", "/docs")  # and the page and its parts
# Of all that is not GET, only this reads.
_READS = re.compile(r"/v1/(search(/batch|/similar)?|embeddings|collections/[^/]+/(map|facets))")
_log = logging.getLogger(__name__)


class Token(NamedTuple):
    """The name of a token, for the log, and whether it may write. Never the token itself."""

    name: str
    writes: bool


def read_tokens(path: Path) -> dict[bytes, Token]:
    """The tokens of a file by their SHA-256: a line `NAME SCOPE TOKEN` each; # begins a comment.

    The scope `write` includes `read`. Raises QueryError; a message never quotes a token.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "a file of tokens must be UTF-8 text")
        raise QueryError(f"{path}: {reason}") from error
    tokens: dict[bytes, Token] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()  # a token may have a #
        if not fields:
            continue
        if len(fields) != 3 or fields[1] not in ("read", "write"):
            raise QueryError(
                f"{path}:{number}: expected NAME SCOPE TOKEN, where the scope is read or write"
            )
        name, scope, secret = fields
        if not re.fullmatch(r"[!-~]{16,}", secret):
            raise QueryError(
                f"{path}:{number}: a token must have at least 16 ASCII characters; make one: "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        digest = hashlib.sha256(secret.encode()).digest()
        if digest in tokens or name in (token.name for token in tokens.values()):
            raise QueryError(f"{path}:{number}: the name {name!r} or its token occurs twice")
        tokens[digest] = Token(name, scope == "write")
    if not tokens:
        raise QueryError(f"{path} holds no token; write a line: NAME SCOPE TOKEN")
    return tokens


class Access:
    """What requests may do; `tokens`: of whom, by their SHA-256."""

    def __init__(self, file: Path | None, host: str) -> None:
        """`file`: None: everyone on this machine may read. `host`: where the server listens."""
        self._file, self._hosts = file, ("localhost", "127.0.0.1", "[::1]", host.lower())
        self._problem: str | None = None
        self.tokens: Mapping[bytes, Token] = {}
        self.follow()

    def follow(self) -> None:
        """Read the file again, which is small; if it has an error, the former tokens stay."""
        try:
            if self._file is not None:
                self.tokens = read_tokens(self._file)
            self._problem = None
        except QueryError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log.error("the tokens stay as they are: %s", error)

    def admit(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Token | None:
        """The token of a request; None: it needs none. Raises Refused."""
        if self._file is None:
            # A web page could make a name of its own point to this machine.
            host = re.sub(r":\d+$", "", headers.get(b"host", b"").decode("latin1").lower())
            if host not in self._hosts:
                raise Refused(421, "without tokens, the server answers to localhost only")
        if path in _OPEN or not path.startswith(("/v1/", "/metrics")):
            return None
        writes = method not in ("GET", "HEAD") and not _READS.fullmatch(path)
        if self._file is None:
            if writes:
                raise Refused(403, "writing needs a token; start the server with: --tokens FILE")
            return None
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        challenge = {"WWW-Authenticate": "Bearer"}
        if scheme.lower() != b"bearer" or not secret.strip():
            raise Refused(401, "a token is needed: Authorization: Bearer TOKEN", challenge)
        # How long a digest is sought tells nothing about a token.
        token = self.tokens.get(hashlib.sha256(secret.strip()).digest())
        if token is None:
            raise Refused(401, "the server does not know this token; check its spelling", challenge)
        if writes and not token.writes:
            raise Refused(403, "this token may read only; use one with the scope write")
        return token
