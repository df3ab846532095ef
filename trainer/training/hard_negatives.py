"""Which of the texts that score high for an anchor are its hard negatives.

A candidate that scores nearly as high as the positive is probably an unlabelled positive; a margin
excludes it: a fraction of the positive's score (TopK-PercPos of NV-Retriever, Moreira et al., arXiv
2407.15831), or a difference, or both.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from searchengine.errors import QueryError


@dataclass(frozen=True, slots=True)
class MiningConfig:
    """Selection of hard negatives. Ranks leave out the anchor and its positives.

    Attributes:
        negatives: number of negatives per anchor.
        relative_margin: maximum score of a negative, as a fraction of the positive's.
        margin: minimum distance below the positive's score; None: no minimum.
        skip: number of first ranks to leave out.
        depth: last rank to consider.
        sample: take a random sample of the candidates within the margins, not the best ranked.
        seed: seed of the sample.
        exact: score every candidate at full width, without a shortlist.

    Raises:
        QueryError: a number outside its range, or more negatives than ranks.
    """

    negatives: int = 1
    relative_margin: float = 0.95
    margin: float | None = None
    skip: int = 0
    depth: int = 100
    sample: bool = False
    seed: int = 0
    exact: bool = False

    def __post_init__(self) -> None:
        if self.negatives < 1 or self.skip < 0:
            raise QueryError(
                "negatives must be at least 1 and skip at least 0, got "
                f"{self.negatives} and {self.skip}"
            )
        if self.depth < self.skip + self.negatives:
            raise QueryError(
                f"depth must be at least {self.skip + self.negatives} for {self.negatives} "
                f"negatives after {self.skip} skipped ranks, got {self.depth}"
            )
        if not self.relative_margin > 0:
            raise QueryError(f"relative margin must be above 0, got {self.relative_margin}")

    def limit(self, positive: float) -> float:
        """The maximum score of a negative for a positive with this score."""
        # abs: for a positive of −0.2, a margin of 0.95 must exclude −0.19.
        limit = positive - (1 - self.relative_margin) * abs(positive)
        return limit if self.margin is None else min(limit, positive - self.margin)


def choose(
    ranked: Sequence[tuple[int, float]], positive: float, config: MiningConfig, number: int = 0
) -> tuple[list[tuple[int, float]], int]:
    """Choose negatives among (row, score); return them and the number of ranks outside the margins.

    ranked: best first, without related texts. positive: score of the positive. number: number of
    the pair, which seeds the random sample. The sample keeps the order of ranks.
    """
    considered = ranked[config.skip : config.depth]
    limit = config.limit(positive)
    fitting = [item for item in considered if item[1] <= limit]
    dropped = len(considered) - len(fitting)
    if config.sample and len(fitting) > config.negatives:
        rng = random.Random(f"mine {config.seed} {number}")
        sample = sorted(rng.sample(range(len(fitting)), config.negatives))
        return [fitting[i] for i in sample], dropped
    return fitting[: config.negatives], dropped
