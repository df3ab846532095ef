"""Maps fitted on frozen vectors: against numpy, against their definitions, and inside a model."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st
from manifold import flow
from tiny_model import WIDTH, write_sentence_transformer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.training.losses import info_nce, matryoshka
from searchengine.trainer.training.posthoc import (
    LinearMap,
    adapter,
    baked,
    pca,
    row_batches,
    unit,
    whitening,
)

TEXTS = ["the dog sleeps", "a whale sings near the sea", "two birds", "a red car", "old tree on"]


def vectors(rows: int = 200, dim: int = 8, seed: int = 0) -> np.ndarray:
    """Unit rows with a mean, and directions of clearly different strength that are no axes."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    strengths = 2.0 ** -np.arange(dim)
    return unit((rng.normal(size=(rows, dim)) * strengths + 0.3) @ turn)


def gram(rows: np.ndarray) -> np.ndarray:
    """Cosines of all rows: the same whichever way each axis points."""
    return rows @ rows.T


@pytest.mark.parametrize("centred", [False, True])
def test_pca_is_the_svd_of_numpy(centred: bool) -> None:
    x = vectors()
    y = x - x.mean(axis=0) if centred else x
    _, _, axes = np.linalg.svd(y.astype(np.float64), full_matrices=False)
    found = pca(x, 3, centred=centred)
    assert gram(found(x)) == pytest.approx(gram(unit(y @ axes[:3].T)), abs=1e-5)
    assert (found.bias is not None) == centred


def test_uncentred_pca_at_full_width_turns_and_no_more() -> None:
    x = vectors()
    assert gram(pca(x, 8)(x)) == pytest.approx(gram(x), abs=1e-5)


def test_whitening_gives_mean_zero_and_covariance_one() -> None:
    x = vectors()
    found = whitening(x, 5)
    assert found.bias is not None
    white = x @ found.weight.T + found.bias  # before the unit scale
    assert white.mean(axis=0) == pytest.approx(np.zeros(5), abs=1e-4)
    assert np.cov(white.T, bias=True) == pytest.approx(np.eye(5), abs=1e-3)
    assert found(x) == pytest.approx(unit(white), abs=1e-6)


def test_whitening_by_hand() -> None:
    # Mean (1, 0), variances 4 and 1 along the axes: (3, 1) is (1, 1) there, up to the axes' signs.
    x = np.array([[3, 1], [3, -1], [-1, 1], [-1, -1]], np.float32)
    found = whitening(x, 2)
    assert found.bias is not None
    assert np.abs(x[0] @ found.weight.T + found.bias) == pytest.approx([1, 1])
    assert np.abs(found(x[:1])) == pytest.approx(np.full((1, 2), np.sqrt(0.5)))
    assert np.abs(found.weight) == pytest.approx(np.diag([0.5, 1.0]), abs=1e-6)


@pytest.mark.parametrize("fit", [pca, partial(pca, centred=True), whitening])
@given(width=st.integers(1, 8), seed=st.integers(0, 20))
def test_the_first_numbers_are_what_a_fit_to_fewer_gives(fit, width: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    x = vectors(40, seed=seed)
    assert fit(x, 8).first(width)(x) == pytest.approx(fit(x, width)(x), abs=1e-6)
    rows = fit(x, width)(x)
    assert rows.shape == (40, width) and rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(40), abs=1e-5)


