"""Hard negatives in the plane: a vector is an angle."""

import numpy as np

from searchengine.adapt.adapting import hard_negatives
from searchengine.trainer.training.hard_negatives import MiningConfig


def plane(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_the_nearest_within_the_margin_that_answers_nothing() -> None:
    anchors, positives = plane(0, 0, 90), plane(30, 30, 60)
    passages, documents = plane(10, 32, 35, 50, 60), np.array([1, 2, 2, 3, 4])
    # At most 0.95 · cos 30° = 0.823: at 0 degrees, 35 degrees are the first (0.819).
    found = hard_negatives(anchors, positives, [(9,), (2,), (3, 4)], passages, documents)
    assert np.array_equal(found, plane(35, 50, 35))


def test_zeros_where_all_are_too_near() -> None:
    documents = np.array([1, 2])
    found = hard_negatives(plane(0), plane(80), [(1,)], plane(10, 20), documents)
    assert np.array_equal(found, np.zeros((1, 2)))
    none = hard_negatives(plane(0), plane(80), [(1, 2)], plane(10, 85), documents)
    assert np.array_equal(none, np.zeros((1, 2)))


def test_no_rank_below_the_depth() -> None:
    config = MiningConfig(depth=2)
    passages, documents = plane(10, 32, 50), np.arange(3)
    found = hard_negatives(plane(0), plane(30), [()], passages, documents, config)
    assert not found.any()  # the first two are too near
