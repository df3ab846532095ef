"""Batches: what each update takes, found by its number, and at what learning rate."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.batches import BatchPlan, augmented
from searchengine.trainer.training.examples import Batch, Row
from searchengine.trainer.training.train_config import Augment, TrainConfig


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"train": ("x",), "out": "y", "objective": "similarity", **changes})


def epoch_batches(rows: Batch, size: int, epoch: int = 0, **changes: Any) -> list[Batch]:
    plan = BatchPlan(settings(batch_size=size, **changes), rows)
    steps = range(epoch * plan.per_epoch, (epoch + 1) * plan.per_epoch)
    return [batch for step in steps for batch in plan.at(step)]


def pairs(count: int) -> list[Row]:
    return [Row(f"a {i}", f"b {i}") for i in range(count)]


@given(st.integers(2, 60), st.integers(2, 8), st.integers(0, 5))
def test_an_epoch_has_every_example_once(count: int, size: int, epoch: int) -> None:
    rows = pairs(count)
    found = epoch_batches(rows, size, epoch)
    plan = BatchPlan(settings(batch_size=size), rows)
    last = plan.at((epoch + 1) * plan.per_epoch - 1)
    assert last == found[-1:]  # without those before it
    assert all(1 < len(batch) <= size for batch in found)
    taken = [row for batch in found for row in batch]
    # Only a row alone in its batch may be left out: there is nothing to tell it apart from.
    assert len(taken) == len({*taken} & {*rows}) == count - (count % size == 1)


def test_seeds_and_epochs_change_the_order() -> None:
    first = epoch_batches(pairs(20), 4)
    assert first == epoch_batches(pairs(20), 4) != epoch_batches(pairs(20), 4, epoch=1)
    assert first != epoch_batches(pairs(20), 4, seed=1)


def test_labelled_texts_meet_another_of_their_label() -> None:
    rows = [Row(f"text {i}", label=f"label {i % 20}") for i in range(80)]
    found = epoch_batches(rows, 8, objective="classification")
    for batch in found:
        labels = [row.label for row in batch]
        assert all(labels.count(label) > 1 for label in labels) and len(set(labels)) > 1
    assert {*rows} == {row for batch in found for row in batch}


def test_plan_by_hand() -> None:
    config = settings(learning_rate=2e-3, batch_size=4, accumulation=2, max_steps=10)
    plan = BatchPlan(config, pairs(20))
    assert plan.per_epoch == 2 and plan.steps == 10  # 5 batches, the fifth fills no update
    rates = [plan.learning_rate(step) / config.learning_rate for step in range(10)]
    assert rates == pytest.approx([1, 1, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9])
    steps = [batch for step in (0, 1) for batch in plan.at(step)]
    assert steps == epoch_batches(pairs(20), 4)[:4]


@pytest.mark.parametrize("count, accumulation", [(1, 1), (9, 2)])
def test_too_few_examples_are_refused(count: int, accumulation: int) -> None:
    with pytest.raises(ConfigError, match=f"^{count} examples give . batches, expected"):
        BatchPlan(settings(batch_size=8, accumulation=accumulation), pairs(count))


def test_a_sentence_has_another_view_in_each_epoch() -> None:
    rows = [Row(text, text, one_text=True) for text in ("one two three four", "red blue car")]
    changes = {"objective": "contrastive", "augment": "delete-word"}
    views = set()
    for epoch in range(20):
        (batch,) = epoch_batches(rows, 2, epoch, **changes)
        assert {row.anchor for row in batch} == {row.anchor for row in rows}
        views |= {row.positive for row in batch}
    assert len(views) == 4 + 3
    # What is no single sentence is left as it is.
    assert {*epoch_batches(pairs(2), 2, **changes)[0]} == {*pairs(2)}


WORDS = tuple("abcdefghij")


@pytest.mark.parametrize(
    "augment, share, left, outcomes",
    [
        ("none", 0.5, 10, 1),
        ("next-sentence", 0.5, 10, 1),  # what follows is read from the file
        ("delete-word", 0.5, 9, 10),
        ("delete", 0.3, 7, 120),
        ("crop", 0.3, 7, 4),
    ],
)
def test_augmented_sentences_lose_words_in_place(
    augment: str, share: float, left: int, outcomes: int
) -> None:
    rng = Random(2)
    drawn = (augmented(" ".join(WORDS), Augment(augment), share, rng) for _ in range(8000))
    counts = Counter(drawn)
    assert len(counts) == outcomes and min(counts.values()) > 4000 / outcomes  # as likely
    for text in counts:
        kept = text.split()
        assert len(kept) == left and kept == sorted(kept)
        assert augment != "crop" or "".join(kept) in "".join(WORDS)
    for text in ("alone", "two words"):  # a word is always left
        assert augmented(text, Augment(augment), 0.99, rng).split()
