"""A model behind a URL as an encoder: any server with OpenAI's embeddings endpoint.

encoder = HttpEncoder("https://api.openai.com/v1", "text-embedding-3-small", dimensions=512)
"""

import base64
import hmac
import json
import os
import random
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import KW_ONLY, dataclass, fields
from email.utils import parsedate_to_datetime
from itertools import count
from threading import Event, Lock
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from searchengine.encoders.functions import FunctionEncoder
from searchengine.encoders.protocol import OnBatch, Role, Vectors
from searchengine.errors import EndpointError
from searchengine.trainer.model.disk import signature, signing_key

_SCHEMES = ("http://", "https://")
_HOME = "https://api.openai.com/"  # the key in OPENAI_API_KEY belongs to it
_NUMBERS = {"dimensions": int, "batch": int, "concurrency": int, "per_minute": int,
            "max_retries": int, "timeout": float}  # fmt: skip
_DAY = 86_400  # seconds
_READABLE = "/:@ "  # characters of a source that need no escape
FIRST_WAIT, MAX_WAIT = 0.5, 20.0
"""Seconds before the first repetition, doubled for each further one, and their maximum."""
MAX_RETRY_AFTER = 120.0
"""Maximum seconds to wait because an answer's Retry-After says so."""
BYTES_PER_TEXT = 1 << 20
"""Maximum size of an answer: 4,096 dimensions in JSON take a tenth of it."""
_ERROR_BYTES = 1 << 16
_REPEATED = frozenset({408, 409, 429})  # and 500 to 599
_CONNECT = 10.0  # seconds


def is_url(source: object) -> bool:
    """Whether a source of an encoder is a URL."""
    return isinstance(source, str) and source.lower().startswith(_SCHEMES)


