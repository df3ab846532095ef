"""LangChain's own tests of retrievers, unchanged; ids that are missing; options of a call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths

from searchengine import SearchEngine

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from searchengine.integrations.langchain import SearchEngineRetriever, add_documents


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        add_documents(engine, [Document(f"text {i}", metadata={"year": i}) for i in range(5)])
        yield engine


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _collection(self, engine: SearchEngine) -> None:
        self.engine = engine

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SearchEngineRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"engine": self.engine}

    @property
    def retriever_query_example(self) -> str:
        return "text"


def test_documents_without_ids_are_added_once(engine: SearchEngine) -> None:
    document = Document("text 0", metadata={"year": 0})
    assert add_documents(engine, [document, document]).unchanged == 1
    assert add_documents(engine, [Document("text 0", metadata={"year": 9})]).added == 1
    assert len(engine) == 6


def test_options_of_a_call_come_first(engine: SearchEngine) -> None:
    retriever = SearchEngineRetriever(engine=engine, k=3, where="year > 2")
    found = {document.metadata["year"] for document in retriever.invoke("text")}
    assert found == {3, 4}
    (document,) = retriever.invoke("text", k=1, where="year < 1", mode="text")
    assert document.metadata["year"] == 0
