"""A collection as a vector store and a retriever of LangChain.

store = SearchEngineVectorStore(SearchEngine.open("papers.index"))
store.as_retriever(search_kwargs={"k": 5, "filter": {"year": {"$gte": 2015}}})
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias, cast
from uuid import uuid4

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.structured_query import (
    Comparator,
    Comparison,
    FilterDirective,
    Operation,
    Operator,
    StructuredQuery,
    Visitor,
)
from langchain_core.vectorstores import VectorStore
from pydantic import Field

from searchengine.engine import FunctionEncoder, Hit, Hits, Options, SearchEngine
from searchengine.errors import CorpusError, FilterError, QueryError
from searchengine.integrations import where
from searchengine.integrations.stored import metadata_of, record

Filter: TypeAlias = str | Mapping[str, Any] | FilterDirective | None
"""A `where` text, a dict (`where_of`), or the filter of a structured query."""


def encoder_of(embeddings: Embeddings, name: str | None = None) -> FunctionEncoder:
    """An embedding model of LangChain as the encoder of a collection.

    `name`: identifies it, besides its vectors of four short texts; by default that of its class.
    """

    def query(texts: list[str]) -> list[list[float]]:
        return [embeddings.embed_query(text) for text in texts]

    return FunctionEncoder(
        embeddings.embed_documents, name or type(embeddings).__name__, query=query
    )


class EngineEmbeddings(Embeddings):
    """The encoder of a collection as an embedding model; it is loaded when first called."""

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A unit vector for each text."""
        vectors: list[list[float]] = self._engine.encode_documents(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The unit vector of a question."""
        vector: list[float] = self._engine.encode_questions([text])[0].tolist()
        return vector


class SearchEngineVectorStore(VectorStore):
    """A collection as a vector store. Documents are encoded by the collection's encoder.

    Every search takes `filter` and, as keywords, the options of SearchEngine.search. Searches are
    by vectors, and a score is a cosine, unless `mode` is "hybrid" or "text" (by words).

    Attributes:
        engine: the collection.
    """

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path | None = None,
        **options: Any,
    ) -> Self:
        """Create a collection in the folder `path`. `options`: as for SearchEngine.create.

        `embedding`: None for the encoder in `options`, or else the packaged one. Raises QueryError
        without `path`, CollectionError if there is a collection already.
        """
        if path is None:
            raise QueryError("a collection needs a folder: from_texts(…, path='papers.index')")
        if embedding is not None:
            options["encoder"] = encoder_of(embedding)
        store = cls(SearchEngine.create(path, **options))
        try:
            store.add_texts(texts, metadatas, ids=ids)
        except BaseException:
            store.engine.close()
            raise
        return store

    @property
    def embeddings(self) -> Embeddings:
        """The collection's encoder."""
        return EngineEmbeddings(self.engine)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add or replace documents in one commit; returns their ids, random where none is given.

        Further keywords are those of SearchEngine.add; `batch_size`, which LangChain's `index`
        passes, is the engine's own affair.
        Raises CorpusError for a text that is empty and for metadata that JSON cannot hold,
        QueryError if there are not as many ids or metadatas as texts.
        """
        texts = list(texts)
        for name, values in (("ids", ids), ("metadatas", metadatas)):
            if values is not None and len(values) != len(texts):
                raise QueryError(
                    f"{name} must be one for each of {len(texts)} texts, got {len(values)}"
                )
        keys = [key or str(uuid4()) for key in ids or [""] * len(texts)]
        records = {
            key: record(key, text, metadata)
            for key, text, metadata in zip(keys, texts, metadatas or [{}] * len(texts), strict=True)
        }
        for key, text in zip(keys, texts, strict=True):
            if not text.strip():
                raise CorpusError(f"document {key!r} has no text; leave it out")
        kwargs.pop("batch_size", None)
        if records:
            self.engine.add(records.values(), **kwargs)
        return keys

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id, or by `filter`; None: all."""
        matching = where_of(kwargs.pop("filter", None))
        if kwargs:
            raise QueryError(f"delete takes ids or filter, got {', '.join(kwargs)}")
        if ids is not None:
            self.engine.delete(ids)
        else:
            self.engine.delete(where=matching or where.EVERYTHING)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids that are stored, in their order."""
        return [
            Document(id=stored.key, page_content=stored.text, metadata=metadata_of(stored))
            for stored in self.engine.get(list(ids))
            if stored is not None
        ]

    def similarity_search(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """The k documents nearest to a question, best first."""
        return _documents(self.engine.search(query, k, **_by_vector(filter, kwargs)))

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The k documents nearest to a question and their scores, best first."""
        return _scored(self.engine.search(query, k, **_by_vector(filter, kwargs)))

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """The k documents nearest to a vector, best first."""
        return _documents(self.engine.search(embedding, k, **_by_vector(filter, kwargs)))

    async def asimilarity_search(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """As `similarity_search`; what several tasks ask at once is answered together."""
        return _documents(await self.engine.asearch(query, k, **_by_vector(filter, kwargs)))

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As `similarity_search_with_score`."""
        return _scored(await self.engine.asearch(query, k, **_by_vector(filter, kwargs)))

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The cosine as a score from 0 to 1; negative ones are 0."""
        options = _by_vector(filter, kwargs)
        if options["mode"] != "vector" or options.get("rerank") is not None:
            raise QueryError(
                "relevance from 0 to 1 is a cosine, of the mode vector without rerank; "
                "use similarity_search_with_score"
            )
        scored = _scored(self.engine.search(query, k, **options))
        return [(document, max(0.0, score)) for document, score in scored]

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        scored: list[tuple[Document, float]] = await run_in_executor(
            None, self._similarity_search_with_relevance_scores, query, k, **kwargs
        )
        return scored


class SearchEngineRetriever(BaseRetriever):
    """A collection as a retriever; `invoke` takes k, filter and options of a search, too.

    Attributes:
        engine: the collection.
        k: number of documents.
        filter: as for SearchEngineVectorStore.
        passages: return the best passage of each document in place of its text; its offset is in
            the metadata field `start_index`.
        options: further options of SearchEngine.search, such as {"group_by": "author"}. Without
            `mode`, documents are ranked as the collection was made for.
    """

    engine: SearchEngine
    k: int = 4
    filter: Any = None
    passages: bool = False
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        k, options = self._arguments(kwargs)
        return _documents(self.engine.search(query, k, **options), self.passages)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        k, options = self._arguments(kwargs)
        return _documents(await self.engine.asearch(query, k, **options), self.passages)

    def _arguments(self, kwargs: dict[str, Any]) -> tuple[int, Options]:
        options = {"k": self.k, "filter": self.filter, **self.options, **kwargs}
        return options.pop("k"), _options(options.pop("filter"), options)


def _options(filter: Filter, options: dict[str, Any]) -> Options:
    matching = where_of(filter)
    return cast(Options, options if matching is None else {**options, "where": matching})


def _by_vector(filter: Filter, options: dict[str, Any]) -> Options:
    return _options(filter, {"mode": "vector", **options})


def _documents(hits: Iterable[Hit], passages: bool = False) -> list[Document]:
    return [_document(hit, passages) for hit in hits]


def _scored(hits: Hits) -> list[tuple[Document, float]]:
    return [(_document(hit), hit.score) for hit in hits]


def _document(hit: Hit, passage: bool = False) -> Document:
    metadata = metadata_of(hit)
    if passage:
        metadata["start_index"] = hit.start
    text = hit.passage if passage else hit.text
    return Document(id=hit.key, page_content=text, metadata=metadata)


# ------------------------------------------------------------------------------------------ filters


class WhereTranslator(Visitor):
    """Structured queries to searches, for self-querying retrievers.

    `like` has the pattern of a filter: % is any text. `contain` is for lists. An attribute with a
    dot is a field within a field.
    """

    allowed_comparators = tuple(Comparator)
    allowed_operators = tuple(Operator)

    def visit_operation(self, operation: Operation) -> str:
        """The test of several."""
        tests = [argument.accept(self) for argument in operation.arguments]
        if operation.operator == Operator.NOT:
            return where.negated(where.every(tests))
        return (where.every if operation.operator == Operator.AND else where.either)(tests)

    def visit_comparison(self, comparison: Comparison) -> str:
        """The test of a field."""
        comparator, value = comparison.comparator, comparison.value
        if isinstance(value, Mapping) and "date" in value:  # as self-querying retrievers write them
            if comparator not in _DATE_SIGNS:
                signs = ", ".join(_DATE_SIGNS.values())
                raise FilterError(f"a date compares by {signs}, got {comparator.value}")
            day = where.literal(str(value["date"]))  # the filter's parser checks it
            return f"{_field(comparison.attribute)} {_DATE_SIGNS[comparator]} date({day})"
        name = "contains" if comparator == Comparator.CONTAIN else comparator.value
        return _test(comparison.attribute, f"${name}", value)

    def visit_structured_query(
        self, structured_query: StructuredQuery
    ) -> tuple[str, dict[str, Any]]:
        """The question, and the keywords of a search."""
        kwargs: dict[str, Any] = {}
        if structured_query.filter is not None:
            kwargs["filter"] = structured_query.filter.accept(self)
        if structured_query.limit is not None:
            kwargs["k"] = structured_query.limit
        return structured_query.query, kwargs


_DATE_SIGNS = {
    Comparator.EQ: "=",
    Comparator.NE: "!=",
    Comparator.GT: ">",
    Comparator.GTE: ">=",
    Comparator.LT: "<",
    Comparator.LTE: "<=",
}


def where_of(filter: Filter) -> str | None:
    """A filter as `where`. Raises FilterError for what a filter of a collection cannot say.

    A dict has a value, or operators, for each field: {"year": {"$gte": 2015}, "lang": "en"}. The
    operators are $eq $ne $gt $gte $lt $lte $in $nin $between $exists $like $contains, and $and,
    $or and $not of dicts. They compare as Python does: a field that is missing is not equal to
    anything.
    """
    if filter is None or isinstance(filter, str):
        return filter
    if isinstance(filter, FilterDirective):
        return cast(str, filter.accept(WhereTranslator()))
    if isinstance(filter, Mapping):
        return _all_of(filter) if filter else None
    raise FilterError(
        "filter must be a text such as \"year >= 2015\", a dict such as {'year': {'$gte': 2015}} "
        f"or the filter of a structured query, got {type(filter).__name__}"
    )


def _all_of(filter: Any) -> str:
    if not isinstance(filter, Mapping):
        raise FilterError(f"a filter must be a dict, got {filter!r:.80}")
    tests = []
    for name, value in filter.items():
        if name == "$not":
            tests.append(where.negated(_all_of(value)))
        elif name in ("$and", "$or"):
            if not isinstance(value, list | tuple):
                raise FilterError(f"{name} takes a list of dicts, got {value!r:.80}")
            tests.append((where.every if name == "$and" else where.either)(map(_all_of, value)))
        elif str(name).startswith("$"):
            raise FilterError(f"a filter has no {name}; it has $and, $or, $not and names of fields")
        elif isinstance(value, Mapping):
            tests += [_test(name, operator, operand) for operator, operand in value.items()]
        else:
            tests.append(_test(name, "$eq", value))
    return where.every(tests)


def _field(name: str) -> str:
    return where.field(tuple(str(name).split(".")))


def _test(name: str, operator: str, value: Any) -> str:
    """A test of a field, by an operator of a dict."""
    if operator not in _TESTS:
        raise FilterError(f"a filter has no {operator}; it has {', '.join(_TESTS)}")
    kind, expected = _OPERANDS.get(operator, (object, ""))
    if not isinstance(value, kind) or (operator == "$between" and len(value) != 2):
        raise FilterError(f"{operator} takes {expected}, got {value!r:.80}")
    return _TESTS[operator](_field(name), value)


_OPERANDS: dict[str, tuple[Any, str]] = {
    "$in": (list | tuple | set, "a list"),
    "$nin": (list | tuple | set, "a list"),
    "$between": (list | tuple, "a list of two values"),
    "$like": (str, "a text such as 'deep%'"),
    "$exists": (bool, "true or false"),
}
_TESTS: dict[str, Callable[[str, Any], str]] = {
    "$eq": where.equal,
    "$ne": lambda field, value: where.negated(where.equal(field, value)),
    "$gt": lambda field, value: where.ordered(field, ">", value),
    "$gte": lambda field, value: where.ordered(field, ">=", value),
    "$lt": lambda field, value: where.ordered(field, "<", value),
    "$lte": lambda field, value: where.ordered(field, "<=", value),
    "$in": where.member,
    "$nin": lambda field, values: where.negated(where.member(field, values)),
    "$between": lambda field, bounds: where.every(
        [where.ordered(field, ">=", bounds[0]), where.ordered(field, "<=", bounds[1])]
    ),
    "$contains": where.contains,
    "$like": where.like,
    "$exists": lambda field, wanted: f"{'' if wanted else 'not '}exists({field})",
}
