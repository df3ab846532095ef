"""Tuning a collection: what it changes, what it leaves, and what happens when it is cut short."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder.store import Store
from searchengine.errors import CollectionBusy, CollectionError, QueryError
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.errors import SegmentConfigError, TuneError
from searchengine.indexer.tuning.tune import Goal

# Which config is chosen does not matter here: test_tune.py has the whole grid.
pytestmark = pytest.mark.usefixtures("few_timings")

WIDTH = 48
GOAL = Goal(recall=0.8, confidence=0.9)
CONFIG = SegmentConfig(prefix=4, shortlist=20)


def texts(count: int, seed: int) -> list[str]:
    """Fifteen words each, of any length up to 48 letters."""
    lengths = np.random.default_rng(seed).integers(1, WIDTH + 1, (count, 15))
    return [" ".join("x" * n for n in line) for line in lengths]


def documents(count: int, seed: int) -> list[dict[str, Any]]:
    numbered = enumerate(texts(count, seed))
    return [{"_id": f"{seed}-{i}", "text": text, "n": i} for i, text in numbered]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of two segments, one of them small; to copy."""
    path = tmp_path_factory.mktemp("source") / "words.index"
    with SearchEngine.create(path, WordLengths(WIDTH), CONFIG) as engine:
        engine.add(documents(1200, 1))
        engine.add(documents(100, 2))
    return path


@pytest.fixture
def path(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "words.index"))


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.open(path, WordLengths(WIDTH)) as engine:
        yield engine


def truth(engine: SearchEngine, question: str, k: int = 10) -> list[str]:
    return [hit.key for hit in engine.search(question, k, exact=True)]


def share_found(engine: SearchEngine, questions: list[str]) -> float:
    found = engine.search_batch(questions, mode="vector")
    exact = engine.search_batch(questions, exact=True)
    return float(np.mean([len({*f} & {*e}) / 10 for f, e in zip(
        [[hit.key for hit in hits] for hits in found],
        [[hit.key for hit in hits] for hits in exact],
        strict=True,
    )]))  # fmt: skip


def test_a_tuned_collection_meets_its_target(engine: SearchEngine, path: Path) -> None:
    questions = texts(300, 9)
    before = truth(engine, questions[0])
    assert share_found(engine, questions) < 0.8
    old = (path / "segments" / "000001" / "vectors.faiss").stat().st_ino
    tuning = engine.tune(questions, GOAL)
    assert (tuning.rows, tuning.queries, tuning.source) == (1300, 300, "given")
    assert tuning.recall > 0.8 and share_found(engine, texts(300, 10)) > 0.8
    assert truth(engine, questions[0]) == before
    assert [(row.id, row.base, row.rows) for row in engine.collection.segments] == [
        (3, 0, 1200),
        (4, 1200, 100),
    ]
    for segment in engine.collection.segments.values():
        assert segment.config == tuning.config.fitting(segment.rows, segment.dim)
        assert segment.manifest.tuning == json.loads(json.dumps(tuning.as_dict()))
    engine.verify()
    # The vectors are the same files, and the folders they were in are gone.
    assert (path / "segments" / "000003" / "vectors.faiss").stat().st_ino == old
    assert sorted(f.name for f in (path / "segments").iterdir()) == ["000003", "000004"]
    everything = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    assert engine.stats().bytes == everything
    engine.optimize()
    (merged,) = engine.collection.segments.values()
    assert merged.manifest.tuning == segment.manifest.tuning


def state(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file but SQLite's log."""
    files = (
        each for each in path.rglob("*") if each.is_file() and "documents.db-" not in each.name
    )
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in files}


def test_a_refused_tuning_changes_nothing(engine: SearchEngine, path: Path) -> None:
    """Not even what was deleted is cleared away; 1,298 rows cannot spare what 0.99 needs."""
    engine.delete(["1-3", "2-5"])
    before, stats = state(path), engine.stats()
    with pytest.raises(QueryError, match=r"needs 32.. passages, got 1298: give 804 queries"):
        engine.tune(goal=Goal(0.99))
    for questions, goal, message in (
        (texts(150, 9), Goal(), r"at least 156 queries .* got 150"),
        ([], GOAL, "got 0; give more queries"),
        (texts(150, 9), replace(GOAL, max_ram=1), "no config for 1298 rows fits"),
    ):
        with pytest.raises(TuneError, match=message):
            engine.tune(questions, goal)
    assert state(path) == before and engine.stats() == stats


