"""A model behind a URL as an encoder: any server with OpenAI's embeddings endpoint.

encoder = HttpEncoder("https://api.openai.com/v1", "text-embedding-3-small", dimensions=512)
"""

import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property, partial
from random import random
from threading import Event
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import numpy as np

from searchengine.encoders.functions import FunctionEncoder
from searchengine.encoders.protocol import OnBatch, Role, Vectors
from searchengine.errors import EndpointError

_HOME = "https://api.openai.com/"  # the key in OPENAI_API_KEY belongs to it
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_quoted = partial(quote, safe="/:@ ")  # in a source
BATCH = 32  # texts per request
CONCURRENCY = 4  # requests at a time
TRIES = 6  # requests before a failure that may pass is reported
TIMEOUT = 60.0  # seconds to wait for an answer
FIRST_WAIT, MAX_WAIT = 1.0, 20.0
"""Maximum seconds before the first repetition, doubled for each further one, and of all."""
MAX_RETRY_AFTER = 120.0
"""Maximum seconds to wait because an answer's Retry-After says so."""


def is_url(source: object) -> bool:
    """Whether a source of an encoder is a URL."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


class _TemporaryError(EndpointError):
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
        source: URL, model and the settings that are not the default ones; `from_source` reads it.
        runs_on: host that computes the vectors.

    Raises EndpointError.
    """

    url: str
    model: str
    dimensions: int | None = None
    _: KW_ONLY
    key_env: str = "OPENAI_API_KEY"
    query_prompt: str = ""
    document_prompt: str = ""

    tolerance = 0.1
    error = EndpointError
    source, runs_on = "", ""

    def __post_init__(self) -> None:
        self.url, self._sends_key = _checked_url(self.url), True
        if not isinstance(self.model, str) or not self.model.strip():
            raise EndpointError(
                f"{self.url} needs the name of a model, for example {self.url}#nomic-embed-text, "
                f"got {self.model!r}"
            )
        if (width := self.dimensions) is not None:
            if not str(width).isdecimal() or int(width) < 1:
                raise EndpointError(f"dimensions must be a whole number from 1, got {width!r}")
            self.dimensions = int(width)  # a source has it as text
        super().__init__(self.encode, self.model, self.dimensions)
        self.runs_on, self.source = urlsplit(self.url).netloc, f"{self.url}#{_quoted(self.model)}"
        for field in fields(self)[2:]:
            if (value := getattr(self, field.name)) != field.default:
                self.source += f"&{field.name}={_quoted(str(value))}"
        self.title = f"the encoder {self.source}"

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

    def _call(self, texts: list[str], role: Role | None, on_batch: OnBatch | None = None) -> Any:
        prompt = self.query_prompt if role == "query" else self.document_prompt
        texts = [prompt + text for text in texts]
        batches = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]
        stop, vectors = Event(), list[Vectors]()
        with ThreadPoolExecutor(CONCURRENCY, "encode") as pool:
            try:
                for rows in pool.map(partial(self._vectors, self._client, stop), batches):
                    vectors.append(rows)
                    if on_batch is not None:
                        on_batch(len(rows))
            finally:
                stop.set()  # after a failure nobody sleeps through a long wait
        return np.concatenate(vectors)

    def _vectors(self, client: Any, stop: Event, texts: list[str]) -> Vectors:
        """The vectors (n, D) of a batch. Raises EndpointError, also once `stop` is set."""
        for tries in range(1, TRIES + 1):
            try:
                return self._request(client, texts)
            except _TemporaryError as error:
                problem, seconds = error.args
            # At random, so that clients that were refused together do not come back together.
            seconds = max(seconds, random() * min(FIRST_WAIT * 2 ** (tries - 1), MAX_WAIT))
            if tries == TRIES or stop.wait(seconds):
                break
        raise EndpointError(
            f"{self.title} {problem}, {tries} times; check that it runs, or try later"
        )

    def _request(self, client: Any, texts: list[str]) -> Vectors:
        """The vectors of one request. Raises EndpointError."""
        import httpx2

        body: dict[str, Any] = {"model": self.model, "input": texts, "encoding_format": "float"}
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        try:
            response = client.post(f"{self.url}/embeddings", json=body)
        except httpx2.RequestError as error:
            raise _TemporaryError(f"does not answer ({type(error).__name__}: {error})", 0) from None
        status, advice = response.status_code, "correct the URL, the model or the texts"
        if status == 200:
            with suppress(*_MALFORMED):
                return _parsed(response.json(), len(texts))
            advice = f"expected {len(texts)} embeddings of one width, as OpenAI defines them"
        elif status in (401, 403):
            advice = f"check the key in {self.key_env}"
            if not self._sends_key:
                advice += f", which goes only to hosts that you name: --encoder '{self.source}'"
        text = " ".join(response.text.split())
        if key := self._key():
            text = text.replace(key, "…")  # first: cut off in the middle, it would be missed
        problem = f"answered {status} ({text[:300]})"
        if status in (408, 409, 429) or status >= 500:
            wait = response.headers.get("retry-after", "0")
            seconds = float(wait) if wait.replace(".", "").isdecimal() else MAX_WAIT  # or a date
            raise _TemporaryError(problem, min(seconds, MAX_RETRY_AFTER))
        raise EndpointError(f"{self.title} {problem}; {advice}")

    @cached_property
    def _client(self) -> Any:
        import httpx2

        key = self._key()
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise EndpointError(
                f"the environment variable {self.key_env} must hold a key of ASCII letters, "
                f"digits and punctuation, to be sent to {self.url}; set it again"
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        client = httpx2.Client(headers=headers, timeout=TIMEOUT)
        weakref.finalize(self, client.close)
        return client

    def _key(self) -> str:
        """The key to send, or "". Only the client keeps it."""
        return os.environ.get(self.key_env, "").strip() if self._sends_key else ""


def _parsed(answer: Any, count: int) -> Vectors:
    """The vectors (count, D) of an answer, in the order of its `index`."""
    rows = answer["data"]
    order = [row.get("index", i) for i, row in enumerate(rows)]
    with np.errstate(over="ignore"):  # values beyond float32 become infinity
        vectors = np.array([row["embedding"] for row in rows], np.float32)
    if vectors.ndim != 2 or sorted(order) != [*range(count)] or not np.isfinite(vectors).all():
        raise ValueError("not as many vectors, each with its index")
    return vectors[np.argsort(order)]


def _checked_url(url: object) -> str:
    """The URL without the slash at its end. Raises EndpointError."""
    text = str(url)
    try:
        valid = is_url(url) and bool(urlsplit(text).hostname) and urlsplit(text).port != 0
    except ValueError:  # the port, or brackets of an address
        valid = False
    if not valid or not {*text}.isdisjoint("@?#"):
        raise EndpointError(
            "expected a URL such as https://api.openai.com/v1 or http://localhost:11434/v1, with "
            "no password, ? or #: it is stored with the collection; put the key into an "
            "environment variable (key_env)"
        )
    return text.rstrip("/").removesuffix("/embeddings")
