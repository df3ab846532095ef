"""Middleware for every request: id, token, limits of body, number, rate and time, and a log line.

Plain ASGI, outermost: a request that is refused has cost little, and nothing leaves without an id.
"""

import asyncio
import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

from starlette.responses import RedirectResponse, Response

from searchengine.errors import QueryError
from searchengine.query.hits import STAGES, Timing
from searchengine.server.counting import Metrics, Shared
from searchengine.server.refusals import INTERNAL, RETRY, Refused, error_response
from searchengine.server.server_settings import (
    MAX_BUFFERED,
    ServerSettings,
    Token,
    token_position,
    with_new_tokens,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN = ("/healthz", "/readyz", "/openapi.json")
"""Paths without a token."""
# Of all that is not GET, only this reads.
_READS = re.compile(
    r"/v1/(search(/batch|/similar|/explain)?|embeddings|collections/[^/]+/(map|count|documents:(get|vectors)))"
)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SMALL = 1 << 16  # bytes of a body that is received however many others are
_WATCH = 0.1  # seconds until a request is watched for a caller that leaves
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cache-control": b"no-store",
}
_log = logging.getLogger(__name__)


class Left(Exception):
    """The caller has left."""


class Guard:
    """The outermost application.

    Attributes:
        app, settings, shared, metrics: as passed.
        ids: an id of 16 characters for each request.
        buffered: bytes of bodies that are in memory.
    """

    def __init__(
        self, app: App, settings: ServerSettings, shared: Shared, metrics: Metrics, slots: int
    ) -> None:
        """`slots`: tokens that `shared` has room for."""
        self.app, self.settings, self.shared, self.metrics = app, settings, shared, metrics
        self.buffered, self._slots = 0, slots
        # Random for each process, then counted: to read random numbers takes longer than all else.
        prefix = secrets.token_hex(4)
        self.ids = (f"{prefix}{number:08x}" for number in count())

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["client"] = scope.get("client") or ("unix", 0)  # a Unix socket names no caller
        root, path = self.settings.root_path, scope["path"]
        if path == root or path.startswith(f"{root}/"):  # the proxy has not taken it off
            scope = {**scope, "path": path[len(root) :]}
        await Passing(self, scope, receive, send).run()

    def reload(self) -> None:
        """Read the tokens again; requests under way have been admitted, and go on.

        If the file has an error, it is logged and the former tokens stay.
        """
        try:
            settings = with_new_tokens(self.settings)
            if (count := len(settings.tokens)) > self._slots:
                raise QueryError(
                    f"{settings.tokens_file} has {count} tokens, and the server has room for "
                    f"{self._slots}; restart it"
                )
        except QueryError as error:
            _log.error("the tokens stay as they are: %s", error)
        else:
            self.settings = settings

    def admit(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> Token | None:
        """The caller's token; None: no token is needed. Raises Refused."""
        settings, path = self.settings, scope["path"]
        if not settings.tokens:
            self._check_host(headers)
        if path in OPEN or not path.startswith(("/v1/", "/metrics")):
            return None
        writes = scope["method"] not in ("GET", "HEAD") and not _READS.fullmatch(path)
        if not settings.tokens:
            if writes:
                raise Refused(403, "writing needs a token; start the server with: --tokens FILE")
            return None
        position = token_position(settings.tokens, headers.get(b"authorization"))
        if position is None:
            raise Refused(
                401,
                "a token is needed: Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )
        token = settings.tokens[position]
        if settings.rate is not None and not self.shared.within_rate(position, settings.rate):
            self.metrics.refused.labels("rate").inc()
            raise Refused(429, f"more than {settings.rate:g} requests per second; slow down", RETRY)
        if writes and not token.writes:
            raise Refused(403, "this token may read only; use one with the scope write")
        if token.collections and path.startswith("/metrics"):
            raise Refused(403, "metrics are about all collections; use a token without a limit")
        return token

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Refuse other names of this machine: a web page could make one of its own point here."""
        host = headers.get(b"host", b"").decode("latin1").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name not in (*_LOOPBACK, self.settings.host.lower()):
            raise Refused(421, "without tokens, the server answers to localhost and 127.0.0.1 only")


class Passing:
    """One request on its way."""

    def __init__(
        self, guard: Guard, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        self._method = scope["method"]
        if self._method == "HEAD":  # as GET, without the body
            scope = {**scope, "method": "GET"}
        self._guard, self._scope = guard, scope
        self._receive, self._send = receive, send
        self._settings = guard.settings
        self._start = time.perf_counter()
        self._identity = scope["id"] = next(guard.ids)
        self._status = 0  # of the response; 0: none has begun
        self._read = 0  # bytes of the body
        # Whether the body has been read; that of a GET or DELETE is nobody's.
        self._complete = scope["method"] in ("GET", "HEAD", "DELETE")
        self._refused: Refused | None = None  # while the body was read
        self._awaits_continue = False
        self._entered = False  # whether it counts as a request under way
        self._timer: asyncio.TimerHandle | None = None
        self._token: Token | None = None
        self._watching: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._left = False

    async def run(self) -> None:
        """Answer, log and count."""
        try:
            headers = dict(self._scope["headers"])
            self._awaits_continue = b"expect" in headers
            self._token = self._scope["token"] = self._guard.admit(self._scope, headers)
            self._check_body(headers)
            if self._complete:
                self._enter()
            await self._answer()
            if self._refused is not None and not self._status:
                raise self._refused
        except Refused as error:
            await self._refuse(error.status, error.message, error.headers)
        except Left:
            self._status = self._status or 499
        except asyncio.CancelledError:
            self._status = self._status or 499
            raise
        except Exception:
            _log.exception("request %s failed", self._identity)
            await self._refuse(500, INTERNAL)
        finally:
            self._leave()
            self._guard.buffered -= self._read
            self._record()

    def _enter(self) -> None:
        """Count the request as under way. Raises Refused if too many are.

        From the end of its body on, which may come slowly, to the beginning of its response, which
        may be read slowly.
        """
        if not self._scope["path"].startswith("/v1/"):
            return
        self._entered = self._guard.shared.enter(self._settings.max_requests)
        if not self._entered:
            self._guard.metrics.refused.labels("queue").inc()
            raise Refused(429, "too many requests under way; try again", RETRY)

    def _leave(self) -> None:
        if self._entered:
            self._guard.shared.leave()
            self._entered = False

    def _check_body(self, headers: dict[bytes, bytes]) -> None:
        if (coding := headers.get(b"content-encoding", b"identity").lower()) != b"identity":
            raise Refused(415, f"send the body as it is, not by Content-Encoding: {coding!r:.80}")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._settings.max_body:
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused(
            413, f"a request must be at most {self._settings.max_body} bytes; send less at once"
        )

    async def _answer(self) -> None:
        """Run the application within the time limit, until it ends or the caller leaves."""
        if not self._scope["path"]:  # the page names its parts relative to a folder
            redirect = RedirectResponse(f"{self._settings.root_path}/", 308)
            await redirect(self._scope, self._receive, self._sending)
            return
        self._task = asyncio.current_task()
        self._scope["abandon"] = self._abandon
        if self._complete:
            self._watch_later()
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._guard.app(self._scope, self._receiving, self._sending)
        except TimeoutError:
            self._guard.metrics.refused.labels("timeout").inc()
            raise Refused(503, f"not answered within {self._settings.timeout:g} seconds") from None
        except asyncio.CancelledError:
            if self._left and self._task is not None and self._task.uncancel() == 0:
                raise Left from None
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._watching is not None:
                self._watching.cancel()

    def _watch_later(self) -> None:
        """Watch for a caller that leaves, if the request is not answered soon."""
        self._timer = asyncio.get_running_loop().call_later(_WATCH, self._watch)

    def _watch(self) -> None:
        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._abandon()

        self._watching = asyncio.get_running_loop().create_task(watch())

    def _abandon(self) -> None:
        """End the request; its caller has left, or does not read."""
        self._left = True
        if self._task is not None:
            self._task.cancel()

    async def _receiving(self) -> Message:
        """A part of the body, within the limit."""
        if self._complete:  # the watcher receives from now on
            await asyncio.Event().wait()
        message = await self._receive()
        if message["type"] == "http.request":
            received = len(message.get("body", b""))
            self._read += received
            self._guard.buffered += received
            try:
                self._check_received()
                if not message.get("more_body", False):
                    self._complete = True
                    self._watch_later()
                    self._enter()
            except Refused as error:  # which the framework would call a body it cannot parse
                self._refused = error
                raise
        return message

    def _check_received(self) -> None:
        """Raise Refused if this body is too long, or all those in memory are."""
        if self._read > self._settings.max_body:
            raise self._too_large()
        most = max(MAX_BUFFERED, 2 * self._settings.max_body)
        if self._read > _SMALL and self._guard.buffered > most:
            self._guard.metrics.refused.labels("queue").inc()
            raise Refused(429, "too many large requests under way; try again", RETRY)

    async def _sending(self, message: Message) -> None:
        """Add the headers that every response has."""
        if self._refused is not None and not self._status:
            return  # the framework answers that the body cannot be parsed
        if message["type"] == "http.response.start":
            self._status = message["status"]
            present = {name for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                (b"x-request-id", self._identity.encode()),
                *((name, value) for name, value in _HEADERS.items() if name not in present),
            ]
            if self._awaits_continue and not self._complete:  # the body may come, or may not
                message["headers"].append((b"connection", b"close"))
            self._leave()
        elif self._method == "HEAD":
            message = {**message, "body": b""}
        await self._send(message)

    async def _refuse(self, status: int, message: str, headers: Any = None) -> None:
        if self._status:  # a response has begun: all that is left is to end the connection
            return
        self._refused = None
        refusal: Response = error_response(status, message, self._identity, headers)
        await refusal(self._scope, self._receive, self._sending)

    def _record(self) -> None:
        """Count the request and write its line."""
        seconds = time.perf_counter() - self._start
        route = self._scope.get("route")
        template = getattr(route, "path", "other")
        collection = self._scope.get("collection", "")
        self._guard.metrics.answered(template, self._method, collection, self._status, seconds)
        slow = self._settings.slow is not None and 1e3 * seconds >= self._settings.slow
        if self._settings.log == "none" and not slow:
            return
        client = self._scope.get("client") or ("-", 0)
        path = self._scope.get("raw_path", b"").decode("latin1") or self._scope["path"]
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0],
            "token": None if self._token is None else self._token.name,
            "method": self._method,
            "path": path,
            "status": self._status,
            "ms": round(1e3 * seconds, 2),
            "id": self._identity,
        }
        stages = self._stages(seconds) if slow else None
        if self._settings.log == "json":
            text = json.dumps(line if stages is None else line | {"slow": stages})
        else:
            line |= {"token": line["token"] or "-", "ms": f"{1e3 * seconds:.1f} ms"}
            text = " ".join(ascii(str(value))[1:-1] for value in line.values())
            if stages is not None:
                text += " slow: " + ", ".join(f"{name} {ms} ms" for name, ms in stages.items())
        sys.stderr.write(f"{text}\n")

    def _stages(self, seconds: float) -> dict[str, float]:
        """Milliseconds of the stages of a search, and of the rest: waiting, JSON, sending."""
        timing: Timing | None = self._scope.get("timing")
        stages = {} if timing is None else {name: getattr(timing, name) for name in STAGES}
        stages["rest"] = seconds - sum(stages.values())
        return {name: round(1e3 * value, 1) for name, value in stages.items()}
