"""Which examples an update takes, and at what rate."""

import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.positives import Batch, Drawn, Kind, draw
from searchengine.trainer.training.data_sets import DataSet

# Rows, and bytes of them, that are in memory at a time for each kind of a data set; and batches, at
# least. Within them rows change places, so that no text is twice in a batch.
BLOCK_ROWS, BLOCK_BYTES, BLOCK_BATCHES = 8192, 1 << 25, 4


class Stream:
    """The batches of all examples of one kind, pass after pass, each in another order.

    Every batch follows from the seed and its number. Each example is once in a pass, but a single
    row that is left over and has no negatives, which there would be nothing to tell apart from. No
    text is in two rows of a batch where the order can be changed to avoid it.
    """

    def __init__(self, data: DataSet, kind: Kind, name: str):
        """name: tells the streams of a run apart."""
        self.kind = kind
        self._config = data.config
        self._examples = data.examples
        self._places = data.examples.of_kind(kind)
        self._name = f"{name} {kind} {data.config.seed}"
        size = data.config.batch_size
        rows = min(BLOCK_ROWS, int(BLOCK_BYTES / max(1.0, data.examples.mean_bytes)))
        self._at_once = max(BLOCK_BATCHES, rows // size)  # batches of a block
        rest = len(self._places) % size
        self.per_pass = len(self._places) // size
        self.per_pass += rest > 1 or (rest == 1 and kind is Kind.TRIPLET)
        self.per_epoch = round(data.weight * self.per_pass)
        if self.per_pass and data.weight:
            self.per_epoch = max(1, self.per_epoch)
        self._pass, self._order = -1, self._places
        self._block, self._batches = (-1, -1), list[Batch]()

    def batch(self, number: int) -> Batch:
        """The batch of this number, from 0, without those before it."""
        turn, place = divmod(number, self.per_pass)
        block, at = divmod(place, self._at_once)
        if self._block != (turn, block):
            self._batches = list(self._filled(turn, block))
            self._block = turn, block
        return self._batches[at]

    def _filled(self, turn: int, block: int) -> Iterator[Batch]:
        if turn != self._pass:
            shuffled = np.random.default_rng(_number(f"order {self._name} {turn}"))
            self._pass, self._order = turn, shuffled.permutation(self._places)
        config, size = self._config, self._config.batch_size
        first = block * self._at_once * size
        rng = random.Random(f"rows {self._name} {turn} {block}")
        rows = [
            draw(*self._examples[int(place)], rng, config.augment, config.augment_share)
            for place in self._order[first : first + self._at_once * size]
        ]
        return fill(rows, size)


class BatchPlan:
    """The batches of every update, found from its number without running the others.

    A batch has examples of one data set and one kind, so that each of its rows has hard negatives
    or none has. An epoch has `weight` passes of each data set, in random order.
    """

    def __init__(self, config: TrainConfig, data: Sequence[DataSet]):
        self.config = config
        self.data = data
        self.examples = sum(len(each.examples) for each in data)
        self._streams = [
            (number, Stream(each, kind, str(number)))
            for number, each in enumerate(data)
            for kind in Kind
            if each.examples.has(kind)
        ]
        counts = Counter[int]()
        for number, stream in self._streams:
            counts[number] += stream.per_epoch
        for number, each in enumerate(data):
            if each.weight and not counts[number]:
                of_which = f"data set {number + 1}: " if len(data) > 1 else ""
                raise ConfigError(
                    f"{of_which}examples to train on: {len(each.examples)}; expected 2 or more of "
                    "one kind"
                )
        batches = counts.total()
        self.per_epoch = batches // config.accumulation
        if self.per_epoch == 0:
            raise ConfigError(
                f"{self.examples} examples give {batches} batches of up to "
                f"{config.batch_size}, fewer than accumulation {config.accumulation}: add examples "
                "or lower one of them"
            )
        self.steps = config.max_steps or config.epochs * self.per_epoch
        self._epoch, self._schedule = -1, list[tuple[int, int]]()

    def at(self, step: int) -> list[tuple[int, Batch]]:
        """The `accumulation` batches of an update, each with the number of its data set.

        A rest of an epoch that fills no update is left out.
        """
        epoch, place = divmod(step, self.per_epoch)
        start = place * self.config.accumulation
        found = []
        for stream, number in self._of_epoch(epoch)[start : start + self.config.accumulation]:
            data, batches = self._streams[stream]
            found.append((data, batches.batch(epoch * batches.per_epoch + number)))
        return found

    def _of_epoch(self, epoch: int) -> list[tuple[int, int]]:
        """Stream of each batch, and its number in that stream's part of the epoch."""
        if epoch != self._epoch:
            counts = [stream.per_epoch for _, stream in self._streams]
            streams = np.repeat(np.arange(len(counts)), counts)
            np.random.default_rng(_number(f"epoch {self.config.seed} {epoch}")).shuffle(streams)
            self._schedule = [*zip(streams.tolist(), _occurrence(streams).tolist(), strict=True)]
            self._epoch = epoch
        return self._schedule

    def learning_rate(self, step: int) -> float:
        """Linear from 0 over the warm-up, then linear to 0 at the end."""
        warm = round(self.config.warmup_ratio * self.steps)
        if step < warm:
            return self.config.learning_rate * (step + 1) / warm
        return self.config.learning_rate * (self.steps - step) / max(1, self.steps - warm)


def fill(rows: Sequence[Drawn], size: int) -> Iterator[Batch]:
    """Batches of `size` in order; a row that repeats a text of the batch waits for the next."""
    waiting = deque(rows)
    while waiting:
        batch: Batch = []
        seen: set[str] = set()
        repeats: list[Drawn] = []
        while waiting and len(batch) < size and len(repeats) < 2 * size:
            row = waiting.popleft()
            texts = {row.anchor, row.positive, *row.negatives} - {""}
            if seen.isdisjoint(texts):
                batch.append(row)
                seen |= texts
            else:
                repeats.append(row)
        # No other row is near: take repeats, which the loss masks, rather than a small batch.
        taken = size - len(batch)
        batch += repeats[:taken]
        waiting.extendleft(reversed(repeats[taken:]))
        yield batch


def _number(seed: str) -> int:
    """A seed for numpy from one in words."""
    return random.Random(seed).getrandbits(64)


def _occurrence(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal values are before each: [5, 2, 5, 5] → [0, 0, 1, 2]."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values)
    places = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.empty_like(places)
    found[order] = places
    return found
