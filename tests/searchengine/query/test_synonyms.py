"""Words of a question stand for their synonyms too, in searches by words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.lexical import MAX_ADDED, added_words, stored_synonyms
from searchengine.errors import QueryError

GROUPS = [["car", "automobile", "motor vehicle"], ["heart attack", "myocardial infarction", "MI"]]
TEXTS = {
    "car": "A car needs a road.",
    "automobiles": "Automobiles need fuel.",
    "vehicle": "The motor vehicle act.",
    "infarction": "Myocardial infarction is treated at once.",
    "heart": "The heart beats; an attack of pirates.",
    "other": "Owls hunt at night.",
}


@pytest.fixture(params=["stem:en", "unicode"])
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer=request.param) as engine:
        engine.add({"_id": key, "text": text} for key, text in TEXTS.items())
        yield engine


def keys(engine: SearchEngine, question: str, **options: Any) -> set[str]:
    return {hit.key for hit in engine.search(question, mode="text", **options)}


def test_a_question_finds_documents_with_synonyms(engine: SearchEngine) -> None:
    before = engine.search("car", mode="text")
    assert [hit.key for hit in before] == ["car"] and engine.stats().synonyms == 0
    engine.set_synonyms(GROUPS)
    assert engine.collection.settings["synonyms"] == "\n".join(map(", ".join, GROUPS))
    assert engine.stats().synonyms == 2
    cars = {"car", "vehicle"} | (
        {"automobiles"} if "unicode" not in engine.stats().tokenizer else set()
    )
    assert keys(engine, "car") == cars
    assert keys(engine, "Motor Vehicle") == cars  # the synonym of two words
    assert keys(engine, "vehicle") == {"vehicle"}  # which is not a part of it
    assert "infarction" in keys(engine, "heart attack risk")
    assert "infarction" not in keys(engine, "attack of the heart")
    assert keys(engine, "mi") >= {"infarction", "heart"}
    assert keys(engine, "owls") == {"other"}
    engine.set_synonyms([])
    assert engine.search("car", mode="text") == before
    assert engine.stats().synonyms == 0


def test_what_is_in_quotation_marks_has_no_synonyms(engine: SearchEngine) -> None:
    engine.set_synonyms(GROUPS)
    assert keys(engine, '"car"') == {"car"}
    assert "infarction" not in keys(engine, '"heart attack" risk')


def test_words_of_groups_are_no_typing_errors(engine: SearchEngine) -> None:
    engine.add([{"_id": "carp", "text": "The Caravel and the caravels."}])
    assert engine.search("carravel", mode="text").replaced
    engine.set_synonyms([["carravel", "owls"]])
    hits = engine.search("carravel", mode="text")
    assert not hits.replaced and [hit.key for hit in hits] == ["other"]


def of(question: str, groups: Any, tokenizer: str = "stem:en") -> dict[str, float]:
    return added_words(question, {"synonyms": stored_synonyms(groups), "tokenizer": tokenizer})


def test_weights_of_words() -> None:
    one, two = 1.0, 0.5
    assert of("cars", GROUPS) == {"automobile": one, "motor": two, "vehicle": two}
    assert of("motor vehicles", GROUPS) == {"car": one, "automobile": one}
    # What the question has already is not added.
    assert of("heart failure", [["heart failure", "cardiac failure"]]) == {"cardiac": 1.0}
    assert of("car automobile", GROUPS) == {"motor": two, "vehicle": two}
    # A group each for one and two words: the longest synonym counts.
    nested = [["heart", "cardiac"], ["heart attack", "infarction"]]
    assert of("heart attack", nested) == {"infarction": 1.0}
    assert of("a heart", nested) == {"cardiac": 1.0}
    # Several groups of one synonym.
    assert of("car", [["car", "auto"], ["car", "wagon"]]) == {"auto": 1.0, "wagon": 1.0}


@pytest.mark.parametrize(
    ("question", "group", "tokenizer", "words"),
    [
        ("東京の人口", ["東京", "江戸"], "stem:ja", ["江戸"]),
        ("die Häuser", ["Haus", "Gebäude"], "stem:de", ["Gebäude"]),
    ],
)
def test_other_tokenizers(
    question: str, group: list[str], tokenizer: str, words: list[str]
) -> None:
    assert list(of(question, [group], tokenizer)) == words


def test_few_words_are_added() -> None:
    groups = [[f"w{i}", *(f"w{i}x{j}" for j in range(49))] for i in range(3)]
    assert len(of("w0 w1 w2", groups)) == MAX_ADDED


def test_bad_groups(engine: SearchEngine, tmp_path: Path) -> None:
    for groups, message in (
        ("car, auto", "synonyms must be a list of groups, got 'car, auto'"),
        (None, "synonyms must be a list of groups, got None"),
        ([7], "a group of synonyms must be a list of texts, got 7"),
        (["car, auto"], "a group of synonyms must be a list of texts, got 'car, auto'"),
        ([["car"]], "a group must have at least 2 different synonyms, got 'car'"),
        ([["car", "Car "]], "a group must have at least 2 different synonyms, got 'car'"),
        ([["car", " "]], "without commas and =>, got ' '"),
        ([["car => auto", "wagon"]], "without commas and =>, got 'car => auto'"),
        ([["car", 7]], "without commas and =>, got 7"),
        ([["car", "a\ud800"]], "in UTF-8, without commas and =>, got 'a\\ud800'"),
    ):
        with pytest.raises(QueryError) as error:
            engine.set_synonyms(groups)  # type: ignore[arg-type]
        assert message in str(error.value)
    with (
        SearchEngine.create(tmp_path / "v", WordLengths(), tokenizer="none") as other,
        pytest.raises(QueryError, match="no index of words, which a group of synonyms needs"),
    ):
        other.set_synonyms(GROUPS)
