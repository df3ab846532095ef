"""Batches: found by their number, and prepared in a second thread an update ahead."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.training import batches
from searchengine.trainer.training.batches import BatchLoader, BatchPlan
from searchengine.trainer.training.examples import Examples
from searchengine.trainer.training.rows import Batch, Kind
from searchengine.trainer.training.train_config import TrainConfig


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"train": ["x.tsv"], "out": "y", **changes})


def pairs(count: int, name: str = "a") -> Examples:
    return Examples((Kind.PAIR, (f"{name} {i}", f"positive {name} {i}")) for i in range(count))


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
    return BatchPlan(run, pairs(20))


def examples_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("examples")]


def test_the_next_update_is_prepared_while_one_is_computed_and_none_after_the_last() -> None:
    plan, objective = plan_of(3), Watched()
    with BatchLoader(plan, objective, SimpleNamespace()) as ahead:  # type: ignore[arg-type]
        for step in range(3):
            (prepared,) = ahead.at(step)
            assert [prepared.rows] == plan_of(3).at(step)
            assert objective.twice.wait(30)  # without being asked for it
    assert len(objective.threads) == 3 and threading.main_thread().name not in objective.threads
    assert examples_threads() == []


def test_an_error_of_the_thread_is_raised_where_the_batch_is_needed() -> None:
    plan = plan_of(5)
    (rows,) = plan_of(5).at(1)
    objective = Watched(rows[0].anchor)
    with pytest.raises(DataError, match="cannot read a"):
        with BatchLoader(plan, objective, SimpleNamespace()) as ahead:  # type: ignore[arg-type]
            ahead.at(0)
            assert objective.twice.wait(30)
            ahead.at(1)
    assert examples_threads() == []


def test_a_batch_needs_two_examples_of_a_kind() -> None:
    run = settings(batch_size=4)
    lone = Examples([(Kind.PAIR, ("a", "b")), (Kind.SENTENCE, ("c",))])
    with pytest.raises(ConfigError, match=r"^examples to train on: 2; expected 2 or more of one k"):
        BatchPlan(run, lone)


@pytest.mark.parametrize("batch", [4, 3000])
def test_every_batch_is_found_without_those_before_it(batch: int) -> None:
    """Also in the second block of rows, and for large batches."""
    run = settings(batch_size=batch)
    data = pairs(20_000)
    plan = BatchPlan(run, data)
    order = [plan.at(step) for step in range(plan.per_epoch)]
    for step in (plan.per_epoch - 1, 0, plan.per_epoch // 2):
        assert BatchPlan(run, data).at(step) == order[step]
    anchors = [row.anchor for found in order for rows in found for row in rows]
    assert len(set(anchors)) == len(anchors) == 20_000
    assert anchors != sorted(anchors)


def test_fewer_long_rows_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their batches are found by number as well."""
    monkeypatch.setattr(batches, "BLOCK_BYTES", 40_000)
    run = settings(batch_size=4)
    rows = [(Kind.PAIR, (f"{i} {'long ' * 200}", f"positive {i}")) for i in range(200)]
    data = Examples(rows)
    plan = BatchPlan(run, data)
    order = [plan.at(step) for step in range(plan.per_epoch)]
    (stream,) = plan._streams
    assert stream._block_batches == 9  # of 4 rows of 1 kB
    assert BatchPlan(run, data).at(30) == order[30]
    assert len({row.anchor for found in order for batch in found for row in batch}) == 200
