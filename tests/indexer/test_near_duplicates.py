"""Groups of near duplicates against a plain loop over all pairs."""

import numpy as np
import pytest

from searchengine.indexer.search import exact
from searchengine.indexer.search.exact import leaders


def plain(vectors: np.ndarray, above: float) -> tuple[list[int], list[float]]:
    """As `leaders` states it."""
    leader, cosine = [], []
    for i, vector in enumerate(vectors):
        firsts = [j for j in range(i) if leader[j] == j]
        near = [j for j in firsts if vectors[j] @ vector >= above]
        leader.append(near[0] if near else i)
        cosine.append(float(vectors[near[0]] @ vector) if near else 1.0)
    return leader, cosine


def clustered(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Unit rows around a few centres, some of them equal, a row of zeros among them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count // 6, dim))
    noise = rng.standard_normal((count, dim)) * rng.choice([0, 0.1, 0.3], (count, 1))
    vectors = centres[rng.integers(0, len(centres), count)] + noise
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[count // 2] = 0
    return vectors.astype(np.float32)


@pytest.mark.parametrize(("dim", "above"), [(3, 0.93), (66, 0.5), (200, 1 - 1e-6)])
def test_groups_are_those_of_all_pairs(
    dim: int, above: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_FEW", 10)
    monkeypatch.setattr(exact, "_PAIRS", 7)
    vectors = clustered(260, dim)
    expected = plain(vectors, above)
    for block in (1, 97, 1024):
        monkeypatch.setattr(exact, "_BLOCK", block)
        done: list[int] = []
        leader, cosine = leaders(vectors, above, done.append)
        assert leader.tolist() == expected[0]
        assert cosine == pytest.approx(expected[1], abs=1e-5)
        assert sum(done) == len(vectors) and len(done) == -(-260 // block)
    assert (leader != np.arange(260)).any() or above > 0.99


def test_few_and_none() -> None:
    leader, cosine = leaders(np.zeros((0, 5), np.float32), 0.9)
    assert leader.shape == cosine.shape == (0,)
    leader, _ = leaders(np.eye(3, dtype=np.float32)[[0, 1, 0, 2, 1]], 0.9)
    assert leader.tolist() == [0, 1, 0, 3, 1]
