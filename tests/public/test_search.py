"""The options of a search, each through SearchEngine, and a table over all three front doors."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_process import running

from public.conftest import NATIVE, command
from searchengine import Encoder, Goal, SearchEngine

ANIMALS: list[dict[str, Any]] = [
    {"_id": "ape", "text": "an ape eats fruit", "year": 2010, "tags": ["land", "big"]},
    {"_id": "bat", "text": "a bat sleeps by day", "year": 2012, "tags": ["air"], "draft": True},
    {"_id": "cod", "text": "a cod swims in the north", "year": 2015, "tags": ["sea"], "lang": "en"},
    {"_id": "dog", "text": "a dog sleeps at night", "year": "2015", "owner": {"name": "Ann"}},
    {"_id": "eel", "title": "Eels", "text": "it swims far", "date": "2020-03-05", "lang": "ko"},
    {"_id": "fox", "text": "a fox hunts at night", "date": "2021", "lang": None, "two words": 1},
    {"_id": "7", "text": "a gnu runs 100% of the day", "year": 1999.5, "draft": False},
]
FILTERS = {
    "year = 2015": "cod",
    "year != 2015": "7 ape bat dog eel fox",
    "year >= 2012": "bat cod",
    "year < 2000 or year > 2012": "7 cod",
    "year between 2010 and 2012": "ape bat",
    "year not between 2010 and 2012": "7 cod dog eel fox",
    "year = '2015'": "dog",
    "year in (2010, '2015')": "ape dog",
    "lang in ('en', 'ko')": "cod eel",
    "lang not in ('en', 'ko')": "7 ape bat dog fox",
    "lang = null": "fox",
    "lang != null": "7 ape bat cod dog eel",
    "exists(lang)": "cod eel fox",
    "not exists(lang)": "7 ape bat dog",
    "draft": "bat",
    "not draft": "7 ape cod dog eel fox",
    "draft = false": "7",
    "tags contains 'sea'": "cod",
    "tags contains 'sea' or tags contains 'air'": "bat cod",
    "tags not contains 'land'": "7 bat cod dog eel fox",
    "owner.name = 'Ann'": "dog",
    "owner.name like 'a%'": "dog",
    "`two words` = 1": "fox",
    "date = date('2020-03')": "eel",
    "date > date('2020')": "fox",
    "date between date('2019') and date('2020')": "eel",
    "date >= date('2020-03-05') and date <= date('2021-01-01')": "eel fox",
    "title": "eel",
    "title like 'EEL_'": "eel",
    "text like '%at night'": "dog fox",
    "text like '%100\\%%'": "7",
    "_id = 7": "7",
    "_id in ('ape', 'cod', 'none')": "ape cod",
    "year >= 2010 and (lang = 'en' or draft)": "bat cod",
    "not (year >= 2010 and lang = 'en')": "7 ape bat dog eel fox",
    "year > 3000": "",
}
QUESTION = "how do animals sleep"


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory, starter: Encoder) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path_factory.mktemp("animals") / "x.index", starter) as engine:
        engine.add(ANIMALS)
        yield engine


@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_selects_what_matches(animals: SearchEngine, where: str) -> None:
    keys = FILTERS[where].split()
    assert sorted(animals.keys(where)) == keys
    assert animals.count(where) == len(keys)
    for mode in ("vector", "hybrid"):
        assert sorted(hit.key for hit in animals.search(QUESTION, where=where, mode=mode)) == keys


def test_an_indexed_field_changes_no_answer(tmp_path: Path, starter: Encoder) -> None:
    with SearchEngine.create(tmp_path / "x.index", starter) as engine:
        engine.add(ANIMALS)
        engine.index_fields("year", "lang", "owner.name")
        for where, keys in FILTERS.items():
            assert sorted(engine.keys(where)) == keys.split(), where


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_pages_are_one_answer_cut(sample: SearchEngine, mode: str) -> None:
    for question in ("how do whales sleep", "pressure in the crust", "water water everywhere"):
        whole = [hit.key for hit in sample.search(question, 100, mode=mode)]
        assert len(set(whole)) == len(whole) and (len(whole) == 100 or mode == "text")
        pages = [sample.search(question, 10, mode=mode, offset=n) for n in range(0, 100, 10)]
        assert [hit.key for page in pages for hit in page] == whole


def test_a_minimum_score_cuts_the_answer(sample: SearchEngine) -> None:
    for mode in ("vector", "text", "hybrid"):
        hits = sample.search("how do whales sleep", mode=mode)
        least = (hits[2].score + hits[3].score) / 2
        cut = sample.search("how do whales sleep", mode=mode, min_score=least)
        assert [hit.key for hit in cut] == [hit.key for hit in hits[:3]]


def test_facets_count_all_that_match(sample: SearchEngine) -> None:
    where = "topic in ('whales', 'bread') and level = 'intro'"
    hits = sample.search("food", 1, where=where, facets=["topic", "level"])
    counted = {t: sample.count(f"{where} and topic = '{t}'") for t in ("whales", "bread")}
    assert dict(hits.facets["topic"]) == counted and len(hits) == 1
    assert dict(hits.facets["level"]) == {"intro": sum(counted.values())}
    assert set(sample.facets("topic")["topic"].values()) == {21}


def test_group_by_shows_the_best_of_each_value(sample: SearchEngine) -> None:
    everything = sample.search("water under pressure", 252, mode="vector")
    best: dict[str, str] = {}
    for hit in everything:
        best.setdefault(hit.metadata["topic"], hit.key)
    for k in (5, 12):
        hits = sample.search("water under pressure", k, mode="vector", group_by="topic")
        assert [hit.key for hit in hits] == [*best.values()][:k]


def test_a_phrase_that_is_required_is_in_every_hit(sample: SearchEngine) -> None:
    hits = sample.search('"half the brain" sleep', phrases="required")
    assert hits and all("half the brain" in hit.text.lower() for hit in hits)


def test_a_mistyped_word_is_read_as_the_nearest(sample: SearchEngine) -> None:
    right = sample.search("volcano eruption", mode="text")
    wrong = sample.search("volcano erruption", mode="text")
    assert [hit.key for hit in wrong] == [hit.key for hit in right]
    assert "erruption" in wrong.replaced
    assert not sample.search("erruption", mode="text", typo_tolerance=False)


def test_similar_documents_and_duplicates(tmp_path: Path, starter: Encoder) -> None:
    with SearchEngine.create(tmp_path / "x.index", starter) as engine:
        engine.add([*ANIMALS, {"_id": "dog 2", "text": "a dog sleeps at night."}])
        assert engine.similar("dog", 1)[0].key == "dog 2"
        assert [group.keys for group in engine.duplicates()] == [("dog", "dog 2")]


def test_explain_names_the_rank_and_the_filter(sample: SearchEngine) -> None:
    hits = sample.search("how do whales sleep")
    assert sample.explain("how do whales sleep", hits[2].key).rank == 3
    lost = sample.explain("how do whales sleep", hits[2].key, where="topic = 'bread'")
    assert "filter" in str(lost)


def clusters(n: int, seed: int) -> np.ndarray[Any, Any]:
    """Unit rows (n, 64) around 300 centres, most of the variance in few directions."""
    spectrum = 1 / np.sqrt(np.arange(1, 65))
    centres = np.random.default_rng(0).standard_normal((300, 64)) * spectrum
    random = np.random.default_rng(seed)
    rows = centres[random.integers(0, 300, n)] + 0.7 * random.standard_normal((n, 64)) * spectrum
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_a_tuned_collection_keeps_its_promise(tmp_path: Path) -> None:
    """Recall of fresh questions against exact search is not below the target."""
    with SearchEngine.create(tmp_path / "x.index", None, dim=64) as engine:
        vectors = clusters(6000, seed=1)
        engine.add(({"_id": i} for i in range(6000)), vectors)
        tuning = engine.tune(goal=Goal(recall=0.9))
        assert tuning.config.shortlist < 6000
        questions = clusters(500, seed=2)
        nearest = np.argsort(-questions @ vectors.T)[:, :10]
        exact = engine.search_batch(questions, exact=True)
        found = engine.search_batch(questions)
        recalls = [_share(hits, rows) for hits, rows in zip(found, nearest, strict=True)]
        # Stored in half precision, a tenth and an eleventh may change places.
        assert np.mean([_share(*pair) for pair in zip(exact, nearest, strict=True)]) > 0.999
        assert np.mean(recalls) + 2 * np.std(recalls) / np.sqrt(500) >= 0.9


def _share(hits: Iterable[Any], rows: Iterable[int]) -> float:
    return len({hit.key for hit in hits} & {f"{row}" for row in rows}) / 10


REQUESTS: list[dict[str, Any]] = [
    {"query": "how do whales sleep"},
    {"query": "how do whales sleep", "mode": "vector", "k": 3},
    {"query": "how do whales sleep", "mode": "text", "k": 25},
    {"query": "yeast", "where": "year >= 2015 and level = 'intro'"},
    {"query": "pressure", "offset": 7, "k": 5},
    {"query": "opening", "group_by": "topic", "k": 4},
    {"query": "sheet", "mode": "vector", "min_score": 0.2},
    {"query": "cell", "facets": ["topic", "year"], "k": 2},
    {"query": "battery cell", "mode": "vector", "exact": True},
    {"query": "vulcano", "typo_tolerance": False},
    {"query": "zzz qqq", "mode": "text"},
]
_FLAGS = {"facets": "--facet", "typo_tolerance": "--no-typo-tolerance", "exact": "--exact"}
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(
    sample: SearchEngine, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Call]:
    """Calls a real server of the sample collection and of an empty one: path, body → JSON."""
    folder = tmp_path_factory.mktemp("server")
    SearchEngine.create(folder / "notes.index").close()
    collections = shared_folder / "sample.index", folder / "notes.index"
    with running(folder, collections, **NATIVE) as server, server.client() as client:

        def request(path: str, body: Any = None, method: str | None = None) -> Any:
            method = method or ("GET" if body is None else "POST")
            response = client.request(method, path, json=body).raise_for_status()
            return response.json() if response.content else None

        yield request


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: " ".join(map(str, r.values())))
def test_three_front_doors_give_one_answer(
    sample: SearchEngine, shared_folder: Path, call: Call, request_: dict[str, Any]
) -> None:
    hits = sample.search(**request_)
    expected = [(hit.key, pytest.approx(hit.score, abs=1e-5)) for hit in hits]
    options = []
    for name, value in request_.items():
        flag = _FLAGS.get(name, "-k" if name == "k" else f"--{name.replace('_', '-')}")
        if isinstance(value, bool):
            options += [flag]
        elif name != "query":
            options += [
                each for v in (value if isinstance(value, list) else [value]) for each in (flag, v)
            ]
    printed = command("search", shared_folder / "sample.index", request_["query"], *options)
    served = call("/v1/search", {"collection": "sample", **request_})
    for answer in (printed, served):
        assert [(hit["key"], hit["score"]) for hit in answer["hits"]] == expected
        assert [hit["snippet"] for hit in answer["hits"]] == [hit.snippet for hit in hits]
        assert {
            field: {each["value"]: each["count"] for each in counts}
            for field, counts in answer["facets"].items()
        } == hits.facets


def test_a_document_over_http(call: Call) -> None:
    place = "/v1/collections/notes/documents"
    call(f"{place}/owl", {"text": "Owls hunt by night.", "year": 2020}, "PUT")
    call(f"{place}/cow", {"text": "Cows eat grass.", "year": 2021}, "PUT")
    asked = {"collection": "notes", "query": "who hunts at night"}
    assert [hit["key"] for hit in call("/v1/search", asked)["hits"]] == ["owl", "cow"]
    call(f"{place}/owl", {"year": 2022}, "PATCH")
    assert call(f"{place}/owl")["year"] == 2022
    call(f"{place}/owl", method="DELETE")
    assert [hit["key"] for hit in call("/v1/search", asked)["hits"]] == ["cow"]
