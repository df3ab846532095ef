"""Quoted phrases: how they are read, and that required ones are demanded."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from hypothesis import given, settings
from hypothesis import strategies as st
from word_oracle import bm25

from searchengine import SearchEngine
from searchengine.backends import lexical
from searchengine.corpus.analyzer import Analyzer
from searchengine.errors import QueryError
from searchengine.query.request import Query


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ('"deep learning" of whales', ["deep learning"]),
        ('a "b  c\n" d "e"', ["b c", "e"]),
        ("“deep learning” and „tief lernen“", ["deep learning", "tief lernen"]),
        ("“a” b “c”", ["a", "c"]),
        ('"deep learning', []),
        ('"a b" c "d', ["a b"]),
        ('""" a" "', ["a"]),
        ('"" " " "?!" "🙂" "*"', []),
        ('"a b" "c" "a b"', ["a b", "c"]),
        ('"whales" AND "NEAR(bread"', ["whales", "NEAR(bread"]),
        ('print("hello world")', ["hello world"]),
        ('a screen of 7" and one of 12" or 13"', []),
        ('a 7" screen, "as seen on TV"', ["as seen on TV"]),
        ('the "7" screen"', ["7"]),
        ('고래는 "한쪽 뇌"로 잔다', ["한쪽 뇌"]),
        ('他说"鲸鱼睡觉"吗', ["鲸鱼睡觉"]),
        ("what's 5' 'so called'", []),
        ('"', []),
        ('"' * 10_000, []),
        (" ".join(f'"p{i}"' for i in range(10_000)), [f"p{i}" for i in range(lexical.PHRASES)]),
    ],
)
def test_what_a_phrase_is(question: str, expected: list[str]) -> None:
    assert [each.text for each in lexical.phrases(question)] == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ('+"deep learning" of "whales"', ["deep learning"]),
        ('"deep learning" +"deep learning"', ["deep learning"]),
        ("whales +“deep learning”", ["deep learning"]),
        ('C++"deep learning"', []),
        ('1+"2"', []),
        ('+ "a b"', []),
    ],
)
def test_a_plus_sign_requires_a_phrase(question: str, expected: list[str]) -> None:
    assert [text for text, required in lexical.phrases(question) if required] == expected
    assert Query(mode="text").required(question) == tuple(expected)
    everything = tuple(each.text for each in lexical.phrases(question))
    assert Query(mode="hybrid", phrases="required").required(question) == everything
    assert Query(mode="vector", phrases="required").required(question) == ()


TEXTS = [
    ("Deep", "learning is not here, deep down"),  # never across title and text
    ("", "Deep-learning of whales; half asleep"),
    ("On Deep Learning", "nothing about whales"),
    ("", "learning deep whales"),
    ("", "deep learned nets and sleeping whales"),
    ("", "whales"),
    ("北京", "我在北京大学学习"),
    ("", "he writes C++ in 東京"),
    ("", "parseHTTP2Response of foo_bar"),
]


def made(path: Path, tokenizer: str) -> SearchEngine:
    """The texts in two segments; one document, which has every phrase, is deleted."""
    engine = SearchEngine.create(path / "c", WordLengths(), tokenizer=tokenizer)
    documents = [{"_id": str(i), "title": a, "text": b, "n": i} for i, (a, b) in enumerate(TEXTS)]
    everything = " ".join(text for text, _ in map(reversed, TEXTS))
    engine.add([*documents[:3], {"_id": "gone", "text": f"deep learning {everything}", "n": 1}])
    engine.add(documents[3:])
    engine.delete(["gone"])
    return engine


def keys(engine: SearchEngine, question: str, **options: Any) -> list[str]:
    """The documents found where phrases are required."""
    options = {"phrases": "required", **options}
    return sorted(hit.key for hit in engine.search(question, **options))


@pytest.mark.parametrize("mode", ["text", "hybrid"])
@pytest.mark.parametrize(
    ("tokenizer", "question", "expected"),
    [
        ("stem:en", '"deep learning" whales', "124"),
        ("stem:en", 'whales "DEEP, learn!"', "124"),
        ("unicode", '"deep learning" whales', "12"),
        ("unicode", '"deep" "whales"', "1234"),
        ("unicode", '"deep learning" "half asleep"', "1"),
        ("unicode", '"deep learning" "about deep"', ""),  # 2 has all words, and the first one
        ("unicode", '"not anywhere" whales', ""),
        ("unicode", '"whales AND (deep"', ""),
        ("unicode", '"the whales"', ""),
        ("stem:en", '"of foo_bar" whales', "8"),
        ("stem:en", '"parse http 2 responses"', "8"),
    ],
)
def test_only_documents_with_the_phrases_are_found(
    tmp_path: Path, tokenizer: str, question: str, expected: str, mode: str
) -> None:
    with made(tmp_path, tokenizer) as engine:
        assert keys(engine, question, mode=mode) == list(expected)
        found = [key for key in expected if int(key) > 1]
        assert keys(engine, question, mode=mode, where="n > 1") == found


