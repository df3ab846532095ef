"""The sample set under data/: complete, consistent, and with no leak from training to test."""

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

DATA = REPOSITORY / "data"
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


def test_every_judgement_names_a_query_and_a_passage_once(
    corpus: list[dict[str, Any]], queries: list[dict[str, Any]], qrels: Judgements
) -> None:
    assert set(qrels) == {q["_id"] for q in queries}
    assert {d for judged in qrels.values() for d in judged} <= {p["_id"] for p in corpus}
    assert {score for judged in qrels.values() for score in judged.values()} == {1, 2}
    rows = read_tsv(DATA / "qrels" / "test.tsv")
    assert len(rows) == sum(len(judged) for judged in qrels.values())


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


def test_readme_states_the_licence_and_the_counts(
    corpus: list[dict[str, Any]], queries: list[dict[str, Any]], pairs: list[dict[str, str]]
) -> None:
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert "CC0-1.0" in readme
    for count in (len(corpus), len(queries), len(pairs)):
        assert re.search(rf"\| {count} \(", readme), count
