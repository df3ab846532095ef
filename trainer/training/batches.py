"""Which examples an update takes, read and tokenised ahead of it, and at what learning rate."""

import itertools
import random
import warnings
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import ConfigError, DataWarning
from searchengine.trainer.training.examples import KINDS, Batch, Examples, Kind, draw
from searchengine.trainer.training.objectives import PrefixObjective
from searchengine.trainer.training.passes import Passes, Tokens
from searchengine.trainer.training.train_config import Objective, TrainConfig

# Of labels at least as many updates or passes, by the fewer: few labels make short epochs.
LABEL_UPDATES, LABEL_EPOCHS = 80, 40


class BatchPlan:
    """The batches of every update: they follow from the seed and its number alone.

    An epoch has every example once, each time in another order. A batch has examples of one kind,
    so that all of its rows have hard negatives or none has. The last batch of a kind may be
    smaller; a single row without negatives is left out, as there is nothing to contrast it with,
    and so are the last batches of an epoch that do not fill an update. Raises ConfigError if none
    does.
    """

    def __init__(self, config: TrainConfig, examples: Examples):
        self.config = config
        self.examples = examples
        size = config.batch_size
        self._places = {kind: examples.of_kind(kind) for kind in Kind}
        self._counts = []  # batches of each kind in an epoch
        for kind, places in self._places.items():
            full, rest = divmod(len(places), size)
            self._counts.append(full + (rest > 1 or (rest == 1 and kind is Kind.TRIPLET)))
        labelled = map(examples.__getitem__, self._places[Kind.LABELLED].tolist())
        self._labels = [texts[1] for _, texts in labelled]
        self._schedule = lru_cache(1)(self._scheduled)
        self._order = lru_cache(2 * len(Kind))(self._ordered)
        self.per_epoch = sum(self._counts) // config.accumulation
        if self.per_epoch == 0:
            raise ConfigError(
                f"{len(examples)} examples give {sum(self._counts)} batches, expected "
                f"{config.accumulation} (accumulation) or more, each of 2 to {size} examples of "
                "one kind: add examples, or lower accumulation"
            )
        contrastive = config.objective is Objective.CONTRASTIVE
        if contrastive and len(examples) < size:
            warnings.warn(
                f"{len(examples)} examples fill no batch of {size}: an anchor is compared with "
                f"{len(examples) - 1} others at most; lower batch_size, or add examples",
                DataWarning,
                stacklevel=2,
            )
        labels = config.objective is Objective.CLASSIFICATION
        least = min(LABEL_UPDATES, LABEL_EPOCHS * self.per_epoch) if labels else 0
        self.steps = config.max_steps or max(config.epochs * self.per_epoch, least)

    def at(self, step: int) -> list[Batch]:
        """The `accumulation` batches of an update, without those before it."""
        epoch, place = divmod(step, self.per_epoch)
        start = place * self.config.accumulation
        chosen = self._schedule(epoch)[start : start + self.config.accumulation]
        return [self._batch(epoch, kind, number) for kind, number in chosen]

    def _batch(self, epoch: int, kind: Kind, number: int) -> Batch:
        config, first = self.config, number * self.config.batch_size
        rng = random.Random(f"rows {kind} {config.seed} {epoch} {number}")
        places = self._order(epoch, kind)[first : first + config.batch_size].tolist()
        examples = map(self.examples.__getitem__, places)
        return [draw(*item, rng, config.augment, config.augment_share) for item in examples]

    def _scheduled(self, epoch: int) -> list[tuple[Kind, int]]:
        """Kind of each batch of an epoch, and its number among those of its kind."""
        kinds = np.repeat(np.arange(len(Kind)), self._counts)
        _generator(f"epoch {self.config.seed} {epoch}").shuffle(kinds)
        numbers = {kind: itertools.count() for kind in Kind}
        return [(kind, next(numbers[kind])) for kind in (KINDS[i] for i in kinds.tolist())]

    def _ordered(self, epoch: int, kind: Kind) -> NDArray[np.int64]:
        """The places of a kind in random order; labelled texts in twos of a label, so that a batch
        has many labels, and another text of each."""
        rng = _generator(f"order 0 {kind} {self.config.seed} {epoch}")
        order = rng.permutation(len(self._places[kind]))
        if kind is Kind.LABELLED:
            by_label: dict[str, list[int]] = {}
            for i in order.tolist():
                by_label.setdefault(self._labels[i], []).append(i)
            twos = [x[i : i + 2] for _, x in sorted(by_label.items()) for i in range(0, len(x), 2)]
            order = np.concatenate([twos[i] for i in np.argsort(rng.permutation(len(twos)))])
        return self._places[kind][order]

    def learning_rate(self, step: int) -> float:
        """Linear from 0 to the peak over the warm-up, then linear to 0."""
        warm, peak = round(self.config.warmup_ratio * self.steps), self.config.learning_rate
        if step < warm:
            return peak * (step + 1) / warm
        return peak * (self.steps - step) / max(1, self.steps - warm)


def _generator(seed: str) -> np.random.Generator:
    """numpy's generator for a seed in words."""
    return np.random.default_rng(random.Random(seed).getrandbits(64))


class LoadedBatch(NamedTuple):
    """A batch with its texts as tokens."""

    rows: Batch
    views: list[Tokens]


def load(
    plan: BatchPlan, objective: PrefixObjective, passes: Passes, first: int = 0
) -> Generator[list[LoadedBatch]]:
    """The batches of every update from `first` on, read and tokenised in a second thread one
    update ahead."""

    def batches(step: int) -> list[LoadedBatch]:
        return [
            LoadedBatch(rows, [passes.tokens(view) for view in objective.views(rows)])
            for rows in plan.at(step)
        ]

    with ThreadPoolExecutor(1, "examples") as thread:
        ahead = thread.submit(batches, first)
        for step in range(first, plan.steps):
            loaded = ahead.result()
            if step + 1 < plan.steps:
                ahead = thread.submit(batches, step + 1)
            yield loaded
