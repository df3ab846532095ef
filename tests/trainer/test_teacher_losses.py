"""Distillation and a guide, as a run puts them together, against sentence-transformers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import (
    DistillKLDivLoss,
    EmbedDistillLoss,
    GISTEmbedLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MSELoss,
)
from sentence_transformers.util import pairwise_cos_sim
from torch import Tensor
from torch.nn.functional import cosine_similarity, kl_div, normalize

from searchengine.trainer.training.objectives import Contrastive, Distillation
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.rows import Row
from searchengine.trainer.training.teachers import FixedEncoder
from searchengine.trainer.training.train_config import TrainConfig
from tests.reference_losses import WIDTH, Given, assert_same, columns, theirs

DIMS = [WIDTH, 13, 4]
N = 7


class FromList:
    """What stands for a teacher: the vectors of texts "column row"."""

    def __init__(self, columns: Sequence[Tensor]):
        self.columns = columns
        self.dim = columns[0].shape[1]
        self.calls: list[tuple[list[str], Any]] = []

    def encode(self, texts: list[str], *, role: Any = None) -> np.ndarray:
        self.calls.append((texts, role))
        places = [tuple(map(int, text.split())) for text in texts]
        rows = [self.columns[c][r] for c, r in places]
        stacked: np.ndarray = torch.stack(rows).numpy() if rows else np.zeros((0, self.dim))
        return stacked.astype(np.float32)


def fixed(columns: Sequence[Tensor]) -> FixedEncoder:
    unit = [normalize(x, dim=-1) for x in columns]
    return FixedEncoder(FromList(unit), torch.device("cpu"))  # type: ignore[arg-type]


def rows(count: int, scores: Tensor | None = None) -> list[Row]:
    """count texts in a row: anchor, positive and the rest negatives."""
    lists = [()] * N if scores is None else list(map(tuple, scores.tolist()))
    return [
        Row(f"0 {i}", f"1 {i}", tuple(f"{k} {i}" for k in range(2, count)), scores=lists[i])
        for i in range(N)
    ]


def run_settings(**settings: Any) -> TrainConfig:
    return TrainConfig(train=("unused",), out="unused", **settings)


def as_views(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Columns as an objective gets them: a row's negatives follow one another."""
    anchors, positives, *negatives = inputs
    stacked = torch.stack(negatives, dim=1).flatten(0, 1) if negatives else anchors[:0]
    return [x.unsqueeze(0) for x in (anchors, positives, stacked)]


