"""Compatibility characters: ligatures, wide letters, superscripts and signs are found as letters.

Documents and questions are read in one form, by words and by the encoder; texts stay as given.
"""

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st
from postgres_server import new_url

from searchengine import SearchEngine
from searchengine.corpus.analyzer import aligned, normalized, runs

HARD = "ﬁﬃ２ﾊﾟａ²½™㎏①Ⅳ´…⽇ﷺ본é \u0301\u1161\u0300"
TEXTS = {  # key: a text with such characters, and a question in plain letters
    "ligatures": ("The eﬀect of ﬁbrin on the eﬃciency of the ﬁlter.", "efficiency"),
    "wide": ("Ｆｕｌｌ　ｗｉｄｔｈ ｌｅｔｔｅｒｓ", "width"),
    "superscript": ("The room has 12 m² and a garden.", "m2"),
    "roman": ("King Henry Ⅷ of England", "viii"),
    "unit": ("Sacks with 5㎏ of rice", "kg"),
    "trademark": ("A course for Python™ beginners", "python"),
    "bold": ("Some 𝐛𝐨𝐥𝐝𝐥𝐲 set words", "boldly"),
    "decomposed": ("".join(unicodedata.normalize("NFD", "고래는 바다에서 잔다")), "고래는"),
    "radicals": ("⽇本の鯨は眠る", "日本の鯨は眠る"),
    "hyphens": ("Die Donau\u00addampf\u00adschiff\u00adfahrt", "donaudampfschifffahrt"),
    "apostrophe": ("It´s the whale´s fluke", "fluke"),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("déjà vu", "déjà vu"),
        ("eﬃciency", "efficiency"),
        ("x² of ２０", "x2 of 20"),
        ("Python™", "Python TM"),
        ("5㎏.", "5 kg ."),
        ("2½ or ½", "2 1⁄2 or 1⁄2"),
        ("it´s", "it s"),
        ("e\u0301", "é"),
        ("so\u00adft", "soft"),
    ],
)
def test_the_form_in_which_texts_are_read(text: str, expected: str) -> None:
    assert normalized(text) == expected


@given(st.text(st.sampled_from(HARD + "ab 1.")))
def test_every_place_is_found_in_the_text_again(text: str) -> None:
    plain, place = aligned(text)
    assert runs(plain) == runs(text)
    assert normalized(plain) == plain
    assert place(0, len(plain)) == (0, len(text))
    places = [place(i, i + 1) for i in range(len(plain))]
    assert places == sorted(places)
    assert {i for start, end in places for i in range(start, end)} == set(range(len(text)))


@pytest.fixture(params=["stem:en", "unicode", "stem:en,ko,ja", "server"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SearchEngine]:
    """A collection of TEXTS and others, for each tokenizer; and on a server."""
    server = request.param == "server"
    where, tokenizer = (new_url(), "stem:en") if server else (tmp_path / "c", request.param)
    with SearchEngine.create(where, WordLengths(), tokenizer=tokenizer, passages=False) as engine:
        documents = [{"_id": key, "text": text} for key, (text, _) in TEXTS.items()]
        storm = {"title": "note", "text": "The bridge was closed after the winter storm."}
        engine.add([*documents, *({"_id": str(i), **storm} for i in range(5))])
        yield engine


def test_documents_are_found_by_plain_letters(engine: SearchEngine) -> None:
    for key, (text, question) in TEXTS.items():
        hits = engine.search(question, k=3, mode="text")
        if key != "radicals" or len(hits):
            assert hits[0].key == key
            assert hits[0].text == text  # as it was given
    for mode in ("hybrid", "vector", "text"):
        text, _ = TEXTS["ligatures"]
        for question in (text, normalized(text)):
            hit = engine.search(question, k=1, mode=mode)[0]
            assert hit.key == "ligatures"
            assert mode != "vector" or hit.score > 0.999


def test_phrases_and_questions_may_have_them(engine: SearchEngine) -> None:
    for phrase in ("the efficiency of the filter", "the eﬃciency of the ﬁlter"):
        assert [hit.key for hit in engine.search(f'+"{phrase}"', k=3)] == ["ligatures"]
        assert engine.search(f'"{phrase}"', k=3, mode="text")[0].key == "ligatures"
    assert engine.search("ｂｒｉｄｇｅ", k=1, mode="text")[0].title == "note"
    assert len(engine.search("+＂ｃｌｏｓｅｄ　after＂", k=9)) == 5


def test_the_parts_shown_and_marked_are_those_of_the_stored_text(engine: SearchEngine) -> None:
    hit = engine.search("efficiency of filters", k=1, mode="text")[0]
    assert hit.snippet == TEXTS["ligatures"][0]
    stemmed = ["ﬁlter"] if engine.stats().tokenizer.startswith("stem") else []
    assert hit.highlights == ["eﬃciency", *stemmed]
    assert engine.search("letters with wide width", k=1, mode="text")[0].highlights == [
        "ｌｅｔｔｅｒｓ", "ｗｉｄｔｈ"
    ]  # fmt: skip


def test_the_encoder_reads_normalized_texts(tmp_path: Path) -> None:
    encoder = WordLengths()
    with SearchEngine.create(tmp_path / "c", encoder, passages=False) as engine:
        engine.add(
            [{"_id": "1", "title": "ﬁne", "text": "Ｆｕｌｌ ¼"}, {"_id": "2", "text": "plain"}]
        )
        engine.search("ﬁne", mode="vector")
        engine.encode(["x²"], "document")
    read = {text for call in encoder.calls for text in call}
    assert {"fine Full 1⁄4", "plain", "fine", "x2"} <= read
    assert all(unicodedata.is_normalized("NFKC", text) for text in read)


def test_passages_are_parts_of_the_stored_text(tmp_path: Path) -> None:
    sentence = "The eﬃciency of ﬁlters… is diﬃcult to quantify ½. "
    with SearchEngine.create(tmp_path / "c", "starter") as engine:
        engine.add([{"_id": "t", "text": sentence * 60}])
        hit = engine.search("efficiency", k=1)[0]
        assert hit.passage in sentence * 60 and hit.passage.startswith("The eﬃciency")
        assert engine.stats().passages > 3
