"""The vector store and the retriever of LangChain; its filters against those of its own store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.errors import CollectionError, CorpusError, FilterError, QueryError

pytest.importorskip("langchain_core", reason="the extra `langchain` is not installed")
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.structured_query import Comparator as C
from langchain_core.structured_query import Comparison, Operation, Operator, StructuredQuery
from langchain_core.vectorstores import InMemoryVectorStore

from searchengine.integrations.langchain import (
    SearchEngineRetriever,
    SearchEngineVectorStore,
    WhereTranslator,
    encoder_of,
    where_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")

TEXTS = ["a bee", "the cat sat", "whales", "a owl flies by night"]
METADATA = [
    {"year": 2015, "title": "Bees", "tags": ["x", 1]},
    {"year": 2020, "_title": "Cats", "of": {"kind": True}},
    {"text": "not the text", "_id": 7, "year": None},
    {},
]
FAKE = DeterministicFakeEmbedding(size=8)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SearchEngineVectorStore]:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        store = SearchEngineVectorStore(engine)
        store.add_texts(TEXTS, METADATA, ids=list("abcd"))
        yield store


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def test_documents_come_back_as_they_were_given(store: SearchEngineVectorStore) -> None:
    for document, text, metadata in zip(store.get_by_ids("abcd"), TEXTS, METADATA, strict=True):
        assert (document.page_content, document.metadata) == (text, metadata)
    assert store.get_by_ids(["d", "none", "a"]) == store.get_by_ids(["d"]) + store.get_by_ids(["a"])
    assert store.similarity_search("cat", 1)[0] == store.get_by_ids(["b"])[0]
    # A title that the command line has stored is shown, too.
    store.engine.add([{"_id": "e", "title": "Eels", "text": "eels", "year": 1}])
    assert store.get_by_ids(["e"])[0].metadata == {"title": "Eels", "year": 1}
    store.engine.add([{"_id": "e", "title": "Eels", "text": "eels", "_title": "given"}])
    assert store.get_by_ids(["e"])[0].metadata == {"title": "given"}


def test_searches_equal_those_of_the_store_in_memory(tmp_path: Path) -> None:
    mine = SearchEngineVectorStore.from_texts(TEXTS, FAKE, METADATA, path=tmp_path / "c")
    theirs = InMemoryVectorStore.from_texts(TEXTS, FAKE, METADATA)
    for query in ("cat", "a bee"):
        for k in (1, 4, 9):
            pairs = zip(
                mine.similarity_search_with_score(query, k),
                theirs.similarity_search_with_score(query, k),
                strict=True,
            )
            for (document, score), (expected, cosine) in pairs:
                assert document.page_content == expected.page_content
                assert document.metadata == expected.metadata
                assert score == pytest.approx(cosine, abs=1e-3)
        found = mine.similarity_search_by_vector(FAKE.embed_query(query), 2)
        expected = theirs.similarity_search_by_vector(FAKE.embed_query(query), 2)
        assert [d.page_content for d in found] == [d.page_content for d in expected]
    assert mine.embeddings.embed_query("x") == pytest.approx(
        mine.embeddings.embed_documents(["x"])[0], abs=1e-6
    )
    mine.engine.close()
    engine = SearchEngine.open(tmp_path / "c", encoder=encoder_of(FAKE))
    assert engine.search("a bee", 1)[0].text == "a bee"
    engine.close()


def test_relevance_is_the_cosine_from_0_to_1(store: SearchEngineVectorStore) -> None:
    found = store.similarity_search_with_relevance_scores(
        "a bee", 4, score_threshold=0.1, filter="not (year = 2020)"
    )
    assert [d.id for d, _ in found] == ["a", "d"]
    assert [score for _, score in found] == pytest.approx([1.0, 0.5345], abs=5e-4)
    assert asyncio.run(store.asimilarity_search_with_relevance_scores("a bee", k=1))[0][1] > 0.999
    for option in ({"mode": "text"}, {"rerank": lambda question, hits: [1] * len(hits)}):
        with pytest.raises(QueryError, match="relevance from 0 to 1 is a cosine"):
            store.similarity_search_with_relevance_scores("a bee", **option)


def test_adding_replaces_and_says_what_is_wrong(store: SearchEngineVectorStore) -> None:
    assert store.add_texts(["one", "two"], ids=["x", "x"]) == ["x", "x"]
    assert store.get_by_ids(["x"])[0].page_content == "two"
    assert store.add_texts([]) == []
    (made,) = store.add_documents([Document("new")])
    assert store.get_by_ids([made])[0].page_content == "new"
    with pytest.raises(CorpusError, match="document 'y' has no text; leave it out"):
        store.add_texts(["fine", " "], ids=["z", "y"])
    assert store.get_by_ids(["z"]) == []
    with pytest.raises(QueryError, match="ids must be one for each of 2 texts, got 1"):
        store.add_texts(["a", "b"], ids=["1"])
    with pytest.raises(CorpusError, match="cannot be written as JSON"):
        store.add_texts(["a"], [{"what": object()}])


def test_the_index_function_keeps_it_in_step(store: SearchEngineVectorStore) -> None:
    """LangChain's own, which adds what is new and deletes what is gone."""
    records = InMemoryRecordManager("test")
    records.create_schema()

    def synchronize(*texts: str) -> dict[str, Any]:
        documents = [Document(text, metadata={"source": "x"}) for text in texts]
        options = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
        return dict(index(documents, records, store, **options))

    store.delete()
    assert synchronize("one text", "other")["num_added"] == 2
    counts = synchronize("one text", "third")
    assert (counts["num_added"], counts["num_skipped"], counts["num_deleted"]) == (1, 1, 1)
    assert sorted(document.text for document in store.engine) == ["one text", "third"]


