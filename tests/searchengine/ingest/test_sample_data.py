"""The sample set under data/: complete, consistent, and with no leak from training to test."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

DATA = REPOSITORY / "data"


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
def pairs() -> list[dict[str, str]]:
    return read_tsv(DATA / "pairs.tsv")


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
