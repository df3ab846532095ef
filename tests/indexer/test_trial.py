"""Trial views: what is measured before anything is written, on the CPU and beside a GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.segment import Segment, SegmentConfig

DIM = 24
ROWS = unit_rows(np.random.default_rng(1).standard_normal((2000, DIM)))
QUERIES = unit_rows(np.random.default_rng(2).standard_normal((20, DIM)))
EVEN = np.arange(0, 2000, 2)


def config(structure: str, **settings: Any) -> SegmentConfig:
    return SegmentConfig.from_dict({"prefix": 8, "structure": structure, **settings})


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment.build(tmp_path / "s", ROWS, config("flat"))


@pytest.mark.parametrize("structure", ["flat", "hnsw", "ivf"])
@pytest.mark.parametrize("shortlist", [1000, 1500, 2000, 5000])
def test_a_shortlist_of_all_rows_scores_those_of_the_trial_alone(
    segment: Segment, structure: str, shortlist: int
) -> None:
    view = segment.over(config(structure, shortlist=shortlist), EVEN)
    truth = segment.exact(QUERIES, 10, EVEN)
    for found in (view.search(QUERIES, 10), view.exact(QUERIES, 10)):
        np.testing.assert_array_equal(found.rows, truth.rows)
    every = view.shortlist(unit_rows(QUERIES), shortlist)
    assert set(every[0].tolist()) - {-1} == {*EVEN.tolist()}


def test_a_view_of_a_trial_and_a_filter_stay_within_its_rows(segment: Segment) -> None:
    trial = segment.over(config("flat", shortlist=2000), EVEN)
    for view in (trial, trial.over(config("hnsw", shortlist=2000))):
        assert (view.search(QUERIES, 10).rows % 2 == 0).all()
    for allowed in (np.arange(1990), np.arange(900), np.arange(1, 2000, 2)):
        both = np.intersect1d(allowed, EVEN)
        found = trial.search(QUERIES, 10, shortlist=5, allowed=allowed).rows
        assert np.isin(found, [-1, *both]).all()
    exact = trial.exact(QUERIES, 10, np.arange(1990)).rows
    np.testing.assert_array_equal(exact, segment.exact(QUERIES, 10, EVEN[:995]).rows)
