"""Routes of documents: get, list, put, update, delete."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from searchengine.corpus.contents import bad
from searchengine.corpus.documents import Document
from searchengine.engine import SearchEngine
from searchengine.errors import QueryError, UnknownKey
from searchengine.indexer.arrays import Floats
from searchengine.query.request import check_vectors
from searchengine.server import MAX_KEY, MAX_OFFSET, MAX_PAGE
from searchengine.server.responses import json_list, respond
from searchengine.server.served import Collection


class _AnyKey(PathConvertor):
    regex = r"[\s\S]*"  # a key may have slashes, and line ends


register_url_convertor("any_key", _AnyKey())
router = APIRouter(tags=["documents"], prefix="/v1/collections/{name}/documents")
Key = Annotated[
    str, Path(min_length=1, max_length=MAX_KEY, description="A key.", examples=["whales"])
]
Where = Annotated[str, Query(max_length=2000, description="Metadata filter.")]
Record = Annotated[dict[str, Any], Body(examples=[{"text": "Owls hunt by night.", "year": 2020}])]


@router.get("")
async def list_documents(
    served: Collection,
    where: Where | None = None,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
    limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 10,
    after: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> Response:
    """`documents` in the order in which they were first added.

    `total`: those that match the filter, on the first page. `next`: `after` of the next page.
    """

    def work(engine: SearchEngine) -> dict[str, Any]:
        with engine.collection.reading() as snapshot:
            first, most = -1 if after is None else after, offset + limit
            ids = snapshot.ids_after(first, where, most + 1).tolist()
            page = ids[offset:most]
            return {
                "documents": json_list(
                    Document.stored(*row).as_record() for row in snapshot.documents(page)
                ),
                "total": snapshot.count(where) if after is None else None,
                "next": page[-1] if page and len(ids) > most else None,
            }

    return respond(await served.read(work))


@router.delete("")
async def delete_documents(served: Collection, where: Where) -> Response:
    """Delete all documents that match a filter; `deleted`: their number."""
    return respond({"deleted": await served.write(lambda engine: engine.delete(where=where))})


@router.get("/{key:any_key}")
async def get_document(served: Collection, key: Key) -> Response:
    """A document by its key: its fields and, next to them, its metadata."""
    return respond(await served.read(lambda engine: _record(engine, key)))


@router.put("/{key:any_key}")
async def put_document(served: Collection, key: Key, new: Record) -> Response:
    """Store a document, in place of the one with this key: `text`, `title`, and any metadata.

    `_vector`: the document's vector, in place of its encoding. `result`: added, changed,
    metadata_updated or unchanged, which is committed.
    """
    dim = served.engine.collection.settings["encoder"]["dim"]
    document, vector = _checked(new, key, dim)

    def work(engine: SearchEngine) -> str:
        summary = engine.add([document], None if vector is None else [vector])
        results = ("added", "changed", "metadata_updated", "unchanged")
        return next(result for result in results if getattr(summary, result))

    return respond({"key": key, "result": await served.write(work)})


@router.patch("/{key:any_key}")
async def update_document(served: Collection, key: Key, patch: Record) -> Response:
    """Merge into the metadata of a document (RFC 7396): null removes a field."""

    def work(engine: SearchEngine) -> bytes:
        _record(engine, key)
        engine.update({key: patch})
        return _record(engine, key)

    return respond(await served.write(work))


@router.delete("/{key:any_key}")
async def delete_document(served: Collection, key: Key) -> Response:
    """Delete a document."""

    def work(engine: SearchEngine) -> int:
        _record(engine, key)
        return engine.delete([key])

    return respond({"deleted": await served.write(work)})


def _record(engine: SearchEngine, key: str) -> bytes:
    """A stored document as JSON. Raises UnknownKey."""
    document = engine.get(key)
    if document is None:
        raise UnknownKey(f"there is no document {key!r:.80}")
    return json_list([document.as_record()])[1:-1]


def _checked(record: dict[str, Any], key: str, dim: int) -> tuple[Document, Floats | None]:
    """The document of a request, and its vector (D,) if it comes with one. Raises CorpusError.

    `key`: that of the address. `dim`: of the collection.
    """
    place, vector = f"document {key!r:.80}", None
    if (row := record.pop("_vector", None)) is not None:
        try:
            (vector,) = check_vectors([row], dim)
        except QueryError as error:
            needed = f"_vector must be a list of {dim} finite numbers, not all zeros"
            raise bad(place, needed) from error
    document = Document.from_mapping(record, place, key, needs_text=False)
    if document.key != key:
        raise bad(place, f"the _id is {document.key!r:.80}, but the address names {key!r:.80}")
    if not document.full_text and vector is None:
        raise bad(place, "the document has neither text nor title nor a vector")
    return document, vector
