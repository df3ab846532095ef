"""One update: gradients of its batches, and a step of the optimizer."""

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self

import torch

from searchengine.trainer.errors import MemoryWarning, TrainingError
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.batches import BatchPlan
from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.positives import Batch
from searchengine.trainer.training.objectives.contrastive import Contrastive
from searchengine.trainer.training.outcome import Run
from searchengine.trainer.training.passes import Passes, View
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.teachers import AnyObjective


class Prepared(NamedTuple):
    """A batch with its objective, and what the networks read of it. weight: of its loss."""

    objective: AnyObjective
    rows: Batch
    views: list[View]
    weight: float


class Ahead:
    """The batches of every update, prepared while the update before it is computed.

    Examples are read and tokenised in a second thread. objectives: of each data set.
    """

    def __init__(self, plan: BatchPlan, objectives: Sequence[AnyObjective], passes: Passes):
        self._plan = plan
        self._objectives = objectives
        self._passes = passes
        self._thread = ThreadPoolExecutor(1, "examples")
        self._next: tuple[int, Future[list[Prepared]]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def at(self, step: int) -> list[Prepared]:
        """The batches of an update; those of the next one are then begun."""
        if self._next is None or self._next[0] != step:
            self._next = step, self._thread.submit(self._prepare, step)
        batches = self._next[1].result()
        following = step + 1
        if following < self._plan.steps:
            self._next = following, self._thread.submit(self._prepare, following)
        return batches

    def _prepare(self, step: int) -> list[Prepared]:
        found = []
        for number, rows in self._plan.at(step):
            objective, data = self._objectives[number], self._plan.data[number]
            views = [self._passes.tokenized(view, data.prompts) for view in objective.views(rows)]
            found.append(Prepared(objective, rows, views, data.loss_weight))
        return found


def update(
    run: Run,
    plan: BatchPlan,
    passes: Passes,
    batches: Sequence[Prepared],
    processes: Processes,
) -> float:
    """One step of the optimizer over `accumulation` batches; returns the mean loss.

    Where memory runs out, the gradients are computed again with less of it, and a MemoryWarning
    says so. Raises TrainingError where nothing is left to spare, or the loss is not a number.
    """
    config, training_model = plan.config, run.training_model
    for group in run.optimizer.param_groups:
        group["lr"] = plan.learning_rate(run.step) * group["rate_factor"]
    training_model.train()
    total: float | None = None
    while total is None:
        try:
            total = _add_gradients(run, config, batches, passes, processes)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            change = _spare(run, config, passes, processes)
            warnings.warn(
                f"memory ran out in update {run.step + 1}: {change}", MemoryWarning, stacklevel=2
            )
    total = processes.add(total, passes.device)
    trainable = [p for p in training_model.parameters() if p.requires_grad]
    for weight in trainable:
        if weight.grad is not None and weight.grad.is_sparse:  # the embeddings of words
            weight.grad = weight.grad.to_dense()
    processes.add_gradients(trainable)
    norm = torch.nn.utils.clip_grad_norm_(trainable, config.max_grad_norm).item()
    _check_finite(run, config, {"loss": total, "norm of the gradient": norm})
    run.optimizer.step()
    if training_model.momentum is not None:
        for objective, rows, *_ in batches:
            texts = [row.positive for row in rows[processes.mine(len(rows))]]
            vectors = passes.vectors(training_model.momentum, texts)  # type: ignore[arg-type]
            assert isinstance(objective, Contrastive)  # which alone has a queue
            objective.remember(vectors, rows)
        training_model.follow(config.queue_momentum)
    return total


def _add_gradients(
    run: Run,
    config: TrainConfig,
    batches: Sequence[Prepared],
    passes: Passes,
    processes: Processes,
) -> float:
    """The gradients of these batches, and the mean loss of this process's rows."""
    run.optimizer.zero_grad()
    total, share = 0.0, 1 / len(batches)
    for number, (objective, rows, views, weight) in enumerate(batches):
        seed = pass_seed(config.seed, run.step, number, processes.rank)
        loss = functools.partial(objective.loss, rows=rows, step=run.step)
        total += passes.backward(views, objective.layers(run.step), seed, loss, weight * share)
        if run.training_model.language is not None:
            total += passes.language_backward(views[0], seed, processes, share)
    return total


def _check_finite(run: Run, config: TrainConfig, values: Mapping[str, float]) -> None:
    """Raise TrainingError if one of them is not a number, before the weights change."""
    for name, value in values.items():
        if not math.isfinite(value):
            newest = checkpoint.latest(config.out)
            kept = f"the checkpoint {newest.name} was kept" if newest else "nothing was written yet"
            raise TrainingError(
                f"the {name} of update {run.step + 1} is {value}: lower learning_rate "
                f"({config.learning_rate}) or raise temperature ({config.temperature}); {kept}"
            )


def pass_seed(seed: int, step: int, batch: int, rank: int) -> int:
    """The first seed of an update's passes; no two updates share a seed."""
    return (((seed * 1_000_003 + step) * 64 + rank) * 1000 + batch) * 10_000 % 2**63


def _out_of_memory(error: RuntimeError) -> bool:
    """Whether torch says that the device, or the allocator of the processor, has no more memory."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def _spare(run: Run, config: TrainConfig, passes: Passes, processes: Processes) -> str:
    """What takes less memory from now on, in words. Other processes would wait: then nothing."""
    change = passes.spare() if processes.count == 1 else None
    if change is None:
        raise TrainingError(
            f"memory ran out in update {run.step + 1}: lower max_tokens ({config.max_tokens}) or "
            f"batch_size ({config.batch_size}), or set gradient_cache and a small chunk_tokens"
        )
    return change
