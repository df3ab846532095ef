"""What the losses are given, and what a run trains: helpers are dropped, poolings are theirs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn import functional

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.modules import Classifier, Dense
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.examples import Row
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.losses import cosines, info_nce
from searchengine.trainer.training.moco import text_ids
from searchengine.trainer.training.objectives import Classification, Contrastive, PrefixObjective
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import TrainingModel
from tests.trainer.test_train_loop import LAYER, NOUNS, VERBS, interrupt_at
from tests.trainer.test_train_loop import config as triplets_config  # noqa: F401  (fixture)

INF = float("inf")
ROWS = [
    Row("a", "b", ("c",)),
    Row("d", "b", ("a",)),
    Row("c", "d", ("e", "f")),
]


def rows(seed: int, n: int, layers: int = 1) -> Tensor:
    return torch.randn(layers, n, 32, generator=torch.Generator().manual_seed(seed))


def contrastive(
    base: Path,
    dims: tuple[int, ...] = (32,),
    **settings: Any,
) -> Contrastive:
    config = TrainConfig(train=[Path("x")], out=Path("y"), base=str(base), **settings)  # type: ignore[arg-type]
    model = Encoder.load(base, precision="fp32").model
    return Contrastive(config, dims, TrainingModel(model, config, None))


@pytest.mark.parametrize("alpha", (1.0, 3.0))
def test_texts_of_anchor_and_positive_are_left_out_and_own_negatives_weighed(
    base: Path, alpha: float
) -> None:
    w = math.log(alpha)
    bias = torch.tensor(
        [
            # b    b     d    c    a     e    f
            [0.0, -INF, 0.0, w, -INF, 0.0, 0.0],
            [-INF, 0.0, -INF, 0.0, w, 0.0, 0.0],
            [0.0, 0.0, 0.0, -INF, 0.0, w, w],
        ]
    )
    vectors = [rows(seed, n) for seed, n in enumerate((3, 3, 4))]
    scores = cosines(vectors[0][0], torch.cat([vectors[1][0], vectors[2][0]]))
    found = contrastive(base, hard_negative_weight=alpha).loss(vectors, ROWS, 0)
    assert found.item() == pytest.approx(info_nce(scores, bias=bias).item(), rel=1e-6)


def test_the_layers_drawn_count_as_much_as_the_last_together(base: Path) -> None:
    once = [rows(seed, n) for seed, n in enumerate((3, 3, 4))]
    objective = contrastive(base)
    expected = 2 * objective.loss(once, ROWS, 0).item()  # equal vectors: nothing to distil
    for layers in (2, 4):
        found = objective.loss([x.expand(layers, -1, -1) for x in once], ROWS, 0)
        assert found.item() == pytest.approx(expected, rel=1e-5)


def test_queued_vectors_are_candidates_unless_their_text_is_the_anchors(base: Path) -> None:
    objective = contrastive(base, queue_size=3)
    queue = objective.training_model.queue
    assert queue is not None
    old = rows(5, 4)
    queue.push(old[0, :2], text_ids(["x", "b0"]))
    queue.push(old[0, 2:], text_ids(["y", "z"]))  # the oldest, "b0", goes
    assert torch.equal(queue.vectors, old[0, [2, 3, 0]])
    queue.push(old[0, 1:2], text_ids(["b0"]))
    batch = [Row(f"a{i}", f"b{i}") for i in range(2)]
    a, b, none = rows(0, 2), rows(1, 2), rows(2, 0)
    scores = cosines(a[0], torch.cat([b[0], old[0, [1, 2, 3]]]))
    masked = torch.zeros(2, 5)
    masked[0, 2] = -INF
    found = objective.loss([a, b, none], batch, 0)
    assert found.item() == pytest.approx(info_nce(scores, bias=masked).item(), rel=1e-6)


def test_prefixes_of_an_update_follow_from_its_number(base: Path) -> None:
    dims, weights = (768, 256, 128, 64), (1.0, 2.0, 3.0, 4.0)
    found = contrastive(base)
    config = replace(found.config, prefixes=dims, prefix_weights=weights)

    def drawn(layers: int, step: int) -> tuple[list[int], list[float]]:
        drawing = replace(config, layers_per_step=layers)
        return PrefixObjective(drawing, dims, found.training_model).prefixes(step)

    assert drawn(0, 0) == (list(dims), list(weights))
    single = [drawn(1, step) for step in range(40)]
    assert single == [drawn(1, step) for step in range(40)]
    assert {(d, w) for (d,), (w,) in single} == set(zip(dims, weights, strict=True))


def classification(base: Path, **settings: Any) -> Classification:
    settings = {"objective": "classification", **settings}
    config = TrainConfig(train=[Path("x")], out=Path("y"), base=str(base), **settings)  # type: ignore[arg-type]
    model = Encoder.load(base, precision="fp32").model
    torch.manual_seed(0)
    model = replace(model, classifier=Classifier((32,), ["no", "yes"]))
    return Classification(config, (32,), TrainingModel(model, config, None))


LABELLED = [
    Row("a", label="no"),
    Row("b", label="yes"),
    Row("c", label="no"),
]
TARGETS = torch.tensor([0, 1, 0])


def log_shares(objective: Classification, x: Tensor) -> Tensor:
    unit = functional.normalize(x, dim=-1) * math.sqrt(32)
    classifier = objective.training_model.classifier
    assert classifier is not None
    return classifier.layers["32"](unit).log_softmax(dim=1)


def test_cross_entropy_and_contrast_share_the_loss(base: Path) -> None:
    x = rows(0, 3)
    weighed = {"prefixes": (32,), "prefix_weights": (2.0,)}
    both = classification(base, label_weight=0.25, label_temperature=0.5, **weighed)
    cross = -log_shares(both, x[0])[range(3), TARGETS].mean()
    s = cosines(x[0], x[0]) / 0.5  # rows 0 and 2 are each other's positives
    contrast = torch.stack(
        [torch.stack([s[i, j], s[i, 1]]).logsumexp(0) - s[i, j] for i, j in ((0, 2), (2, 0))]
    ).mean()
    expected = 2 * (0.75 * cross + 0.25 * contrast)
    assert both.loss([x], LABELLED, 0).item() == pytest.approx(expected.item(), rel=1e-5)
    alone = classification(base, label_weight=0.0)
    assert alone.loss([x], LABELLED, 0).item() == pytest.approx(cross.item(), rel=1e-5)


# --- what a run trains ----------------------------------------------------------------------------


TEXTS = ["the dog sleeps", "a whale", "three birds sing slowly near the sea"]


@pytest.fixture
def config(triplets_config: TrainConfig, tmp_path: Path) -> TrainConfig:  # noqa: F811
    """Nothing judges sentences."""
    lines = [f"the {n} {v}" for n in NOUNS for v in VERBS]
    (tmp_path / "sentences.tsv").write_text("\n".join(["sentence", *lines]) + "\n")
    train = (tmp_path / "sentences.tsv",)
    return replace(triplets_config, train=train, prefixes=(32,), max_steps=4, learning_rate=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "cls-before-pooler"},
        {"queue_size": 12},
        {"mlm_weight": 0.5},
        {"mlm_weight": 0.5, "gradient_cache": True},
        {"augment": "next-sentence", "layers_per_step": 1},
        {"augment": "crop", "augment_share": 0.3},
        {"adapter_rank": 2, "attention_group": 4, "window": 32, "max_tokens": 32},
    ],
    ids=str,
)
def test_helpers_train_are_resumed_to_the_bit_and_dropped(
    config: TrainConfig, base: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = TrainConfig.from_dict({**config.to_dict(), **settings})
    whole = train(replace(config, out=tmp_path / "whole"))
    assert whole.module.dim == 32 and len(list(whole.module.head)) == 1  # Normalize alone

    def stop(line: Any) -> None:
        if line.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, stop)
    resumed = train(config, resume=True)
    theirs = SentenceTransformer(str(config.out), device="cpu").encode(TEXTS)
    saved = Encoder.load(config.out, precision="fp32")
    np.testing.assert_allclose(saved.encode(TEXTS), theirs, atol=1e-5)
    assert resumed.fingerprint == whole.fingerprint != Encoder.load(base).fingerprint
    assert resumed.model.history == whole.model.history and len(whole.model.history["losses"]) == 4
    plain = train(replace(config, out=tmp_path / "plain", **unset(settings)))
    assert plain.fingerprint != whole.fingerprint


def unset(settings: dict[str, Any]) -> dict[str, Any]:
    default = {field: getattr(TrainConfig(train=["x"], out="y"), field) for field in settings}  # type: ignore[arg-type]
    return default


def test_the_momentum_encoder_starts_alike_and_follows(base: Path) -> None:
    config = TrainConfig(train=["x"], out="y", queue_size=4)  # type: ignore[arg-type]
    dense = Dense(32, 32, True, "torch.nn.modules.activation.Tanh")
    training_model = TrainingModel(Encoder.load(base).model, config, dense)
    assert training_model.momentum is not None
    fast = dict(training_model.encoder.named_parameters())
    slow = dict(training_model.momentum.named_parameters())
    assert set(fast) == set(slow) and all(torch.equal(fast[name], slow[name]) for name in fast)
    name = "projection.linear.weight"
    before = fast[name].detach().clone()
    with torch.no_grad():
        fast[name].add_(1.0)
    training_model.follow()
    torch.testing.assert_close(slow[name], before + 0.001)
    assert torch.equal(fast[name], before + 1.0) and not slow[name].requires_grad


def test_the_momentum_encoder_follows_in_a_run(config: TrainConfig, base: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(replace(config, queue_size=12, rotate=False), interrupt_at(3))
    before = Encoder.load(base).module.state_dict()[LAYER]
    with safe_open(checkpoint.file_of(config.out), "pt") as stored:
        (name,) = (name for name in stored.keys() if "momentum" in name and name.endswith(LAYER))
        assert not torch.equal(stored.get_tensor(name), before)


def test_the_momentum_encoder_is_rotated_too(config: TrainConfig) -> None:
    """No cosine of the full width changes, unless one of the two vectors is not rotated."""
    pairs = config.train[0].with_name("pairs.tsv")
    rows = [f"the {n} {v}\t{v} the {n}" for n in NOUNS for v in VERBS]
    pairs.write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    settings = {"prefixes": (32, 8), "learning_rate": 1e-12, "max_steps": 2}
    settings |= {"prefix_weights": (1.0, 0.0), "queue_size": 16}
    base = replace(config, train=(pairs,), dropout=0.0, **settings)  # type: ignore[arg-type]
    losses = []
    for rotate in (False, True):
        run = replace(base, out=config.out / str(rotate), rotate=rotate)
        losses.append(train(run).model.history["losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
