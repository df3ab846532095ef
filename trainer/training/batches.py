"""Which examples an update takes, and at what rate."""

from trainer.errors import ConfigError
from trainer.training.config import TrainConfig
from trainer.training.data.files import Batch, Examples, epoch_batches


class BatchPlan:
    """The batches of every update, found from its number without running the others."""

    def __init__(self, config: TrainConfig, examples: Examples):
        self.config = config
        self.examples = examples
        self._epoch = -1
        self._batches: list[Batch] = []
        self.per_epoch = len(self._of_epoch(0)) // config.accumulation
        if not self._batches:
            raise ConfigError(f"examples to train on: {len(examples)}; expected 2 or more")
        if self.per_epoch == 0:
            raise ConfigError(
                f"{len(examples)} examples give {len(self._batches)} batches of up to "
                f"{config.batch_size}, fewer than accumulation {config.accumulation}: add examples "
                "or lower one of them"
            )
        self.steps = config.max_steps or config.epochs * self.per_epoch

    def _of_epoch(self, epoch: int) -> list[Batch]:
        if epoch != self._epoch:
            config = self.config
            self._batches = epoch_batches(
                self.examples,
                config.batch_size,
                config.seed,
                epoch,
                config.augment,
                config.augment_share,
            )
            self._epoch = epoch
        return self._batches

    def at(self, step: int) -> list[Batch]:
        """The `accumulation` batches of an update; a rest of an epoch that fills none is left."""
        epoch, place = divmod(step, self.per_epoch)
        start = place * self.config.accumulation
        return self._of_epoch(epoch)[start : start + self.config.accumulation]

    def learning_rate(self, step: int) -> float:
        """Linear from 0 over the warm-up, then linear to 0 at the end."""
        warm = round(self.config.warmup_ratio * self.steps)
        if step < warm:
            return self.config.learning_rate * (step + 1) / warm
        return self.config.learning_rate * (self.steps - step) / max(1, self.steps - warm)
