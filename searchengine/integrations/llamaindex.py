"""A collection as a vector store of LlamaIndex.

store = SearchEngineVectorStore(SearchEngine.open("papers.index"))
index = VectorStoreIndex.from_vector_store(store, embed_model=EngineEmbedding(store.engine))
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from searchengine.engine import Document, Hit, Hits, Options, SearchEngine
from searchengine.errors import FilterError, QueryError
from searchengine.integrations import where
from searchengine.integrations.stored import embeddings, metadata_of, record

_KEY = "_node_id"
"""The metadata field that has the id of a node, for filters."""
_CONTENT = "_node_content"
"""The metadata field in which LlamaIndex keeps a node, without its text."""
_BY_WORDS = (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE)
_BY_BOTH = (VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.SEMANTIC_HYBRID)


class EngineEmbedding(BaseEmbedding):
    """The encoder of a collection as an embedding model; it is loaded when first called."""

    _engine: SearchEngine = PrivateAttr()

    def __init__(self, engine: SearchEngine, **options: Any) -> None:
        super().__init__(model_name="searchengine", **options)
        self._engine = engine

    @classmethod
    def class_name(cls) -> str:
        """The name in serialized settings."""
        return "EngineEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._engine.encode_questions([query])[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._engine.encode_documents(texts).tolist()
        return vectors


class SearchEngineVectorStore(BasePydanticVectorStore):
    """A collection as a vector store, which keeps the nodes, too.

    Nodes come with embeddings, or are encoded by the collection if it has an encoder. Queries of
    the modes default, text_search, sparse, hybrid and semantic_hybrid; in the last two the
    collection encodes the question. Documents that were not added as nodes are text nodes.
    """

    stores_text: bool = True
    _engine: SearchEngine = PrivateAttr()

    def __init__(self, engine: SearchEngine) -> None:
        super().__init__(stores_text=True)
        self._engine = engine

    @classmethod
    def class_name(cls) -> str:
        """The name in serialized settings."""
        return "SearchEngineVectorStore"

    @property
    def engine(self) -> SearchEngine:
        """The collection."""
        return self._engine

    @property
    def client(self) -> SearchEngine:
        """The collection."""
        return self._engine

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add or replace nodes in one commit; returns their ids.

        Raises QueryError if some of them have an embedding and others have none.
        """
        unique = {node.node_id: node for node in nodes}
        records = [_record(node) for node in unique.values()]
        vectors = [node.embedding for node in unique.values()]
        without = sum(vector is None for vector in vectors)
        if without and without < len(vectors):
            raise QueryError(
                f"{without} of {len(vectors)} nodes have no embedding; embed all of them, or none "
                "to have the collection encode them"
            )
        if records:
            self._engine.add(records, None if without else vectors, **kwargs)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        self._engine.delete(where=where.equal("ref_doc_id", ref_doc_id))

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete nodes by id, by filters, or by both; without either, all."""
        self._engine.delete(where=_selected(node_ids, None, filters) or where.EVERYTHING)

    def clear(self) -> None:
        """Delete all nodes."""
        self._engine.delete(where=where.EVERYTHING)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """The nodes of these ids that match the filters, in the order first added."""
        where = _selected(node_ids, None, filters)
        return [_node(document) for document in self._engine.documents(where)]

    def get(self, text_id: str) -> list[float]:
        """The embedding of a node, scaled to length 1; the mean of its passages if it has several.

        Raises KeyError if there is no such node, or it has no embedding.
        """
        (embedding,) = embeddings(self._engine, [text_id])
        if embedding is None:
            raise KeyError(text_id)
        return embedding

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nodes nearest to an embedding or a question, best first."""
        question, k, options = _arguments(query, kwargs)
        return _result(self._engine.search(question, k, **options))

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As `query`; what several tasks ask at once is answered together."""
        question, k, options = _arguments(query, kwargs)
        return _result(await self._engine.asearch(question, k, **options))


def where_of(filters: MetadataFilters | MetadataFilter | None) -> str | None:
    """Filters as `where`, with the meaning that SimpleVectorStore gives them.

    Filters may be nested. `contains`, `any` and `all` are for lists. Raises FilterError for what a
    filter of a collection cannot say: equality of lists, and text_match, which tells upper from
    lower case.
    """
    if filters is None:
        return None
    if isinstance(filters, MetadataFilter):
        return _test(filters)
    tests = [test for inner in filters.filters if (test := where_of(inner)) is not None]
    if not tests:
        return None
    condition = filters.condition or FilterCondition.AND
    if condition == FilterCondition.AND:
        return where.every(tests)
    either = where.either(tests)
    return either if condition == FilterCondition.OR else where.negated(either)


_TESTS: dict[FilterOperator, Callable[[str, Any], str]] = {
    FilterOperator.EQ: lambda field, value: _equal(field, value),
    FilterOperator.NE: lambda field, value: where.negated(_equal(field, value)),
    FilterOperator.GT: lambda field, value: where.ordered(field, ">", value),
    FilterOperator.GTE: lambda field, value: where.ordered(field, ">=", value),
    FilterOperator.LT: lambda field, value: where.ordered(field, "<", value),
    FilterOperator.LTE: lambda field, value: where.ordered(field, "<=", value),
    FilterOperator.IN: where.member,
    FilterOperator.NIN: lambda field, values: where.negated(where.member(field, values)),
    FilterOperator.CONTAINS: where.contains,
    FilterOperator.ANY: lambda field, values: where.either(
        where.contains(field, value) for value in values
    ),
    FilterOperator.ALL: lambda field, values: where.every(
        where.contains(field, value) for value in values
    ),
    FilterOperator.TEXT_MATCH: where.has_text,
    FilterOperator.TEXT_MATCH_INSENSITIVE: where.has_text,
    FilterOperator.IS_EMPTY: lambda field, _: where.either(
        [where.missing(field), where.equal(field, "")]
    ),
}
_LISTS = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
_TEXTS = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)


def _equal(field: str, value: Any) -> str:
    return where.NOTHING if value is None else where.equal(field, value)


def _test(filter: MetadataFilter) -> str:
    """One test."""
    value, operator = filter.value, filter.operator
    if operator in _LISTS and not isinstance(value, list):
        raise FilterError(f"{operator.value} takes a list, got {value!r:.80}")
    if operator == FilterOperator.ALL and not value:
        raise FilterError("all takes a list of at least one value, got []")
    if operator in _TEXTS and not isinstance(value, str):
        raise FilterError(f"{operator.value} takes a text, got {value!r:.80}")
    if operator == FilterOperator.TEXT_MATCH and str(value).lower() != str(value).upper():
        raise FilterError(
            f"a filter does not tell upper from lower case, as text_match with {value!r:.80} does; "
            "use text_match_insensitive"
        )
    return _TESTS[operator](where.field((filter.key,)), value)


def _selected(
    node_ids: list[str] | None, doc_ids: list[str] | None, filters: MetadataFilters | None
) -> str | None:
    """Nodes of these ids, of these documents, that match filters; None: any."""
    tests = [where_of(filters)]
    for name, ids in ((_KEY, node_ids), ("ref_doc_id", doc_ids)):
        tests.append(None if ids is None else where.member(name, ids))
    present = [test for test in tests if test is not None]
    return where.every(present) if present else None


def _record(node: BaseNode) -> dict[str, Any]:
    metadata = node_to_metadata_dict(node, remove_text=True, flat_metadata=False)
    # LlamaIndex takes an empty list for no value; the node itself keeps it.
    filled = {name: value for name, value in metadata.items() if value != []}
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return record(node.node_id, text, {**filled, _KEY: node.node_id})


def _node(document: Document | Hit) -> BaseNode:
    metadata = metadata_of(document)
    if _CONTENT in metadata:
        return metadata_dict_to_node(metadata, text=document.text)
    return TextNode(id_=document.key, text=document.text, metadata=metadata)


def _arguments(query: VectorStoreQuery, kwargs: dict[str, Any]) -> tuple[Any, int, Options]:
    """The question or vector, k and the options of a search."""
    options = dict(kwargs)
    # Of an index that keeps no nodes itself, a retriever passes an empty list.
    matching = _selected(query.node_ids or None, query.doc_ids or None, query.filters)
    if matching is not None:
        options["where"] = matching
    mode, k = query.mode, query.similarity_top_k
    question: Any = query.query_str if query.query_embedding is None else query.query_embedding
    if mode in (*_BY_WORDS, *_BY_BOTH):
        question = query.query_str
        named = "text" if mode in _BY_WORDS else "hybrid"
        if options.setdefault("mode", named) != named:
            raise QueryError(
                f"the query has the mode {mode.value} and the options {options['mode']!r:.80}; "
                "leave one out"
            )
    elif mode != VectorStoreQueryMode.DEFAULT:
        raise QueryError(
            f"a collection does not answer queries of the mode {mode.value}; use default, "
            "text_search or hybrid"
        )
    if mode in _BY_BOTH:
        if query.alpha is not None:
            raise QueryError("the weights of words and vectors are fixed; leave alpha out")
        k = query.hybrid_top_k or k
    if question is None:
        what = "an embedding or a text" if "mode" not in options else "query_str"
        raise QueryError(f"a query of the mode {mode.value} needs {what}")
    if isinstance(question, str):
        options.setdefault("mode", "vector")
    return question, k, cast(Options, options)


def _result(hits: Hits) -> VectorStoreQueryResult:
    return VectorStoreQueryResult(
        nodes=[_node(hit) for hit in hits],
        similarities=[hit.score for hit in hits],
        ids=[hit.key for hit in hits],
    )
