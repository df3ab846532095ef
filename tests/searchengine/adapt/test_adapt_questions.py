"""Questions from documents and logs, and the part that each is used for."""

import json
import random
from pathlib import Path

import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.adapt.sampled_questions import (
    MAX_SHARED,
    Kind,
    Part,
    Question,
    Split,
    clicked,
    read_clicks,
    without_sentence,
)
from searchengine.errors import CorpusError

THREE = "Whales sleep with half a brain. They breathe when they are awake. No fish does so."


def split_of(
    folder: Path, documents: list[dict[str, str]], seed: int = 0
) -> tuple[Split, list[int]]:
    """The split, and the ids in the order of the documents."""
    with SearchEngine.create(folder, WordLengths()) as engine:
        engine.add(documents)
        with engine.reading() as snapshot:
            ids = snapshot.store.ids_of(document["_id"] for document in documents)
            split = Split(snapshot, seed)
            return split, [ids[document["_id"]] for document in documents]


def test_a_sentence_is_cut_out_of_its_text() -> None:
    found = set()
    for seed in range(20):
        cut = without_sentence(THREE, random.Random(seed))
        assert cut is not None
        found.add(cut)
    assert found == {
        (
            "Whales sleep with half a brain.",
            " They breathe when they are awake. No fish does so.",
            0,
        ),
        (
            "They breathe when they are awake.",
            "Whales sleep with half a brain. No fish does so.",
            31,
        ),
    }  # "No fish does so." has too few characters


@pytest.mark.parametrize(
    "text",
    ["", "Whales sleep with half a brain.", "No. Yes. No.", "Whales sleep with half a brain. No."],
)
def test_a_text_that_would_lose_all_keeps_its_sentences(text: str) -> None:
    assert without_sentence(text, random.Random(0)) is None


@given(st.lists(st.text("ab ", min_size=1, max_size=40), max_size=8), st.integers(0, 9))
def test_sentence_and_rest_are_the_text(words: list[str], seed: int) -> None:
    text = ". ".join(words) + "."
    if cut := without_sentence(text, random.Random(seed)):
        sentence, rest, place = cut
        removed = text[place : len(text) - len(rest) + place]
        assert rest[:place] + removed + rest[place:] == text and removed.strip() == sentence


def test_documents_of_a_title_are_in_the_same_part(tmp_path: Path) -> None:
    documents = [
        {"_id": str(i), "title": f"title {i % 40}", "text": f"text {'x' * (i % 7)} {i}"}
        for i in range(200)
    ]
    split, ids = split_of(tmp_path / "c", documents)
    assert all(split.parts[ids[i]] is split.parts[ids[i % 40]] for i in range(200))
    assert set(split.parts.values()) == set(Part)
    again, _ = split_of(tmp_path / "d", documents[::-1])
    other, _ = split_of(tmp_path / "e", documents, seed=1)
    by_title = [
        {i % 40: chosen.parts[number] for i, number in enumerate(numbers)}
        for chosen, numbers in ((split, ids), (other, ids))
    ]
    assert by_title[0] != by_title[1]
    assert sorted(again.parts.values()) == sorted(split.parts.values())


def test_documents_of_equal_text_are_in_the_same_part(tmp_path: Path) -> None:
    texts = [f"{'x' * (i % 30 + 1)} is the text" for i in range(90)]
    documents = [{"_id": str(i), "text": text} for i, text in enumerate(texts)]
    split, ids = split_of(tmp_path / "c", documents)
    assert all(split.parts[ids[i]] is split.parts[ids[i % 30]] for i in range(90))
    assert len(set(split.parts.values())) == 3


def test_a_title_of_many_documents_names_none(tmp_path: Path) -> None:
    documents = [
        {"_id": str(i), "title": "README", "text": f"x {i}"} for i in range(MAX_SHARED + 1)
    ]
    documents += [{"_id": f"t{i}", "title": "two", "text": f"y {i}"} for i in range(2)]
    split, ids = split_of(tmp_path / "c", documents)
    with SearchEngine.open(tmp_path / "c", WordLengths()) as engine:
        with engine.reading() as snapshot:
            titles = [split.title(each) for each in snapshot.store.documents(ids)]
    assert set(titles[:-2]) == {""} and titles[-2:] == ["two", "two"]
    assert len({split.parts[i] for i in ids[:-2]}) == 3


def test_a_sample_takes_whole_titles(tmp_path: Path) -> None:
    documents = [{"_id": str(i), "title": f"t{i % 20}", "text": f"x {i}"} for i in range(60)]
    split, ids = split_of(tmp_path / "c", documents)
    sample = split.sample(10)
    assert 10 <= len(sample) <= 12 and sample == sorted(sample)
    numbers = [ids.index(i) % 20 for i in sample]
    assert all(numbers.count(number) == 3 for number in numbers)
    assert split.sample(1000) == sorted(ids)
    assert {split.parts[i] for i in split.sample(30)} == set(Part)


def test_clicks_of_a_question_are_merged(tmp_path: Path) -> None:
    log = tmp_path / "clicks.jsonl"
    lines = [
        {"question": "how do whales sleep", "clicked": "1"},
        {"question": " how do whales sleep ", "clicked": ["2", "1"]},
        {"question": "fish", "clicked": ["3"], "when": "today"},
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    assert read_clicks(log) == {"how do whales sleep": ["1", "2", "1"], "fish": ["3"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", 'clicks.jsonl:1: expected a text as "question"'),
        ('{"question": " ", "clicked": "1"}', 'expected a text as "question"'),
        ('{"question": "x"}', 'expected a key, or a list of keys, as "clicked"'),
        ('{"question": "x", "clicked": []}', "list of keys"),
        ('{"question": "x", "clicked": [1]}', "list of keys"),
        ("[]", "expected a JSON object"),
        ("", "the file has no questions"),
    ],
)
def test_a_malformed_log_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    log = tmp_path / "clicks.jsonl"
    log.write_text(line + "\n")
    with pytest.raises(CorpusError) as caught:
        read_clicks(log)
    assert message in str(caught.value)


def test_a_question_with_clicks_in_two_parts_is_left_out() -> None:
    parts = {1: Part.TRAINING, 2: Part.TRAINING, 3: Part.HELD_OUT}
    clicks = {"a": ["k1", "k2", "k1"], "b": ["k1", "k3"], "c": ["k3", "gone"], "d": ["gone"]}
    assert clicked(clicks, {"k1": 1, "k2": 2, "k3": 3}, parts) == [
        Question(Kind.CLICK, "a", (1, 2), Part.TRAINING),
        Question(Kind.CLICK, "c", (3,), Part.HELD_OUT),
    ]
