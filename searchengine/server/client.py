"""A client of `searchengine serve`, with the results of SearchEngine.

with Client("http://localhost:8080") as client:
    for hit in client.search("how do whales sleep", k=5):
        print(hit)
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, Unpack
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from searchengine.corpus.documents import Document, as_documents
from searchengine.errors import QueryError, ServerError, UnknownKey
from searchengine.query.hits import STAGES, Hit, Hits, HitsBatch, Timing
from searchengine.query.request import CommonOptions

COUNTS = ("added", "changed", "metadata_updated", "unchanged")
"""Possible outcomes for a document that is added."""
_TRIES = 4
_RETRIED = (429, 503)


class ServerOptions(CommonOptions, total=False):
    """The keywords of a search that a server answers.

    cross_encoder: whether the one of the server orders the best hits again.
    """

    cross_encoder: bool


@dataclass(frozen=True, slots=True)
class Added:
    """What a bulk add has stored: numbers of documents, and a message for each bad one."""

    added: int = 0
    changed: int = 0
    metadata_updated: int = 0
    unchanged: int = 0
    bad: list[str] = field(default_factory=list)


class Client:
    """One collection of a server. Safe to use from several threads."""

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

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=timeout)
        self._failed = httpx2.HTTPError
        self._collection = collection

    def search(
        self, query: str | npt.ArrayLike, k: int = 10, **options: Unpack[ServerOptions]
    ) -> Hits:
        """As SearchEngine.search. Raises ServerError, QueryError."""
        name = "query" if isinstance(query, str) else "vector"
        body = {name: _plain(query), "k": k, **options}
        return _hits(self._post("/v1/search", body), query)

    def search_batch(
        self, queries: Sequence[str] | npt.ArrayLike, k: int = 10, **options: Unpack[ServerOptions]
    ) -> HitsBatch:
        """As SearchEngine.search_batch, for up to 256 questions."""
        listed: list[Any] = list(queries)  # type: ignore[arg-type]
        texts = all(isinstance(query, str) for query in listed)
        name = "queries" if texts else "vectors"
        body = {name: [_plain(query) for query in listed], "k": k, **options}
        results = self._post("/v1/search/batch", body)["results"]
        return HitsBatch(map(_hits, results, listed))

    def encode(
        self, texts: Sequence[str], *, role: str = "document", dimensions: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Float32 (n, D) unit rows, by the encoder of the collection; `dimensions`: a prefix."""
        body: dict[str, Any] = {"input": list(texts), "input_type": role}
        if self._collection is not None:
            body["model"] = self._collection
        if dimensions is not None:
            body["dimensions"] = dimensions
        data = self._request("POST", "/v1/embeddings", json=body)["data"]
        return np.array([item["embedding"] for item in data], np.float32)

    def get(self, key: str) -> Document | None:
        """The document of a key, or None."""
        try:
            record = self._request("GET", self._at(key))
        except UnknownKey:
            return None
        return Document.from_mapping(record, "document", needs_text=False)

    def add(
        self,
        documents: Iterable[Document | Mapping[str, Any]],
        vectors: Iterable[npt.ArrayLike | None] | None = None,
        *,
        commit_every: int = 1000,
    ) -> Added:
        """Add or replace documents, as a stream; bad ones are left out and reported.

        `vectors`: one for each document, or None. Raises ServerError if the server has stopped;
        the documents committed by then are stored, and the same call may be repeated.
        """
        counts, bad, done = dict.fromkeys(COUNTS, 0), [], False
        parameters = {"commit_every": commit_every}
        content = _lines(documents, vectors)
        address = self._at()
        try:
            with self._http.stream("POST", address, params=parameters, content=content) as response:
                if response.status_code != 200:
                    response.read()
                    raise _error(response)
                for line in map(json.loads, response.iter_lines()):
                    for name in counts:
                        counts[name] += line.get(name, 0)
                    if "line" in line:
                        bad.append(line["error"])
                    elif "error" in line:
                        message = line["error"]
                        text = message if isinstance(message, str) else message["message"]
                        raise ServerError(f"{text}; {sum(counts.values())} documents are stored")
                    done = line.get("done", False)
        except self._failed as error:
            raise ServerError(f"{self._http.base_url} was cut off: {error}") from error
        if not done:
            raise ServerError(f"{self._http.base_url} ended early; add the documents again")
        return Added(**counts, bad=bad)

    def update(self, key: str, metadata: Mapping[str, Any]) -> None:
        """Merge into the metadata of a document; None removes a field. Raises UnknownKey."""
        self._request("PATCH", self._at(key), json=dict(metadata))

    def delete(self, keys: Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""
        if (keys is None) == (where is None) or isinstance(keys, str):
            raise QueryError("delete takes either a list of keys or a filter")
        if where is not None:
            return int(self._request("DELETE", self._at(), params={"where": where})["deleted"])
        deleted = 0
        for key in keys or ():
            try:
                deleted += self._request("DELETE", self._at(key))["deleted"]
            except UnknownKey:
                continue
        return deleted

    def stats(self) -> dict[str, Any]:
        """Size and settings of the collection, as a dict of the fields of Stats."""
        return self._request("GET", self._path("stats"))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name(self) -> str:
        if self._collection is None:
            listed = self._request("GET", "/v1/collections")["collections"]
            if len(listed) > 1:
                names = ", ".join(item["name"] for item in listed)
                raise QueryError(f"the server has several collections; name one of: {names}")
            self._collection = listed[0]["name"]
        return self._collection

    def _path(self, rest: str) -> str:
        return f"/v1/collections/{quote(self._name(), safe='')}/{rest}"

    def _at(self, key: str | None = None) -> str:
        return self._path("documents" if key is None else f"documents/{quote(key, safe='')}")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = {name: value for name, value in body.items() if value is not None}
        if "facets" in body:
            body["facets"] = list(body["facets"])
        if self._collection is not None:
            body["collection"] = self._collection
        return self._request("POST", path, json=body)

    def _request(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """The JSON of a response; what a busy server refuses is tried again."""
        for number in range(1, _TRIES + 1):
            try:
                response = self._http.request(method, path, **content)
            except self._failed as error:
                raise ServerError(f"{self._http.base_url} cannot be reached: {error}") from error
            if response.status_code not in _RETRIED or number == _TRIES:
                break
            time.sleep(float(response.headers.get("retry-after", 1)))
        if response.status_code != 200:
            raise _error(response)
        answer: dict[str, Any] = response.json()
        return answer


def _lines(
    documents: Iterable[Document | Mapping[str, Any]],
    vectors: Iterable[npt.ArrayLike | None] | None,
) -> Iterator[bytes]:
    """A line of JSON for each document. Raises CorpusError."""
    rows = None if vectors is None else iter(vectors)
    for document in as_documents(documents, None, needs_text=False):
        record = document.as_record()
        if rows is not None and (row := next(rows)) is not None:
            record["_vector"] = _plain(row)
        yield json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _plain(query: Any) -> Any:
    return query if isinstance(query, str) else np.asarray(query, np.float64).tolist()


def _hits(result: dict[str, Any], query: Any) -> Hits:
    """The hits of a SearchResponse."""
    question = query if isinstance(query, str) else ""
    names = ("score", "key", "title", "text", "metadata", "start", "end", "scores")
    facets = {
        name: {item["value"]: item["count"] for item in values}
        for name, values in result["facets"].items()
    }
    hits = Hits(
        (Hit(**{name: hit[name] for name in names}, question=question) for hit in result["hits"]),
        exact=result["exact"],
        read=result["read"],
        facets=facets,
    )
    if (timing := result["timing"]) is not None:
        stages = {name: timing.get(name, 0.0) / 1e3 for name in STAGES}
        hits.timing = Timing(**stages, questions=timing["questions"])
    hits.notes = tuple(result["notes"])
    return hits


def _error(response: Any) -> ServerError | QueryError:
    """The error that a response describes."""
    try:
        detail = response.json()["error"]
        message = f"{detail['message']} (request {detail['id']})"
    except (ValueError, KeyError, TypeError):
        return ServerError(f"{response.url} answered {response.status_code}, and no JSON")
    if detail["type"] == "unknown_key":
        return UnknownKey(message)
    if response.status_code in (400, 404, 413, 422):
        return QueryError(message)
    return ServerError(message)
