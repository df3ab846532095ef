"""Responses as JSON, up to a size."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from searchengine.engine import limits
from searchengine.server.refusals import Refused
from searchengine.server.server_settings import MAX_RESPONSE


def json_list(values: Iterable[Any]) -> bytes:
    """A list as JSON, one value after the other; values that are bytes are JSON already.

    Raises Refused if it is too large, SearchTimeout if it is late.
    """
    pieces, size = [], 0
    for value in values:
        pieces.append(value if isinstance(value, bytes) else to_json(value))
        size += len(pieces[-1]) + 1
        if size > MAX_RESPONSE:
            raise Refused(
                422,
                f"the response would have more than {MAX_RESPONSE >> 20} MiB; ask for fewer at "
                'once, or leave out the texts of hits: "texts": false',
            )
        limits.check()
    return b"[" + b",".join(pieces) + b"]"


def json_object(**members: Any) -> bytes:
    """An object as JSON; members that are bytes are JSON already."""
    pieces = (
        to_json(name) + b":" + (value if isinstance(value, bytes) else to_json(value))
        for name, value in members.items()
    )
    return b"{" + b",".join(pieces) + b"}"


def facet_lists(facets: Mapping[str, Mapping[Any, int]]) -> dict[str, list[dict[str, Any]]]:
    """Field → its values and their counts, most frequent first."""
    return {
        name: [{"value": value, "count": count} for value, count in counts.items()]
        for name, counts in facets.items()
    }


def respond(body: bytes, status: int = 200) -> Response:
    """The response of a body that is JSON."""
    return Response(body, status, media_type="application/json")
