"""Losses by hand, and their invariants. Independent references: test_loss_references.py."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import searchengine.indexer.arrays
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.losses import (
    cosines,
    info_nce,
    layer_distillation,
    matryoshka,
    prefix,
    supervised_contrastive,
)


def rows(seed: int, n: int = 6, dim: int = 16) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def test_two_anchors_by_hand() -> None:
    # Cosines [[1, 0], [0.6, 0.8]] at temperature 0.5.
    anchors = torch.tensor([[2.0, 0.0], [0.6, 0.8]])
    positives = torch.tensor([[5.0, 0.0], [0.0, 0.1]])
    first = math.log(1 + math.exp(-2))
    second = math.log(1 + math.exp(1.2 - 1.6))
    scores = cosines(anchors, positives)
    assert scores.flatten().tolist() == pytest.approx([1, 0, 0.6, 0.8])
    assert info_nce(scores, temperature=0.5).item() == pytest.approx((first + second) / 2)


def test_more_candidates_and_other_labels_by_hand() -> None:
    scores = torch.tensor([[0.0, -1.0, 1.0]])  # the third candidate is the positive
    expected = math.log(1 + math.exp(-1) + math.exp(-2))
    found = info_nce(scores, labels=torch.tensor([2]), temperature=1.0)
    assert found.item() == pytest.approx(expected)


def test_bias_leaves_out_and_weighs() -> None:
    scores = torch.tensor([[0.5, 0.1, 0.3]])
    bias = torch.tensor([[0.0, float("-inf"), math.log(3)]])
    e = [math.exp(s / 0.5) for s in (0.5, 0.3)]
    expected = -math.log(e[0] / (e[0] + 3 * e[1]))
    assert info_nce(scores, bias=bias, temperature=0.5).item() == pytest.approx(expected)


def test_supervised_contrastive_by_hand() -> None:
    # Labels a a b: the third has no positive and counts for nothing.
    scores = torch.tensor([[1.0, 0.4, 0.2], [0.4, 1.0, -0.6], [0.2, -0.6, 1.0]])
    first = -math.log(math.exp(0.8) / (math.exp(0.8) + math.exp(0.4)))
    second = -math.log(math.exp(0.8) / (math.exp(0.8) + math.exp(-1.2)))
    found = supervised_contrastive(scores, torch.tensor([0, 0, 1]), temperature=0.5)
    assert found.item() == pytest.approx((first + second) / 2)
    lone = supervised_contrastive(scores, torch.tensor([0, 1, 2]))
    assert lone.item() == 0


def test_layer_distillation_by_hand() -> None:
    full, shallow = torch.tensor([[0.3 * math.log(3), 0.0]]), torch.zeros(1, 2)
    expected = 0.3 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5))
    assert layer_distillation(shallow, full).item() == pytest.approx(expected)


def test_default_temperatures_and_arguments_by_name() -> None:
    a, b, labels = rows(0), rows(1), torch.tensor([0, 1, 0, 2, 2, 2])
    s = cosines(a, b)
    cold, warm = {"temperature": 0.05}, {"temperature": 0.3}
    assert torch.equal(info_nce(scores=s), info_nce(s, **cold))
    supervised = supervised_contrastive(scores=s, labels=labels)
    assert torch.equal(supervised, supervised_contrastive(s, labels, **warm))
    assert torch.equal(layer_distillation(truncated=a, full=b), layer_distillation(a, b, **warm))


def test_nested_is_the_weighted_sum_over_prefixes() -> None:
    a, b = rows(0), rows(1)
    expected = 2 * info_nce(cosines(a, b)) + 0.5 * info_nce(cosines(a[:, :4], b[:, :4]))
    assert matryoshka(info_nce, [16, 4], [2, 0.5])(a, b).item() == pytest.approx(expected.item())


def test_nested_over_the_full_width_alone_is_the_loss() -> None:
    a, b = rows(0), rows(1, 9)
    assert torch.allclose(matryoshka(info_nce, [16])(a, b), info_nce(cosines(a, b)), atol=1e-6)


def test_zero_rows_have_cosine_zero() -> None:
    a = torch.zeros(1, 4)
    assert [cosines(a, rows(0, 1, 4), dim).item() for dim in (4, 2)] == [0, 0]


@given(st.integers(0, 1000), st.integers(1, 16), st.integers(1, 16))
def test_prefix_is_the_indexers(seed: int, long: int, short: int) -> None:
    long, short = max(long, short), min(long, short)
    x = rows(seed)
    x[0, :short] = 0
    theirs = searchengine.indexer.arrays.prefix(x.numpy(), long)
    np.testing.assert_allclose(prefix(x, long).numpy(), theirs, atol=1e-6)
    np.testing.assert_allclose(prefix(prefix(x, long), short), prefix(x, short), atol=1e-6)


@given(st.integers(0, 1000), st.floats(0.1, 50))
def test_lengths_of_the_vectors_do_not_matter(seed: int, scale: float) -> None:
    a, b = rows(seed), rows(seed + 1)
    nested = matryoshka(info_nce, [16, 4])
    assert nested(scale * a, b).item() == pytest.approx(nested(a, b).item(), rel=1e-4)


def test_every_prefix_gets_a_gradient() -> None:
    a = rows(0).requires_grad_()
    matryoshka(info_nce, [4], [1.0])(a, rows(1)).backward()
    assert a.grad is not None
    assert (a.grad[:, :4] != 0).all() and (a.grad[:, 4:] == 0).all()


def test_wrong_lengths_are_named() -> None:
    with pytest.raises(ConfigError, match="2 weights for 1 prefixes"):
        matryoshka(info_nce, [16], [1, 2])
    with pytest.raises(ConfigError, match="0 weights for 0 prefixes"):
        matryoshka(info_nce, [])
    with pytest.raises(ConfigError, match="prefix length 17: expected 1 to 16"):
        matryoshka(info_nce, [17])(rows(0), rows(1))
