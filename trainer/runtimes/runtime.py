"""How a forward pass is run: what an engine must do, and in what batches.

The seam between the encoder and its engines. Nothing here imports one: torch alone takes seconds,
and an encoder whose graph is compiled does without it.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainer.model.tokens import Padded
from trainer.runtimes.config import Engine, Precision

Vectors = NDArray[np.float32]
Item = TypeVar("Item")
END = object()

# The size of a batch is chosen on rows of so many tokens, in so many rounds.
PROBE_WIDTH, PROBE_ROUNDS = 128, 3


class Runtime(Protocol):
    """Runs one model in one arithmetic. Safe to use from several threads."""

    @property
    def engine(self) -> Engine:
        """Which engine this is."""

    @property
    def precision(self) -> Precision:
        """What it computes in, never AUTO."""

    @property
    def token_budget(self) -> int:
        """Tokens of a padded batch that it runs fastest."""

    @property
    def multiple(self) -> int:
        """What the width of a batch is best a multiple of."""

    @property
    def packs(self) -> bool:
        """Whether it computes little padding, however much of a batch is."""

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32."""


def token_budget_batches(
    lengths: Sequence[int], budget: int, alike: float = 0.0
) -> Iterator[list[int]]:
    """Positions grouped by similar length, so that width · rows of a batch stays within `budget`.

    Longest first: if memory runs out, it does at once. A row longer than the budget goes alone. No
    row is shorter than `alike` times its batch's width, so that few texts are not mostly padding.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        widest = lengths[batch[0]] if batch else 0  # the first row of a batch is its longest
        if batch and (max(1, widest) * (len(batch) + 1) > budget or lengths[i] < alike * widest):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def fastest_budget(runtime: Runtime, budgets: Sequence[int], width: int) -> int:
    """Which of `budgets` (tokens of a batch, ascending) runs most tokens in a second.

    Each is tried in turn on rows of `width` tokens, some rounds; of equals (within 3 %) the
    smallest.
    """
    seconds: dict[int, list[float]] = {budget: [] for budget in budgets}
    for repeat in range(PROBE_ROUNDS + 1):
        for budget in budgets:
            ids = np.zeros((max(1, budget // width), width), np.int64)
            start = time.perf_counter()
            runtime.run(Padded(ids, np.ones_like(ids)))
            if repeat:  # the first round prepares
                seconds[budget].append((time.perf_counter() - start) / ids.size)
    best = {budget: statistics.median(found) for budget, found in seconds.items()}
    return min(budget for budget in budgets if best[budget] <= 1.03 * min(best.values()))


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is made in a thread while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, END)
        while (item := coming.result()) is not END:
            coming = thread.submit(next, items, END)
            yield item  # type: ignore[misc]
