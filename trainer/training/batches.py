"""Which examples an update takes, read and tokenised ahead of it, and at what learning rate."""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.examples import Examples
from searchengine.trainer.training.objectives import PrefixObjective
from searchengine.trainer.training.passes import Passes, Tokens
from searchengine.trainer.training.rows import Batch, Kind, Row, draw
from searchengine.trainer.training.train_config import Objective, TrainConfig

# Maximum rows, and bytes of them, in memory at a time for each kind of example; and minimum
# batches. Within them rows change places, so that no text is twice in a batch.
LABEL_UPDATES = 80  # at least: few labels make short epochs
BLOCK_ROWS, BLOCK_BYTES, BLOCK_BATCHES = 8192, 1 << 25, 4


class Stream:
    """The batches of all examples of one kind, pass after pass, each in another order.

    Every batch follows from the seed and its number. A pass has every example once. The last batch
    may be smaller; if it would be one row without negatives, it is left out: there is nothing to
    contrast that row with. No text is in two rows of a batch if another order can avoid it.
    """

    def __init__(self, config: TrainConfig, examples: Examples, kind: Kind):
        self._config = config
        self._examples = examples
        self._places = examples.of_kind(kind)
        self._labels: NDArray[np.int64] | None = None  # of the places, as numbers
        if kind is Kind.LABELLED:
            labels = [examples[int(place)][1][1] for place in self._places]
            self._labels = np.unique(labels, return_inverse=True)[1]
        self._name = f"0 {kind} {config.seed}"
        size = config.batch_size
        rows = min(BLOCK_ROWS, int(BLOCK_BYTES / max(1.0, examples.mean_bytes)))
        self._block_batches = max(BLOCK_BATCHES, rows // size)
        rest = len(self._places) % size
        self.per_pass = len(self._places) // size
        self.per_pass += rest > 1 or (rest == 1 and kind is Kind.TRIPLET)
        self._pass, self._order = -1, self._places
        self._block, self._batches = (-1, -1), list[Batch]()

    def batch(self, number: int) -> Batch:
        """The batch of this number, from 0, without those before it."""
        epoch, place = divmod(number, self.per_pass)
        block, place = divmod(place, self._block_batches)
        if self._block != (epoch, block):
            self._batches = list(self._filled(epoch, block))
            self._block = epoch, block
        return self._batches[place]

    def _filled(self, epoch: int, block: int) -> Iterator[Batch]:
        if epoch != self._pass:
            shuffled = np.random.default_rng(_number(f"order {self._name} {epoch}"))
            self._pass, self._order = epoch, self._shuffled(shuffled)
        config, size = self._config, self._config.batch_size
        first = block * self._block_batches * size
        rng = random.Random(f"rows {self._name} {epoch} {block}")
        rows = [
            draw(*self._examples[int(place)], rng, config.augment, config.augment_share)
            for place in self._order[first : first + self._block_batches * size]
        ]
        return fill(rows, size)

    def _shuffled(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The places in random order; labelled texts in twos of a label, so that a batch has many
        labels, and another text of each."""
        order = rng.permutation(len(self._places))
        if self._labels is not None:
            labels = self._labels[order]
            twos = np.stack([labels, _occurrence(labels) // 2])
            two = np.unique(twos, axis=1, return_inverse=True)[1].ravel()
            order = order[np.argsort(rng.permutation(two.max() + 1)[two], kind="stable")]
        return self._places[order]


class BatchPlan:
    """The batches of every update, from its number alone, without those before it.

    A batch has examples of one kind, so that all of its rows have hard negatives or none has.
    """

    def __init__(self, config: TrainConfig, examples: Examples):
        self.config = config
        self.examples = examples
        self._streams = [Stream(config, examples, kind) for kind in Kind if examples.has(kind)]
        batches = sum(stream.per_pass for stream in self._streams)
        if not batches:
            raise ConfigError(
                f"examples to train on: {len(examples)}; expected 2 or more of one kind"
            )
        self.per_epoch = batches // config.accumulation
        if self.per_epoch == 0:
            raise ConfigError(
                f"{len(examples)} examples give {batches} batches of up to "
                f"{config.batch_size}, fewer than accumulation {config.accumulation}: add examples "
                "or lower one of them"
            )
        labels = config.objective is Objective.CLASSIFICATION
        least = LABEL_UPDATES if labels else 0
        self.steps = config.max_steps or max(config.epochs * self.per_epoch, least)
        self._epoch, self._schedule = -1, list[tuple[int, int]]()

    def at(self, step: int) -> list[Batch]:
        """The `accumulation` batches of an update.

        The last batches of an epoch are left out if they do not fill an update.
        """
        epoch, place = divmod(step, self.per_epoch)
        start = place * self.config.accumulation
        batches = []
        for place, number in self._of_epoch(epoch)[start : start + self.config.accumulation]:
            stream = self._streams[place]
            batches.append(stream.batch(epoch * stream.per_pass + number))
        return batches

    def _of_epoch(self, epoch: int) -> list[tuple[int, int]]:
        """Stream of each batch, and its number in that stream's part of the epoch."""
        if epoch != self._epoch:
            counts = [stream.per_pass for stream in self._streams]
            streams = np.repeat(np.arange(len(counts)), counts)
            np.random.default_rng(_number(f"epoch {self.config.seed} {epoch}")).shuffle(streams)
            self._schedule = [*zip(streams.tolist(), _occurrence(streams).tolist(), strict=True)]
            self._epoch = epoch
        return self._schedule

    def learning_rate(self, step: int) -> float:
        """Linear from 0 to the peak over the warm-up, then linear to 0."""
        warm, peak = round(self.config.warmup_ratio * self.steps), self.config.learning_rate
        if step < warm:
            return peak * (step + 1) / warm
        return peak * (self.steps - step) / max(1, self.steps - warm)


def fill(rows: Sequence[Row], size: int) -> Iterator[Batch]:
    """Batches of `size` in order; a row that repeats a text of the batch waits for the next."""
    waiting = deque(rows)
    while waiting:
        batch: Batch = []
        seen: set[str] = set()
        repeats: list[Row] = []
        while waiting and len(batch) < size and len(repeats) < 2 * size:
            row = waiting.popleft()
            texts = {row.anchor, row.positive, *row.negatives} - {""}
            if seen.isdisjoint(texts):
                batch.append(row)
                seen |= texts
            else:
                repeats.append(row)
        # No other row is near: take repeats, which the loss masks, rather than a small batch.
        missing = size - len(batch)
        batch += repeats[:missing]
        waiting.extendleft(reversed(repeats[missing:]))
        yield batch


def _number(seed: str) -> int:
    """A seed for numpy from one in words."""
    return random.Random(seed).getrandbits(64)


def _occurrence(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of equal values before each value: [5, 2, 5, 5] → [0, 0, 1, 2]."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values)
    places = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.empty_like(places)
    numbers[order] = places
    return numbers


class LoadedBatch(NamedTuple):
    """A batch with its texts as tokens."""

    rows: Batch
    views: list[Tokens]


class BatchLoader:
    """The batches of every update, read and tokenised in a second thread one update ahead."""

    def __init__(self, plan: BatchPlan, objective: PrefixObjective, passes: Passes):
        self._plan = plan
        self._objective = objective
        self._passes = passes
        self._thread = ThreadPoolExecutor(1, "examples")
        self._next: tuple[int, Future[list[LoadedBatch]]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def at(self, step: int) -> list[LoadedBatch]:
        """The batches of an update; loading those of the next one then begins."""
        if self._next is None or self._next[0] != step:
            self._next = step, self._thread.submit(self._load, step)
        batches = self._next[1].result()
        following = step + 1
        if following < self._plan.steps:
            self._next = following, self._thread.submit(self._load, following)
        return batches

    def _load(self, step: int) -> list[LoadedBatch]:
        return [
            LoadedBatch(rows, [self._passes.tokens(view) for view in self._objective.views(rows)])
            for rows in self._plan.at(step)
        ]
