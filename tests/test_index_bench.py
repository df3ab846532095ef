"""The sweep over prefixes and shortlists."""

import json
from pathlib import Path

import numpy as np
import pytest

from indexer.bench import BenchRow, recall, sweep
from indexer.errors import VectorError
from indexer.segment import Segment, SegmentConfig, Structure

DIM = 24


def rows(n: int, seed: int) -> np.ndarray:
    falling = np.arange(1, DIM + 1) ** -0.7
    return np.random.default_rng(seed).standard_normal((n, DIM)).astype(np.float32) * falling


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> list[Segment]:
    folder = tmp_path_factory.mktemp("bench")
    config = SegmentConfig(prefix=4, rotation="identity", storage="float32")  # type: ignore[arg-type]
    return [Segment.build(folder / str(i), rows(300, i), config) for i in range(2)]


def test_recall_by_hand() -> None:
    exact = np.array([[1, 2, 3, 4], [5, 6, -1, -1], [-1, -1, -1, -1]])
    found = np.array([[4, 9, 1, -1], [6, 5, 7, -1], [1, 2, 3, 4]])
    assert recall(found, exact) == (2 / 4 + 2 / 2) / 2
    assert recall(exact, exact) == 1.0
    assert recall(np.full((3, 4), -1), exact) == 0.0


def test_recall_needs_something_to_find() -> None:
    with pytest.raises(VectorError, match="undefined"):
        recall(np.array([[1]]), np.array([[-1]]))
    with pytest.raises(VectorError, match="equal query counts, got 1 and 2"):
        recall(np.array([[1]]), np.array([[1], [2]]))


def test_the_sweep_measures_each_point_against_the_exact_scan(segments: list[Segment]) -> None:
    queries = rows(20, 9)
    seen: list[BenchRow] = []
    table = sweep(
        segments,
        queries,
        k=5,
        prefixes=[4, 8, DIM],
        shortlists=[5, 40, 600],
        repeats=2,
        on_row=seen.append,
    )
    assert table == seen
    grid = [(p, s) for p in (4, 8, DIM) for s in (5, 40, 600)]
    assert [(row.prefix, row.shortlist) for row in table] == [(DIM, 600), *grid]
    exact, *points = table
    assert (exact.structure, exact.code, exact.recall) == ("exact", "float32", 1.0)
    assert all((row.structure, row.code) == ("flat", "fp16") for row in points)
    assert all((row.rows, row.queries, row.k) == (600, 20, 5) for row in table)
    by_point = {(row.prefix, row.shortlist): row.recall for row in points}
    assert by_point == {point: pytest.approx(expected(queries, *point)) for point in grid}
    assert by_point[4, 5] < by_point[4, 40] < by_point[4, 600] == 1.0
    assert by_point[4, 5] < by_point[8, 5] < by_point[DIM, 5]
    for row in table:
        assert 0 < row.p50_ms <= row.p95_ms
        assert row.rerank_ms > 0 and (row.shortlist_ms > 0) == (row is not exact)
        written = json.loads(json.dumps(row.as_dict()))
        assert written.pop("recall@5") == row.recall
        assert BenchRow(**written, recall=row.recall) == row


def expected(queries: np.ndarray, p: int, size: int) -> float:
    """Recall at 5 of the two stages over both segments, in plain numpy."""

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    parts = [unit(rows(300, i)) for i in range(2)]
    whole = np.concatenate(parts)
    shares = []
    for query in unit(queries):
        truth = {*np.argsort(-(whole @ query))[:5]}
        candidates = np.concatenate(
            [
                300 * i + np.argsort(-(unit(part[:, :p]) @ query[:p]))[:size]
                for i, part in enumerate(parts)
            ]
        )
        best = candidates[np.argsort(-(whole[candidates] @ query))[:5]]
        shares.append(len(truth & {*best}) / 5)
    return float(np.mean(shares))


def test_the_structure_and_the_exact_rows_are_the_segments_own(tmp_path: Path) -> None:
    config = SegmentConfig(prefix=8, structure=Structure.HNSW)
    with Segment.build(tmp_path / "s", rows(1000, 3), config) as segment:
        table = sweep([segment], rows(10, 4), prefixes=[8, 16], shortlists=[100], repeats=1)
    assert [row.structure for row in table] == ["exact", "hnsw", "hnsw"]
    assert [row.code for row in table] == ["float16", "fp16", "fp16"]
    assert table[1].recall > 0.8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"repeats": 0}, "repeats must be"),
        ({"shortlists": [10, 0]}, "shortlist must be"),
        ({"prefixes": [0]}, "prefix must be"),
        ({"prefixes": [DIM + 1]}, "prefix 25 is wider"),
    ],
)
def test_bad_grids_are_refused(
    segments: list[Segment], settings: dict[str, object], message: str
) -> None:
    grid: dict[str, object] = {"prefixes": [4], "shortlists": [5]}
    with pytest.raises(ValueError, match=message):
        sweep(segments, rows(2, 0), **(grid | settings))  # type: ignore[arg-type]


def test_no_segments_is_refused() -> None:
    with pytest.raises(VectorError, match="at least one segment"):
        sweep([], rows(2, 0), prefixes=[4], shortlists=[5])
