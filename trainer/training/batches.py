"""Which examples an update takes, and at what learning rate."""

import math
import random
from functools import lru_cache

import numpy as np

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training.examples import Batch
from searchengine.trainer.training.train_config import Augment, Objective, TrainConfig

# Of labels at least as many updates or passes, by the fewer: few labels make short epochs.
LABEL_UPDATES, LABEL_EPOCHS = 80, 40


class BatchPlan:
    """The batches of every update: they follow from the seed and its number alone.

    An epoch has every example once, each time in another order. Its last batch may be smaller; a
    single row is left out, as there is nothing to contrast it with, and so are the last batches
    that do not fill an update. Raises ConfigError if none does.
    """

    def __init__(self, config: TrainConfig, examples: Batch):
        self.config = config
        self.examples = examples
        self._order = lru_cache(2)(self._ordered)
        size = config.batch_size
        full, rest = divmod(len(examples), size)
        batches = full + (rest > 1)
        self.per_epoch = batches // config.accumulation
        if self.per_epoch == 0:
            raise ConfigError(
                f"{len(examples)} examples give {batches} batches, expected "
                f"{config.accumulation} (accumulation) or more, each of 2 to {size} examples: add "
                "examples, or lower accumulation"
            )
        labels = config.objective is Objective.CLASSIFICATION
        least = min(LABEL_UPDATES, LABEL_EPOCHS * self.per_epoch) if labels else 0
        self.steps = config.max_steps or max(config.epochs * self.per_epoch, least)

    def at(self, step: int) -> list[Batch]:
        """The `accumulation` batches of an update, without those before it."""
        epoch, place = divmod(step, self.per_epoch)
        first = place * self.config.accumulation
        return [self._batch(epoch, first + i) for i in range(self.config.accumulation)]

    def _batch(self, epoch: int, number: int) -> Batch:
        config, first = self.config, number * self.config.batch_size
        order = self._order(epoch)[first : first + config.batch_size]
        rows = [self.examples[place] for place in order]
        if config.augment is Augment.NONE or not rows[0].one_text:
            return rows
        rng = random.Random(f"rows {config.seed} {epoch} {number}")
        views = (augmented(row.anchor, config.augment, config.augment_share, rng) for row in rows)
        return [row._replace(positive=view) for row, view in zip(rows, views, strict=True)]

    def _ordered(self, epoch: int) -> list[int]:
        """The places of all examples in random order; labelled texts in twos of a label, so that a
        batch has many labels, and another text of each."""
        rng = random.Random(f"order {self.config.seed} {epoch}")
        generator = np.random.default_rng(rng.getrandbits(64))
        order: list[int] = generator.permutation(len(self.examples)).tolist()
        if self.config.objective is not Objective.CLASSIFICATION:
            return order
        by_label: dict[str, list[int]] = {}
        for place in order:
            by_label.setdefault(self.examples[place].label, []).append(place)
        twos = [x[i : i + 2] for x in by_label.values() for i in range(0, len(x), 2)]
        rng.shuffle(twos)
        return [place for two in twos for place in two]

    def learning_rate(self, step: int) -> float:
        """Linear from 0 to the peak over the warm-up, then linear to 0."""
        warm, peak = round(self.config.warmup_ratio * self.steps), self.config.learning_rate
        if step < warm:
            return peak * (step + 1) / warm
        return peak * (self.steps - step) / max(1, self.steps - warm)


def augmented(text: str, augment: Augment, share: float, rng: random.Random) -> str:
    """The text with words left out; at least one word stays."""
    words = text.split()
    count = 1 if augment is Augment.DELETE_WORD else round(share * len(words))
    count = min(count, len(words) - 1)
    match augment:
        case Augment.DELETE_WORD | Augment.DELETE if count > 0:
            out = set(rng.sample(range(len(words)), count))
            return " ".join(word for i, word in enumerate(words) if i not in out)
        case Augment.CROP if count > 0:
            start = math.floor(rng.random() * (count + 1))
            return " ".join(words[start : start + len(words) - count])
        case _:
            return text
