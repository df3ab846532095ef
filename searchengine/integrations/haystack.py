"""A collection as a document store of Haystack, with retrievers.

store = SearchEngineDocumentStore("papers.index")
retriever = SearchEngineRetriever(store, top_k=5)
"""

from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self, cast

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
from haystack.errors import FilterError

from searchengine.engine import Document as StoredDocument
from searchengine.engine import Hit, Hits, Options, SearchEngine
from searchengine.errors import CorpusError
from searchengine.errors import FilterError as EngineFilterError
from searchengine.integrations import where
from searchengine.integrations.stored import embeddings, metadata_of, record, stored_name

_START = "split_idx_start"
"""Haystack's name for the offset of a part in its document."""
_ATTRIBUTES = {attribute.name for attribute in fields(Document)}
_ZONED = ("%Z", "%+__:__", "%-__:__")
_DATED = "____-__-__%"
_DAY = len("2020-03-01")


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
        new collection without an encoder: the width of the embeddings that come with documents.
        `return_embedding`: return documents with their embeddings, which are scaled to length 1; of
        a document with several passages their mean.
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
        return self.complete([_document(document) for document in stored])

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
        Raises ValueError for other values than a Document, DuplicateDocumentError, and CorpusError
        for a document with neither content nor embedding, or with parts that are not stored.
        """
        if isinstance(documents, str) or not isinstance(documents, Iterable):
            raise ValueError(f"write_documents takes a list of Documents, got {documents!r:.80}")
        documents = list(documents)
        for document in documents:
            _check(document)
        chosen = self._chosen(documents, policy)
        to_encode = [document for document in chosen if document.embedding is None]
        if to_encode and not self.engine.encodes:
            to_encode = []
        supplied = [doc for doc in chosen if doc.embedding is not None or not to_encode]
        if supplied:
            self.engine.add(map(_record, supplied), [doc.embedding for doc in supplied])
        if to_encode:
            self.engine.add(map(_record, to_encode))
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
        self.engine.delete(where=where.EVERYTHING)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match a filter; returns how many. Raises FilterError."""
        return self.engine.delete(where=where_of(filters) or where.EVERYTHING)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set fields of the meta of documents that match a filter; returns how many.

        None removes a field. Raises FilterError.
        """
        changes = {stored_name(name): value for name, value in meta.items()}
        patches = {
            document.key: {
                name: _replacing(document.metadata.get(name), new) for name, new in changes.items()
            }
            for document in self.engine.documents(where_of(filters))
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
        arguments = dict(data["init_parameters"])
        store = arguments["document_store"]
        if isinstance(store, Mapping):
            arguments["document_store"] = SearchEngineDocumentStore.from_dict(dict(store))
        return cast(Self, default_from_dict(cls, {**data, "init_parameters": arguments}))

    def _search(
        self, question: str | list[float], filters: dict[str, Any] | None, top_k: int | None
    ) -> dict[str, list[Document]]:
        k, options = self._arguments(filters, top_k)
        return self._documents(self.document_store.engine.search(question, k, **options))

    async def _asearch(
        self, question: str | list[float], filters: dict[str, Any] | None, top_k: int | None
    ) -> dict[str, list[Document]]:
        k, options = self._arguments(filters, top_k)
        hits = await self.document_store.engine.asearch(question, k, **options)
        return await to_thread(self._documents, hits)

    def _arguments(self, filters: dict[str, Any] | None, top_k: int | None) -> tuple[int, Options]:
        options: dict[str, Any] = dict(self.options or {})
        matching = where_of(apply_filter_policy(self.filter_policy, self.filters, filters))
        if matching is not None:
            options["where"] = matching
        return self.top_k if top_k is None else top_k, cast(Options, options)

    def _documents(self, hits: Hits) -> dict[str, list[Document]]:
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
        return self._search(query, filters, top_k)

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """As `run`; what several tasks ask at once is answered together."""
        return await self._asearch(query, filters, top_k)


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
        return self._search(query_embedding, filters, top_k)

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """As `run`."""
        return await self._asearch(query_embedding, filters, top_k)


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


# ------------------------------------------------------------------------------------------ filters


def where_of(filters: Mapping[str, Any] | None) -> str | None:
    """A filter as `where`, with the meaning of Haystack's document_matches_filter; None: all.

    They differ where a filter of a collection differs from Python: a comparison of values of
    different kinds is false, where Haystack raises an error for the documents it meets; stored
    dates have one of the forms in docs/searching.md; and a date without a zone in the filter is UTC
    if stored dates have a zone. Raises Haystack's FilterError.
    """
    if not filters:
        return None
    try:
        return _test(filters)
    except EngineFilterError as error:
        raise FilterError(str(error)) from error


def _test(filters: Any) -> str:
    """A comparison, or several joined."""
    if not isinstance(filters, Mapping):
        raise FilterError(f"a filter must be a dict, got {filters!r:.80}")
    if "field" in filters:
        operator, value = _part(filters, "operator"), _part(filters, "value")
        if operator not in _COMPARISONS:
            raise FilterError(
                f"operator must be one of {', '.join(_COMPARISONS)}, got {operator!r}"
            )
        return _COMPARISONS[operator](_field(filters["field"]), value)
    operator, conditions = _part(filters, "operator"), _part(filters, "conditions")
    tests = [_test(condition) for condition in conditions]
    if operator == "AND":
        return where.every(tests)
    if operator == "OR":
        return where.either(tests)
    if operator == "NOT":
        return where.negated(where.every(tests))
    raise FilterError(f"operator must be AND, OR or NOT, got {operator!r}")


def _part(filters: Mapping[str, Any], name: str) -> Any:
    if name not in filters:
        raise FilterError(f"a filter needs {name!r}, got {dict(filters)!r:.200}")
    return filters[name]


def _field(name: str) -> str:
    """The stored field of `meta.author.name`, or of `author`."""
    first, *rest = str(name).split(".")
    if first == "meta" and rest:
        return where.field(tuple(rest))
    if rest or first in _ATTRIBUTES:
        raise FilterError(
            f"documents are selected by fields of meta, got {name!r}; write meta.year"
        )
    return where.field((first,))


def _equal(field: str, value: Any) -> str:
    moment = _moment(value) if _is_dated(value) else None
    if moment is None:
        return where.equal(field, value)
    equal = _dated(field, "=", moment)
    return where.either([where.equal(field, value), equal]) if isinstance(value, str) else equal


def _member(field: str, values: Any) -> str:
    if not isinstance(values, list):
        raise FilterError(f"in and not in take a list, got {values!r:.80}")
    plain = [value for value in values if not _is_dated(value)]
    dates = [_equal(field, value) for value in values if _is_dated(value)]
    return where.either([where.member(field, plain), *dates])


def _ordered(sign: str) -> Callable[[str, Any], str]:
    def test(field: str, value: Any) -> str:
        if value is None:
            return where.NOTHING
        if not isinstance(value, str | datetime):
            return where.ordered(field, sign, value)
        moment = _moment(value)
        if moment is None:
            raise FilterError(
                f"texts compare by {sign} only as dates, such as 2020-03-01T09:30:00, "
                f"got {value!r:.80}"
            )
        return _dated(field, sign, moment)

    return test


_COMPARISONS: dict[str, Callable[[str, Any], str]] = {
    "==": _equal,
    "!=": lambda field, value: where.negated(_equal(field, value)),
    ">": _ordered(">"),
    ">=": _ordered(">="),
    "<": _ordered("<"),
    "<=": _ordered("<="),
    "in": _member,
    "not in": lambda field, values: where.negated(_member(field, values)),
}


def _is_dated(value: Any) -> bool:
    """Whether `==` compares it as a date, if it is one."""
    return isinstance(value, datetime) or (
        isinstance(value, str)
        and value[:_DAY].count("-") == 2
        and (len(value) == _DAY or value[_DAY : _DAY + 1] in ("T", "t", " "))
    )


def _moment(value: str | datetime) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _dated(field: str, sign: str, moment: datetime) -> str:
    """A comparison with a moment; a date without a time zone takes the zone of the other."""
    is_date = f"{field} like '{_DATED}'"
    test = f"{field} {sign} {_literal(moment)}"
    if moment.utcoffset():
        zoned = where.either([f"{field} like '{pattern}'" for pattern in _ZONED])
        local = f"{field} {sign} {_literal(moment.replace(tzinfo=None))}"
        test = where.either(
            [where.every([zoned, test]), where.every([where.negated(zoned), local])]
        )
    return where.every([is_date, test])


def _literal(moment: datetime) -> str:
    """A moment to the microsecond: of a shorter date, a filter would take all of the period."""
    utc = moment.astimezone(UTC) if moment.tzinfo else moment
    return f"date('{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z')"
