"""Bulk add: lines of JSON in, commits, and a line out for each error and each commit.

Request and response are streams at the same time. Documents wait for a commit only until the next
line comes late, so that a slow sender sees its documents too.
"""

import asyncio
import errno
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from searchengine.corpus.documents import Document
from searchengine.corpus.text_files import bad, json_object
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError, QueryError, SearchEngineError
from searchengine.indexer.arrays import Floats
from searchengine.query.request import as_array, check_vectors
from searchengine.server.refusals import INTERNAL, Refused, code_of, error_body, of_engine
from searchengine.server.served import Served, State
from searchengine.server.server_settings import MAX_KEY

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PATIENCE = 1.0
"""Seconds without a line after which those that were read are committed."""
MAX_ERRORS = 1000
"""Bad lines that are reported one by one; the others are counted."""
MAX_PENDING = 32 << 20
"""Bytes of lines that wait for a commit."""
_log = logging.getLogger(__name__)
COUNTS = ("added", "changed", "metadata_updated", "unchanged")
"""Possible outcomes for a document that is added."""
VECTOR = "_vector"
"""Field of a record that holds the document's vector, if it comes with one."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A document to store, with its vector (1, D) if it came with one."""

    document: Document
    vector: Floats | None = None


def incoming(record: Mapping[str, Any], place: str, dim: int, key: str = "") -> Incoming:
    """A checked document. Raises CorpusError that begins with `place`.

    Args:
        record: `_id` (or `key`), `title`, `text`, `_vector`, and metadata.
        place: begins the message.
        dim: width of the collection's vectors.
        key: for a record without `_id`.
    """
    rest = dict(record)
    row = rest.pop(VECTOR, None)
    vector = None
    if row is not None:
        try:
            vector = check_vectors(as_array([row]), dim)
        except QueryError as error:
            needed = f"{VECTOR} must be a list of {dim} finite numbers, not all zeros"
            raise bad(place, needed) from error
    document = Document.from_mapping(rest, place, key, needs_text=False)
    if len(document.key) > MAX_KEY:
        raise bad(place, f"a key has at most {MAX_KEY} characters, got {len(document.key)}")
    if key and document.key != key:
        raise bad(place, f"the _id is {document.key!r:.80}, but the address names {key!r:.80}")
    if not document.full_text and vector is None:
        raise bad(place, "the document has neither text nor title nor a vector")
    return Incoming(document, vector)


def write(engine: SearchEngine, batch: Sequence[Incoming]) -> dict[str, int]:
    """Commit documents of different keys: one commit, or two if only some come with vectors.

    Returns how many were added, changed and so on, by the names of COUNTS.

    In a collection without an encoder, those without a vector are found by their words.
    """
    counts = dict.fromkeys(COUNTS, 0)
    to_encode = [item for item in batch if engine.encodes and item.vector is None]
    supplied = [item for item in batch if not engine.encodes or item.vector is not None]
    for items in (to_encode, supplied):
        if not items:
            continue
        documents = [item.document for item in items]
        rows = [None if item.vector is None else item.vector[0] for item in items]
        summary = engine.add(documents, rows if items is supplied else None)
        if summary.bad.count or summary.without_text.count or summary.repeated.count:
            raise CorpusError("documents were left out that had been checked")
        for name in COUNTS:
            counts[name] += getattr(summary, name)
    return counts


