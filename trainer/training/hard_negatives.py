"""Which of the texts that score high for an anchor are its hard negatives.

A candidate that scores nearly as high as the positive is probably an unlabelled positive; a margin
excludes it: a fraction of the positive's score (TopK-PercPos of NV-Retriever, Moreira et al., arXiv
2407.15831), or a difference, or both.
"""

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

    Raises:
        QueryError: a number outside its range, or more negatives than ranks.
    """

    negatives: int = 1
    relative_margin: float = 0.95
    margin: float | None = None
    skip: int = 0
    depth: int = 100

    def __post_init__(self) -> None:
        if self.negatives < 1 or self.skip < 0 or self.depth < self.skip + self.negatives:
            raise QueryError(
                "negatives must be at least 1, skip at least 0 and depth at least their sum, got "
                f"{self.negatives}, {self.skip} and {self.depth}"
            )
        if not self.relative_margin > 0:
            raise QueryError(f"relative margin must be above 0, got {self.relative_margin}")


def choose(
    ranked: Sequence[tuple[int, float]], positive: float, config: MiningConfig
) -> tuple[list[int], int]:
    """The rows of the negatives among (row, score), and the number of ranks outside the margins.

    ranked: best first, without related texts. positive: score of the positive.
    """
    considered = ranked[config.skip : config.depth]
    # abs: for a positive of −0.2, a margin of 0.95 must exclude −0.19.
    limit = positive - (1 - config.relative_margin) * abs(positive)
    if config.margin is not None:
        limit = min(limit, positive - config.margin)
    fitting = [row for row, score in considered if score <= limit]
    return fitting[: config.negatives], len(considered) - len(fitting)
