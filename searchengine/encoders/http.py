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
    """A failure after which the same request may succeed: the problem, and seconds to wait."""


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
        self.url, self._sends_key = _checked_url(self.url), True
        if not isinstance(self.model, str) or not self.model.strip():
            raise EndpointError(
                f"{self.url} needs the name of a model, for example {self.url}#nomic-embed-text, "
                f"got {self.model!r}"
            )
        for name in ("dimensions", "batch", "concurrency", "max_retries", "timeout"):
            if (value := getattr(self, name)) is not None or name != "dimensions":
                setattr(self, name, _number(name, value))
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
        settings: dict[str, Any] = dict(parse_qsl(options, keep_blank_values=True))
        known = sorted({field.name for field in fields(cls)} - {"url", "model"})
        if unknown := sorted(settings.keys() - known):
            raise EndpointError(
                f"{source}: {unknown[0]!r} is not a setting; choose from {', '.join(known)}"
            )
        encoder = cls(url, unquote(model), **settings)
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
                    number = len(future.result())
                    if on_batch is not None:
                        on_batch(number)
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [vector for future in work for vector in future.result()]

    def _vectors(self, client: Any, texts: list[str], stop: Event) -> Vectors:
        """The vectors (n, D) of a batch. Raises EndpointError, also once `stop` is set."""
        for tries in count(1):
            try:
                return self._answer(client, texts)
            except _Passing as error:
                problem, wait = error.args
            except EndpointError as error:
                # Not `from error`: a traceback would show the key that an answer repeats.
                raise EndpointError(f"{self.url}/embeddings {error}") from None
            # So that those who failed together do not come back together.
            pause = min(MAX_WAIT, FIRST_WAIT * 2 ** (tries - 1)) * random.uniform(0.5, 1)
            if tries > self.max_retries or stop.wait(max(wait, pause)):
                times = f" {tries} times" if tries > 1 else ""
                raise EndpointError(
                    f"{self.url}/embeddings {problem}{times}; check that it runs, or try again "
                    "with a lower concurrency"
                )
        raise AssertionError("the loop ends by itself")

    def _answer(self, client: Any, texts: list[str]) -> Vectors:
        """The vectors of one request. Raises EndpointError without the URL."""
        import httpx2

        body: dict[str, Any] = {"model": self.model, "input": texts, "encoding_format": "float"}
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        content, limit = bytearray(), (len(texts) + 1) * BYTES_PER_TEXT
        try:
            with client.stream("POST", f"{self.url}/embeddings", json=body) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > limit:
                        raise EndpointError(f"answered with more than {limit >> 20} MiB")
        except httpx2.RequestError as error:
            raise _Passing(f"does not answer ({str(error) or type(error).__name__})", 0) from None
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        status, message = response.status_code, self._message(answer)
        if status == 200:
            try:
                return _parsed(answer, len(texts))
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                wanted = f"{len(texts)} embeddings of one width, as OpenAI defines them"
                raise EndpointError(f"must answer with {wanted}{message}") from None
        if (status in (408, 409, 429) or status >= 500) and b'"insufficient_quota' not in content:
            wait = response.headers.get("retry-after", "0")
            seconds = float(wait) if wait.replace(".", "").isdecimal() else MAX_WAIT  # or a date
            raise _Passing(f"answered {status}{message}", min(seconds, MAX_RETRY_AFTER))
        advice = "correct the URL, the model or the texts"
        if status in (401, 403):
            named = f", which goes only to hosts that you name: --encoder '{self.source}'"
            advice = f"check the key in {self.key_env}{'' if self._sends_key else named}"
        raise EndpointError(f"answered {status}{message}; {advice}")

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

    def _message(self, answer: Any) -> str:
        """The server's message in an answer, in parentheses and without the key, or nothing."""
        try:
            error = answer["error"]
            message = " ".join(str(error if isinstance(error, str) else error["message"]).split())
        except (LookupError, TypeError):
            return ""
        key = self._key()  # hidden first: cut off in the middle, it would not be recognized
        return f" ({(message.replace(key, '…') if key else message)[:300]})"


def _parsed(answer: Any, number: int) -> Vectors:
    """The vectors (number, D) of an answer, in the order of its `index`."""
    rows = answer["data"]
    order = [row.get("index", i) for i, row in enumerate(rows)]
    with np.errstate(over="ignore"):  # values beyond float32 become infinity
        vectors = np.array([row["embedding"] for row in rows], np.float32)
    if vectors.ndim != 2 or sorted(order) != [*range(number)] or not np.isfinite(vectors).all():
        raise ValueError("not as many vectors, each with its number")
    return vectors[np.argsort(order)]


def _number(name: str, value: Any) -> float:
    """A setting that is a number, also written as a text. Raises EndpointError."""
    kind, least = (float, 0.001) if name == "timeout" else (int, int(name != "max_retries"))
    try:
        number = kind(value) if isinstance(value, str) else value
        if type(number) in (int, kind) and least <= number <= 86_400:  # seconds: a day
            return float(number) if kind is float else int(number)
    except ValueError:
        pass
    whole = "" if kind is float else "whole "
    raise EndpointError(f"{name} must be a {whole}number from {least} to 86400, got {value!r}")


def _checked_url(url: object) -> str:
    """The URL without the slash at its end. Raises EndpointError."""
    try:
        parts = urlsplit(str(url))
        valid = is_url(url) and bool(parts.hostname) and (parts.port or 1) > 0
        valid = valid and not (parts.username is not None or parts.query or parts.fragment)
    except ValueError:  # the port, or brackets of an address
        valid = False
    if not valid:
        raise EndpointError(
            "expected a URL such as https://api.openai.com/v1 or http://localhost:11434/v1, with "
            "no password, ? or #: it is stored with the collection; put the key into an "
            "environment variable (key_env)"
        )
    return str(url).rstrip("/").removesuffix("/embeddings")
