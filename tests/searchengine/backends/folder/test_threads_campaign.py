"""A few seeds of the campaign of threads, and what it must notice."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from threads_campaign import POINTS, SABOTAGES, run

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")

MEMORY = Path("/dev/shm")
FOLDER = MEMORY if MEMORY.is_dir() else None


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Merges of engines whose encoder another engine has replaced fail, and say so."""
    logger = logging.getLogger("searchengine")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("seeds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_threads_of_one_process_keep_vectors_ids_and_answers_right(seeds: int) -> None:
    hits: set[str] = set()
    for seed in range(seeds):
        campaign, problems = run(seed, 300, folder=FOLDER)
        again = f"python tests/threads_campaign.py --seeds {seed}:{seed + 1} --steps 300"
        assert problems == [], again
        assert campaign.counts["steps"] >= 300 and campaign.counts["looks"] > 10
        hits |= {name for name, count in campaign.stepper.hits.items() if count}
    if seeds > 2:
        missed = {f"{owner.__name__}.{name}" for owner, name in POINTS} - hits
        assert not missed


def test_a_seed_repeats_its_interleaving() -> None:
    first, second = (run(3, 120, folder=FOLDER)[0] for _ in range(2))
    assert list(first.trail) == list(second.trail)
    assert first.counts == second.counts and first.stepper.hits == second.stepper.hits


@pytest.mark.parametrize(
    ("sabotage", "kind"),
    [("maker", "vector"), ("reader", "vector"), ("ids", "id"), ("stamps", "lost")],
)
def test_an_undone_mend_is_noticed_and_its_seed_repeats_it(sabotage: str, kind: str) -> None:
    assert sabotage in SABOTAGES
    for seed in range(30):
        _, problems = run(seed, 500, sabotage, FOLDER)
        if problems:
            break
    (problem,) = problems
    assert problem["kind"] == kind
    assert run(seed, 500, sabotage, FOLDER)[1] == [problem]
