"""What is left of a tuning's statement: lowered by what changes, withdrawn by what is rewritten."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import WordLengths, use_small_grid

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.tuning.tune import Goal
from searchengine.upkeep.stats import Guarantee

pytestmark = pytest.mark.usefixtures("small_grid")

WIDTH = 48
GOAL = Goal(recall=0.8, confidence=0.9)


def texts(count: int, seed: int) -> list[str]:
    """Fifteen words each, of any length up to 48 letters."""
    lengths = np.random.default_rng(seed).integers(1, WIDTH + 1, (count, 15))
    return [" ".join("x" * n for n in line) for line in lengths]


def documents(count: int, seed: int) -> list[dict[str, str]]:
    return [{"_id": f"{seed}-{i}", "text": text} for i, text in enumerate(texts(count, seed))]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned collection of 1,200 documents, to copy."""
    path = tmp_path_factory.mktemp("tuned") / "c"
    config = SegmentConfig(prefix=4, shortlist=20)
    with (
        pytest.MonkeyPatch.context() as patch,
        SearchEngine.create(path, WordLengths(WIDTH), config) as engine,
    ):
        use_small_grid(patch)
        engine.add(documents(1200, 1))
        engine.tune(texts(150, 9), GOAL)
    return path


@pytest.fixture
def engine(tuned: Path, tmp_path: Path) -> Iterator[SearchEngine]:
    """A tuned collection of 1,200 documents."""
    path = shutil.copytree(tuned, tmp_path / "c")
    with SearchEngine.open(path, WordLengths(WIDTH)) as engine:
        yield engine


def guarantee(engine: SearchEngine) -> Guarantee:
    found = engine.stats().guarantee
    assert found is not None
    return found


def test_it_stands_while_nothing_that_is_searched_has_changed(engine: SearchEngine) -> None:
    engine.update({"1-3": {"year": 2020}})
    assert guarantee(engine) == Guarantee(0.8, 0, 0, commit=2)
    tuning = engine.stats().described()["tuning"]
    assert tuning.startswith("recall@10 above 0.8 with 90 % confidence") and "now" not in tuning


def test_rows_added_and_deleted_lower_it_by_their_shares(engine: SearchEngine) -> None:
    engine.add(documents(30, 2))
    added = guarantee(engine)
    assert added.recall == pytest.approx(0.8 - 30 / 1230)
    engine.delete([f"1-{i}" for i in range(12)])
    both = guarantee(engine)
    assert (both.added, both.deleted, both.commit) == (30, 12, 2)
    assert both.recall == pytest.approx(0.8 - 30 / 1218 - 12 / 1200)
    tuning = engine.stats().described()["tuning"]
    assert tuning.endswith("; now above 0.7654: 30 rows were added and 12 deleted since commit 2")
    engine.delete([f"2-{i}" for i in range(30)])  # what came and went is not counted
    assert guarantee(engine).recall == pytest.approx(0.8 - 12 / 1200)


def test_half_of_the_documents_replaced_withdraw_it(engine: SearchEngine) -> None:
    """As many rows as before, and other ones."""
    engine.add([{"_id": f"1-{i}", "text": text} for i, text in enumerate(texts(599, 3))])
    found = guarantee(engine)
    assert (found.recall, found.added, found.deleted) == (None, 599, 599)
    assert engine.stats().passages == 1200
    assert found.reason == (
        "599 rows were added and 599 deleted since commit 2, by which 99.8% may be missed, and the "
        "target allows 0.2"
    )
    tuning = engine.stats().described()["tuning"]
    assert tuning.startswith(f"guarantee withdrawn: {found.reason}; tune again (it was recall@10")


def test_optimize_keeps_what_it_writes_again_byte_for_byte(engine: SearchEngine) -> None:
    engine.optimize()
    assert guarantee(engine).recall == 0.8


def test_a_segment_that_is_written_again_without_dead_rows_withdraws_it(
    engine: SearchEngine,
) -> None:
    engine.delete([f"1-{i}" for i in range(700)])
    found = guarantee(engine)
    reason = "1 of the 1 segments measured were merged, optimized or repaired since commit 2"
    assert found == Guarantee(None, commit=2, reason=reason)
    done = CliRunner().invoke(cli, ["info", str(engine.collection.path), "--json"])
    assert json.loads(done.stdout)["guarantee"]["reason"] == reason
    done = CliRunner().invoke(cli, ["info", str(engine.collection.path)])
    assert f"guarantee withdrawn: {reason}; tune again" in done.stdout
    engine.tune(texts(150, 9), GOAL)
    assert guarantee(engine).recall == 0.8


def test_a_copy_keeps_it(engine: SearchEngine, tmp_path: Path) -> None:
    engine.backup(tmp_path / "copy")
    with SearchEngine.open(tmp_path / "copy", WordLengths(WIDTH)) as copy:
        assert guarantee(copy) == guarantee(engine) == Guarantee(0.8, 0, 0, commit=2)


def test_a_repaired_segment_withdraws_it_with_the_reason(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths(WIDTH), SegmentConfig(prefix=4)) as engine:
        engine.add(documents(1200, 1))
        engine.tune(texts(150, 9), GOAL)
    for name, recall in (("coarse", 0.8), ("vectors", None)):  # made again from the vectors, or not
        (path,) = (tmp_path / "c" / "segments").glob(f"*/{name}.faiss")
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        SearchEngine.repair(tmp_path / "c", WordLengths(WIDTH))
        with SearchEngine.open(tmp_path / "c", WordLengths(WIDTH)) as engine:
            left = guarantee(engine)
            assert left.recall == recall
    assert "1 of the 1 segments measured were merged, optimized or repaired" in left.reason