class BulkAdd(Response):
    """The response to a bulk add, which reads the request as well."""

    media_type = "application/x-ndjson"

    def __init__(self, here: State, served: Served, commit_every: int) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._here, self._served, self._every = here, served, commit_every
        self._dim = served.engine.collection.settings["encoder"]["dim"]
        self._batch: dict[str, Incoming] = {}
        self._pending = 0  # bytes of the lines in the batch
        self._line = self._documents = self._errors = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Read lines until they end, the server stops, or the caller leaves."""
        self._send, self._begun = send, False
        try:
            last = await self._run(lines(receive, self._here))
            if last["done"] and not last["lines"]:
                raise Refused(422, "the body is empty; send a JSON object on each line")
        except TimeoutError:
            reason = f"nothing came for {self._here.settings.bulk_idle:g} seconds; "
            reason += f"{self._documents} documents are stored"
            if not self._begun:
                raise Refused(408, reason, {"Connection": "close"}) from None
            last = self._summary(reason)
        except asyncio.IncompleteReadError:
            return  # the caller has left; uncommitted lines were not acknowledged
        except (SearchEngineError, OSError) as error:
            _log.exception("bulk add %s failed", scope["id"])
            status, message, code = self.explain(error)
            last = error_body(status, message, scope["id"], code=code)
        await self._say(last, more=False)

    def explain(self, error: Exception) -> tuple[int, str, str | None]:
        """Status, message and code of an error, as the caller sees it."""
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return 503, "a disk of the server is full; make room, and send the rest again", None
        if not isinstance(error, SearchEngineError):
            return 500, INTERNAL, None
        status, known = of_engine(error)
        return status, known or self._served.without_path(str(error)), code_of(error)

    async def _run(self, read: AsyncIterator[bytes | None]) -> dict[str, Any]:
        """Add all lines; returns the last line of the response."""
        async for line in read:
            if line is None:  # the next one is late
                await self._commit()
                continue
            self._line += 1
            if line.strip():
                await self._take(line)
            if len(self._batch) >= self._every or self._pending >= MAX_PENDING:
                await self._commit()
        await self._commit()
        return self._summary("the server stops" if self._here.stopping.is_set() else None)

    def _summary(self, reason: str | None) -> dict[str, Any]:
        """The last line of the response. `reason`: why the lines have not all been read."""
        summary: dict[str, Any] = {
            "done": reason is None,
            "lines": self._line,
            "documents": self._documents,
            "errors": self._errors,
        }
        if reason is not None:
            summary["error"] = f"{reason}; send the lines after {self._line} again"
        return summary

    async def _take(self, line: bytes) -> None:
        """Put a line's document into the batch, or report its error."""
        place = f"line {self._line}"
        try:
            if len(line) > self._here.settings.max_body:
                most = self._here.settings.max_body
                raise bad(place, f"a line must be at most {most} bytes; split the document")
            read = incoming(json_object(line, place), place, self._dim)
        except CorpusError as error:
            self._errors += 1
            if self._errors <= MAX_ERRORS:
                await self._say({"line": self._line, "error": str(error)})
            return
        if read.document.key in self._batch:  # the later line replaces it in the same commit
            del self._batch[read.document.key]
        self._batch[read.document.key] = read
        self._pending += len(line)

    async def _commit(self) -> None:
        """Commit the batch and acknowledge it."""
        if not self._batch:
            return
        batch, self._batch, self._pending = list(self._batch.values()), {}, 0
        counts = await self._served.write(lambda engine: write(engine, batch), bulk=True)
        self._documents += len(batch)
        self._here.metrics.documents.labels(self._served.name).inc(len(batch))
        await self._say({"committed": self._line, **counts})

    async def _say(self, line: dict[str, Any], *, more: bool = True) -> None:
        if not self._begun:  # not before the first part of the body, for which curl awaits a 100
            self._begun = True
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await self._send(start)
        body = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def lines(receive: Receive, here: State) -> AsyncIterator[bytes | None]:
    """The lines of a request; None whenever the next one takes long. Ends when the server stops.

    Of a line that is too long only the beginning is kept, one byte more than the limit. Raises
    IncompleteReadError if the caller leaves, TimeoutError if it sends nothing for `bulk_idle`.
    """
    limit = here.settings.max_body + 1
    rest = bytearray()
    stop = asyncio.create_task(here.stopping.wait())
    chunk: asyncio.Task[Message] | None = None
    try:
        more = True
        while more:
            if chunk is None:
                chunk, silent = asyncio.ensure_future(receive()), 0.0
            await asyncio.wait((chunk, stop), timeout=PATIENCE, return_when="FIRST_COMPLETED")
            if not chunk.done():
                if stop.done():
                    return
                yield None
                silent += PATIENCE  # without the time of a commit, which the caller may wait for
                _check_sending(chunk, silent, here.settings.bulk_idle)
                continue
            message, chunk = chunk.result(), None
            if message["type"] == "http.disconnect":
                raise asyncio.IncompleteReadError(bytes(rest[:100]), None)
            more = message.get("more_body", False)
            *complete, last = message.get("body", b"").split(b"\n")
            for part in complete:
                rest += part[: limit - len(rest)]
                yield bytes(rest)
                rest.clear()
                if stop.done():
                    return
            rest += last[: limit - len(rest)]
        if rest:
            yield bytes(rest)
    finally:
        stop.cancel()
        if chunk is not None:
            chunk.cancel()


def _check_sending(chunk: asyncio.Task[Message], silent: float, seconds: float) -> None:
    """Raise TimeoutError if a chunk has been awaited for this time."""
    if not chunk.done() and silent >= seconds:
        raise TimeoutError