@dataclass(eq=False, repr=False)
class HttpEncoder(FunctionEncoder):
    """Encodes by requests to `url`/embeddings. Several threads may call it at the same time.

    A collection stores all settings, but never the key, and finds the encoder again by them. The
    server has the tokenizer, so documents are kept whole.

    Attributes:
        url: up to the version, as https://api.openai.com/v1.
        model: identifies the encoder, together with its vectors.
        dimensions: width to ask the server for; None: as the model has it.
        key_env: environment variable that holds the key; without it none is sent.
        query_prompt, document_prompt: text in front of each question and document.
        batch: texts per request.
        concurrency: requests at a time.
        per_minute: maximum requests per minute; None: as the server allows.
        max_retries: repetitions of a request that fails for a while (429, 5xx, no connection).
        timeout: seconds for each try, at most a day.
        encoding: how the server should write vectors; either is understood.

    Raises EndpointError.
    """

    url: str
    model: str
    dimensions: int | None = None
    _: KW_ONLY
    key_env: str = "OPENAI_API_KEY"
    query_prompt: str = ""
    document_prompt: str = ""
    batch: int = 32
    concurrency: int = 4
    per_minute: int | None = None
    max_retries: int = 5
    timeout: float = 60.0
    encoding: Literal["float", "base64"] = "float"

    tolerance = 0.1
    error = EndpointError

    def __post_init__(self) -> None:
        self.url = _checked_url(self.url)
        if not isinstance(self.model, str) or not self.model.strip():
            raise EndpointError(
                f"{self.url} needs the name of a model, for example {self.url}#nomic-embed-text, "
                f"got {self.model!r}"
            )
        for name, least in (
            ("dimensions", 1), ("batch", 1), ("concurrency", 1), ("per_minute", 1),
            ("max_retries", 0), ("timeout", 0.001),
        ):  # fmt: skip
            value, whole = getattr(self, name), _NUMBERS[name] is int
            if value is None and name in ("dimensions", "per_minute"):
                continue
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise EndpointError(f"{name} must be {_kind(name)}, got {value!r}")
            if not value >= least:
                raise EndpointError(f"{name} must be at least {least}, got {value}")
        if self.timeout > _DAY:
            raise EndpointError(
                f"timeout must be at most {_DAY} seconds (a day), got {self.timeout}"
            )
        if self.encoding not in ("float", "base64"):
            raise EndpointError(f"encoding must be float or base64, got {self.encoding!r}")
        self._sends_key = True
        self._endpoints: dict[int, Endpoint] = {}
        question = None if self.query_prompt == self.document_prompt else self.encode
        super().__init__(self.encode, self.model, self.dimensions, query=question)

    @classmethod
    def from_source(cls, source: str, identity: Mapping[str, Any] | None = None) -> Self:
        """The encoder of a source: `url#model`, perhaps with `&dimensions=512` and so on.

        `identity`: the settings of a collection that names the source. The key is sent only if this
        user signed them: whoever made the collection may have chosen another host for it.
        Raises EndpointError.
        """
        url, _, rest = source.partition("#")
        model, _, options = rest.partition("&")
        known = {field.name for field in fields(cls)} - {"url", "model"}
        values: dict[str, Any] = {}
        for name, value in parse_qsl(options, keep_blank_values=True):
            if name not in known:
                raise EndpointError(
                    f"{source}: {name!r} is not a setting; choose from {', '.join(sorted(known))}"
                )
            try:
                values[name] = _NUMBERS.get(name, str)(value)
            except ValueError:
                raise EndpointError(
                    f"{source}: {name} must be {_kind(name)}, got {value!r}"
                ) from None
        encoder = cls(url, unquote(model), **values)
        if identity is not None:
            expected = encoder._signature()
            encoder._sends_key = (
                expected is not None
                and hmac.compare_digest(str(identity.get("signature")), expected)
            ) or (encoder.url.startswith(_HOME) and encoder.key_env == cls.key_env)
        return encoder

    @property
    def source(self) -> str:
        """URL, model and the settings that are not the default ones; `from_source` reads it."""
        parts = [f"{self.url}#{quote(self.model, safe=_READABLE)}"]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("url", "model") and value != field.default:
                parts.append(f"{field.name}={quote(str(value), safe=_READABLE)}")
        return "&".join(parts)

    @property
    def title(self) -> str:
        """Name in error messages."""
        return f"the encoder {self.source}"

    @property
    def runs_on(self) -> str:
        """Host that computes the vectors."""
        return urlsplit(self.url).netloc

    def described(self) -> dict[str, Any]:
        """Stored settings, with a signature that lets the same user reopen the collection."""
        signature = self._signature(create=True)
        return super().described() | ({} if signature is None else {"signature": signature})

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: OnBatch | None = None
    ) -> Vectors:
        """Float32 (n, dim) unit rows, in the order of the texts.

        `on_batch` is called in this thread with the number of texts just done. Raises
        EndpointError.
        """
        if not len(texts):
            return super().encode(texts)
        vectors = self._checked(self._call(list(texts), role, on_batch), len(texts))
        return self._sized(vectors, self.dim)

    def _call(
        self, texts: list[str], role: Role | None, on_batch: OnBatch | None = None
    ) -> Vectors:
        parts, stop = [texts[i : i + self.batch] for i in range(0, len(texts), self.batch)], Event()
        vectors: list[Vectors] = [np.empty((0, 0), np.float32)] * len(parts)
        with ThreadPoolExecutor(self.concurrency, "encode") as pool:
            work = {pool.submit(self._request, part, role, stop): i for i, part in enumerate(parts)}
            try:
                for future in as_completed(work):
                    vectors[work[future]] = future.result()
                    if on_batch is not None:
                        on_batch(len(parts[work[future]]))
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for part in vectors[1:]:
            self._sized(part, vectors[0].shape[1])
        return np.concatenate(vectors)

    def _request(self, texts: Sequence[str], role: Role | None, stop: Event) -> Vectors:
        prompt = self.query_prompt if role == "query" else self.document_prompt
        body: dict[str, Any] = {
            "model": self.model,
            "input": [prompt + text for text in texts],
            "encoding_format": self.encoding,
        }
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        process = os.getpid()  # a forked child has connections of its own
        endpoint = self._endpoints.get(process)
        if endpoint is None:
            endpoint = self._endpoints.setdefault(process, self._connected())
        return endpoint.vectors(body, stop)

    def _connected(self) -> "Endpoint":
        key = os.environ.get(self.key_env, "").strip()
        advice = f"put the key into the environment variable {self.key_env}"
        if key and not self._sends_key:
            key, advice = (
                "",
                (
                    f"the key in {self.key_env} goes only to hosts that you named: name this one "
                    f"(--encoder '{self.source}' or encoder=…) if you trust it"
                ),
            )
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise EndpointError(
                f"{self.url} needs a key of ASCII letters, digits and punctuation, but the value "
                f"of the environment variable {self.key_env} has other characters; set it again"
            )
        return Endpoint(
            self.url,
            key,
            without_key=advice,
            connections=self.concurrency,
            max_retries=self.max_retries,
            timeout=self.timeout,
            per_minute=self.per_minute,
        )

    def _signature(self, *, create: bool = False) -> str | None:
        key = signing_key(create=create)
        record = {"url": self.url, "key_env": self.key_env}
        return None if key is None else signature(key, record)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_source, (self.source,)


def _kind(name: str) -> str:
    return "a whole number" if _NUMBERS[name] is int else "a number"


def _checked_url(url: object) -> str:
    """The URL without the slash at its end. Raises EndpointError."""
    try:
        parts = urlsplit(url) if isinstance(url, str) and is_url(url) else None
        valid = parts is not None and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # the port, or brackets of an address
        valid = False
    if not valid or parts is None:
        raise EndpointError(
            f"expected a URL such as https://api.openai.com/v1 or http://localhost:11434/v1, "
            f"got {url!r}"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise EndpointError(
            f"the URL of {parts.hostname} must have no password, no ? and no #: it is stored with "
            "the collection; put the key into an environment variable (key_env)"
        )
    assert isinstance(url, str)
    return url.rstrip("/").removesuffix("/embeddings")


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
            f"did not answer with a list of embeddings as OpenAI defines it{_message(content, key)}"
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
