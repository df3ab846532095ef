"""Requests to an embeddings endpoint as OpenAI defines it, repeated where that may help.

https://platform.openai.com/docs/api-reference/embeddings
"""

import base64
import json
import random
import time
import weakref
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from itertools import count
from threading import Event, Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from searchengine.encoders.protocol import Vectors
from searchengine.errors import EndpointError

FIRST_WAIT, MAX_WAIT = 0.5, 20.0
"""Seconds before the first repetition, doubled for each further one, and their maximum."""
MAX_RETRY_AFTER = 120.0
"""Maximum seconds to wait because an answer's Retry-After says so."""
BYTES_PER_TEXT = 1 << 20
"""Maximum size of an answer: 4,096 dimensions in JSON take a tenth of it."""
_ERROR_BYTES = 1 << 16
_REPEATED = frozenset({408, 409, 429})  # and 500 to 599
_CONNECT = 10.0  # seconds


class Endpoint:
    """Connections to one URL. Safe to use from several threads, not in a forked child."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        without_key: str,
        connections: int,
        max_retries: int,
        timeout: float,
        per_minute: int | None,
    ) -> None:
        """`key`: sent as a bearer token unless empty; `without_key`: advice if it is missed."""
        import httpx2

        self._library = httpx2
        self.url = f"{url}/embeddings"
        self._key, self._without_key = key, without_key
        self._max_retries, self._timeout = max_retries, timeout
        self._interval = 0.0 if per_minute is None else 60 / per_minute
        self._lock = Lock()
        self._next = 0.0  # time.monotonic() before which no request begins
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT), pool=None),
            limits=httpx2.Limits(max_connections=connections),
        )
        weakref.finalize(self, self._client.close)

    def vectors(self, body: Mapping[str, Any], stop: Event) -> Vectors:
        """The vectors (n, D) of body["input"]. Raises EndpointError, also once `stop` is set."""
        number = len(body["input"])
        try:
            content = self._post(body, (number + 1) * BYTES_PER_TEXT, stop)
            return parsed(content, number, self._key)
        except EndpointError as error:
            # Not `from error`: a traceback would show the key that an answer repeats.
            raise EndpointError(_hidden(f"{self.url} {error}", self._key)) from None

    def _post(self, body: Mapping[str, Any], limit: int, stop: Event) -> bytes:
        """The content of the answer. Raises EndpointError without the URL."""
        for tries in count(1):
            self._wait_for_turn(stop)
            retry_after, advice = None, "check that it runs"
            try:
                status, headers, content = self._request(body, limit)
            except self._library.TransportError as error:
                problem = f"does not answer ({str(error) or type(error).__name__})"
            except self._library.RequestError as error:
                raise EndpointError(f"answered what cannot be decoded ({error})") from error
            else:
                if status == 200:
                    return content
                problem = f"answered {status}{_message(content, self._key)}"
                if not _may_help(status, headers, content):
                    raise EndpointError(f"{problem}{self._advice(status, headers)}")
                if status == 429:
                    advice = "set per_minute or a lower concurrency"
                retry_after = _retry_after(headers)
                if retry_after is not None and retry_after > MAX_RETRY_AFTER:
                    raise EndpointError(
                        f"{problem}, and asks to wait {retry_after:.0f} s; try again then"
                    )
            if tries > self._max_retries:
                times = "" if tries == 1 else f" {tries} times"
                raise EndpointError(f"{problem}{times}; {advice}, or try again later")
            self._pause(tries, retry_after, stop)
        raise AssertionError("the loop ends by itself")

    def _request(self, body: Mapping[str, Any], limit: int) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content; a longer answer than `limit` bytes is refused."""
        content, end = bytearray(), time.monotonic() + self._timeout
        with self._client.stream("POST", self.url, json=body) as response:
            status = response.status_code
            for chunk in response.iter_bytes():
                content += chunk
                if status != 200 and len(content) > _ERROR_BYTES:
                    break
                if len(content) > limit:
                    raise EndpointError(f"answered with more than {limit >> 20} MiB")
                if time.monotonic() > end:
                    raise self._library.ReadTimeout(f"more than {self._timeout:g} s")
            return status, response.headers, bytes(content)

    def _wait_for_turn(self, stop: Event) -> None:
        """Wait for the request's place in the rate, and while the endpoint asks for a pause."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + self._interval
        if stop.wait(begin - now):
            raise EndpointError("is no longer asked: another request failed")

    def _pause(self, tries: int, seconds: float | None, stop: Event) -> None:
        """Wait before a repetition.

        `seconds`: what the endpoint asks for, or None; until then no other thread begins a request.
        """
        if seconds is not None:
            with self._lock:
                self._next = max(self._next, time.monotonic() + seconds)
        longest = min(MAX_WAIT, FIRST_WAIT * 2 ** (tries - 1))
        # So that those who failed together do not come back together.
        if stop.wait(longest * random.uniform(0.5, 1)):
            raise EndpointError("is no longer asked: another request failed")

    def _advice(self, status: int, headers: Mapping[str, str]) -> str:
        if 300 <= status < 400:
            return f"; if you trust {headers.get('location')}, name that URL instead"
        if status in (401, 403):
            return "; correct the key" if self._key else f"; {self._without_key}"
        return "; correct the URL, the model or the texts"


def _hidden(text: str, key: str) -> str:
    return text.replace(key, "…") if key else text


def _message(content: bytes, key: str) -> str:
    """The server's message in an answer, in parentheses and without the key, or nothing."""
    try:
        answer = json.loads(content)
        error = answer.get("error", answer)
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    # The key is hidden first: cut off in the middle, it would not be recognized.
    return f" ({_hidden(' '.join(str(message).split()), key)[:300]})"


