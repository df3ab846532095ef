"""A model behind a URL as an encoder: any server with OpenAI's embeddings endpoint.

encoder = HttpEncoder("https://api.openai.com/v1", "text-embedding-3-small", dimensions=512)
"""

import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import KW_ONLY, dataclass, fields
from threading import Event
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import numpy as np

from searchengine.encoders.endpoint import Endpoint
from searchengine.encoders.functions import FunctionEncoder
from searchengine.encoders.protocol import Role, Vectors
from searchengine.errors import EndpointError
from trainer.model import checksums

_SCHEMES = ("http://", "https://")
_HOME = "https://api.openai.com/"  # the key in OPENAI_API_KEY belongs to it
_NUMBERS = {"dimensions": int, "batch": int, "concurrency": int, "per_minute": int,
            "max_retries": int, "timeout": float}  # fmt: skip
_DAY = 86_400  # seconds
_READABLE = "/:@ "  # characters of a source that need no escape


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
        """What errors call it."""
        return f"the encoder {self.source}"

    @property
    def runs_on(self) -> str:
        """Where it is computed."""
        return urlsplit(self.url).netloc

    def described(self) -> dict[str, Any]:
        """What a collection stores of it, with a signature that lets the same user reopen it."""
        signature = self._signature(create=True)
        return super().described() | ({} if signature is None else {"signature": signature})

    def encode(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        on_batch: Callable[[int], None] | None = None,
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
        self, texts: list[str], role: Role | None, on_batch: Callable[[int], None] | None = None
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

    def _connected(self) -> Endpoint:
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
        key = checksums.signing_key(create=create)
        record = {"url": self.url, "key_env": self.key_env}
        return None if key is None else checksums.signature(key, record)

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
