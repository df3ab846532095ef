"""Haystack's own tests of document stores, and filters against its own function."""

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.errors import CorpusError

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
pytest.importorskip("haystack", reason="the extra `haystack` is not installed")
from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing.document_store import (
    CountDocumentsByFilterTest,
    DocumentStoreBaseExtendedTests,
)
from haystack.utils.filters import document_matches_filter

from searchengine.integrations.haystack import (
    SearchEngineDocumentStore,
    SearchEngineEmbeddingRetriever,
    SearchEngineRetriever,
    where_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")


class TestDocumentStore(DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    """Unchanged, but for the two methods that each store must define itself."""

    @pytest.fixture
    def document_store(self, tmp_path: Path) -> Iterator[SearchEngineDocumentStore]:
        store = SearchEngineDocumentStore(str(tmp_path / "c"), dim=768)
        yield store
        store.close()

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """The store returns documents without their embeddings."""
        assert [each.embedding for each in received] == [None] * len(received)
        assert [each.to_dict() | {"embedding": None} for each in received] == [
            each.to_dict() | {"embedding": None} for each in expected
        ]

    def test_write_documents(self, document_store: Any) -> None:
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SearchEngineDocumentStore]:
    """Of a collection that encodes."""
    SearchEngine.create(tmp_path / "c", WordLengths()).close()
    store = SearchEngineDocumentStore(str(tmp_path / "c"))
    store.engine = SearchEngine.open(tmp_path / "c", WordLengths())
    store.write_documents(
        [
            Document(id="a", content="a bee", meta={"title": "Bees", "year": 2015}),
            Document(id="b", content="the cat sat", meta={"year": 2020, "of": {"x": 1, "y": 2}}),
        ]
    )
    yield store
    store.close()


def test_retrievers_run_in_a_pipeline_and_are_serialized(store: SearchEngineDocumentStore) -> None:
    recent = {"field": "meta.year", "operator": ">", "value": 2018}
    by_text = SearchEngineRetriever(store, filters=recent, top_k=1, filter_policy="merge")
    pipeline = Pipeline()
    pipeline.add_component("retriever", by_text)
    (found,) = pipeline.run({"retriever": {"query": "a bee"}})["retriever"]["documents"]
    assert (found.id, found.content, found.meta["of"]) == ("b", "the cat sat", {"x": 1, "y": 2})
    modules = ["searchengine.integrations.haystack"]
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=modules).get_component("retriever")
    assert again.to_dict() == by_text.to_dict()
    assert again.document_store.path == store.path

    vector = WordLengths().encode(["a bee"])[0].tolist()
    by_vector = SearchEngineEmbeddingRetriever(store, passages=True)
    (best, other) = by_vector.run(vector)["documents"]
    assert best.score == pytest.approx(1, abs=1e-3) and best.score > other.score
    assert best.meta == {"title": "Bees", "year": 2015, "split_idx_start": 0}
    assert asyncio.run(by_vector.run_async(vector))["documents"] == [best, other]
    assert asyncio.run(by_text.run_async("a bee", top_k=3))["documents"][0].id == "b"
    words = SearchEngineRetriever(store, options={"mode": "text"})
    assert [each.id for each in words.run("cat")["documents"]] == ["b"]
    with pytest.raises(TypeError, match="must be a SearchEngineDocumentStore, got str"):
        SearchEngineRetriever("papers.index")


def test_options_of_a_search_reach_the_collection(store: SearchEngineDocumentStore) -> None:
    store.write_documents([Document(id="c", content="whales")])
    options = {"group_by": "year", "min_score": 0.1}
    found = SearchEngineRetriever(store, options=options).run("a bee")["documents"]
    hits = store.engine.search("a bee", **options)
    assert [(each.id, each.score) for each in found] == [(hit.key, hit.score) for hit in hits]
    assert len(hits) < len(store.engine.search("a bee"))
    words = SearchEngineRetriever(store, options={"mode": "text"})
    assert [each.id for each in words.run("wheles")["documents"]] == ["c"]
    words = SearchEngineRetriever(store, options={"mode": "text", "typo_tolerance": False})
    assert words.run("wheles")["documents"] == []


