"""A collection as tools of an assistant: a server of the Model Context Protocol.

Reads only. Each call shows the newest commit of any process.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from importlib.metadata import version
from inspect import cleandoc, signature
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field, ValidationError

from searchengine.engine import Hit, Hits, SearchEngine, field_name
from searchengine.errors import EncoderMismatch, SearchEngineError

_EXPECTED = (SearchEngineError, OSError, ImportError, ToolError)
_LONGEST = 2000  # characters of a hit's text; of a longer passage the snippet is shown
_SAMPLE = 50  # documents whose fields are named to the assistant

Where = Annotated[
    str | None,
    Field(
        description="Metadata filter, such as: year >= 2015 and lang in ('en', 'ko') and "
        "tags contains 'whales' and not draft"
    ),
]
Count = Annotated[int, Field(ge=1, le=100, description="Number of hits.")]


Result = dict[str, Any]  # JSON, which the description of each tool explains


class Tools:
    """The tools of a collection; each is called in a thread of its own."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        """Open the collection; arguments and errors as for SearchEngine.open."""
        self._open = partial(SearchEngine.open, path, **options)
        self._lock, self._engines = Lock(), ExitStack()
        self._engine = self._engines.enter_context(self._open())

    def close(self) -> None:
        """Close the files."""
        self._engines.close()

    def _current(self) -> SearchEngine:
        """The engine at the newest commit; a former one stays open for the calls under way."""
        with self._lock:
            try:
                self._engine.refresh()
            except EncoderMismatch:  # `reindex` has changed the encoder
                self._engine = self._engines.enter_context(self._open())
            return self._engine

    def search(
        self,
        query: Annotated[str, Field(description="A question, or words to find.")],
        k: Count = 10,
        where: Where = None,
        mode: Annotated[
            Literal["auto", "vector", "text", "hybrid"],
            Field(description="Rank by meaning (vector), by words (text), by both (hybrid)."),
        ] = "auto",
        offset: Annotated[int, Field(ge=0, description="Number of hits to skip.")] = 0,
        typo_tolerance: Annotated[
            bool, Field(description="Replace words that no document has by the nearest ones.")
        ] = True,
    ) -> Result:
        """Find the documents that answer a question best, with the passage that does so.

        In the modes text and hybrid, documents with a phrase in quotation marks rank higher, and
        must have it with a plus sign before: +"half a brain". The tool `get` returns the whole text
        of a document.

        Each of `hits` has the best passage as `text`, which begins at the character `start`, the
        headings above it, and the parts of its score as `scores`. `notes` says why there are none;
        `replaced` has unknown words of the question, with the words searched for instead.
        """
        options: dict[str, Any] = {"where": where, "mode": mode, "offset": offset}
        return _results(self._current().search(query, k, typo_tolerance=typo_tolerance, **options))

    def get(
        self,
        keys: Annotated[list[str], Field(min_length=1, max_length=100, description="Keys.")],
        start: Annotated[int, Field(ge=0, description="First character of each text.")] = 0,
        characters: Annotated[
            int, Field(ge=1, le=200_000, description="Maximum characters of each text.")
        ] = 20_000,
    ) -> Result:
        """Return documents by key: text, title and metadata.

        `length`: characters of the whole text. `unknown`: the keys that no document has.
        """
        stored = dict(zip(keys, self._current().get(keys), strict=True))
        documents = [
            {
                "key": document.key,
                "title": document.title,
                "text": document.text[start : start + characters],
                "start": start,
                "length": len(document.text),
                "metadata": dict(document.metadata),
            }
            for document in map(stored.get, keys)
            if document is not None
        ]
        return {"documents": documents, "unknown": [key for key in keys if stored[key] is None]}

    def similar(
        self,
        key: Annotated[str, Field(description="Key of a document.")],
        k: Count = 10,
        where: Where = None,
    ) -> Result:
        """Find the documents nearest in meaning to a stored one, as `search` shows them."""
        return _results(self._current().similar(key, k, where=where))

    def facets(
        self,
        fields: Annotated[
            list[str],
            Field(min_length=1, max_length=20, description="Fields, such as author.name"),
        ],
        where: Where = None,
        most: Annotated[
            int, Field(ge=1, le=1000, description="Maximum values of each field.")
        ] = 20,
    ) -> Result:
        """Count the values of metadata fields, most frequent first, over all matching documents.

        `documents`: how many match. `values`: how many values each field has.
        """
        engine = self._current()
        counted = engine.facets(*fields, where=where)
        facets = {
            field: [{"value": value, "count": n} for value, n in islice(counts.items(), most)]
            for field, counts in counted.items()
        }
        values = {field: len(counts) for field, counts in counted.items()}
        return {"documents": engine.count(where), "facets": facets, "values": values}

    def instructions(self) -> str:
        """What an assistant should know of the collection before it calls a tool."""
        engine = self._current()
        names: dict[str, None] = {}
        for document in engine.documents(limit=_SAMPLE):
            names |= dict.fromkeys(_names(document.metadata))
        fields = f" Metadata fields: {', '.join(names)}." if names else ""
        return (
            f"A searchable collection of {len(engine):,} documents. `search` finds passages by "
            "meaning and words, `get` reads whole documents, `similar` finds documents like one, "
            f"`facets` counts metadata values, for filters.{fields}"
        )


class Server(MCPServer[Any]):
    """A server that answers errors in one sentence and refuses unknown arguments."""

    def __init__(self, tools: Tools) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(message)s")  # else mcp chooses
        super().__init__(
            "searchengine",
            version=version("searchengine"),
            instructions=tools.instructions(),
            log_level="WARNING",
            subscriptions=False,
        )
        self._arguments: dict[str, list[str]] = {}
        reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        for tool in (tools.search, tools.get, tools.similar, tools.facets):
            about = cleandoc(tool.__doc__ or "")
            self.add_tool(tool, description=about, annotations=reads, structured_output=True)
            self._arguments[tool.__name__] = list(signature(tool).parameters)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Raises ToolError, with a message for the assistant."""
        known = self._arguments.get(name, list(arguments))
        for argument in arguments:
            if argument not in known:
                raise ToolError(
                    f"{name} has no argument {argument!r}; its arguments are {', '.join(known)}"
                )
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                raise ToolError(_sentence(cause)) from error
            if isinstance(cause, _EXPECTED):
                raise ToolError(str(cause)) from error
            raise


def serve(path: str | Path, **options: Any) -> None:
    """Answer an assistant on stdin and stdout until stdin ends; arguments and errors as Tools."""
    with closing(Tools(path, **options)) as tools:
        Server(tools).run("stdio")


def _results(hits: Hits) -> Result:
    return {
        "hits": [_hit(hit) for hit in hits],
        "notes": list(hits.notes),
        "replaced": dict(hits.replaced),
    }


def _hit(hit: Hit) -> Result:
    metadata = dict(hit.metadata)
    if hit.heading:
        del metadata["headings"]  # all of a file's
    return {
        "key": hit.key,
        "score": hit.score,
        "title": hit.title,
        "heading": hit.heading,
        "text": hit.passage if len(hit.passage) <= _LONGEST else hit.snippet,
        "start": hit.start,
        "metadata": metadata,
        "scores": dict(hit.scores),
    }


def _names(metadata: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[str]:
    """The fields of a document's metadata, as filters name them."""
    for name, value in metadata.items():
        if isinstance(value, dict):
            yield from _names(value, (*above, name))
        else:
            yield field_name((*above, name))


def _sentence(error: ValidationError) -> str:
    """The first mistake in the arguments of a tool."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {first['msg'].lower()}, got {first['input']!r:.80}"
