"""CoSENT, AnglE and the squared error of scores: by hand, and against sentence-transformers."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.losses import (
    CoSENTLoss,
    MatryoshkaLoss,
)

from searchengine.trainer.training.examples import Row
from searchengine.trainer.training.losses import (
    cosent,
    cosines,
    matryoshka,
    paired_cosines,
)
from searchengine.trainer.training.objectives import Similarity
from searchengine.trainer.training.train_config import TrainConfig
from tests.reference_losses import WIDTH, Given, assert_same, both_precisions, columns, theirs

# Two pairs have the same score, which says nothing of their order.
SCORES = torch.tensor([0.1, 0.9, 0.4, 0.4, 1.0, 0.0, 0.7])
DIMS = [WIDTH, 13, 4, 1]
LOSS = functools.partial(cosent, scores=SCORES)


@both_precisions
def test_the_loss_is_theirs(dtype: torch.dtype) -> None:
    ours = matryoshka(LOSS, [WIDTH], scores=paired_cosines)
    reference = theirs(CoSENTLoss(Given()), SCORES)
    assert_same(lambda c: ours(*c), reference, columns(2, dtype=dtype))


@both_precisions
@pytest.mark.parametrize("weights", (None, [1.0, 0.25, 3.0, 0.0]), ids=("even", "weighted"))
def test_the_nested_loss_is_theirs(weights: list[float] | None, dtype: torch.dtype) -> None:
    ours = matryoshka(LOSS, DIMS, weights, paired_cosines)
    model = Given()
    reference = theirs(MatryoshkaLoss(model, CoSENTLoss(model), DIMS, weights), SCORES)
    assert_same(lambda c: ours(*c), reference, columns(2, dtype=dtype))


def test_the_objective_trains_every_prefix_as_theirs() -> None:
    config = TrainConfig(train=("unused",), out="unused", objective="similarity")  # type: ignore[arg-type]
    objective = Similarity(config, DIMS, SimpleNamespace())  # type: ignore[arg-type]
    rows = [Row(f"a {i}", f"b {i}", score=score) for i, score in enumerate(SCORES.tolist())]
    model = Given()
    reference = theirs(MatryoshkaLoss(model, CoSENTLoss(model), DIMS), SCORES)
    assert_same(
        lambda c: objective.loss([x.unsqueeze(0) for x in c], rows, 0),
        reference,
        columns(2, dtype=torch.float32),
    )


def test_cosent_by_hand() -> None:
    # Of the three pairs only the second, scored highest, should be above the others.
    found = cosent(torch.tensor([0.5, 0.3, -0.1]), torch.tensor([1.0, 2.0, 1.0]), temperature=0.5)
    assert found.item() == pytest.approx(math.log(1 + math.exp(0.4) + math.exp(-0.8)))


def test_cosent_of_equal_scores_teaches_nothing() -> None:
    similarities = torch.tensor([0.5, 0.3], requires_grad=True)
    found = cosent(similarities, torch.tensor([3.0, 3.0]))
    found.backward()
    assert found.item() == 0 and similarities.grad is not None
    assert similarities.grad.tolist() == [0, 0]


def test_only_the_order_of_scores_counts() -> None:
    similarities = torch.tensor([0.5, 0.3, -0.1])
    few, many = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([-7.0, 1.0, 5.0])
    assert cosent(similarities, few) == cosent(similarities, many)


@given(st.integers(1, WIDTH), st.integers(0, 99))
def test_paired_cosines_are_the_diagonal(dim: int, seed: int) -> None:
    a, c = columns(2, 5, seed)
    torch.testing.assert_close(paired_cosines(a, c, dim), cosines(a, c, dim).diagonal())


def test_a_zero_row_has_similarity_0_and_a_finite_gradient() -> None:
    a, c = columns(2, 3)
    a[1] = 0
    a.requires_grad_()
    scores = [paired_cosines(a, c, dim) for dim in (WIDTH, 4)]
    assert scores[0][1] == scores[1][1] == 0
    torch.stack(scores).sum().backward()
    assert a.grad is not None and a.grad.isfinite().all()
