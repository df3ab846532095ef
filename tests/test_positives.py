"""How examples become rows."""

import random
from collections import Counter

from trainer.positives import Drawn, Kind, draw


def test_kinds_without_chance() -> None:
    rng = random.Random(0)
    before = rng.getstate()
    assert draw(Kind.PAIR, ("a", "b"), rng) == Drawn("a", "b")
    assert draw(Kind.TRIPLET, ("a", "b", "c"), rng) == Drawn("a", "b", ("c",))
    assert draw(Kind.SENTENCE, ("a",), rng) == Drawn("a", "a")
    assert rng.getstate() == before


def test_every_ordered_pair_of_paraphrases_is_as_likely() -> None:
    rng = random.Random(1)
    counts = Counter(draw(Kind.PARAPHRASES, ("a", "b", "c"), rng)[:2] for _ in range(6000))
    assert set(counts) == {(x, y) for x in "abc" for y in "abc" if x != y}
    assert all(abs(n - 1000) < 150 for n in counts.values())  # 5 standard deviations
