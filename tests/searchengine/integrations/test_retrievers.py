"""Each framework finds what SearchEngine.search finds, of the documents that it has added."""

import asyncio
import os
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cut_documents import Words

from searchengine import SearchEngine
from searchengine.engine import AddSummary

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
Added = tuple[str, str, dict[str, Any]]
Found = tuple[str, str, dict[str, Any], float]
LONG = "a owl sits still " * 9 + "and flies at night"
DOCUMENTS: list[Added] = [
    ("a", "a bee", {"title": "Bees", "year": 2015, "seen": datetime(2020, 3, 1)}),
    ("b", "the cat sat", {"year": 2020, "of": {"kind": True}, "id": 7, "none": None}),
    ("c", "whales", {"year": 2020, "tags": ["x", 1], "ref_doc_id": "sea"}),
    ("d", LONG, {}),
]
STORED = {key: {**metadata} for key, _, metadata in DOCUMENTS}
STORED["a"]["seen"] = "2020-03-01T00:00:00"


Framework = Any
"""`add` returns how many documents were written; `find` gives hits; `start` takes a passage's
offset out of the metadata."""


class LangChain:
    package = "langchain_core"

    def __init__(self) -> None:
        self.ours = import_module("searchengine.integrations.langchain")
        self.documents = import_module("langchain_core.documents")

    def add(self, engine: SearchEngine, documents: list[Added]) -> int:
        make = self.documents.Document
        added = (make(text, id=key or None, metadata=metadata) for key, text, metadata in documents)
        return written(self.ours.add_documents(engine, added, skip_bad=True))

    def find(self, engine: SearchEngine, query: str, k: int, **options: Any) -> list[Found]:
        retriever = self.ours.SearchEngineRetriever(engine=engine, k=k, **options)
        answer = retriever.invoke(query)
        assert asyncio.run(retriever.ainvoke(query)) == answer
        return [
            (each.id, each.page_content, each.metadata, each.metadata.pop("relevance_score"))
            for each in answer
        ]

    def start(self, found: Found) -> Any:
        return found[2].pop("start_index")


class LlamaIndex:
    package = "llama_index"

    def __init__(self) -> None:
        self.ours = import_module("searchengine.integrations.llamaindex")
        self.schema = import_module("llama_index.core.schema")
        self.starts: dict[str, int] = {}

    def add(self, engine: SearchEngine, documents: list[Added]) -> int:
        nodes = [
            self.schema.TextNode(id_=key, text=text, metadata=metadata)
            for key, text, metadata in documents
        ]
        return written(self.ours.add_nodes(engine, nodes, skip_bad=True))

    def find(self, engine: SearchEngine, query: str, k: int, **options: Any) -> list[Found]:
        retriever = self.ours.SearchEngineRetriever(engine, k, **options)
        answer = retriever.retrieve(query)
        assert asyncio.run(retriever.aretrieve(query)) == answer
        self.starts = {each.node_id: each.node.start_char_idx for each in answer}
        return [(each.node_id, each.text, each.metadata, each.score) for each in answer]

    def start(self, found: Found) -> Any:
        return self.starts[found[0]]


class Haystack:
    package = "haystack"

    def __init__(self) -> None:
        self.ours = import_module("searchengine.integrations.haystack")
        self.theirs = import_module("haystack")

    def add(self, engine: SearchEngine, documents: list[Added]) -> int:
        given = [
            self.theirs.Document(id=key, content=text, meta=metadata)
            for key, text, metadata in documents
        ]
        writer = self.ours.SearchEngineWriter(engine, skip_bad=True)
        count: int = writer.run(given)["documents_written"]
        return count

    def find(self, engine: SearchEngine, query: str, k: int, **options: Any) -> list[Found]:
        pipeline = self.theirs.Pipeline()
        retriever = self.ours.SearchEngineRetriever(engine, k, **options)
        pipeline.add_component("retriever", retriever)
        answer = pipeline.run({"retriever": {"query": query}})["retriever"]["documents"]
        return [(each.id, each.content, each.meta, each.score) for each in answer]

    def start(self, found: Found) -> Any:
        return found[2].pop("split_idx_start")


def written(summary: AddSummary) -> int:
    return summary.added + summary.changed + summary.metadata_updated


@pytest.fixture(params=[LangChain, LlamaIndex, Haystack])
def framework(request: pytest.FixtureRequest) -> Framework:
    pytest.importorskip(request.param.package, reason="the framework is not installed")
    return request.param()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c", Words()) as engine:
        yield engine


OPTIONS: list[dict[str, Any]] = [
    *({"mode": mode} for mode in ("auto", "vector", "text", "hybrid")),
    {"where": "year = 2020"},
    {"where": "not exists(year)"},
    {"group_by": "year", "mode": "vector"},
    {"min_score": 0.5, "mode": "vector"},
    {"offset": 1},
    {"rerank": lambda _, hits: [hit.metadata.get("year", 0) for hit in hits]},
    {"phrases": "required"},
]


def test_it_finds_what_a_search_finds(framework: Framework, engine: SearchEngine) -> None:
    assert framework.add(engine, DOCUMENTS) == 4
    assert framework.add(engine, [*DOCUMENTS[:3], ("d", LONG, {"year": 1})]) == 1
    framework.add(engine, DOCUMENTS)
    for query in ("the cat", 'whales "a bee"'):
        for options in OPTIONS:
            for k in (1, 10):
                found = framework.find(engine, query, k, **options)
                hits = engine.search(query, k, **options)
                assert [(key, text, score) for key, text, _, score in found] == [
                    (hit.key, hit.text, hit.score) for hit in hits
                ], options
                assert all(metadata == STORED[key] for key, _, metadata, _ in found)


def test_passages_come_with_their_offsets(framework: Framework, engine: SearchEngine) -> None:
    framework.add(engine, DOCUMENTS)
    for mode in ("text", "vector"):
        found = framework.find(engine, "flies night", 1, passages=True, mode=mode)[0]
        (hit,) = engine.search("flies night", 1, mode=mode)
        assert hit.start == 153 and len(hit.passage.split()) == 4
        assert (framework.start(found), found[1]) == (hit.start, hit.passage)
