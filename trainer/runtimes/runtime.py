"""The interface of a runtime, and the batches of texts that the encoder gives it.

Nothing here imports a runtime: torch alone takes seconds, and an encoder whose graph is compiled
does not need it.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.model.tokens import Ids, Padded, TokenIds
from searchengine.trainer.runtimes.runtime_config import Precision

Vectors = NDArray[np.float32]
Item = TypeVar("Item")
END = object()

# The least length of a text in a batch, relative to the longest: at worst half is padding.
MIN_LENGTH_RATIO = 0.5
# Batch sizes are measured on rows of PROBE_WIDTH tokens, in PROBE_ROUNDS rounds.
PROBE_WIDTH, PROBE_ROUNDS = 128, 3
# Runtimes are compared on a batch of this many tokens, in this many turns.
SPEED_TOKENS, SPEED_ROUNDS = 1024, 7


class Runtime(Protocol):
    """Runs one model in one arithmetic. Safe to use from several threads."""

    @property
    def kind(self) -> StrEnum:
        """Which runtime this is: a RuntimeKind but AUTO, or that of a static model."""

    @property
    def precision(self) -> Precision:
        """The precision in use, never AUTO."""

    @property
    def token_budget(self) -> int:
        """Tokens of the padded batch that it runs fastest."""

    @property
    def multiple(self) -> int:
        """The width of a batch should be a multiple of this."""

    @property
    def packs(self) -> bool:
        """Whether it computes little padding, however much a batch has."""

    def run(self, batch: Padded) -> Vectors:
        """Unit rows (B, dim) float32; of pairs, scores (B, 1)."""


def run_batches(
    runtime: Runtime, tokens: TokenIds, ids: Sequence[Ids], prompt_tokens: int = 0
) -> Iterator[tuple[list[int], Vectors]]:
    """Positions in `ids` and what the runtime computes of them, a batch at a time."""
    # One row is a batch, whatever the budget, which may have to be measured first.
    budget = runtime.token_budget if len(ids) > 1 else 1
    min_ratio = 0.0 if runtime.packs else MIN_LENGTH_RATIO
    for batch in token_budget_batches([len(row) for row in ids], budget, min_ratio):
        rows = [ids[i] for i in batch]
        yield batch, runtime.run(tokens.pad(rows, prompt_tokens, runtime.multiple))


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
        if batch and (
            max(1, widest) * (len(batch) + 1) > budget or lengths[i] < min_ratio * widest
        ):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def fastest_budget(runtime: Runtime, budgets: Sequence[int], width: int) -> int:
    """The one of `budgets` (tokens of a batch, ascending) with the most tokens per second.

    Each is timed on rows of `width` tokens, in turn, for several rounds; of equals (within 3 %) the
    smallest wins.
    """
    seconds: dict[int, list[float]] = {budget: [] for budget in budgets}
    for repeat in range(PROBE_ROUNDS + 1):
        for budget in budgets:
            batch = blank(budget, width)
            start = time.perf_counter()
            runtime.run(batch)
            if repeat:  # the first round prepares
                seconds[budget].append((time.perf_counter() - start) / batch.ids.size)
    median = {budget: statistics.median(times) for budget, times in seconds.items()}
    return min(budget for budget in budgets if median[budget] <= 1.03 * min(median.values()))


def blank(tokens: int, width: int) -> Padded:
    """A batch of about so many tokens, in rows of `width`, to measure with."""
    ids = np.zeros((max(1, tokens // width), width), np.int64)
    return Padded(ids, np.ones_like(ids))


def speeds(runtimes: Mapping[str, Runtime], width: int) -> dict[str, float]:
    """Tokens per second of each runtime, by its name, on rows of `width` tokens.

    They take turns, and the fastest turn counts: other programs only make turns slower. The first
    run of a turn is not timed: the threads of the runtime before may still be spinning.
    """
    fastest = dict.fromkeys(runtimes, float("inf"))
    batch = blank(SPEED_TOKENS, width)
    for _ in range(SPEED_ROUNDS):
        for name, runtime in runtimes.items():
            for _ in range(2):
                start = time.perf_counter()
                runtime.run(batch)
            fastest[name] = min(fastest[name], time.perf_counter() - start)
    return {name: batch.ids.size / seconds for name, seconds in fastest.items()}


def prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is computed in a thread while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, END)
        while (item := upcoming.result()) is not END:
            upcoming = thread.submit(next, items, END)
            yield item  # type: ignore[misc]
