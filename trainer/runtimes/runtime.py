"""The interface of a runtime, and the batches of texts that the encoder gives it."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.model.tokens import Ids

Vectors = NDArray[np.float32]


class Runtime(Protocol):
    """Runs one model in one arithmetic. Safe to use from several threads.

    Attributes:
        kind: "native", "torch", or "numpy" for a static model.
        precision: the one in use, never "auto".
        min_ratio: least length of a text in a batch that it runs fastest, relative to the longest.
        token_budget: tokens of the batch that it runs fastest.
    """

    kind: str
    precision: str
    min_ratio: float
    token_budget: int

    def run(self, rows: Sequence[Ids]) -> Vectors:
        """Unit rows (B, dim) float32."""


def token_budget_batches(
    lengths: Sequence[int], budget: int, min_ratio: float = 0.0
) -> Iterator[list[int]]:
    """Positions grouped by similar length, so that width · rows of a batch stays within `budget`.

    Longest first: if memory runs out, it does so at once. A row longer than the budget is a batch
    of its own. No row is shorter than `min_ratio` times its batch's width, which bounds padding.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        widest = lengths[batch[0]] if batch else 0  # the first row of a batch is its longest
        full = max(1, widest) * (len(batch) + 1) > budget or lengths[i] < min_ratio * widest
        if batch and full:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
