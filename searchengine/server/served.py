"""What the routes share: the collections of a server, each with its engine and its threads."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request

from searchengine.engine import SearchEngine, limits, name_of
from searchengine.errors import CollectionError, EncoderMismatch, SearchEngineError
from searchengine.query.hits import Hits
from searchengine.server.metrics import Metrics
from searchengine.server.projection import Projection
from searchengine.server.refusals import RETRY, Refused
from searchengine.server.server_settings import MAX_TEXT, ServerSettings

Result = TypeVar("Result")

READERS = 4
"""Threads that read documents and answer batches, for each collection."""
AGAIN = 5.0
"""Seconds until an encoder that could not be loaded is tried again."""
_LATE = 5.0  # seconds after its time limit in which a request has ended
_log = logging.getLogger(__name__)


class Served:
    """An open collection. Questions go to `SearchEngine.asearch`, other calls to threads.

    Attributes:
        name, path: as the server was started with.
        problem: why it is not ready; None: it is.
        away: why its folder, or its database, cannot be read now; None: it can.
        projection: the map of the page, of some commit; None: nobody has asked for it.
    """

    def __init__(self, name: str, path: Path | str, settings: ServerSettings) -> None:
        """Open it. If it cannot be opened, `warm` tries again."""
        self.name, self.path = name, path
        self._settings = settings
        self.projection: Projection | None = None
        self.problem: str | None = "the encoder is being loaded"
        self.away: str | None = None
        self._engine: SearchEngine | None = None
        try:
            self._engine = self._open()
        except (CollectionError, OSError) as error:
            self.problem = self.away = self.without_path(str(error))
        self._readers = ThreadPoolExecutor(READERS, f"read {name}")
        self._writer = ThreadPoolExecutor(1, f"write {name}")
        self._refreshing = asyncio.Lock()
        self._retiring: dict[SearchEngine, asyncio.Task[None]] = {}

    @property
    def engine(self) -> SearchEngine:
        """The engine now; another one after the encoder of the collection was replaced.

        Raises Refused if the collection has not been opened.
        """
        if self._engine is None:
            raise Refused(503, f"the collection cannot be opened: {self.away}", RETRY)
        return self._engine

    def _open(self) -> SearchEngine:
        settings = self._settings
        encoder = settings.encoders.get(self.name)
        return SearchEngine.open(self.path, encoder, wait=settings.wait, runtime=settings.runtime)

    def _load(self) -> None:
        if self._engine is None:
            self._engine, self.away = self._open(), None
        self.engine.warm()

    async def warm(self) -> None:
        """Load the encoders and read all files; then the collection is ready. Tries until it is."""
        failure: str | None = None  # of the last attempt, so that it is logged once
        while self.problem is not None:
            try:
                await asyncio.to_thread(self._load)
            except (SearchEngineError, OSError) as error:
                remains = "answers only searches by words (mode text); the rest"
                self.problem = "the encoder cannot be loaded; the log of the server says why"
                if self._engine is None:
                    remains = "is not served until it can be opened, which"
                    self.problem = self.away = self.without_path(str(error))
                if str(error) != failure:
                    failure = str(error)
                    message = "%s %s is tried again every %g seconds: %s"
                    _log.error(message, self.name, remains, AGAIN, error)
                await asyncio.sleep(AGAIN)
            else:
                self.problem = None

    async def search(
        self,
        query: Any,
        k: int,
        options: dict[str, Any],
        show: Callable[[Hits], Result],
        timeout: float | None = None,
    ) -> tuple[Hits, Result]:
        """The hits of one question, which is answered together with others of now.

        With what `show` returned for them, which is called in the thread that answers.
        """
        options = options | {"timeout": self._seconds(timeout)}

        async def answer() -> tuple[Hits, Result]:
            answered: tuple[Hits, Result] = await self.engine.asearch_shown(
                query, show, k, characters=MAX_TEXT, **options
            )
            return answered

        return await self._by_new_encoder(answer)

    async def read(
        self, function: Callable[[SearchEngine], Result], timeout: float | None = None
    ) -> Result:
        """Run a function of the engine in a reading thread, for as long as a request may take.

        Or for `timeout` seconds, if they are fewer. Returns its result.
        """
        limited = self._limited(function, timeout)

        async def answer() -> Result:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._readers, limited, self.engine)

        return await self._by_new_encoder(answer)

    async def write(
        self, function: Callable[[SearchEngine], Result], *, limited: bool = False
    ) -> Result:
        """Run a function that changes the collection; its result.

        It goes on if the caller is cancelled. Writes run one at a time. `limited`: for as long as a
        request may take.
        """
        function = self._limited(function) if limited else function
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, function, self.engine)

    async def _by_new_encoder(self, answer: Callable[[], Awaitable[Result]]) -> Result:
        """What this returns; again if a reindex on a server, which all see at once, came before."""
        before = self.engine
        try:
            return await answer()
        except EncoderMismatch:
            if self.engine is before:
                await self.refresh()
            if self.engine is before:
                raise
            return await answer()

    def _seconds(self, timeout: float | None) -> float:
        """How long a request may take, of which its caller grants `timeout` seconds."""
        longest = self._settings.timeout
        return longest if timeout is None else min(timeout, longest)

    def _limited(
        self, function: Callable[[SearchEngine], Result], timeout: float | None = None
    ) -> Callable[[SearchEngine], Result]:
        deadline = limits.Deadline.after(self._seconds(timeout))

        def call(engine: SearchEngine) -> Result:
            with limits.limited(deadline, MAX_TEXT):
                return function(engine)

        return call

    async def refresh(self) -> None:
        """Show the newest commit; open the collection again if its encoder was replaced."""
        if self._engine is None:
            return
        async with self._refreshing:
            try:
                try:
                    await asyncio.to_thread(self.engine.refresh)
                except EncoderMismatch:
                    await self._reopen()
            except (CollectionError, OSError) as error:
                if (reason := self.without_path(str(error))) != self.away:
                    _log.error("%s keeps its commit: %s", self.name, error)
                self.away = reason
            else:
                self.away = None

    async def _reopen(self) -> None:
        """Open the collection with its new encoder; the former engine ends its searches."""
        fresh = await asyncio.to_thread(self._open)
        try:
            await asyncio.to_thread(fresh.warm)
        except BaseException:
            fresh.close()
            raise
        _log.warning("%s has another encoder now", self.name)
        former, self._engine = self.engine, fresh
        self._retiring[former] = asyncio.create_task(self._retire(former))

    async def _retire(self, former: SearchEngine) -> None:
        """Close an engine when no request can use it, so that its encoder takes no memory."""
        await asyncio.sleep(self._settings.timeout + _LATE)
        # What waits to be written has no time limit.
        await asyncio.get_running_loop().run_in_executor(self._writer, int)
        await asyncio.to_thread(former.close)
        del self._retiring[former]

    def without_path(self, message: str) -> str:
        """A message for a client: the name of the collection in place of its folder or URL."""
        if isinstance(self.path, str):
            return message.replace(name_of(self.path), self.name)
        for path in (str(self.path.absolute()), str(self.path)):
            message = message.replace(path, self.name)
        return message

    @property
    def unready(self) -> str | None:
        """Why it is not ready: also while its database is away, without which nothing is found."""
        return self.problem or (self.away if isinstance(self.path, str) else None)

    async def close(self) -> None:
        """End the threads, with the change that is being written, and close the files."""
        retiring = list(self._retiring.items())
        for _, task in retiring:
            task.cancel()
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        for engine in (*(former for former, _ in retiring), self._engine):
            if engine is not None:
                await asyncio.to_thread(engine.close)


@dataclass(slots=True)
class State:
    """The state that the routes share."""

    settings: ServerSettings
    metrics: Metrics
    collections: Mapping[str, Served] = field(default_factory=dict)


def state(request: Request) -> State:
    """The state of the application that answers a request."""
    here: State = request.app.state.here
    return here


def collection_of(request: Request, name: str | None) -> Served:
    """The collection that a request names; None: the only one. Raises Refused."""
    collections = state(request).collections
    if name is None:
        if len(collections) > 1:
            names = ", ".join(collections)
            raise Refused(422, f"the server has several collections; name one of: {names}")
        name = next(iter(collections))
    served = collections.get(name)
    if served is None:
        raise Refused(404, f"there is no collection {name!r:.80}; GET /v1/collections lists them")
    request.scope["collection"] = name
    return served