def test_deleting_by_id_by_filter_and_all(store: SearchEngineVectorStore) -> None:
    assert store.delete(["a", "none"])
    assert store.delete(filter={"year": {"$gte": 2000}})
    assert list(store.engine.keys()) == ["c", "d"]
    with pytest.raises(QueryError, match="delete takes ids or filter, got refresh"):
        store.delete(["c"], refresh=True)
    assert store.delete()
    assert len(store.engine) == 0 and store.similarity_search("a") == []


def test_a_store_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="path="):
        SearchEngineVectorStore.from_texts(["a"], FAKE)
    with pytest.raises(CorpusError):
        SearchEngineVectorStore.from_texts([""], FAKE, path=tmp_path / "c")
    with pytest.raises(CollectionError):
        SearchEngineVectorStore.from_texts(["a"], FAKE, path=tmp_path / "c")


def test_options_of_a_search_reach_the_collection(store: SearchEngineVectorStore) -> None:
    """Those of the retriever and of a call; the store's own searches, too."""
    options: dict[str, Any] = {"group_by": "year", "min_score": 0.1}
    hits = store.engine.search("a bee", 4, mode="vector", **options)
    assert 0 < len(hits) < 4
    expected = [(hit.key, hit.score) for hit in hits]
    scored = store.similarity_search_with_score("a bee", 4, **options)
    assert [(document.id, score) for document, score in scored] == expected
    retriever = SearchEngineRetriever(engine=store.engine, options={"mode": "vector", **options})
    assert ids(retriever.invoke("a bee")) == [key for key, _ in expected]
    assert len(retriever.invoke("a bee", min_score=None)) > len(hits)
    words = SearchEngineRetriever(engine=store.engine, options={"mode": "text"})
    assert ids(words.invoke("wheles")) == ["c"]
    assert words.invoke("wheles", typo_tolerance=False) == []


def test_the_retriever_returns_documents_or_passages(store: SearchEngineVectorStore) -> None:
    retriever = SearchEngineRetriever(engine=store.engine, k=2, filter={"year": {"$ne": 2015}})
    assert ids(retriever.invoke("a bee")) == ["b", "d"]
    assert ids(retriever.invoke("a bee", k=1, filter=None)) == ["a"]
    assert ids(retriever.invoke("flies", mode="text")) == ["d"]
    assert ids(asyncio.run(retriever.ainvoke("a bee"))) == ["b", "d"]
    passages = SearchEngineRetriever(engine=store.engine, k=1, passages=True)
    (document,) = passages.invoke("a bee")
    assert document.page_content == "a bee" and document.metadata["start_index"] == 0
    assert ids(store.as_retriever(search_kwargs={"k": 1}).invoke("whales")) == ["c"]
    with pytest.raises(TypeError, match="argument 'top_k'"):
        retriever.invoke("a bee", top_k=3)


NAMES = ["a", "title", "_title", "two words"]
SCALARS = [0, 1, 2, 1.5, -1, True, False, "", "a", "b", "A", "it's"]
VALUES: list[Any] = [None, *SCALARS, [], [1, "a"], [True, "b"], [0]]
RECORDS = [{name: value} for name in NAMES for value in VALUES] + [
    {},
    {"a": 1, "title": 2},
    {"a": "a", "_title": True, "two words": -1},
    {"title": "a", "_title": "b"},
]
COMPARED = {
    "$eq": lambda a, b: a == b,
    "$ne": lambda a, b: a != b,
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
    "$in": lambda a, b: a in b,
    "$nin": lambda a, b: a not in b,
    "$between": lambda a, b: b[0] <= a <= b[1],
    "$contains": lambda a, b: isinstance(a, list) and b in a,
}
LISTS = [[], [None], [0, "it's"], ["a", None], [True, 2, "b"]]
TESTS: list[Any] = [
    *SCALARS,
    *({operator: value} for operator in ("$eq", "$ne") for value in (None, *SCALARS)),
    *({operator: value} for operator in COMPARED if operator[1:3] in ("gt", "lt", "co")
      for value in SCALARS),
    *({operator: values} for operator in ("$in", "$nin") for values in LISTS),
    *({"$between": [low, high]} for low in SCALARS for high in SCALARS),
]  # fmt: skip
DICTS = st.recursive(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TESTS), max_size=2),
    lambda inner: st.one_of(
        st.builds(lambda each: {"$not": each}, inner),
        st.dictionaries(st.sampled_from(["$and", "$or"]), st.lists(inner, max_size=2), min_size=1),
    ),
    max_leaves=3,
)


