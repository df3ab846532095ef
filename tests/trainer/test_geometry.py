"""Alignment, uniformity, spectrum and isotropy: by hand, by an oracle, and what must not change."""

import json
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from searchengine.cli import cli
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation import geometry as module
from searchengine.trainer.evaluation.geometry import (
    alignment,
    effective_rank,
    geometry,
    isotropy,
    mean_cosine,
    spectrum,
    uniformity,
)
from tests.conftest import Numbers
from tests.tiny_model import write_sentence_transformer

SQUARE = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=np.float32)


def unit_rows(seed: int, n: int, dim: int) -> NDArray[np.float32]:
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_alignment_by_hand() -> None:
    a, b = SQUARE[[0, 0, 0]], SQUARE[[0, 1, 2]]  # distances 0, √2, 2
    assert alignment(a, b) == pytest.approx((0 + 2 + 4) / 3)
    assert alignment(a, b, alpha=1) == pytest.approx((2**0.5 + 2) / 3)


def test_uniformity_and_mean_cosine_of_a_square() -> None:
    """Of six pairs four are √2 apart (cosine 0) and two are 2 apart (cosine −1)."""
    assert uniformity(SQUARE) == pytest.approx(log((4 * exp(-4) + 2 * exp(-8)) / 6), rel=1e-6)
    assert uniformity(SQUARE, t=1) == pytest.approx(log((4 * exp(-2) + 2 * exp(-4)) / 6), rel=1e-6)
    assert mean_cosine(SQUARE) == pytest.approx(-2 / 6)
    assert uniformity(SQUARE[[1, 1, 1]]) == pytest.approx(0, abs=1e-6)
    assert mean_cosine(SQUARE[[1, 1, 1]]) == pytest.approx(1)


def test_more_rows_than_a_block() -> None:
    x = unit_rows(1, 2 * module.BLOCK + 3, 4)
    oracle = log(np.mean(np.exp(-2 * pdist(x.astype(np.float64), "sqeuclidean"))))
    assert uniformity(x) == pytest.approx(oracle, rel=1e-6)
    assert mean_cosine(x) == pytest.approx(1 - pdist(x, "sqeuclidean").mean() / 2, abs=1e-6)


def test_spectrum_and_effective_rank_by_hand() -> None:
    x = np.array([[3, 0, 0], [0, 4, 0], [0, 0, 0]], dtype=np.float32)
    assert spectrum(x) == pytest.approx([4 / 7, 3 / 7, 0])
    entropy = -(4 / 7 * log(4 / 7) + 3 / 7 * log(3 / 7))
    assert effective_rank(x) == pytest.approx(exp(entropy))
    assert effective_rank(np.eye(5, dtype=np.float32)) == pytest.approx(5)
    assert effective_rank(SQUARE[[0, 0, 2]]) == pytest.approx(1)
    assert spectrum(np.ones((2, 6), dtype=np.float32)).shape == (2,)


def test_isotropy_by_hand() -> None:
    assert isotropy(SQUARE) == pytest.approx(1)
    # All in one place: along it Z is 2e, against it 2/e, across it 2.
    assert isotropy(SQUARE[[0, 0]]) == pytest.approx(exp(-2))
    # One row on each axis: along one Z is e + 1, against it 1/e + 1.
    x = np.array([[2, 0], [0, 1]], dtype=np.float32)
    assert isotropy(x) == pytest.approx((exp(-2) + 1) / (exp(2) + 1))


