"""What the objectives share: the prefixes of an update, and the negatives of each process."""

import random
from collections.abc import Sequence

from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.positives import Batch
from searchengine.trainer.training.processes import Processes


def drawn_prefixes(
    dims: Sequence[int], weights: Sequence[float], config: TrainConfig, step: int
) -> tuple[list[int], list[float]]:
    """The prefixes of an update and their weights: all, or a sample that its number seeds."""
    chosen = range(len(dims))
    if 0 < config.prefixes_per_step < len(dims):
        rng = random.Random(f"prefixes {config.seed} {step}")
        chosen = sorted(rng.sample(chosen, config.prefixes_per_step))  # type: ignore[assignment]
    return [dims[i] for i in chosen], [weights[i] for i in chosen]


def negative_counts(rows: Batch, processes: Processes) -> list[int]:
    """How many negatives the rows of each process have."""
    parts = processes.parts(len(rows))
    return [sum(len(row.negatives) for row in rows[part]) for part in parts]