def noisy_pairs(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Pairs that agree in their last 4 numbers; the first 4 are stronger, and chance."""
    rng = np.random.default_rng(1)
    meaning = rng.normal(size=(rows, 4))
    a, p = (np.hstack([3 * rng.normal(size=(rows, 4)), meaning]) for _ in range(2))
    return unit(a), unit(p)


def found_first(a: np.ndarray, p: np.ndarray) -> float:
    """The share of anchors whose own positive is the nearest."""
    return float((gram_of(a, p).argmax(axis=1) == np.arange(len(a))).mean())


def gram_of(a: np.ndarray, p: np.ndarray) -> np.ndarray:
    return a @ p.T


def test_adapter_lowers_its_loss_and_finds_what_pairs_share() -> None:
    a, p = noisy_pairs()
    fitted, unseen = slice(0, 200), slice(200, 300)
    losses: list[float] = []
    trained = adapter(
        *(a[fitted], p[fitted], (8, 4)),
        steps=150,
        learning_rate=0.03,
        report=lambda _, loss: losses.append(loss),
    )
    start = pca(np.concatenate([a[fitted], p[fitted]]), 8)

    def loss(reduction: LinearMap) -> float:
        both = (torch.from_numpy(reduction(x[unseen])) for x in (a, p))
        return float(matryoshka(info_nce, (8, 4))(*both))

    assert loss(trained) < loss(start) / 2
    assert len(losses) == 150 and np.mean(losses[-10:]) < np.mean(losses[:10]) / 2
    before, after = (
        found_first(f.first(4)(a[unseen]), f.first(4)(p[unseen])) for f in (start, trained)
    )
    assert before < 0.1 and after > 0.8


def test_adapter_without_steps_is_the_pca_and_a_seed_decides_it() -> None:
    a, p = noisy_pairs(40)
    untrained = adapter(a, p, (8, 2), steps=0)
    assert untrained.weight == pytest.approx(pca(np.concatenate([a, p]), 8).weight)
    one, again, other = (adapter(a, p, (8, 2), steps=5, batch_size=8, seed=s) for s in (3, 3, 4))
    assert np.array_equal(one.weight, again.weight)
    assert not np.array_equal(one.weight, other.weight)


def test_adapter_does_not_tell_equal_texts_apart() -> None:
    # Two pairs with the same anchor: each is a positive of it, so nothing is left to tell apart.
    a = np.array([[1, 0], [1, 0]], np.float32)
    p = np.array([[1, 0], [0, 1]], np.float32)
    losses: list[float] = []
    adapter(a, p, (2,), steps=1, report=lambda _, loss: losses.append(loss))
    assert losses == [0.0]
    adapter(p, p[::-1].copy(), (2,), steps=1, report=lambda _, loss: losses.append(loss))
    # Cosines 0 to the own positive, 1 to the other: −log(1 / (1 + e^20)) = 20.
    assert losses[1] == pytest.approx(20, abs=1e-4)


def test_hard_negatives_of_the_adapter_by_hand() -> None:
    a = np.eye(2, dtype=np.float32)
    losses: list[float] = []

    def loss(*negatives: tuple[float, float]) -> float:
        hard = np.array(negatives, np.float32)
        adapter(a, a, (2,), negatives=hard, steps=1, report=lambda _, loss: losses.append(loss))
        return losses[-1]

    # Cosines to the positives 1 and 0; to the negative 0.6 of the first and 0.8 of the second.
    terms = [np.log(1 + np.exp(-20) + np.exp(-8)), np.log(1 + np.exp(-20) + np.exp(-4))]
    assert loss((0.6, 0.8), (0, 0)) == pytest.approx(np.mean(terms), abs=1e-6)
    # What equals the first positive is a negative of the second anchor alone.
    terms = [np.log(1 + np.exp(-20)), np.log(1 + 2 * np.exp(-20))]
    assert loss((0, 0), (1, 0)) == pytest.approx(np.mean(terms), abs=1e-6)
    with pytest.raises(DataError, match="expected the shape of the anchors"):
        adapter(a, a, (2,), negatives=a[:1])


def test_a_ridge_enlarges_weak_axes_less_and_needs_no_full_rank() -> None:
    x = vectors()
    energy = np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]
    lengths = np.linalg.norm(whitening(x, 8, ridge=0.5).weight, axis=1)
    assert lengths == pytest.approx((energy + 0.5 * energy.mean()) ** -0.5, rel=1e-3)
    assert np.isfinite(whitening(x[:3], 8, ridge=0.5)(x)).all()
    with pytest.raises(ConfigError, match=r"ridge is -1: expected 0 or more"):
        whitening(x, 8, ridge=-1)


def test_two_maps_are_one() -> None:
    a, p = noisy_pairs(40)
    first, second = whitening(a, 8), adapter(a, p, (8, 2), steps=5, batch_size=8)
    assert first.then(second)(p) == pytest.approx(second(first(p)), abs=1e-5)
    with pytest.raises(ConfigError, match="has a bias: expected one without"):
        second.then(first)


def test_row_batches_are_shuffled_epochs() -> None:
    batches = list(row_batches(7, 3, 4, seed=0))
    assert [len(b) for b in batches] == [3, 3, 3, 3]
    assert len({*batches[0].tolist(), *batches[1].tolist()}) == 6
    assert [len(b) for b in row_batches(2, 5, 2, seed=0)] == [2, 2]


@pytest.fixture(scope="module")
def bent() -> np.ndarray:
    """Two numbers, the second about the square of the first: no Gaussian."""
    x = np.random.default_rng(2).normal(size=(400, 1))
    noise = 0.1 * np.random.default_rng(3).normal(size=(400, 1))
    return np.asarray(np.hstack([x, x**2 + noise]), np.float32)


@pytest.fixture
def zuko() -> None:
    pytest.importorskip("zuko", reason="zuko is not installed (the extra `posthoc`)")


@pytest.mark.usefixtures("zuko")
def test_flow_before_training_scores_what_its_parts_say(bent: np.ndarray) -> None:
    found = flow(bent, 2, steps=0, hidden=8)
    latents = found.latents(bent).astype(np.float64)
    # Additive couplings keep volumes: the density is the Gaussian's over the standardisation's.
    gaussian = -0.5 * (latents**2).sum(axis=1) - np.log(2 * np.pi)
    expected = gaussian - np.log(bent.std(axis=0, ddof=1)).sum()
    assert found.log_likelihood(bent) == pytest.approx(expected, abs=1e-4)


@pytest.mark.usefixtures("zuko")
def test_flow_learns_a_bent_density(bent: np.ndarray) -> None:
    losses: list[float] = []
    settings = {"hidden": 32, "batch_size": 128, "learning_rate": 5e-3}
    fitted, unseen = bent[:300], bent[300:]
    before = flow(fitted, 2, steps=0, **settings).log_likelihood(unseen).mean()  # type: ignore[arg-type]
    found = flow(fitted, 2, steps=200, report=lambda _, loss: losses.append(loss), **settings)  # type: ignore[arg-type]
    assert found.log_likelihood(unseen).mean() > before + 0.5
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.5
    # The first report is of the untrained flow, in the same nats.
    assert losses[0] == pytest.approx(-before, abs=0.4)
    rows = found.first(1)(unseen)
    assert rows.shape == (100, 1) and np.abs(rows) == pytest.approx(np.ones((100, 1)), abs=1e-5)


@pytest.mark.usefixtures("zuko")
def test_flow_follows_from_its_seed_and_leaves_the_global_one_alone(bent: np.ndarray) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, again, other = (flow(bent, 2, steps=3, hidden=8, seed=s)(bent) for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)


UMAP = """
import json, sys
import numpy as np
from searchengine.trainer.errors import DataError
from manifold import umap
rng = np.random.default_rng(0)
# Two groups of directions, far apart.
x = np.repeat(np.eye(6)[:2], 12, axis=0) + 0.1 * rng.normal(size=(24, 6))
first, again = (umap(x, 2, seed=7, neighbours=6, epochs=30) for _ in range(2))
rows, same, unseen = first(x), again(x), first(x[:5] + 0.01)
refused = ""
try:
    umap(x[:7], 6)
except DataError as error:
    refused = str(error)
inside = rows[:12] @ rows[:12].T, rows[12:] @ rows[12:].T, rows[:12] @ rows[12:].T
print(json.dumps({
    "shapes": [rows.shape, unseen.shape],
    "dtype": str(rows.dtype),
    "same": bool((rows == same).all()),
    "lengths": np.linalg.norm(unseen, axis=1).tolist(),
    "cosines": [float(c.mean()) for c in inside],
    "refused": refused,
}))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("umap") is None,
    reason="umap-learn is not installed (the extra `posthoc`)",
)
@pytest.mark.long
def test_umap_keeps_groups_apart_and_follows_from_its_seed() -> None:
    # In a process of its own, without the compiler: that would take longer than all other tests.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UMAP],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=REPOSITORY / "benchmarks",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["shapes"] == [[24, 2], [5, 2]] and found["dtype"] == "float32"
    assert found["same"]
    assert found["lengths"] == pytest.approx([1] * 5, abs=1e-5)
    one, other, across = found["cosines"]
    assert min(one, other) > 0.8 and across < 0
    assert found["refused"].startswith("7 vectors: UMAP to 6 numbers needs 8")


