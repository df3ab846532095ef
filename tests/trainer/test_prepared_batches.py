"""Batches that a second thread prepares while the update before them is computed."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from searchengine.trainer.errors import DataError
from searchengine.trainer.training.batches import BatchLoader, BatchPlan
from searchengine.trainer.training.preparation import DataSet
from searchengine.trainer.training.rows import Batch
from tests.trainer.test_data_sets import pairs, settings


class Watched:
    """An objective that says which thread asks it, and fails at the text of `fails`."""

    def __init__(self, fails: str = ""):
        self.fails = fails
        self.threads: list[str] = []
        self.twice = threading.Event()

    def views(self, rows: Batch) -> list[Any]:
        self.threads.append(threading.current_thread().name)
        if len(self.threads) == 2:
            self.twice.set()
        if self.fails in {row.anchor for row in rows}:
            raise DataError(f"cannot read {self.fails}")
        return []


def plan_of(steps: int) -> BatchPlan:
    run = settings(batch_size=4, max_steps=steps)
    return BatchPlan(run, [DataSet(run, pairs(20), loss_weight=2.0)])


def examples_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("examples")]


def test_the_next_update_is_prepared_while_one_is_computed_and_none_after_the_last() -> None:
    plan, objective = plan_of(3), Watched()
    with BatchLoader(plan, [objective], SimpleNamespace()) as ahead:  # type: ignore[arg-type, list-item]
        for step in range(3):
            (prepared,) = ahead.at(step)
            assert [(0, prepared.rows)] == plan_of(3).at(step) and prepared.weight == 2.0
            assert objective.twice.wait(30)  # without being asked for it
    assert len(objective.threads) == 3 and threading.main_thread().name not in objective.threads
    assert examples_threads() == []


def test_an_error_of_the_thread_is_raised_where_the_batch_is_needed() -> None:
    plan = plan_of(5)
    ((_, rows),) = plan_of(5).at(1)
    objective = Watched(rows[0].anchor)
    with pytest.raises(DataError, match="cannot read a"):
        with BatchLoader(plan, [objective], SimpleNamespace()) as ahead:  # type: ignore[arg-type, list-item]
            ahead.at(0)
            assert objective.twice.wait(30)
            ahead.at(1)
    assert examples_threads() == []
