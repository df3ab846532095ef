"""Near duplicates, listed, against a plain loop over all pairs."""

from pathlib import Path

import numpy as np
import pytest

from searchengine import SearchEngine

COUNT, DIM = 1300, 80  # enough that a bound of their cosine skips pairs


def clustered() -> np.ndarray:
    """Unit rows around a few centres, some of them equal."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((COUNT // 6, DIM))
    noise = rng.standard_normal((COUNT, DIM)) * rng.choice([0, 0.1, 0.3], (COUNT, 1))
    rows = centres[rng.integers(0, len(centres), COUNT)] + noise
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("above", [0.3, 0.95, 1 - 1e-6])
def test_groups_are_those_of_all_pairs(tmp_path: Path, above: float) -> None:
    """A document joins the first of the groups whose first document is as near as that."""
    rows = clustered()
    with SearchEngine.create(tmp_path / "c", None, {"storage": "float32"}, dim=DIM) as engine:
        for part in np.split(np.arange(COUNT), [700]):
            engine.add(({"_id": i} for i in part.tolist()), rows[part])
        done: list[int] = []
        groups = engine.duplicates(above, progress=lambda number, total: done.append(number))
    cosines, expected = rows @ rows.T, dict[int, list[int]]()
    for i in range(COUNT):
        near = (first for first in expected if cosines[first, i] >= above)
        expected.setdefault(next(near, i), []).append(i)
    members = [each for each in expected.values() if len(each) > 1]
    assert [group.keys for group in groups] == [tuple(map(str, each)) for each in members]
    assert len(groups) > 20 and sum(done) == COUNT
    for group, each in zip(groups, members, strict=True):
        assert group.cosines == pytest.approx(cosines[each[0], each], abs=1e-5)
