"""Who may read and write: tokens from a file, compared in constant time."""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from searchengine.errors import QueryError

_MIN_CHARACTERS = 16  # characters
_SCOPES = ("read", "write")


@dataclass(frozen=True, slots=True)
class Token:
    """A token: the name for the log, whether it may write, and its SHA-256. Never the token."""

    name: str
    writes: bool
    digest: bytes

    @classmethod
    def of(cls, name: str, scope: str, secret: str) -> "Token":
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
        token = Token.of(name, scope, secret)
        if name in (each.name for each in tokens):
            raise QueryError(f"{path}:{number}: the name {name!r} occurs twice")
        if token.digest in (each.digest for each in tokens):
            raise QueryError(f"{path}:{number}: the token of {name!r} is that of another name")
        tokens.append(token)
    if not tokens:
        raise QueryError(f"{path} holds no token; write a line: NAME SCOPE TOKEN")
    return tuple(tokens)


def find(tokens: Sequence[Token], header: bytes | None) -> int | None:
    """The position of the token in an Authorization header; None: none, or an unknown one.

    All tokens are compared, each in a time that does not depend on its content.
    """
    if header is None:
        return None
    scheme, _, secret = header.partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    digest = hashlib.sha256(secret.strip()).digest()
    found = None
    for i, token in enumerate(tokens):
        if hmac.compare_digest(token.digest, digest):
            found = i
    return found
