"""How a training pair is made: what an example gives as anchor, positive and hard negatives.

A sentence alone is its own positive: two passes through the network differ by dropout (SimCSE,
Gao et al., arXiv 2104.08821, section 4), or also by what the paper compares it with: a word or
some words deleted, a crop, or the next sentence. Of several paraphrases another two are drawn in
every epoch. Pairs and triplets are as they were read, so a file of back-translations or other
augmentations (CERT, Fang et al., arXiv 2005.12766) is a file of pairs.
"""

import math
import random
from enum import StrEnum
from typing import NamedTuple

# The texts of an example as they were read; what they mean is its Kind. A label and scores are the
# last of them.
Texts = tuple[str, ...]


class Kind(StrEnum):
    """How the texts of an example are related."""

    PAIR = "pair"  # anchor, positive
    TRIPLET = "triplet"  # anchor, positive, hard negatives
    SENTENCE = "sentence"  # one text, its own positive under dropout
    PARAPHRASES = "paraphrases"  # two or more that mean the same
    LABELLED = "labelled"  # a text, its label
    SCORED = "scored"  # anchor, positive, perhaps negatives; their scores, separated by spaces


class Augment(StrEnum):
    """How a sentence's positive differs from it, besides the dropout mask."""

    NONE = "none"  # the sentence itself
    DELETE_WORD = "delete-word"  # without one of its words
    DELETE = "delete"  # without a share of its words
    CROP = "crop"  # a run of its words, without a share of them
    NEXT_SENTENCE = "next-sentence"  # what follows it in the file


class Drawn(NamedTuple):
    """One row of a batch.

    label: of labelled text, whose positive is unused. one_text: anchor and positive are two views
    of one sentence. scores: as they were read: one for each candidate, the positive first, or for
    each negative the positive's lead.
    """

    anchor: str
    positive: str = ""
    negatives: Texts = ()
    label: str = ""
    one_text: bool = False
    scores: tuple[float, ...] = ()


Batch = list[Drawn]


def draw(
    kind: Kind,
    texts: Texts,
    rng: random.Random,
    augment: Augment = Augment.NONE,
    share: float = 0.1,
) -> Drawn:
    """The row an example gives in this epoch; augment and share change sentences alone."""
    match kind:
        case Kind.PAIR | Kind.TRIPLET:
            return Drawn(texts[0], texts[1], texts[2:])
        case Kind.SENTENCE:
            return Drawn(texts[0], augmented(texts[0], augment, share, rng), one_text=True)
        case Kind.PARAPHRASES:
            anchor, positive = rng.sample(texts, 2)
            return Drawn(anchor, positive)
        case Kind.LABELLED:
            return Drawn(texts[0], label=texts[1])
        case Kind.SCORED:
            scores = tuple(map(float, texts[-1].split()))
            return Drawn(texts[0], texts[1], texts[2:-1], scores=scores)


def augmented(text: str, augment: Augment, share: float, rng: random.Random) -> str:
    """The text with words left out; one word at least is always left."""
    words = text.split()
    gone = 1 if augment is Augment.DELETE_WORD else round(share * len(words))
    gone = min(gone, len(words) - 1)
    match augment:
        case Augment.DELETE_WORD | Augment.DELETE if gone > 0:
            out = set(rng.sample(range(len(words)), gone))
            return " ".join(word for i, word in enumerate(words) if i not in out)
        case Augment.CROP if gone > 0:
            start = math.floor(rng.random() * (gone + 1))
            return " ".join(words[start : start + len(words) - gone])
        case _:
            return text
