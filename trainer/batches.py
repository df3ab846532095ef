"""Which examples an update takes, at what rate, and how they become tensors."""

import torch
from torch import Tensor

from trainer.config import TrainConfig
from trainer.data import Batch, Examples, epoch_batches
from trainer.encoder import Encoder
from trainer.errors import ConfigError
from trainer.tokens import TokenIds


class BatchPlan:
    """The batches of every update, found from its number without running the others."""

    def __init__(self, config: TrainConfig, examples: Examples):
        self.config = config
        self.examples = examples
        self._epoch = -1
        self._batches: list[Batch] = []
        self.per_epoch = len(self._of_epoch(0)) // config.accumulation
        if self.per_epoch == 0:
            raise ConfigError(
                f"{len(examples)} examples give {len(self._batches)} batches of up to "
                f"{config.batch_size}, fewer than accumulation {config.accumulation}: add examples "
                "or lower one of them"
            )
        self.steps = config.max_steps or config.epochs * self.per_epoch

    def _of_epoch(self, epoch: int) -> list[Batch]:
        if epoch != self._epoch:
            size, seed = self.config.batch_size, self.config.seed
            self._batches = epoch_batches(self.examples, size, seed, epoch)
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


class Feed:
    """Rows of text to vectors, with the prompts the model will be queried with."""

    def __init__(self, encoder: Encoder, config: TrainConfig):
        self.module = encoder.module
        self.device = next(encoder.module.parameters()).device
        limit = min(config.max_tokens, encoder.max_tokens)
        self._ids = TokenIds(encoder.model.tokenizer, limit)
        self._query, self._document = encoder.prompt("query"), encoder.prompt("document")

    def _vectors(self, texts: list[str], prompt: str) -> Tensor:
        """(len(texts), dim) float32 with gradients."""
        ids = self._ids([prompt + text for text in texts])
        batch = self._ids.pad(ids, self._ids.prompt_tokens(prompt))
        vectors: Tensor = self.module(batch.to(self.device))
        return vectors

    def __call__(self, rows: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Anchors, positives and, where the rows have them, negatives."""
        anchors = self._vectors([row.anchor for row in rows], self._query)
        positives = self._vectors([row.positive for row in rows], self._document)
        against = [row.negative for row in rows if row.negative is not None]
        return anchors, positives, self._vectors(against, self._document) if against else None


def same_as_positive(rows: Batch) -> Tensor:
    """(B, B + N) bool: candidates that say the same as the anchor's positive, or the anchor."""
    candidates = [row.positive for row in rows]
    candidates += [row.negative for row in rows if row.negative is not None]
    found = [[text in (row.anchor, row.positive) for text in candidates] for row in rows]
    return torch.tensor(found)
