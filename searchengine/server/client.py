"""A client of `searchengine serve`, with the methods and results of SearchEngine.

with Client("http://localhost:8080") as client:
    for hit in client.search("how do whales sleep", k=5):
        print(hit)
"""

import asyncio
import json
import re
import time
import warnings
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack, overload
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from searchengine import errors
from searchengine.corpus.documents import (
    DataFrame,
    Document,
    Key,
    LeftOut,
    Patches,
    as_documents,
    checked_key,
    checked_keys,
    checked_patches,
    rows_of,
)
from searchengine.corpus.synonym_groups import SETTING, groups_of, stored
from searchengine.errors import (
    METHODS,
    CollectionError,
    CorpusError,
    DuplicateKey,
    EmptyCorpus,
    FieldWarning,
    QueryError,
    SearchEngineError,
    SearchTimeout,
    ServerError,
    UnknownKey,
    hinted,
    other_name,
)
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import integer
from searchengine.query.cross_encoding import MAX_CANDIDATES
from searchengine.query.explanation import Explanation
from searchengine.query.hits import STAGES, Hit, Hits, HitsBatch, Timing
from searchengine.query.request import (
    CommonOptions,
    Query,
    Questions,
    as_array,
    check_count,
    check_filter,
    check_questions,
)
from searchengine.query.typing_errors import replaced
from searchengine.server.server_settings import (
    MAX_BATCH,
    MAX_HITS,
    MAX_INPUTS,
    MAX_PAGE,
    MAX_PAIRS,
)

if TYPE_CHECKING:
    from searchengine.engine import AddSummary, Stats

COUNTS = ("added", "changed", "metadata_updated", "unchanged")
"""Possible outcomes for a document that is added."""
ERRORS = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SearchEngineError)
}
"""The errors of the engine by their names in a response: filter_error."""
_FILES = "needs the files of the collection: use SearchEngine or the command line where they are"
_ENCODER = "needs the encoder, which the server has: encode_questions and encode_documents use it"
_RANKING = "works on an open collection: use SearchEngine where its files are"
_STATISTICS = "stats() has it"
UNAVAILABLE = {
    **dict.fromkeys(
        (
            *("create", "open", "open_or_create", "collection", "folder", "reading"),
            *("mirror", "watch", "index_fields", "set_default", "optimize", "tune", "apply"),
            *("warm", "verify", "repair", "backup", "copy", "export"),
            *("reindex", "preview_reindex", "reindex_pending", "discard_reindex"),
        ),
        _FILES,
    ),
    **dict.fromkeys(
        (
            *("encoder", "query_encoder", "load_encoder", "runs_on"),
            *("question_vectors", "cross_encoders"),
        ),
        _ENCODER,
    ),
    **dict.fromkeys(
        ("asearch_shown", "rank", "rank_by_weights", "to_encode", "required_phrases", "searched"),
        _RANKING,
    ),
    **dict.fromkeys(("encodes", "default_mode", "default_weight"), _STATISTICS),
    "duplicates": "takes minutes: use SearchEngine or the command line where the collection is",
    "refresh": "is not needed: a server shows each commit by itself",
}
"""What an engine has and a client has not, and why."""
D = TypeVar("D")
R = TypeVar("R")
_TRIES = 4
_CONNECTIONS = 100
_KEPT = 4.0  # seconds that an idle connection is kept; a server closes it after 5
_BLOCK = 1000  # documents in a request that adds them, and its commit
_BLOCK_BYTES = 16 << 20  # after which a block of documents ends
_POLLED = 0.05, 2.0  # seconds between looks at a job, at first and at last


class ServerOptions(CommonOptions, total=False):
    """The keywords of a search that a server answers, as for SearchEngine.search.

    cross_encoder: whether the one of the server orders the best hits again.
    """

    cross_encoder: bool
    timeout: float | None


