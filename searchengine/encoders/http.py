"""A model behind a URL as an encoder: any server with OpenAI's embeddings endpoint.

encoder = HttpEncoder("https://api.openai.com/v1", "text-embedding-3-small", dimensions=512)
"""

import json
import os
import random
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from itertools import count
from threading import Event
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import numpy as np

from searchengine.encoders.functions import FunctionEncoder
from searchengine.encoders.protocol import OnBatch, Role, Vectors
from searchengine.errors import EndpointError

_HOME = "https://api.openai.com/"  # the key in OPENAI_API_KEY belongs to it
_LEAST = {"dimensions": 1, "batch": 1, "concurrency": 1, "max_retries": 0, "timeout": 0.001}
_MOST = 86_400  # of each of them; a day, in seconds
_READABLE = "/:@ "  # characters of a source that need no escape
FIRST_WAIT, MAX_WAIT = 0.5, 20.0
"""Seconds before the first repetition, doubled for each further one, and their maximum."""
MAX_RETRY_AFTER = 120.0
"""Maximum seconds to wait because an answer's Retry-After says so."""
BYTES_PER_TEXT = 1 << 20
"""Maximum size of an answer: 4,096 dimensions in JSON take a tenth of it."""


def is_url(source: object) -> bool:
    """Whether a source of an encoder is a URL."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


class _Passing(EndpointError):
    """A failure after which the same request may succeed, in `wait` seconds or later."""

    wait = 0.0


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
        max_retries: repetitions of a request that fails for a while (429, 5xx, no connection).
        timeout: seconds to wait for an answer, at most a day.

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
    max_retries: int = 5
    timeout: float = 60.0

    tolerance = 0.1
    error = EndpointError

    def __post_init__(self) -> None:
        self.url = _checked_url(self.url)
        if not isinstance(self.model, str) or not self.model.strip():
            raise EndpointError(
                f"{self.url} needs the name of a model, for example {self.url}#nomic-embed-text, "
                f"got {self.model!r}"
            )
        for name, least in _LEAST.items():
            value: Any = getattr(self, name)
            kinds: Any = {"timeout": (int, float), "dimensions": (int, type(None))}.get(name, int)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise EndpointError(f"{name} must be a number, got {value!r}")
            if value is not None and not least <= value <= _MOST:
                raise EndpointError(f"{name} must be from {least} to {_MOST}, got {value}")
        self._sends_key = True
        question = None if self.query_prompt == self.document_prompt else self.encode
        super().__init__(self.encode, self.model, self.dimensions, query=question)

    @classmethod
    def from_source(cls, source: str, *, is_named: bool = True) -> Self:
        """The encoder of a source: `url#model`, perhaps with `&dimensions=512` and so on.

        `is_named`: by the user. One that only a collection names gets no key, unless it is
        OpenAI's: who made the collection may have chosen the host and the variable of the key.
        Raises EndpointError.
        """
        url, _, rest = source.partition("#")
        model, _, options = rest.partition("&")
        values: dict[str, Any] = dict(parse_qsl(options, keep_blank_values=True))
        known = sorted({field.name for field in fields(cls)} - {"url", "model"})
        for name, value in values.items():
            if name not in known:
                raise EndpointError(
                    f"{source}: {name!r} is not a setting; choose from {', '.join(known)}"
                )
            if name in _LEAST:
                try:
                    values[name] = float(value) if name == "timeout" else int(value)
                except ValueError:
                    raise EndpointError(
                        f"{source}: {name} must be a number, got {value!r}"
                    ) from None
        encoder = cls(url, unquote(model), **values)
        is_home = encoder.url.startswith(_HOME) and encoder.key_env == cls.key_env
        encoder._sends_key = is_named or is_home
        return encoder

    @property
    def source(self) -> str:
        """URL, model and the settings that are not the default ones; `from_source` reads it."""
        parts = [f"{self.url}#{quote(self.model, safe=_READABLE)}"]
        for field in fields(self)[2:]:
            if (value := getattr(self, field.name)) != field.default:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_source, (self.source,)

    def _call(self, texts: list[str], role: Role | None, on_batch: OnBatch | None = None) -> Any:
        prompt = self.query_prompt if role == "query" else self.document_prompt
        texts = [prompt + text for text in texts]
        parts = [texts[i : i + self.batch] for i in range(0, len(texts), self.batch)]
        client, stop = self._client, Event()
        with ThreadPoolExecutor(self.concurrency, "encode") as pool:
            work = [pool.submit(self._vectors, client, part, stop) for part in parts]
            try:
                for future in as_completed(work):
                    count = len(future.result())
                    if on_batch is not None:
                        on_batch(count)
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        vectors = [future.result() for future in work]
        return np.concatenate([self._sized(part, vectors[0].shape[1]) for part in vectors])

    def _vectors(self, client: Any, texts: list[str], stop: Event) -> Vectors:
        """The vectors (n, D) of a batch. Raises EndpointError, also once `stop` is set."""
        body: dict[str, Any] = {"model": self.model, "input": texts, "encoding_format": "float"}
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        try:
            for tries in count(1):
                try:
                    return self._answer(client, body)
                except _Passing as error:
                    if tries > self.max_retries:
                        times = f" {tries} times" if tries > 1 else ""
                        raise EndpointError(
                            f"{error}{times}; check that it runs, or try again with a lower "
                            "concurrency"
                        ) from None
                    # So that those who failed together do not come back together.
                    wait = min(MAX_WAIT, FIRST_WAIT * 2 ** (tries - 1)) * random.uniform(0.5, 1)
                    if stop.wait(max(error.wait, wait)):
                        raise EndpointError("is no longer asked: another request failed") from None
        except EndpointError as error:
            # Not `from error`: a traceback would show the key that an answer repeats.
            raise EndpointError(f"{self.url}/embeddings {error}") from None
        raise AssertionError("the loop ends by itself")

    def _answer(self, client: Any, body: dict[str, Any]) -> Vectors:
        """The vectors of one request. Raises EndpointError without the URL."""
        import httpx2

        number = len(body["input"])
        content, limit = bytearray(), (number + 1) * BYTES_PER_TEXT
        try:
            with client.stream("POST", f"{self.url}/embeddings", json=body) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > limit:
                        raise EndpointError(f"answered with more than {limit >> 20} MiB")
        except httpx2.RequestError as error:
            raise _Passing(f"does not answer ({str(error) or type(error).__name__})") from None
        status, problem = response.status_code, self._message(content)
        if status == 200:
            try:
                return _parsed(content, number)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                raise EndpointError(
                    f"must answer with {number} embeddings of one width, as OpenAI defines them"
                    f"{problem}"
                ) from None
        problem = f"answered {status}{problem}"
        if status in (401, 403):
            named = "" if self._sends_key else (
                f", which goes only to hosts that you name (--encoder '{self.source}' or encoder=…)"
            )  # fmt: skip
            raise EndpointError(f"{problem}; check the key in the variable {self.key_env}{named}")
        if (status not in (408, 409, 429) and status < 500) or b'"insufficient_quota"' in content:
            raise EndpointError(f"{problem}; correct the URL, the model or the texts")
        passing = _Passing(problem)
        try:
            passing.wait = float(response.headers.get("retry-after", 0))
        except ValueError:  # a date
            passing.wait = MAX_WAIT
        if passing.wait > MAX_RETRY_AFTER:
            raise EndpointError(f"{problem}, and asks to wait {passing.wait:.0f} s")
        raise passing

    @cached_property
    def _client(self) -> Any:
        import httpx2

        key = self._key()
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise EndpointError(
                f"{self.url} needs a key of ASCII letters, digits and punctuation, but the value "
                f"of the environment variable {self.key_env} has other characters; set it again"
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = httpx2.Client(headers=headers, timeout=self.timeout)
        weakref.finalize(self, client.close)
        return client

    def _key(self) -> str:
        """The key to send, or "". Only the client keeps it."""
        return os.environ.get(self.key_env, "").strip() if self._sends_key else ""

    def _message(self, content: bytearray) -> str:
        """The server's message in an answer, in parentheses and without the key, or nothing."""
        try:
            error = json.loads(content)["error"]
            message = " ".join(str(error if isinstance(error, str) else error["message"]).split())
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""
        key = self._key()  # hidden first: cut off in the middle, it would not be recognized
        return f" ({(message.replace(key, '…') if key else message)[:300]})"


def _parsed(content: bytearray, number: int) -> Vectors:
    """The vectors (number, D) of an answer, in the order of its `index`."""
    rows = json.loads(content)["data"]
    order = [row.get("index", i) for i, row in enumerate(rows)]
    with np.errstate(over="ignore"):  # values beyond float32 become infinity
        vectors = np.array([row["embedding"] for row in rows], np.float32)
    if vectors.ndim != 2 or sorted(order) != [*range(number)] or not np.isfinite(vectors).all():
        raise ValueError("not as many vectors, each with its number")
    result = np.empty_like(vectors)
    result[order] = vectors
    return result


def _checked_url(url: object) -> str:
    """The URL without the slash at its end. Raises EndpointError."""
    try:
        parts = urlsplit(str(url))
        valid = is_url(url) and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # the port, or brackets of an address
        valid = False
    if not valid:
        raise EndpointError(
            f"expected a URL such as https://api.openai.com/v1 or http://localhost:11434/v1, "
            f"got {url!r}"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise EndpointError(
            f"the URL of {parts.hostname} must have no password, no ? and no #: it is stored with "
            "the collection; put the key into an environment variable (key_env)"
        )
    return str(url).rstrip("/").removesuffix("/embeddings")
