"""The vector store of LlamaIndex gives what its SimpleVectorStore gives."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.errors import FilterError, QueryError

pytest.importorskip("llama_index.core", reason="the extra `llamaindex` is not installed")
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import (
    BaseNode,
    ImageNode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from searchengine.integrations.llamaindex import EngineEmbedding, SearchEngineVectorStore, where_of

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")

# Of each field one kind of values: SimpleVectorStore raises TypeError if it compares two kinds.
METADATA: list[dict[str, Any]] = [
    *({"n": value} for value in (None, -1, 0, 1, 1.5, 2, True, False)),
    *({"s": value} for value in (None, "", "a", "Bat", "b%t", "bet", "3 4", "日本")),
    *({"l": value} for value in (None, [], ["a"], ["a", "b"], ["Bat"], [1, "x"], [True])),
    *({"title": "a", "text": value, "a.b": value} for value in ("a", "b")),
    {"n": 2, "s": "a", "l": ["b"]},
    {},
]
DIM = 6


def nodes() -> list[BaseNode]:
    vectors = np.random.default_rng(0).standard_normal((len(METADATA), DIM))
    made: list[BaseNode] = []
    for i, (metadata, vector) in enumerate(zip(METADATA, vectors, strict=True)):
        node = TextNode(id_=f"n{i}", text=f"text {i}", metadata=metadata, embedding=vector.tolist())
        if i % 3:
            node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"d{i % 3}")
        made.append(node)
    return made


Stores = tuple[SearchEngineVectorStore, SimpleVectorStore]


def both(path: Path) -> Stores:
    mine = SearchEngineVectorStore(SearchEngine.create(path, None, dim=DIM))
    theirs = SimpleVectorStore()
    assert mine.add(nodes()) == theirs.add(nodes())
    return mine, theirs


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    mine, theirs = both(tmp_path / "c")
    yield mine, theirs
    mine.engine.close()


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    mine, theirs = both(tmp_path_factory.mktemp("nodes") / "c")
    yield mine, theirs
    mine.engine.close()


def query(**options: Any) -> VectorStoreQuery:
    return VectorStoreQuery(**{"query_embedding": [1.0] * DIM, "similarity_top_k": 50, **options})


def check_equal(stores: Stores, **options: Any) -> None:
    mine, theirs = stores
    found, expected = mine.query(query(**options)), theirs.query(query(**options))
    assert found.ids == expected.ids
    assert found.similarities == pytest.approx(expected.similarities, abs=1e-3)
    assert [node.node_id for node in found.nodes or ()] == expected.ids


def test_queries_equal_those_of_the_simple_store(stores: Stores) -> None:
    for k in (1, 5, 50):
        check_equal(stores, similarity_top_k=k)
    check_equal(stores, node_ids=["n3", "n1", "none"])
    check_equal(stores, filters=MetadataFilters(filters=[]))
    check_equal(stores, query_str="not read")
    mine, _ = stores
    assert asyncio.run(mine.aquery(query(similarity_top_k=3))) == mine.query(
        query(similarity_top_k=3)
    )


def test_options_of_a_search_reach_the_collection(fixed: Stores) -> None:
    mine, _ = fixed
    options: dict[str, Any] = {"where": "n > 2", "min_score": 0.1}
    found = mine.query(query(similarity_top_k=4), **options)
    hits = mine.engine.search([1.0] * DIM, 4, **options)
    assert found.ids == [hit.key for hit in hits] and found.ids
    assert found.similarities == [hit.score for hit in hits]
    assert found.ids != mine.query(query(similarity_top_k=4)).ids


def test_changes_leave_what_they_leave_in_the_simple_store(stores: Stores) -> None:
    mine, theirs = stores
    changed = nodes()[:2]
    changed[0].embedding = [2.0] * DIM
    for store in stores:
        assert store.add(changed) == ["n0", "n1"]
    check_equal(stores)
    for store in stores:
        store.delete("d1")
    check_equal(stores)
    small = MetadataFilters(filters=[MetadataFilter(key="n", value=1, operator=">")])
    for options in ({"node_ids": ["n3", "n9", "none"]}, {"filters": small}):
        for store in stores:
            store.delete_nodes(**options)
        check_equal(stores)
    for ids in ([], ["n0", "n6", "n23"]):
        for store in stores:
            store.delete_nodes(node_ids=ids, filters=small)
    check_equal(stores)
    mine.clear(), theirs.clear()
    check_equal(stores)
    assert len(mine.engine) == 0


def test_nodes_come_back_as_they_were_added(stores: Stores) -> None:
    mine, _ = stores
    for node in nodes():
        (found,) = mine.get_nodes([node.node_id])
        node.embedding = None
        assert found == node
    picture = ImageNode(id_="p", text="seen", image_url="http://x/y.png", embedding=[1.0] * DIM)
    mine.add([picture])
    (found,) = mine.get_nodes(["p"])
    assert isinstance(found, ImageNode) and found.image_url == picture.image_url
    assert mine.query(query(doc_ids=["d1"])).ids == [
        key for key in mine.query(query()).ids or () if key in {f"n{i}" for i in range(1, 50, 3)}
    ]
    # A document that came another way is a text node.
    mine.engine.add([{"_id": "e", "title": "Eels", "text": "eels"}], [[1.0] * DIM])
    (found,) = mine.query(query(similarity_top_k=1, filters=None)).nodes or ()
    assert found.metadata == {"title": "Eels"} or found.node_id == "p"


SCALARS = [-1, 0, 1, 1.5, 2, "", "a", "b", "Bat", "日本"]
LISTS = [[], [0, 1], [1.5], ["a"], ["a", "b"], ["Bat", ""]]
ORDER = [">", ">=", "<", "<="]
OPERATORS: dict[str, list[tuple[list[str], list[Any]]]] = {
    "n s l title text a.b none": [
        (["==", "!="], [None, *SCALARS]),
        (["in", "nin"], LISTS),
        (["is_empty"], [None]),
    ],
    "n": [(ORDER, [-1, 0, 1, 1.5, 3])],
    "s title text": [
        (ORDER, ["", "a", "b", "B"]),
        (["text_match_insensitive"], ["", "a", "BAT", "b%", "b_t", "3 4", "日", "t"]),
        (["text_match"], ["", "3 4", "日", "%"]),
    ],
    "l": [
        (["contains"], ["a", "Bat", "bat", 0, 1, 2]),
        (["any"], LISTS),
        (["all"], LISTS[1:]),
    ],
}
TESTS = [
    MetadataFilter(key=key, operator=FilterOperator(operator), value=value)
    for keys, groups in OPERATORS.items()
    for key in keys.split()
    for operators, values in groups
    for operator in operators
    for value in values
]


def check_selected(stores: Stores, asked: MetadataFilters) -> None:
    mine, theirs = stores
    expected = set(theirs.query(query(filters=asked)).ids or ())
    assert set(mine.engine.keys(where_of(asked))) == expected, asked


def test_every_operator_selects_what_it_selects_in_the_simple_store(fixed: Stores) -> None:
    assert {test.operator for test in TESTS} == set(FilterOperator)
    for test in TESTS:
        check_selected(fixed, MetadataFilters(filters=[test]))


@given(st.lists(st.sampled_from(TESTS), max_size=3), st.sampled_from([*FilterCondition, None]))
def test_filters_together_select_what_they_select_in_the_simple_store(
    fixed: Stores, tests: list[MetadataFilter], condition: FilterCondition | None
) -> None:
    asked = MetadataFilters(filters=tests, condition=condition)
    check_selected(fixed, asked)
    check_equal(fixed, filters=asked)


def test_filters_may_be_nested(stores: Stores) -> None:
    mine, _ = stores
    some = MetadataFilters(
        filters=[
            MetadataFilter(key="n", value=2),
            MetadataFilters(filters=[MetadataFilter(key="s", value="a")], condition="not"),
        ]
    )
    assert mine.query(query(filters=some)).ids == ["n5"]


@pytest.mark.parametrize(
    ("operator", "value", "message"),
    [
        ("text_match", "Bat", "does not tell upper from lower case"),
        ("text_match", 1, "text_match takes a text"),
        ("==", ["a"], "texts, finite numbers"),
        (">", None, "texts, finite numbers"),
        ("in", "abc", "in takes a list"),
        ("any", "abc", "any takes a list"),
        ("all", [], "at least one value"),
        ("==", float("nan"), "texts, finite numbers"),
        ("==", 10**400, "texts, finite numbers"),
    ],
)
def test_what_a_filter_cannot_say_is_refused(operator: str, value: Any, message: str) -> None:
    asked = MetadataFilter(key="s", value=value, operator=FilterOperator(operator))
    with pytest.raises(FilterError, match=message):
        where_of(asked)


def test_get_is_the_embedding_scaled_to_length_1(stores: Stores) -> None:
    mine, theirs = stores
    for node_id in ("n0", "n7"):
        vector = np.array(theirs.get(node_id))
        assert mine.get(node_id) == pytest.approx(vector / np.linalg.norm(vector), abs=1e-3)
    mine.engine.add([{"_id": "words", "text": "no vector"}], [None])
    for node_id in ("none", "words"):
        with pytest.raises(KeyError, match=node_id):
            mine.get(node_id)


def test_several_passages_have_their_mean(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", None, dim=2) as engine:
        parts = [{"key": "a", "start": 0, "end": 1}, {"key": "a", "start": 2, "end": 3}]
        engine.add([{"_id": "a", "text": "b c"}], [[1, 0], [0, 1]], passages=parts)
        assert SearchEngineVectorStore(engine).get("a") == pytest.approx([0.5**0.5] * 2)


def test_a_collection_with_an_encoder_needs_no_embeddings(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        store = SearchEngineVectorStore(engine)
        texts = ["a bee", "the cat sat", "whales"]
        store.add([TextNode(id_=text, text=text) for text in texts])
        modes = VectorStoreQueryMode
        for mode in (modes.DEFAULT, modes.TEXT_SEARCH, modes.HYBRID):
            asked = VectorStoreQuery(query_str="the cat", similarity_top_k=1, mode=mode)
            assert store.query(asked).ids == ["the cat sat"]
        with pytest.raises(QueryError, match="1 of 2 nodes have no embedding"):
            store.add([TextNode(text="x", embedding=[1.0] * 16), TextNode(text="y")])
        with pytest.raises(QueryError, match="leave alpha out"):
            store.query(VectorStoreQuery(query_str="x", mode=modes.HYBRID, alpha=0.5))
        both = VectorStoreQuery(query_str="x", mode=modes.HYBRID)
        assert store.query(both, mode="hybrid").ids
        with pytest.raises(QueryError, match="mode hybrid and the options 'text'; leave one out"):
            store.query(both, mode="text")
        with pytest.raises(QueryError, match="mode text_search needs query_str"):
            store.query(VectorStoreQuery(query_embedding=[1.0] * 16, mode=modes.TEXT_SEARCH))
        with pytest.raises(QueryError, match="does not answer queries of the mode svm"):
            store.query(VectorStoreQuery(query_embedding=[1.0] * 16, mode=modes.SVM))

        index = VectorStoreIndex.from_vector_store(store, embed_model=EngineEmbedding(engine))
        index.insert_nodes([TextNode(id_="new", text="a wasp stung")])
        retriever = index.as_retriever(similarity_top_k=1)
        (found,) = retriever.retrieve("a wasp stung")
        assert found.node.node_id == "new" and found.score == pytest.approx(1, abs=1e-3)
        (found,) = asyncio.run(retriever.aretrieve("a bee"))
        assert found.node.get_content() == "a bee"