def test_embeddings_are_returned_if_asked_for(store: SearchEngineDocumentStore) -> None:
    expected = dict(zip("ab", WordLengths().encode(["a bee", "the cat sat"]), strict=True))
    engine = store.engine
    store.write_documents([Document(id="v", embedding=[3.0] + [0.0] * 15)])
    store = SearchEngineDocumentStore(store.path, return_embedding=True)
    store.engine = engine
    assert SearchEngineDocumentStore.from_dict(store.to_dict()).return_embedding
    *encoded, given = store.filter_documents()
    assert given.embedding == pytest.approx([1.0] + [0.0] * 15, abs=1e-3)
    retriever = SearchEngineRetriever(store, top_k=2, options={"where": "exists(year)"})
    for found in (
        encoded,
        retriever.run("a bee")["documents"],
        asyncio.run(retriever.run_async("a bee"))["documents"],
    ):
        assert {document.id for document in found} == set(expected)
        for document in found:
            assert document.embedding == pytest.approx(expected[document.id].tolist(), abs=1e-3)


def test_documents_with_and_without_embeddings(store: SearchEngineDocumentStore) -> None:
    vector = [0.0] * 15 + [1.0]
    given = [Document(id="v", embedding=vector), Document(id="w", content="wasps")]
    assert store.write_documents(given) == 2
    by_vector = SearchEngineEmbeddingRetriever(store, top_k=1)
    assert by_vector.run(vector)["documents"][0].id == "v"
    assert by_vector.run([0.0] * 4 + [1.0] + [0.0] * 11)["documents"][0].id == "w"
    assert store.filter_documents()[2] == Document(id="v")
    for document, message in (
        (Document(id="x"), "'x' has neither content nor embedding"),
        (Document(id="x", content=" "), "'x' has neither content nor embedding"),
        (Document(id="x", content="x", blob=ByteStream(b"1")), "has a blob, which is not stored"),
    ):
        with pytest.raises(CorpusError, match=message):
            store.write_documents([Document(id="y", content="y"), document])
    assert store.count_documents() == 4


def test_an_id_that_comes_twice(store: SearchEngineDocumentStore) -> None:
    twice = [Document(id="x", content="first"), Document(id="x", content="second")]
    with pytest.raises(DuplicateDocumentError, match="'x' is stored already"):
        store.write_documents(twice, DuplicatePolicy.FAIL)
    assert store.count_documents() == 2
    assert store.write_documents(twice, DuplicatePolicy.SKIP) == 1
    assert store.filter_documents()[2].content == "first"
    assert store.write_documents(twice, DuplicatePolicy.OVERWRITE) == 1
    assert store.filter_documents()[2].content == "second"
    assert store.write_documents([]) == 0


def test_an_update_replaces_objects(store: SearchEngineDocumentStore) -> None:
    asked = {"field": "meta.year", "operator": "==", "value": 2020}
    assert store.update_by_filter(asked, {"of": {"y": 3}, "title": "Cats", "year": None}) == 1
    assert store.filter_documents()[1].meta == {"of": {"y": 3}, "title": "Cats"}