@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(2, 40), dim=st.integers(1, 12),
    scale=st.floats(0.1, 10),
)  # fmt: skip
def test_invariants(seed: int, n: int, dim: int, scale: float) -> None:
    """A turn and another order of the rows change nothing; every measure keeps to its range."""
    x, y = unit_rows(seed, n, dim).astype(np.float64), unit_rows(seed ^ 1, n, dim)
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    turned = (x @ turn)[::-1]
    assert uniformity(turned) == pytest.approx(uniformity(x), abs=1e-6)
    assert mean_cosine(turned) == pytest.approx(mean_cosine(x), abs=1e-9)
    assert spectrum(turned * scale) == pytest.approx(spectrum(x), abs=1e-6)
    assert alignment(x @ turn, y @ turn) == pytest.approx(alignment(x, y), abs=1e-6)
    assert -8 - 1e-6 <= uniformity(x) <= 1e-6
    assert 0 <= alignment(x, y) <= 4 + 1e-6 and alignment(x, x) == 0
    assert 1 - 1e-9 <= effective_rank(x) <= min(n, dim) + 1e-9
    assert exp(-2) - 1e-6 <= isotropy(x) <= 1


def test_hopeless_arrays() -> None:
    with pytest.raises(DataError, match=r"alignment of arrays of shape \(4, 2\) and \(2, 2\)"):
        alignment(SQUARE, SQUARE[:2])
    with pytest.raises(DataError, match=r"shape \(0, 2\) and \(0, 2\)"):
        alignment(SQUARE[:0], SQUARE[:0])
    for measure in (uniformity, mean_cosine, spectrum, effective_rank, isotropy):
        with pytest.raises(DataError, match=r"of an array of shape \(1, 2\): expected \(n, D\)"):
            measure(SQUARE[:1])  # type: ignore[operator]
    with pytest.raises(DataError, match="2 rows that are all zero"):
        spectrum(np.zeros((2, 3), dtype=np.float32))


def test_geometry_by_hand() -> None:
    """Over two numbers the four sentences are the square; the third number is not among them."""
    pairs = [(4.0, "1 0 0", "0 2 0"), (5.0, "1 0 0", "1 0 0"), (3.9, "-1 0 1", "0 -3 0")]
    encoder = Numbers()
    full, short = geometry(encoder, pairs)
    assert encoder.asked == ["1 0 0", "0 2 0", "-1 0 1", "0 -3 0"]
    assert (full.dim, short.dim, short.positives, short.n) == (3, 2, 2, 4)
    assert short.alignment == pytest.approx((2 + 0) / 2)
    assert short.uniformity == pytest.approx(uniformity(SQUARE), rel=1e-6)
    assert short.isotropy == pytest.approx(1) and short.effective_rank == pytest.approx(2)
    assert short.mean_cosine == pytest.approx(-1 / 3)
    # Of the six cosines at full width one is −1, one −1/√2, and the others are 0.
    assert full.mean_cosine == pytest.approx((-1 - 0.5**0.5) / 6)
    (lower,) = geometry(encoder, pairs, [2], positive_from=3)
    assert lower.alignment == pytest.approx((2 + 0 + 2) / 3) and lower.positives == 3
    with pytest.raises(DataError, match=r"none of 3 pairs has a score of at least 5\.5"):
        geometry(encoder, pairs, positive_from=5.5)
    with pytest.raises(ConfigError, match="prefix length 4: expected 1 to 3"):
        geometry(encoder, pairs, [4])


def test_command(tmp_path: Path) -> None:
    write_sentence_transformer(tmp_path / "model")
    file = tmp_path / "pairs.tsv"
    file.write_text("score\tsentence1\tsentence2\n5\ta dog\tthe dog\n1\ta cat\tthe sea\n")
    command = ["evaluate", "geometry", str(file), "--encoder", str(tmp_path / "model")]
    done = CliRunner().invoke(cli, [*command, "--prefixes", "32,8", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["dim"], row["positives"], row["n"]) for row in rows] == [(32, 1, 4), (8, 1, 4)]
    assert 1 < rows[1]["effective_rank"] < rows[0]["effective_rank"] <= 4
    refused = CliRunner().invoke(cli, [*command, "--positive-from", "6"])
    assert refused.exit_code == 2 and "a score of at least 6" in refused.stderr
