"""Responses as JSON: built in pieces, in the thread that has the values, up to a limit."""

import asyncio
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from searchengine.engine import limits
from searchengine.server.refusals import Refused
from searchengine.server.server_settings import MAX_RESPONSE, MAX_UNSENT

_SENT = 1 << 18  # bytes sent at a time: the next ones wait until the caller has read


_WORTH = 1000  # bytes of a response that is worth compressing
_LEVEL = 1  # of compression: of JSON, higher ones gain little for much time
_NEVER = re.compile(r"q=0(\.0*)?")
COMPRESSED = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
"""Headers of a compressed response."""
_unsent: dict[Callable[[], None], int] = {}  # what ends a large response → its bytes, oldest first


class Content:
    """The body of a response, known to fit its model: it is not validated again.

    Attributes:
        pieces: what was written.
        size: their bytes.
    """

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0

    def write(self, piece: bytes) -> None:
        """Add bytes. Raises Refused if the response is too large, SearchTimeout if it is late."""
        self.size += len(piece)
        if self.size > MAX_RESPONSE:
            raise Refused(
                422,
                f"the response would have more than {MAX_RESPONSE >> 20} MiB; ask for fewer at "
                'once, or leave out the texts of hits: "texts": false',
            )
        self.pieces.append(piece)
        limits.check()

    def write_json(self, value: Any) -> None:
        """Add a value as JSON."""
        self.write(to_json(value))

    def write_list(self, values: Iterable[Any]) -> None:
        """Add a list, one value after the other."""
        before = b"["
        for value in values:
            self.write(before + to_json(value))
            before = b","
        self.write(b"]" if before == b"," else b"[]")

    def write_facets(self, facets: Mapping[str, Mapping[Any, int]]) -> None:
        """Add field → its values and their counts, most frequent first."""
        before = b"{"
        for name, counts in facets.items():
            self.write(before + to_json(name) + b":")
            self.write_json([{"value": value, "count": count} for value, count in counts.items()])
            before = b","
        self.write(b"}" if before == b"," else b"{}")


class Compressible(Response):
    """A response that is compressed for who accepts gzip, in a thread.

    An attack by the length of what is compressed (BREACH) needs a page of another origin that makes
    a browser send requests with the secret of its user. Here that is a token in a header, which no
    such page can make a browser send.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if len(self.body) >= _WORTH and accepts_gzip(scope):
            self.body = await asyncio.to_thread(gzip.compress, self.body, _LEVEL)
            self.headers.update(COMPRESSED)
            self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def accepts_gzip(scope: Scope) -> bool:
    """Whether a request accepts a compressed response."""
    accepted = Headers(scope=scope).get("accept-encoding", "").lower()
    names = [each.replace(" ", "").partition(";") for each in accepted.split(",")]
    return any(name == "gzip" and not _NEVER.fullmatch(weight) for name, _, weight in names)


def as_json(value: Any) -> Response:
    """A small response that is known to fit its model: it is not validated again."""
    return Compressible(to_json(value), media_type="application/json")


def json_response(*contents: Content) -> Response:
    """The response of what was written, one content after the other."""
    size = sum(content.size for content in contents)
    pieces = chain.from_iterable(content.pieces for content in contents)
    if size <= _SENT:
        return Compressible(b"".join(pieces), media_type="application/json")
    return _Large(pieces, size)


class _Large(Response):
    """A body that is sent in parts, as fast as the caller reads."""

    def __init__(self, pieces: Iterable[bytes], size: int) -> None:
        super().__init__(headers={"content-length": str(size)}, media_type="application/json")
        self._pieces, self._size = pieces, size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; if callers do not read theirs, the oldest ones are given up."""
        while _unsent and sum(_unsent.values()) + self._size > MAX_UNSENT:
            _unsent.pop(abandon := next(iter(_unsent)))
            abandon()
        _unsent[scope["abandon"]] = self._size
        try:
            await self._send(send, accepts_gzip(scope))
        finally:
            _unsent.pop(scope["abandon"], None)

    async def _send(self, send: Send, compressed: bool) -> None:
        packer = zlib.compressobj(_LEVEL, wbits=31)  # gzip
        if compressed:
            self.headers.update(COMPRESSED)
            del self.headers["content-length"]
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for part in _parts(self._pieces):
            if compressed:
                part = await asyncio.to_thread(packer.compress, part)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": packer.flush() if compressed else b""})


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces, joined or cut into parts of _SENT bytes."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) >= _SENT:
            yield bytes(waiting[:_SENT])
            del waiting[:_SENT]
    yield bytes(waiting)
