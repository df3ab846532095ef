"""What the routes share: a collection of the server, with its engine and its threads."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, TypeVar

import fastapi
from fastapi import Depends, Request

from searchengine.engine import Hits, SearchEngine, limits, name_of
from searchengine.errors import EncoderMismatch, SearchEngineError
from searchengine.query.request import Query
from searchengine.server import MAX_TEXT, ServerSettings
from searchengine.server.responses import RETRY, Refused

Result = TypeVar("Result")
Show = Callable[[Hits], bytes]

READERS, SEARCHES = 4, 16
"""Threads of each collection: that read documents and answer batches, and that answer questions."""
BUSY = 0.8
"""Of the time of a request: how long after its arrival other processes may write."""
MAX_BATCH = 256
"""Questions of one call, so that the first does not wait for too many others."""
REFRESH, AGAIN, LATE = 0.5, 5.0, 5.0
"""Seconds between looks for commits, until an encoder that failed to load is tried again, and after
its time limit in which a request has ended."""
LOADING = "the encoder is being loaded"
_log = logging.getLogger(__name__)


class Served:
    """An open collection. One of its threads opens it and shows each commit; others answer.

    Attributes:
        name, path: as the server was started with.
        problem: why it cannot encode; None: it can.
        away: why its folder, or its database, cannot be read now; None: it can.
        projection: the map of the page, of some commit; None: nobody has asked for it.
    """

    def __init__(self, name: str, path: Path | str, settings: ServerSettings) -> None:
        self.name, self.path, self._settings = name, path, settings
        self.projection: Any = None
        self.problem: str | None = LOADING
        self.away: str | None = None
        self._engine: SearchEngine | None = None
        self._former: list[tuple[float, SearchEngine]] = []  # and when they were replaced
        self._keeper = ThreadPoolExecutor(1, f"keep {name}")
        self._writer = ThreadPoolExecutor(1, f"write {name}")
        self._readers = ThreadPoolExecutor(READERS, f"read {name}")
        self._searches = ThreadPoolExecutor(SEARCHES, f"search {name}")
        self._waiting: dict[Hashable, list[Any]] = {}  # questions by what they have in common
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    @property
    def engine(self) -> SearchEngine:
        """The engine now; another one after the encoder of the collection was replaced.

        Raises Refused if the collection has not been opened.
        """
        if self._engine is None:
            raise Refused(503, f"the collection cannot be opened: {self.away}", RETRY)
        return self._engine

    @property
    def unready(self) -> str | None:
        """Why it is not ready: also while its folder or database is away."""
        return self.away or self.problem

    async def follow(self) -> None:
        """Load the encoder, and show what other processes commit; what fails is tried again."""
        while True:
            await self.show()
            if self.problem is not None and self._engine is not None:
                try:
                    await _run(self._keeper, partial(_warm, self._engine))
                    self.problem = None
                    gc.collect()
                    gc.freeze()  # full passes of the garbage collector block the loop
                except Exception as error:
                    if self.problem == LOADING:  # everyone may read what is said later
                        message = "%s answers only searches by words (mode text): %s"
                        _log.error(message, self.name, error)
                    self.problem = "the encoder cannot be loaded; the log of the server says why"
            await asyncio.sleep(REFRESH if self.problem is None else AGAIN)

    async def show(self) -> None:
        """Open the collection, or show its newest commit, by another encoder if it has one now."""
        reason, seconds = None, self._settings.timeout
        try:
            async with asyncio.timeout(seconds):
                await _run(self._keeper, self._show)
        except Exception as error:  # the next look may succeed
            message = str(error) or f"no answer within {seconds:g} seconds"  # a database may hang
            reason = self.without_path(message)
            if reason != self.away:
                expected = isinstance(error, SearchEngineError | OSError)
                _log.error("%s cannot be read: %s", self.name, message, exc_info=not expected)
        self.away = reason

    def _show(self) -> None:
        if self._engine is None:
            self._engine = self._open()
        try:
            self._engine.refresh()
        except EncoderMismatch:
            fresh = self._open()
            try:
                _warm(fresh)
            except BaseException:
                fresh.close()
                raise
            _log.warning("%s has another encoder now", self.name)
            self._former.append((monotonic(), self._engine))
            self._engine = fresh
        while self._former and self._former[0][0] < monotonic() - self._settings.timeout - LATE:
            # No request can use it, and what waits to be written comes first.
            self._writer.submit(self._former.pop(0)[1].close)

    def _open(self) -> SearchEngine:
        encoder, runtime = self._settings.encoder, self._settings.runtime
        return SearchEngine.open(self.path, encoder, runtime=runtime)

    async def search(
        self, query: Any, options: dict[str, Any], show: Show, timeout: float | None = None
    ) -> tuple[Hits, bytes]:
        """The hits of one question, and what `show` returns for them in the thread that answers.

        Questions with the same options that arrive while others are answered share the next call.
        One is left out if its caller leaves before; none concerns another.
        """
        key = Query(**options), isinstance(query, str), show
        result: asyncio.Future[tuple[Hits, bytes]] = asyncio.get_running_loop().create_future()
        if key not in self._waiting:
            self._waiting[key] = []
            self._tasks[key] = asyncio.create_task(self._answer(key, options, show))
        deadline = self._deadline(timeout)
        self._waiting[key].append((query, deadline, result))
        try:
            async with asyncio.timeout(deadline.at - monotonic()):
                return await result
        except TimeoutError:  # others that are answered with it may take longer
            raise deadline.exceeded() from None

    async def _answer(self, key: Hashable, options: dict[str, Any], show: Show) -> None:
        """Answer questions until none waits."""

        def results(items: list[Any]) -> list[tuple[Hits, bytes] | Exception]:
            """Answers or errors: if a call fails, its halves are tried."""
            try:
                with limits.limited(max(deadline for _, deadline, _ in items), MAX_TEXT):
                    hits = self.engine.search_batch([query for query, *_ in items], **options)
                    return [(each, show(each)) for each in hits]
            except Exception as error:
                half = len(items) // 2
                return [*results(items[:half]), *results(items[half:])] if half else [error]

        while waiting := self._waiting[key]:
            batch, waiting[:MAX_BATCH] = waiting[:MAX_BATCH], []
            batch = [each for each in batch if not each[2].done()]
            answers = await _run(self._searches, partial(results, batch)) if batch else []
            for (*_, result), answer in zip(batch, answers, strict=True):
                if result.done():
                    continue
                if isinstance(answer, Exception):
                    result.set_exception(answer)
                else:
                    result.set_result(answer)
        del self._waiting[key], self._tasks[key]

    async def read(
        self, function: Callable[[SearchEngine], Result], timeout: float | None = None
    ) -> Result:
        """Run a function of the engine in a reading thread, for as long as a request may take.

        Or for `timeout` seconds, if they are fewer. Returns its result.
        """
        deadline = self._deadline(timeout)

        def limited() -> Result:
            with limits.limited(deadline, MAX_TEXT):
                return function(self.engine)

        return await _run(self._readers, limited)

    async def write(self, function: Callable[[SearchEngine], Result]) -> Result:
        """Run a function that changes the collection; its result.

        It goes on if the caller is cancelled. Writes run one at a time, and wait for other
        processes until CollectionBusy still reaches the caller in time.
        """
        until = monotonic() + BUSY * self._settings.timeout

        def work() -> Result:
            collection: Any = self.engine.collection
            collection.wait = max(0.0, until - monotonic())  # of a folder
            return function(self.engine)

        return await _run(self._writer, work)

    def _deadline(self, timeout: float | None) -> limits.Deadline:
        """When a request must have ended, of which its caller grants `timeout` seconds."""
        return limits.Deadline.after(min(timeout or self._settings.timeout, self._settings.timeout))

    def without_path(self, message: str) -> str:
        """A message for a client: the name of the collection in place of its folder or URL."""
        if isinstance(self.path, str):
            return message.replace(name_of(self.path), self.name)
        return message.replace(str(self.path.absolute()), self.name).replace(
            str(self.path), self.name
        )

    async def close(self) -> None:
        """End the threads, with the change that is being written, and close the files."""
        for threads in (self._writer, self._readers, self._searches, self._keeper):
            await asyncio.to_thread(threads.shutdown)
        for engine in (*(former for _, former in self._former), self._engine):
            if engine is not None:
                await asyncio.to_thread(engine.close)


def _warm(engine: SearchEngine) -> None:
    """Load what encodes questions, so that the first search does not wait for it."""
    if engine.encoder.encodes():
        engine.encode(["warm"])


def _run(threads: ThreadPoolExecutor, call: Callable[[], Result]) -> Awaitable[Result]:
    return asyncio.get_running_loop().run_in_executor(threads, call)


async def collection_of(
    request: Request,
    name: Annotated[
        str | None, fastapi.Path(max_length=64, description="A collection.", examples=["papers"])
    ],
) -> Served:
    """The collection that a request names; None: the only one. Raises Refused."""
    collections: dict[str, Served] = request.app.state.collections
    if name is None:
        if len(collections) > 1:
            names = ", ".join(collections)
            raise Refused(422, f"the server has several collections; name one of: {names}")
        name = next(iter(collections))
    if name not in collections:
        raise Refused(404, f"there is no collection {name!r:.80}; GET /v1/collections lists them")
    request.scope["collection"] = name
    return collections[name]


Collection = Annotated[Served, Depends(collection_of)]
"""The collection that the address names."""