def matches(filter_: dict[str, Any], metadata: dict[str, Any]) -> bool:
    """The meaning of a dict, in Python."""
    for name, value in filter_.items():
        if name == "$not":
            holds = not matches(value, metadata)
        elif name in ("$and", "$or"):
            holds = (all if name == "$and" else any)(matches(each, metadata) for each in value)
        else:
            tests = value if isinstance(value, dict) else {"$eq": value}
            holds = all(compares(metadata.get(name), *test) for test in tests.items())
        if not holds:
            return False
    return True


def compares(value: Any, operator: str, operand: Any) -> bool:
    try:
        return bool(COMPARED[operator](value, operand))
    except TypeError:  # values of different kinds
        return False


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """The same documents here and in LangChain's own store."""
    texts = [f"text {i}" for i in range(len(RECORDS))]
    folder = tmp_path_factory.mktemp("filters") / "c"
    mine = SearchEngineVectorStore.from_texts(texts, FAKE, RECORDS, path=folder)
    yield mine, InMemoryVectorStore.from_texts(texts, FAKE, RECORDS)
    mine.engine.close()


def test_every_test_of_a_field_means_what_python_says(stores: tuple[Any, Any]) -> None:
    mine, _ = stores
    for name in NAMES:
        for test in TESTS:
            found = {each.text for each in mine.engine.documents(where_of({name: test}))}
            matching = (matches({name: test}, metadata) for metadata in RECORDS)
            assert found == {f"text {i}" for i, match in enumerate(matching) if match}, test


@given(DICTS)
def test_a_dict_selects_what_the_same_function_selects_in_memory(
    stores: tuple[Any, Any], filter_: dict[str, Any]
) -> None:
    mine, theirs = stores
    found = mine.similarity_search("x", 100, filter=filter_)
    expected = theirs.similarity_search(
        "x", 100, filter=lambda document: matches(filter_, document.metadata)
    )
    assert {d.page_content for d in found} == {d.page_content for d in expected}


def test_structured_queries_become_searches(store: SearchEngineVectorStore) -> None:
    def found(*tests: Any, operator: Operator = Operator.AND) -> list[str | None]:
        query = StructuredQuery("a bee", Operation(operator, list(tests)), 4)
        question, kwargs = query.accept(WhereTranslator())
        direct = store.similarity_search(question, **kwargs)
        assert store.similarity_search("a bee", filter=query.filter) == direct
        return sorted(ids(direct))  # type: ignore[type-var]

    since = Comparison(C.GTE, "year", 2015)
    assert found(since) == ["a", "b"]
    assert found(since, operator=Operator.NOT) == ["c", "d"]
    assert found(since, Comparison(C.CONTAIN, "tags", "x")) == ["a"]
    assert found(Comparison(C.LIKE, "title", "be%"), Comparison(C.EQ, "_id", 7)) == []
    assert found(Comparison(C.LIKE, "title", "be%"), Comparison(C.EQ, "_id", 7),
                 operator=Operator.OR) == ["a", "c"]  # fmt: skip
    assert found(Comparison(C.EQ, "of.kind", True)) == ["b"]
    assert found(Comparison(C.NIN, "year", [2015, 2020])) == ["c", "d"]
    store.add_texts(["later"], [{"at": "2021-03-04"}], ids=["e"])
    day = {"date": "2021-03", "type": "date"}
    assert found(Comparison(C.EQ, "at", day)) == ["e"]
    assert found(Comparison(C.GT, "at", day)) == []
    with pytest.raises(FilterError, match="a date compares by"):
        found(Comparison(C.LIKE, "at", day))


@pytest.mark.parametrize(
    ("filter_", "message"),
    [
        (lambda document: True, "filter must be a text"),
        ({"year": {"$regex": "x"}}, r"a filter has no \$regex; it has \$eq"),
        ({"$nor": []}, r"a filter has no \$nor"),
        ({"$or": {"a": 1}}, r"\$or takes a list of dicts"),
        ({"$and": [1]}, "a filter must be a dict, got 1"),
        ({"year": {"$in": 3}}, r"\$in takes a list"),
        ({"year": {"$like": 3}}, r"\$like takes a text"),
        ({"year": {"$exists": 1}}, r"\$exists takes true or false"),
        ({"year": {"$between": [1]}}, r"\$between takes a list of two"),
        ({"year": [1, 2]}, "texts, finite numbers"),
        ({"year": {"$gt": None}}, "texts, finite numbers"),
        ({"year": {"$lt": float("inf")}}, "texts, finite numbers"),
        ({"a`b": 1}, "cannot name the field 'a`b'"),
        ("year >", "expected a value"),
    ],
)
def test_what_a_filter_cannot_say_is_refused(
    store: SearchEngineVectorStore, filter_: Any, message: str
) -> None:
    with pytest.raises(FilterError, match=message):
        store.similarity_search("a", filter=filter_)


def test_no_filter_is_no_where() -> None:
    assert where_of(None) is None and where_of({}) is None and where_of("a > 1") == "a > 1"
