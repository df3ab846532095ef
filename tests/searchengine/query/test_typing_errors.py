"""Words that no document has are replaced by the nearest that documents have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import QueryError

TEXTS = {
    "whales": "Whales sleep with half a brain; the diving whale wakes.",
    "owls": "Owls hunt at night, and kidneys are their food.",
    "database": "The development of a database took energy.",
    "base": "A camp is a base of climbers; the snow leopard lives above it.",
    "energy": "Energy of the sun, and of kidneys.",
    "codes": "The enzyme ABCD12 binds Brca and covid-19 spreads.",
}
ASKED = [
    ("wahles", {"wahles": "whales"}),
    ("Wahles", {"Wahles": "Whales"}),
    ("hwales", {"hwales": "whales"}),  # the first letter
    ("eneryg of kidneyz", {"eneryg": "energy", "kidneyz": "kidneys"}),  # stems end with another
    ("developmetn", {"developmetn": "development"}),  # only the ending is wrong
    ("whales brain", {}),
    ("owl hunted", {}),  # other forms of words that documents have
    ('"wahles" sleep', {}),
    ("'wahles' half-wahles: sleep,wahles.", {"wahles": "whales"}),
    ("ABCE12", {}),
    ("BRCB", {}),
    ("HALF A BRANI", {"BRANI": "BRAIN"}),
    ("the covod-19", {}),
    ("sleep_wahles wahles.com wahles/owls /wahles .wahles wahles\\owls a@wahles #wahles", {}),
    ("owk", {}),  # too short
    ("hwich", {}),  # nearest to a word of grammar, though not the same first letter: unknown
    ("zzzzzzzz", {}),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path = tmp_path_factory.mktemp("typing") / "c"
    with SearchEngine.create(path, WordLengths(), tokenizer="stem:en") as engine:
        for key, text in TEXTS.items():  # a segment each
            engine.add([{"_id": key, "text": text, "n": len(text)}])
        yield engine


@pytest.mark.parametrize(("question", "replaced"), ASKED)
def test_words_are_replaced(engine: SearchEngine, question: str, replaced: dict[str, str]) -> None:
    hits = engine.search(question, mode="text")
    assert dict(hits.replaced) == replaced
    if replaced:
        instead = question
        for word, new in replaced.items():
            instead = instead.replace(word, new)
        expected = engine.search(instead, mode="text")
        assert hits and hits == expected and not expected.replaced
        assert {hit.question for hit in hits} == {instead} and hits[0].highlights


def test_a_question_with_known_words_is_answered_as_without(engine: SearchEngine) -> None:
    for question in ("how do whales sleep", "energy of owls", "codes ABCD12", "the base"):
        for mode in ("text", "hybrid", "vector"):
            answers = [
                engine.search(question, mode=mode, typo_tolerance=on) for on in (True, False)
            ]
            assert answers[0] == answers[1]  # to the last bit of the scores
            assert answers[0].to_dicts() == answers[1].to_dicts()


def test_it_can_be_switched_off(engine: SearchEngine) -> None:
    hits = engine.search("wahles", mode="text", typo_tolerance=False)
    assert not hits and not hits.replaced
    with pytest.raises(QueryError, match="typo_tolerance must be True or False, got 1"):
        engine.search("wahles", typo_tolerance=1)  # type: ignore[arg-type]


def test_the_encoder_reads_the_words_searched_for(engine: SearchEngine) -> None:
    wrapped: Any = engine.encoder.load()
    wrapped.calls.clear()
    hits = engine.search("sleeping wahlesandmore wahles", mode="hybrid")
    assert dict(hits.replaced) == {"wahles": "whales"}
    assert wrapped.calls == [["sleeping wahlesandmore whales"]]
    assert not engine.search("wahles", mode="vector").replaced
    batch = engine.search_batch(["wahles", "owls"], mode="text")
    assert [dict(hits.replaced) for hits in batch] == [{"wahles": "whales"}, {}]


def test_a_word_of_deleted_documents_is_unknown(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer="unicode") as engine:
        engine.add([{"_id": 1, "text": "whales"}, {"_id": 2, "text": "whalers"}])
        assert not engine.search("whales", mode="text").replaced
        engine.delete([1])
        assert dict(engine.search("whales", mode="text").replaced) == {"whales": "whalers"}


def test_commoner_words_and_those_beside_it_decide(tmp_path: Path) -> None:
    texts = ["plant green leaf"] * 3 + ["plane flies"] * 5 + ["planx"]
    with SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer="stem:en") as engine:
        texts += ["other things"] * 40 + ["glan clan flan slan"]
        engine.add({"_id": i, "text": text} for i, text in enumerate(texts))
        assert dict(engine.search("planr", mode="text").replaced) == {"planr": "plane"}
        assert dict(engine.search("leaf planr", mode="text").replaced) == {"planr": "plant"}
        assert not engine.search("plan", mode="text").replaced  # its letters are no error


def test_words_that_the_encoder_knows_stay_in_every_mode(tmp_path: Path) -> None:
    class Tokens(WordLengths):
        def token_spans(self, texts: list[str]) -> list[list[tuple[int, int]]]:
            return [[(0, 1)] * (1 if text == "wahles" else 2) for text in texts]

    with SearchEngine.create(tmp_path / "c", Tokens(), passages=False) as engine:
        engine.add([{"_id": key, "text": text} for key, text in TEXTS.items()])
        for mode in ("text", "hybrid"):
            replaced = engine.search("wahles at nihgt", mode=mode).replaced
            assert dict(replaced) == {"nihgt": "night"}


@pytest.mark.parametrize(
    ("tokenizer", "text", "question", "replaced"),
    [
        ("stem:es", "las naciones unidas y la reputación", "nacoines", {"nacoines": "naciones"}),
        ("stem:es", "las naciones unidas", "nacion", {}),
        ("stem:es", "su reputación crece", "repuxación", {"repuxación": "reputación"}),
        ("stem:ru", "киты спят в океане", "океаен", {"океаен": "океане"}),
        ("stem:de", "die Häuser der Stadt", "Hauser Sttadt", {"Sttadt": "Stadt"}),
        ("stem:zh", "鲸鱼在海里睡觉", "鲸鱼在海底", {}),
        ("unicode", "naïve whales", "niave", {"niave": "naïve"}),
        ("stem:en", "00|" * 30 + "dolphins" + "|" * 30, "dolphns", {"dolphns": "dolphins"}),
        ("stem:en", "over|" * 200 + "governing|" * 40, "goverment", {}),  # nor overment
        ("stem:en", "governing|" * 40 + "government", "goverment", {"goverment": "government"}),
    ],
)
def test_languages_and_tokenizers(
    tmp_path: Path, tokenizer: str, text: str, question: str, replaced: dict[str, str]
) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer=tokenizer) as engine:
        texts = [*text.split("|"), "x"]
        engine.add({"_id": i, "text": text} for i, text in enumerate(texts))
        assert dict(engine.search(question, mode="text").replaced) == replaced


def test_of_many_unknown_words_the_first_are_replaced(engine: SearchEngine) -> None:
    wrong = [f"wahles{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]
    question = " ".join([*wrong[:49], "wahles", *wrong[49:], "databsae"])
    assert engine.search(question, mode="text").replaced == {"wahles": "whales"}
    hits = engine.search("wahles," * 1400 + " //wahles.org", mode="text")
    assert hits[0].question == "whales," * 1400 + " //wahles.org"
