"""STS: reading, correlation per prefix and setting, the published figures of the starter."""

import json
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from scipy import stats

from searchengine.cli import cli
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import DataError
from searchengine.trainer.evaluation.intervals import (
    bootstrap,
    spearman_interval,
    spearman_of_draws,
)
from searchengine.trainer.evaluation.sts import (
    StsTask,
    alignment,
    effective_rank,
    spectrum,
    sts_tasks,
    uniformity,
)
from searchengine.trainer.training.examples import read_sts
from tests.conftest import Numbers
from tests.tiny_model import write_sentence_transformer

PAIRS = [
    (5.0, "1 0 0", "2 0 0"),  # cosine 1 and, over 2 dims, 1
    (3.0, "1 0 0", "1 1 0"),  # 0.71, 0.71
    (2.0, "1 0 0", "0 1 0"),  # 0, 0
    (1.0, "1 0 0", "-1 0 9"),  # −0.11, −1
    (0.0, "1 0 3", "0 1 3"),  # 0.9, 0: out of order at full width only
]


def test_spearman_by_hand() -> None:
    encoder = Numbers()
    full, short = sts_tasks(encoder, [StsTask("", PAIRS)])
    # Ranks of the scores 5 4 3 2 1; of the full cosines 5 3 2 1 4: Σd² = 0+1+1+1+9 = 12.
    assert full.spearman == pytest.approx(1 - 6 * 12 / (5 * 24))
    # Over 2 dims the third and last tie at 0: ranks 5 4 2.5 1 2.5, by Pearson of the ranks.
    ranks = np.corrcoef([5, 4, 3, 2, 1], [5, 4, 2.5, 1, 2.5])[0, 1]
    assert short.spearman == pytest.approx(ranks)
    assert (full.dim, short.dim, full.n) == (3, 2, 5)
    assert len(encoder.asked) == len(set(encoder.asked)) == 7


def ranked(*order: float) -> list[tuple[float, str, str]]:
    """Pairs whose cosines fall from the first to the last; the scores are `order`."""
    return [(score, "1 0 0", f"1 {i} 0") for i, score in enumerate(order)]


def test_tasks_that_cannot_be_correlated_are_named() -> None:
    encoder = Numbers()
    for hopeless in ((1,), (4, 4)):
        with pytest.raises(DataError, match="t: a correlation needs two scores"):
            sts_tasks(encoder, [StsTask("t", ranked(*hopeless))])
    assert encoder.asked == []  # refused before anything is encoded
    same = [(1.0, "1 0 0", "1 1 0"), (2.0, "1 0 0", "1 1 5")]
    with pytest.raises(DataError, match="t: all 2 pairs have the same cosine over 2 dim"):
        sts_tasks(encoder, [StsTask("t", same)])


def test_command_gives_a_row_a_task_and_an_average(tmp_path: Path) -> None:
    header, model = "score\tsentence1\tsentence2\n", tmp_path / "model"
    write_sentence_transformer(model)
    first, two = tmp_path / "a.b.tsv", tmp_path / "two.tsv"
    first.write_text(header + "5\ta dog\ta dog runs\n1\ta dog\tthe sea\n2\tred\tblue\n")
    two.write_text(header + "0\ta cat\ta car\n3\ta house\ta tree\n")

    def evaluate(*arguments: object) -> list[dict[str, object]]:
        # The precision that auto measures to be fastest may differ from run to run.
        command = ["evaluate", "sts", "--encoder", model, "--runtime", "fp32", "--json", *arguments]
        done = CliRunner().invoke(cli, [*map(str, command)])
        assert done.exit_code == 0, done.output
        rows: list[dict[str, object]] = json.loads(done.stdout)
        return rows

    rows = evaluate(first, two, "--prefixes", "32,8")
    assert [(row["task"], row["dim"], row["n"]) for row in rows] == [
        *(("a", 32, 3), ("a", 8, 3), ("two", 32, 2), ("two", 8, 2)),
        *(("average", 32, 5), ("average", 8, 5)),
    ]
    encoder = Encoder.load(model, precision="fp32")
    (expected,) = sts_tasks(encoder, [StsTask("", read_sts([two]))], [8])
    assert rows[3]["spearman"] == pytest.approx(expected.spearman)
    (alone,) = evaluate(two)  # no average of one task
    assert (alone["task"], alone["n"], alone["layers"]) == ("two", 2, 2)


# --- alignment, uniformity and spectrum -----------------------------------------------------------

SQUARE = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=np.float32)


def unit_rows(seed: int, n: int, dim: int) -> NDArray[np.float32]:
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_by_hand() -> None:
    """Of six pairs of the square four are √2 apart and two are 2 apart."""
    assert alignment(SQUARE[[0, 0, 0]], SQUARE[[0, 1, 2]]) == pytest.approx((0 + 2 + 4) / 3)
    assert uniformity(SQUARE) == pytest.approx(log((4 * exp(-4) + 2 * exp(-8)) / 6), rel=1e-6)
    assert uniformity(SQUARE[[1, 1, 1]]) == pytest.approx(0, abs=1e-6)
    x = np.array([[3, 0, 0], [0, 4, 0], [0, 0, 0]], dtype=np.float32)
    assert spectrum(x) == pytest.approx([4 / 7, 3 / 7, 0])
    entropy = -(4 / 7 * log(4 / 7) + 3 / 7 * log(3 / 7))
    assert effective_rank(x) == pytest.approx(exp(entropy))
    assert effective_rank(SQUARE[[0, 0, 2]]) == pytest.approx(1)
    assert spectrum(np.ones((2, 6), dtype=np.float32)).shape == (2,)


def test_rows_of_a_task() -> None:
    """Over two numbers the four sentences are the square; the third number is not among them."""
    pairs = [(4.0, "1 0 0", "0 2 0"), (5.0, "1 0 0", "1 0 0"), (3.9, "-1 0 1", "0 -3 0")]
    encoder = Numbers()
    full, short = sts_tasks(encoder, [StsTask("t", pairs)])
    assert encoder.asked == ["1 0 0", "0 2 0", "-1 0 1", "0 -3 0"]
    assert short.alignment == pytest.approx((2 + 0) / 2)
    assert short.uniformity == pytest.approx(uniformity(SQUARE), rel=1e-6)
    assert short.effective_rank == pytest.approx(2)
    assert full.uniformity != short.uniformity and full.spearman_interval is None
    low = [(score - 2, a, b) for score, a, b in pairs]
    assert sts_tasks(Numbers(), [StsTask("t", low)])[0].alignment is None


# --- intervals ------------------------------------------------------------------------------------


def sample(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values with ties, which agree in part."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.uniform(0, 5, n), 1)
    return np.round(scores + rng.normal(size=n), 1), scores


def test_the_interval_is_that_of_scipy() -> None:
    x, y = sample(40)
    oracle = stats.bootstrap(
        (x, y),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=99,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    ends = bootstrap(40, spearman_of_draws(x, y), resamples=99)
    assert ends == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    low, high = spearman_interval(x, y)
    assert low < stats.spearmanr(x, y).statistic < high
