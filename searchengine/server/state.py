"""What the routes share: the collections, and how they are found."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from searchengine.errors import QueryError
from searchengine.server.errors import Refused
from searchengine.server.metrics import Metrics
from searchengine.server.models import ErrorModel, SearchOptions
from searchengine.server.served import Served
from searchengine.server.settings import MAX_PAIRS, ServerSettings
from searchengine.server.shared import Shared

_MEANINGS = {
    400: "The body is not JSON.",
    401: "The token is missing or unknown.",
    403: "The token may not write, or there is none.",
    404: "There is no such collection or document.",
    413: "The request is too large.",
    422: "A value does not make sense.",
    429: "Too many requests; Retry-After says when to try again.",
    500: "An error of the server; its log has it by the id.",
    502: "The encoder of the collection cannot be reached.",
    503: "Not ready, busy, or not answered in time; try again.",
}


@dataclass(slots=True)
class State:
    """What the routes share."""

    settings: ServerSettings
    shared: Shared
    metrics: Metrics
    collections: Mapping[str, Served] = field(default_factory=dict)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def served(self, name: str | None) -> Served:
        """A collection by name; None: the only one. Raises Refused."""
        if name is None:
            if len(self.collections) > 1:
                names = ", ".join(self.collections)
                raise Refused(422, f"the server has several collections; name one of: {names}")
            return next(iter(self.collections.values()))
        served = self.collections.get(name)
        if served is None:
            raise Refused(
                404, f"there is no collection {name!r:.80}; GET /v1/collections lists them"
            )
        return served

    def options(self, asked: SearchOptions, questions: int = 1) -> dict[str, Any]:
        """The keywords of SearchEngine.search that a request means. Raises QueryError."""
        options, encoding = asked.options(), self.settings.cross_encoding
        if not asked.cross_encoder:
            if asked.candidates is not None:
                raise QueryError("candidates needs cross_encoder: true")
            return options
        if encoding is None:
            raise QueryError("the server has no cross-encoder; start it with --cross-encoder MODEL")
        options |= encoding.options(asked.k, asked.offset, asked.candidates)
        if (pairs := questions * options["candidates"]) > MAX_PAIRS:
            raise QueryError(
                f"questions times candidates must be at most {MAX_PAIRS:,}, got {pairs:,}; send "
                "fewer questions at a time"
            )
        return options

    def count_vectors(self) -> None:
        """Add to the metrics where the vectors of questions came from, since the last call."""
        for served in self.collections.values():
            for source, number in served.question_vectors().items():
                self.metrics.vectors(served.name, source, number)


def state(request: Request) -> State:
    """The state of the application that answers a request."""
    here: State = request.app.state.here
    return here


def responses() -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for OpenAPI."""
    return {
        status: {"model": ErrorModel, "description": meaning}
        for status, meaning in _MEANINGS.items()
    }
