"""The bench: what it measures, in what order, and what it says of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from cut_documents import Words
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.errors import CorpusError, QueryError
from searchengine.indexer.arrays import evenly
from searchengine.indexer.config import ALL_ROWS, SegmentConfig, Structure
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.points import recalls
from searchengine.ingest.passages import PassageConfig
from searchengine.measure import rounds as running
from searchengine.measure.bench_data import (
    MAX_QUERIES,
    Dataset,
    collection_dataset,
    vectors_dataset,
)
from searchengine.measure.operating_points import (
    FULL_EFFORTS,
    Grid,
)
from searchengine.measure.results import Kind, Results, Spread
from searchengine.measure.retrieval import measure, task
from searchengine.measure.rounds import Bench, Settings
from searchengine.measure.significance import interval

DIM, ROWS = 24, 1200


def random_rows(n: int, seed: int) -> np.ndarray:
    falling = np.arange(1, DIM + 1) ** -0.7
    rows = np.random.default_rng(seed).standard_normal((n, DIM)) * falling[::-1]
    return rows.astype(np.float32)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    folder = tmp_path_factory.mktemp("subject")
    np.save(folder / "rows.npy", random_rows(ROWS, 1))
    np.save(folder / "queries.npy", random_rows(40, 2))
    config = SegmentConfig(prefix=8)
    with vectors_dataset(folder / "rows.npy", folder / "queries.npy", config, folder) as found:
        yield found


def silent(*_: object) -> None:
    pass


def settings(subject: Dataset, **options: Any) -> Settings:
    chosen: dict[str, Any] = {"prefixes": (8,), "shortlists": (20, 100)}
    repeats = options.pop("repeats", 3)
    grid = Grid.fitting(subject.rows, DIM, 5, **(chosen | options))
    return Settings(grid, repeats, target=0.5)


@pytest.fixture(scope="module")
def results(subject: Dataset) -> Results:
    return Bench(subject, settings(subject), silent).run()


def test_all_requested_points_are_measured(results: Results) -> None:
    names = [row.name for row in results.rows]
    assert names[:2] == ["exact", "flat fp16 8 → 100"] and results.now == names[1]
    for structure in ("flat", "hnsw", "ivf"):
        assert {f"{structure} int8 8 → {size}" for size in (20, 100)} <= {*names}
    assert {f"hnsw int8 8 → {size}, not rotated" for size in (20, 100)} <= {*names}
    for structure, efforts in FULL_EFFORTS.items():
        assert sum(name.startswith(f"{structure} fp16 {DIM}, ") for name in names) == len(efforts)
    assert len(names) == len({*names})
    assert results.complete and results.subject["rows"] == ROWS
    assert results.subject["queries"] == 40 and results.overhead_ms is None


def test_what_is_said_of_each(results: Results) -> None:
    exact = results.rows[0]
    assert (exact.kind, exact.config.shortlist) == (Kind.EXACT, ALL_ROWS)
    assert (exact.recall, exact.recall_low) == (1, 1)
    assert exact.measured == Spread(1, 1, 1) and exact.build_s is None
    for row in results.rows:
        assert 0 < row.recall_low <= row.recall <= row.recall_high <= 1
        assert len(row.rounds_ms) in (3, 9)
        assert row.p50_ms.low <= row.p50_ms.median <= row.p95_ms.median <= row.p99_ms.median
        assert row.batch_qps is not None and row.batch_qps.median > 0
        ratios = [a / b for a, b in zip(exact.rounds_ms, row.rounds_ms, strict=False)]
        assert row.measured.median == pytest.approx(np.median(ratios))
        stored = ROWS * DIM * 2
        assert (
            (row.cold_bytes, row.hot_bytes) == (0, stored)
            if row is exact
            else (row.cold_bytes == stored)
        )
        assert row.ndcg is None


def test_recall_is_that_of_the_searches_themselves(subject: Dataset, results: Results) -> None:
    (segment,) = subject.segments
    exact = segment.exact(subject.queries, 5).rows
    for row in results.rows:
        if row.kind is not Kind.CASCADE:
            continue
        found = segment.over(row.config).search(subject.queries, 5).rows
        assert row.recall == pytest.approx(recalls(found, exact).mean(), abs=0.02), row.name


def test_a_rotation_is_undone_for_comparison(subject: Dataset, results: Results) -> None:
    """The first numbers of these vectors hold the least: cut off as they are, they find little."""
    by_name = {row.name: row for row in results.rows}
    turned, bare = by_name["hnsw int8 8 → 100"], by_name["hnsw int8 8 → 100, not rotated"]
    assert (turned.kind, bare.kind) == (Kind.CASCADE, Kind.TRUNCATED)
    assert (turned.config.rotation, bare.config.rotation) == ("pca", "identity")
    assert bare.recall_high < turned.recall_low


def test_finals(results: Results) -> None:
    more = [row for row in results.rows if len(row.rounds_ms) == 9]
    assert len(more) <= running.FINALISTS
    assert all(row.recall_low >= 0.5 and row.kind is not Kind.EXACT for row in more)


def test_results_are_read_as_they_were_written(results: Results, tmp_path: Path) -> None:
    path = results.write(tmp_path / "out")
    assert Results.read(path) == Results.read(tmp_path / "out")
    assert json.loads(path.read_text()) == json.loads(json.dumps(results.as_dict()))
    assert Results.read(path).rows == results.rows
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must contain bench results"),
        ('{"format": 99}', "got format 99"),
        ('{"format": 4, "measured_at": ""}', "is damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(QueryError, match=message):
        Results.read(tmp_path)


def test_missing_results_are_reported(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="--out DIR writes one"):
        Results.read(tmp_path / "none")


def test_every_round_is_reported_and_survives_an_interruption(subject: Dataset) -> None:
    seen: list[Results] = []

    def report(results: Results) -> None:
        seen.append(results)
        if len(seen) == 2:
            raise KeyboardInterrupt

    bench = Bench(subject, settings(subject, structures=[Structure.FLAT]), silent)
    with pytest.raises(KeyboardInterrupt):
        bench.run(on_round=report)
    assert [len(row.rounds_ms) for row in seen[0].rows] == [1] * len(seen[0].rows)
    kept = bench.results(complete=False)
    assert not kept.complete and all(len(row.rounds_ms) == 2 for row in kept.rows)


def test_conflicting_options_are_reported(subject: Dataset) -> None:
    bench_settings = settings(
        subject,
        structures=[Structure.HNSW],
        funnels=[((16, 100),)],
        baselines=False,
        repeats=1,
    )
    found = Bench(subject, bench_settings, silent).run()
    assert "keep fewer rows" in found.missing["hnsw int8 8 → 100 → 16: 100"]
    assert [row.kind for row in found.rows] == [Kind.EXACT, *[Kind.CASCADE] * 3]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    """Two segments and a deleted document; "bb" is nearest to itself."""
    with SearchEngine.create(tmp_path / "c", WordLengths(), SegmentConfig(prefix=4)) as engine:
        engine.add([{"_id": f"a{i}", "text": " ".join(["a"] * (i + 1))} for i in range(20)])
        engine.add([{"_id": f"b{i}", "text": "a bb" + " ccc" * i} for i in range(20)])
        engine.delete(["b0"])
        yield engine


def test_a_collection_with_judgements(engine: SearchEngine) -> None:
    engine.add([{"_id": "c", "text": "bb"}])
    questions = {"q1": "bb", "q2": "a bb ccc ccc", "q3": "not judged"}
    qrels = {"q1": {"c": 1}, "q2": {"b2": 1}}
    with collection_dataset(engine, questions, qrels) as subject:
        assert subject.rows == 40 and len(subject.queries) == 2 and subject.judged == 2
        assert subject.overhead_ms is not None and subject.sizes == [20, 19, 1]
        bench_settings = Settings(Grid.fitting(40, 16, 10, prefixes=(4,)), repeats=1)
        found = Bench(subject, bench_settings, silent).run()
    assert all(row.ndcg == pytest.approx(1) for row in found.rows if row.config.shortlist >= 40)
    assert found.subject["judged"] == 2


def test_the_loss_of_ndcg_is_paired(subject: Dataset, tmp_path: Path) -> None:
    def judge(segments: Sequence[Segment]) -> np.ndarray:
        found = segments[0].search(subject.queries, 5).rows
        scores: np.ndarray = (found % 7 == 0).mean(axis=1)
        return scores

    judged = replace(subject, judge=judge, judged=40)
    asked = settings(subject, structures=[Structure.FLAT], baselines=False, repeats=1)
    found = Bench(judged, asked, silent).run()
    (segment,) = subject.segments
    exact = (segment.exact(subject.queries, 5).rows % 7 == 0).mean(axis=1)
    short = segment.over(SegmentConfig(prefix=8, code="int8", shortlist=20))  # type: ignore[arg-type]
    loss = interval(exact - judge([short]))
    losses = {row.name: row.ndcg_loss for row in found.rows}
    assert losses["exact"] == (0, 0)
    assert losses["flat int8 8 → 20"] == pytest.approx(loss) and loss[0] < loss[1]
    assert Results.read(found.write(tmp_path)).rows == found.rows


def test_ndcg_is_that_of_the_evaluation(tmp_path: Path) -> None:
    """By documents: ten passages are of fewer; without those that the questions are."""
    rng = np.random.default_rng(0)
    texts = [
        " ".join("x" * n for n in rng.integers(1, 17, rng.integers(20, 90))) for _ in range(60)
    ]
    config = SegmentConfig(prefix=3, shortlist=12, rotation="identity", storage="float32")  # type: ignore[arg-type]
    cut = PassageConfig(tokens=10, overlap=0)
    questions = {str(i): " ".join(texts[i].split()[:6]) for i in range(0, 60, 5)}
    qrels = {key: {str((int(key) + i) % 60): 1 for i in range(1, 25)} for key in questions}
    with SearchEngine.create(tmp_path / "c", Words(), config, passages=cut) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(texts[:40])])
        engine.add([{"_id": str(i + 40), "text": text} for i, text in enumerate(texts[40:])])
        judged = task(engine, questions, qrels)
        assert judged.exclude_self
        exact, configured, hybrid = measure(engine, judged, modes=["vector", "hybrid"])
        found = {}
        for mode in ("vector", "hybrid"):
            engine.set_default(mode)
            with collection_dataset(engine, questions, qrels) as subject:
                assert subject.notes == judged.notes and subject.mode == mode
                grid = Grid.fitting(subject.rows, 16, 10, prefixes=(8,), shortlists=(10,))
                bench_settings = Settings(grid, repeats=1)
                found[mode] = Bench(subject, bench_settings, silent).run()
    by_vector, by_both = found["vector"], found["hybrid"]
    assert by_vector.rows[0].ndcg == pytest.approx(exact.ndcg_10) != 1
    now = by_vector.named("flat fp16 3 → 12, not rotated")
    assert now and now.name == by_vector.now and now.ndcg == pytest.approx(configured.ndcg_10)
    assert by_vector.rows[0].ndcg_loss == (0, 0)
    now = by_both.named(by_both.now)
    assert now and now.ndcg == pytest.approx(hybrid.ndcg_10) != configured.ndcg_10
    assert (by_both.subject["default_mode"], by_both.subject["mode"]) == ("hybrid", "hybrid")


def test_every_point_can_be_applied(tmp_path: Path) -> None:
    """The collection then has its config, and another bench finds it there."""
    rng = np.random.default_rng(0)
    texts = [" ".join("x" * n for n in rng.integers(1, 17, 12)) for _ in range(1300)]
    questions = {str(i): texts[i][:40] for i in range(0, 200, 10)}
    grid: dict[str, Any] = {"prefixes": (4, 8), "shortlists": (40,), "funnels": [((8, 20),)]}
    path = tmp_path / "c"
    with SearchEngine.create(path, WordLengths(), SegmentConfig(prefix=4, shortlist=30)) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(texts)])
        engine.delete(["5", "1299"])

        def bench(number: int) -> Results:
            with collection_dataset(engine, questions) as subject:
                settings = Settings(
                    Grid.fitting(subject.rows, 16, 10, **grid, baselines=not number), 1
                )
                return Bench(subject, settings, silent).run()

        first = bench(0)
        assert first.now == "flat fp16 4 → 30"
        names = [
            "hnsw int8 8 → 40",
            "hnsw int8 8 → 40, not rotated",
            "ivf int8 4 → 40 → 8: 20",
            "hnsw fp16 16, ef 64",
            "exact",
            "flat fp16 4 → 30",
        ]
        scores = [hit.score for hit in engine.search(texts[7], mode="vector", exact=True)]
        for number, name in enumerate(names, start=1):
            point = first.named(name)
            assert point is not None, (name, [row.name for row in first.rows])
            engine.apply(point.config.as_dict() if number == 1 else point.config)
            assert engine.stats().index_config == point.config.as_dict()
            (segment,) = engine.collection.segments.values()  # type: ignore[attr-defined]
            assert segment.config == point.config and segment.rows == 1298
            hits = engine.search(texts[7], mode="vector", exact=True)
            assert [hit.score for hit in hits] == pytest.approx(scores, abs=2e-3)  # float16
            again = bench(number)
            assert again.now == name, name
            assert len({row.name for row in again.rows}) == len(again.rows)
        assert engine.stats().tuning is None
        with pytest.raises(SegmentConfigError, match="prefix 17 is wider than the vectors"):
            engine.apply(SegmentConfig(prefix=17))
        assert engine.stats().index_config == point.config.as_dict()
    with SearchEngine.open(path, WordLengths()) as engine:
        assert len(engine) == 1298 and engine.verify() == 0


def test_subjects_that_cannot_be(engine: SearchEngine, tmp_path: Path) -> None:
    with (
        pytest.raises(CorpusError, match="no question has a judgement"),
        collection_dataset(engine, {"q": "a"}, {"other": {"b5": 1}}),
    ):
        pass
    with (
        SearchEngine.create(tmp_path / "empty", WordLengths()) as empty,
        pytest.raises(QueryError, match="is empty"),
        collection_dataset(empty, {"q": "a"}),
    ):
        pass


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (None, "no such file"),
        (b"no array", "cannot be read as a .npy file"),
        (np.zeros(3, np.float32), "floating-point rows"),
        (np.zeros((3, 2), np.int64), "floating-point rows"),
        (np.zeros((0, 2), np.float32), "contains no rows"),
        (np.array([[{}]], object), "cannot be read as a .npy file"),
        (np.ones((5, 2), np.float32), "10 or more, but .* has 5"),
        (np.full((50, 2), np.nan, np.float32), "not finite|NaN"),
        (np.zeros((50, 2), np.float32), "zero"),
    ],
)
def test_files_of_vectors_that_cannot_be(tmp_path: Path, array: Any, message: str) -> None:
    path = tmp_path / "rows.npy"
    if isinstance(array, bytes):
        path.write_bytes(array)
    elif array is not None:
        np.save(path, array, allow_pickle=True)
    with (
        pytest.raises(ValueError, match=message),
        vectors_dataset(path, None, SegmentConfig(prefix=2), tmp_path),
    ):
        pass


@pytest.mark.parametrize("bad", [0, 9, 10, 11, 4999, 17_001])
def test_a_bad_row_is_named_by_its_number_in_the_file(tmp_path: Path, bad: int) -> None:
    rows = random_rows(17_100, 3)
    rows[bad] = np.nan
    np.save(tmp_path / "bad.npy", rows)
    np.save(tmp_path / "good.npy", random_rows(40, 4))
    for files in (("bad.npy", None), ("bad.npy", "good.npy"), ("good.npy", "bad.npy")):
        vectors, queries = (None if name is None else tmp_path / name for name in files)
        assert vectors is not None
        is_query = files[1] != "bad.npy" or bad in evenly(len(rows), MAX_QUERIES)
        if is_query:
            with (
                pytest.raises(QueryError, match=rf"bad\.npy: row {bad} holds NaN"),
                vectors_dataset(vectors, queries, SegmentConfig(prefix=2), tmp_path),
            ):
                pass


def test_queries_of_another_width(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((50, 4), np.float32))
    np.save(tmp_path / "queries.npy", np.ones((5, 3), np.float32))
    with (
        pytest.raises(QueryError, match=r"got 3 in .* and 4 in"),
        vectors_dataset(tmp_path / "rows.npy", tmp_path / "queries.npy", SegmentConfig(), tmp_path),
    ):
        pass


def test_rows_that_are_queries_are_not_searched(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", random_rows(100, 3).astype(np.float16))
    with vectors_dataset(tmp_path / "rows.npy", None, SegmentConfig(prefix=8), tmp_path) as subject:
        assert subject.rows == 90 and len(subject.queries) == 10
        (segment,) = subject.segments
        assert (segment.exact(subject.queries, 1).scores < 0.999).all()


@given(
    st.integers(1, 3000),
    st.integers(2, 600),
    st.integers(1, 50),
)
def test_a_grid_always_fits(rows: int, dim: int, k: int) -> None:
    grid = Grid.fitting(rows, dim, k)
    assert 1 <= grid.k <= rows and all(p <= dim for p in grid.prefixes)
    assert all(grid.k <= size <= rows for size in grid.shortlists)
    recipes = list(grid.cascades(SegmentConfig(), rows))
    assert all(isinstance(config, SegmentConfig) for _, _, config in recipes)
    assert len(recipes) >= len(grid.prefixes) * len(grid.shortlists)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefixes": (65,)}, "a prefix must be between 1 and 64"),
        ({"shortlists": (5,)}, "a shortlist must be between 10 and 2000"),
        ({"shortlists": (2001,)}, "a shortlist must be between"),
        ({"funnels": [((65, 20),)]}, "a funnel's width must be between 1 and 64"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Grid.fitting(2000, 64, **options)