@pytest.mark.parametrize("package", ["zuko", "umap"])
def test_a_missing_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import manifold

    monkeypatch.setitem(sys.modules, package, None)
    fit = {"zuko": manifold.flow, "umap": manifold.umap}[package]
    with pytest.raises(ConfigError, match=r"install the extra `posthoc` \(pip install"):
        fit(vectors(), 2)  # type: ignore[operator]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_sentence_transformer(folder, matryoshka_dims=[WIDTH, 16, 4])
    return Encoder.load(folder, precision="fp32")


@pytest.mark.parametrize("kind", ["pca", "whitening", "adapter"])
def test_a_baked_encoder_gives_what_the_map_gives(
    kind: str, encoder: Encoder, tmp_path: Path
) -> None:
    x = encoder.encode([f"{one} {other}" for one in TEXTS for other in TEXTS])
    reduction = {
        "pca": lambda: pca(x, 8),
        "whitening": lambda: whitening(x, 8),
        "adapter": lambda: adapter(x, x[::-1].copy(), (8, 4), steps=3),
    }[kind]()
    before = encoder.fingerprint
    baked_encoder = baked(encoder, reduction)
    expected = reduction(encoder.encode(TEXTS))
    assert baked_encoder.encode(TEXTS) == pytest.approx(expected, abs=1e-5)
    assert (baked_encoder.dim, baked_encoder.matryoshka_dims) == (8, (8, 4))
    baked_encoder.save(tmp_path / "out")
    again = Encoder.load(tmp_path / "out", precision="fp32")
    assert again.encode(TEXTS) == pytest.approx(expected, abs=1e-5)
    assert again.fingerprint == baked_encoder.fingerprint != before
    assert dict(again.recipe) == {"posthoc": {"map": reduction.name, "width": 8}}
    baked_encoder.module.head[-2].linear.weight.data.zero_()  # type: ignore[union-attr]
    assert Encoder(encoder.model, "").fingerprint == before