def test_by_vectors_quotes_have_no_meaning(tmp_path: Path) -> None:
    with made(tmp_path, "unicode") as engine:
        assert len(engine.search('"not anywhere"', mode="vector")) == len(TEXTS)
    with SearchEngine.create(tmp_path / "none", WordLengths(), tokenizer="none") as engine:
        engine.add([{"_id": "a", "text": "whales"}])
        assert keys(engine, '"not anywhere"') == ["a"]
        with pytest.raises(QueryError, match="has no index of words"):
            engine.search('"not anywhere"', mode="hybrid")


def test_the_encoder_reads_no_quotation_marks(tmp_path: Path) -> None:
    encoder = WordLengths()
    with SearchEngine.create(tmp_path / "c", encoder) as engine:
        engine.add([{"_id": "a", "text": "deep learning"}])
        engine.search("“deep learning” whales")
        assert encoder.calls[-1] == ["deep learning  whales"]
        engine.search('an inch is 1"')
        assert encoder.calls[-1] == ['an inch is 1"']
        engine.search('"deep learning" whales', mode="vector")
        assert encoder.calls[-1] == ['"deep learning" whales']


def test_each_question_of_a_batch_has_its_phrases(tmp_path: Path) -> None:
    questions = ["whales", '"deep learning"', "deep", '"half asleep" whales', '"deep learning" net']
    with made(tmp_path, "stem:en") as engine:
        for mode, phrases in itertools.product(("text", "hybrid"), ("scored", "required")):
            asked: Any = {"mode": mode, "phrases": phrases}
            together = engine.search_batch(questions, 8, **asked)
            for question, hits in zip(questions, together, strict=True):
                alone = engine.search(question, 8, **asked)
                assert [hit.key for hit in hits] == [hit.key for hit in alone]
                scores = [hit.score for hit in alone]
                assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-6)


def test_a_change_is_found_by_its_phrase(tmp_path: Path) -> None:
    """Filters of a snapshot are kept, those of another commit are not taken."""
    with made(tmp_path, "stem:en") as engine:
        assert keys(engine, '"deep learning"') == ["1", "2", "4"]
        engine.add([{"_id": "new", "text": "of deep learning"}, {"_id": "1", "text": "learning"}])
        assert keys(engine, '"deep learning"') == ["2", "4", "new"]
        engine.optimize()
        assert keys(engine, '"deep learning"') == ["2", "4", "new"]


word = st.sampled_from(["ash", "birch", "elm", "oak"])
line = st.lists(word, max_size=8).map(" ".join)


@settings(max_examples=settings.default.max_examples // 2)  # type: ignore[union-attr]
@given(st.lists(st.tuples(line, line), min_size=1, max_size=8), st.lists(word, min_size=1), line)
def test_phrases_are_those_of_plain_texts(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[tuple[str, str]],
    phrase: list[str],
    others: str,
) -> None:
    documents = [
        {"_id": str(i), "title": title, "text": text or "-"}
        for i, (title, text) in enumerate(texts)
    ]
    quoted = " ".join(phrase[:3])
    path = tmp_path_factory.mktemp("phrases") / "c"
    with SearchEngine.create(path, WordLengths(), tokenizer="unicode") as engine:
        engine.add(documents)
        hits = engine.search(f'{others} "{quoted}"', mode="text", k=20, phrases="required")
        expected = {
            str(i)
            for i, pair in enumerate(texts)
            if any(f" {quoted} " in f" {each} " for each in pair)
        }
        assert {hit.key for hit in hits} == expected
        with engine.collection.reading() as snapshot:
            rows = snapshot.by_words(f'{others} "{quoted}"', 20, required=(quoted,)).scored
        by_key = {str(i): (title, text or "-") for i, (title, text) in enumerate(texts)}
        written_out = bm25(by_key, Analyzer.parse("unicode"), f"{others} {quoted}")
        for document, score in rows:  # words in half of the documents may be left out
            assert score == pytest.approx(written_out[str(document)], abs=1e-5)


@pytest.mark.parametrize("before", range(65_520, 65_545, 3))
def test_a_phrase_anywhere_in_a_long_text(tmp_path: Path, before: int) -> None:
    """Long texts are cut into words in pieces, and a phrase may lie across two."""
    texts = {
        "latin": f"{'ab ' * (before // 3)}blue, whale {'ab ' * 30_000}",
        "other": f"{'ab ' * (before // 3)}blue ab whale {'ab ' * 30_000}",
        "chinese": f"{'的，' * (before // 2)}鲸鱼睡觉，{'的，' * 30_000}",
    }
    with SearchEngine.create(tmp_path / "x", None, dim=2, tokenizer="unicode") as engine:
        engine.add([{"_id": key, "text": texts[key]} for key in texts], [[1.0, 0.0]] * 3)
        for question, key in (('+"blue whale"', "latin"), ('+"鲸鱼睡觉"', "chinese")):
            assert [hit.key for hit in engine.search(question, mode="text")] == [key]
