"""A collection in Haystack: components that write documents and find them.

indexing.add_component("writer", SearchEngineWriter(engine))
pipeline.add_component("retriever", SearchEngineRetriever(engine, top_k=4, where="year >= 2015"))
"""

from pathlib import Path
from typing import Any, Self, cast

from haystack import Document, component, default_from_dict, default_to_dict

from searchengine.engine import Hit, SearchEngine
from searchengine.integrations import make_document, text_and_metadata


class _Component:
    """What both components have: a collection, and options for its calls."""

    def __init__(self, engine: SearchEngine | str | Path, **options: Any) -> None:
        self.engine = engine if isinstance(engine, SearchEngine) else SearchEngine.open(engine)
        self.options = options

    def to_dict(self) -> dict[str, Any]:
        """The arguments; of the collection its folder, or its URL without the password."""
        path = str(self.engine.collection.path)
        return cast(dict[str, Any], default_to_dict(self, engine=path, **self.options))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`: opens the collection."""
        return cast(Self, default_from_dict(cls, data))


@component
class SearchEngineWriter(_Component):
    """Adds documents to a collection, or replaces those with the same id.

    `engine`: a collection, or its folder. `options`: of SearchEngine.add. Embeddings of the
    documents are not used: the collection encodes their texts.
    """

    @component.output_types(documents_written=int)
    def run(self, documents: list[Document]) -> dict[str, int]:
        """Write documents; returns how many are new or have changed. Raises as SearchEngine.add."""
        if not documents:
            return {"documents_written": 0}
        stored = (make_document(each.id, each.content or "", each.meta) for each in documents)
        summary = self.engine.add(stored, **self.options)
        return {"documents_written": summary.added + summary.changed + summary.metadata_updated}


@component
class SearchEngineRetriever(_Component):
    """Finds documents of a collection by a question.

    `engine`: a collection, or its folder. `passages`: return the best passage of each document in
    place of its content; its offset is in the meta field `split_idx_start`. `options`: of
    SearchEngine.search, such as mode="text" or where="year >= 2015".
    """

    def __init__(
        self,
        engine: SearchEngine | str | Path,
        top_k: int = 10,
        passages: bool = False,
        **options: Any,
    ) -> None:
        # No super(): `component` makes another class of this one.
        _Component.__init__(self, engine, top_k=top_k, passages=passages, **options)

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, top_k: int | None = None, where: str | None = None
    ) -> dict[str, list[Document]]:
        """The documents nearest to a question. `top_k`, `where`: in place of the retriever's."""
        options = {**self.options} if where is None else {**self.options, "where": where}
        k, passages = options.pop("top_k"), options.pop("passages")
        hits = self.engine.search(query, k if top_k is None else top_k, **options)
        return {"documents": [_document(hit, passages) for hit in hits]}


def _document(hit: Hit, passages: bool) -> Document:
    text, meta = text_and_metadata(hit, passages)
    if passages:
        meta["split_idx_start"] = hit.start
    return Document(id=hit.key, content=text, meta=meta, score=hit.score)
