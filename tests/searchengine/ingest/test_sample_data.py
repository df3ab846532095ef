"""The sample set under data/: complete, consistent, and with no leak from training to test."""

import csv
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

DATA = REPOSITORY / "data"
TOPICS = {
    "batteries",
    "bicycles",
    "bread",
    "chess",
    "coffee",
    "databases",
    "gardening",
    "printing",
    "sleep",
    "volcanoes",
    "weather",
    "whales",
}
Judgements = dict[str, dict[str, int]]


def normalised(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_tsv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


@pytest.fixture(scope="module")
def corpus() -> list[dict[str, Any]]:
    return read_jsonl(DATA / "corpus.jsonl")


@pytest.fixture(scope="module")
def queries() -> list[dict[str, Any]]:
    return read_jsonl(DATA / "queries.jsonl")


@pytest.fixture(scope="module")
def qrels() -> Judgements:
    judgements: Judgements = defaultdict(dict)
    for row in read_tsv(DATA / "qrels" / "test.tsv"):
        judgements[row["query-id"]][row["corpus-id"]] = int(row["score"])
    return judgements


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, str]]:
    return read_tsv(DATA / "pairs.tsv")


def test_corpus_has_21_passages_of_each_topic(corpus: list[dict[str, Any]]) -> None:
    assert Counter(p["topic"] for p in corpus) == dict.fromkeys(TOPICS, 21)
    assert all(re.fullmatch(rf"{p['topic']}-\d\d", p["_id"]) for p in corpus)


def test_corpus_rows_have_the_fields_and_their_types(corpus: list[dict[str, Any]]) -> None:
    for passage in corpus:
        assert list(passage) == ["_id", "title", "text", "topic", "year", "level"]
        assert type(passage["year"]) is int and 2005 <= passage["year"] <= 2025
        assert passage["level"] in {"intro", "advanced"}
        assert passage["title"].strip() == passage["title"] != ""
    assert len({p["year"] for p in corpus}) >= 15
    assert min(Counter(p["level"] for p in corpus).values()) >= 60


def test_passages_are_short_but_not_too_short(corpus: list[dict[str, Any]]) -> None:
    lengths = {p["_id"]: len(p["text"].split()) for p in corpus}
    assert {key: n for key, n in lengths.items() if not 35 <= n <= 110} == {}


def test_ids_titles_and_texts_are_unique(
    corpus: list[dict[str, Any]], queries: list[dict[str, Any]]
) -> None:
    for column in ("_id", "title", "text"):
        assert len({normalised(p[column]) for p in corpus}) == len(corpus) >= 240
    for column in ("_id", "text"):
        assert len({normalised(q[column]) for q in queries}) == len(queries) == 60


def test_every_judgement_names_a_query_and_a_passage_once(
    corpus: list[dict[str, Any]], queries: list[dict[str, Any]], qrels: Judgements
) -> None:
    assert set(qrels) == {q["_id"] for q in queries}
    assert {d for judged in qrels.values() for d in judged} <= {p["_id"] for p in corpus}
    assert {score for judged in qrels.values() for score in judged.values()} == {1, 2}
    rows = read_tsv(DATA / "qrels" / "test.tsv")
    assert len(rows) == sum(len(judged) for judged in qrels.values())


def test_every_query_has_an_answer_and_most_have_look_alikes(qrels: Judgements) -> None:
    assert [q for q, judged in qrels.items() if 2 not in judged.values()] == []
    assert sum(1 in judged.values() for judged in qrels.values()) > len(qrels) / 2


def test_every_topic_has_five_questions(corpus: list[dict[str, Any]], qrels: Judgements) -> None:
    topic_of = {p["_id"]: p["topic"] for p in corpus}
    answers = [
        {topic_of[d] for d, score in judged.items() if score == 2} for judged in qrels.values()
    ]
    assert all(len(topics) == 1 for topics in answers)
    assert Counter(topics.pop() for topics in answers) == dict.fromkeys(TOPICS, 5)


def test_there_are_300_pairs_with_few_empty_negatives(pairs: list[dict[str, str]]) -> None:
    assert len(pairs) == 300
    assert len({normalised(row["anchor"]) for row in pairs}) == 300
    assert len({normalised(row["positive"]) for row in pairs}) == 300
    assert all(row["anchor"] and row["positive"] for row in pairs)
    assert sum(not row["negative"] for row in pairs) <= 40
    assert all(len({normalised(text) for text in row.values()}) == 3 for row in pairs)


def test_pairs_mix_questions_and_statements(pairs: list[dict[str, str]]) -> None:
    questions = sum(row["anchor"].endswith("?") for row in pairs)
    assert 150 <= questions <= 225
    assert not any(row["positive"].endswith("?") for row in pairs)


def test_no_training_sentence_contains_a_test_question(
    pairs: list[dict[str, str]], queries: list[dict[str, Any]]
) -> None:
    questions = {normalised(q["text"]) for q in queries}
    texts = [normalised(text) for row in pairs for text in row.values()]
    assert [(q, text) for q in questions for text in texts if q in text] == []


def test_no_training_sentence_is_taken_from_a_passage(
    pairs: list[dict[str, str]], corpus: list[dict[str, Any]]
) -> None:
    known = {normalised(s) for p in corpus for s in [p["title"], *sentences(p["text"])]}
    trained = {normalised(s) for row in pairs for text in row.values() for s in sentences(text)}
    assert trained & known == set()


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("pairs.tsv", ["anchor", "positive", "negative"]),
        ("qrels/test.tsv", ["query-id", "corpus-id", "score"]),
    ],
)
def test_tsv_reads_the_same_with_and_without_quoting(name: str, header: list[str]) -> None:
    raw = (DATA / name).read_bytes()
    assert b'"' not in raw and b"\r" not in raw and raw.endswith(b"\n")
    rows = [line.split("\t") for line in raw.decode("utf-8").rstrip("\n").split("\n")]
    assert rows[0] == header
    assert {len(row) for row in rows} == {len(header)}
    assert all(field == field.strip() for row in rows for field in row)


def test_text_is_clean_utf8() -> None:
    for path in sorted(p for p in DATA.rglob("*") if p.suffix in {".jsonl", ".tsv", ".md"}):
        text = path.read_bytes().decode("utf-8", errors="strict")
        assert not text.startswith("\ufeff") and "\ufffd" not in text, path.name
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), path.name


def test_readme_states_the_licence_and_the_counts(
    corpus: list[dict[str, Any]], queries: list[dict[str, Any]], pairs: list[dict[str, str]]
) -> None:
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert "CC0-1.0" in readme
    for count in (len(corpus), len(queries), len(pairs)):
        assert re.search(rf"\| {count} \(", readme), count
