"""Losses by hand, against sentence-transformers, and their invariants."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.losses import (
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn

import indexer.prefix
from trainer.errors import ConfigError
from trainer.losses import info_nce, matryoshka, prefix


def rows(seed: int, n: int = 6, dim: int = 16) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


class Columns(nn.Module):
    """Stands in for a SentenceTransformer: each column of texts is a tensor already."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self) -> int:
        return 16


def theirs(loss: nn.Module, *columns: Tensor) -> float:
    return float(loss([{"vectors": column} for column in columns], labels=None))


def test_two_anchors_by_hand() -> None:
    # Cosines [[1, 0], [0.6, 0.8]] at temperature 0.5.
    anchors = torch.tensor([[2.0, 0.0], [0.6, 0.8]])
    positives = torch.tensor([[5.0, 0.0], [0.0, 0.1]])
    first = math.log(1 + math.exp(-2))
    second = math.log(1 + math.exp(1.2 - 1.6))
    expected = (first + second) / 2
    assert info_nce(anchors, positives, temperature=0.5).item() == pytest.approx(expected)


def test_negatives_of_all_rows_are_candidates_of_all_anchors() -> None:
    # One anchor, cosine 1 to its positive, 0 and −1 to two negatives.
    anchor, positive = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    negatives = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    expected = math.log(1 + math.exp(-1) + math.exp(-2))
    found = info_nce(anchor, positive, negatives, temperature=1.0)
    assert found.item() == pytest.approx(expected)


def test_the_same_text_is_no_negative() -> None:
    anchors, positives = rows(0, 3), rows(1, 3)
    positives[2] = positives[0]
    same = torch.zeros(3, 3, dtype=torch.bool)
    same[0, 2] = same[2, 0] = True
    same |= torch.eye(3, dtype=torch.bool)  # marking the positive itself changes nothing
    scores = nn.functional.cosine_similarity(anchors[:, None], positives[None], dim=-1) / 0.05
    s = scores.double().exp()
    expected = -torch.stack(
        [
            (s[0, 0] / (s[0, 0] + s[0, 1])).log(),
            (s[1, 1] / s[1].sum()).log(),
            (s[2, 2] / (s[2, 1] + s[2, 2])).log(),
        ]
    ).mean()
    assert info_nce(anchors, positives, same=same).item() == pytest.approx(
        expected.item(), rel=1e-5
    )
    assert info_nce(anchors, positives).item() > expected.item() + 1e-3


@pytest.mark.parametrize("columns", [2, 3])
def test_equal_to_sentence_transformers(columns: int) -> None:
    given_rows = [rows(seed) for seed in range(columns)]
    oracle = MultipleNegativesRankingLoss(Columns(), scale=20.0)  # type: ignore[arg-type]
    assert info_nce(*given_rows).item() == pytest.approx(theirs(oracle, *given_rows), abs=1e-5)


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 0.25]])
def test_nested_equal_to_sentence_transformers(columns: int, weights: list[float] | None) -> None:
    given_rows = [rows(seed) for seed in range(columns)]
    model = Columns()
    inner = MultipleNegativesRankingLoss(model, scale=20.0)  # type: ignore[arg-type]
    oracle = MatryoshkaLoss(model, inner, [16, 8, 4], weights)  # type: ignore[arg-type]
    found = matryoshka(info_nce, [16, 8, 4], weights)(*given_rows)
    assert found.item() == pytest.approx(theirs(oracle, *given_rows), abs=1e-5)


def test_nested_over_the_full_width_alone_is_the_loss() -> None:
    a, b, c = rows(0), rows(1), rows(2)
    same = torch.rand(6, 12, generator=torch.Generator().manual_seed(3)) < 0.2
    assert torch.allclose(
        matryoshka(info_nce, [16])(a, b, c, same=same), info_nce(a, b, c, same=same), atol=1e-6
    )


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 16), st.integers(1, 16))
def test_prefix_is_the_indexers(seed: int, long: int, short: int) -> None:
    long, short = max(long, short), min(long, short)
    x = rows(seed)
    x[0, :short] = 0
    theirs = indexer.prefix.prefix(x.numpy(), long)
    np.testing.assert_allclose(prefix(x, long).numpy(), theirs, atol=1e-6)
    np.testing.assert_allclose(prefix(prefix(x, long), short), prefix(x, short), atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(0.1, 50))
def test_lengths_of_the_vectors_do_not_matter(seed: int, scale: float) -> None:
    a, b, c = rows(seed), rows(seed + 1), rows(seed + 2)
    nested = matryoshka(info_nce, [16, 4])
    assert nested(scale * a, b, c).item() == pytest.approx(nested(a, b, c).item(), rel=1e-4)


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