@pytest.mark.parametrize("questions", [None, texts(150, 9)], ids=["documents", "questions"])
def test_deleted_rows_are_neither_measured_nor_built(
    engine: SearchEngine, questions: list[str] | None
) -> None:
    gone = [f"1-{i}" for i in range(0, 900, 3)] + [f"2-{i}" for i in range(100)]
    expected = truth(engine, texts(1, 7)[0], 500)
    engine.delete(gone)
    tuning = engine.tune(questions, GOAL)
    assert (tuning.queries, tuning.rows) == (150 if questions else 100, 900)
    (segment,) = engine.collection.segments.values()
    assert segment.rows == 900 and engine.stats().tombstones == 0
    assert segment.manifest.tuning == json.loads(json.dumps(tuning.as_dict()))
    kept = [key for key in expected if key not in gone]
    assert truth(engine, texts(1, 7)[0], 100) == kept[:100]
    assert share_found(engine, texts(300, 10)) > 0.8
    engine.verify()


def test_a_config_is_applied_to_what_is_left_and_storage_stays(engine: SearchEngine) -> None:
    engine.delete(["1-3", *(f"2-{i}" for i in range(100))])
    question = texts(1, 7)[0]
    exact, tuned = truth(engine, question, 50), engine.tune(texts(150, 9), GOAL)
    engine.apply({"prefix": 8, "shortlist": 30, "storage": "float32"})
    stats = engine.stats()
    assert (stats.passages, stats.tombstones, stats.tuning) == (tuned.rows, 0, None)
    for name, value in (("prefix", 8), ("shortlist", 30), ("storage", "float16")):
        assert stats.index_config[name] == value
    assert truth(engine, question, 50) == exact
    with pytest.raises(SegmentConfigError, match=r"prefix 49 is wider than the vectors \(48\)"):
        engine.apply(SegmentConfig(prefix=49))
    assert engine.stats().index_config == stats.index_config
    engine.verify()


def test_a_reader_goes_on_and_sees_the_recipe_when_it_refreshes(
    engine: SearchEngine, path: Path
) -> None:
    with SearchEngine.open(path, WordLengths(WIDTH)) as reader:
        question = texts(1, 7)[0]
        before, exact = reader.search(question), truth(reader, question)
        held = reader.collection.segments
        tuning = engine.tune(texts(150, 9), GOAL)
        engine.add(documents(1, 4))  # removes the folders that the reader has open
        assert not (path / "segments" / "000001").exists()
        assert reader.search(question) == before and truth(reader, question) == exact
        assert reader.stats().index_config["prefix"] == 4
        reader.verify()  # passes over what is gone
        reader.refresh()
        assert reader.stats().index_config == tuning.config.as_dict()
        assert [row.id for row in reader.collection.segments] == [3, 4, 5]
        reader.verify()
        # What was let go is not closed under those who search it still.
        vectors = WordLengths(WIDTH).encode([question])
        assert all(segment.search(vectors, 3).rows.size == 3 for segment in held.values())


def test_a_collection_changed_meanwhile_is_not_overwritten(
    engine: SearchEngine, path: Path
) -> None:
    """Another is writing just then, or adds while this one measures."""
    with SearchEngine.open(path, WordLengths(WIDTH)) as other:
        with Store(path / "documents.db") as store, store.transaction():
            with pytest.raises(CollectionBusy):
                engine.tune(texts(150, 9), GOAL)
        assert engine.stats().index_config == CONFIG.as_dict()
        with pytest.raises(CollectionError, match=r"changed by another process.*tune it again"):
            engine.tune(texts(150, 9), GOAL, on_step=lambda _: other.add(documents(1, 4)))
        committed = other.collection.segments
        engine.refresh()
        assert list(engine.collection.segments) == list(committed)
