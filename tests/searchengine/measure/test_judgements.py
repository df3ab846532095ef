"""Questions and judgements from files: what is read, and one clear sentence for what cannot be."""

import gzip
from pathlib import Path

import pytest

from searchengine.errors import CorpusError
from searchengine.measure.judgements import read_beir, read_qrels, read_queries


def test_read_beir(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"has no queries\.jsonl"):
        read_beir(tmp_path)
    (tmp_path / "queries.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "1", "text": "a"}\n'))
    with pytest.raises(CorpusError, match=r"has no qrels/test\.tsv .*; splits: none"):
        read_beir(tmp_path)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n1\td\t2\n")
    assert read_beir(tmp_path, "dev") == ({"1": "a"}, {"1": {"d": 2}})
    with pytest.raises(CorpusError, match="splits: dev"):
        read_beir(tmp_path)


def test_read_queries(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"_id": 1, "text": "a"}\n\n{"_id": "b", "text": "c"}\n')
    assert read_queries(tmp_path / "q.jsonl") == {"1": "a", "b": "c"}
    (tmp_path / "q.txt").write_text("first\n\nsecond\n")
    assert read_queries(tmp_path / "q.txt") == {"1": "first", "3": "second"}


def test_read_qrels(tmp_path: Path) -> None:
    (tmp_path / "beir.tsv").write_text("query-id\tcorpus-id\tscore\nq 1\td1\t2\nq 1\td2\t0\n")
    assert read_qrels(tmp_path / "beir.tsv") == {"q 1": {"d1": 2, "d2": 0}}
    (tmp_path / "trec").write_text("q1 0 d1 1\nq2 0 d2 -1\n")
    assert read_qrels(tmp_path / "trec") == {"q1": {"d1": 1}, "q2": {"d2": -1}}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.jsonl", "", "the file has no questions"),
        ("q.tsv", "_id\ttext\n1\ta\n", "questions must be in a .jsonl or .txt file"),
        ("q.jsonl", '{"text": "a"}\n', r"q\.jsonl:1: the field '_id' is missing"),
        ("q.jsonl", '{"_id": "a"}\n', r"q\.jsonl:1: the question is empty"),
        ("q.jsonl", '{"_id": "a", "text": " "}\n', r"q\.jsonl:1: the question is empty"),
        (
            "q.jsonl",
            '{"_id": "a", "text": "b"}\n' * 2,
            r"q\.jsonl:2: keys of questions must be unique, got 'a' twice",
        ),
        ("qrels.tsv", "", "the file has no judgements"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\n", "the file has no judgements"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\nq\td\thigh\n", ":2: expected query-id"),
        ("qrels.tsv", "q\td\t1\nq d\n", ":2: expected query-id"),
        ("qrels.tsv", "q\td\t1.0\n", ":1: expected query-id"),
    ],
)
def test_bad_queries_and_qrels(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=message):
        (read_queries if name.startswith("q.") else read_qrels)(tmp_path / name)
