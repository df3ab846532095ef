"""Losses against others' code and against slow loops: the same values and the same gradients."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CoSENTLoss,
    Matryoshka2dLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor, nn

import searchengine.indexer.arrays
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.examples import Row
from searchengine.trainer.training.losses import (
    cosent,
    cosines,
    info_nce,
    matryoshka,
    paired_cosines,
    prefix,
    supervised_contrastive,
)
from searchengine.trainer.training.objectives import Contrastive, PrefixObjective, Similarity
from searchengine.trainer.training.passes import Passes
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import TrainingModel
from tests.reference_losses import WIDTH, Given, assert_same, backward, columns, theirs
from tests.tiny_model import write_sentence_transformer

# InfoNCE and nested prefixes, against sentence-transformers


# A whole model: layers and prefixes, through what a run is made of

ROWS = [
    Row("a dog runs far", "the dog runs", ("a cat sleeps", "two birds")),
    Row("the whale sings in the sea", "a whale sings", ("a man sits", "the tree is old")),
    Row("two women play music near a house", "women play", ("a child eats", "the new car")),
    Row("the old man eats slowly", "a man eats", ("a woman sings", "the sea is near")),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("tiny") / "model")


def our_gradients(folder: Path, **settings: Any) -> tuple[float, dict[str, Tensor]]:
    """Value and gradients of the weights as a run finds them, without dropout."""
    config = TrainConfig(
        train=("unused",), out="unused", base=str(folder), dropout=0.0, precision="fp32", **settings
    )
    encoder = Encoder.load(str(folder), precision="fp32", device="cpu")
    model = encoder.model
    training_model = TrainingModel(model, config, None).eval()
    objective = Contrastive(config, config.prefixes, training_model)
    passes = Passes(training_model, encoder, config, Processes())
    value = backward(
        passes, objective.views(ROWS), objective.layers(0), lambda v: objective.loss(v, ROWS, 0)
    )
    return value, named_gradients(model.module.transformer)


def named_gradients(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def their_gradients(
    folder: Path, make: Callable[[SentenceTransformer], nn.Module]
) -> tuple[float, dict[str, Tensor]]:
    model = SentenceTransformer(str(folder), device="cpu").eval()
    texts = zip(*((row.anchor, row.positive, *row.negatives) for row in ROWS), strict=True)
    value = make(model)([model.preprocess(list(column)) for column in texts], None)
    value.backward()
    return value.item(), named_gradients(model[0].auto_model)


def assert_same_training(
    ours: tuple[float, dict[str, Tensor]], theirs: tuple[float, dict[str, Tensor]]
) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert len(ours[1]) > 30
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", (False, True), ids=("plain", "gradient cache"))
def test_a_batch_trains_as_theirs(tiny: Path, cache: bool) -> None:
    dims, weights = (32, 8, 3), (1.0, 0.5, 2.0)

    def reference(model: SentenceTransformer) -> nn.Module:
        inner = MultipleNegativesRankingLoss(model, scale=20)
        return MatryoshkaLoss(model, inner, dims, weights)

    ours = our_gradients(tiny, prefixes=dims, prefix_weights=weights, gradient_cache=cache)
    assert_same_training(ours, their_gradients(tiny, reference))


def test_a_batch_over_layers_and_prefixes_trains_as_theirs(tiny: Path) -> None:
    random.seed(0)  # theirs draws from the embeddings and layer 1, ours never the embeddings: 1
    dims = (32, 8)
    config = TrainConfig(train=("unused",), out="unused", prefixes=dims, layers_per_step=1)
    (drawn,), _ = PrefixObjective(config, dims, Processes()).prefixes(0)

    def reference(model: SentenceTransformer) -> nn.Module:
        return Matryoshka2dLoss(
            model,
            MultipleNegativesRankingLoss(model, scale=20),
            (drawn,),
            n_dims_per_step=-1,
            prior_layers_weight=1.0,
            kl_div_weight=1.0,
        )

    ours = our_gradients(tiny, prefixes=dims, layers_per_step=1)
    assert_same_training(ours, their_gradients(tiny, reference))


# Formulas written out
@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.floats(0.05, 2), st.integers(0, 99))
def test_supervised_contrastive_is_its_formula(labels: list[int], t: float, seed: int) -> None:
    (x,) = columns(1, len(labels), seed)
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    own = []
    for i, label in enumerate(labels):
        positives = [p for p, other in enumerate(labels) if other == label and p != i]
        if not positives:
            continue
        others = sum(math.exp(unit[i] @ unit[a] / t) for a in range(len(labels)) if a != i)
        inner = [math.log(math.exp(unit[i] @ unit[p] / t) / others) for p in positives]
        own.append(-sum(inner) / len(positives))
    expected = sum(own) / len(own) if own else 0.0
    found = supervised_contrastive(cosines(x, x), torch.tensor(labels), temperature=t)
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def simcse(inputs: list[Tensor], alpha: float, t: float) -> Tensor:
    """arXiv 2104.08821, equation 5, its indicator weighted by alpha, summand by summand."""
    h, plus, minus = ([row / row.norm() for row in x] for x in inputs)
    terms = []
    for i in range(len(h)):
        below = torch.zeros((), dtype=h[i].dtype)
        for j in range(len(h)):
            below = below + torch.exp(h[i] @ plus[j] / t)
            below = below + (alpha if i == j else 1.0) * torch.exp(h[i] @ minus[j] / t)
        terms.append(-torch.log(torch.exp(h[i] @ plus[i] / t) / below))
    return torch.stack(terms).mean()


def test_a_run_weighs_hard_negatives_as_simcse() -> None:
    config = TrainConfig(train=("unused",), out="unused", hard_negative_weight=2.5, temperature=0.1)
    training_model: Any = SimpleNamespace(queue=None)
    objective = Contrastive(config, (WIDTH,), training_model)
    rows = [Row(f"anchor {i}", f"positive {i}", (f"negative {i}",)) for i in range(7)]

    def ours(inputs: list[Tensor]) -> Tensor:
        return objective.loss([x.unsqueeze(0) for x in inputs], rows, 0)

    # The objective makes its biases in float32.
    inputs = columns(3, dtype=torch.float32)
    assert_same(ours, lambda inputs: simcse(inputs, 2.5, 0.1), inputs)


# --- by hand, and invariants ----------------------------------------------------------------------


def rows(seed: int, n: int = 6, dim: int = 16) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def test_nested_over_the_full_width_alone_is_the_loss() -> None:
    a, b = rows(0), rows(1, 9)
    assert torch.allclose(matryoshka(info_nce, [16])(a, b), info_nce(cosines(a, b)), atol=1e-6)


@given(st.integers(0, 1000), st.integers(1, 16), st.integers(1, 16))
def test_prefix_is_the_indexers(seed: int, long: int, short: int) -> None:
    long, short = max(long, short), min(long, short)
    x = rows(seed)
    x[0, :short] = 0
    theirs = searchengine.indexer.arrays.prefix(x.numpy(), long)
    np.testing.assert_allclose(prefix(x, long).numpy(), theirs, atol=1e-6)
    np.testing.assert_allclose(prefix(prefix(x, long), short), prefix(x, short), atol=1e-6)


# --- of scored pairs ------------------------------------------------------------------------------

# Two pairs have the same score, which says nothing of their order.
SCORES = torch.tensor([0.1, 0.9, 0.4, 0.4, 1.0, 0.0, 0.7])
DIMS = [WIDTH, 13, 4, 1]


def test_the_objective_trains_every_prefix_as_theirs() -> None:
    weights = (1.0, 0.5, 2.0, 0.25)
    settings: Any = {"objective": "similarity", "prefixes": DIMS, "prefix_weights": weights}
    config = TrainConfig(train=("unused",), out="unused", **settings)
    objective = Similarity(config, DIMS, SimpleNamespace())  # type: ignore[arg-type]
    rows = [Row(f"a {i}", f"b {i}", score=score) for i, score in enumerate(SCORES.tolist())]
    model = Given()
    reference = theirs(MatryoshkaLoss(model, CoSENTLoss(model), DIMS, weights), SCORES)
    assert_same(
        lambda c: objective.loss([x.unsqueeze(0) for x in c], rows, 0),
        reference,
        columns(2, dtype=torch.float32),
    )


def test_cosent_of_equal_scores_teaches_nothing() -> None:
    similarities = torch.tensor([0.5, 0.3], requires_grad=True)
    found = cosent(similarities, torch.tensor([3.0, 3.0]))
    found.backward()
    assert found.item() == 0 and similarities.grad is not None
    assert similarities.grad.tolist() == [0, 0]


def test_a_zero_row_has_similarity_0_and_a_finite_gradient() -> None:
    a, c = columns(2, 3)
    a[1] = 0
    a.requires_grad_()
    scores = [paired_cosines(a, c, dim) for dim in (WIDTH, 4)]
    assert scores[0][1] == scores[1][1] == 0
    torch.stack(scores).sum().backward()
    assert a.grad is not None and a.grad.isfinite().all()
