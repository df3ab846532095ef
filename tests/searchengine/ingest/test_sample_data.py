"""The sample set under data/ has no leak from training to test."""

import csv
import json
import re
from pathlib import Path

from conftest import REPOSITORY

DATA = REPOSITORY / "data"


def normalised(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def sentences(text: str) -> set[str]:
    return {normalised(each) for each in re.split(r"(?<=[.!?])\s+", text)}


def texts(path: Path) -> list[str]:
    """Titles and texts of a JSONL file."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [record[name] for record in records for name in ("title", "text") if name in record]


def test_no_training_sentence_is_in_a_passage_or_contains_a_question() -> None:
    with (DATA / "pairs.tsv").open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
        trained = [text for row in rows for text in row.values()]
    questions = {normalised(text) for text in texts(DATA / "queries.jsonl")}
    assert [(q, text) for q in questions for text in map(normalised, trained) if q in text] == []
    known = set().union(*map(sentences, texts(DATA / "corpus.jsonl")))
    assert known and not known & set().union(*map(sentences, trained))
