"""Questions, judgements and retrieval quality, against hand-computed values and a plain oracle."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from indexer.prefix import prefix
from indexer.segment import SegmentConfig
from searchengine import SearchEngine
from searchengine.errors import CorpusError, QueryError
from searchengine.evaluation import (
    Grid,
    bench,
    bench_grid,
    default_dims,
    read_qrels,
    read_queries,
    retrieval,
)
from trainer.modules import prefix as tensor_prefix


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    """Two segments; for the question "a" the ranking is one, both, other, none."""
    with SearchEngine.create(tmp_path / "c", WordLengths(), SegmentConfig(prefix=4)) as engine:
        engine.add([{"_id": "none", "text": "three"}, {"_id": "both", "text": "a a bb"}])
        engine.add([{"_id": "one", "text": "a"}, {"_id": "other", "text": "a bb bb"}])
        yield engine


def test_ndcg_and_recall_by_hand(engine: SearchEngine) -> None:
    qrels = {"q": {"one": 1, "other": 2, "absent": 1}}
    rows = list(retrieval(engine, {"q": "a", "unjudged": "bb"}, qrels, [16, 4]))
    gain = 1 / math.log2(2) + 2 / math.log2(4)
    ideal = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    for row in rows:
        assert row.ndcg_10 == pytest.approx(gain / ideal)
        assert row.recall_100 == pytest.approx(2 / 3)
        assert row.exact_recall_10 == 1
    assert [(row.dim, row.shortlist) for row in rows] == [(16, None), (4, 100)]
    assert rows[0].as_dict() == {
        "dim": 16,
        "shortlist": None,
        "ndcg@10": pytest.approx(gain / ideal),
        "recall@100": pytest.approx(2 / 3),
        "prefix_ndcg@10": pytest.approx(gain / ideal),
        "exact_recall@10": 1.0,
    }


def test_shortlist_and_prefix_against_a_plain_oracle(tmp_path: Path) -> None:
    """Recall of the exact top 10 by prefix and shortlist, as numpy finds it on the same rows."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 17, (300, 5))
    texts = [" ".join("x" * n for n in row) for row in lengths]
    encoder = WordLengths()
    questions = {str(i): texts[i] for i in range(0, 300, 30)}
    qrels = {key: {key: 1} for key in questions}
    config = SegmentConfig(prefix=8, rotation="identity", storage="float32")
    with SearchEngine.create(tmp_path / "c", encoder, config) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(texts)])
        exact, cut = retrieval(engine, questions, qrels, [16, 3], shortlist=20)
    queries, rows = encoder.encode(list(questions.values())), encoder.encode(texts)
    shares = []
    for query in queries:
        full, short = rows @ query, prefix(rows, 3) @ query[:3]
        best = np.lexsort((np.arange(300), -full))[:10]
        shortlist = np.lexsort((np.arange(300), -short))[:20]
        shares.append(len(set(best) & set(shortlist)) / 10)
    assert exact.exact_recall_10 == 1
    # The top 10 of the shortlist at full width holds whatever of the exact top 10 is in it.
    assert cut.exact_recall_10 == pytest.approx(float(np.mean(shares)))
    assert cut.prefix_ndcg_10 < cut.ndcg_10 <= exact.ndcg_10


def test_bench_starts_with_exact_search(engine: SearchEngine) -> None:
    rows = bench(engine, ["a", "bb"], bench_grid(engine, 2, [2], [2, 4]))
    assert [(r.prefix, r.shortlist, r.recall) for r in rows][::2] == [(16, 4, 1.0), (2, 4, 1.0)]


def test_bench_grid_fits_the_collection(engine: SearchEngine) -> None:
    assert bench_grid(engine, 10) == Grid(4, (16,), (4,))
    assert len(bench_grid(engine, 1, [2, 4], [2, 3, 4])) == 7
    for bad, message in [
        ({"prefixes": [17]}, "a prefix must be between 1 and 16 here, got 17"),
        ({"shortlists": [1]}, "a shortlist must be between 2 and 4 here, got 1"),
        ({"shortlists": [10**15]}, "got 1000000000000000"),
    ]:
        with pytest.raises(QueryError, match=message):
            bench_grid(engine, 2, **bad)  # type: ignore[arg-type]


def test_default_dims(engine: SearchEngine) -> None:
    assert default_dims(engine) == (16,)
    engine.encoder.matryoshka_dims = (16, 8, 4)  # type: ignore[attr-defined]
    assert default_dims(engine) == (16, 8, 4)


def test_prefix_outside_the_width_and_unjudged_questions(engine: SearchEngine) -> None:
    with pytest.raises(QueryError, match="between 1 and 16, got 17"):
        list(retrieval(engine, {"q": "a"}, {"q": {"one": 1}}, [17]))
    with pytest.raises(CorpusError, match="no question has a judgement"):
        list(retrieval(engine, {"q": "a"}, {"other": {"one": 1}}, [16]))


def test_empty_collection(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        assert engine.search("a") == []
        with pytest.raises(QueryError, match="is empty"):
            bench_grid(engine)


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
        ("q.jsonl", "", "no questions in it"),
        ("q.tsv", "_id\ttext\n1\ta\n", "expected questions in a .jsonl or .txt file"),
        ("q.jsonl", '{"text": "a"}\n', r"q\.jsonl:1: no field '_id'"),
        ("q.jsonl", '{"_id": "a"}\n', r"q\.jsonl:1: the question is blank"),
        ("q.jsonl", '{"_id": "a", "text": " "}\n', r"q\.jsonl:1: the question is blank"),
        (
            "q.jsonl",
            '{"_id": "a", "text": "b"}\n' * 2,
            r"q\.jsonl:2: the question 'a' occurs twice",
        ),
    ],
)
def test_bad_queries(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=message):
        read_queries(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no judgements in it"),
        ("query-id\tcorpus-id\tscore\n", "no judgements in it"),
        ("query-id\tcorpus-id\tscore\nq\td\thigh\n", ":2: expected query-id"),
        ("q\td\t1\nq d\n", ":2: expected query-id"),
        ("q\td\t1.0\n", ":1: expected query-id"),
        ("q\td\t1\nq\td\t--5\n", ":2: expected query-id"),
        ("q\td\t1\nq\td\t²\n", ":2: expected query-id"),
    ],
)
def test_bad_qrels(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "qrels.tsv").write_text(content)
    with pytest.raises(CorpusError, match=message):
        read_qrels(tmp_path / "qrels.tsv")


@given(
    st.integers(1, 8),
    st.lists(st.lists(st.floats(-4, 4, width=32), min_size=8, max_size=8), min_size=1, max_size=4),
)
def test_prefix_of_arrays_and_of_tensors_agree(dim: int, values: list[list[float]]) -> None:
    """Two packages that never meet cut a prefix the same way."""
    rows = np.array(values, np.float32)
    large = np.linalg.norm(rows[:, :dim], axis=1) > 1e-6  # torch floors smaller norms at 1e-12
    expected = tensor_prefix(torch.from_numpy(rows), dim).numpy()
    assert prefix(rows, dim)[large] == pytest.approx(expected[large], abs=1e-6)
