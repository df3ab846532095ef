"""How a training pair is made: what an example gives as anchor, positive and hard negative.

A sentence alone is its own positive: two passes through the network differ by dropout (SimCSE,
Gao et al., arXiv 2104.08821). Of several paraphrases another two are drawn in every epoch.
"""

import random
from enum import StrEnum
from typing import NamedTuple

# The texts of an example as they were read; what they mean is its Kind.
Texts = tuple[str, ...]


class Kind(StrEnum):
    """What the texts of an example are to each other."""

    PAIR = "pair"  # anchor, positive
    TRIPLET = "triplet"  # anchor, positive, hard negative
    SENTENCE = "sentence"  # one text, its own positive under dropout
    PARAPHRASES = "paraphrases"  # two or more that mean the same


class Drawn(NamedTuple):
    """One row of a batch. negative: None for kinds that have none."""

    anchor: str
    positive: str
    negative: str | None = None


def draw(kind: Kind, texts: Texts, rng: random.Random) -> Drawn:
    """The row an example gives in this epoch; only PARAPHRASES use the random numbers."""
    match kind:
        case Kind.PAIR:
            return Drawn(texts[0], texts[1])
        case Kind.TRIPLET:
            return Drawn(texts[0], texts[1], texts[2])
        case Kind.SENTENCE:
            return Drawn(texts[0], texts[0])
        case Kind.PARAPHRASES:
            anchor, positive = rng.sample(texts, 2)
            return Drawn(anchor, positive)
