"""A collection as a document store of Haystack, with retrievers.

store = SearchEngineDocumentStore("papers.index")
retriever = SearchEngineRetriever(store, top_k=5)
"""

from asyncio import to_thread
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, cast

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy

from searchengine.corpus.documents import Document as StoredDocument
from searchengine.encoders.protocol import NoEncoder
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError
from searchengine.integrations import filters as parts
from searchengine.integrations.embeddings import embeddings
from searchengine.integrations.haystack_filters import where_of
from searchengine.integrations.metadata import metadata_of, record, stored_name
from searchengine.query.hits import Hit, Hits
from searchengine.query.request import Options

_START = "split_idx_start"
"""Haystack's name for the offset of a part in its document."""


class SearchEngineDocumentStore:
    """A collection as a document store; it is opened, or created, when first used."""

    def __init__(
        self,
        path: str,
        encoder: str | None = None,
        dim: int | None = None,
        wait: float = 30,
        return_embedding: bool = False,
    ) -> None:
        """Arguments as for SearchEngine.open_or_create.

        `encoder`: None takes that of the collection; for a new one, the packaged one. `dim`: for a
        new collection without an encoder, whose documents come with embeddings of this width.
        `return_embedding`: return documents with their embeddings, which are scaled to length 1;
        of a document with several passages their mean.
        """
        self.return_embedding = return_embedding
        self.path, self.dim, self.wait = str(path), dim, wait
        self.encoder = None if encoder is None else str(encoder)

    @cached_property
    def engine(self) -> SearchEngine:
        """The collection. Raises CollectionError."""
        return SearchEngine.open_or_create(
            self.path, self.encoder, {}, dim=self.dim, wait=self.wait
        )

    def to_dict(self) -> dict[str, Any]:
        """The arguments, as a dict."""
        return cast(
            dict[str, Any],
            default_to_dict(
                self,
                path=self.path,
                encoder=self.encoder,
                dim=self.dim,
                wait=self.wait,
                return_embedding=self.return_embedding,
            ),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cast(Self, default_from_dict(cls, data))

    def count_documents(self) -> int:
        """Number of documents."""
        return len(self.engine)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Number of documents that match a filter. Raises FilterError."""
        return self.engine.count(where_of(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """The documents that match a filter, in the order first added. Raises FilterError."""
        stored = self.engine.documents(where_of(filters))
        return self.complete([_document(each) for each in stored])

    def complete(self, documents: list[Document]) -> list[Document]:
        """The documents, with their embeddings where `return_embedding` says so."""
        if not self.return_embedding:
            return documents
        known = embeddings(self.engine, [document.id for document in documents])
        return [
            replace(document, embedding=embedding)
            for document, embedding in zip(documents, known, strict=True)
        ]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Add or replace documents; returns how many. Without a policy, FAIL.

        One without an embedding is encoded, or, in a collection without an encoder, found by its
        words. Documents with and without embeddings are two commits where the collection encodes.
        Raises ValueError for what is no Document, DuplicateDocumentError, and CorpusError for a
        document with neither content nor embedding, or with parts that are not stored.
        """
        if isinstance(documents, str) or not isinstance(documents, Iterable):
            raise ValueError(f"write_documents takes a list of Documents, got {documents!r:.80}")
        documents = list(documents)
        for document in documents:
            _check(document)
        chosen = self._chosen(documents, policy)
        alone = [each for each in chosen if each.embedding is None]
        if alone and isinstance(self.engine.encoder, NoEncoder):
            alone = []
        given = [each for each in chosen if each.embedding is not None or not alone]
        if given:
            self.engine.add(map(_record, given), [each.embedding for each in given])
        if alone:
            self.engine.add(map(_record, alone))
        return len(chosen)

    def _chosen(self, documents: list[Document], policy: DuplicatePolicy) -> list[Document]:
        """The documents to write, each id once. Raises DuplicateDocumentError."""
        if policy == DuplicatePolicy.OVERWRITE:
            return list({document.id: document for document in documents}.values())
        stored = self.engine.get([document.id for document in documents])
        known = {document.key for document in stored if document is not None}
        chosen = []
        for document in documents:
            if document.id not in known:
                chosen.append(document)
            elif policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(
                    f"a document {document.id!r} is stored already; skip or overwrite: policy=…"
                )
            known.add(document.id)
        return chosen

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; unknown ids are no error."""
        self.engine.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents."""
        self.engine.delete(where=parts.EVERYTHING)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match a filter; returns how many. Raises FilterError."""
        return self.engine.delete(where=where_of(filters) or parts.EVERYTHING)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set fields of the meta of documents that match a filter; returns how many.

        None removes a field. Raises FilterError.
        """
        given = {stored_name(name): value for name, value in meta.items()}
        patches = {
            each.key: {
                name: _replacing(each.metadata.get(name), new) for name, new in given.items()
            }
            for each in self.engine.documents(where_of(filters))
        }
        if patches:
            self.engine.update(patches)
        return len(patches)

    def close(self) -> None:
        """Close the files, if they are open."""
        if "engine" in self.__dict__:
            self.__dict__.pop("engine").close()


class _Retriever:
    """What the retrievers share: the arguments, and how a run changes them."""

    def __init__(
        self,
        document_store: SearchEngineDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
        passages: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Create a retriever.

        Args:
            document_store: the collection.
            filters, top_k, filter_policy: as of Haystack's retrievers.
            passages: return the best passage of each document in place of its content; its offset
                is in the meta field `split_idx_start`.
            options: further options of SearchEngine.search, such as {"mode": "hybrid"}.
        """
        if not isinstance(document_store, SearchEngineDocumentStore):
            raise TypeError(
                "document_store must be a SearchEngineDocumentStore, got "
                f"{type(document_store).__name__}"
            )
        if isinstance(filter_policy, str):
            filter_policy = FilterPolicy.from_str(filter_policy)
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.filter_policy, self.passages, self.options = filter_policy, passages, options

    def to_dict(self) -> dict[str, Any]:
        """The arguments, as a dict."""
        return cast(
            dict[str, Any],
            default_to_dict(
                self,
                document_store=self.document_store.to_dict(),
                filters=self.filters,
                top_k=self.top_k,
                filter_policy=self.filter_policy.value,
                passages=self.passages,
                options=self.options,
            ),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        given = dict(data["init_parameters"])
        store = given["document_store"]
        if isinstance(store, Mapping):
            given["document_store"] = SearchEngineDocumentStore.from_dict(dict(store))
        return cast(Self, default_from_dict(cls, {**data, "init_parameters": given}))

    def _asked(self, filters: dict[str, Any] | None, top_k: int | None) -> tuple[int, Options]:
        options: dict[str, Any] = dict(self.options or {})
        where = where_of(apply_filter_policy(self.filter_policy, self.filters, filters))
        if where is not None:
            options["where"] = where
        return self.top_k if top_k is None else top_k, cast(Options, options)

    def _found(self, hits: Hits) -> dict[str, list[Document]]:
        documents = [_of_hit(hit, self.passages) for hit in hits]
        return {"documents": self.document_store.complete(documents)}


@component
class SearchEngineRetriever(_Retriever):
    """Finds documents by a question, which the collection encodes, ranked as it was made for."""

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The documents nearest to a question, best first."""
        k, options = self._asked(filters, top_k)
        return self._found(self.document_store.engine.search(query, k, **options))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """As `run`; what several tasks ask at once is answered together."""
        k, options = self._asked(filters, top_k)
        hits = await self.document_store.engine.asearch(query, k, **options)
        return await to_thread(self._found, hits)


@component
class SearchEngineEmbeddingRetriever(_Retriever):
    """Finds documents by the embedding of a question."""

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """The documents nearest to an embedding, best first."""
        k, options = self._asked(filters, top_k)
        return self._found(self.document_store.engine.search(query_embedding, k, **options))

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """As `run`."""
        k, options = self._asked(filters, top_k)
        hits = await self.document_store.engine.asearch(query_embedding, k, **options)
        return await to_thread(self._found, hits)


def _check(document: Any) -> None:
    """Raise ValueError or CorpusError for what cannot be stored."""
    if not isinstance(document, Document):
        raise ValueError(f"write_documents takes a list of Documents, got {document!r:.80} in it")
    for name in ("blob", "sparse_embedding"):
        if getattr(document, name) is not None:
            raise CorpusError(
                f"document {document.id!r} has a {name}, which is not stored; remove it"
            )
    if document.embedding is None and not (document.content or "").strip():
        raise CorpusError(
            f"document {document.id!r} has neither content nor embedding; leave it out"
        )


def _record(document: Document) -> dict[str, Any]:
    return record(document.id, document.content or "", document.meta)


def _document(stored: StoredDocument) -> Document:
    return Document(id=stored.key, content=stored.text or None, meta=metadata_of(stored))


def _of_hit(hit: Hit, passage: bool) -> Document:
    meta = metadata_of(hit)
    if passage:
        meta[_START] = hit.start
    text = hit.passage if passage else hit.text
    return Document(id=hit.key, content=text or None, meta=meta, score=hit.score)


def _replacing(old: Any, new: Any) -> Any:
    """A merge patch (RFC 7396) that makes `old` equal to `new`, where both are objects."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    removed = dict.fromkeys(old.keys() - new.keys())
    return {**removed, **{name: _replacing(old.get(name), value) for name, value in new.items()}}
