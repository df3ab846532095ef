"""What Haystack alone has: pipelines as texts, components that run others."""

import os
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_model2vec

from searchengine import SearchEngine

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
pytest.importorskip("haystack", reason="the extra `haystack` is not installed")
from haystack import Document, Pipeline
from haystack.components.preprocessors import DocumentSplitter

from searchengine.integrations.haystack import SearchEngineRetriever, SearchEngineWriter

MODULES = ["searchengine.integrations.haystack"]


def again(pipeline: Pipeline, name: str) -> Any:
    """A component of the pipeline that is written as a text and read again."""
    return Pipeline.loads(pipeline.dumps(), allowed_modules=MODULES).get_component(name)


def test_pipelines_are_written_and_read(tmp_path: Path) -> None:
    """The encoder is a folder, so that a pipeline can open the collection again."""
    engine = SearchEngine.create(tmp_path / "c", write_model2vec(tmp_path / "model"))
    indexing = Pipeline()
    indexing.add_component("splitter", DocumentSplitter(split_by="word", split_length=3))
    indexing.add_component("writer", SearchEngineWriter(engine, skip_bad=True))
    indexing.connect("splitter", "writer")
    whales = Document(content="how do whales sleep at night", meta={"year": 2016})
    for expected in (2, 0):
        result = indexing.run({"splitter": {"documents": [whales]}})
        assert result["writer"]["documents_written"] == expected
    assert SearchEngineWriter(engine).run([]) == {"documents_written": 0}

    query = Pipeline()
    options = {"where": "year = 2016", "mode": "text"}
    query.add_component("retriever", SearchEngineRetriever(engine, 1, passages=True, **options))
    expected = query.run({"retriever": {"query": "whales"}})["retriever"]
    assert expected["documents"][0].content == "how do whales "
    retriever, writer = again(query, "retriever"), again(indexing, "writer")
    try:
        assert retriever.run("whales") == expected
        assert retriever.run("whales", where="year < 2016") == {"documents": []}
        assert len(retriever.run("how do sleep", top_k=5)["documents"]) == 2
        assert retriever.to_dict() == query.get_component("retriever").to_dict()
        assert writer.options == {"skip_bad": True}
    finally:
        for each in (retriever.engine, writer.engine, engine):
            each.close()