def _may_help(status: int, headers: Mapping[str, str], content: bytes) -> bool:
    """Whether the same request may succeed later."""
    if headers.get("x-should-retry") == "false" or b'"insufficient_quota"' in content:
        return False
    return status in _REPEATED or 500 <= status < 600


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, where an answer states them or a date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def parsed(content: bytes, number: int, key: str) -> Vectors:
    """The vectors (number, D) of an answer, in the order of its `index`.

    Raises EndpointError with the server's message, if there is one, without `key`.
    """
    try:
        rows = json.loads(content)["data"]
        indices = [row.get("index", i) for i, row in enumerate(rows)]
        vectors = [_row(row["embedding"]) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EndpointError(
            "answered what is not a list of embeddings as OpenAI defines it"
            f"{_message(content, key)}"
        ) from error
    if len(vectors) != number:
        raise EndpointError(
            f"must answer with one vector for each of {number} texts, got {len(vectors)}"
        )
    if {*map(repr, indices)} != {*map(repr, range(number))}:
        numbers = ", ".join(map(repr, indices))
        raise EndpointError(f"must number the vectors from 0 to {number - 1}, got {numbers:.80}")
    if len(widths := sorted({len(vector) for vector in vectors})) > 1:
        raise EndpointError(f"answered with vectors of {widths[0]} and of {widths[-1]} dimensions")
    result = np.empty((number, widths[0]), np.float32)
    with np.errstate(over="ignore"):  # values beyond float32 become infinity
        for i, vector in zip(indices, vectors, strict=True):
            result[i] = vector
    if not np.isfinite(result).all():
        raise EndpointError("answered with NaN or infinity in a vector")
    return result


def _row(embedding: object) -> npt.NDArray[Any]:
    """One vector (D,): a list of numbers, or float32 in base64. Raises ValueError."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    vector = np.array(embedding)
    if not isinstance(embedding, list) or vector.ndim != 1 or vector.dtype.kind not in "fi":
        raise ValueError("not a list of numbers")
    return vector
