"""Routes of documents: get, list, put, update, delete."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from searchengine.corpus.documents import Document
from searchengine.corpus.text_files import bad
from searchengine.engine import SearchEngine, contract
from searchengine.errors import QueryError, UnknownKey
from searchengine.indexer.arrays import Floats
from searchengine.query.request import check_vectors
from searchengine.server.models import (
    DocumentList,
    DocumentModel,
    KeysRequest,
    NewDocument,
    Patch,
    UrlFilter,
)
from searchengine.server.refusals import BEARER, RESPONSES
from searchengine.server.responses import json_list, json_object, respond
from searchengine.server.served import collection_of
from searchengine.server.server_settings import MAX_KEY, MAX_OFFSET, MAX_PAGE


class _AnyKey(PathConvertor):
    regex = r"[\s\S]*"  # a key may have slashes, and line ends


register_url_convertor("any_key", _AnyKey())
router = APIRouter(
    tags=["documents"],
    prefix="/v1/collections/{name}/documents",
    responses=RESPONSES,
    dependencies=[Depends(BEARER)],
)
Name = Annotated[str, Path(max_length=64, description="A collection.", examples=["papers"])]
Key = Annotated[
    str, Path(min_length=1, max_length=MAX_KEY, description="A key.", examples=["whales"])
]
Where = Annotated[UrlFilter | None, Query(description="Metadata filter.")]
After = Annotated[
    int | None,
    Query(ge=0, lt=1 << 63, description="`next` of the page before, which this one follows."),
]
VECTOR = "_vector"
"""Field of a record that holds the document's vector, if it comes with one."""
RESULTS = ("added", "changed", "metadata_updated", "unchanged")
"""Possible outcomes for a document that is put."""


@router.get("", response_model=DocumentList)
async def list_documents(
    request: Request,
    name: Name,
    where: Where = None,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
    limit: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 10,
    after: After = None,
) -> Response:
    """Documents in the order in which they were first added."""

    def work(engine: SearchEngine) -> bytes:
        with engine.collection.reading() as snapshot:
            ids, last = _page(snapshot, where, after, offset, limit)
            documents = snapshot.documents(ids)
            total = snapshot.count(where) if after is None else None
        records = json_list(document.as_record() for document in documents)
        return json_object(documents=records, total=total, next=last)

    return respond(await collection_of(request, name).read(work))


@router.post(":get", response_model=dict[str, list[DocumentModel | None]])
async def get_documents(request: Request, name: Name, body: KeysRequest) -> Response:
    """`documents` in the order of their keys; null for an unknown key."""

    def work(engine: SearchEngine) -> bytes:
        documents = engine.get(body.keys)
        return json_object(documents=json_list(each and each.as_record() for each in documents))

    return respond(await collection_of(request, name).read(work))


@router.delete("", response_model=dict[str, int])
async def delete_documents(
    request: Request,
    name: Name,
    where: Annotated[UrlFilter, Query(description="Metadata filter.", examples=["year < 2000"])],
) -> Response:
    """Delete all documents that match a filter; `deleted`: their number."""
    served = collection_of(request, name)
    deleted = await served.write(lambda engine: engine.delete(where=where), limited=True)
    return respond(json_object(deleted=deleted))


@router.get("/{key:any_key}", response_model=DocumentModel)
async def get_document(request: Request, name: Name, key: Key) -> Response:
    """A document by its key."""
    document = await collection_of(request, name).read(lambda engine: engine.get(key))
    if document is None:
        raise _unknown(key)
    return respond(json_list([document.as_record()])[1:-1])


@router.put("/{key:any_key}", response_model=dict[str, str])
async def put_document(request: Request, name: Name, key: Key, new: NewDocument) -> Response:
    """Store a document, in place of the one with this key.

    `_vector`: the document's vector, in place of its encoding. `result`: added, changed,
    metadata_updated or unchanged, which is committed.
    """
    served = collection_of(request, name)
    dim = served.engine.collection.settings["encoder"]["dim"]
    document, vector = _checked(new.model_dump(), key, dim)
    result = await served.write(lambda engine: _add(engine, document, vector))
    return respond(json_object(key=key, result=result))


@router.patch("/{key:any_key}", response_model=DocumentModel)
async def update_document(request: Request, name: Name, key: Key, patch: Patch) -> Response:
    """Merge into the metadata of a document (RFC 7396): null removes a field."""

    def work(engine: SearchEngine) -> bytes:
        if key not in engine:
            raise _unknown(key)
        engine.update({key: patch.model_dump()})
        return json_list([engine[key].as_record()])[1:-1]

    return respond(await collection_of(request, name).write(work))


@router.delete("/{key:any_key}", response_model=dict[str, int])
async def delete_document(request: Request, name: Name, key: Key) -> Response:
    """Delete a document."""
    deleted = await collection_of(request, name).write(lambda engine: engine.delete([key]))
    if not deleted:
        raise _unknown(key)
    return respond(json_object(deleted=deleted))


def _page(
    snapshot: contract.Snapshot, where: str | None, after: int | None, offset: int, limit: int
) -> tuple[list[int], int | None]:
    """The ids of a page, and the last of them if another page follows."""
    ids = snapshot.ids_after(-1 if after is None else after, where, offset + limit + 1).tolist()
    page = ids[offset : offset + limit]
    return page, page[-1] if page and len(ids) > offset + limit else None


def _checked(record: dict[str, Any], key: str, dim: int) -> tuple[Document, Floats | None]:
    """The document of a request, and its vector (1, D) if it comes with one. Raises CorpusError.

    `key`: that of the address. `dim`: of the collection.
    """
    place, vector = f"document {key!r:.80}", None
    if (row := record.pop(VECTOR, None)) is not None:
        try:
            vector = check_vectors([row], dim)
        except QueryError as error:
            needed = f"{VECTOR} must be a list of {dim} finite numbers, not all zeros"
            raise bad(place, needed) from error
    document = Document.from_mapping(record, place, key, needs_text=False)
    if document.key != key:
        raise bad(place, f"the _id is {document.key!r:.80}, but the address names {key!r:.80}")
    if not document.full_text and vector is None:
        raise bad(place, "the document has neither text nor title nor a vector")
    return document, vector


def _add(engine: SearchEngine, document: Document, vector: Floats | None) -> str:
    """Commit a document; returns which of RESULTS it was.

    In a collection without an encoder, one without a vector is found by its words.
    """
    encoded = engine.encodes and vector is None
    rows = None if encoded else [None if vector is None else vector[0]]
    summary = engine.add([document], rows)
    return max(RESULTS, key=lambda name: int(getattr(summary, name)))


def _unknown(key: str) -> UnknownKey:
    return UnknownKey(f"there is no document {key!r:.80}")
