"""A collection as tools of an assistant: a server of the Model Context Protocol.

Reads only. Each call shows the newest commit of any process.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
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

from searchengine.engine import Hits, SearchEngine, field_name
from searchengine.errors import EncoderMismatch, SearchEngineError

_EXPECTED = (SearchEngineError, OSError, ImportError, ToolError)
_LONGEST = 2000  # characters of a hit's text; of a longer passage the snippet is shown

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

    def __init__(self, engines: ExitStack, path: str | Path, **options: Any) -> None:
        """Open the collection until `engines` ends; others and errors as for SearchEngine.open."""
        self._open = partial(SearchEngine.open, path, **options)
        self._lock, self._engines = Lock(), engines
        self._engine = engines.enter_context(self._open())

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
    ) -> Result:
        """Find the documents that answer a question best, with the passage that does so.

        In the modes text and hybrid, documents must have a phrase in quotation marks with a plus
        sign before: +"half a brain". The tool `get` returns the whole text of a document.

        Each of `hits` has the best passage as `text`, which begins at the character `start`, and
        the parts of its score as `scores`. `notes` says why there are none; `replaced` has unknown
        words of the question, with the words searched for instead.
        """
        return _results(self._current().search(query, k, where=where, mode=mode, offset=offset))

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
                "key": key,
                "title": document.title,
                "text": document.text[start : start + characters],
                "start": start,
                "length": len(document.text),
                "metadata": dict(document.metadata),
            }
            for key, document in stored.items()
            if document is not None
        ]
        return {"documents": documents, "unknown": [k for k, found in stored.items() if not found]}

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
            list[str], Field(min_length=1, max_length=20, description="Fields, such as author.name")
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
        sample = engine.documents(limit=50)
        names = dict.fromkeys(field_name((name,)) for each in sample for name in each.metadata)
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
        every = (tools.search, tools.get, tools.similar, tools.facets)
        self._tools: dict[str, Callable[..., Result]] = {each.__name__: each for each in every}
        reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        for tool in self._tools.values():
            about = cleandoc(tool.__doc__ or "")
            self.add_tool(tool, description=about, annotations=reads, structured_output=True)

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Raises ToolError, with a message for the assistant."""
        known = signature(self._tools[name]).parameters if name in self._tools else arguments
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
                first = cause.errors(include_url=False)[0]
                wrong = f": {first['msg'].lower()}, got {first['input']!r:.80}"
                wrong = " is missing" if first["type"] == "missing" else wrong
                raise ToolError(f"{'.'.join(map(str, first['loc']))}{wrong}") from error
            if isinstance(cause, _EXPECTED):
                raise ToolError(str(cause)) from error
            raise


def serve(path: str | Path, **options: Any) -> None:
    """Answer an assistant on stdin and stdout until stdin ends; arguments and errors as Tools."""
    with ExitStack() as engines:
        Server(Tools(engines, path, **options)).run("stdio")


def _results(hits: Hits) -> Result:
    shown = []
    for hit in hits:
        fields = ("key", "score", "title", "start")
        text = hit.passage if len(hit.passage) <= _LONGEST else hit.snippet
        more = {"text": text, "metadata": dict(hit.metadata), "scores": dict(hit.scores)}
        shown.append({name: getattr(hit, name) for name in fields} | more)
    return {"hits": shown, "notes": list(hits.notes), "replaced": dict(hits.replaced)}
