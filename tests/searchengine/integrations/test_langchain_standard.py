"""LangChain's own tests of vector stores and retrievers, unchanged. They run where it is installed:
see CONTRIBUTING.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from searchengine import SearchEngine

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)

from searchengine.integrations.langchain import (
    SearchEngineRetriever,
    SearchEngineVectorStore,
    encoder_of,
)


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:
        encoder = encoder_of(self.get_embeddings())
        with SearchEngine.create(tmp_path / "c", encoder) as engine:
            yield SearchEngineVectorStore(engine)


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _collection(self, tmp_path: Path) -> Iterator[None]:
        embeddings = VectorStoreIntegrationTests.get_embeddings()
        with SearchEngine.create(tmp_path / "c", encoder_of(embeddings)) as self.engine:
            self.engine.add([{"_id": str(i), "text": f"text {i}"} for i in range(5)])
            yield

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SearchEngineRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"engine": self.engine}

    @property
    def retriever_query_example(self) -> str:
        return "text"
