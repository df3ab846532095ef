"""Batches: what each update takes, found by its number, and prepared one update ahead."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import ConfigError, DataError, DataWarning
from searchengine.trainer.training.batches import BatchPlan, load
from searchengine.trainer.training.examples import Batch, Example, Examples, Kind
from searchengine.trainer.training.train_config import TrainConfig


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"train": ("x",), "out": "y", "objective": "similarity", **changes})


def epoch_batches(data: Examples, size: int, seed: int = 0, epoch: int = 0) -> list[Batch]:
    plan = BatchPlan(settings(batch_size=size, seed=seed), data)
    steps = range(epoch * plan.per_epoch, (epoch + 1) * plan.per_epoch)
    return [batch for step in steps for batch in plan.at(step)]


def pairs(count: int) -> Examples:
    return Examples((Kind.PAIR, (f"a {i}", f"b {i}")) for i in range(count))


def example(kind: Kind, number: int, text: int) -> Example:
    """An example whose anchor names its number; texts of one kind repeat."""
    width = dict(zip(Kind, (2, 3, 1, 1, 2), strict=True))[kind]
    texts = [f"{kind} {number}", *(f"{kind} {text} {i}" for i in range(1, width))]
    judged = {Kind.LABELLED: [f"label {text}"], Kind.SCORED: ["0.5"]}
    return kind, (*texts, *judged.get(kind, []))


@given(
    st.dictionaries(st.sampled_from(Kind), st.integers(2, 30), min_size=1),
    st.integers(2, 8),
    st.integers(0, 5),
    st.integers(1, 30),
)
def test_an_epoch_has_every_example_once(
    kinds: dict[Kind, int], size: int, epoch: int, texts: int
) -> None:
    rows = [example(kind, i, i % texts) for kind, count in kinds.items() for i in range(count)]
    data = Examples(rows)
    found = epoch_batches(data, size, epoch=epoch)
    plan = BatchPlan(settings(batch_size=size), data)
    last = plan.at((epoch + 1) * plan.per_epoch - 1)
    assert last == found[-1:]  # without those before it
    known = {texts: kind for kind, texts in rows}
    drawn = [frozenset(row.anchor for row in batch) for batch in found]
    assert (
        drawn
        != [
            frozenset(row.anchor for row in batch)
            for batch in epoch_batches(data, size, 0, epoch + 1)
        ]
        or len(drawn) < 3
    )
    for batch in found:
        kind = next(kind for kind in Kind if batch[0].anchor.startswith(f"{kind} "))
        assert 0 < len(batch) <= size
        assert all(row.anchor.startswith(f"{kind} ") for row in batch)
        assert {bool(row.negatives) for row in batch} == {kind is Kind.TRIPLET}
    # Only a row alone in its batch may be left out: there is nothing to tell it apart from.
    lone = sum(n % size == 1 for kind, n in kinds.items() if kind is not Kind.TRIPLET)
    assert sum(map(len, found)) == len(known) - lone
    anchors = [row.anchor for batch in found for row in batch]
    assert len(anchors) == len(set(anchors))


def test_seeds_and_epochs_change_the_order() -> None:
    data = pairs(20)
    first = epoch_batches(data, 4)
    assert first == epoch_batches(data, 4) != epoch_batches(data, 4, epoch=1)
    assert first != epoch_batches(data, 4, seed=1)


def test_labelled_texts_meet_another_of_their_label() -> None:
    data = Examples(example(Kind.LABELLED, i, i % 20) for i in range(80))
    for batch in epoch_batches(data, 8)[:-1]:
        labels = [row.label for row in batch]
        assert all(labels.count(label) > 1 for label in labels) and len(set(labels)) > 1


@pytest.mark.parametrize("size", [4, 3000])
def test_every_batch_is_found_without_those_before_it(size: int) -> None:
    """Also in the second block of rows, and for large batches."""
    data = pairs(20_000)
    order = epoch_batches(data, size)
    plan = BatchPlan(settings(batch_size=size), data)
    for step in (plan.per_epoch - 1, 0, plan.per_epoch // 2):
        assert plan.at(step) == [order[step]]
    anchors = [row.anchor for batch in order for row in batch]
    assert len(set(anchors)) == len(anchors) == 20_000 and anchors != sorted(anchors)


def test_plan_by_hand() -> None:
    config = settings(learning_rate=2e-3, batch_size=4, accumulation=2, max_steps=10)
    plan = BatchPlan(config, pairs(20))
    assert plan.per_epoch == 2 and plan.steps == 10  # 5 batches, the fifth fills no update
    rates = [plan.learning_rate(step) / config.learning_rate for step in range(10)]
    assert rates == pytest.approx([1, 1, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9])
    steps = [batch for step in (0, 1) for batch in plan.at(step)]
    assert steps == epoch_batches(pairs(20), 4)[:4]


@pytest.mark.parametrize(
    "rows, accumulation",
    [([Kind.PAIR], 1), ([Kind.PAIR, Kind.SENTENCE], 1), ([Kind.PAIR] * 9, 3)],
)
def test_too_few_examples_are_refused(rows: list[Kind], accumulation: int) -> None:
    data = Examples(example(kind, i, i) for i, kind in enumerate(rows))
    with pytest.raises(ConfigError, match=f"^{len(rows)} examples give . batches, expected"):
        BatchPlan(settings(batch_size=8, accumulation=accumulation), data)


def test_pairs_that_fill_no_batch_are_named() -> None:
    with pytest.warns(DataWarning, match="5 examples fill no batch of 8: .* 4 others at most"):
        BatchPlan(settings(batch_size=8, objective="contrastive"), pairs(5))


class Watched:
    """An objective and passes that record the thread, and fail at the text of `fails`."""

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
        return ["view"]

    def tokens(self, view: Any) -> Any:
        return f"tokens of {view}"


@pytest.mark.parametrize("first", [0, 2])
def test_the_next_update_is_prepared_while_one_is_computed(first: int) -> None:
    plan, watched = BatchPlan(settings(batch_size=4, max_steps=5), pairs(20)), Watched()
    for step, (loaded,) in enumerate(load(plan, watched, watched, first), first):  # type: ignore[arg-type]
        assert [loaded.rows] == plan.at(step) and loaded.views == ["tokens of view"]
        assert watched.twice.wait(30)  # without being asked for it
    assert step == 4 and len(watched.threads) == 5 - first
    assert threading.main_thread().name not in watched.threads


def test_an_error_of_the_thread_is_raised_where_the_batch_is_needed() -> None:
    plan = BatchPlan(settings(batch_size=4, max_steps=5), pairs(20))
    ((fails, *_),) = plan.at(1)
    watched = Watched(fails.anchor)
    loading = load(plan, watched, watched)  # type: ignore[arg-type]
    next(loading)
    assert watched.twice.wait(30)
    with pytest.raises(DataError, match="cannot read a"):
        next(loading)
    assert not [t for t in threading.enumerate() if t.name.startswith("examples")]