def teacher_scores(columns: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(N, columns, generator=generator)


@pytest.mark.parametrize("scored", ("candidates", "margins"))
@pytest.mark.parametrize("count", (3, 5), ids=("one negative", "three negatives"))
def test_margins_over_prefixes_are_theirs(count: int, scored: str) -> None:
    labels = teacher_scores(count - 1 if scored == "candidates" else count - 2)
    config = run_settings(objective="distillation", distillation_loss="margin-mse", temperature=1.0)
    ours = Distillation(config, DIMS, Processes())
    model = Given()
    inner = MarginMSELoss(model, similarity_fct=pairwise_cos_sim)
    assert_same(
        lambda c: ours.loss(as_views(c), rows(count, labels), 0),
        theirs(MatryoshkaLoss(model, inner, DIMS), labels),
        columns(count, dtype=torch.float32),
    )


def test_margins_are_of_scores_over_their_temperatures() -> None:
    labels = teacher_scores(2)
    config = run_settings(
        objective="distillation",
        distillation_loss="margin-mse",
        temperature=0.25,
        teacher_temperature=2.0,
    )
    ours = Distillation(config, [WIDTH], Processes())
    reference = MarginMSELoss(Given(), similarity_fct=lambda a, b: 4 * pairwise_cos_sim(a, b))
    assert_same(
        lambda c: ours.loss(as_views(c), rows(3, labels), 0),
        theirs(reference, labels / 2),
        columns(3, dtype=torch.float32),
    )


@pytest.mark.parametrize("t, teacher_t", ((1.0, None), (0.1, 2.0)))
def test_rankings_of_scores_over_prefixes_are_theirs(t: float, teacher_t: float | None) -> None:
    labels = teacher_scores(4)
    config = run_settings(objective="distillation", temperature=t, teacher_temperature=teacher_t)
    ours = Distillation(config, DIMS, Processes())
    model = Given()
    inner = DistillKLDivLoss(
        model,
        similarity_fct=pairwise_cos_sim,
        student_temperature=t,
        teacher_temperature=teacher_t or 1.0,
    )
    # Theirs multiplies by t², which no gradient's direction has.
    assert_same(
        lambda c: t**2 * ours.loss(as_views(c), rows(5, labels), 0),
        theirs(MatryoshkaLoss(model, inner, DIMS), labels),
        columns(5, dtype=torch.float32),
    )


def test_margins_and_scores_rank_alike() -> None:
    """Softmax knows differences alone: a positive's leads over its negatives are enough."""
    scores = teacher_scores(4)
    margins = scores[:, :1] - scores[:, 1:]
    ours = Distillation(run_settings(objective="distillation"), DIMS, Processes())
    inputs = as_views(columns(5, dtype=torch.float32))
    values = [ours.loss(inputs, rows(5, labels), 0) for labels in (scores, margins)]
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("loss", ("kl", "margin-mse"))
def test_rows_may_have_fewer_negatives(loss: str) -> None:
    """As the mean over rows, or over all negatives, each row computed alone."""
    counts = (3, 1, 2)
    batch = [
        Row(f"a{i}", f"b{i}", tuple(f"c{i} {k}" for k in range(n)), scores=(5.0, *range(n)))
        for i, n in enumerate(counts)
    ]
    config = run_settings(objective="distillation", distillation_loss=loss, temperature=0.5)
    ours = Distillation(config, [WIDTH], Processes())
    anchors, positives, negatives = (
        columns(1, n, seed, torch.float32)[0] for seed, n in enumerate((3, 3, 6))
    )
    terms = []
    for i, n in enumerate(counts):
        start = sum(counts[:i])
        own = torch.cat([positives[i : i + 1], negatives[start : start + n]])
        student = cosine_similarity(anchors[i : i + 1], own) / 0.5
        teacher = torch.tensor([5.0, *range(n)])
        if loss == "kl":
            terms += [kl_div(student.log_softmax(0), teacher.softmax(0), reduction="sum")]
        else:
            terms += list((student[0] - student[1:] - teacher[0] + teacher[1:]).square())
    found = ours.loss([x.unsqueeze(0) for x in (anchors, positives, negatives)], batch, 0)
    torch.testing.assert_close(found, torch.stack(terms).mean())


@pytest.mark.parametrize("loss", ("mse", "cosine"))
def test_vectors_over_prefixes_are_theirs(loss: str) -> None:
    """Of each prefix, at unit length, as our encoders give it; theirs takes vectors as they are."""
    teachers = [normalize(x, dim=-1) for x in columns(3, seed=9, dtype=torch.float32)]
    config = run_settings(objective="distillation", distillation_loss=loss, teacher="t")
    ours = Distillation(config, DIMS, Processes(), fixed(teachers))
    model = Given()
    reference = MSELoss(model) if loss == "mse" else EmbedDistillLoss(model, "cosine")

    def nested(inputs: list[Tensor]) -> Tensor:
        total = torch.zeros(())
        for dim in DIMS:
            student, target = (
                [normalize(x[:, :dim], dim=-1) for x in vectors] for vectors in (inputs, teachers)
            )
            total = total + theirs(reference, torch.stack(target, dim=1))(student)
        return total

    assert_same(
        lambda c: ours.loss(as_views(c), rows(3), 0), nested, columns(3, dtype=torch.float32)
    )


def test_axes_turn_the_teachers_vectors() -> None:
    teachers = columns(2, seed=9, dtype=torch.float32)
    axes = torch.linalg.qr(columns(1, WIDTH, 4, torch.float32)[0])[0]
    config = run_settings(objective="distillation", distillation_loss="cosine", teacher="t")
    inputs = as_views(columns(2, dtype=torch.float32))
    turned = Distillation(config, DIMS, Processes(), fixed(teachers), axes)
    plain = Distillation(config, DIMS, Processes(), fixed([x @ axes for x in teachers]))
    torch.testing.assert_close(turned.loss(inputs, rows(2), 0), plain.loss(inputs, rows(2), 0))


def test_a_sentence_is_compared_with_the_teacher_once() -> None:
    config = run_settings(objective="distillation", distillation_loss="cosine", teacher="t")
    (teacher,) = columns(1, seed=9, dtype=torch.float32)
    ours = Distillation(config, DIMS, Processes(), fixed([teacher]))
    batch = [Row(f"0 {i}", f"0 {i}", one_text=True) for i in range(N)]
    assert [len(view.texts) for view in ours.views(batch)] == [N, 0, 0]
    (student,) = columns(1, dtype=torch.float32)
    views = [x.unsqueeze(0) for x in (student, student[:0], student[:0])]
    expected = sum(1 - cosine_similarity(student[:, :d], teacher[:, :d]).mean() for d in DIMS)
    torch.testing.assert_close(ours.loss(views, batch, 0), expected)


def test_a_teacher_ranks_all_candidates_of_the_batch() -> None:
    teachers = columns(3, seed=9, dtype=torch.float32)
    config = run_settings(objective="distillation", temperature=0.2, teacher="t")
    ours = Distillation(config, DIMS, Processes(), fixed(teachers))

    def slow(inputs: list[Tensor]) -> Tensor:
        total = torch.zeros(())
        for dim in DIMS:
            for i in range(N):
                student, teacher = (
                    torch.cat([cosine_similarity(a[i : i + 1], c) for c in others]) / 0.2
                    for a, *others in ([x[:, :dim] for x in inputs], teachers)
                )
                total = total + kl_div(student.log_softmax(0), teacher.softmax(0), reduction="sum")
        return total / N

    assert_same(lambda c: ours.loss(as_views(c), rows(3), 0), slow, columns(3, dtype=torch.float32))


# A guide


@pytest.mark.parametrize("margin", [0.0, 0.1])
@pytest.mark.parametrize("count", (2, 3), ids=("pairs", "triplets"))
@pytest.mark.parametrize("more", (False, True), ids=("positives", "all candidates"))
def test_a_guided_run_is_gist(count: int, margin: float, more: bool) -> None:
    guides = columns(count, seed=6, dtype=torch.float32)
    config = run_settings(
        guide="g",
        guide_margin=margin,
        contrast_anchors=more,
        contrast_positives=more,
    )
    empty: Any = type("Nothing", (), {"queue": None})()
    guide = fixed(guides)
    ours = Contrastive(empty, config, DIMS, Processes(), guide)
    model = Given()
    inner = GISTEmbedLoss(
        model,
        Given("guide"),
        temperature=config.temperature,
        margin_strategy="absolute",
        margin=margin,
        contrast_anchors=more,
        contrast_positives=more,
    )
    reference = MatryoshkaLoss(model, inner, DIMS)

    def gist(inputs: list[Tensor]) -> Tensor:
        features = [{"x": x, "guide": g} for x, g in zip(inputs, guides, strict=True)]
        value: Tensor = reference(features, None)
        return value

    assert_same(
        lambda c: ours.loss(as_views(c), rows(count), 0),
        gist,
        columns(count, seed=5, dtype=torch.float32),
    )


def test_what_a_guide_masks_changes_the_loss() -> None:
    """The margin of the tests above leaves candidates out, and not all."""
    guides = columns(2, seed=6, dtype=torch.float32)
    empty: Any = type("Nothing", (), {"queue": None})()
    inputs = as_views(columns(2, seed=5, dtype=torch.float32))
    values = [
        Contrastive(
            empty, run_settings(guide="g", guide_margin=margin), DIMS, Processes(), fixed(guides)
        ).loss(inputs, rows(2), 0)
        for margin in (0.0, 0.1, 2.0)
    ]
    assert values[0] > values[1] > values[2] == 0  # a margin of 2 leaves the positive alone


def test_a_fixed_encoder_knows_roles() -> None:
    vectors = columns(2, dtype=torch.float32)
    encoder = FromList(vectors)
    rows = FixedEncoder(encoder, torch.device("cpu"))(["0 1", "1 2"], "query")  # type: ignore[arg-type]
    assert torch.equal(rows, torch.stack([vectors[0][1], vectors[1][2]]))
    assert encoder.calls == [(["0 1", "1 2"], "query")]
