"""The bench: what it measures, in what order, and what it says of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut_documents import Words

from searchengine import Goal, SearchEngine
from searchengine.errors import QueryError
from searchengine.indexer.config import ALL_ROWS, SegmentConfig
from searchengine.indexer.tuning.tune import OperatingPoint, shares, tune
from searchengine.ingest.passages import PassageConfig
from searchengine.measure.bench import Dataset, bench, collection_dataset, vectors_dataset
from searchengine.measure.results import Results
from searchengine.measure.retrieval import measure, task

DIM, ROWS = 24, 1200


def random_rows(n: int, seed: int) -> np.ndarray:
    falling = np.arange(1, DIM + 1) ** -0.7
    rows = np.random.default_rng(seed).standard_normal((n, DIM)) * falling[::-1]
    return rows.astype(np.float32)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    folder = tmp_path_factory.mktemp("subject")
    np.save(folder / "rows.npy", random_rows(ROWS, 1))
    np.save(folder / "queries.npy", random_rows(120, 2))
    config = SegmentConfig(prefix=8)
    with vectors_dataset(folder / "rows.npy", folder / "queries.npy", config, folder) as found:
        yield found


def silent(*_: object) -> None:
    pass


def last(subject: Dataset, goal: Goal, repeats: int = 1) -> Results:
    *_, results = bench(subject, goal, silent, repeats=repeats)
    return results


def work(point: OperatingPoint, queries: np.ndarray, *, batch: bool = False) -> np.ndarray:
    """Seconds that depend on nothing but the point, in place of a clock."""
    flat = [view.rows for view in point.segments if view.config.structure == "flat"]
    walks = [view.config for view in point.segments if view.config.structure != "flat"]
    cost = sum(flat) + sum((each.shortlist + each.effort) * each.prefix for each in walks)
    return np.full(1 if batch else len(queries), 1e-8 * cost)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperatingPoint, "seconds", work)


GOAL = Goal(recall=0.8, k=5)


@pytest.fixture
def results(subject: Dataset) -> Results:
    return last(subject, GOAL, 3)


def test_the_points_are_those_of_a_tuning(subject: Dataset, results: Results) -> None:
    """The one recommended is that which a tuning of the same queries chooses."""
    tuning = tune(subject.segments, subject.queries, GOAL)
    chosen = results.point("recommended")
    assert chosen.config == tuning.config and results.why.startswith("60 held-out queries show")
    assert [dict(point) for point in results.curve] == [each.as_dict() for each in tuning.curve]
    names = [row.name for row in results.rows]
    assert names[:2] == ["exact", "flat fp16 8 → 100"] and results.now == names[1]
    assert len(names) == len({*names}) > 3 and chosen.name in names
    assert results.complete and results.subject["rows"] == ROWS
    assert results.subject["queries"] == 120 and results.encoding_ms is None
    # Of those shown beside it, a faster one finds less.
    for row in results.rows[2:]:
        assert row.ms >= chosen.ms or row.recall < chosen.recall, row.name


def test_each_row_says_what_its_searches_find(subject: Dataset, results: Results) -> None:
    (segment,) = subject.segments
    exact = results.rows[0]
    assert (exact.recall, exact.recall_low, exact.ndcg) == (1, 1, None)
    assert exact.config.shortlist == ALL_ROWS
    nearest = segment.exact(subject.queries, 5)
    for row in results.rows[1:]:
        found = segment.over(row.config).search(subject.queries, 5)
        assert row.recall == pytest.approx(shares(found, nearest, DIM).mean(), abs=0.02), row.name
        assert 0 < row.recall_low <= row.recall <= row.recall_high <= 1
        assert row.ms <= row.p99_ms
    assert exact.memory == ROWS * DIM * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must contain bench results"),
        ('{"format": 99}', "got format 99"),
        ('{"format": 7, "measured_at": ""}', "is damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(QueryError, match=message):
        Results.read(tmp_path)


def test_ndcg_is_that_of_the_evaluation(tmp_path: Path) -> None:
    """By documents: ten passages are of fewer; without those that the questions are."""
    rng = np.random.default_rng(0)
    texts = [
        " ".join("x" * n for n in rng.integers(1, 17, rng.integers(20, 90))) for _ in range(60)
    ]
    config = SegmentConfig(prefix=3, shortlist=12, rotation="identity", storage="float32")  # type: ignore[arg-type]
    cut = PassageConfig(10)
    questions = {str(i): " ".join(texts[i].split()[:6]) for i in range(0, 60, 5)}
    qrels = {key: {str((int(key) + i) % 60): 1 for i in range(1, 25)} for key in questions}
    with SearchEngine.create(tmp_path / "c", Words(), config, passages=cut) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(texts[:40])])
        engine.add([{"_id": str(i + 40), "text": text} for i, text in enumerate(texts[40:])])
        judged = task(engine, questions, qrels)
        assert judged.documents == questions.keys()
        exact, configured, hybrid = measure(engine, judged, modes=["vector", "hybrid"])
        found = {}
        for mode in ("vector", "hybrid"):
            engine.set_default(mode)
            with collection_dataset(engine, questions, qrels) as subject:
                assert subject.notes == judged.notes and subject.mode == mode
                found[mode] = last(subject, Goal())
    by_vector, by_both = found["vector"], found["hybrid"]
    assert by_vector.rows[0].ndcg == pytest.approx(exact.ndcg_10) != 1
    now = by_vector.named("flat fp16 3 → 12, not rotated")
    assert now and now.name == by_vector.now and now.ndcg == pytest.approx(configured.ndcg_10)
    now = by_both.named(by_both.now)
    assert now and now.ndcg == pytest.approx(hybrid.ndcg_10) != configured.ndcg_10
    assert by_both.subject["mode"] == "hybrid"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((5, 2), np.float32), "10 or more, but .* has 5"),
        (np.full((50, 2), np.nan, np.float32), "not finite|NaN"),
        (np.zeros((50, 2), np.float32), "zero"),
    ],
)
def test_files_of_vectors_that_cannot_be(tmp_path: Path, array: Any, message: str) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, array)
    with (
        pytest.raises(ValueError, match=message),
        vectors_dataset(path, None, SegmentConfig(prefix=2), tmp_path),
    ):
        pass


def test_rows_that_are_queries_are_not_searched(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", random_rows(100, 3).astype(np.float16))
    with vectors_dataset(tmp_path / "rows.npy", None, SegmentConfig(prefix=8), tmp_path) as subject:
        assert subject.rows == 90 and len(subject.queries) == 10
        (segment,) = subject.segments
        assert (segment.exact(subject.queries, 1).scores < 0.999).all()
