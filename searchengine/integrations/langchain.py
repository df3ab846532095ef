"""A collection as a vector store and a retriever of LangChain.

store = SearchEngineVectorStore(SearchEngine.open("papers.index"))
store.as_retriever(search_kwargs={"k": 5, "filter": {"year": {"$gte": 2015}}})
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, cast
from uuid import uuid4

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore
from pydantic import Field

from searchengine.encoders.functions import FunctionEncoder
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError, QueryError
from searchengine.integrations import filters
from searchengine.integrations.langchain_filters import Filter, where_of
from searchengine.integrations.metadata import metadata_of, record
from searchengine.query.hits import Hit, Hits
from searchengine.query.request import Options


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
        vectors: list[list[float]] = self._engine.encoder.encode(texts, role="document").tolist()
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
        for what, given in (("ids", ids), ("metadatas", metadatas)):
            if given is not None and len(given) != len(texts):
                raise QueryError(
                    f"{what} must be one for each of {len(texts)} texts, got {len(given)}"
                )
        keys = [key or str(uuid4()) for key in ids or [""] * len(texts)]
        records = {
            key: record(key, text, metadata)
            for key, text, metadata in zip(keys, texts, metadatas or [{}] * len(texts), strict=True)
        }
        for key, each in records.items():
            if not each["text"].strip():
                raise CorpusError(f"document {key!r} has no text; leave it out")
        kwargs.pop("batch_size", None)
        if records:
            self.engine.add(records.values(), **kwargs)
        return keys

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id, or by `filter`; None: all."""
        where = where_of(kwargs.pop("filter", None))
        if kwargs:
            raise QueryError(f"delete takes ids or filter, got {', '.join(kwargs)}")
        if ids is not None:
            self.engine.delete(ids)
        else:
            self.engine.delete(where=where or filters.EVERYTHING)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents of these ids that are stored, in their order."""
        return [
            Document(id=each.key, page_content=each.text, metadata=metadata_of(each))
            for each in self.engine.get(list(ids))
            if each is not None
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

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """k documents near to a question that differ from each other.

        `lambda_mult`: 1 ranks by the score alone, 0 by the difference. `fetch_k`: candidates to
        choose from, at least 50 and at least 4 k.
        """
        return self._various(query, k, fetch_k, lambda_mult, _by_vector(filter, kwargs))

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """As `max_marginal_relevance_search`, for a vector."""
        return self._various(embedding, k, fetch_k, lambda_mult, _by_vector(filter, kwargs))

    def _various(
        self, query: Any, k: int, fetch_k: int, lambda_mult: float, options: Options
    ) -> list[Document]:
        # The engine compares four times as many as it returns; it chooses them one by one.
        most = max(k, -(-fetch_k // 4))
        diverse: Options = {**options, "diversity": 1 - lambda_mult}
        hits = self.engine.search(query, most, **diverse)
        return _documents(hits[:k])

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The cosine as a score from 0 to 1; negative ones are 0."""
        options = _by_vector(filter, kwargs)
        if options["mode"] != "vector" or options.get("cross_encoder") is not None:
            raise QueryError(
                "relevance from 0 to 1 is a cosine, of the mode vector without a cross-encoder; "
                "use similarity_search_with_score"
            )
        scored = _scored(self.engine.search(query, k, **options))
        return [(document, max(0.0, score)) for document, score in scored]

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        search = self._similarity_search_with_relevance_scores
        scored: list[tuple[Document, float]] = await run_in_executor(
            None, search, query, k, **kwargs
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
        k, options = self._asked(kwargs)
        return _documents(self.engine.search(query, k, **options), self.passages)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        k, options = self._asked(kwargs)
        return _documents(await self.engine.asearch(query, k, **options), self.passages)

    def _asked(self, given: dict[str, Any]) -> tuple[int, Options]:
        asked = {"k": self.k, "filter": self.filter, **self.options, **given}
        return asked.pop("k"), _options(asked.pop("filter"), asked)


def _options(filter: Filter, given: dict[str, Any]) -> Options:
    where = where_of(filter)
    return cast(Options, given if where is None else {**given, "where": where})


def _by_vector(filter: Filter, given: dict[str, Any]) -> Options:
    return _options(filter, {"mode": "vector", **given})


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
