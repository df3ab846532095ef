"""A collection in LlamaIndex: add nodes, and find them by a retriever.

add_nodes(engine, SentenceSplitter().get_nodes_from_documents(documents))
retriever = SearchEngineRetriever(engine, k=4, where="year >= 2015")
"""

from collections.abc import Iterable
from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

from searchengine.engine import AddSummary, Document, Hit, SearchEngine
from searchengine.integrations import make_document, text_and_metadata

_SOURCE = "ref_doc_id"
"""The metadata field with the id of the document that a node is a part of, for filters."""


def add_nodes(engine: SearchEngine, nodes: Iterable[BaseNode], **options: Any) -> AddSummary:
    """Add or replace nodes, with the options of SearchEngine.add, and raise as it does.

    A node's id, text and metadata are stored, and its `ref_doc_id` as a metadata field.
    """
    return engine.add(map(_document, nodes), **options)


def _document(node: BaseNode) -> Document:
    source = {_SOURCE: node.ref_doc_id} if node.ref_doc_id else {}
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    return make_document(node.node_id, text, {**node.metadata, **source})


class SearchEngineRetriever(BaseRetriever):
    """Finds k nodes of a collection by a question, or by the embedding that comes with it.

    `passages`: return the best passage of each node in place of its text. `options`: of
    SearchEngine.search, such as mode="text" or where="year >= 2015".
    """

    def __init__(
        self, engine: SearchEngine, k: int = 4, *, passages: bool = False, **options: Any
    ) -> None:
        super().__init__()
        self.engine, self.k, self.passages, self.options = engine, k, passages, options

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        question = query_bundle.embedding or query_bundle.query_str
        return [*map(self._node, self.engine.search(question, self.k, **self.options))]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        question = query_bundle.embedding or query_bundle.query_str
        return [*map(self._node, await self.engine.asearch(question, self.k, **self.options))]

    def _node(self, hit: Hit) -> NodeWithScore:
        text, metadata = text_and_metadata(hit, self.passages)
        hidden = [_SOURCE]  # from language models, which take it for text
        node = TextNode(
            id_=hit.key, text=text, metadata=metadata, excluded_llm_metadata_keys=hidden
        )
        if self.passages:
            node.start_char_idx, node.end_char_idx = hit.start, hit.end
        return NodeWithScore(node=node, score=hit.score)
