"""A collection in LangChain: add documents, and find them by a retriever.

add_documents(engine, splitter.split_documents(pages))
retriever = SearchEngineRetriever(engine=engine, k=4, where="year >= 2015")
"""

from collections.abc import Iterable
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from searchengine.engine import AddSummary, Hit, SearchEngine
from searchengine.integrations import make_document, text_and_metadata


def add_documents(
    engine: SearchEngine, documents: Iterable[Document], **options: Any
) -> AddSummary:
    """Add or replace documents, with the options of SearchEngine.add, and raise as it does.

    A document without an id has one computed from its text and metadata, so that adding it again
    changes nothing.
    """
    stored = (make_document(each.id, each.page_content, each.metadata) for each in documents)
    return engine.add(stored, **options)


class SearchEngineRetriever(BaseRetriever):
    """Finds documents of a collection. Their scores are in the metadata field `relevance_score`.

    Further keywords are options of SearchEngine.search, such as mode="text" or where="year > 2015".
    `invoke` takes k and options too, in place of those of the retriever.

    Attributes:
        engine: the collection.
        k: number of documents.
        passages: return the best passage of each document in place of its text; its offset is in
            the metadata field `start_index`.
    """

    model_config = ConfigDict(extra="allow")

    engine: SearchEngine
    k: int = 4
    passages: bool = False

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        return [*map(self._document, self.engine.search(query, **self._options(options)))]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        hits = await self.engine.asearch(query, **self._options(options))
        return [*map(self._document, hits)]

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"k": self.k, **(self.model_extra or {}), **options}

    def _document(self, hit: Hit) -> Document:
        text, metadata = text_and_metadata(hit, self.passages)
        metadata["relevance_score"] = hit.score
        if self.passages:
            metadata["start_index"] = hit.start
        return Document(id=hit.key, page_content=text, metadata=metadata)