TEXTS = ["", "a", "2020", "2020-03-01", "2020-03-01T09:30", "2020-03-01 09:30:00.5", "2021-01-01"]
ZONED = ["2020-03-01T09:30Z", "2020-03-01T09:30:00+00:00", "2020-03-01T18:30+09:00"]
META: list[dict[str, Any]] = [
    *({"n": value} for value in (None, -1, 0, 1, 1.5, True, False)),
    *({"t": value} for value in TEXTS + ZONED[:2]),
    *({"z": value} for value in (*ZONED, "2020-03-01T09:30:00-05:30", "2020-03-01T09:30")),
    *({"d": value} for value in TEXTS[3:]),
    *({"o": {"title": value}} for value in (None, 1, "a")),
    *({"l": value} for value in ([], ["a"], [1])),
    {"title": "a", "_id": 1, "text": "a", "o": "a"},
    {},
]
DOCUMENTS = [Document(id=str(i), content=f"text {i}", meta=meta) for i, meta in enumerate(META)]
DATES = [
    "2020-03-01T09:30:00",
    "2020-03-01",
    "2020-01-01",
    "2020-03-01T09:29:59.999999",
    "2020-03-01T09:30Z",
]
SCALARS = [None, -1, 0, 1, 1.5, 2, True, False, "", "a", "2020", *DATES]
FIELDS = "meta.n n meta.t meta.d meta.o.title meta.o meta.title meta._id meta.l none".split()
ORDER = [">", ">=", "<", "<="]
WITH_ZONE = ["2020-03-01T18:30:00+09:00", "2020-03-01T09:30+00:00"]
LISTS = [[], [None], [1, "a"], [True, None, 2], [DATES[0], 0], [DATES[3], "2020-03-01"]]
OPERATORS: list[tuple[list[str], list[str], list[Any]]] = [
    (FIELDS, ["==", "!="], SCALARS),
    (FIELDS, ["in", "not in"], LISTS),
    (["meta.n"], ORDER, [None, -1, 0, 1, 1.5, True]),
    (["meta.d"], ORDER, [*DATES, *WITH_ZONE, datetime(2020, 3, 1, 9, 30)]),
    (["meta.z"], ["==", "!=", *ORDER], [*WITH_ZONE, datetime(2020, 3, 1, 9, 30, tzinfo=UTC)]),
]
COMPARISONS = [
    {"field": field, "operator": operator, "value": value}
    for fields, operators, values in OPERATORS
    for field in fields
    for operator in operators
    for value in values
]
FILTERS = st.recursive(
    st.sampled_from(COMPARISONS),
    lambda inner: st.fixed_dictionaries(
        {"operator": st.sampled_from(["AND", "OR", "NOT"]), "conditions": st.lists(inner)}
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngineDocumentStore]:
    store = SearchEngineDocumentStore(str(tmp_path_factory.mktemp("fixed") / "c"), dim=2)
    store.write_documents(DOCUMENTS)
    yield store
    store.close()


def check_selected(store: SearchEngineDocumentStore, asked: dict[str, Any]) -> None:
    expected = [each.id for each in DOCUMENTS if document_matches_filter(asked, each)]
    assert list(store.engine.keys(where_of(asked))) == expected, asked


def test_every_comparison_selects_what_haystack_selects(fixed: SearchEngineDocumentStore) -> None:
    for asked in COMPARISONS:
        check_selected(fixed, asked)


@given(FILTERS)
def test_filters_select_what_haystack_selects(
    fixed: SearchEngineDocumentStore, asked: dict[str, Any]
) -> None:
    check_selected(fixed, asked)
    assert fixed.count_documents_by_filter(asked) == len(fixed.filter_documents(asked))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"field": "id", "operator": "==", "value": "1"}, "write meta.year"),
        ({"field": "author.name", "operator": "==", "value": "1"}, "write meta.year"),
        ({"field": "meta.l", "operator": "==", "value": ["a"]}, "texts, finite numbers"),
        ({"field": "meta.l", "operator": "~", "value": 1}, "operator must be one of ==, !="),
        ({"operator": "XOR", "conditions": []}, "operator must be AND, OR or NOT, got 'XOR'"),
        ({"field": "meta.t", "operator": ">", "value": "March"}, "only as dates"),
        ({"field": 'meta."', "operator": "==", "value": 1}, "cannot name the field"),
        ({"operator": "AND", "conditions": [3]}, "a filter must be a dict, got 3"),
    ],
)
def test_what_a_filter_cannot_say_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(FilterError, match=message):
        where_of(asked)