class Client:
    """One collection of a server. Safe to use from several threads.

    Its methods are those of SearchEngine and raise the same errors, and ServerError if the server
    refuses or cannot be reached. What a busy server has refused is sent again, and so is what only
    reads if the connection breaks.
    """

    def __init__(
        self,
        url: str,
        collection: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 60,
    ) -> None:
        """`collection`: needed if the server has several. `timeout`: seconds for each request."""
        import httpx2  # 0.2 s

        if token is not None and not token.isascii():
            raise QueryError("token must be ASCII; is it the one of the server's file?")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        kept = httpx2.Limits(max_connections=_CONNECTIONS, keepalive_expiry=_KEPT)
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=timeout, limits=kept)
        self._patient = httpx2.Timeout(timeout, read=None)
        self._library, self._collection, self._timeout = httpx2, collection, timeout
        self._threads = ThreadPoolExecutor(_CONNECTIONS, "client")

    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        **options: Unpack[ServerOptions],
    ) -> Hits:
        """As SearchEngine.search."""
        return _warned(self._search(query, k, options))

    def search_batch(
        self, queries: Questions, k: int = 10, **options: Unpack[ServerOptions]
    ) -> HitsBatch:
        """As SearchEngine.search_batch; more questions than a request may have are sent in parts.

        `timeout` is of each part."""
        found = self._search_batch(queries, k, options)
        if found:
            _warned(found[0])
        return found

    async def asearch(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        **options: Unpack[ServerOptions],
    ) -> Hits:
        """As `search`, for asyncio: in a thread, while the event loop goes on."""
        return _warned(await self._in_thread(partial(self._search, query, k, options)))

    async def asearch_batch(
        self, queries: Questions, k: int = 10, **options: Unpack[ServerOptions]
    ) -> HitsBatch:
        """As `search_batch`, for asyncio: in a thread, while the event loop goes on."""
        return await self._in_thread(partial(self.search_batch, queries, k, **options))

    def similar(
        self, keys: Key | Iterable[Key], k: int = 10, **options: Unpack[ServerOptions]
    ) -> Hits:
        """As SearchEngine.similar."""
        _, body = _checked(k, options)
        if isinstance(keys, Iterable) and not isinstance(keys, str | bytes):
            body["keys"] = checked_keys(keys, "similar")
        else:
            body["key"] = checked_key(keys)
        return _warned(_hits(self._ask("/similar", body), ""))

    def explain(
        self,
        query: str | npt.ArrayLike,
        key: Key,
        k: int = 10,
        **options: Unpack[ServerOptions],
    ) -> Explanation:
        """As SearchEngine.explain."""
        _, body = _checked(k, options)
        asked = _asked(query) | {"key": checked_key(key)}
        answer = self._ask("/explain", body | asked)
        return Explanation.from_dict(answer)

    def encode(
        self, texts: Sequence[str], *, role: str = "document", dimensions: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Float32 (n, D) unit rows, by the encoder of the collection; `dimensions`: a prefix."""
        check_questions(texts)
        body = {"model": self._collection, "input_type": role, "dimensions": dimensions}
        body = {"encoding_format": "base64", **_without_none(body)}
        rows = [np.empty((0, 0), np.float32)]
        for part in _parts(texts, MAX_INPUTS):
            answer = self._post("/v1/embeddings", {**body, "input": part})
            encoded = b"".join(b64decode(item["embedding"]) for item in answer["data"])
            rows.append(np.frombuffer(encoded, "<f4").reshape(len(part), -1))
        return np.concatenate(rows[1:] or rows)

    def encode_questions(self, questions: Sequence[str]) -> npt.NDArray[Any]:
        """As SearchEngine.encode_questions."""
        return self.encode(questions, role="query")

    def encode_documents(self, texts: Sequence[str]) -> npt.NDArray[Any]:
        """As SearchEngine.encode_documents."""
        return self.encode(texts)

    @overload
    def get(self, keys: Key) -> Document | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, keys: Key, default: D) -> Document | D: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, keys: Iterable[Key]) -> list[Document | None]: ...
    @overload
    def get(self, keys: Iterable[Key], default: D) -> list[Document | D]: ...
    def get(
        self, keys: Key | Iterable[Key], default: object = None
    ) -> Document | list[Document] | object:
        """As SearchEngine.get; a request for up to 1,000 keys."""
        single = isinstance(keys, str | bytes) or not isinstance(keys, Iterable)
        order = checked_keys([keys] if single else keys, "get")
        found = [
            default if record is None else _document(record)
            for answer in self._by_keys("get", "documents", order)
            for record in answer["documents"]
        ]
        return found[0] if single else found

    def __getitem__(self, key: Key) -> Document:
        """The document of a key. Raises UnknownKey, which is a KeyError, and QueryError."""
        document = self.get(key)
        if document is None:
            raise UnknownKey(f"there is no document {key!r:.80}; client.get(key) returns None")
        return document

    def vectors(self, keys: Iterable[Key]) -> list[Floats | None]:
        """As SearchEngine.vectors; a request for up to 1,000 keys."""
        return [
            None if rows is None else np.array(rows, np.float32).reshape(-1, answer["dim"])
            for answer in self._by_keys("vectors", "vectors", checked_keys(keys, "vectors"))
            for rows in answer["vectors"]
        ]

    def keys(self, where: str | None = None) -> Iterator[str]:
        """As SearchEngine.keys, in pages: each is of the commit of its time."""
        check_filter(where)
        return self._pages("documents:keys", "keys", where)

    def documents(
        self, where: str | None = None, *, offset: int = 0, limit: int | None = None
    ) -> Iterator[Document]:
        """As SearchEngine.documents, in pages: each is of the commit of its time."""
        check_filter(where)
        check_count("offset", offset)
        if limit is not None:
            check_count("limit", limit)
        return map(_document, self._pages("documents", "documents", where, offset, limit))

    def __iter__(self) -> Iterator[Document]:
        return self.documents()

    def __contains__(self, key: object) -> bool:
        is_key = isinstance(key, str) or integer(key) is not None
        return is_key and self.get(key) is not None  # type: ignore[call-overload]

    def count(self, where: str | None = None) -> int:
        """As SearchEngine.count."""
        check_filter(where)
        return int(self._get(self._path("documents"), where=where, limit=0)["total"])

    def facets(self, *fields: str, where: str | None = None) -> dict[str, dict[Any, int]]:
        """As SearchEngine.facets, of up to 20 fields."""
        Query(facets=fields, where=where)
        if not fields:
            return {}
        return _facets(self._get(self._path("facets"), field=fields, where=where))

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """True, although an empty collection has the length 0."""
        return True

    def sample(self, n: int, where: str | None = None, *, seed: int = 0) -> list[Document]:
        """As SearchEngine.sample, of up to 1,000 documents."""
        check_filter(where)
        check_count("n", n)
        answer = self._get(self._path("documents:sample"), n=n, where=where, seed=seed)
        return list(map(_document, answer["documents"]))

    @hinted
    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]] | DataFrame,
        vectors: npt.ArrayLike | Iterable[npt.ArrayLike | None] | None = None,
        *,
        skip_bad: bool = False,
        commit_every: int | None = None,
    ) -> "AddSummary":
        """As SearchEngine.add: a request and a commit for each `commit_every` documents (1,000).

        What was committed before an error stays, and the same call may be repeated. Keys are kept
        in memory to find those that occur twice.
        """
        counts = dict.fromkeys(COUNTS, 0)
        without_text, bad, repeated = left_out = LeftOut(), LeftOut(), LeftOut()
        every = _BLOCK if commit_every is None else commit_every
        check_count("commit_every", every, least=1)
        lines = _lines(documents, vectors, left_out, skip_bad, set())
        options: dict[str, Any] = {"params": {"commit_every": every}, "timeout": self._patient}
        for positions, body in _blocks(lines, every):
            response = self._send("POST", self._path("documents"), content=body, **options)
            for line in map(json.loads, response.text.split("\n")[:-1]):
                for name in counts:
                    counts[name] += line.get(name, 0)
                if "line" in line:
                    reason = line["error"].removeprefix(f"line {line['line']}")
                    bad.add(f"document {positions[line['line'] - 1]}{reason}")
                elif "error" in line:
                    stopped = line["error"]
                    message = stopped if isinstance(stopped, str) else stopped["message"]
                    raise ServerError(f"{message}; {sum(counts.values())} documents are stored")
            if bad.count and not skip_bad:
                stored = sum(counts.values())
                raise CorpusError(f"{bad.first[0]}; {stored} documents are stored")
        if not any(counts.values()):
            why = f" ({without_text.count} without text)" if without_text.count else ""
            raise EmptyCorpus(f"no document to index{why}; nothing was changed")
        return _summary(counts, without_text, bad, repeated)

    def add_bulk(
        self,
        documents: Iterable[Document | Mapping[str, Any]] | DataFrame,
        vectors: npt.ArrayLike | Iterable[npt.ArrayLike | None] | None = None,
        *,
        commit_every: int = 1000,
    ) -> "Job":
        """Send documents as a stream of any length, which the server adds in a job; returns then.

        Those that the server cannot store are left out; of documents with the same key the last one
        is stored. Raises CorpusError for what is no document; then nothing is added.
        """
        left_out = LeftOut(), LeftOut(), LeftOut()
        lines = (line + b"\n" for _, line in _lines(documents, vectors, left_out))
        path, parameters = self._path("documents:bulk"), {"commit_every": commit_every}
        job = self._send("POST", path, content=lines, params=parameters, timeout=self._patient)
        return Job(self, job.json()["id"])

    def job(self, id: str) -> "Job":
        """A job of the server, such as `Job.id` of another process. Raises QueryError."""
        job = Job(self, id)
        job.status()
        return job

    @hinted
    def delete(self, keys: Iterable[Key] | None = None, *, where: str | None = None) -> int:
        """As SearchEngine.delete; a request and a commit for each 1,000 keys."""
        if (keys is None) == (where is None):
            raise QueryError("delete takes either keys or a filter")
        check_filter(where)
        if where is not None:
            path = self._path("documents")
            return int(self._send("DELETE", path, params={"where": where}).json()["deleted"])
        path, order = self._path("documents:delete"), checked_keys(keys, "delete")
        bodies = ({"keys": part} for part in _parts(order, MAX_PAGE))
        return sum(self._send("POST", path, json=body).json()["deleted"] for body in bodies)

    @hinted
    def update(self, metadata: Patches) -> None:
        """As SearchEngine.update, of up to 1,000 documents."""
        self._send("PATCH", self._path("documents"), json=checked_patches(metadata))

    def synonyms(self) -> list[list[str]]:
        """As SearchEngine.synonyms."""
        return list(self._get(self._path("synonyms"))["groups"])

    def set_synonyms(self, groups: Iterable[Iterable[str]]) -> None:
        """As SearchEngine.set_synonyms."""
        body = {"groups": groups_of({SETTING: stored(groups)})}
        self._send("PUT", self._path("synonyms"), json=body)

    def stats(self) -> "Stats":
        """As SearchEngine.stats; `path` is the name of the collection."""
        from searchengine.engine import Stats  # half a second

        return Stats.from_dict(self._get(self._path("stats")))

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._http.base_url}, {self._collection or 'its only collection'}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in UNAVAILABLE:
            message = f"'Client' has no attribute {name!r}, which {UNAVAILABLE[name]}"
            raise AttributeError(message, name=name, obj=self)
        raise other_name(self, name, METHODS)

    # ------------------------------------------------------------------------------------- searches

    def _search(self, query: Any, k: int, options: ServerOptions) -> Hits:
        _, body = _checked(k, options)
        return _hits(self._ask("", body | _asked(query)), query)

    def _search_batch(self, queries: Any, k: int, options: ServerOptions) -> HitsBatch:
        request, body = _checked(k, options)
        if isinstance(queries, str):
            raise QueryError("search_batch takes a list of questions, got one text; use search")
        listed = list(queries)
        texts = all(isinstance(query, str) for query in listed)
        if texts:
            check_questions(listed)
        size = min(MAX_BATCH, MAX_HITS // request.depth)
        if options.get("cross_encoder"):
            size = min(size, MAX_PAIRS // options.get("candidates", MAX_CANDIDATES))
        found = HitsBatch()
        for part in _parts(listed, max(1, size)):
            body["queries" if texts else "vectors"] = [_plain(query) for query in part]
            found += map(_hits, self._ask("/batch", body)["results"], part)
        return found

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """The response to a search."""
        body = _without_none(body | {"collection": self._collection})
        timeout = {name: value for name, value in body.items() if name == "timeout"}
        return self._post(f"/v1/search{path}", body, **timeout)

    def _in_thread(self, call: Callable[[], R]) -> "asyncio.Future[R]":
        self._check_open()
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    # ------------------------------------------------------------------------------------- requests

    def _by_keys(self, action: str, name: str, keys: Sequence[str]) -> Iterator[Any]:
        """The responses for keys, each of which may be for the first ones of its request only."""
        start = 0
        while start < len(keys):
            part = {"keys": keys[start : start + MAX_PAGE]}
            yield (answer := self._post(self._path(f"documents:{action}"), part))
            start += len(answer[name])

    def _pages(
        self, what: str, name: str, where: str | None, offset: int = 0, limit: int | None = None
    ) -> Iterator[Any]:
        """What is listed, page by page, each of which says where the next one begins."""
        after: int | None = None
        rest = limit
        while rest is None or rest > 0:
            size = MAX_PAGE if rest is None else min(rest, MAX_PAGE)
            skipped = {"offset": offset} if offset and after is None else {}
            page = self._get(self._path(what), where=where, limit=size, after=after, **skipped)
            yield from page[name]
            if rest is not None:
                rest -= len(page[name])
            if (after := page["next"]) is None:
                return

    def _path(self, rest: str) -> str:
        if self._collection is None:
            listed = self._get("/v1/collections")["collections"]
            if len(listed) != 1:
                names = ", ".join(item["name"] for item in listed) or "none that may be read"
                raise QueryError(f"name a collection, unless the server has one; it has {names}")
            self._collection = listed[0]["name"]
        return f"/v1/collections/{quote(self._collection, safe='')}/{rest}"

    def _get(self, path: str, **parameters: Any) -> Any:
        return self._send("GET", path, reads=True, params=_without_none(parameters)).json()

    def _post(self, path: str, body: dict[str, Any], **options: Any) -> Any:
        """The answer to a request that only reads."""
        return self._send("POST", path, reads=True, json=body, **options).json()

    def _send(self, method: str, path: str, *, reads: bool = False, **options: Any) -> Any:
        """The response. Raises SearchEngineError.

        A refusal with Retry-After is of a request with which nothing was done, so that it is sent
        again, unless its body is a stream; after a broken connection only what `reads` is.
        """
        self._check_open()
        seconds = options.get("timeout", self._timeout)
        end = time.monotonic() + (seconds if isinstance(seconds, int | float) else self._timeout)
        stream = isinstance(options.get("content"), Iterator)
        for number in count(1):
            try:
                response = self._http.request(method, path, **options)
            except (self._library.HTTPError, UnicodeEncodeError) as error:
                broken = isinstance(error, self._library.NetworkError | self._library.ProtocolError)
                if broken and reads and number == 1:
                    continue
                raise self._unsent(error, options if reads else {}) from error
            pause = response.headers.get("retry-after", "")
            if stream or number == _TRIES or not pause.isdigit():
                break
            if time.monotonic() + int(pause) > end:
                break
            time.sleep(int(pause))
        if response.status_code >= 300:
            raise _error(response)
        return response

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise CollectionError(f"{self!r} is closed; make another one")

    def _unsent(self, error: Exception, options: Mapping[str, Any]) -> SearchEngineError:
        """The error of a request without a response."""
        if isinstance(error, UnicodeEncodeError):
            return QueryError(f"texts must be Unicode, got half a character: {error}")
        if not isinstance(error, self._library.TimeoutException):
            return ServerError(f"{self._http.base_url} cannot be reached: {error}")
        if "timeout" in options:
            return SearchTimeout(f"not answered within {options['timeout']:g} seconds")
        return ServerError(
            f"{self._http.base_url} has not answered within {self._timeout:g} seconds"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """Documents that a server adds by itself, see Client.add_bulk.

    Attributes:
        client: asks the server.
        id: names the job; the server knows it until it stops.
    """

    client: Client
    id: str

    def status(self) -> dict[str, Any]:
        """How far it is, as `GET /v1/jobs/ID` tells it. Raises QueryError for an unknown job."""
        return dict(self.client._get(f"/v1/jobs/{quote(self.id, safe='')}"))

    def wait(
        self,
        timeout: float | None = None,
        *,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> "AddSummary":
        """What it has added, when it has ended.

        Args:
            timeout: seconds to wait at most; the job goes on. None: any.
            progress: called with `status` now and then.

        Raises SearchTimeout, and ServerError if it failed or was cancelled.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause, longest = _POLLED
        while True:
            status = self.status()
            if progress is not None:
                progress(status)
            if status["state"] == "done":
                bad = LeftOut(status["errors"], [line["error"] for line in status["left_out"]])
                counts = {name: status[name] for name in COUNTS}
                return _summary(counts, LeftOut(), bad, LeftOut())
            if status["state"] in ("failed", "cancelled"):
                reason = status["error"] or f"{status['documents']} documents are stored"
                raise ServerError(f"job {self.id} {status['state']}: {reason}")
            if end is not None and time.monotonic() + pause > end:
                raise SearchTimeout(f"job {self.id} has not ended within {timeout:g} seconds")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def cancel(self) -> None:
        """End it before its next commit; what is committed stays."""
        self.client._send("DELETE", f"/v1/jobs/{quote(self.id, safe='')}")


# ------------------------------------------------------------------------------- arguments, results


def _checked(k: int, options: ServerOptions) -> tuple[Query, dict[str, Any]]:
    """The options as a Query and as JSON. Raises QueryError and FilterError as the engine does."""
    checked: Any = {name: value for name, value in options.items() if name != "cross_encoder"}
    request = Query.from_options(k, checked)
    return request, {**options, **{name: getattr(request, name) for name in ("k", *checked)}}


def _asked(query: Any) -> dict[str, Any]:
    """A question as the fields of a request. Raises QueryError."""
    return {"query" if isinstance(query, str) else "vector": _plain(query)}


def _plain(query: Any) -> Any:
    """A question, or a vector as a list. Raises QueryError."""
    if isinstance(query, str):
        check_questions([query])
        return query
    array = as_array(query)
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise QueryError(f"expected a text or a vector (D,) of finite numbers, got {query!r:.80}")
    return array.tolist()


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _parts(items: Sequence[D], size: int) -> Iterator[Sequence[D]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _lines(
    documents: Any,
    vectors: Any,
    left_out: tuple[LeftOut, LeftOut, LeftOut],
    skip_bad: bool = False,
    seen: set[str] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """The position of each document, from 1, and it as JSON.

    `left_out`: without text, bad and repeated, as AddSummary has them. `seen`: takes the keys.
    Raises CorpusError, QueryError, and DuplicateKey for a key in `seen`.
    """
    without_text, bad, _ = left_out
    if isinstance(vectors, str) or not isinstance(vectors, Iterable | None):
        raise QueryError(
            f"vectors must be an array (n, D) or a list of rows, got {vectors!r:.80}; a folder "
            "that encode_corpus wrote needs SearchEngine.add"
        )
    rows = None if vectors is None else iter(vectors)
    position, row = 0, None

    def records() -> Iterator[Any]:
        nonlocal position, row
        for position, record in enumerate(rows_of(documents), start=1):
            try:
                row = None if rows is None else next(rows)
            except StopIteration:
                raise QueryError(f"there are {position - 1} vectors and more documents") from None
            yield record

    for document in as_documents(records(), bad if skip_bad else None, needs_text=False):
        if row is None and not document.full_text:
            without_text.add(document.key)
        elif seen is None or _is_new(document, seen, left_out, skip_bad):
            record = document.as_record()
            if row is not None:
                record["_vector"] = _plain(row)
            yield position, json.dumps(record, ensure_ascii=False).encode()
    if rows is not None and next(rows, rows) is not rows:
        raise QueryError(f"there are {position} documents and more vectors")


def _is_new(
    document: Document, seen: set[str], left_out: tuple[LeftOut, LeftOut, LeftOut], skip_bad: bool
) -> bool:
    """Whether its key is not in `seen`, which takes it. Raises DuplicateKey."""
    if document.key not in seen:
        seen.add(document.key)
        return True
    message = f"{document.origin or 'add'}: the key {document.key!r} occurs twice; "
    message += "give it another key or leave it out"
    _, bad, repeated = left_out
    if document.derived:
        repeated.add(document.key)
    elif skip_bad:
        bad.add(message)
    else:
        raise DuplicateKey(message)
    return False


def _blocks(lines: Iterator[tuple[int, bytes]], most: int) -> Iterator[tuple[list[int], bytes]]:
    """The positions of the documents that are sent together, and the body with their lines."""
    positions, block, size = [], [], 0
    for position, line in lines:
        positions.append(position)
        block.append(line)
        size += len(line)
        if len(block) >= most or size >= _BLOCK_BYTES:
            yield positions, b"\n".join(block)
            positions, block, size = [], [], 0
    if block:
        yield positions, b"\n".join(block)


def _document(record: dict[str, Any]) -> Document:
    """A document of a response."""
    key, text, title = (record.pop(name) for name in ("_id", "text", "title"))
    return Document.stored(key, text, title, record)


def _summary(
    counts: dict[str, int], without_text: LeftOut, bad: LeftOut, repeated: LeftOut
) -> "AddSummary":
    from searchengine.engine import AddSummary  # half a second

    return AddSummary(**counts, without_text=without_text, bad=bad, repeated=repeated)


def _facets(answer: dict[str, Any]) -> dict[str, dict[Any, int]]:
    return {
        name: {item["value"]: item["count"] for item in values}
        for name, values in answer["facets"].items()
    }


def _warned(hits: Hits) -> Hits:
    """The hits, after a warning for each note in the name of the line that called the client."""
    for note in hits.notes:
        warnings.warn(note, FieldWarning, stacklevel=3)
    return hits


def _hits(result: dict[str, Any], query: Any) -> Hits:
    """The hits of a SearchResponse."""
    question = query if isinstance(query, str) else ""
    question = replaced(question, result["replaced"])
    names = ("score", "key", "title", "text", "metadata", "start", "end", "scores")
    hits = Hits(
        (Hit(**{name: hit[name] for name in names}, question=question) for hit in result["hits"]),
        exact=result["exact"],
        facets=_facets(result),
    )
    if (timing := result["timing"]) is not None:
        stages = {name: timing.get(name, 0.0) / 1e3 for name in STAGES}
        hits.timing = Timing(**stages, questions=timing["questions"])
    hits.notes = tuple(result["notes"])
    hits.replaced = result["replaced"]
    return hits


def _error(response: Any) -> SearchEngineError:
    """The error that a response describes."""
    try:
        detail = response.json()["error"]
        message = f"{detail['message']} (request {detail['id']})"
    except (ValueError, KeyError, TypeError):
        return ServerError(f"{response.url} answered {response.status_code}, and no JSON")
    of_request = QueryError if response.status_code in (400, 404, 413, 422) else ServerError
    return ERRORS.get(detail["code"], of_request)(message)