def test_sentence_transformers_reads_a_baked_folder(encoder: Encoder, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    reduction = whitening(encoder.encode([f"{a} {b}" for a in TEXTS for b in TEXTS]), 8)
    baked(encoder, reduction).save(tmp_path / "out")
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    assert found == pytest.approx(reduction(encoder.encode(TEXTS)), abs=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, e: pca(x, 9), ConfigError, "width 9: expected 1 to 8"),
        (lambda x, e: whitening(x[:5], 8), DataError, "5 vectors vary in 4 directions"),
        (lambda x, e: pca(x[0], 1), DataError, r"\(8,\): expected \(n, D\)"),
        (lambda x, e: pca(x * np.nan, 1), DataError, "NaN"),
        (lambda x, e: pca(x, 2)(x[:, :7]), DataError, r"expected \(n, 8\)"),
        (lambda x, e: pca(x, 2).first(3), ConfigError, "width 3: expected 1 to 2"),
        (lambda x, e: adapter(x, x[1:], (8,)), DataError, "expected two equal shapes"),
        (lambda x, e: adapter(x, x, ()), ConfigError, "width 0: expected 1 to 8"),
        (lambda x, e: adapter(x, x, (8,), steps=-1), ConfigError, "-1 steps"),
        (lambda x, e: baked(e, pca(x, 2)), ConfigError, "8 wide, but .* gives 32"),
    ],
)
def test_bad_input_is_named(call, error, message, encoder: Encoder) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call(vectors(), encoder)
