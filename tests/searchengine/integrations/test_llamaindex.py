"""What LlamaIndex alone has: documents that nodes are parts of, embeddings that come with a
question, and what a language model is shown."""

from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine

pytest.importorskip("llama_index", reason="the extra `llamaindex` is not installed")
from llama_index.core import Document
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, QueryBundle

from searchengine.integrations.llamaindex import SearchEngineRetriever, add_nodes


def test_parts_of_documents(tmp_path: Path) -> None:
    text = "Moths hide in the leaves of trees. " * 20
    documents = [Document(text=text, id_=key, metadata={"year": 2022}) for key in ("m", "n")]
    nodes = SentenceSplitter(chunk_size=64, chunk_overlap=0).get_nodes_from_documents(documents)
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        assert add_nodes(engine, nodes).added == len(nodes)
        retriever = SearchEngineRetriever(engine, 2, where="ref_doc_id = 'm'")
        found = retriever.retrieve("where do moths hide")
        assert {each.metadata["ref_doc_id"] for each in found} == {"m"}
        shown = found[0].node.get_content(metadata_mode=MetadataMode.LLM)
        assert "year: 2022" in shown and "ref_doc_id" not in shown

        vector = WordLengths().encode(["trees"])[0].tolist()
        (best, _) = retriever.retrieve(QueryBundle("", embedding=vector))
        assert best.score == engine.search(vector, 1)[0].score
        answers = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
        assert "hide in the leaves" in str(answers.query("where do moths hide"))
        assert engine.delete(where="ref_doc_id = 'm'") == len(nodes) // 2
